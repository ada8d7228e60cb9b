"""`published`: a model read as the paper's released code read it, beside the right reading."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from qkgeom import artifacts
from qkgeom.acquisition import acquire
from qkgeom.checkpoint import heads_from
from qkgeom.console import print_table, print_whole, set_up_logging, track
from qkgeom.device import choose_device, take_free_gpus
from qkgeom.digests import code_digest
from qkgeom.errors import RECORDED, UsageError
from qkgeom.provenance import beside, write_record
from qkgeom.published import score_published, way_of_artifact
from qkgeom.published_values import DEFECTS, SCORES, read_published
from qkgeom.scoring import Row, score_artifact, write_scores
from qkgeom.scratch import scratch_folder
from qkgeom.sole_writer import be_sole_writer

OUTPUT = "published_way.csv"  # in an artifact's folder


def command(
    targets: Annotated[list[str], Argument(help="an artifact's folder or id, or a model from anywhere, as `score` takes it")],
    in_place: Annotated[
        bool, Option("--in-place", help="write the published reading's scores of one or more artifacts into their folders")
    ] = False,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:N or mps")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="CPU threads; all by default")] = None,
    part: Annotated[str | None, Option(help="which stack, where the model has several: encoder, decoder, vision, text")] = None,
    architecture: Annotated[str | None, Option(help="model_type, for a checkpoint without config.json")] = None,
    n_head: Annotated[int | None, Option(min=1, help="query heads, for a checkpoint without config.json")] = None,
    n_kv_head: Annotated[int | None, Option(min=1, help="key heads, if fewer than query heads")] = None,
    record: Annotated[
        Literal["none", "lasting", "all"],
        Option(help="in the pipeline, with --in-place: faults after which the run goes on without this reading"),
    ] = "none",
) -> None:
    """Score a model as the paper's released code read it, beside the right reading (docs/published.md).

    Models that this code read right have nothing to show; with --in-place the file is then empty but for its header.
    """
    import torch

    set_up_logging()
    if threads:
        torch.set_num_threads(threads)
    take_free_gpus(device)
    chosen = choose_device(device)  # before anything is fetched
    if in_place:
        folders = [artifacts.find(each) for each in targets]
        be_sole_writer(*(folder / OUTPUT for folder in folders))
        for folder in folders:
            write_scores(folder / OUTPUT, _published(folder, device, RECORDED[record]))
            write_record(
                beside(folder / OUTPUT),
                "published",
                [folder / artifacts.MANIFEST],
                [folder / OUTPUT],
                code_digest("verbs.published"),
                ("numpy", "torch"),
                device=str(chosen),
                threads=torch.get_num_threads(),
            )
        return
    if len(targets) > 1:
        raise UsageError("several models are read with --in-place only", found=" ".join(targets))
    target, folder = targets[0], artifacts.find(targets[0])
    if (folder / artifacts.MANIFEST).is_file():
        _show(folder, device)
    else:
        with scratch_folder() as temporary:
            how = {"part": part, "architecture": architecture, "heads": heads_from(n_head, n_kv_head)}
            acquire(target, temporary / "model", target.rstrip("/").rpartition("/")[2].partition("@")[0], **how)
            _show(temporary / "model", device)


def _published(folder: Path, device: str, recorded: tuple[type[Exception], ...]) -> list[Row]:
    try:
        return score_published(folder, device, progress=partial(track, label=f"score {folder.name}, published way"))
    except recorded as fault:
        sys.stderr.write(f"{folder.name} cannot be read the published way, and the run goes on without it: {fault}\n")
        return []


def _show(folder: Path, device: str) -> None:
    """Both readings by layer, their medians, and what the paper gives for the model, if it is one of the paper's."""
    way = way_of_artifact(artifacts.read_manifest(folder))
    if way is None:
        sys.stderr.write("The published code reads this model as it is, or fails on it: there is no other reading.\n")
        return
    theirs = score_published(folder, device, progress=partial(track, label="score, published way"))
    ours = score_artifact(folder, device=device, progress=partial(track, label="score"))[-len(theirs) :]
    header = ["layer", *(f"{score}_{reading}" for score in SCORES for reading in ("here", "published_way"))]
    lines = [[str(our["layer"]), *_cells(our, their)] for our, their in zip(ours, theirs, strict=True)]
    if sys.stdout.isatty():
        print_whole([name.replace("_", " ").replace(" ", "\n", 1) for name in header], lines, 1)
    else:
        print_table(header, lines)
    said = sys.stdout if sys.stdout.isatty() else sys.stderr
    said.writelines(f"{DEFECTS[defect]}\n" for defect in way.defects)
    for score in SCORES:
        medians = [_median(rows, score) for rows in (ours, theirs)]
        said.write(f"{score}, median over layers: here {medians[0]}, the published way {medians[1]}")
        published = read_published().get(str(ours[0]["model"]))
        said.write(f", published {published[f'{score}_median']}\n" if published and published["n_layers"] else "\n")


def _cells(*rows: Row) -> list[str]:
    return ["–" if row[score] is None else f"{row[score]:+.4f}" for score in SCORES for row in rows]


def _median(rows: Sequence[Row], score: str) -> str:
    known = [row[score] for row in rows if row[score] is not None]
    return f"{statistics.median(known):+.3f}" if known else "none"
