"""`extract`: fetch a checkpoint and store its query and key weights as an artifact."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from qkgeom import artifacts
from qkgeom.acquisition import acquire
from qkgeom.checkpoint import heads_from
from qkgeom.console import set_up_logging
from qkgeom.errors import RECORDED, DiskFault
from qkgeom.extraction import failed_manifest
from qkgeom.sole_writer import be_sole_writer


def command(
    uri: Annotated[str, Argument(help="hf:org/name@revision, timm:name, whisper:size, pypi:package==version/path, file:path")],
    output: Annotated[Path, Option("--output", "-o", help="folder of the artifact")],
    model: Annotated[str | None, Option(help="id of the model; the folder's name by default")] = None,
    series: Annotated[str | None, Option(help="steps, for a URI with {step}, {k} or {name}: 0,1..512*2,1000,3000")] = None,
    layout: Annotated[str | None, Option(help="layout; by default the one for config.json's model_type")] = None,
    part: Annotated[str | None, Option(help="which stack, where the model has several: encoder, decoder, vision, text")] = None,
    sha256: Annotated[str | None, Option(help="digest of the one file that is fetched")] = None,
    architecture: Annotated[str | None, Option(help="model_type, for a checkpoint without config.json")] = None,
    n_head: Annotated[int | None, Option(min=1, help="query heads, for a checkpoint without config.json")] = None,
    n_kv_head: Annotated[int | None, Option(min=1, help="key heads, if fewer than query heads")] = None,
    adapter: Annotated[
        str | None, Option(help="a LoRA adapter in PEFT's format, merged: hf:org/name@revision, a folder")
    ] = None,
    record: Annotated[
        Literal["lasting", "all"],
        Option(
            help="faults that are recorded in the manifest: lasting ones, or also what may pass, such as a network that is down"
        ),
    ] = "lasting",
) -> None:
    """Fetch a checkpoint and store its query and key weights.

    A permanent fault of the model (missing, gated, unreadable) is recorded in its manifest and ends with exit code 0,
    so that a pipeline goes on without it; `check` names it and `retry` clears it.
    """
    set_up_logging()
    be_sole_writer(output)
    name = model or output.name
    heads = heads_from(n_head, n_kv_head)
    try:
        how = {"series": series, "layout": layout, "part": part, "sha256": sha256, "architecture": architecture}
        acquire(uri, output, name, heads=heads, adapter=adapter, **how)
    except DiskFault:
        raise
    except RECORDED[record] as fault:
        artifacts.write_manifest(output, failed_manifest(name, uri, str(fault)))
        sys.stderr.write(f"{name} cannot be extracted, and the run goes on without it: {fault}\n")
