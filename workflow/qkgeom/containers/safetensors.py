"""Safetensors: 8 bytes of length, a JSON header, then the tensors' bytes.

Read without the safetensors package, because its numpy binding has no bfloat16 and gives no byte ranges.

Source: https://github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
import re
import struct

from qkgeom.byte_files import ByteFile
from qkgeom.containers.base import Container, TensorInfo
from qkgeom.errors import ModelFault

MAX_HEADER = 100_000_000  # the format's own limit, in bytes


def has_header(file: ByteFile) -> bool:
    """Whether a header of the length that the first 8 bytes state can follow them."""
    return _header_length(file) <= min(MAX_HEADER, file.size - 8)


def open_file(file: ByteFile) -> Container:
    """Reads the header of a safetensors file, and nothing else, and checks it against the file's size.

    Raises:
        ModelFault: the header or the offsets are not those of a whole safetensors file.
    """
    length = _header_length(file)
    if not has_header(file):
        raise _broken(file, f"{file.size} bytes, of which the first 8 announce a header of {length} bytes")
    return Container(file, parse_header(file, bytes(file.read(8, 8 + length)), file.size))


def parse_header(where: object, header: bytes, size: int) -> dict[str, TensorInfo]:
    """Turns a header into tensor infos with absolute byte positions, checking every offset against `size`."""
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        base = 8 + len(header)
        tensors = {
            str(name): TensorInfo(
                tuple(int(n) for n in entry["shape"]),
                str(entry["dtype"]),
                base + int(entry["data_offsets"][0]),
                base + int(entry["data_offsets"][1]),
            )
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise _broken(where, f"a header that cannot be read ({error})") from error
    end = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != end or info.stop < info.start:
            raise _broken(where, f"tensor {name} at bytes {info.start} to {info.stop}, the one before ends at {end}")
        bits = _bits_per_value(info.dtype)
        if bits is not None and (info.stop - info.start) * 8 != math.prod(info.shape) * bits:
            raise _broken(where, f"tensor {name} of {info.dtype} {list(info.shape)} in {info.stop - info.start} bytes")
        end = info.stop
    if end != size:
        raise _broken(where, f"{size} bytes", f"{end} bytes, where the last tensor ends")
    return tensors


def _header_length(file: ByteFile) -> int:
    head = file.read(0, min(8, file.size))
    return struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER + 1


def _bits_per_value(dtype: str) -> int | None:
    digits = re.match(r"(?:BF|F|I|U)(\d+)", dtype)
    return int(digits[1]) if digits else 8 if dtype == "BOOL" else None


def _broken(where: object, found: str, expected: str = "a header and offsets that cover the file exactly") -> ModelFault:
    return ModelFault(
        "a safetensors file is truncated or damaged",
        where=where,
        found=found,
        expected=expected,
        fix="fetch the file again",
    )
