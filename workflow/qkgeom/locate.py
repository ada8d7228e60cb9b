"""Finds a checkpoint's query and key tensors by a layout's patterns, and checks every shape against the config."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qkgeom.checkpoint import Checkpoint
from qkgeom.errors import ModelFault
from qkgeom.layouts.base import AttentionShape, Layout, Need


@dataclass(frozen=True)
class Layer:
    """One self-attention layer of a checkpoint: its sizes, what to read, and the names of its tensors by role.

    `index` counts the self-attention layers from 0, through all stages; the names may count otherwise.
    """

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
    if checkpoint.heads and layout.needs_config:
        raise ModelFault(
            f"the layout {layout.name} does not read a checkpoint without its config.json",
            where=checkpoint.uri,
            found="--n-head alone",
            expected="a config.json, which says which layers there are and how many heads each has",
            fix="put the config.json beside the weights",
        )
    names = names_by_layer(checkpoint, layout)
    layers = []
    for index, numbers in enumerate(_require_complete(checkpoint, layout, names)):
        roles = names[numbers]
        shape = _shape(checkpoint, layout, index, roles)
        needs = layout.needs(shape)
        _require_roles(checkpoint, layout, numbers, roles, {need.role for need in needs.values()})
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


def names_by_layer(checkpoint: Checkpoint, layout: Layout) -> dict[tuple[int, ...], dict[str, str]]:
    """The names by role of each layer, by the numbers that stand in them.

    Raises:
        ModelFault: they are of several towers, or the layout does not read such files.
    """
    found: dict[tuple[int, ...], dict[str, str]] = {}
    prefixes: dict[str, str] = {}
    for role, body in patterns(checkpoint, layout).items():
        numbered = body.replace("{S}", r"(?P<stage>\d+)").replace("{N}", r"(?P<layer>\d+)")
        pattern = re.compile(f"^(?P<prefix>{layout.prefix}){numbered}$")
        for name in checkpoint.where:
            if match := pattern.match(name):
                prefixes.setdefault(match["prefix"], name)
                numbers = tuple(int(match[group]) for group in ("stage", "layer") if group in pattern.groupindex)
                found.setdefault(numbers, {})[role] = name
    if len(prefixes) > 1:
        raise ModelFault(
            "a checkpoint holds several towers whose tensors fit the layout",
            where=checkpoint.uri,
            found=", ".join(prefixes.values()),
            expected="tensors under one prefix",
            fix="choose a layout for one tower with --part or in the layout column of models.tsv",
        )
    return found


def _require_complete(
    checkpoint: Checkpoint, layout: Layout, names: Mapping[tuple[int, ...], Mapping[str, str]]
) -> list[tuple[int, ...]]:
    """The numbers of the layers to read, in order, once all of them are there."""
    roles = patterns(checkpoint, layout)
    if not names:
        raise ModelFault(
            "a checkpoint holds no query or key tensor of this layout",
            where=checkpoint.uri,
            found=f"{len(checkpoint.where)} tensors; the nearest are {', '.join(_nearest(checkpoint, roles)) or 'none'}",
            expected=f"the layout {layout.name}: " + ", ".join(map(_readable, roles.values())),
            fix="check the layout in models.tsv (or --architecture), or add one to workflow/qkgeom/layouts/",
        )
    for numbers, present in sorted(names.items()):
        _require_roles(checkpoint, layout, numbers, present, set(roles) - set(layout.optional))
    n_layer = max(names)[0] + 1 if checkpoint.heads else layout.n_layer(checkpoint.config)
    n_surplus = 0 if checkpoint.heads else layout.n_surplus(checkpoint.config)
    expected = ((layer,) for layer in range(n_layer)) if checkpoint.heads else layout.numbers(checkpoint.config)
    wanted, absent = [], []
    for numbers in expected:
        (wanted if numbers in names else absent).append(numbers)
        if len(absent) == 9:  # the first few only: a damaged config may state billions
            break
    left_out = {(n_layer + number,) for number in range(n_surplus)}
    surplus = [] if absent else sorted(set(names) - set(wanted) - left_out)
    if absent or surplus:
        listed = ", ".join(map(_dotted, absent or surplus))
        raise ModelFault(
            f"a checkpoint {'lacks' if absent else 'has surplus'} layers",
            where=checkpoint.uri,
            found=f"{len(names)} layers; {'missing' if absent else 'surplus'} [{listed}]",
            expected=f"{n_layer} layers, as the config says",
            fix="fetch all files of the checkpoint, or correct its config.json",
        )
    return wanted


def _require_roles(
    checkpoint: Checkpoint, layout: Layout, numbers: tuple[int, ...], present: Mapping[str, str], required: Collection[str]
) -> None:
    roles = patterns(checkpoint, layout)
    if missing := [role for role in roles if role in required and role not in present]:
        raise ModelFault(
            f"layer {_dotted(numbers)} has the tensor of {', '.join(present)} but none of {', '.join(missing)}",
            where=checkpoint.uri,
            found=", ".join(present.values()),
            expected=", ".join(_readable(roles[role], numbers) for role in missing),
            fix="the checkpoint is incomplete: fetch all its files",
        )


def _dotted(numbers: tuple[int, ...]) -> str:
    """A layer's number, or its stage's and its own, as `2` or `1.2`."""
    return ".".join(map(str, numbers))


def _shape(checkpoint: Checkpoint, layout: Layout, index: int, roles: Mapping[str, str]) -> AttentionShape:
    if checkpoint.heads is None:
        shape = layout.shape(checkpoint.config, index)
    else:
        stored = {role: checkpoint.where[name].tensors[name].shape for role, name in roles.items()}
        if any(len(sizes) != (1 if role.endswith("norm") else 2) for role, sizes in stored.items()):
            raise ModelFault("a query or key weight is not a matrix", where=checkpoint.uri, found=stored)
        shape = layout.infer(stored, checkpoint.heads.n_head, checkpoint.heads.n_kv_head)
    if shape.n_head % shape.n_kv_head or any(size is not None and size < 1 for size in vars(shape).values()):
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


def _readable(pattern: str, numbers: tuple[int, ...] = ()) -> str:
    """A pattern of names as a person would write it, with a layer's numbers if they are known."""
    for number, place in zip(numbers[::-1], ("{N}", "{S}"), strict=False):
        pattern = pattern.replace(place, str(number))
    return pattern.replace("(?:", "(").replace("\\.", ".")


def _nearest(checkpoint: Checkpoint, roles: Mapping[str, str]) -> list[str]:
    wanted = [re.sub(r"\(\?:|[\\()?]|\{[SN]\}", "", body) for body in roles.values()]
    close = [name for body in wanted for name in difflib.get_close_matches(body, checkpoint.where, n=2, cutoff=0.3)]
    return list(dict.fromkeys(close))[:4]
