"""The names of a cluster that profiles/slurm uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qkgeom.errors import UsageError

FOLDER = Path("profiles/slurm")
DEFAULT = "default-resources"
NAMES = ("profile.yaml", "config.yaml")  # Snakemake reads either


@dataclass(frozen=True)
class Profile:
    """What it says.

    Attributes:
        places: the names it gives to jobs, by where they stand: `DEFAULT` for all jobs, and the keys of set-resources, with
            `DEFAULT`'s names where they have none of their own.
        status_command: how the status of jobs is asked for, if it says.
    """

    places: Mapping[str, Mapping[str, str]]
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
        default = _resources(profile.get(DEFAULT))
        own = {place: default | _resources(names) for place, names in _by_rule(profile.get("set-resources")).items()}
        return Profile({DEFAULT: default, **own}, profile.get("slurm-status-command"))
    except OSError as error:
        raise UsageError("there is no profile for SLURM", where=path, found=error.strerror) from error
    except (yaml.YAMLError, AttributeError, ValueError, TypeError) as error:
        raise UsageError("the profile for SLURM cannot be read", where=path, found=" ".join(str(error).split())) from error


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
