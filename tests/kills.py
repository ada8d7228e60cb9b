"""A pipeline that is killed while it runs, and the rerun that the README tells."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from project import Project

logger = logging.getLogger(__name__)
STAGES = {"extract": ["extract"], "train": ["train"], "score": ["score"], "collect": ["collect"], "render": ["figure", "table"]}
KINDS = ("job", "head", "group")  # one job, Snakemake alone, or it and all of its jobs


class Moments:
    """When after a job was first seen it is killed: at random, within about the time that such jobs take on this machine now.

    A kill that came too late was one of a shorter job than was thought, and one that hit may have been one of a longer job.
    """

    SHORTER, LONGER = 0.6, 1.15

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.seconds = dict.fromkeys(STAGES, 2.0)

    def draw(self, stage: str) -> float:
        return self.rng.uniform(0, self.seconds[stage])

    def learn(self, stage: str, hit: bool) -> None:
        self.seconds[stage] *= self.LONGER if hit else self.SHORTER


class KilledPipeline:
    """A project's pipeline, killed and started again until its targets are there.

    Attributes:
        kills: how often each kind hit each stage, (kind, stage).
        endings: exit codes of Snakemake.
        output: of all of them.
    """

    def __init__(self, project: Project, targets: list[str], rng: random.Random, moments: Moments):
        self.project, self.targets, self.rng, self.moments = project, targets, rng, moments
        self.kills: Counter[tuple[str, str]] = Counter()
        self.endings: list[int] = []
        self.output = ""

    def finish(self, planned: dict[str, int], kinds: list[str]) -> None:
        """Kills, and types the same command again, until the targets are there.

        Args:
            planned: how many kills each stage gets, while it is at work; fewer where its jobs end too soon.
            kinds: of kills, from which each is drawn.
        """
        left = Counter(planned)
        for _ in range(left.total() + 2):
            head = self.start()
            while +left and head.poll() is None:
                if stage := self._strike(head, [stage for stage in STAGES if left[stage]], self.rng.choice(kinds)):
                    left[stage] -= 1
            head.wait(900)
            self.output += head.said()
            self.endings.append(head.returncode)
            if head.returncode == 0:
                return
        raise AssertionError(f"not finished:\n{self.output[-5000:]}")

    def start(self) -> "Head":
        """What the README tells: the same command, after `--unlock` if Snakemake says that the folder is locked."""
        if self.endings and self.endings[-1] == -signal.SIGKILL:
            if self.endings.count(-signal.SIGKILL) == 1:
                refused = self.project.snakemake(*self.targets)
                assert refused.returncode == 1 and "cannot be locked" in refused.stdout + refused.stderr
            self.project.run("--unlock", *self.targets)
        return Head(self.project.folder, self.targets)

    def end(self) -> None:
        """Ends whatever is still running."""
        for process in processes(self.project.folder):
            process.kill()

    def _strike(self, head: "Head", stages: list[str], kind: str) -> str | None:
        """Kills at a random moment after a job of a stage has been seen; the stage, or None if that job has ended by then."""
        while not (seen := {stage: found for stage in stages if (found := list(jobs(self.project.folder, STAGES[stage])))}):
            if head.poll() is not None:
                return None
            time.sleep(0.01)
        stage = self.rng.choice(list(seen))
        time.sleep(self.moments.draw(stage))
        working = [process for process in seen[stage] if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        hit = bool(working) and head.poll() is None
        self.moments.learn(stage, hit)
        if not hit:
            return None
        if kind == "job":
            self.rng.choice(working).kill()
        else:
            head.kill()
            if kind == "group":
                self.end()
            head.wait()
        self.kills[kind, stage] += 1
        logger.info("kill %d of this run: %s while %s works", self.kills.total(), kind, stage)
        return stage


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


def jobs(folder: Path, verbs: Collection[str]) -> Iterator[psutil.Process]:
    """The processes that carry out one of these verbs in this folder."""
    for process in processes(folder):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words[1:3] == ["-m", "qkgeom"] and words[3] in verbs:
            yield process
