"""`show`: a model's manifest, readably."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from qkgeom import artifacts
from qkgeom.dropping import dropped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def command(
    artifact: Annotated[str, Argument(help="folder of an artifact, or its id in results/models/")],
    tensors: Annotated[bool, Option("--tensors", help="every tensor: file, bytes, digests")] = False,
) -> None:
    """Print what an artifact holds, where it came from, and how it was read."""
    from rich.console import Console

    folder = artifacts.find(artifact.removesuffix("/" + artifacts.MANIFEST))
    manifest = artifacts.read_manifest(folder)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    _print_fields(console, _head(manifest))
    snapshots = manifest.get("snapshots", {})
    shown = dict(list(snapshots.items())[-1:])  # of a series the last, which stands for the model
    if len(snapshots) > 1:
        _print_fields(console, {"snapshots": ", ".join(snapshots)})
    gone = dropped(folder, manifest)
    if gone:
        which = f"those of {len(gone)} of {len(snapshots)} snapshots " if len(snapshots) > 1 else ""
        _print_fields(console, {"weights": f"{which}not here: dropped; `score` fetches them again and checks their sha256"})
    for name, snapshot in (snapshots if tensors else shown).items():
        _print_fields(console, _origin(snapshot))
        console.print(_layers(name, snapshot, name in gone))
        if tensors:
            sys.stdout.writelines(line + "\n" for line in _tensors(snapshot))


def _print_fields(console: Console, fields: Mapping[str, str]) -> None:
    for label, value in fields.items():
        console.print(f"[bold]{label:<19}[/bold] ", end="")
        console.print(value, markup=False)


def _head(manifest: Mapping) -> dict[str, str]:
    head = {"model": manifest["model"], "status": manifest["status"], "uri": manifest["uri"]}
    if manifest["status"] == "failed":
        return head | {"reason": manifest["reason"]}
    outside = manifest["not_in_W_qk"]
    left_out = [f"positions: {outside['position']}", *(name for name in ("bias", "qk_norm") if outside[name])]
    return head | {
        "layout": manifest["layout"] + (f" ({manifest['part']})" if manifest["part"] else ""),
        "left out of W_qk": ", ".join(left_out),
    }


def _origin(snapshot: Mapping) -> dict[str, str]:
    size = {name: f"{count / 1e6:,.1f} MB" for name, count in snapshot["bytes"].items()}
    return {
        **_source("source", {key: value for key, value in snapshot["source"].items() if key != "adapter"}),
        **_source("adapter", snapshot["source"].get("adapter", {})),
        "bytes": f"checkpoint {size['checkpoint']}, read {size['read']}, stored {size['stored']}",
        "made with": ", ".join(f"{name} {number}" for name, number in snapshot["versions"].items()),
    }


def _source(label: str, source: Mapping) -> dict[str, str]:
    """Where a checkpoint or adapter comes from; of an adapter also the ranks and scalings, with their number of tensors."""
    fields = {
        f"{label} {key.replace('_', ' ')}": str(value) for key, value in source.items() if key not in ("files", "tensors")
    }
    products = Counter(f"rank {each['rank']}, scaling {each['scaling']:g}" for each in source.get("tensors", {}).values())
    added = "; ".join(f"{count} of {product}" for product, count in products.items())
    return {**fields, **({f"{label} products": added} if added else {})}


def _layers(name: str, snapshot: Mapping, gone: bool) -> Table:
    from rich.table import Table

    columns = ("layers", "d_model", "query heads", "key heads", "d_head", "read as", "stored as")
    table = Table(*columns, title=f"{name}: {'no file, weights dropped' if gone else snapshot['file']}")
    for first, last, layer in _runs(snapshot["layers"]):
        read = ", ".join(sorted({record["dtype"] for record in layer["read"].values()}))
        stored = ", ".join(sorted({record["dtype"] for record in layer["stored"].values()}))
        sizes = (str(layer[key]) for key in ("d_model", "n_head", "n_kv_head", "d_head"))
        table.add_row(f"{first}-{last}" if last > first else str(first), *sizes, read, stored)
    return table


def _runs(layers: list[Mapping]) -> list[tuple[int, int, Mapping]]:
    """Neighbouring layers of the same sizes as one row: first, last, and one of them."""
    runs: list[tuple[int, int, Mapping]] = []
    keys = ("d_model", "n_head", "n_kv_head", "d_head")
    for layer in layers:
        if runs and all(runs[-1][2][key] == layer[key] for key in keys):
            runs[-1] = (runs[-1][0], layer["layer"], layer)
        else:
            runs.append((layer["layer"], layer["layer"], layer))
    return runs


def _tensors(snapshot: Mapping) -> Iterator[str]:
    """One line per tensor that was read, cells separated by tabs, since digests do not fit a table."""
    yield "layer\ttensor\tfile\tbytes\tsha256 as read"
    for layer in snapshot["layers"]:
        for record in layer["read"].values():
            first, last = record["bytes"]
            yield f"{layer['layer']}\t{record['tensor']}\t{record['file']}\t{first}-{last}\t{record['sha256']}"
