"""Where torch computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.errors import UsageError

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the GPU where there is one.

    Raises:
        UsageError: no such device here.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name != "cpu" and (kind != "cuda" or not (index or "0").isdigit() or int(index or 0) >= count):
        raise UsageError(
            "there is no such device",
            found=name,
            expected=f"auto, cpu or cuda[:N]; {count} CUDA device(s) are here",
            fix="set `device: auto` in config.yaml, or --device auto",
        )
    return torch.device(name)
