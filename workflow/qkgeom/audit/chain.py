"""The whole chain of a preset, link by link."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkgeom.artifacts import MANIFEST
from qkgeom.audit.collected import check_collected, models_of, runs_of
from qkgeom.audit.disputes import Dispute, disputes_of, tell_undecided
from qkgeom.audit.findings import VERDICTS, Finding, Part
from qkgeom.audit.links import Digests
from qkgeom.audit.model import blamed_on_manifest, check_model
from qkgeom.audit.options import Options
from qkgeom.audit.rendered import KINDS, check_rendered, names_in, rendered_before
from qkgeom.audit.run import check_reading, check_run
from qkgeom.errors import QkgeomError
from qkgeom.provenance import OF_FOLDER, read_record

Progress = Callable[[Sequence[str], str], Iterator[str]]


@dataclass(frozen=True)
class Audit:
    """What was found in a preset.

    Attributes:
        preset: its name.
        options: how much was checked.
        parts: collected tables, models, runs, figures, tables.
        strays: figures and tables that are not of this run, and were left alone.
    """

    preset: str
    options: Options
    parts: list[Part]
    strays: list[str]

    @property
    def verdict(self) -> str:
        """The worst of its parts."""
        return max((part.verdict for part in self.parts), key=VERDICTS.index)

    @property
    def findings(self) -> list[Finding]:
        """All of them, each once: a file may be part of several links."""
        return list(dict.fromkeys(finding for part in self.parts for finding in part.findings))


def audit(
    preset: str, options: Options, uris: Mapping[str, str], progress: Progress, rendered: Sequence[Path] | None = None
) -> Audit:
    """Checks everything that led to a preset's figures and tables.

    Args:
        preset: name of its folder in `options.results`.
        options: how much.
        uris: model -> URI as the tables of models and runs have it, where they do.
        progress: shows how far the work is.
        rendered: the figures and tables of the run; by default all that are there, and those of the last audit.
    """
    digests = Digests()
    folder = options.results / preset
    try:
        record = read_record(folder / "collected" / OF_FOLDER)
        models, runs = models_of(record), runs_of(record)
    except QkgeomError:  # which `check_collected` tells
        models, runs = [], []
    disputes = disputes_of(models, options.results, preset)
    # in the order in which they are made, so that a file is blamed before what was made from it
    parts = [digests.blame(check_run(name, options, digests)) for name in runs]
    for name in progress(models, "audit: models"):
        parts.append(digests.blame(_model(name, preset, options, digests, uris, disputes.get(name, []))))
    parts.append(digests.blame(check_collected(preset, options, digests, disputes)))
    there = [(kind, name) for kind in KINDS for name in names_in(folder / f"{kind}s")]
    if rendered is None:
        named, strays = [*rendered_before(folder), *there], []
    else:
        named = [(path.parent.name.removesuffix("s"), path.stem) for path in rendered]
        strays = sorted(set(there) - set(named))
    wanted = {f"{kind} {name}": (kind, name) for kind, name in named}
    for key in progress(list(wanted), "audit: figures and tables"):
        parts.append(check_rendered(*wanted[key], preset, options, digests))
    return Audit(preset, options, parts, [f"{kind} {name}" for kind, name in strays])


def _model(
    name: str, preset: str, options: Options, digests: Digests, uris: Mapping[str, str], disputes: Sequence[Dispute]
) -> Part:
    part, manifest = check_model(name, options, digests, uris.get(name), {each.key[:2] for each in disputes})
    if manifest is None or manifest.get("status") != "ok":
        return part
    folder, collected = options.results / "models" / name, options.results / preset / "collected/scores.csv"
    with blamed_on_manifest(part, folder / MANIFEST):
        trained_here = manifest["uri"].startswith("run:")
        if trained_here and not options.bundled:
            check_reading(part, manifest, options)
        if options.from_source:
            from qkgeom.audit.source import check_source

            check_source(part, manifest, options)
        tell_undecided(part, disputes, folder / "scores.csv", collected, not options.from_source and not trained_here)
    return part
