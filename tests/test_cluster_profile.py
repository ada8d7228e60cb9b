"""profiles/slurm, read from dry runs: what each job would ask the cluster for. No cluster is needed."""

import os
import re
import tempfile
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm_jobstep import get_gpu_setting, get_node_setting

from project import ROOT, Project
from qkgeom import cli

PROFILE = "profiles/slurm/config.yaml"
PLACES = {
    "gpu_jobs": {"slurm_partition": "'fast'", "gpu_model": "'a100'", "mem_mb": "7000 * attempt"},
    "network_jobs": {"slurm_partition": "'transfer'"},
}
TRAINING = """
training:
  runs_per_job: 1
  require_margins: false
  corpora: {vocab_size: 400, longest: 20000}
  defaults: {init_std: 0.07, batch: 4, accumulation: 1, steps: 12, learning_rate: 0.003, warmup: 2, weight_decay: 0.01,
    log_every: 2, save_every: 6, dropout: 0.0}
  families: {custom: {d_model: 16, n_head: 2, length: 8, heldout_batches: 2, snapshots: [0, 12]}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Two published models and a run; the profile's site is filled in."""
    project = Project.create(tmp_path_factory.mktemp("profile") / "project")
    project.write_runs("encoder-2l-reference")
    project.append("workflow/presets/mini.yaml", TRAINING)
    profile = yaml.safe_load((project.folder / PROFILE).read_text())
    profile["default-resources"] |= {"slurm_account": "'ours'", "slurm_partition": "'main'"}
    profile["set-resources"] = PLACES
    project.write(PROFILE, yaml.safe_dump(profile))
    return project


def asked(project, *config):
    """Rule and wildcard -> the resources that a job would ask for."""
    text = project.run("-n", "--workflow-profile", "profiles/slurm", "--config", "package_index=true", *config)
    jobs = {}
    for rule, body in re.findall(r"^rule (\w+):\n((?:    .*\n)+)", text, re.MULTILINE):
        wildcard = re.search(r"wildcards: \w+=(\S+)", body)
        resources = dict(re.findall(r"(\w+)=([^,\n]+)", re.search(r"resources: (.*)", body)[1]))
        jobs[f"{rule} {wildcard[1]}" if wildcard else rule] = resources
    jobs.pop("all")
    return jobs


class Resources(dict):
    """Resources as the executor reads them."""

    __getattr__ = dict.__getitem__


def submitted(resources, threads):
    """The options of sbatch that the executor makes of a job, and those of its srun (none if the job calls srun itself)."""
    typed = Resources({name: int(value) if value.isdigit() else value for name, value in resources.items()})
    job = SimpleNamespace(resources=typed, threads=threads)
    given = dict.fromkeys(("run_uuid", "slurm_logfile", "comment_str", "account", "partition"), "-")
    call = get_submit_command(job, {**given, "workdir": None}) + set_gres_string(job)
    step = set() if "mpi" in typed else {get_gpu_setting(job), get_node_setting(job)}
    return {option for option in call.split() if option.startswith(("--nodes", "--ntasks", "--gpus", "--cpus"))}, step


def partitions(jobs):
    return {name: job.get("slurm_partition") for name, job in jobs.items()}


def test_jobs_go_where_the_profile_says(project):
    jobs = asked(project, "device=cuda")
    gpu = {"train_0", "score_0", "score tiny-enc", "score tiny-dec"}
    network = {f"extract {model}" for model in ("tiny-enc", "tiny-dec")}
    assert partitions(jobs) == {
        name: "fast" if name in gpu else "transfer" if name in network else "main" for name in partitions(jobs)
    }
    assert {name for name, job in jobs.items() if job.get("gpu") == "1"} == gpu
    assert {name for name, job in jobs.items() if job.get("gpu_model") == "a100"} == gpu
    assert {name for name, job in jobs.items() if job["mem_mb"] == "7000"} == gpu
    assert {job["slurm_account"] for job in jobs.values()} == {"ours"}


def test_without_gpus_no_job_asks_for_one(project):
    jobs = asked(project, "device=cpu")
    assert {job.get("gpu", "0") for job in jobs.values()} == {"0"}
    assert not any("gpu_model" in job for job in jobs.values())
    assert "fast" not in partitions(jobs).values()


@pytest.mark.parametrize(
    ("gpus", "nodes", "threads", "sbatch", "srun"),
    [
        (1, 1, 1, {"--nodes=1", "--gpus=a100:1", "--cpus-per-task=1"}, {"--nodes=1", "--gpus=1"}),
        (2, 1, 2, {"--nodes=1", "--gpus=a100:2", "--cpus-per-task=2"}, {"--nodes=1", "--gpus=2"}),
        (2, 2, 1, {"--nodes=2", "--ntasks=2", "--gpus=a100:2", "--cpus-per-task=1"}, set()),
        (4, 2, 2, {"--nodes=2", "--ntasks=2", "--gpus=a100:4", "--cpus-per-task=2"}, set()),
    ],
)
def test_gpus_and_nodes_of_a_run(project, gpus, nodes, threads, sbatch, srun):
    """One task on each node, which starts the processes of that node's GPUs; memory is per node."""
    jobs = asked(project, "device=cuda", f"gpus_per_run={gpus}", f"nodes_per_run={nodes}")
    assert submitted(jobs["train_0"], threads) == (sbatch, srun)
    assert jobs["train_0"]["processes"] == str(gpus)
    assert {name for name, job in jobs.items() if job.get("gpu") == "1"} >= {"score_0", "score tiny-enc"}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("config", "told"),
    [
        (["gpus_per_run=3", "device=cuda"], "batch 4 and accumulation 1 for 3 processes"),
        (["gpus_per_run=4", "nodes_per_run=3"], "the GPUs of a run cannot be spread over its nodes"),
        (["gpus_per_run=0"], "gpus_per_run"),
    ],
)
def test_gpus_that_a_run_cannot_have(project, config, told):
    result = project.snakemake("-n", "--workflow-profile", "profiles/slurm", "--config", *config)
    assert result.returncode == 1 and told in result.stdout + result.stderr


@pytest.mark.faults
@pytest.mark.parametrize("config", [["gpus_per_run=4"], ["gpus_per_run=2", "nodes_per_run=2"]])
def test_more_gpus_than_this_machine_has(project, config):
    result = project.snakemake("-n", "--config", "device=cuda", *config, CUDA_VISIBLE_DEVICES="0,1")
    assert result.returncode == 1 and "and there are 2 on this machine" in result.stdout + result.stderr
    project.run("-n", "--config", "device=cuda", "gpus_per_run=2", CUDA_VISIBLE_DEVICES="0,1")
    project.run("-n", "--config", "device=cpu", *config, CUDA_VISIBLE_DEVICES="0,1")


def test_jobs_that_need_much_gpu_memory_go_where_the_profile_says(project, tmp_path):
    other = project.copy(tmp_path / "copy")
    profile = yaml.safe_load((other.folder / PROFILE).read_text())
    jobs = asked(other, "device=cuda")
    memory = {name: int(job["gpu_mem_mb"]) for name, job in jobs.items() if job.get("gpu") == "1"}
    assert memory["train_0"] < memory["score_0"] <= memory["score tiny-enc"]
    most = {"gpu_jobs_above_99999": "'none'", f"gpu_jobs_above_{memory['train_0']}": "'h100'", "gpu_jobs_above_1": "'l4'"}
    profile["set-resources"] |= {place: {"gpu_model": model} for place, model in most.items()}
    other.write(PROFILE, yaml.safe_dump(profile))
    models = {name: job.get("gpu_model") for name, job in asked(other, "device=cuda").items()}
    assert models == {name: None if name not in memory else "l4" if name == "train_0" else "h100" for name in models}


def test_no_job_asks_for_more_time_than_a_job_may_have(project):
    sized = ("extract", "score", "train", "corpus")
    jobs = [asked(project, "device=cpu", *config) for config in ((), ("longest_job=12",))]
    least, most = ({int(job["runtime"]) for name, job in each.items() if name.startswith(sized)} for each in jobs)
    assert min(least) > 12 and most == {12}


def test_what_the_profile_says_of_a_rule_itself_comes_first(project, tmp_path):
    other = project.copy(tmp_path / "copy")
    profile = yaml.safe_load((other.folder / PROFILE).read_text())
    profile["set-resources"]["score"] = {"slurm_partition": "'own'"}
    other.write(PROFILE, yaml.safe_dump(profile))
    jobs = asked(other, "device=cuda")
    assert (jobs["score tiny-enc"]["slurm_partition"], jobs["score_0"]["slurm_partition"]) == ("own", "fast")
    assert jobs["score tiny-enc"]["gpu_model"] == "a100"


def test_the_profile_as_it_comes_is_usable(tmp_path):
    """Nothing of a site is in it but the name `gpu` of a partition, and it repeats what the default profile says."""
    profile = yaml.safe_load((ROOT / PROFILE).read_text())
    assert profile["executor"] == "slurm" and profile["slurm-status-command"] == "squeue"
    default = yaml.safe_load((ROOT / "profiles/default/profile.yaml").read_text())
    assert {key: profile.get(key) for key in default} == default, "a workflow profile replaces the default one"
    jobs = asked(Project.create(tmp_path / "project"))
    assert set(partitions(jobs).values()) == {None}
    assert not any({"slurm_account", "gpu_model"} & set(job) for job in jobs.values())


@pytest.mark.parametrize("set_here", [True, False])
def test_hf_home_in_the_jobs_own_folder(monkeypatch, tmp_path, set_here):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    if not set_here:
        monkeypatch.delenv("TMPDIR")
    monkeypatch.setenv("HF_HOME", "$TMPDIR/huggingface")
    monkeypatch.setattr(cli, "app", lambda: None)
    cli.main()
    assert os.environ["HF_HOME"] == f"{tmp_path}/huggingface"
