"""Whether SLURM answers, and knows the names that profiles/slurm uses."""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Iterator
from importlib import metadata

from qkgeom.doctor.cluster import Partition, read_partitions, setting
from qkgeom.doctor.command import run
from qkgeom.doctor.finding import SET_UP, Case, Finding, error, fault, ok, warning
from qkgeom.doctor.slurm_profile import FOLDER, Profile, read_profile
from qkgeom.errors import UsageError

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun")
PLUGIN = "snakemake-executor-plugin-slurm"
PATIENCE = 4.0  # seconds for one command
EDIT = f"edit the site's block of {FOLDER}"


def examine(case: Case) -> Iterator[Finding]:
    """Asks the controller; not at all if this machine has no sbatch and nobody said that there is a cluster."""
    if case.slurm is False or (case.slurm is None and shutil.which("sbatch") is None):
        yield ok("slurm", "not asked for" if case.slurm is False else "no sbatch here: not a cluster")
        return
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        yield fault("slurm", f"not on PATH: {', '.join(missing)}", "log in to the cluster's login node, or load its module")
        return
    answer = run(["sinfo", "--noheader", "--format=%P|%a|%G"], case.left(PATIENCE))
    if not answer.fine:
        if case.slurm is None:
            yield warning(
                "slurm", f"installed, but: {answer.said}", "nothing, if runs are to stay on this machine (--no-slurm)"
            )
        else:
            yield fault("slurm", f"sinfo: {answer.said}", "is the controller up? ask the site's support")
        return
    partitions = read_partitions(answer.out)
    yield ok("slurm", f"{len(partitions)} partitions: {', '.join(partitions)}")
    yield from _plugin()
    try:
        profile = read_profile(case.folder / FOLDER)
    except UsageError as found:
        yield error("profile", found, "restore it, or run in the project's folder")
        return
    yield _partitions(profile, partitions)
    yield _gpus(profile, partitions)
    yield from _accounting(case, profile)


def _plugin() -> Iterator[Finding]:
    try:
        yield ok("plugin", f"{PLUGIN} {metadata.version(PLUGIN)}")
    except metadata.PackageNotFoundError:
        yield fault("plugin", f"{PLUGIN} is missing", SET_UP)


def _partitions(profile: Profile, partitions: dict[str, Partition]) -> Finding:
    named = sorted(profile.partitions)
    if unknown := [name for name in named if name not in partitions]:
        fix = f"{EDIT}: {', '.join(partitions)} exist"
        return fault("partition", f"the cluster has no {', '.join(unknown)}, which {FOLDER} names", fix)
    if closed := [name for name in named if not partitions[name].up]:
        return warning("partition", f"{', '.join(closed)} is not up: jobs would wait", "choose another, or wait")
    if not profile.has_default_partition and not any(each.default for each in partitions.values()):
        fix = f"{EDIT}: name one of {', '.join(partitions)}"
        return fault("partition", f"the cluster has no default, and {FOLDER} names none for all jobs", fix)
    return ok("partition", ", ".join(named) or "the cluster's default")


def _gpus(profile: Profile, partitions: dict[str, Partition]) -> Finding:
    default = [each for each in partitions.values() if each.default]
    kinds = sorted({gpu or "(no model)" for each in partitions.values() for gpu in each.gpus})
    here = f"GPUs of the cluster: {', '.join(kinds) or 'none'}"
    for job, partition, model in profile.gpus:
        chosen = [partitions[partition]] if partition in partitions else default if partition is None else []
        if chosen and model and not any(model in each.gpus for each in chosen):
            found = f"partition {chosen[0].name} has no gres gpu:{model}, which {FOLDER} asks for ({job}); {here}"
            return fault("gres", found, f"{EDIT}: the model as sinfo names it, or none")
        if chosen and not any(each.gpus for each in chosen):
            where = f"partition {chosen[0].name} has no GPUs, and {FOLDER} sends {job} there; {here}"
            return fault("gres", where, f"{EDIT}: a partition with GPUs")
    return ok("gres", here)


def _accounting(case: Case, profile: Profile) -> Iterator[Finding]:
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
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}", "format=account"]
    answer = run(command, case.left(PATIENCE))
    if not answer.fine:
        found = f"on, but sacctmgr: {answer.said}"
        if by == "sacct":
            yield fault("accounting", f"{found}; sacct would hang too", use_squeue)
        else:
            yield warning("accounting", f"{found}; the status of jobs is asked of squeue", "tell the site's support")
        return
    yield ok("accounting", f"on; the status of jobs is asked of {by}")
    known = sorted({line.strip() for line in answer.out.splitlines() if line.strip()})
    if known and (unknown := sorted(profile.accounts - set(known))):
        yield fault("account", f"{', '.join(unknown)} is not yours", f"{EDIT}: you may use {', '.join(known)}")
    elif known:
        yield ok("account", ", ".join(sorted(profile.accounts)) or f"the default of {', '.join(known)}")


def _memory_of_jobs(config: str) -> Iterator[Finding]:
    """How long squeue knows of an ended job: it must be longer than the plugin waits between two questions."""
    age = re.match(r"\d+", setting(config, "MinJobAge") or "")
    if age and int(age[0]) < 120:
        fix = "ask the site for MinJobAge=300, or use sacct if accounting is on"
        yield warning("job age", f"squeue forgets an ended job after {age[0]} s, perhaps before it was asked", fix)
