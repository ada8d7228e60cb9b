"""A bundle: the chain of a preset without weights and pictures, for a reader elsewhere.

It holds `results/<preset>` (collected tables, numbers and captions of figures, tables, what is missing), the manifests and
scores of its models and how its runs ended, with all records of provenance. The same results give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from qkgeom.audit.collected import models_of, runs_of
from qkgeom.audit.findings import Finding
from qkgeom.audit.run import UPDATES
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import sha256_of, whole_file
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


@dataclass(frozen=True)
class Bundle:
    """A bundle to be written once its files are audited.

    Attributes:
        path: `.tar.gz`, `.tgz` or `.zip`.
        results: the folder in which the files lie.
        files: those that are packed -> their sha256 before they were audited.
    """

    path: Path
    results: Path
    files: Mapping[Path, str]

    @classmethod
    def of(cls, preset: Path, path: Path) -> Bundle:
        """The bundle of a preset as it is now.

        Args:
            preset: folder of the preset in a results folder.
            path: of the bundle.

        Raises:
            UsageError: the name has another ending.
            QkgeomError: the preset has no record of what it was collected from.
        """
        if not path.name.endswith((".tar.gz", ".tgz", ".zip")):
            raise UsageError("a bundle has another ending", found=path.name, expected=".tar.gz, .tgz or .zip")
        return cls(path, preset.parent, {file: sha256_of(file) for file in _files(preset)})

    def write(self) -> None:
        """Writes it.

        Raises:
            QkgeomError: a file was changed since, so that what would be packed is not what was audited.
        """
        with whole_file(self.path) as temporary:
            (_write_zip if self.path.suffix == ".zip" else _write_tar)(temporary, self._members())

    def _members(self) -> Iterator[tuple[str, bytes]]:
        for file, before in self.files.items():
            content = file.read_bytes() if file.is_file() else b""
            if (now := hashlib.sha256(content).hexdigest()) != before:
                raise QkgeomError(
                    "a file was changed while the run was audited, so there is no bundle",
                    where=file,
                    found=f"sha256 {now}" if file.is_file() else "no such file",
                    expected=f"sha256 {before}, as before",
                    fix="audit again when nothing else writes there",
                )
            yield f"results/{file.relative_to(self.results).as_posix()}", content


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
            presets = sorted((folder / "results").glob(f"*/collected/{OF_FOLDER}"))
            if len(presets) != 1:
                raise ValueError(f"{len(presets)} files results/*/collected/{OF_FOLDER}, one expected")
        except (OSError, ValueError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise UsageError("this is no bundle", where=path, found=error, fix="make one with `audit --bundle`") from error
        yield presets[0].parent.parent


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


def _write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with ExitStack() as opened:
        raw = opened.enter_context(path.open("wb"))
        packed = opened.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
        archive = opened.enter_context(tarfile.open(fileobj=packed, mode="w"))
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _write_zip(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)


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
