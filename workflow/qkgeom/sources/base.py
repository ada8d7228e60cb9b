"""What every source gives, and the choice of files that all of them share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from qkgeom.byte_files import ByteFile, Wanted, fetch_nothing
from qkgeom.errors import DiskFault, ModelFault

T = TypeVar("T")  # PEP 695 needs Python 3.12


@dataclass(frozen=True)
class Fetched:
    """A checkpoint's files.

    Attributes:
        weights: the weight files, on this machine (paths) or to be read by range.
        config: config.json, if there is one.
        index: the index of a sharded checkpoint, if there is one.
        origin: for the manifest: `kind`, what was resolved, digests.
        expect: see `Checkpoint`.
        moved: see `Checkpoint`.
    """

    weights: Sequence[Path | ByteFile]
    config: Path | None = None
    index: Path | None = None
    origin: Mapping[str, object] = field(default_factory=dict)
    expect: Callable[[Sequence[Sequence[Wanted]]], None] = fetch_nothing
    moved: Callable[[], int] = int


@dataclass(frozen=True)
class Survey:
    """What can be told of a checkpoint or adapter with no weights moved.

    Attributes:
        here: weight files that are whole on this machine -> bytes.
        there: weight files that are not -> bytes, or None where the hub does not say.
        opened: the checkpoint with its headers read, if that is possible.
    """

    here: Mapping[str, int]
    there: Mapping[str, int | None]
    opened: Fetched | None

    @property
    def away(self) -> int:
        """Bytes of the files that are not here."""
        return sum(size or 0 for size in self.there.values())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.here.values()) + self.away


class WholeFile(NamedTuple):
    """A file that is moved whole and kept: its bytes, and those of them that are not here."""

    size: int
    away: int


@dataclass(frozen=True)
class Choice:
    """The files of a repository that make up one checkpoint, by name."""

    weights: list[str]
    config: str | None
    index: str | None


# In transformers' order of preference. All else (`consolidated*`, `original/*`, adapters, TF, Flax, ONNX) is ignored.
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_SHARD = re.compile(r"(model|pytorch_model)-(\d+)-of-(\d+)\.(safetensors|bin)")
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_NOT_WEIGHTS = ("adapter", "consolidated", "training_args", "optimizer", "scheduler", "rng_state", ".")


def choose_files(names: Collection[str], where: object) -> Choice:
    """Chooses one checkpoint among the file names of a folder or repository.

    With an index, `weights` are all shards there; `listed_shards` keeps those that the index lists. Sharded files
    without an index are taken when all are there.

    Raises:
        ModelFault: no weights, or several checkpoints none of which has a standard name.
    """
    config = "config.json" if "config.json" in names else None
    for index, whole in zip(_INDEXES, _WHOLE, strict=True):
        if whole in names:
            return Choice([whole], config, None)
        shards = sorted(n for n in names if (m := _SHARD.fullmatch(n)) and whole.endswith(m[4]))
        if index in names:
            return Choice(shards, config, index)
        if shards:
            _require_all_shards(shards, where)
            return Choice(shards, config, None)
    for suffix in WEIGHTS:
        lone = sorted(n for n in names if n.endswith(suffix) and "/" not in n and not n.startswith(_NOT_WEIGHTS))
        if len(lone) == 1:
            return Choice(lone, config, None)
        if lone:
            raise ModelFault(
                "several checkpoints here, and none has a standard name",
                where=where,
                found=", ".join(lone[:5]) + (" ..." if len(lone) > 5 else ""),
                expected=" or ".join(_WHOLE),
                fix="fetch the one you mean and name it as file:PATH",
            )
    refuse_adapter(names, where)
    raise ModelFault(
        "no weights here",
        where=where,
        found=_some(names),
        expected="a safetensors, torch (.bin, .pt) or GGUF file",
    )


def refuse_adapter(names: Collection[str], where: object) -> None:
    """Raises a ModelFault if these are the files of an adapter."""
    if any(name.startswith("adapter_") for name in names):
        raise ModelFault(
            "this is an adapter, and no checkpoint",
            where=where,
            found=_some(names),
            expected="the model that it was trained on (`base_model_name_or_path` in adapter_config.json)",
            fix="name that model, and this with --adapter; in models.tsv, in the column `adapter`",
        )


def choose_adapter(names: Collection[str], where: object) -> Choice:
    """Chooses the files of a PEFT adapter among the file names of a folder or repository.

    Source: peft/utils/constants.py, `SAFETENSORS_WEIGHTS_NAME`, `WEIGHTS_NAME` and `CONFIG_NAME`.

    Raises:
        ModelFault: they are not there.
    """
    weights = [name for name in ("adapter_model.safetensors", "adapter_model.bin") if name in names]
    if not weights or "adapter_config.json" not in names:
        raise ModelFault(
            "no adapter here",
            where=where,
            found=_some(names),
            expected="adapter_config.json and adapter_model.safetensors, as PEFT writes them",
        )
    return Choice(weights[:1], "adapter_config.json", None)


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:8]) or "nothing"


def listed_shards(index: Path, names: Collection[str], where: object) -> list[str]:
    """The files that a sharded checkpoint's index lists; others beside them are left from another sharding.

    Args:
        index: the index.
        names: the files of the folder or repository.
        where: for the message.

    Raises:
        ModelFault: the index cannot be read, or lists files that are not there.
    """
    try:
        listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing = sorted(listed - set(names))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFault("a checkpoint's index cannot be read", where=f"{where}, {index.name}", found=repr(error)) from error
    if missing or not listed:
        raise ModelFault(
            "a sharded checkpoint is incomplete",
            where=f"{where}, {index.name}",
            found=f"no {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}" if missing else "an empty weight_map",
            expected=f"the {len(listed)} files that the index lists",
            fix="fetch the missing files; if it is so at the source, report it there",
        )
    return sorted(listed)


def the_one(weights: Sequence[T], where: object) -> T:
    """The only weight file, since a pinned sha256 says nothing about several.

    Raises:
        ModelFault: there are several.
    """
    if len(weights) != 1:
        raise ModelFault(
            "a sha256 is pinned, but the checkpoint has several files",
            where=where,
            found=f"{len(weights)} files",
            expected="one weight file",
            fix="leave the sha256 out",
        )
    return weights[0]


def require_digest(found: str, sha256: str, where: object) -> None:
    """Compares a file's sha256 with the pinned one.

    Raises:
        ModelFault: it is another file.
    """
    if found != sha256.lower():
        raise ModelFault(
            "a checkpoint file is not the one that was pinned",
            where=where,
            found=f"sha256 {found}",
            expected=f"sha256 {sha256}",
            fix="do not use this file; check where it comes from, or the sha256 that was pinned",
        )


def cache_folder() -> Path:
    """Where downloads are kept: `$QKGEOM_CACHE`, else `$XDG_CACHE_HOME/qkgeom`, else `~/.cache/qkgeom`."""
    if chosen := os.environ.get("QKGEOM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkgeom"


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Raises a DiskFault if the block cannot write to a folder."""
    try:
        yield
    except OSError as error:
        raise no_room(folder, error) from error


def no_room(folder: Path, found: object) -> DiskFault:
    """The error for a download that the disk refuses."""
    return DiskFault(
        "a download cannot be stored",
        where=folder,
        found=found,
        fix="free disk space, or set QKGEOM_CACHE and TMPDIR to folders with room, then run the same command again",
    )


def _require_all_shards(shards: list[str], where: object) -> None:
    matches = [_SHARD.fullmatch(name) for name in shards]
    total = max(int(match[3]) for match in matches)
    present = sorted(int(match[2]) for match in matches)
    if present != list(range(1, total + 1)):
        raise ModelFault(
            "a sharded checkpoint without an index is incomplete, or several are mixed",
            where=where,
            found=f"shards {', '.join(map(str, present))}",
            expected=f"shards 1 to {total}, each once",
            fix="fetch all shards of one checkpoint, and its index",
        )
