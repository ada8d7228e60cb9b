"""A checkpoint: its config, its files, and one name for every tensor in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qkgeom.byte_files import ByteFile, Wanted, fetch_nothing
from qkgeom.containers import Container, open_container
from qkgeom.errors import ModelFault, UsageError


@dataclass(frozen=True)
class Heads:
    """Head counts given by the user for a checkpoint without a config.json."""

    n_head: int
    n_kv_head: int


def heads_from(n_head: int | None, n_kv_head: int | None) -> Heads | None:
    """The head counts of a command line; key heads are as many as query heads unless said otherwise.

    Raises:
        UsageError: they are impossible.
    """
    if n_head is None and n_kv_head is None:
        return None
    if n_head is None or n_head < 1 or (n_kv_head or 1) < 1 or n_head % (n_kv_head or 1):
        given = {"--n-head": n_head, "--n-kv-head": n_kv_head}
        raise UsageError(
            "the head counts are impossible",
            found=" ".join(f"{name} {number}" for name, number in given.items() if number is not None),
            expected="--n-head, and --n-kv-head that divides it",
        )
    return Heads(n_head, n_kv_head or n_head)


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a weight: `scaling * B A` (qkgeom.lora).

    Attributes:
        A: name of the tensor [rank, in].
        B: name of the tensor [out, rank].
        rank: of the product.
        scaling: its factor.
        transposed: whether the weight is [in, out].
    """

    A: str
    B: str
    rank: int
    scaling: float
    transposed: bool


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        uri: where it came from, as the user named it.
        config: config.json, or what stands in for it.
        where: tensor name -> the file that holds it.
        origin: the source's own record for the manifest (revision, etags, digests).
        expect: tells the source which bytes will be read, group by group, so that it can fetch ahead.
        moved: how many bytes were moved for it so far.
        heads: head counts stated by the user; the layout then infers the other sizes from the tensors.
        products: tensor name -> what an adapter adds to it; the product's tensors are in `where` too.
    """

    uri: str
    config: Mapping[str, object]
    where: Mapping[str, Container]
    origin: Mapping[str, object] = field(default_factory=dict)
    expect: Callable[[Sequence[Sequence[Wanted]]], None] = fetch_nothing
    moved: Callable[[], int] = int
    heads: Heads | None = None
    products: Mapping[str, LowRank] = field(default_factory=dict)


def read_config(path: Path) -> dict[str, object]:
    """Reads a config.json.

    Raises:
        ModelFault: it is not a JSON object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFault("config.json cannot be read", where=path, found=error, expected="a JSON object") from error
    if not isinstance(config, dict):
        raise ModelFault("config.json cannot be read", where=path, found=type(config).__name__, expected="a JSON object")
    return config


def open_files(files: Sequence[Path | ByteFile], index: Path | None = None) -> dict[str, Container]:
    """Opens a checkpoint's weight files and maps every tensor name to its file.

    Args:
        files: the weight files.
        index: the sharded checkpoint's index (`*.index.json`), checked against the files' own headers.

    Raises:
        ModelFault: a file is damaged, two files hold one name, or the index does not fit the files.
    """
    where: dict[str, Container] = {}
    for file in files:
        container = open_container(file)
        for name in container.tensors:
            if name in where:
                raise ModelFault(
                    f"two files of one checkpoint hold the tensor {name}",
                    where=container,
                    found=f"it is in {where[name]} too",
                    expected="every tensor in one file",
                    fix="keep one version of the checkpoint in the folder",
                )
            where[name] = container
    if index is not None:
        _check_index(index, where)
    return where


def _check_index(index: Path, where: Mapping[str, Container]) -> None:
    listed = read_config(index).get("weight_map")
    if not isinstance(listed, dict):
        raise ModelFault("a checkpoint's index has no weight_map", where=index)
    wrong = [name for name, file in listed.items() if name not in where or where[name].file.name != file]
    if wrong:
        raise ModelFault(
            f"a checkpoint's index names {len(wrong)} tensors that their files do not hold",
            where=index,
            found=", ".join(f"{name} in {listed[name]}" for name in wrong[:3]) + (" ..." if len(wrong) > 3 else ""),
            expected="the tensors in the files' own headers",
            fix="fetch the checkpoint again; if it is so at the source, report it there",
        )
