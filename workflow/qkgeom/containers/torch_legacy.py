"""torch's format before 1.6: four pickles, a list of storages, then each storage's length and bytes, one after another.

It has no directory and no checksums, so the whole file is wanted (the hub states a sha256 of it); storages are then read
one at a time. The pickles are read by torch's weights_only unpickler, so that they cannot run code.

Source: torch/serialization.py, `_legacy_save` and `_legacy_load`; a test pins the unpickler, which is private.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from qkgeom.byte_files import ByteFile, LocalFile
from qkgeom.containers.torch_file import TorchFile, broken, config_of, tensors_of, unpickled

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def open_file(file: ByteFile) -> TorchFile:
    """Reads the pickles of a legacy checkpoint, and finds every tensor's bytes.

    Raises:
        ModelFault: not a whole file, or a pickle that needs more than tensors.
    """
    local = LocalFile(file.local(), file.name)
    with local.path.open("rb") as stream:
        saved, storages, keys = unpickled(file, lambda: _load(stream))
        starts = _starts(local, stream, storages, keys)
    container = TorchFile(local, {}, config_of(saved))
    for name, tensor in tensors_of(file, saved):
        container.add(name, tensor, starts[tensor.untyped_storage()._cdata])
    return container


def _load(stream: BinaryIO) -> tuple[object, Mapping[str, object], list[str]]:
    """What was saved, with storages that hold nothing; these by key; and their keys in the order of the file."""
    import torch
    from torch import _weights_only_unpickler

    storages: dict[str, object] = {}

    def storage_of(identity: tuple) -> object:
        _, kind, key, _, count, view = identity
        if view is not None:
            raise ValueError("a storage that is part of another, as torch before 0.4 wrote them")
        if key not in storages:
            empty = torch.UntypedStorage(count * kind.dtype.itemsize, device="meta")
            storages[key] = torch.storage.TypedStorage(wrap_storage=empty, dtype=kind.dtype, _internal=True)
        return storages[key]

    magic, protocol, _ = (_weights_only_unpickler.load(stream, encoding="utf-8") for _ in range(3))
    if (magic, protocol) != (MAGIC, PROTOCOL):
        raise ValueError(f"magic number {magic}, protocol {protocol}")
    unpickler = _weights_only_unpickler.Unpickler(stream, encoding="utf-8")
    unpickler.persistent_load = storage_of
    saved = unpickler.load()
    return saved, storages, _weights_only_unpickler.load(stream, encoding="utf-8")


def _starts(file: LocalFile, stream: BinaryIO, storages: Mapping[str, object], keys: list[str]) -> dict[int, int]:
    """Where each storage's bytes begin, by the storage's address in memory."""
    starts = {}
    for key in keys:
        size, kind = storages[key]._untyped_storage.nbytes(), storages[key].dtype
        count, start = int.from_bytes(stream.read(8), "little"), stream.tell()
        if count * kind.itemsize != size or stream.seek(start + size) > file.size:
            raise broken(file, f"storage {key} of {count} numbers at byte {start}", f"{size} bytes of {kind} inside the file")
        starts[storages[key]._untyped_storage._cdata] = start
    if stream.tell() != file.size or len(keys) != len(storages):
        raise broken(file, f"{file.size} bytes", f"{stream.tell()}, where the last storage ends")
    return starts
