"""Whether what the run stores has room, on the file systems that it is stored on."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from qkgeom.doctor.command import run
from qkgeom.doctor.finding import Case, Finding, fault, ok, warning
from qkgeom.errors import QkgeomError

MARGIN = 1.1  # for what is stored and not planned
LITTLE = 2e9  # bytes free, below which a run may fail although no plan says so
MOVE = "move it: results/ may be a link; HF_HOME, QKGEOM_CACHE and TMPDIR are environment variables"
NOTHING = 2e8  # bytes free, below which it will


def examine(case: Case) -> Iterator[Finding]:
    """Compares what is free with what `plan` says, which is told without asking the hub."""
    needed, why = planned(case)
    for places, folder in _by_disk(places_of(case)).items():
        yield _room(places, folder, needed if "results/" in places else 0, why if "results/" in places else "")


def places_of(case: Case) -> dict[str, Path]:
    """Where a run writes, by name: results, downloads, temporary files; not what only a job knows ($TMPDIR/huggingface)."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    stated = {
        "results/": str(case.folder / "results"),
        "HF_HOME": os.environ.get("HF_HOME") or f"{cache}/huggingface",
        "QKGEOM_CACHE": os.environ.get("QKGEOM_CACHE") or f"{cache}/qkgeom",
        "TMPDIR": tempfile.gettempdir(),
    }
    places = {name: os.path.expandvars(path) for name, path in stated.items()}
    return {name: Path(path).expanduser() for name, path in places.items() if "$" not in path}


def planned(case: Case) -> tuple[int, str]:
    """Bytes that the preset takes, its training runs included (0 if that is not known), and of what they are."""
    try:
        from qkgeom.doctor.case_settings import settings_of

        settings = settings_of(case)
    except (ImportError, QkgeomError):
        return 0, "what the preset stores is not known: see `settings`"
    command = [sys.executable, "-m", "qkgeom", "plan", "--json", "--preset", settings.preset]
    answer = run(command, case.left() - 0.5, {"HF_HUB_OFFLINE": "1"})
    if not answer.fine:
        return 0, f"what the preset stores is not known: {answer.said}"
    parts = {name: size for name, size in json.loads(answer.out)["preset"]["disk_of"].items() if size}
    needed = int(sum(parts.values()))
    of = ", ".join(f"{name} {_gigabytes(size)}" for name, size in parts.items())
    return needed, f"preset {settings.preset} takes about {_gigabytes(needed)} more" + (f" ({of})" if parts else "")


def _by_disk(places: Mapping[str, Path]) -> dict[tuple[str, ...], Path]:
    """The places of each file system, with the nearest folder that exists of the first."""
    disks: dict[int, list[str]] = {}
    for name, path in places.items():
        disks.setdefault(_existing(path).stat().st_dev, []).append(name)
    return {tuple(names): _existing(places[names[0]]) for names in disks.values()}


def _existing(path: Path) -> Path:
    path = path.resolve()
    return next(each for each in (path, *path.parents) if each.is_dir())


def _room(places: tuple[str, ...], folder: Path, needed: int, why: str) -> Finding:
    free = shutil.disk_usage(folder).free
    found = f"{', '.join(places)}: {_gigabytes(free)} free at {folder}" + (f"; {why}" if why else "")
    if not os.access(folder, os.W_OK):
        return fault("disk", f"{', '.join(places)}: {folder} cannot be written", "give yourself the right to, or " + MOVE)
    fix = "free space, or " + MOVE
    if free < max(needed, NOTHING):
        return fault("disk", found, fix + ("; keep_weights: false drops weights once scored" if needed else ""))
    if free < max(needed * MARGIN, LITTLE):
        return warning("disk", f"{found}; that is little", fix)
    return ok("disk", found)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
