"""`audit`: whether every number of a run follows from its weights."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.audit.bundle import Bundle, opened_bundle, told_from_bundle
from qkgeom.audit.chain import Audit, audit
from qkgeom.audit.findings import VERDICTS
from qkgeom.audit.options import Options
from qkgeom.audit.report import HEADER, as_json, lines_of, summary_of, write_report
from qkgeom.console import print_table, set_up_logging, track
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.finished import default_preset
from qkgeom.lock import pinned, read_lock
from qkgeom.registry import read_models
from qkgeom.runs import read_runs
from qkgeom.settings import PRESETS
from qkgeom.sole_writer import be_sole_writer

COLOURS = dict(zip(VERDICTS, ("green", "yellow", "bold red"), strict=True))


def command(
    target: Annotated[
        Path | None, Argument(metavar="[PRESET|BUNDLE]", help="results/<preset>, config.yaml's by default; or a bundle")
    ] = None,
    everything: Annotated[bool, Option("--all", help="derive all scores anew, and draw the figures again")] = False,
    sample: Annotated[int, Option(min=1, help="layers of each model whose scores are derived anew")] = 2,
    seed: Annotated[int, Option(min=0, help="of the sample")] = 0,
    from_source: Annotated[
        bool, Option("--from-source", help="also read the sources again, by each model's own class")
    ] = False,
    most_gb: Annotated[float, Option(help="checkpoints larger than this (GB) are not read again")] = 4.0,
    bundle: Annotated[Path | None, Option(help="write the chain without weights and pictures here: .tar.gz or .zip")] = None,
    rendered: Annotated[
        list[Path] | None, Option(help="a figure or table of this run; others beside it are left alone")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="folder of audit.json and audit.md; <preset>/audit, none for a bundle")
    ] = None,
    threads: Annotated[int, Option(min=1, help="CPU threads")] = 1,
    record: Annotated[
        bool, Option("--record", help="in the pipeline: end well, since `check` names what does not match")
    ] = False,
    in_json: Annotated[bool, Option("--json", help="print audit.json")] = False,
) -> None:
    """Verify a run: digests along the whole chain, scores derived anew from the weights, tables and figures made anew.

    Exit code 1 if anything does not match; the findings are in audit.md then, too. See docs/audit.md.
    """
    from threadpoolctl import threadpool_limits

    set_up_logging()
    target = target or Path("results") / default_preset()
    if target.name in ("", ".."):  # `.`, whose name is the preset's
        target = target.resolve()
    if bundle and target.is_file():
        raise UsageError("a bundle is made from a results folder", found=target, expected="results/<preset>")
    be_sole_writer(output or target / "audit")
    how = {"sample": None if everything else sample, "seed": seed, "from_source": from_source, "most_bytes": most_gb * 1e9}
    with opened_bundle(target) if target.is_file() else nullcontext(target) as folder, threadpool_limits(threads):
        if not (folder / "collected").is_dir():
            raise UsageError(
                "this is neither the results of a preset nor a bundle of them", found=target, expected="results/mini"
            )
        packed = Bundle.of(folder, bundle) if bundle else None  # before the audit, so that nothing is packed unchecked
        options = Options(folder.parent, bundled=folder != target, **how)
        result = audit(folder.name, options, _uris(folder.name), track, rendered)
        if options.bundled:
            told_from_bundle(result, folder.parent)
        if output or not options.bundled:
            write_report(result, output or folder / "audit")
        if packed:
            packed.write()
    _tell(result, in_json)
    if target.is_file() and not output:
        sys.stderr.write("no page is left of a bundle's audit: -o FOLDER writes audit.md and audit.json there\n")
    if result.findings and not record:
        raise QkgeomError("not everything matches", where=target, found=summary_of(result), fix="see above, for each finding")


def _tell(result: Audit, in_json: bool) -> None:
    if in_json:
        sys.stdout.write(json.dumps(as_json(result), indent=1, ensure_ascii=False) + "\n")
    else:
        print_table(HEADER, lines_of(result), COLOURS)
    sys.stderr.write(summary_of(result) + "\n")
    sys.stderr.writelines(f"{finding}\n" for finding in result.findings)


def _uris(preset: str) -> dict[str, str]:
    """What the tables of models and runs say that the models are, as models.lock pins them."""
    pins = read_lock()
    models = {name: pinned(model, pins).uri for name, model in read_models().items()}
    runs = read_runs(preset).values() if (PRESETS / f"{preset}.yaml").is_file() else ()
    return models | {model.model: model.uri for run in runs for model in run.models(preset)}
