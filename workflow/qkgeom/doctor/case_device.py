"""Where the run would compute."""

from __future__ import annotations

from qkgeom.doctor.finding import Case
from qkgeom.errors import QkgeomError


def device_of(case: Case) -> str:
    """`device` of config.yaml; `auto` where it cannot be read, which the check of the settings tells."""
    try:
        from qkgeom.doctor.case_settings import settings_of

        return settings_of(case).device
    except (ImportError, QkgeomError):
        return "auto"
