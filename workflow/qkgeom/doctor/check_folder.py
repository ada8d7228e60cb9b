"""What Snakemake left in the folder."""

from __future__ import annotations

from collections.abc import Iterator

from qkgeom.doctor.finding import Case, Finding, fault, ok


def examine(case: Case) -> Iterator[Finding]:
    """Looks for the lock of a run that is going on, or was killed."""
    locks = sorted((case.folder / ".snakemake/locks").glob("*.lock"))
    if locks:
        fix = "wait for the run that is going on in this folder; if there is none, it was killed: run `snakemake --unlock`"
        yield fault("lock", f"Snakemake has locked this folder ({locks[0]})", fix)
    else:
        yield ok("lock", "no run has locked this folder")
