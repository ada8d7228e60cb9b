"""From a URI to an artifact: fetch each snapshot's checkpoint, choose the layout, store the weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from qkgeom.checkpoint import Heads
from qkgeom.console import track
from qkgeom.extraction import finish, store_snapshot
from qkgeom.layouts import layout_for, layout_named
from qkgeom.sources import open_checkpoint, snapshots_of


def acquire(
    uri: str,
    folder: Path,
    model: str,
    *,
    layout: str | None = None,
    part: str | None = None,
    sha256: str | None = None,
    architecture: str | None = None,
    heads: Heads | None = None,
) -> dict[str, object]:
    """Stores every snapshot that `uri` names as an artifact.

    Args:
        uri: see `qkgeom.sources.split_uri`.
        folder: of the artifact.
        model: its id.
        layout: name of the layout; by default the one for the config's architecture.
        part: which stack, where the architecture has several (`encoder`, `decoder`, `vision`, `text`, ...).
        sha256: digest of the one file that is fetched.
        architecture: the `model_type` that a missing config.json would state.
        heads: head counts that a missing config.json would state.

    Returns:
        The manifest.

    Raises:
        UsageError: the URI, the layout or the part does not exist.
        ModelFault: permanent: the model is missing, gated, damaged, or does not fit the layout.
        TransientFault: the source cannot be reached, or the disk refuses the write.
    """
    chosen = layout_named(layout) if layout else None
    stored = {}
    snapshots = snapshots_of(uri)
    for snapshot, address in snapshots:
        with open_checkpoint(address, sha256=sha256, architecture=architecture, heads=heads) as checkpoint:
            chosen = chosen or layout_for(checkpoint.config, part)
            progress = partial(track, label=f"extract {model} {snapshot}")
            stored[snapshot] = store_snapshot(checkpoint, chosen, folder, model, snapshot, progress)
    return finish(folder, model, uri, chosen, stored)
