"""The pipeline on a real SLURM of one node: jobs are cancelled, run out of memory, and lose their node."""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise

import pandas as pd
import pytest
import yaml

import slurm_cluster
from slurm_cluster import running_cluster, wait_until
from tiny_pipeline import RUN, TARGETS, create

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.timeout(720),
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing()),
]

HERE = "tiny-dec"  # is extracted on the machine that runs snakemake
MODELS = ("tiny-enc", HERE, RUN)
GPU = {"train_0", "score_0", "score_tiny-enc", "score_tiny-dec"}
CPU = {"extract_tiny-enc", f"extract_{RUN}", "collect", "table_symmetry_scores", "figure_scores_language"}
DISTURBED = {"train_0", "score_tiny-enc", "collect"}
PROFILES = {  # edits of it, of which `doctor` is asked
    "right": {},
    "wrong_partition": {"gpu_jobs": {"slurm_partition": "'gpus'"}},
    "wrong_model": {"gpu_jobs": {"gpu_model": "'a100'"}, "slurm-status-command": "sacct"},
}
TOO_LITTLE = 300  # MB, which PyTorch alone exceeds


def fill_in_the_site(project, scratch):
    """What a user edits in the profile; and for the test quick polls, GPU jobs that compute on the CPU, too little memory."""
    profile = yaml.safe_load((project.folder / "profiles/slurm/config.yaml").read_text())
    profile["default-resources"]["tmpdir"] = f"'{scratch}/$SLURM_JOB_ID'"
    profile["set-resources"]["gpu_jobs"] |= {"gpu_model": "'model_x'", "device": "'cpu'"}
    profile["set-resources"]["score"] = {"mem_mb": f"{TOO_LITTLE} if attempt == 1 and wildcards.model == 'tiny-enc' else 4000"}
    profile |= {"slurm-init-seconds-before-status-checks": 2, "seconds-between-status-checks": 2, "latency-wait": 10}
    project.write("profiles/slurm/config.yaml", yaml.safe_dump(profile))


def ask_doctor(project, folder, cluster, gpu_jobs=None, **profile):
    """What `doctor` says, by check, in a project with this profile and `device: cuda`."""
    copy = project.copy(folder)
    copy.write("config.yaml", (copy.folder / "config.yaml").read_text().replace("device: auto", "device: cuda"))
    stated = yaml.safe_load((copy.folder / "profiles/slurm/config.yaml").read_text()) | profile
    stated["set-resources"]["gpu_jobs"] |= gpu_jobs or {}
    copy.write("profiles/slurm/config.yaml", yaml.safe_dump(stated))
    findings = json.loads(copy.qkgeom("doctor", "--slurm", "--json", **cluster.environment).stdout)["findings"]
    return {each["check"]: each for each in findings}


class Story:
    """A run on the cluster to which all happens that can: the jobs by rule and wildcard, and what the node was seen to do."""

    def __init__(self, folder):
        self.project = create(folder / "cluster")
        self.scratch = folder / "scratch"
        fill_in_the_site(self.project, self.scratch)
        self.jobs = defaultdict(list)
        with running_cluster() as self.cluster, (folder / "output").open("w+") as output:
            self.doctor = {
                name: ask_doctor(self.project, folder / name, self.cluster, **edit) for name, edit in PROFILES.items()
            }
            profile = ["--workflow-profile", "profiles/slurm"]
            download = [f"results/models/{HERE}/manifest.json", "--config", "download_here=true"]
            self.project.run(*profile, *download, **self.cluster.environment)
            self.jobs_of_download = self.cluster.jobs()
            command = [sys.executable, "-m", "snakemake", *profile, *TARGETS, "--config", "device=cuda"]
            env = {**os.environ, **self.cluster.environment, "OMP_NUM_THREADS": "1"}
            env.pop("PYTHONPATH", None)
            self.run = subprocess.Popen(command, cwd=self.project.folder, env=env, stdout=output, stderr=subprocess.STDOUT)
            try:
                self.disturb()
                self.run.wait(600)
            finally:
                self.run.kill()
                self.run.wait()
                output.seek(0)
                self.output = output.read()
                self.show()
            for job in self.cluster.jobs():
                self.jobs[job["Comment"].removeprefix("rule_").replace("_wildcards", "")].append(job)

    def disturb(self):
        """Cancels a job while it runs, drains the node until everything waits for it, and lets it fail under another job."""
        train = wait_until(lambda: self.seen("RUNNING", "rule_train_0"), 120)
        self.cluster.run("scancel", train[0]["JobId"])
        self.cluster.run("scontrol", "update", "nodename=node", "state=drain", "reason=test")
        wait_until(lambda: self.cluster.node_state() == "drained", 120)
        self.waiting = wait_until(lambda: self.seen("PENDING", "rule_train_0"), 120)
        self.ran_meanwhile = self.seen("RUNNING")
        self.cluster.run("scontrol", "update", "nodename=node", "state=resume")
        collect = wait_until(lambda: self.seen("RUNNING", "rule_collect"), 300)[0]["JobId"]
        self.cluster.run("scontrol", "update", "nodename=node", "state=down", "reason=test")
        wait_until(lambda: self.seen("PENDING", "rule_collect"), 60)
        # SLURM itself would wait two minutes. The node refuses a job of which it still has processes, or that was made in the
        # second in which it ended them ("already killed"): such a job fails without having run, and is submitted again.
        wait_until(lambda: not self.cluster.knows_on_node(collect), 60)
        time.sleep(2)
        self.cluster.run("scontrol", "update", "nodename=node", "state=resume")
        self.cluster.run("scontrol", "update", f"jobid={collect}", "starttime=now")

    def show(self):
        """For the message of a failed test: the ends of what Snakemake and the failed jobs said."""
        logs = sorted((self.project.folder / ".snakemake/slurm_logs").rglob("*.log"))
        sys.stdout.write(self.output[-10000:] + "".join(f"\n{log}:\n{log.read_text()[-1500:]}" for log in logs))

    def seen(self, state, comment=""):
        assert self.run.poll() is None, "snakemake ended too early"
        return [job for job in self.cluster.jobs() if job["JobState"] == state and job["Comment"].startswith(comment)]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return Story(tmp_path_factory.mktemp("slurm"))


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    project = create(tmp_path_factory.mktemp("local") / "project")
    project.run(*TARGETS, OMP_NUM_THREADS="1")
    return project


def states(jobs):
    return [job["JobState"] for job in jobs]


def megabytes(job):
    number, unit = job["MinMemoryNode"][:-1], job["MinMemoryNode"][-1]
    return int(number) * {"M": 1, "G": 1024}[unit]


def minutes(job):
    days, hours, minutes, _ = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", job["TimeLimit"]).groups("0")
    return (int(days) * 24 + int(hours)) * 60 + int(minutes)


def test_the_workflow_finishes(story):
    assert story.run.returncode == 0
    assert [target for target in TARGETS if not (story.project.folder / target).stat().st_size] == []
    assert set(story.jobs) == GPU | CPU
    assert {jobs[-1]["JobState"] for jobs in story.jobs.values()} == {"COMPLETED"}


def test_jobs_with_a_gpu_and_jobs_without(story):
    for name, jobs in story.jobs.items():
        for job in jobs:
            asked = job.get("TresPerJob"), job["Partition"]
            assert asked == (("gres:gpu:model_x:1", "gpu") if name in GPU else (None, "cpu")), name


def test_memory_and_time_of_the_rules_reach_slurm(story):
    stated = defaultdict(list)
    for rule, body in re.findall(r"^rule (\w+):\n((?:    .*\n)+)", story.output, re.MULTILINE):
        wildcard = re.search(r"wildcards: \w+=(\S+)", body)
        name = f"{rule}_{wildcard[1]}" if wildcard else rule
        stated[name].append([int(re.search(rf"\b{each}=(\d+)", body)[1]) for each in ("mem_mb", "runtime")])
    assert stated == {name: [[megabytes(job), minutes(job)] for job in jobs] for name, jobs in story.jobs.items()}


def test_a_cancelled_job_is_submitted_again(story):
    assert states(story.jobs["train_0"]) == ["CANCELLED", "COMPLETED"]


def test_a_job_that_exceeds_its_memory_is_submitted_again_with_more(story):
    jobs = story.jobs["score_tiny-enc"]
    assert len(jobs) == 2 and jobs[0]["JobState"] in ("FAILED", "CANCELLED", "OUT_OF_MEMORY")
    assert megabytes(jobs[0]) == TOO_LITTLE < megabytes(jobs[1])
    log = story.project.folder / f".snakemake/slurm_logs/rule_score/tiny-enc/{jobs[0]['JobId']}.log"
    assert "exceeded memory limit" in log.read_text()
    assert "Trying to restart" not in log.read_text(), "in a job with as little memory"


def test_downloads_on_the_machine_that_runs_snakemake_are_no_jobs(story):
    assert story.jobs_of_download == []


def test_nothing_undisturbed_ran_twice(story):
    assert {"train_0", "score_tiny-enc"} <= {name for name, jobs in story.jobs.items() if len(jobs) > 1} <= DISTURBED


def test_no_two_jobs_wrote_the_same_files_at_a_time(story):
    for jobs in story.jobs.values():
        for earlier, later in pairwise(jobs):
            assert later["StartTime"] >= earlier["EndTime"], (earlier, later)


def test_jobs_wait_for_a_drained_node(story):
    assert story.waiting and not story.ran_meanwhile
    assert states(story.jobs["train_0"])[-1] == "COMPLETED"


def test_slurm_starts_a_job_of_a_failed_node_again(story):
    jobs = story.jobs["collect"]
    assert jobs[0]["Restarts"] == "1" and jobs[-1]["JobState"] == "COMPLETED"


def test_temporary_files_lie_where_the_profile_says(story):
    ids = {job["JobId"] for jobs in story.jobs.values() for job in jobs}
    assert (
        ids
        >= {path.name for path in story.scratch.iterdir() if path.name.isdigit()}
        >= {jobs[-1]["JobId"] for jobs in story.jobs.values()}
    )


def test_scores_and_tables_equal_a_local_runs(story, local):
    for model in MODELS:
        here, there = (pd.read_csv(each.folder / f"results/models/{model}/scores.csv") for each in (local, story.project))
        assert len(here) and here["symmetry"].notna().all()
        pd.testing.assert_frame_equal(here, there, check_exact=False, rtol=0, atol=1e-6)
    for end in (".csv", ".md", ".tex"):
        name = TARGETS[0].replace(".csv", end)
        assert (local.folder / name).read_text() == (story.project.folder / name).read_text()


def test_doctor_finds_the_site_in_order(story):
    found = {check: (each["state"], each["found"]) for check, each in story.doctor["right"].items()}
    assert found["slurm"] == ("ok", "2 partitions: cpu, gpu")
    assert found["partition"] == ("ok", "gpu") and found["gres"] == ("ok", "GPUs of the cluster: model_x")
    assert found["accounting"] == ("ok", "off; the status of jobs is asked of squeue") and "job age" not in found


def test_doctor_names_what_the_cluster_does_not_have(story):
    partition = story.doctor["wrong_partition"]["partition"]
    assert (partition["state"], partition["found"]) == ("fault", "the cluster has no gpus")
    assert partition["fix"] == "edit `gpu_jobs` in profiles/slurm: one of cpu, gpu"
    gres, accounting = (story.doctor["wrong_model"][check] for check in ("gres", "accounting"))
    assert gres["state"] == "fault" and gres["found"] == "partition gpu has no gres gpu:a100 (GPUs of the cluster: model_x)"
    assert accounting["state"] == "fault" and "sacct: the run would never end" in accounting["found"]
