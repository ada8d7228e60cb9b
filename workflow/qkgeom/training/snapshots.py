"""Native checkpoints of a run: config.json and model.safetensors, whole or not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import DiskFault
from qkgeom.files import make_readable, sync

if TYPE_CHECKING:
    import torch


def snapshot_folder(run: Path, step: int) -> Path:
    """Where the snapshot of a step is kept."""
    return run / "snapshots" / f"{step:07d}"


def write_checkpoint(target: Path, model: torch.nn.Module, keep: Callable[[str], bool]) -> None:
    """Saves the tensors that `keep` chooses by name, in the model's own format, with its config.

    Args:
        target: folder; it appears only when whole.
        model: with a `save_pretrained` that takes a state_dict.
        keep: tensor name -> whether it is saved.

    Raises:
        DiskFault: the disk refuses the write.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    chosen = {name: value for name, value in model.state_dict().items() if keep(name)}
    try:
        with disk_faults(target):
            model.save_pretrained(temporary, state_dict=chosen)
            for path in temporary.iterdir():
                make_readable(path)
                sync(path)
            sync(temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def disk_faults(target: Path) -> Iterator[None]:
    """Turns what the libraries raise when a write fails (each has its own error) into a fault that may pass.

    Raises:
        DiskFault: instead of any of them.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # RuntimeError: torch's zip writer
        raise DiskFault(
            f"cannot write {target.name}: {str(error).splitlines()[0]}",
            where=target.parent,
            fix="free disk space or choose a folder that can be written, then run the same command again",
        ) from error
