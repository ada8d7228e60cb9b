"""What timm's layouts have in common: sizes by the name of the architecture.

timm's config.json names the architecture but not its heads: they are in its `model_args`, or in the table beside each
layout, which `make timm-table` writes from timm itself.
"""

from __future__ import annotations

import csv
import json
from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qkgeom.layouts.base import Layout


class Timm(Layout):
    """A layout of timm.

    Attributes:
        modules: the modules of `timm.models` whose classes it reads; others may use the same names for other attentions.
        columns: our name of a size, a column of the table -> timm's argument.
    """

    modules: tuple[str, ...]
    columns: dict[str, str]

    @property
    def table(self) -> Path:
        """The file with the sizes of each architecture."""
        return self.file.with_suffix(".tsv")

    def architectures(self) -> dict[str, dict[str, object]]:
        """The sizes of each architecture that timm names."""
        return _read(self.table)

    def reads(self, config):
        return super().reads(config) or architecture(config) in self.architectures()

    def sizes(self, config):
        known = self.architectures().get(architecture(config), {})
        arguments = config.get("model_args") or {}
        given = {ours: arguments[theirs] for ours, theirs in self.columns.items() if theirs in arguments}
        return known | given | dict(config)

    def config_of(self, module: object) -> dict[str, object] | None:
        """What stands for the config.json of a timm model in memory, or None if this layout does not read it."""
        known = type(module).__module__.rpartition(".")[2] in self.modules
        sizes = self.sizes_of(module) if known else None
        return sizes and {"model_type": self.name, **sizes}

    @abstractmethod
    def sizes_of(self, module: object) -> dict[str, object] | None:
        """The sizes of a model of `modules`, or None if its attention is not stored in this layout's way."""


def architecture(config: Mapping[str, object]) -> str:
    """The architecture that a timm config names, without the tag of its weights."""
    return str(config.get("architecture")).partition(".")[0]


@cache
def _read(table: Path) -> dict[str, dict[str, object]]:
    with table.open(newline="") as file:
        return {
            row.pop("architecture"): {column: json.loads(cell) for column, cell in row.items()}
            for row in csv.DictReader(file, delimiter="\t")
        }
