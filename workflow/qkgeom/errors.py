"""The errors qkgeom raises on purpose: one readable message each, and what the pipeline does about it."""

from __future__ import annotations


class QkgeomError(Exception):
    """Something that a person can understand and mend.

    Args:
        what: one sentence, what is wrong.
        where: the file, table row or tensor it is about.
        found: what is there.
        expected: what should be there.
        fix: what to do.

    Attributes:
        what, fix: see there.
        details: the others, in a line.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        found: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> None:
        parts = {"where": where, "found": found, "expected": expected, "do": fix}
        lines = [f"  {label + ':':<10}{text}" for label, text in parts.items() if text is not None]
        super().__init__("\n".join([what, *lines]))
        self.what, self.fix = what, fix
        self.details = "; ".join(
            f"{label}: {parts[label]}" for label in ("where", "found", "expected") if parts[label] is not None
        )


class UsageError(QkgeomError):
    """The command line, the configuration or a table asks for something impossible."""

    exit_code = 2


class ModelFault(QkgeomError):
    """A permanent fault of one model (gated, missing, unreadable): the pipeline records it and goes on without it."""


class AccessRefused(ModelFault):
    """A model that whoever asks may not read: it is gated, its licence is not accepted, or the token is wrong."""


class TransientFault(QkgeomError):
    """A fault that may pass (network, full disk): the step fails and may be tried again."""


class DiskFault(TransientFault):
    """This machine's disk refuses a write. It says nothing of a model, so it is never recorded as a model's fault."""


# What a step of the pipeline records of a model instead of failing, so that the run goes on without it.
RECORDED: dict[str, tuple[type[QkgeomError], ...]] = {
    "none": (),
    "lasting": (ModelFault,),
    "all": (ModelFault, TransientFault),
}
