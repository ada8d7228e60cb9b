"""A run by two processes on a real SLURM of one node, stopped by `scancel`: it saves its state, and the next job goes on."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

import slurm_cluster
from project import Project
from slurm_cluster import running_cluster, wait_until
from test_slurm import fill_in_the_site
from tiny_pipeline import RUN, TRAINING

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.timeout(720),
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing()),
]

DONE = f"results/runs/{RUN}/done.json"
SNAPSHOTS = [0, 50, 600]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The project, its jobs in the end, and the log of the first one."""
    folder = tmp_path_factory.mktemp("slurm")
    project = Project.create(folder / "cluster")
    project.write_runs("vit")
    training = yaml.safe_load(TRAINING.format(steps=SNAPSHOTS[-1], save_every=10_000))  # a state is one of a stop
    training["training"]["families"]["vit"]["snapshots"] = SNAPSHOTS
    project.append("workflow/presets/mini.yaml", yaml.safe_dump(training))
    fill_in_the_site(project, folder / "scratch")
    log = project.folder / f"results/mini/logs/train/{RUN}.log"
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", DONE]
    command += ["--config", "device=cuda", "gpus_per_run=2"]
    with pytest.MonkeyPatch.context() as patch:
        # as SLURM comes: the time between SIGTERM and SIGKILL
        patch.setattr(slurm_cluster, "CONFIGURATION", slurm_cluster.CONFIGURATION.replace("KillWait=2", "KillWait=30"))
        with running_cluster() as cluster, (folder / "output").open("w") as output:
            env = {**os.environ, **cluster.environment, "OMP_NUM_THREADS": "1"}
            env.pop("PYTHONPATH", None)
            run = subprocess.Popen(command, cwd=project.folder, env=env, stdout=output, stderr=subprocess.STDOUT)
            try:
                wait_until((project.folder / f"results/runs/{RUN}/snapshots/{SNAPSHOTS[1]:07d}").is_dir, 300)
                cluster.run("scancel", cluster.jobs()[0]["JobId"])
                wait_until(lambda: "error:" in log.read_text(), 30)
                stopped = log.read_text()
                run.wait(300)
            finally:
                run.terminate()
                run.wait()
                sys.stdout.write((folder / "output").read_text()[-5000:] + log.read_text())
            return project, cluster.jobs(), stopped


def test_the_job_asks_for_two_gpus_of_one_node(story):
    jobs = story[1]
    assert [job["JobState"] for job in jobs] == ["CANCELLED", "COMPLETED"]
    asked = {(job["TresPerJob"], job["NumNodes"].split("-")[0], job["NumTasks"], job["CPUs/Task"]) for job in jobs}
    assert asked == {("gres:gpu:model_x:2", "1", "1", "2")}


def test_a_stopped_run_goes_on_where_it_was(story):
    project, _, stopped = story
    [reached] = re.findall(rf"step (\d+) of {SNAPSHOTS[-1]}, saved", stopped)
    assert SNAPSHOTS[1] <= int(reached) < SNAPSHOTS[-1]
    log = (project.folder / f"results/mini/logs/train/{RUN}.log").read_text()
    assert f"going on from step {reached}" in log
    done = json.loads((project.folder / DONE).read_text())
    assert (done["status"], done["steps"]) == ("ok", SNAPSHOTS[-1])
