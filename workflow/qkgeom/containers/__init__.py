"""File formats that hold tensors. Each names its tensors, says where their bytes lie, and reads whole rows of them."""

from __future__ import annotations

import importlib
from pathlib import Path

from qkgeom.byte_files import ByteFile, LocalFile
from qkgeom.containers import safetensors
from qkgeom.containers.base import Container, Reading, TensorInfo
from qkgeom.errors import ModelFault

__all__ = ["Container", "Reading", "TensorInfo", "open_container"]

# First bytes of a file -> the module that reads it. Safetensors has no magic number: a length, then a JSON header.
_MAGIC = {b"PK\x03\x04": "torch_zip", b"GGUF": "gguf", b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46": "torch_legacy"}
_EXPECTED = "safetensors, a file of torch.save, or GGUF"


def open_container(source: Path | ByteFile) -> Container:
    """Opens a checkpoint file by what it holds, whatever its name.

    Raises:
        ModelFault: the file is missing, empty, truncated, or of a format that is not read.
        TransientFault: its bytes cannot be fetched now.
    """
    try:
        file = LocalFile(source) if isinstance(source, Path) else source
        head = bytes(file.read(0, min(8, file.size)))
    except OSError as error:
        raise ModelFault(f"cannot read a checkpoint file: {error.strerror}", where=source) from error
    module = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "safetensors")
    if module == "safetensors" and not (file.name.endswith(".safetensors") and safetensors.has_header(file)):
        _refuse_strangers(file)
    return importlib.import_module(f"qkgeom.containers.{module}").open_file(file)


def _refuse_strangers(file: ByteFile) -> None:
    head = bytes(file.read(0, min(64, file.size)))
    if not head:
        raise ModelFault("a checkpoint file is empty", where=file, found="0 bytes", expected=_EXPECTED, fix="fetch it again")
    if head.startswith(b"version https://git-lfs"):
        raise ModelFault(
            "a checkpoint file is a Git LFS pointer, not the weights",
            where=file,
            found=head.splitlines()[0].decode(errors="replace"),
            expected=_EXPECTED,
            fix="run `git lfs pull` in the folder it came from",
        )
    # Another pickle, or torch's tar format. A safetensors file may begin so too, with its header's length, but then the
    # header follows.
    if (head[0] == 0x80 or head[:2] in (b"cc", b"(d")) and head[8:9] != b"{":
        raise ModelFault(
            "a checkpoint is a pickle that torch.save did not write, or of a torch before 0.1.10, and cannot be read safely",
            where=file,
            found="a bare pickle stream",
            expected=_EXPECTED,
            fix="load it in an environment you trust and save it again with torch.save or safetensors",
        )
    if not file.name.endswith(".safetensors") and head[8:9] not in (b"{", b""):
        raise ModelFault("a file is no checkpoint of a known format", where=file, found=repr(head[:16]), expected=_EXPECTED)
