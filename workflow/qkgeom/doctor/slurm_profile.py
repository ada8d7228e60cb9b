"""The names of a cluster that profiles/slurm uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qkgeom.errors import UsageError

FOLDER = Path("profiles/slurm")
NAMES = ("profile.yaml", "config.yaml")  # Snakemake reads either


@dataclass(frozen=True)
class Profile:
    """What it says.

    Attributes:
        partitions: every partition it names.
        has_default_partition: whether it names one for all jobs.
        accounts: every account it names.
        gpus: rule, partition (None: the cluster's default) and model (None: any) of the jobs that it gives a GPU's model
            or a partition of their own.
        status_command: how the status of jobs is asked for, if it says.
    """

    partitions: frozenset[str]
    has_default_partition: bool
    accounts: frozenset[str]
    gpus: tuple[tuple[str, str | None, str | None], ...]
    status_command: str | None


def read_profile(folder: Path) -> Profile:
    """Reads a profile's folder.

    Raises:
        UsageError: it is missing, or no profile.
    """
    import yaml

    path = next((folder / name for name in NAMES if (folder / name).exists()), folder / NAMES[0])
    try:
        profile = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        default = _resources(profile.get("default-resources"))
        rules = {rule: _resources(own) for rule, own in _by_rule(profile.get("set-resources")).items()}
    except OSError as error:
        raise UsageError("there is no profile for SLURM", where=path, found=error.strerror) from error
    except (yaml.YAMLError, AttributeError, ValueError, TypeError) as error:
        raise UsageError("the profile for SLURM cannot be read", where=path, found=" ".join(str(error).split())) from error
    every = [default, *rules.values()]
    gpus = [
        (rule, own.get("slurm_partition", default.get("slurm_partition")), own.get("gpu_model"))
        for rule, own in rules.items()
        if "gpu" in rule or "gpu_model" in own or own.get("gpu", "0") != "0"
    ]
    return Profile(
        frozenset(own["slurm_partition"] for own in every if "slurm_partition" in own),
        "slurm_partition" in default,
        frozenset(own["slurm_account"] for own in every if "slurm_account" in own),
        tuple(gpus),
        profile.get("slurm-status-command"),
    )


def _by_rule(stated: object) -> Mapping[str, object]:
    """`{rule: {name: value}}`, or the list form, `rule:name=value`."""
    if not isinstance(stated, list):
        return stated or {}
    rules: dict[str, list[str]] = {}
    for line in stated:
        rule, _, pair = line.partition(":")
        rules.setdefault(rule, []).append(pair)
    return rules


def _resources(stated: Mapping[str, object] | Iterable[str] | None) -> dict[str, str]:
    """Name -> value without quotes; `{name: value}`, or the list form, `name=value`."""
    pairs = stated.items() if isinstance(stated, Mapping) else (line.split("=", 1) for line in stated or ())
    return {name: str(value).strip().strip("'\"") for name, value in pairs}
