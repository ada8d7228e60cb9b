"""Whether SLURM keeps accounts of jobs, which decides how the executor plugin can ask about them."""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Iterator

from qkgeom.doctor.command import run
from qkgeom.doctor.finding import Case, Finding, fault, ok, warning
from qkgeom.doctor.slurm_output import setting
from qkgeom.doctor.slurm_profile import FOLDER, Profile

PATIENCE = 4.0  # seconds for one command


def accounting(case: Case, profile: Profile) -> Iterator[Finding]:
    """Without accounting `sacct` never answers the executor plugin, and a run waits for ever after its last job."""
    asked = run(["scontrol", "show", "config"], case.left(PATIENCE))
    kind = setting(asked.out, "AccountingStorageType") if asked.fine else None
    off = kind is not None and re.fullmatch(r"\(null\)|.*none|", kind) is not None
    by = profile.status_command or ("sacct" if shutil.which("sacct") else "squeue")
    use_squeue = f"say `slurm-status-command: squeue` in {FOLDER}"
    if not asked.fine:
        yield warning("accounting", f"not known: scontrol: {asked.said}", use_squeue)
    elif off and by == "sacct":
        yield fault("accounting", "off, and the status of jobs is asked of sacct: the run would never end", use_squeue)
    elif off:
        yield ok("accounting", "off; the status of jobs is asked of squeue")
    else:
        yield from _accounts(case, profile, by, use_squeue)
    if by == "squeue" and asked.fine:
        yield from _memory_of_jobs(asked.out)


def _accounts(case: Case, profile: Profile, by: str, use_squeue: str) -> Iterator[Finding]:
    """The executor plugin asks sacctmgr about every account that the profile names, and waits for ever."""
    stated = " ".join(names.get("slurm_account", "") for names in profile.places.values())
    accounts = sorted(set(re.split(r"[,\s]+", stated.lower())) - {""})
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}", "format=account"]
    answer = run(command, case.left(PATIENCE))
    if not answer.fine:
        found = f"on, but sacctmgr: {answer.said}"
        if by == "sacct":
            yield fault("accounting", f"{found}; the status of jobs is asked of sacct, which needs it too", use_squeue)
        elif accounts:
            yield fault("accounting", f"{found}; it is asked about account {', '.join(accounts)}", "tell the site's support")
        else:
            yield warning("accounting", f"{found}; the status of jobs is asked of squeue", "tell the site's support")
        return
    yield ok("accounting", f"on; the status of jobs is asked of {by}")
    known = sorted({line.strip().lower() for line in answer.out.splitlines() if line.strip()})
    if known and (unknown := [each for each in accounts if each not in known]):
        yield fault("account", f"{', '.join(unknown)} is not yours", f"edit {FOLDER}: you may use {', '.join(known)}")
    elif known:
        yield ok("account", ", ".join(accounts) or f"the default of {', '.join(known)}")


def _memory_of_jobs(config: str) -> Iterator[Finding]:
    """How long squeue knows of an ended job: it must be longer than the plugin waits between two questions."""
    age = re.match(r"\d+", setting(config, "MinJobAge") or "")
    if age and int(age[0]) < 120:
        fix = "ask the site for MinJobAge=300, or use sacct if accounting is on"
        yield warning("job age", f"squeue forgets an ended job after {age[0]} s, perhaps before it was asked", fix)
