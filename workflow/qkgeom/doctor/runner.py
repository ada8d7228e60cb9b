"""Asks every check at once, each in a thread of its own, and waits for none of them for ever."""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import TypeVar

from qkgeom.doctor.finding import SET_UP, Case, Finding, fault, warning
from qkgeom.errors import QkgeomError

K = TypeVar("K")  # PEP 695 needs Python 3.12
V = TypeVar("V")
CHECKS = ("python", "packages", "settings", "disk", "gpu", "hub", "index", "slurm", "folder")  # in the order of the answer


def examine(case: Case, checks: Iterable[str] = CHECKS) -> list[Finding]:
    """What every check found, in order; of a check that did not answer in time, what it had found until then."""
    found: dict[str, list[Finding]] = {name: [] for name in checks}
    in_time = in_threads(lambda name: _look(name, case, found[name]), found, len(found), case.deadline)
    for name in found.keys() - in_time.keys():
        fix = "something that it asks hangs (a file system, a server, a command): try it by hand"
        found[name].append(warning(name, "no answer in time", fix))
    return [finding for findings in found.values() for finding in findings]


def _look(name: str, case: Case, found: list[Finding]) -> None:
    """Adds one check's findings to `found`, whatever happens to it."""
    try:
        for finding in _module(name).examine(case):
            found.append(finding)  # one by one: what is found in time counts
    except ImportError as error:
        found.append(fault(name, f"not checked, since a package is missing or broken: {error}", SET_UP))
    except QkgeomError as error:
        found.append(warning(name, f"not checked: {error.what}", "mend that first (see `settings`)"))
    except Exception as error:
        found.append(warning(name, f"the check itself failed: {type(error).__name__}: {error}", "report it, please"))


def _module(check: str) -> ModuleType:
    """A check's module, or why it cannot be imported.

    A module whose import fails in one thread lacks names in another that waited for it; that one imports it again, for the
    reason, at most once for each check that fails so.
    """
    for _ in CHECKS:
        try:
            return importlib.import_module(f"qkgeom.doctor.check_{check}")
        except ImportError as error:
            broken = error
            if not (error.name or "").startswith("qkgeom."):
                break
    raise broken


def in_threads(question: Callable[[K], V], items: Iterable[K], slots: int, deadline: float) -> Mapping[K, V]:
    """The answers that come before the deadline. Threads that still wait then are left behind, and die with the process."""
    waiting: queue.SimpleQueue[K] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[K, V]] = queue.SimpleQueue()
    for item in (items := list(items)):
        waiting.put(item)

    def work() -> None:
        with suppress(queue.Empty):
            while time.monotonic() < deadline:
                item = waiting.get_nowait()
                answers.put((item, question(item)))

    for _ in range(min(slots, len(items))):
        threading.Thread(target=work, daemon=True).start()
    given: dict[K, V] = {}
    with suppress(queue.Empty):
        while len(given) < len(items):
            item, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            given[item] = answer
    return given
