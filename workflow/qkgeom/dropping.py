"""Weights that an artifact does not keep: deleted once they are scored, and fetched again for whoever needs them.

What is fetched again goes through the extraction's own code into a hidden folder of the artifact, has to have the
checksums of the manifest, and is deleted after use. The manifest and the scores are not touched.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qkgeom.artifacts import MANIFEST
from qkgeom.checkpoint import heads_from
from qkgeom.checksums import as_read, as_stored, require_same
from qkgeom.errors import TransientFault
from qkgeom.extraction import store_snapshot
from qkgeom.files import refused, wait_for_lock
from qkgeom.layouts import layout_named
from qkgeom.lora import adapted
from qkgeom.sources import open_adapter, open_checkpoint

logger = logging.getLogger(__name__)
AGAIN = ".again"


def dropped(folder: Path, manifest: Mapping) -> list[str]:
    """The snapshots whose weights are not here; a failed model never had any."""
    return [name for name, entry in manifest.get("snapshots", {}).items() if not (folder / entry["file"]).exists()]


def drop(folder: Path, manifest: Mapping) -> None:
    """Deletes an artifact's weights.

    Raises:
        TransientFault: the folder refuses it.
    """
    for entry in manifest.get("snapshots", {}).values():
        try:
            (folder / entry["file"]).unlink(missing_ok=True)
        except OSError as error:
            raise refused(folder / entry["file"], error) from error


@contextmanager
def weights_of(folder: Path, manifest: Mapping, snapshot: str) -> Iterator[Path]:
    """Gives the folder that holds a snapshot's file: the artifact's, or where it was dropped one for the block's time.

    Raises:
        ModelFault: the weights are no longer there, or have other checksums than the manifest's.
        TransientFault: the source cannot be reached, or the disk refuses the write. What has come is taken up next time.
    """
    if (folder / manifest["snapshots"][snapshot]["file"]).exists():
        yield folder
        return
    again = folder / AGAIN
    with _one_at_a_time(folder):
        try:
            _fetch_again(folder, manifest, snapshot)
            yield again
        except TransientFault:
            raise
        except Exception:  # what is there may be the reason
            shutil.rmtree(again, ignore_errors=True)
            raise
        shutil.rmtree(again)


def _fetch_again(folder: Path, manifest: Mapping, snapshot: str) -> None:
    entry = manifest["snapshots"][snapshot]
    uri, adapter = pinned_uri(entry["source"]), entry["source"].get("adapter")
    logger.info("%s, %s: the weights are not here, so they are fetched again from %s", manifest["model"], snapshot, uri)
    heads = heads_from(entry.get("n_head"), entry.get("n_kv_head"))
    layout = layout_named(manifest["layout"])
    with ExitStack() as opened:
        checkpoint = opened.enter_context(open_checkpoint(uri, architecture=entry["architecture"], heads=heads))
        if adapter:
            checkpoint = adapted(checkpoint, opened.enter_context(open_adapter(pinned_uri(adapter))), layout)
        found = store_snapshot(checkpoint, layout, folder / AGAIN, manifest["model"], snapshot)
    fix = f"delete {folder / MANIFEST} and run again: the model is extracted anew"
    for checksums in (as_read, as_stored):
        require_same(checksums(found), checksums(entry), uri, fix)


def pinned_uri(source: Mapping) -> str:
    """The URI of a checkpoint or adapter as it was read: a branch may have moved since."""
    return f"hf:{source['repo']}@{source['commit']}" if "commit" in source else source["uri"]


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Waits for other processes that fetch the same model again; the manifest serves as the lock, and is not written to."""
    path = folder / MANIFEST
    try:
        file = path.open("r+b")
    except OSError as error:
        raise refused(path, error) from error
    with file:
        wait_for_lock(file)
        yield
