"""Whether config.yaml, the preset and the tables fit together."""

from __future__ import annotations

from collections.abc import Iterator

from qkgeom.doctor.case_settings import chosen, settings_of
from qkgeom.doctor.finding import Case, Finding, error, fault, ok
from qkgeom.errors import QkgeomError


def examine(case: Case) -> Iterator[Finding]:
    """Reads them as the workflow does."""
    try:
        settings = settings_of(case)
        models, runs = chosen(settings)
    except QkgeomError as found:
        yield error("settings", found)
        return
    what = f"{len(models)} published models, {len(runs)} training runs"
    yield ok("settings", f"preset {settings.preset}, device {settings.device}, {what}")
    made = case.folder / "results" / settings.preset / "corpora/jigsaw/corpus.json"
    if any(run.corpus == "jigsaw" for run in runs) and not ((case.folder / settings.jigsaw_zip).is_file() or made.exists()):
        fix = "fetch it from Kaggle by hand (README, `What it trains`), or leave its runs out with `only`"
        yield fault("jigsaw", f"there is no {settings.jigsaw_zip}, your own download of this corpus", fix)
