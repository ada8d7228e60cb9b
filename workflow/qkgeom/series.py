"""Series of checkpoints: the training steps that a row of models.tsv lists, and the URI of each.

Steps ascend and are separated by commas. An item is one of

    1000                one step
    1..512*2            1, 2, 4, ..., 512
    1000..9000+2000     1000, 3000, ..., 9000
    300=step300-1B      a step and the name that the URI says it by

The URI has one placeholder: `{step}`, `{k}` (thousands of steps) or, where every step has a name, `{name}`.
"""

from __future__ import annotations

import re
from itertools import pairwise

from qkgeom.errors import UsageError

_STEP, _PACE = r"(?:0|[1-9]\d{0,11})", r"[1-9]\d{0,11}"
_ITEM = re.compile(rf"(?P<first>{_STEP})(?:\.\.(?P<last>{_STEP})(?P<way>[+*])(?P<pace>{_PACE})|=(?P<name>[\w./-]+))?", re.ASCII)
_PLACEHOLDER = re.compile(r"\{(step|k|name)\}")
MOST = 1000  # steps of one range; more is a mistake


def placeholders(uri: str) -> set[str]:
    """The placeholders of a URI: a series has one, a single checkpoint none."""
    return set(_PLACEHOLDER.findall(uri))


def snapshots(uri: str, series: str) -> list[tuple[str, str]]:
    """The snapshots of a series in order: step, and the URI of its checkpoint.

    Args:
        uri: with a placeholder, e.g. `hf:EleutherAI/pythia-160m@step{step}`.
        series: e.g. `0,1..512*2,1000..143000+2000`.

    Raises:
        UsageError: the steps do not follow the grammar or do not ascend, or do not fit the placeholder.
    """
    used = placeholders(uri)
    if len(used) != 1:
        raise _wrong("the URI of a series has no place for the step, or several", uri, "one of {step}, {k} and {name}")
    steps = [each for item in series.split(",") for each in _steps(item.strip())]
    for (step, _), (following, _) in pairwise(steps):
        if following <= step:
            raise _wrong("the steps of a series do not ascend", f"{following} after {step}", "each step once, in order")
    return [(str(step), _PLACEHOLDER.sub(_said(step, name, *used), uri)) for step, name in steps]


def _steps(item: str) -> list[tuple[int, str | None]]:
    """The steps of one item, each with its name if it has one."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise _wrong("an item of a series is not understood", item or "nothing", "1000, 1..512*2, 1000..9000+2000 or 300=NAME")
    steps = [int(match["first"])]
    if match["last"] is None:
        return [(steps[0], match["name"])]
    last, pace = int(match["last"]), int(match["pace"])
    while steps[-1] < last and len(steps) < MOST:
        steps.append(steps[-1] * pace if match["way"] == "*" else steps[-1] + pace)
    if steps[-1] != last:
        raise _wrong("a range of steps does not meet its last step", item, f"{last}, after at most {MOST} steps")
    return [(step, None) for step in steps]


def _said(step: int, name: str | None, placeholder: str) -> str:
    """What stands for a step in the URI."""
    if (placeholder == "name") != (name is not None):
        found = f"{step}={name}" if name else step
        expected = f"{step}=NAME" if placeholder == "name" else step
        raise _wrong(f"a step of a series does not fit {{{placeholder}}} in its URI", found, expected)
    if placeholder == "k" and step % 1000:
        raise _wrong("a step of a series does not fit {k} in its URI", step, "a multiple of 1000")
    return {"step": str(step), "k": str(step // 1000), "name": name}[placeholder]


def _wrong(what: str, found: object, expected: object) -> UsageError:
    return UsageError(what, found=found, expected=expected, fix="see workflow/qkgeom/series.py for the grammar")
