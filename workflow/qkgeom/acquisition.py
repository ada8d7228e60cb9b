"""From a URI to an artifact: fetch each snapshot's checkpoint, choose the layout, store the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from qkgeom.checkpoint import Heads
from qkgeom.checksums import keep_for_later, read_earlier, require_as_earlier
from qkgeom.console import track
from qkgeom.errors import ModelFault, UsageError
from qkgeom.extraction import finish, store_snapshot
from qkgeom.layouts import layout_for, layout_named
from qkgeom.lora import adapted, require_plain
from qkgeom.series import snapshots
from qkgeom.snapshot_file import forget
from qkgeom.sources import open_adapter, open_checkpoint, snapshots_of


def acquire(
    uri: str,
    folder: Path,
    model: str,
    *,
    series: str | None = None,
    layout: str | None = None,
    part: str | None = None,
    sha256: str | None = None,
    architecture: str | None = None,
    heads: Heads | None = None,
    adapter: str | None = None,
) -> dict[str, object]:
    """Stores every snapshot that `uri` names as an artifact.

    Args:
        uri: see `qkgeom.sources.split_uri`.
        folder: of the artifact.
        model: its id.
        series: the steps of a series, whose URI has a place for them; see `qkgeom.series`.
        layout: name of the layout; by default the one for the config's architecture.
        part: which stack, where the architecture has several (`encoder`, `decoder`, `vision`, `text`, ...).
        sha256: digest of the one file that is fetched.
        architecture: the `model_type` that a missing config.json would state.
        heads: head counts that a missing config.json would state.
        adapter: URI of a LoRA adapter whose products are added to the weights; see `qkgeom.lora`.

    Returns:
        The manifest.

    Raises:
        UsageError: the URI, the series, the layout or the part does not exist or cannot be, or a series has an adapter.
        ModelFault: permanent: the model (of a series, one of its steps) is missing, gated, damaged, or does not fit the
            layout, a step is of another shape than the first, its bytes differ from what an earlier run read, or the adapter
            does not fit.
        TransientFault: the source cannot be reached, or the disk refuses the write.
    """
    if series and adapter:
        raise UsageError("an adapter belongs to one checkpoint, not to a series", found=adapter, fix="leave one of them out")
    named = layout_named(layout) if layout else None
    chosen = named
    earlier = read_earlier(folder)
    stored: dict[str, dict] = {}
    for snapshot, address in snapshots(uri, series) if series else snapshots_of(uri):
        with ExitStack() as opened:
            if adapter:  # before its base, of which some formats move whole when they are opened
                opened_adapter = opened.enter_context(open_adapter(adapter))
                require_plain(opened_adapter)
            how = {"sha256": sha256, "architecture": architecture, "heads": heads}
            checkpoint = opened.enter_context(open_checkpoint(address, **how))
            own = named or layout_for(checkpoint.config, part)
            chosen = chosen or own
            if own.name != chosen.name:
                raise _another(address, f"layout {own.name}", f"layout {chosen.name}")
            if adapter:
                checkpoint = adapted(checkpoint, opened_adapter, chosen)
            progress = partial(track, label=f"extract {model} {snapshot}")
            stored[snapshot] = store_snapshot(checkpoint, chosen, folder, model, snapshot, progress)
        _require_one_shape(stored, snapshot, address)
        try:
            require_as_earlier(earlier, snapshot, stored[snapshot], folder)
        except ModelFault:
            forget(folder / stored[snapshot]["file"])  # else the next try would take it up
            raise
    keep_for_later(earlier, stored, folder)
    return finish(folder, model, uri, chosen, stored)


def _require_one_shape(stored: Mapping[str, Mapping], snapshot: str, address: str) -> None:
    """Snapshots of one model differ in their weights and in nothing else."""
    first = next(iter(stored))
    shapes = {name: [_shape(layer) for layer in stored[name]["layers"]] for name in (first, snapshot)}
    if shapes[snapshot] != shapes[first]:
        raise _another(address, _described(shapes[snapshot]), _described(shapes[first]))


def _another(address: str, found: str, expected: str) -> ModelFault:
    what, fix = "a snapshot of a series is not of the first one's architecture", "give each architecture a row of its own"
    return ModelFault(what, where=address, found=found, expected=expected, fix=fix)


def _shape(layer: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(layer[size] for size in ("d_model", "n_head", "n_kv_head", "d_head"))


def _described(shapes: Sequence[tuple[object, ...]]) -> str:
    return f"{len(shapes)} layers, d_model, n_head, n_kv_head, d_head {shapes[0]}"
