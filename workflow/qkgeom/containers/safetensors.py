"""Safetensors: 8 bytes of length, a JSON header, then the tensors' bytes.

Read without the safetensors package, because its numpy binding has no bfloat16 and gives no byte ranges.

Source: https://github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path

from qkgeom.containers.base import Container, TensorInfo
from qkgeom.errors import ModelFault

MAX_HEADER = 100_000_000  # the format's own limit, in bytes


def open_file(path: Path) -> Container:
    """Reads the header of a safetensors file and checks it against the file's size.

    Raises:
        ModelFault: the header or the offsets are not those of a whole safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length_bytes = file.read(8)
        length = struct.unpack("<Q", length_bytes)[0] if len(length_bytes) == 8 else MAX_HEADER + 1
        if length > MAX_HEADER or 8 + length > size:
            raise _broken(path, f"{size} bytes, of which the first 8 announce a header of {length} bytes")
        header = file.read(length)
    return Container(path, parse_header(path, header, size))


def parse_header(path: Path, header: bytes, size: int) -> dict[str, TensorInfo]:
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
        raise _broken(path, f"a header that cannot be read ({error})") from error
    end = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != end or info.stop < info.start:
            raise _broken(path, f"tensor {name} at bytes {info.start} to {info.stop}, the one before ends at {end}")
        bits = _bits_per_value(info.dtype)
        if bits is not None and (info.stop - info.start) * 8 != math.prod(info.shape) * bits:
            raise _broken(path, f"tensor {name} of {info.dtype} {list(info.shape)} in {info.stop - info.start} bytes")
        end = info.stop
    if end != size:
        raise _broken(path, f"{size} bytes", f"{end} bytes, where the last tensor ends")
    return tensors


def _bits_per_value(dtype: str) -> int | None:
    digits = re.match(r"(?:BF|F|I|U)(\d+)", dtype)
    return int(digits[1]) if digits else 8 if dtype == "BOOL" else None


def _broken(path: Path, found: str, expected: str = "a header and offsets that cover the file exactly") -> ModelFault:
    return ModelFault(
        "a safetensors file is truncated or damaged",
        where=path,
        found=found,
        expected=expected,
        fix="fetch the file again",
    )
