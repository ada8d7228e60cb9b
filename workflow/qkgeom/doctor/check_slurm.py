"""Whether SLURM answers, and knows the names that profiles/slurm uses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata

from qkgeom.doctor.case_device import device_of
from qkgeom.doctor.command import run
from qkgeom.doctor.finding import SET_UP, Case, Finding, error, fault, ok, warning
from qkgeom.doctor.slurm_accounting import accounting
from qkgeom.doctor.slurm_output import Partition, read_partitions
from qkgeom.doctor.slurm_profile import DEFAULT, FOLDER, Profile, read_profile
from qkgeom.errors import UsageError

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun")
PLUGIN = "snakemake-executor-plugin-slurm"
PATIENCE = 4.0  # seconds for one command
GPU_JOBS = "gpu_jobs"  # the place in profiles/slurm of jobs that ask for a GPU
Partitions = Mapping[str, Partition]


def examine(case: Case) -> Iterator[Finding]:
    """Asks the controller; not at all if this machine has no sbatch and nobody said that there is a cluster."""
    if not case.may_submit:
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
    device = device_of(case)
    yield from _partitions(profile, partitions, device)
    yield from _gpus(profile, partitions, device)
    yield from accounting(case, profile)


def _plugin() -> Iterator[Finding]:
    try:
        yield ok("plugin", f"{PLUGIN} {metadata.version(PLUGIN)}")
    except metadata.PackageNotFoundError:
        yield fault("plugin", f"{PLUGIN} is missing", SET_UP)


def _partitions(profile: Profile, partitions: Partitions, device: str) -> Iterator[Finding]:
    exist, judged, fine = ", ".join(partitions), set(), True
    for place, names in profile.places.items():
        for name in set(names.get("slurm_partition", "").split(",")) - judged - {""}:
            judged.add(name)
            if name not in partitions:
                fine = False
                yield _misfit("partition", f"the cluster has no {name}", place, device, f"one of {exist}")
            elif not partitions[name].up:
                fine = False
                fix = "choose another, or wait"
                yield warning("partition", f"{name} is not up: jobs of {place} in {FOLDER} would wait", fix)
    if not _of(profile.places[DEFAULT], partitions) and fine:
        found = "the cluster has no default, and none is named for all jobs"
        yield _misfit("partition", found, DEFAULT, device, f"one of {exist}")
    elif fine:
        yield ok("partition", ", ".join(sorted(judged)) or "the cluster's default")


def _gpus(profile: Profile, partitions: Partitions, device: str) -> Iterator[Finding]:
    """Whether jobs that need a GPU are sent where there are some, of the model that they ask for."""
    kinds = ", ".join(sorted({gpu or "(no model)" for each in partitions.values() for gpu in each.gpus})) or "none"
    places = {place: names for place, names in profile.places.items() if "gpu" in place or "gpu_model" in names}
    if device.startswith("cuda"):
        places = places or {DEFAULT: profile.places[DEFAULT]}
    fine = True
    for place, names in places.items():
        here, model = _of(names, partitions), names.get("gpu_model")
        if here and not any(model in each.gpus if model else each.gpus for each in here):
            fine = False
            what = f"partition {here[0].name} has no gres gpu{':' + model if model else ''}"
            yield _misfit(
                "gres", f"{what} (GPUs of the cluster: {kinds})", place, device, "partition and model as sinfo has them"
            )
    if fine:
        yield ok("gres", f"GPUs of the cluster: {kinds}")


def _of(names: Mapping[str, str], partitions: Partitions) -> list[Partition]:
    """The partitions that a place's jobs go to, of those that exist."""
    named = names.get("slurm_partition")
    if named:
        return [partitions[name] for name in named.split(",") if name in partitions]
    return [each for each in partitions.values() if each.default]


def _misfit(check: str, found: str, place: str, device: str, fix: str) -> Finding:
    """A name that does not fit; a warning where no job uses it."""
    fix = f"edit `{place}` in {FOLDER}: {fix}"
    if place == GPU_JOBS and not device.startswith("cuda"):
        return warning(check, f"{found}; with `device: {device}` no job goes there", fix)
    return fault(check, found, fix)
