"""One job at a time writes an output, and none of an earlier Snakemake whose place another has taken.

A job outlives its Snakemake where that is killed, or lies on a cluster; and a cluster may start a job twice. So each job holds
a lock per output until it ends, for which a later job of the same output waits. An invocation of Snakemake holds a lock,
too: when it is gone and another has begun, its jobs are orphans, which end themselves (training saves its state first), and
those that have not begun do not. What is typed by hand takes no lock. All of it lies in `results/`, so that it works over the
nodes of a cluster, where their file system has locks; without them nothing is waited for.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from qkgeom.errors import QkgeomError
from qkgeom.files import locked, refused

logger = logging.getLogger(__name__)
RESULTS = Path("results")
INVOCATIONS, OUTPUTS = ".invocations", ".writing"  # folders of lock files; the first one's names are <number>-<random>
VARIABLE = "QKGEOM_INVOCATION"  # holds the lock file of the Snakemake that started a job
INTERVAL = 2.0  # seconds between looks at whether a job is an orphan
GRACE = 2.0  # seconds in which the Snakemake of an ended job, on a cluster, removes what it left
_held: list[IO[bytes]] = []  # open until this process ends, and with it the locks


def begin_invocation() -> None:
    """Makes this process the Snakemake of the jobs that it starts from now on.

    Raises:
        TransientFault: the results folder cannot be written.
    """
    folder = RESULTS.resolve() / INVOCATIONS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        last = max((_number(path) for path in _lock_files(folder)), default=0)
        for number in itertools.count(last + 1):
            mine = folder / f"{number}-{uuid.uuid4().hex[:12]}"
            file = mine.open("xb")
            if locked(file, without_locks=True) and mine.exists():  # else another one that begins has taken it for left
                break
        _held.append(file)
        for other in _lock_files(folder):
            if other != mine and _is_left(other):
                other.unlink(missing_ok=True)
    except OSError as error:
        raise refused(folder, error) from error
    os.environ[VARIABLE] = str(mine)


def is_orphan(invocation: Path) -> bool:
    """Whether the Snakemake with this lock file is gone and another has begun since."""
    others = [path for path in _lock_files(invocation.parent) if path != invocation]
    if not invocation.exists():  # another has removed it, or `results/` is a new one
        return bool(others)
    return any(_number(path) > _number(invocation) for path in others) and _is_left(invocation)


def refuse_if_orphan() -> None:
    """For a cluster's job, before its own Snakemake touches a file.

    Raises:
        QkgeomError: this is a job of a Snakemake that is gone, and another has begun since.
    """
    if (invocation := os.environ.get(VARIABLE)) and is_orphan(Path(invocation)):
        raise _orphaned()


def be_sole_writer(*outputs: Path) -> None:
    """Takes the outputs' locks until this process ends, when no other has them; outside a pipeline does nothing.

    From then on the process is told to stop (SIGTERM) when it is an orphan. Processes that it starts take no locks.

    Args:
        outputs: files or folders that nobody else may write.

    Raises:
        QkgeomError: this is a job of a Snakemake that is gone, and another has begun since.
        TransientFault: the results folder cannot be written.
    """
    if not (invocation := os.environ.pop(VARIABLE, None)) or _is_further_rank():
        return
    mine = Path(invocation)
    folder = mine.parent.with_name(OUTPUTS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # in one order for all jobs, so that none waits for another that waits for it
        for output in sorted({os.path.relpath(each.resolve(), folder.parent) for each in outputs}):
            file = (folder / quote(output, safe="")).open("a+b")
            _wait_for(file, output, mine)
            file.truncate(0)
            file.write(_who().encode())
            file.flush()
            _held.append(file)
    except OSError as error:
        raise refused(folder, error) from error
    if is_orphan(mine):
        raise _orphaned()
    threading.Thread(target=_end_when_orphan, args=[mine], daemon=True).start()


def _wait_for(file: IO[bytes], output: str, invocation: Path) -> None:
    waited = False
    while not locked(file, without_locks=True):
        if is_orphan(invocation):
            raise _orphaned()
        if not waited:
            file.seek(0)
            logger.info("%s is being written by %s; waiting until that ends", output, file.read().decode() or "another job")
        waited = True
        time.sleep(INTERVAL / 4)
    if waited:
        time.sleep(GRACE)


def _end_when_orphan(invocation: Path) -> None:
    while not is_orphan(invocation):
        time.sleep(INTERVAL)
    logger.warning("%s; ending", _orphaned().what)
    os.kill(os.getpid(), signal.SIGTERM)


def _orphaned() -> QkgeomError:
    what = "the Snakemake that started this job is gone, and another has begun since"
    return QkgeomError(what, fix="nothing: the other one makes what is missing")


def _is_further_rank() -> bool:
    """Whether this is one of several processes of a job, and not the first."""
    return any(int(os.environ.get(name) or 0) for name in ("RANK", "SLURM_PROCID"))


def _who() -> str:
    job = f", SLURM job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
    return f"process {os.getpid()} on {socket.gethostname()}{job}"


def _lock_files(folder: Path) -> Iterator[Path]:
    return folder.glob("[0-9]*-*")


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _is_left(path: Path) -> bool:
    """Whether nobody holds a lock file's lock."""
    try:
        with path.open("rb") as file:
            return locked(file, without_locks=False, shared=True)  # two that look do not see each other
    except FileNotFoundError:
        return True
