"""Finds a checkpoint's query and key tensors by a layout's patterns, and checks every shape against the config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from qkgeom.checkpoint import Checkpoint
from qkgeom.errors import ModelFault
from qkgeom.layouts.base import AttentionShape, Layout, Need


@dataclass(frozen=True)
class Layer:
    """One self-attention layer of a checkpoint: its sizes, what to read, and the names of its tensors by role."""

    index: int
    shape: AttentionShape
    needs: Mapping[str, Need]
    names: Mapping[str, str]


def find_layers(checkpoint: Checkpoint, layout: Layout) -> list[Layer]:
    """Every layer of `checkpoint` in order, all names and shapes checked; nothing is read but headers.

    Raises:
        ModelFault: no query or key tensor, one without the other, a missing or surplus layer, several towers under
            the same names, or a shape that does not fit the config.
    """
    names = _names_by_layer(checkpoint, layout)
    _require_complete(checkpoint, layout, names)
    layers = []
    for index, roles in sorted(names.items()):
        shape = _shape(checkpoint, layout, index, roles)
        needs = layout.needs(shape)
        for need in needs.values():
            _require_shape(checkpoint, roles[need.role], need.shape, index)
        layers.append(Layer(index, shape, needs, roles))
    return layers


def patterns(checkpoint: Checkpoint, layout: Layout) -> Mapping[str, str]:
    """The layout's patterns for this checkpoint's kind of file."""
    from_gguf = any(container.format == "gguf" for container in checkpoint.where.values())
    if from_gguf and not layout.gguf:
        raise ModelFault(
            f"the layout {layout.name} does not read GGUF files",
            where=checkpoint.uri,
            fix="use the safetensors or torch checkpoint of this model",
        )
    return layout.gguf if from_gguf else layout.tensors


def _names_by_layer(checkpoint: Checkpoint, layout: Layout) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    prefixes: dict[str, str] = {}
    for role, body in patterns(checkpoint, layout).items():
        pattern = re.compile(f"^(?P<prefix>{layout.prefix})" + body.replace("{N}", r"(?P<layer>\d+)") + "$")
        for name in checkpoint.where:
            if match := pattern.match(name):
                prefixes.setdefault(match["prefix"], name)
                found.setdefault(int(match["layer"]), {})[role] = name
    if len(prefixes) > 1:
        raise ModelFault(
            "a checkpoint holds several towers whose tensors fit the layout",
            where=checkpoint.uri,
            found=", ".join(prefixes.values()),
            expected="tensors under one prefix",
            fix="choose a layout for one tower with --part or in the layout column of models.tsv",
        )
    return found


def _require_complete(checkpoint: Checkpoint, layout: Layout, names: Mapping[int, Mapping[str, str]]) -> None:
    roles = patterns(checkpoint, layout)
    if not names:
        raise ModelFault(
            "a checkpoint holds no query or key tensor of this layout",
            where=checkpoint.uri,
            found=f"{len(checkpoint.where)} tensors; the nearest are {', '.join(_nearest(checkpoint, roles)) or 'none'}",
            expected=f"the layout {layout.name}: " + ", ".join(map(_readable, roles.values())),
            fix="check the layout in models.tsv (or --architecture), or add one to workflow/qkgeom/layouts/",
        )
    for index, present in sorted(names.items()):
        if missing := [role for role in roles if role not in present]:
            raise ModelFault(
                f"layer {index} has the tensor of {', '.join(present)} but none of {', '.join(missing)}",
                where=checkpoint.uri,
                found=", ".join(present.values()),
                expected=", ".join(_readable(roles[role].replace("{N}", str(index))) for role in missing),
                fix="the checkpoint is incomplete: fetch all its files",
            )
    n_layer = max(names) + 1 if checkpoint.heads else layout.n_layer(checkpoint.config)
    # the first few only: a damaged config may state billions
    missing_layers = list(islice((index for index in range(n_layer) if index not in names), 9))
    surplus = sorted(index for index in names if index >= n_layer)
    if missing_layers or surplus:
        raise ModelFault(
            f"a checkpoint {'lacks' if missing_layers else 'has surplus'} layers",
            where=checkpoint.uri,
            found=f"{len(names)} layers; " + (f"missing {missing_layers}" if missing_layers else f"surplus {surplus}"),
            expected=f"{n_layer} layers, 0 to {n_layer - 1}, as the config says",
            fix="fetch all files of the checkpoint, or correct its config.json",
        )


def _shape(checkpoint: Checkpoint, layout: Layout, index: int, roles: Mapping[str, str]) -> AttentionShape:
    if checkpoint.heads is None:
        shape = layout.shape(checkpoint.config, index)
    else:
        stored = {role: checkpoint.where[name].tensors[name].shape for role, name in roles.items()}
        if any(len(sizes) != 2 for sizes in stored.values()):
            raise ModelFault("a query or key weight is not a matrix", where=checkpoint.uri, found=stored)
        shape = layout.infer(stored, checkpoint.heads.n_head, checkpoint.heads.n_kv_head)
    if shape.n_head % shape.n_kv_head or min(shape.d_model, shape.d_head) < 1:
        raise ModelFault(
            "the attention sizes are impossible",
            where=f"{checkpoint.uri}, layer {index}",
            found=shape,
            expected="n_head a multiple of n_kv_head, all sizes positive",
        )
    return shape


def _require_shape(checkpoint: Checkpoint, name: str, expected: tuple[int, ...], index: int) -> None:
    found = checkpoint.where[name].tensors[name].shape
    if found != expected:
        raise ModelFault(
            "the shape of a query or key weight does not fit the config",
            where=f"{checkpoint.where[name]}, tensor {name} (layer {index})",
            found=list(found),
            expected=list(expected),
            fix="check the config.json beside the weights, the layout, or --n-head and --n-kv-head",
        )


def _readable(pattern: str) -> str:
    """A pattern of names as a person would write it."""
    return pattern.replace("(?:", "(").replace("\\.", ".")


def _nearest(checkpoint: Checkpoint, roles: Mapping[str, str]) -> list[str]:
    wanted = [re.sub(r"\(\?:|[\\()?]|\{N\}", "", body) for body in roles.values()]
    close = [name for body in wanted for name in difflib.get_close_matches(body, checkpoint.where, n=2, cutoff=0.3)]
    return list(dict.fromkeys(close))[:4]
