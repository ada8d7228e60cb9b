"""Checks of configuration and table rows against the JSON Schemas of workflow/schemas/."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qkgeom.errors import UsageError

FOLDER = Path(__file__).parents[1] / "schemas"


@cache
def schema(name: str) -> dict[str, object]:
    """The schema `config`, `preset` or `models`."""
    import yaml

    return yaml.safe_load((FOLDER / f"{name}.schema.yaml").read_text(encoding="utf-8"))


def require_valid(value: Mapping[str, object], name: str, where: object) -> None:
    """Checks `value` against a schema.

    Raises:
        UsageError: it does not fit; the message names the key, what was found and what is expected.
    """
    from jsonschema import Draft202012Validator

    error = next(iter(sorted(Draft202012Validator(schema(name)).iter_errors(value), key=lambda e: list(e.path))), None)
    if error is None:
        return
    key = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = sorted(set(error.instance) - set(known))
        close = difflib.get_close_matches(unknown[0], known, n=1)
        raise UsageError(
            f"unknown key {', '.join(unknown)}",
            where=where,
            expected=", ".join(known),
            fix=f"did you mean {close[0]}?" if close else "remove it",
        )
    if error.validator == "required":
        missing = [name for name in error.schema["required"] if name not in error.instance]
        raise UsageError(f"{', '.join(missing)} is missing", where=where, fix="add it")
    expected = error.schema.get("description") if error.validator in ("pattern", "oneOf") else None
    expected = expected or f"{error.validator} {error.validator_value}"
    fix = "write numbers with a point and an exponent's sign: 5.0e-5" if _like_a_number(error.instance) else None
    raise UsageError(
        f"{key} has a value that is not allowed", where=where, found=repr(error.instance), expected=expected, fix=fix
    )


def _like_a_number(value: object) -> bool:
    """Whether it is a text that YAML does not take for a number, and a person would: 5e-5."""
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False
