"""Whether config.yaml, the preset and the tables fit together."""

from __future__ import annotations

from collections.abc import Iterator

from qkgeom.doctor.case_settings import models_of, settings_of
from qkgeom.doctor.finding import Case, Finding, error, ok
from qkgeom.errors import QkgeomError


def examine(case: Case) -> Iterator[Finding]:
    """Reads them as the workflow does."""
    try:
        settings = settings_of(case)
        models = models_of(settings)
    except QkgeomError as found:
        yield error("settings", found)
        return
    yield ok("settings", f"preset {settings.preset}, device {settings.device}, {len(models)} published models")
