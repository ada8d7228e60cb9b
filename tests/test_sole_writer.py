"""One job at a time writes an output: locks of jobs, of the Snakemake that started them, and orphans."""

import ast
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from project import ROOT
from qkgeom import sole_writer
from qkgeom.errors import TransientFault

WORKFLOW = ROOT / "workflow"
HEAD = """
import os, sys
from qkgeom.sole_writer import VARIABLE, begin_invocation
begin_invocation()
print(os.environ[VARIABLE], flush=True)
sys.stdin.read()
"""
JOB = """
import sys
from pathlib import Path
from qkgeom.console import set_up_logging
from qkgeom.sole_writer import be_sole_writer
set_up_logging()
be_sole_writer(*map(Path, sys.argv[1:]))
print("writes", flush=True)
sys.stdin.read()
"""


class Stage:
    """A folder with processes that stand for Snakemake and its jobs."""

    def __init__(self, folder: Path):
        self.folder, self.processes = folder, []

    def start(self, code: str, *arguments: str, **environment: str) -> subprocess.Popen:
        env = {**os.environ, "PYTHONPATH": str(WORKFLOW), **environment}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=self.folder, env=env, text=True, **pipes)
        self.processes.append(process)
        return process

    def head(self) -> tuple[subprocess.Popen, str]:
        head = self.start(HEAD)
        return head, head.stdout.readline().strip()

    def job(self, invocation: str, *outputs: str, **environment: str) -> subprocess.Popen:
        return self.start(JOB, *outputs, **{sole_writer.VARIABLE: invocation}, **environment)


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    for process in stage.processes:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def has_not_begun(job: subprocess.Popen) -> bool:
    """Whether a job says nothing for longer than one takes to begin."""
    return not select.select([job.stdout], [], [], 2.0)[0] and job.poll() is None


def test_a_second_job_of_an_output_waits_for_the_first(stage):
    _, invocation = stage.head()
    first = stage.job(invocation, "results/runs/a", SLURM_JOB_ID="17")
    assert first.stdout.readline() == "writes\n"
    other = stage.job(invocation, "results/runs/b")
    second = stage.job(invocation, "results/runs/b/../a", "results/runs/c")
    assert other.stdout.readline() == "writes\n" and has_not_begun(second)
    kill(first)
    assert second.stdout.readline() == "writes\n"
    _, log = second.communicate()
    assert f"runs/a is being written by process {first.pid} on " in log and "SLURM job 17; waiting" in log


def test_jobs_of_a_killed_snakemake_end_when_another_begins(stage):
    head, invocation = stage.head()
    job = stage.job(invocation, "results/runs/a")
    assert job.stdout.readline() == "writes\n"
    kill(head)
    with pytest.raises(subprocess.TimeoutExpired):  # nobody has begun
        job.wait(2 * sole_writer.INTERVAL)
    _, next_invocation = stage.head()
    assert job.wait(10 * sole_writer.INTERVAL) == -signal.SIGTERM
    assert "another has begun since; ending" in job.stderr.read()
    late = stage.job(invocation, "results/runs/a")  # it waited in a cluster's queue
    assert late.wait(30) == 1 and late.stdout.read() == ""
    assert "the Snakemake that started this job is gone" in late.stderr.read()
    assert stage.job(next_invocation, "results/runs/a").stdout.readline() == "writes\n"


def test_a_stopped_orphan_is_waited_for_and_does_not_write_later(stage):
    head, invocation = stage.head()
    orphan = stage.job(invocation, "results/runs/a")
    assert orphan.stdout.readline() == "writes\n"
    orphan.send_signal(signal.SIGSTOP)
    kill(head)
    _, next_invocation = stage.head()
    job = stage.job(next_invocation, "results/runs/a")
    assert has_not_begun(job)
    orphan.send_signal(signal.SIGCONT)
    assert job.stdout.readline() == "writes\n" and orphan.wait(0) == -signal.SIGTERM


def test_two_snakemakes_that_live_do_not_disturb_each_other(stage):
    (first, invocation), (_, second) = stage.head(), stage.head()
    jobs = [stage.job(each, f"results/models/{number}") for number, each in enumerate((invocation, second))]
    assert [job.stdout.readline() for job in jobs] == ["writes\n"] * 2
    assert not any(sole_writer.is_orphan(Path(each)) for each in (invocation, second))
    kill(first)
    assert sole_writer.is_orphan(Path(invocation)) and not sole_writer.is_orphan(Path(second))


def test_orphans_whose_results_were_deleted_are_orphans(stage):
    head, invocation = stage.head()
    kill(head)
    shutil.rmtree(stage.folder / "results")
    assert not sole_writer.is_orphan(Path(invocation))
    stage.head()
    assert sole_writer.is_orphan(Path(invocation))


def test_lock_files_of_ended_snakemakes_are_removed(stage):
    for _ in range(3):
        head, invocation = stage.head()
        kill(head)
    living, _ = stage.head()
    assert living.poll() is None
    numbers = [path.name.partition("-")[0] for path in Path(invocation).parent.iterdir()]
    assert numbers == ["4"]


def test_who_types_a_step_by_hand_waits_for_nobody(stage):
    _, invocation = stage.head()
    assert stage.job(invocation, "results/runs/a").stdout.readline() == "writes\n"
    assert stage.job("", "results/runs/a").stdout.readline() == "writes\n"


def test_processes_of_one_job_share_its_lock(stage):
    """A job's other ranks, started by srun or torchrun, and what it starts itself."""
    _, invocation = stage.head()
    assert stage.job(invocation, "results/runs/a", SLURM_PROCID="0").stdout.readline() == "writes\n"
    for name in ("RANK", "SLURM_PROCID"):
        assert stage.job(invocation, "results/runs/a", **{name: "1"}).stdout.readline() == "writes\n"
    code = JOB.replace("print(", "import os; print(os.environ.get('QKGEOM_INVOCATION'), ")
    assert stage.start(code, "results/b", QKGEOM_INVOCATION=invocation).stdout.readline() == "None writes\n"


def test_a_results_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").write_text("")
    with pytest.raises(TransientFault, match=r"\.invocations.*\n.*results"):
        sole_writer.begin_invocation()


def test_every_step_of_the_pipeline_is_the_sole_writer_of_its_output():
    rules = "".join(path.read_text() for path in sorted((WORKFLOW / "rules").glob("*.smk")))
    verbs = set(re.findall(r"-m qkgeom (\w+)", rules))
    assert {"extract", "train", "score", "collect", "figure", "table"} <= verbs
    for verb in sorted(verbs):
        tree = ast.parse((WORKFLOW / f"qkgeom/verbs/{verb}.py").read_text())
        called = {getattr(node.func, "id", None) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert "be_sole_writer" in called, verb
