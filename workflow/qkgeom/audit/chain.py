"""The whole chain of a preset, link by link."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkgeom.audit.collected import check_collected, models_of, runs_of
from qkgeom.audit.findings import VERDICTS, Finding, Part
from qkgeom.audit.links import Digests
from qkgeom.audit.model import check_model
from qkgeom.audit.options import Options
from qkgeom.audit.rendered import KINDS, check_rendered, names_in, strays
from qkgeom.audit.run import check_reading, check_run

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
        rendered: the figures and tables of the run, all that are there by default.
    """
    digests = Digests()
    collected, record = check_collected(preset, options, digests)
    models, runs = (models_of(record), runs_of(record)) if record else ([], [])
    parts = [collected, *(check_run(name, options, digests) for name in runs)]
    for name in progress(models, "audit: models"):
        parts.append(_model(name, options, digests, uris))
    folder = options.results / preset
    others = set(strays(list(rendered), folder)) if rendered is not None else set()
    named = [(path.parent.name[:-1], path.with_suffix("").name) for path in rendered or ()]
    there = [(kind, name) for kind in KINDS for name in names_in(folder / f"{kind}s")]
    wanted = {f"{kind} {name}": (kind, name) for kind, name in dict.fromkeys([*named, *there]) if (kind, name) not in others}
    for key in progress(list(wanted), "audit: figures and tables"):
        parts.append(check_rendered(*wanted[key], preset, options, digests))
    return Audit(preset, options, parts, [f"{kind} {name}" for kind, name in sorted(others)])


def _model(name: str, options: Options, digests: Digests, uris: Mapping[str, str]) -> Part:
    part, manifest = check_model(name, options, digests, uris.get(name))
    if manifest is None or manifest.get("status") != "ok":
        return part
    if manifest["uri"].startswith("run:") and not options.bundled:
        check_reading(part, manifest, options)
    if options.from_source:
        from qkgeom.audit.source import check_source

        check_source(part, manifest, options)
    return part
