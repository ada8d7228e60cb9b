"""What SLURM's commands print."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GPU = re.compile(r"gpu(?::(?P<model>[A-Za-z_][\w.-]*))?(?::\d+)?(?:\([^)]*\))?")


@dataclass(frozen=True)
class Partition:
    """A partition.

    Attributes:
        name: as jobs name it.
        default: whether jobs that name none go there.
        up: whether it runs jobs.
        gpus: the models of its GPUs, as its gres names them; "" for those without a name.
    """

    name: str
    default: bool
    up: bool
    gpus: frozenset[str]


def read_partitions(text: str) -> dict[str, Partition]:
    """The partitions by name, from `sinfo --noheader --format=%P|%a|%G`, which has a line for each kind of node."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        if line.count("|") != 2:
            continue
        label, state, gres = (each.strip() for each in line.split("|"))
        name = label.rstrip("*")
        gpus = frozenset(
            match["model"] or "" for match in _GPU.finditer(gres) if match.start() == 0 or gres[match.start() - 1] == ","
        )
        before = found[name].gpus if name in found else frozenset()
        found[name] = Partition(name, label.endswith("*"), state == "up", before | gpus)
    return found


def setting(config: str, name: str) -> str | None:
    """A line of `scontrol show config`."""
    match = re.search(rf"^{name}\s*=[ \t]*(.*?)[ \t]*$", config, re.MULTILINE)
    return match[1] if match else None
