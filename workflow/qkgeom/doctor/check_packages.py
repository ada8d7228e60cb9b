"""Whether the installed packages are those of the lock. None of them is imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from qkgeom.digests import LOCK
from qkgeom.doctor.finding import SET_UP, Case, Finding, fault, ok, warning

SHOWN = 6  # packages that are named


def examine(case: Case, lock: Path = LOCK) -> Iterator[Finding]:
    """Compares each pin that applies to this machine."""
    try:
        pins = pinned(lock.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield fault("packages", f"the lock cannot be read: {error}", "restore envs/requirements.txt")
        return
    versions = {name: _version(name) for name in pins}
    missing = [name for name, version in versions.items() if version is None]
    other = [f"{name} {versions[name]} instead of {pin}" for name, pin in pins.items() if not _fits(versions[name], pin)]
    if missing:
        yield fault("packages", f"{len(missing)} of {len(pins)} are missing: {_some(missing)}", SET_UP)
    if other:
        yield warning("packages", f"{len(other)} of {len(pins)} are not the lock's: {_some(other)}", SET_UP)
    if not missing and not other:
        yield ok("packages", f"all {len(pins)} are those of envs/requirements.txt")


def pinned(lock: str) -> dict[str, str]:
    """Name -> version of the pins that apply to this Python and system.

    Raises:
        ValueError: a line is no pin.
    """
    from packaging.requirements import Requirement

    lines = [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    wanted = [Requirement(line) for line in lines]
    if loose := [str(each) for each in wanted if not str(each.specifier).startswith("==")]:
        raise ValueError(f"no pin: {loose[0]}")
    applying = [each for each in wanted if each.marker is None or each.marker.evaluate()]
    return {each.name: str(each.specifier).removeprefix("==") for each in applying}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)  # None where its records are damaged
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str | None, pin: str) -> bool:
    """Whether nothing is to be said of a version: it is the pin, or a build of it (2.14.1+cpu), or there is none."""
    return version is None or version.partition("+")[0] == pin


def _some(words: list[str]) -> str:
    return ", ".join(words[:SHOWN]) + (", ..." if len(words) > SHOWN else "")
