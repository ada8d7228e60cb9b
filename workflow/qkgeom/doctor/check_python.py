"""Whether this Python is one that the lock is for."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

from qkgeom.doctor.finding import Case, Finding, fault, ok

VERSIONS = ((3, 11), (3, 12))


def examine(case: Case, version: tuple[int, int] = sys.version_info[:2]) -> Iterator[Finding]:
    """Compares the version."""
    found = f"{platform.python_version()} at {sys.executable}"
    if version in VERSIONS:
        yield ok("python", found)
    else:
        wanted = " or ".join(".".join(map(str, each)) for each in VERSIONS)
        fix = f"remove .venv and run `make setup PYTHON=/path/to/python` with Python {wanted}, or see docs/environments.md"
        yield fault("python", f"{found}, which is not {wanted}", fix)
