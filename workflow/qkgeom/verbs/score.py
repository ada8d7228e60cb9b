"""`score`: symmetry and directionality of an artifact, or of a model from anywhere."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from qkgeom import artifacts
from qkgeom.acquisition import acquire
from qkgeom.checkpoint import heads_from
from qkgeom.console import set_up_logging, track
from qkgeom.device import choose_device, take_free_gpus
from qkgeom.dropping import drop
from qkgeom.errors import RECORDED, UsageError
from qkgeom.scoring import score_artifact, write_scores
from qkgeom.scratch import scratch_folder
from qkgeom.sole_writer import be_sole_writer
from qkgeom.sources import split_uri
from qkgeom.standing import print_scores, unscored_layers, verdicts
from qkgeom.stored import score_in_place, score_stored, write_own_scores
from qkgeom.untrained import rows_with_null

logger = logging.getLogger(__name__)


def command(
    targets: Annotated[
        list[str],
        Argument(
            help="an artifact's folder or id, hf:org/name@revision, timm:name, whisper:size, pypi:..., file:..., a path, a "
            "hub id; with --in-place artifacts only, as many as you like"
        ),
    ],
    output: Annotated[Path | None, Option("--output", "-o", help="write scores.csv here")] = None,
    in_place: Annotated[bool, Option("--in-place", help="write scores.csv beside each artifact")] = False,
    heads: Annotated[bool, Option("--heads/--no-heads", help="a row per head as well")] = False,
    structure: Annotated[
        bool,
        Option("--structure/--no-structure", help="also rank and outliers, and norms.npz beside an artifact's scores.csv"),
    ] = False,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:N or mps")] = "auto",
    precision: Annotated[
        Literal["auto", "float64"], Option(help="of products: auto is float32 where that is accurate enough")
    ] = "auto",
    threads: Annotated[int | None, Option(min=1, help="CPU threads; all by default")] = None,
    keep_weights: Annotated[
        bool,
        Option("--keep-weights/--drop-weights", help="delete an artifact's weights once scored; scoring fetches them again"),
    ] = True,
    null: Annotated[bool, Option("--null", help="also each score's z against random weights, p and a verdict")] = False,
    as_json: Annotated[bool, Option("--json", help="print the rows as JSON")] = False,
    part: Annotated[str | None, Option(help="which stack, where the model has several: encoder, decoder, vision, text")] = None,
    architecture: Annotated[str | None, Option(help="model_type, for a checkpoint without config.json")] = None,
    n_head: Annotated[int | None, Option(min=1, help="query heads, for a checkpoint without config.json")] = None,
    n_kv_head: Annotated[int | None, Option(min=1, help="key heads, if fewer than query heads")] = None,
    adapter: Annotated[
        str | None, Option(help="a LoRA adapter in PEFT's format: hf:org/name@revision, a folder; scored merged, and the base")
    ] = None,
    record: Annotated[
        Literal["none", "lasting", "all"],
        Option(help="in the pipeline: faults that are recorded beside the artifact, and the run goes on without its scores"),
    ] = "none",
) -> None:
    """Score a model: per layer, symmetry and directionality of its query-key weights; or several artifacts in one go."""
    import torch

    set_up_logging()
    if threads:
        torch.set_num_threads(threads)
    take_free_gpus(device)
    chosen = choose_device(device)  # before anything is fetched
    scored = partial(score_artifact, heads=heads, device=device, precision=precision, structure=structure)
    parameters = {"heads": heads, "structure": structure, "precision": precision}
    how = {"parameters": parameters, "device": str(chosen), "threads": torch.get_num_threads()}
    if in_place or len(targets) > 1:
        of_one = {"-o": output, "--json": as_json, "--null": null, "--part": part, "--architecture": architecture}
        of_one |= {"--n-head": n_head, "--n-kv-head": n_kv_head, "--adapter": adapter}
        _require_together(len(targets), in_place, [name for name, given in of_one.items() if given])
        folders = [artifacts.find(each) for each in targets]
        be_sole_writer(*folders)
        score_in_place(folders, partial(scored, in_place=True), RECORDED[record], keep_weights, how)
        return
    target = targets[0]
    folder, own = artifacts.find(target), False
    is_artifact = (folder / artifacts.MANIFEST).is_file()
    if is_artifact:
        if architecture or n_head or n_kv_head or part or adapter:
            found = "--architecture, --n-head, --n-kv-head, --part or --adapter"
            raise UsageError("an artifact knows its architecture, and its weights are as they are", found=found)
        own = output is not None and output.resolve() == (folder / "scores.csv").resolve()
        if own and null:
            raise UsageError(
                "an artifact's own scores do not have the columns of --null",
                found=f"--null and -o {output}",
                expected="what the pipeline reads: `collect` adds them to its table, from random weights as it knows them then",
                fix="write another file, or leave out --null",
            )
        rows = score_stored(folder, partial(scored, in_place=own), RECORDED[record])
    else:
        with scratch_folder() as temporary:
            if split_uri(target) == ("hf", target):
                logger.warning("there is no path %s here, so it is taken as the model hub's hf:%s", target, target)
            told = {"part": part, "architecture": architecture, "heads": heads_from(n_head, n_kv_head)}
            models = {_name(target): None} | ({f"{_name(target)}+{_name(adapter)}": adapter} if adapter else {})
            rows = []
            for model, merged in reversed(models.items()):  # the adapter's faults show before the base has moved
                folder = temporary / ("merged" if merged else "base")
                acquire(target, folder, model, adapter=merged, **told)
                rows[:0] = scored(folder, progress=partial(track, label="score"))
    if null:
        rows = rows_with_null(rows)
    if output:
        if own:
            write_own_scores(folder, rows, how)
        else:
            write_scores(output, rows)
        sys.stderr.write(f"wrote {output}: {len(rows)} rows{unscored_layers(rows)}\n")
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    elif not output:
        print_scores(rows)
    if null and (output or as_json):
        sys.stderr.writelines(f"{line}\n" for line in verdicts(rows))
    if is_artifact and not keep_weights:
        drop(folder, artifacts.read_manifest(folder))


def _require_together(n_target: int, in_place: bool, of_one: Sequence[str]) -> None:
    """Raises UsageError where options are given that suit a single model's rows only."""
    if of_one and in_place:
        raise UsageError(
            "these options do not go together",
            found=f"--in-place and {', '.join(of_one)}",
            expected="--in-place writes scores.csv beside each artifact, and nothing else",
            fix=f"leave out {', '.join(of_one)}, or score one artifact without --in-place",
        )
    if not in_place:
        raise UsageError(
            "several models are given, without --in-place",
            found=f"{n_target} models",
            fix="for artifacts add --in-place"
            + (f", and leave out {', '.join(of_one)}" if of_one else "")
            + "; score other models one at a time",
        )


def _name(target: str) -> str:
    return target.rstrip("/").rpartition("/")[2].partition("@")[0]
