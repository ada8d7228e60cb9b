"""Series of checkpoints: the training steps that a row of models.tsv lists, and the URI of each.

Steps ascend and are separated by commas. An item is one of

    1000                one step
    1..512*2            1, 2, 4, ..., 512
    1000..9000+2000     1000, 3000, ..., 9000
    300=step300-1B      a step and the name that the URI says it by

Of these a single step may end in `@` and a commit, which then stands for the revision: models.lock pins it so. The URI has
one placeholder: `{step}`, `{k}` (thousands of steps) or, where every step has a name, `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from qkgeom.errors import UsageError

_STEP, _PACE = r"(?:0|[1-9]\d{0,11})", r"[1-9]\d{0,11}"
_ITEM = re.compile(
    rf"(?P<first>{_STEP})(?:\.\.(?P<last>{_STEP})(?P<way>[+*])(?P<pace>{_PACE})"
    r"|(?:=(?P<name>[\w./-]+))?(?:@(?P<commit>[0-9a-f]{40}))?)",
    re.ASCII,
)
_PLACEHOLDER = re.compile(r"\{(step|k|name)\}")
MOST = 1000  # steps of one range; more is a mistake


@dataclass(frozen=True)
class _Step:
    number: int
    name: str | None = None
    commit: str | None = None


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
    return [(str(step.number), _uri(uri, step, *used)) for step in _all_steps(series)]


def pinned(series: str, commits: Mapping[str, str]) -> str:
    """The same series with commits (by step), one item for each step.

    Raises:
        UsageError: see `snapshots`.
    """
    if not commits:
        return series
    items = []
    for step in _all_steps(series):
        commit = commits.get(str(step.number), step.commit)
        items.append(f"{step.number}" + (f"={step.name}" if step.name else "") + (f"@{commit}" if commit else ""))
    return ",".join(items)


def _all_steps(series: str) -> list[_Step]:
    steps = [each for item in series.split(",") for each in _steps(item.strip())]
    for step, following in pairwise(steps):
        if following.number <= step.number:
            found = f"{following.number} after {step.number}"
            raise _wrong("the steps of a series do not ascend", found, "each step once, in order")
    return steps


def _steps(item: str) -> list[_Step]:
    """The steps of one item."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise _wrong("an item of a series is not understood", item or "nothing", "1000, 1..512*2, 1000..9000+2000 or 300=NAME")
    steps = [int(match["first"])]
    if match["last"] is None:
        return [_Step(steps[0], match["name"], match["commit"])]
    last, pace = int(match["last"]), int(match["pace"])
    while steps[-1] < last and len(steps) < MOST:
        steps.append(steps[-1] * pace if match["way"] == "*" else steps[-1] + pace)
    if steps[-1] != last:
        raise _wrong("a range of steps does not meet its last step", item, f"{last}, after at most {MOST} steps")
    return [_Step(step) for step in steps]


def _uri(uri: str, step: _Step, placeholder: str) -> str:
    """The URI of a step's checkpoint."""
    uri = _PLACEHOLDER.sub(_said(step.number, step.name, placeholder), uri)
    if step.commit is None:
        return uri
    if ":" in uri and not uri.startswith(("hf:", "timm:")):
        raise _wrong(
            "a step of a series that is not on the model hub has a commit", f"{step.number}@{step.commit}", "no commit"
        )
    return f"{uri.partition('@')[0]}@{step.commit}"


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
