"""What ran, when, and with what."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from qkgeom.digests import LOCK
from qkgeom.report.page import moment, number
from qkgeom.steps import Step

ROOT = Path(__file__).parents[3]
PACKAGES = ("torch", "transformers", "numpy", "pandas", "matplotlib", "snakemake")


def facts(preset: str, knobs: Mapping[str, str], steps: Sequence[Step]) -> dict[str, str]:
    """Name -> value, for a reader.

    Args:
        preset: its name.
        knobs: those of config.yaml that shape what is there.
        steps: of the run.
    """
    began = [step.began for step in steps if step.began is not None]
    ended = [step.ended for step in steps if step.ended is not None]
    computed = sum(step.seconds for step in steps if step.seconds is not None)
    devices = sorted({device for step in steps for device in step.devices})
    found = {
        "Preset": preset,
        "Began": moment(min(began, default=None)),
        "Ended": moment(max(ended, default=None)),
        "Time of all steps": f"{number(computed / 60, 1)} minutes in {len(steps)} steps",
        "Scores computed on": ", ".join(devices) or "not known: no log of scoring",
        "Machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "Python": ", ".join(sorted({step.python for step in steps if step.python})) or platform.python_version(),
        "qkgeom": ", ".join(sorted({step.qkgeom for step in steps if step.qkgeom})),
        "Packages": ", ".join(f"{name} {found}" for name in PACKAGES if (found := _installed(name))),
        "Lock of the environment": f"envs/requirements.txt, sha256 {hashlib.sha256(LOCK.read_bytes()).hexdigest()}",
        "Commit": commit(),
        "Knobs": ", ".join(f"{name}: {value}" for name, value in knobs.items()),
    }
    return {name: value for name, value in found.items() if value}


def commit(root: Path = ROOT) -> str:
    """The checkout's commit when the page is written, and whether files differ from it; empty without git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root.resolve():  # a copy inside another repository
            return ""
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (", with changed files" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
