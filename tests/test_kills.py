"""SIGKILL at random moments, of Snakemake and of its jobs: the same command again ends with the same files."""

import random
import shutil
import signal
from collections import Counter

import pytest

from kills import KINDS, STAGES, Head, KilledPipeline, Moments, jobs
from project import Project
from slurm_cluster import wait_until
from tiny_pipeline import RUN, TARGETS, contents, create

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(3000)]  # five minutes on a machine that does nothing else
SEED = 6
ENOUGH = 30  # kills that hit, each stage and each kind among them
MOST = 12  # run-throughs
PLANNED = {"extract": 4, "train": 3, "score": 4, "collect": 2, "render": 3}  # kills per run-through, of each stage
PRESET = "workflow/presets/mini.yaml"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The project after a run in its own process."""
    project = create(tmp_path_factory.mktemp("kills") / "undisturbed", steps=60, save_every=10)
    project.run(*TARGETS, OMP_NUM_THREADS="1")
    return project


def fresh(undisturbed: Project, folder) -> Project:
    """The same project, before its first run."""
    project = undisturbed.copy(folder)
    for name in ("results", ".snakemake"):
        shutil.rmtree(project.folder / name)
    return project


def test_the_same_command_again_ends_with_the_same_files(undisturbed, tmp_path, record_property):
    wanted = contents(undisturbed.folder)
    assert {f"results/runs/{RUN}/losses.csv", f"results/models/{RUN}/scores.csv", *TARGETS} <= set(wanted)
    rng, kills, rounds = random.Random(SEED), Counter(), 0
    moments = Moments(rng)
    unhit = [set(STAGES), set(KINDS)]
    while (kills.total() < ENOUGH or any(unhit)) and rounds < MOST:
        rounds += 1
        pipeline = KilledPipeline(fresh(undisturbed, tmp_path / str(rounds)), TARGETS, rng, moments)
        planned = PLANNED if kills.total() < ENOUGH else {stage: PLANNED[stage] for stage in unhit[0] or STAGES}
        try:
            pipeline.finish(planned, sorted(unhit[1]) or ["job", *KINDS])
        finally:
            pipeline.end()
        found = contents(pipeline.project.folder)
        assert set(found) == set(wanted)
        assert [name for name in wanted if found[name] != wanted[name]] == []
        of_jobs = sum(number for (kind, _), number in pipeline.kills.items() if kind == "job")
        assert pipeline.endings.count(1) <= of_jobs, pipeline.output[-5000:]  # nothing else has failed
        kills += pipeline.kills
        unhit = [set(STAGES) - {stage for _, stage in kills}, set(KINDS) - {kind for kind, _ in kills}]
    report = [f"{stage} " + ", ".join(f"{kills[kind, stage]} {kind}" for kind in KINDS) for stage in STAGES]
    told = f"kills, seed {SEED}: {kills.total()} hit ({'; '.join(report)}); {rounds} runs, all finished and identical"
    record_property("told", told)
    assert kills.total() >= ENOUGH and not any(unhit), told


def test_an_orphan_does_not_write_into_the_next_run(undisturbed, tmp_path):
    """A training job of a longer schedule, which is stopped while Snakemake is killed, and goes on while the next one waits."""
    project = fresh(undisturbed, tmp_path / "project")
    preset = (project.folder / PRESET).read_text()
    assert "steps: 60," in preset
    project.write(PRESET, preset.replace("steps: 60,", "steps: 100000,"))
    run = project.folder / "results/runs" / RUN
    first = Head(project.folder, [f"results/runs/{RUN}/done.json"])
    again = None
    try:
        wait_until(lambda: list(run.glob("state/checkpoint-*/sealed.json")) or first.poll() is not None, 600)
        [orphan] = jobs(project.folder, ("train",))
        orphan.send_signal(signal.SIGSTOP)
        first.kill()
        first.wait()
        project.write(PRESET, preset)
        project.run("--unlock")
        again = Head(project.folder, TARGETS)
        log = project.folder / f"results/mini/logs/train/{RUN}.log"
        wait_until(lambda: log.exists() and f"is being written by process {orphan.pid} on " in log.read_text(), 600)
        assert again.poll() is None and orphan.is_running()
        orphan.send_signal(signal.SIGCONT)
        assert again.wait(900) == 0, again.said()[-3000:]
        assert not orphan.is_running()
        assert contents(project.folder) == contents(undisturbed.folder)
    finally:
        for process in (first, again):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        for process in jobs(project.folder, ("train",)):
            process.kill()
