"""LoRA adapters in PEFT's format: low-rank products that are added to query and key weights as these are read.

An adapter is `adapter_config.json` and `adapter_model.safetensors` (or `.bin`), in which the module `PATH` of the model
has the tensors `base_model.model.PATH.lora_A.weight` [r, in] and `.lora_B.weight` [out, r]. Merged,

    W = W_base + scaling * B A        scaling = lora_alpha / r, with use_rslora lora_alpha / sqrt(r)

with the product transposed for a Conv1D. r and lora_alpha may differ by module (`rank_pattern`, `alpha_pattern`).

Source: peft/utils/save_and_load.py, `get_peft_model_state_dict`; peft/tuners/lora/layer.py, `update_layer` and
`get_delta_weight`; peft/tuners/lora/model.py, `_create_and_replace`; peft/tuners/tuners_utils.py,
`check_target_module_exists`; peft/utils/other.py, `get_pattern_key`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qkgeom.byte_files import Wanted
from qkgeom.checkpoint import Checkpoint, LowRank
from qkgeom.errors import ModelFault
from qkgeom.layouts.base import FusedConv1D, Layout
from qkgeom.locate import names_by_layer

PREFIX = "base_model.model."
_PART = re.compile(r"(?P<path>.+)\.(?P<part>lora_A|lora_B)\.weight")
# kinds of adapter whose merged weight is not W + scaling B A
_OTHER_KINDS = (
    *("use_dora", "lora_bias", "use_qalora", "use_bdlora", "enable_lora", "layer_replication", "alora_invocation_tokens"),
    *("arrow_config", "monteclora_config"),
)
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")  # the others (PiSSA, OLoRA, ...) change W itself


def adapted(base: Checkpoint, adapter: Checkpoint, layout: Layout) -> Checkpoint:
    """The checkpoint with an adapter, whose products `extraction` adds to the weights that it reads.

    Args:
        base: the checkpoint that the adapter was trained on.
        adapter: the opened adapter; see `qkgeom.sources.open_adapter`.
        layout: of the checkpoint; its patterns find the adapter's query and key modules too.

    Raises:
        ModelFault: the adapter is not plain LoRA, does not touch queries and keys, or does not fit the base.
    """
    if any(container.format == "gguf" for container in base.where.values()):
        raise ModelFault(
            "an adapter cannot be added to a GGUF file, whose query and key rows are in another order",
            where=base.uri,
            fix="use the safetensors or torch checkpoint of the base",
        )
    require_plain(adapter)
    products, others = _products(base, adapter, layout)
    parts = {name: adapter.where[name] for product in products.values() for name in (product.A, product.B)}
    named = {name: {"rank": product.rank, "scaling": product.scaling} for name, product in products.items()}
    stated = adapter.config.get("base_model_name_or_path")
    record = {"uri": adapter.uri, **adapter.origin, "stated_base": stated, "tensors": named, "modules_left_out": others}

    def expect(groups: Sequence[Sequence[Wanted]]) -> None:
        for each in (base, adapter):  # each has a queue of its own
            files = {id(container.file) for container in each.where.values()}
            each.expect([[wanted for wanted in group if id(wanted[0]) in files] for group in groups])

    return replace(
        base,
        where={**base.where, **parts},
        products=products,
        origin={**base.origin, "adapter": record},
        expect=expect,
        moved=lambda: base.moved() + adapter.moved(),
    )


def merged(weight: np.ndarray, A: np.ndarray, B: np.ndarray, product: LowRank) -> np.ndarray:
    """The weight, or some of its rows, with the product added, in float32.

    Args:
        weight: [out, in], of a Conv1D [in, out].
        A: [r, in].
        B: [out, r], the weight's rows of it.
        product: what it is.
    """
    delta = product.scaling * (B.astype(np.float32) @ A.astype(np.float32))
    whole = weight.astype(np.float32)
    whole += delta.T if product.transposed else delta
    return whole


def require_plain(adapter: Checkpoint) -> None:
    """Raises a ModelFault if an adapter is not LoRA as `merged` adds it, whatever its base is."""
    if not adapter.where:
        raise ModelFault("an adapter holds no tensors", where=adapter.uri, expected="lora_A and lora_B of each module")
    config = adapter.config
    kinds = {name: config[name] for name in _OTHER_KINDS if config.get(name)}
    if (kind := config.get("peft_type")) != "LORA":
        kinds = {"peft_type": kind}
    elif config.get("bias", "none") != "none":
        kinds["bias"] = config["bias"]
    if config.get("init_lora_weights") not in _PLAIN_STARTS:
        kinds["init_lora_weights"] = config["init_lora_weights"]
    magnitudes = [name for name in adapter.where if ".lora_magnitude_vector" in name]
    if kinds or magnitudes:
        raise ModelFault(
            "an adapter is of a kind that cannot be merged here",
            where=f"{adapter.uri}, adapter_config.json" if kinds else f"{adapter.where[magnitudes[0]]}, tensor {magnitudes[0]}",
            found=", ".join(f"{name} {value!r}" for name, value in kinds.items()) or "DoRA's magnitudes",
            expected="peft_type 'LORA', plain: no DoRA, no trained biases, a start that leaves the base as it is",
            fix="merge it with PEFT (`merge_and_unload`), save the model, and score that",
        )


def _products(base: Checkpoint, adapter: Checkpoint, layout: Layout) -> tuple[dict[str, LowRank], int]:
    """The products by the base's tensor, and the number of the adapter's modules that hold no query or key weight."""
    pairs: dict[str, dict[str, str]] = {}
    full: list[str] = []
    for name in adapter.where:
        if match := _PART.fullmatch(name):
            pairs.setdefault(match["path"].removeprefix(PREFIX), {})[match["part"]] = name
        else:
            full.append(name)
    _require_no_copies(adapter, layout, full)
    here = names_by_layer(base, layout)
    touched = _modules(adapter, layout, pairs)
    if not touched:
        raise ModelFault(
            "an adapter touches no query or key weight, so the merged scores are the base's",
            where=_file(adapter),
            found=f"{len(pairs)} modules" + (f", such as {next(iter(pairs))}" if pairs else ""),
            expected=f"modules of the layout {layout.name}",
            fix="score the base, or check that the adapter is for this architecture",
        )
    products = {}
    for path, (numbers, role) in touched.items():
        if role not in here.get(numbers, {}):
            raise ModelFault(
                "an adapter is for another base: it touches a layer that this one has not",
                where=f"{_file(adapter)}, module {path}",
                found=f"layer {'.'.join(map(str, numbers))}",
                expected=f"one of the {len(here)} layers of {base.uri}",
                fix=f"name the base that it was trained on: {adapter.config.get('base_model_name_or_path')}",
            )
        name = here[numbers][role]
        products[name] = _product(base, adapter, layout, name, path, pairs[path])
    return products, len(pairs) - len(touched)


def _modules(adapter: Checkpoint, layout: Layout, paths: Collection[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Of the modules at these paths those with query or key weights: the layer's numbers and the role."""
    weights = dict.fromkeys((f"{path}.weight" for path in paths), next(iter(adapter.where.values())))
    found = names_by_layer(replace(adapter, where=weights), layout)
    return {name.removesuffix(".weight"): (numbers, role) for numbers, names in found.items() for role, name in names.items()}


def _require_no_copies(adapter: Checkpoint, layout: Layout, names: Sequence[str]) -> None:
    """Refuses whole query and key weights, trained beside the products (`modules_to_save`)."""
    paths = {
        name.removeprefix(PREFIX).replace("modules_to_save.", "").removesuffix(".weight"): name
        for name in names
        if name.endswith(".weight")
    }
    if copies := [paths[path] for path in _modules(adapter, layout, paths)]:
        raise ModelFault(
            "an adapter replaces whole query or key weights",
            where=f"{_file(adapter)}, tensor {copies[0]}",
            found=f"modules_to_save {adapter.config.get('modules_to_save')}, {len(copies)} such tensors",
            expected="low-rank products (lora_A, lora_B) only",
            fix="merge it with PEFT (`merge_and_unload`), save the model, and score that",
        )


def _product(base: Checkpoint, adapter: Checkpoint, layout: Layout, name: str, path: str, pair: Mapping[str, str]) -> LowRank:
    """The product for the base's tensor `name`, checked against the adapter's config and the tensor's shape."""
    where = f"{_file(adapter)}, module {path}"
    if len(pair) < 2:
        raise ModelFault(
            "an adapter's product is incomplete", where=where, found=next(iter(pair)), expected="lora_A and lora_B"
        )
    if not _is_target(adapter, path):
        raise ModelFault(
            "an adapter holds a module that its config does not name, so PEFT would not load it",
            where=where,
            found=f"target_modules {adapter.config.get('target_modules')}",
            expected="a name or a regular expression that fits the module",
            fix="correct adapter_config.json",
        )
    rank, alpha = (_number(adapter, path, *keys) for keys in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")))
    container = base.where[name]
    transposed = isinstance(layout, FusedConv1D)  # PEFT goes by the module too, and corrects fan_in_fan_out
    shape = container.tensors[name].shape
    if len(shape) != 2:
        raise ModelFault(
            "an adapter's product is for no matrix", where=where, found=f"{name} {list(shape)}", expected="[out, in]"
        )
    out, into = shape[::-1] if transposed else shape
    for part, expected in (("lora_A", (rank, into)), ("lora_B", (out, rank))):
        found = adapter.where[pair[part]].tensors[pair[part]].shape
        if found != expected:
            raise ModelFault(
                "an adapter does not fit its config or the base",
                where=f"{_file(adapter)}, tensor {pair[part]}",
                found=list(found),
                expected=f"{list(expected)}, for rank {rank} and the base's {name} {list(shape)} in {container}",
                fix=f"name the base that it was trained on: {adapter.config.get('base_model_name_or_path')}",
            )
    scaling = alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)
    return LowRank(pair["lora_A"], pair["lora_B"], int(rank), scaling, transposed)


def _is_target(adapter: Checkpoint, path: str) -> bool:
    targets = adapter.config.get("target_modules")
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        return _matches(adapter, targets, path)
    return isinstance(targets, list) and any(path == each or path.endswith(f".{each}") for each in targets)


def _number(adapter: Checkpoint, path: str, key: str, patterns: str) -> float:
    """What the config states as r or lora_alpha of a module: of the first pattern that fits its path, else of all."""
    own = adapter.config.get(patterns) or {}
    if not isinstance(own, dict):
        where = f"{adapter.uri}, adapter_config.json, {patterns}"
        raise ModelFault("a pattern of an adapter's config is wrong", where=where, found=own, expected="numbers by name")
    value = next((own[each] for each in own if _matches(adapter, rf"(.*\.)?({each})", path)), adapter.config.get(key))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or (key == "r" and value != int(value)):
        raise ModelFault(
            f"an adapter's config states no {key}",
            where=f"{adapter.uri}, adapter_config.json, module {path}",
            found=value,
            expected="a positive number",
            fix="correct adapter_config.json",
        )
    return value


def _matches(adapter: Checkpoint, pattern: str, path: str) -> bool:
    try:
        return re.fullmatch(pattern, path) is not None
    except re.error as error:
        raise ModelFault(
            "a pattern of an adapter's config is no regular expression",
            where=f"{adapter.uri}, adapter_config.json",
            found=f"{pattern!r}: {error}",
            fix="correct adapter_config.json",
        ) from error


def _file(adapter: Checkpoint) -> str:
    return str(next(iter(adapter.where.values())))
