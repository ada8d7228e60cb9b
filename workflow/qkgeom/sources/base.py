"""What every source gives, and the choice of files that all of them share."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qkgeom.errors import ModelFault


@dataclass(frozen=True)
class Fetched:
    """A checkpoint's files on this machine.

    Attributes:
        weights: the weight files.
        config: config.json, if there is one.
        index: the index of a sharded checkpoint, if there is one.
        origin: for the manifest: `kind`, what was resolved, digests, `bytes_moved`.
    """

    weights: list[Path]
    config: Path | None = None
    index: Path | None = None
    origin: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The files of a repository that make up one checkpoint, by name."""

    weights: list[str]
    config: str | None
    index: str | None


# In order of preference. Everything else (`consolidated*`, `original/*`, adapters, TF, Flax, ONNX) is ignored.
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_SHARD = re.compile(r"(model|pytorch_model)-(\d+)-of-(\d+)\.(safetensors|bin)")
_LONE = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def choose_files(names: Collection[str], where: object) -> Choice:
    """Chooses one checkpoint among the file names of a folder or repository.

    Sharded files without an index are taken when all are there.

    Raises:
        ModelFault: no weights, or several checkpoints none of which has a standard name.
    """
    config = "config.json" if "config.json" in names else None
    for index, whole in zip(_INDEXES, _WHOLE, strict=True):
        if index in names:
            kind = whole.rpartition(".")[2]
            return Choice(sorted(n for n in names if (m := _SHARD.fullmatch(n)) and m[4] == kind), config, index)
        if whole in names:
            return Choice([whole], config, None)
        if shards := sorted(n for n in names if (m := _SHARD.fullmatch(n)) and whole.endswith(m[4])):
            _require_all_shards(shards, where)
            return Choice(shards, config, None)
    for suffix in _LONE:
        lone = sorted(n for n in names if n.endswith(suffix) and "/" not in n and not n.startswith(("adapter", "training_args", ".")))
        if len(lone) == 1:
            return Choice(lone, config, None)
        if lone:
            raise ModelFault(
                "several checkpoints here, and none has a standard name",
                where=where,
                found=", ".join(lone[:5]) + (" ..." if len(lone) > 5 else ""),
                expected=" or ".join(_WHOLE),
                fix="name one file",
            )
    raise ModelFault(
        "no weights here",
        where=where,
        found=", ".join(sorted(names)[:8]) or "nothing",
        expected="a safetensors, torch (.bin, .pt) or GGUF file",
    )


def cache_folder() -> Path:
    """Where downloads are kept: `$QKGEOM_CACHE`, else `$XDG_CACHE_HOME/qkgeom`, else `~/.cache/qkgeom`."""
    if chosen := os.environ.get("QKGEOM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkgeom"


def _require_all_shards(shards: list[str], where: object) -> None:
    numbers = [_SHARD.fullmatch(name) for name in shards]
    total = int(numbers[0][3])
    present = {int(match[2]) for match in numbers}
    if missing := sorted(set(range(1, total + 1)) - present):
        raise ModelFault(
            "a sharded checkpoint is incomplete", where=where, found=f"shards {sorted(present)}", expected=f"{total} shards",
            fix=f"fetch the missing shards {missing}",
        )  # fmt: skip
