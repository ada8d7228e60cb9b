"""What an audit says: findings, and a verdict per model, figure and table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

VERIFIED, IN_PART, MISMATCH = "verified", "verified in part", "mismatch"
VERDICTS = (VERIFIED, IN_PART, MISMATCH)  # from good to bad
SHOWN = 10  # findings of one kind of one part; more are counted


@dataclass(frozen=True)
class Finding:
    """Something that does not match.

    Attributes:
        where: the file.
        item: which tensor, row or entry of it; empty for the file as a whole.
        found: what is there.
        expected: what should be.
        fix: what to do.
    """

    where: str
    item: str
    found: str
    expected: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.where}: {self.item}" if self.item else self.where
        return f"{place}\n  found:    {self.found}\n  expected: {self.expected}\n  do:       {self.fix}"


@dataclass
class Part:
    """What was checked of one model, training run, figure, table or other link of the chain.

    Attributes:
        kind: `model`, `run`, `collected`, `figure` or `table`.
        name: of it.
        findings: what does not match.
        follows: files with findings of their own, made before it and read by it: where to begin.
        derived: snapshot and layer of scores that were derived anew.
        unchecked: what could not be checked, and why.
        notes: what else a reader should know.
        counts: what was checked -> how often.
        largest: score -> the largest difference from the scores derived anew.
    """

    kind: str
    name: str
    findings: list[Finding] = field(default_factory=list)
    follows: list[str] = field(default_factory=list)
    derived: set[tuple[str, str]] = field(default_factory=set)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`verified`, `verified in part` where something could not be checked, or `mismatch`."""
        return MISMATCH if self.findings or self.follows else IN_PART if self.unchecked else VERIFIED

    def found(self, where: Path, item: str, found: object, expected: object, fix: str) -> None:
        """Adds a finding."""
        self.findings.append(Finding(where.as_posix(), item, str(found), str(expected), fix))

    def about(self, where: Path) -> int:
        """How many findings there are about a file."""
        return sum(finding.where == where.as_posix() for finding in self.findings)

    def count(self, what: str, number: int = 1) -> None:
        """Counts something that was checked."""
        self.counts[what] = self.counts.get(what, 0) + number

    def differs(self, score: str, difference: float) -> None:
        """Keeps the largest difference of a score."""
        self.largest[score] = max(self.largest.get(score, 0.0), difference)
