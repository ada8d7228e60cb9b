"""What the model hub, or its cache on this machine, says of a repository at one commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from qkgeom.errors import ModelFault, TransientFault, UsageError
from qkgeom.files import write_text
from qkgeom.sources.hub_client import ask
from qkgeom.sources.hub_faults import public_endpoint, require_endpoint

_PART = r"\w(?:[\w.-]{0,94}\w)?"
_ADDRESS = re.compile(rf"(?P<repo>({_PART}/)?{_PART})(@(?P<revision>\w[\w./-]*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit.

    Attributes:
        repo: `org/name` or `name`.
        revision: as it was asked for.
        commit: what that is, 40 hexadecimal digits.
        files: name -> digest, a sha256 (large files) or a git object id (small ones), or None where none is stated.
        sizes: name -> bytes, where stated.
        gated: whether its files are for those only who accepted its licence.
    """

    repo: str
    revision: str
    commit: str
    files: Mapping[str, str | None]
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    gated: bool = False

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}"


def parse_address(address: str) -> tuple[str, str]:
    """Repository and revision of an address that is about to be asked for.

    Raises:
        UsageError: it is not of this form, or HF_ENDPOINT is no address.
    """
    require_endpoint()  # with a wrong one the client cannot even be imported
    return split_address(address)


def split_address(address: str) -> tuple[str, str]:
    """Repository and revision of an address; `main` by default.

    Source: huggingface_hub/utils/_validators.py, `validate_repo_id`, which cannot be imported where HF_ENDPOINT is wrong.

    Raises:
        UsageError: it is not of this form.
    """
    match = _ADDRESS.fullmatch(address)
    if not match or ".." in address or "--" in match["repo"] or match["repo"].endswith(".git"):
        raise UsageError("this is not an address on the model hub", found=address, expected="org/name@revision")
    return match["repo"], match["revision"] or "main"


def look_up(repo: str, revision: str) -> Listing:
    """Asks the hub, once, which commit a revision is and which files it has.

    Raises:
        ModelFault: there is no such repository or revision, or access is refused.
        TransientFault: the hub cannot be reached or is out of order.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RevisionNotFoundError

    where, timeout = f"{repo}@{revision}", constants.HF_HUB_ETAG_TIMEOUT  # without it the client waits for ever
    try:
        info = ask(HfApi().model_info, repo, where=where, revision=revision, files_metadata=True, timeout=timeout)
    except ModelFault as fault:
        if is_commit(revision) and isinstance(fault.__cause__, RevisionNotFoundError):
            raise _vanished(repo, revision) from fault.__cause__
        raise
    commit = info.sha or ""
    if not is_commit(commit):
        raise TransientFault("the hub does not say which commit this is", where=where, found=commit, fix="check HF_ENDPOINT")
    entries = {entry.rfilename: entry for entry in info.siblings or [] if _is_inside(entry.rfilename)}
    stated = {name: entry.lfs.sha256 if entry.lfs else entry.blob_id for name, entry in entries.items()}
    if revision != commit:
        _remember(repo, revision, commit)
    files = {name: _known(digest) for name, digest in stated.items()}
    sizes = {name: entry.size for name, entry in entries.items()}
    return Listing(repo, revision, commit, files, sizes, gated=bool(info.gated))


def _remember(repo: str, revision: str, commit: str) -> None:
    """Keeps what a revision is, for a later run without the hub; a cache that cannot be written is done without."""
    ref = cache_of(repo) / "refs" / revision
    with suppress(OSError, ValueError):
        if ref.read_text(encoding="utf-8") == commit:
            return
    with suppress(TransientFault, OSError):
        write_text(ref, commit)


def look_up_in_cache(repo: str, revision: str) -> Listing | None:
    """What the hub's cache holds of a revision. Files there are links to blobs, and a blob's name is its digest."""
    try:
        ref = cache_of(repo) / "refs" / revision
        commit = revision if is_commit(revision) else ref.read_text(encoding="utf-8").strip()
        snapshot = cache_of(repo) / "snapshots" / commit
        files = {
            path.relative_to(snapshot).as_posix(): _known(path.readlink().name if path.is_symlink() else None)
            for path in snapshot.rglob("*")
            if path.is_file()
        }
    except OSError:
        return None
    return Listing(repo, revision, commit, files) if files else None


def cache_of(repo: str) -> Path:
    """The folder of a repository in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / "--".join(["models", *repo.split("/")])


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit, which never moves."""
    return bool(_COMMIT.fullmatch(revision))


def _vanished(repo: str, commit: str) -> ModelFault:
    return ModelFault(
        f"the hub has this repository, but not this revision: the pinned commit {commit} no longer exists on the hub",
        where=f"{repo}@{commit}",
        found=f"no such commit at {public_endpoint()}/{repo}/commits",
        fix="pin another: `python -m qkgeom lock MODEL` for a row of models.lock, else the revision in models.tsv",
    )


def _known(digest: str | None) -> str | None:
    return digest if digest and _DIGEST.fullmatch(digest) else None


def _is_inside(name: str) -> bool:
    """Whether a file's name stays inside its repository, whatever the hub says."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
