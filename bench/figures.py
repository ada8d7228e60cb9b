"""What a benchmark gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkgeom.errors import QkgeomError


@dataclass(frozen=True)
class Figure:
    """One measured number and what it should be.

    Attributes:
        name: what was measured.
        value: finite.
        unit: of value and target.
        target: at least this, or at most.
        at_most: whether less is better.
        detail: what stands behind the value, for the table.

    Raises:
        QkgeomError: the value is not a finite number.
    """

    name: str
    value: float
    unit: str
    target: float
    at_most: bool = False
    detail: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise QkgeomError("a benchmark measured no number", where=self.name, found=self.value)

    @property
    def holds(self) -> bool:
        """Whether the value reaches the target."""
        return self.value <= self.target if self.at_most else self.value >= self.target

    def record(self) -> dict[str, object]:
        """The entry of the JSON file."""
        kept = ("name", "value", "unit", "target", "holds")
        return {key: getattr(self, key) for key in kept}
