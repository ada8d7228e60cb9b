"""Jobs are sized by what they work on: estimates hold against what jobs really take, and are not far above it."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from checkpoints import bert_config, bert_tensors, write_checkpoint
from project import ROOT, Project, row
from qkgeom.registry import Model, read_models
from qkgeom.runs import read_runs
from qkgeom.settings import read_preset
from qkgeom.sizing import SNAKEMAKE, extraction, is_small, published, scoring, together
from qkgeom.training import sizing as training_sizing
from qkgeom.training.plans import plan_runs

MOST = 2.5  # an estimate is at most so many times the measured peak
HOW = {"heads": True, "structure": False, "threads": 1, "gpu": False}
# numbers in W_q and W_k of a layer as stored, from the models' configurations
LAYERS = {
    "bert-base-uncased": 2 * 768**2,
    "albert-xxlarge-v2": 2 * 4096**2,
    "gpt-neo-2.7b": 2 * 2560**2,
    "t5-11b.encoder": 2 * 1024 * 16384,
    "llama-2-70b-hf": 8192**2 + 8192 * 1024,
    "llama-3.1-405b": 16384**2 + 16384 * 1024,
    "qwen2.5-72b": 8192**2 + 8192 * 1024,
    "falcon-180b": 14848**2 + 14848 * 8 * 64,
    "bloom": 2 * 14336**2,
    "deepseek-v3-base": 7168 * 128 * 576 + 7168 * 576,
}
TRAINING = """
training:
  runs_per_job: 2
  require_margins: false
  corpora: {vocab_size: 400, longest: 20000}
  defaults:
    {dropout: 0.0, init_std: 0.07, batch: 4, accumulation: 1, steps: 12, learning_rate: 0.003, warmup: 2, weight_decay: 0.01,
     log_every: 2, save_every: 6}
  families:
    custom: {d_model: 16, n_head: 2, length: 8, heldout_batches: 2, snapshots: [0, 4, 12]}
"""


# a process of its own, since the kernel counts what a process was before it ran a command
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak(*arguments: object) -> float:
    """MiB that a verb takes at its peak, as the kernel counted them."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "qkgeom", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return int(result.stdout) / 1024


def test_a_layer_is_never_larger_than_it_is_taken_for():
    models = read_models()
    wrong = {name: numbers / published(models[name]).largest for name, numbers in LAYERS.items()}
    assert {name: share for name, share in wrong.items() if share > 1} == {}


@pytest.mark.parametrize(("n_params", "d", "n_layer"), [("2000000", 64, 3), ("300000000", 3072, 2)])
def test_extraction_and_scoring_take_what_is_estimated(tmp_path, n_params, d, n_layer):
    write_checkpoint(tmp_path / "checkpoint", bert_tensors(0, d, n_layer), bert_config(d, d // 64, n_layer))
    sizes = {"n_params": n_params, "qk_params": str(2 * n_layer * d * d)}
    stack = published(Model(**row("m", f"file:{tmp_path}/checkpoint/model.safetensors", **sizes)))
    artifact = tmp_path / "artifact"
    needs = {"extract": extraction(stack), "score": scoring(stack, **HOW)}
    taken = {
        "extract": peak("extract", f"file:{tmp_path}/checkpoint", "--layout", "bert", "--output", artifact),
        "score": peak("score", artifact, "--in-place", "--heads", "--device", "cpu", "--threads", "1"),
    }
    ratios = {verb: needs[verb].memory / taken[verb] for verb in needs}
    assert min(ratios.values()) >= 1, (ratios, taken)
    assert max(ratios.values()) <= MOST, (ratios, taken)
    stored = (artifact / "final.safetensors").stat().st_size
    assert needs["extract"].disk <= stored <= 1.01 * needs["extract"].disk + 1e4


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project with two published models and two runs, which was run."""
    project = Project.create(tmp_path_factory.mktemp("sized") / "project")
    project.write_runs("encoder-2l-reference", "decoder-2l-reference")
    project.append("workflow/presets/mini.yaml", TRAINING)
    project.run("scores", OMP_NUM_THREADS="1")
    return project


@pytest.mark.slow
def test_what_snakemake_measured_of_a_run_keeps_within_the_estimates(finished):
    (finished.folder / "bench").mkdir()
    script = finished.folder / "bench/job_sizes.py"
    script.write_text((ROOT / "bench/job_sizes.py").read_text())
    env = {**os.environ, "PYTHONPATH": str(finished.folder / "workflow")}
    command = [sys.executable, str(script), "results/mini"]
    told = subprocess.run(command, cwd=finished.folder, env=env, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^(extract|score|train) (\S+) +(\d+) +(\d+) +([\d.]+) ", told, re.MULTILINE)
    ratios = {(rule, job): float(ratio) for rule, job, _, _, ratio in lines}
    assert {job for rule, job in ratios if rule != "extract"} == {"tiny-enc", "tiny-dec", "mini.encoder-2l-reference.s0"}
    assert min(ratios.values()) >= 1, told
    of_unknown_format = {("extract", "tiny-enc"), ("extract", "tiny-dec")}  # folders: they might hold files of torch's
    known = ratios.keys() - of_unknown_format
    assert len(known) == 6 and max(ratios[key] for key in known) <= MOST, told


@pytest.mark.slow
def test_a_run_leaves_on_the_disk_what_is_estimated(finished):
    training = yaml.safe_load(TRAINING)["training"]
    project_runs = read_runs("mini", finished.folder / "workflow/runs.tsv")
    for name, plan in plan_runs(project_runs.values(), training, "cpu").items():
        vocabulary = training_sizing.vocabulary(plan, training["corpora"])
        n_params = training_sizing.parameters(plan, vocabulary)
        files = list((finished.folder / "results/runs" / name).rglob("*.safetensors"))
        kept = sum(path.stat().st_size for path in files)
        headers = 2000 * len(files)  # large beside such small weights
        assert 0.5 * kept <= training_sizing.kept_bytes(plan, n_params) + headers <= 2 * kept
        assert not (finished.folder / "results/runs" / name / "state").exists()


def test_larger_models_and_later_tries_ask_for_more():
    models = read_models()
    small, large = (published(models[name]) for name in ("bert-base-uncased", "llama-3.1-405b"))
    for need in (extraction, lambda stack: scoring(stack, **HOW | {"gpu": True})):
        first, second = need(small).resources(1), need(large).resources(1)
        assert all(first[name] <= second[name] for name in first)
        assert first["mem_mb"] < second["mem_mb"] and first["runtime"] < second["runtime"]
        again = need(small).resources(2)
        assert again["mem_mb"] >= 1.9 * first["mem_mb"] and again["runtime"] > first["runtime"]
        assert first["mem_mb"] >= need(small).memory + SNAKEMAKE
    assert scoring(small, **HOW).gpu_memory == 0 < scoring(small, **HOW | {"gpu": True}).gpu_memory
    both = together([scoring(small, **HOW), scoring(large, **HOW)])
    assert both.memory == scoring(large, **HOW).memory and both.seconds > scoring(large, **HOW).seconds
    assert is_small(models["bert-base-uncased"]) and not is_small(models["llama-3.1-405b"])


def test_a_model_of_which_the_table_says_nothing_has_a_size():
    need = extraction(published(Model(**row("m", "hf:a/m") | {"n_params": ""})))
    assert need.memory > extraction(published(Model(**row("m", "hf:a/m", qk_params="100")))).memory


def test_training_is_sized_by_its_run():
    training = read_preset("paper")["training"]
    plans = plan_runs(read_runs("paper").values(), training, "cuda")
    needs = {
        depth: training_sizing.training(plans[f"paper.encoder-{depth}l-wikipedia.s0"], training["corpora"], threads=4, gpu=True)
        for depth in (4, 12, 24)
    }
    for fewer, more in ((4, 12), (12, 24)):
        for name in ("memory", "gpu_memory", "seconds", "disk"):
            assert getattr(needs[fewer], name) < getattr(needs[more], name)
    plan = plans["paper.encoder-12l-wikipedia.s0"]
    bert_base = 109_514_298  # transformers' BertForMaskedLM with its defaults, which has 512 positions and 30,522 entries
    assert training_sizing.parameters(plan, 30522) == pytest.approx(bert_base, rel=0.01)
