"""A bundle: the chain of a preset without weights and pictures, for a reader elsewhere.

It holds `results/<preset>` (collected tables, numbers and captions of figures, tables, what is missing), the manifests and
scores of its models and how its runs ended, with all records of provenance. The same results give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from qkgeom.audit.collected import models_of, runs_of
from qkgeom.audit.findings import Finding
from qkgeom.audit.run import UPDATES
from qkgeom.errors import UsageError
from qkgeom.files import whole_file
from qkgeom.provenance import OF_FOLDER, read_record
from qkgeom.scratch import scratch_folder

if TYPE_CHECKING:
    from qkgeom.audit.chain import Audit

OF_MODEL = (
    "manifest.json",
    "scores.csv",
    "scores.provenance.json",
    "unscored.json",
    "published_way.csv",
    "published_way.provenance.json",
)
OF_RUN = ("done.json", "record.json", "losses.csv", OF_FOLDER)
OF_RENDERED = (".csv", ".md", ".tex", ".json")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
LARGEST = 2**30  # bytes of all files of a bundle


def write_bundle(path: Path, preset: Path) -> None:
    """Writes the bundle of a preset.

    Args:
        path: `.tar.gz`, `.tgz` or `.zip`.
        preset: folder of the preset in a results folder.

    Raises:
        UsageError: the name has another ending.
        QkgeomError: the preset has no record of what it was collected from.
    """
    if not path.name.endswith((".tar.gz", ".tgz", ".zip")):
        raise UsageError("a bundle has another ending", found=path.name, expected=".tar.gz, .tgz or .zip")
    files = {f"results/{file.relative_to(preset.parent).as_posix()}": file for file in _files(preset)}
    with whole_file(path) as temporary:
        if path.suffix == ".zip":
            _write_zip(temporary, files)
        else:
            _write_tar(temporary, files)


@contextmanager
def opened_bundle(path: Path) -> Iterator[Path]:
    """Unpacks a bundle for the block's time, and gives the folder of its preset.

    Raises:
        UsageError: this is no bundle.
    """
    with scratch_folder() as folder:
        try:
            members = _zip_members(path) if zipfile.is_zipfile(path) else _tar_members(path)
            for name, content in members:
                target = folder.joinpath(*_safe(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            (collected,) = (folder / "results").glob(f"*/collected/{OF_FOLDER}")
        except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise UsageError("this is no bundle", where=path, found=error, fix="make one with `audit --bundle`") from error
        yield collected.parent.parent


def told_from_bundle(audit: Audit, results: Path) -> None:
    """Names the files of an unpacked bundle as the bundle does, `results/...`, in all that its audit says.

    Args:
        audit: of the bundle.
        results: where it was unpacked.
    """

    def told(text: str) -> str:
        return text.replace(results.as_posix(), "results")

    for part in audit.parts:
        part.findings = [Finding(*map(told, vars(finding).values())) for finding in part.findings]
        part.follows, part.unchecked, part.notes = (
            list(map(told, each)) for each in (part.follows, part.unchecked, part.notes)
        )


def _files(preset: Path) -> list[Path]:
    record, results = read_record(preset / "collected" / OF_FOLDER), preset.parent
    files = [results / "models" / model / name for model in models_of(record) for name in OF_MODEL]
    files += [results / "runs" / run / name for run in runs_of(record) for name in OF_RUN]
    files += [file for run in runs_of(record) for file in (results / "runs" / run / UPDATES).glob("[!.]*")]
    files += [*(preset / "collected").glob("[!.]*"), preset / "check.txt"]
    for kind in ("figures", "tables"):
        files += [file for file in (preset / kind).glob("[!.]*") if file.suffix in OF_RENDERED]
    return sorted(file for file in files if file.is_file())


def _write_tar(path: Path, files: dict[str, Path]) -> None:
    with ExitStack() as opened:
        raw = opened.enter_context(path.open("wb"))
        packed = opened.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
        archive = opened.enter_context(tarfile.open(fileobj=packed, mode="w"))
        for name, file in files.items():
            content = file.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _write_zip(path: Path, files: dict[str, Path]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)


def _tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile()]
        _require_small(sum(member.size for member in members))
        for member in members:
            yield member.name, archive.extractfile(member).read()


def _zip_members(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        _require_small(sum(member.file_size for member in members))
        for member in members:
            yield member.filename, archive.read(member)


def _require_small(size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"{size} bytes unpacked, at most {LARGEST} expected")


def _safe(name: str) -> PurePosixPath:
    """A member's name, which must not lead out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.parts[:1] != ("results",):
        raise ValueError(f"a member called {name!r}")
    return path
