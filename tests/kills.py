"""A pipeline that is killed while it runs, and the rerun that the README tells."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from project import Project

logger = logging.getLogger(__name__)
# verbs of a stage, and for how many seconds one of its jobs works, about
STAGES = {
    "extract": (("extract",), 0.6),
    "train": (("train",), 6.0),
    "score": (("score",), 2.5),
    "collect": (("collect",), 0.9),
    "render": (("figure", "table"), 1.2),
}
Kill = tuple[
    str, str
]  # what: `job`, `head` (Snakemake alone) or `group` (it and all of its jobs); while which stage is at work


class KilledPipeline:
    """A project's pipeline, killed and started again until its targets are there.

    Attributes:
        kills: how often each kind hit.
        endings: of Snakemake, by exit code.
        output: of all of them.
    """

    def __init__(self, project: Project, targets: list[str], rng: random.Random):
        self.project, self.targets, self.rng = project, targets, rng
        self.kills: Counter[Kill] = Counter()
        self.endings: Counter[int] = Counter()
        self.output = ""

    def finish(self, plan: list[Kill]) -> None:
        """Kills as planned, stages in the order in which the pipeline comes to them, and types the same command again."""
        plan = list(plan)
        for _ in range(len(plan) + 2):
            head = self.start()
            while plan and head.poll() is None:
                if self._strike(head, *plan[0]):
                    plan.pop(0)
            head.wait(900)
            self.output += head.said()
            self.endings[head.returncode] += 1
            if head.returncode == 0:
                return
        raise AssertionError(f"not finished:\n{self.output[-5000:]}")

    def start(self) -> "Head":
        """What the README tells: the same command, after `--unlock` if Snakemake says that the folder is locked."""
        if -signal.SIGKILL in self.endings:
            if self.endings[-signal.SIGKILL] == 1:
                refused = self.project.snakemake(*self.targets)
                assert refused.returncode == 1 and "cannot be locked" in refused.stdout + refused.stderr
            self.project.run("--unlock", *self.targets)
        return Head(self.project.folder, self.targets)

    def end(self) -> None:
        """Ends whatever is still running."""
        for process in processes(self.project.folder):
            process.kill()

    def _strike(self, head: "Head", what: str, stage: str) -> bool:
        """Kills at a random moment after a job of the stage has been seen; False if it had ended by then."""
        verbs, seconds = STAGES[stage]
        while not (seen := list(jobs(self.project.folder, verbs))):
            if head.poll() is not None:
                return False
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, seconds))
        hit = [process for process in seen if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        if not hit or head.poll() is not None:
            return False
        if what == "job":
            self.rng.choice(hit).kill()
        else:
            head.kill()
            if what == "group":
                self.end()
            head.wait()
        self.kills[what, stage] += 1
        logger.info("kill %d of this run: %s while %s works", self.kills.total(), what, stage)
        return True


class Head(subprocess.Popen):
    """Snakemake as a person starts it, in the background."""

    def __init__(self, folder: Path, targets: list[str]):
        self.log = folder / "output"
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env.pop("PYTHONPATH", None)
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *targets]
        with self.log.open("w") as log:
            super().__init__(command, cwd=folder, env=env, stdout=log, stderr=log)

    def said(self) -> str:
        return self.log.read_text()


def processes(folder: Path) -> Iterator[psutil.Process]:
    """All that work in this folder."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.cwd() == str(folder):
                yield process
        except psutil.Error:  # ended, or another user's
            continue


def jobs(folder: Path, verbs: tuple[str, ...]) -> Iterator[psutil.Process]:
    """The processes that carry out one of these verbs in this folder."""
    for process in processes(folder):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words[1:3] == ["-m", "qkgeom"] and words[3] in verbs:
            yield process
