"""The benchmarks' runner, its figures, and that every benchmark runs (in sizes too small to measure anything)."""

import importlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from project import ROOT
from qkgeom.errors import QkgeomError, UsageError

BENCH = ROOT / "bench"
FIGURES = """
from figures import Figure

def measure(tiny):
    return [Figure("speed", 2.0, "x", 1.5), Figure("memory", 2.0, "GiB", 1.5, at_most=True, detail=f"tiny: {tiny}")]
"""


@pytest.fixture
def load(monkeypatch):
    """Imports a file of bench/; threads are afterwards as they were."""
    monkeypatch.syspath_prepend(str(BENCH))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


def bench(*command, **environment):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{BENCH}", "COLUMNS": "160", **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)


def runner(folder, *arguments):
    output = folder / "bench.json"
    return bench(sys.executable, str(BENCH / "run.py"), "--folder", str(folder), "--output", str(output), *arguments), output


# the runner


def test_figures_are_found_printed_and_written(tmp_path):
    (tmp_path / "cpu_one.py").write_text(FIGURES)
    (tmp_path / "cpu_two.py").write_text(FIGURES.replace("2.0", "1.5"))
    (tmp_path / "gpu_other.py").write_text("1 / 0")
    result, output = runner(tmp_path, "--tiny")
    assert result.returncode == 0, result.stderr  # a missed target is a finding
    assert json.loads(output.read_text()) == [
        {"name": "speed", "value": 2.0, "unit": "x", "target": 1.5, "holds": True},
        {"name": "memory", "value": 2.0, "unit": "GiB", "target": 1.5, "holds": False},
        {"name": "speed", "value": 1.5, "unit": "x", "target": 1.5, "holds": True},
        {"name": "memory", "value": 1.5, "unit": "GiB", "target": 1.5, "holds": True},
    ]
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert lines[:2] == [["speed", "2 x", "≥ 1.5", "yes", ""], ["memory", "2 GiB", "≤ 1.5", "NO", "tiny: True"]]
    assert "the numbers mean nothing" in result.stdout


@pytest.mark.faults
@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os\ndef measure(tiny): os._exit(1)", "BrokenProcessPool"),
        (FIGURES.replace("2.0", "float('nan')"), "a benchmark measured no number"),
    ],
)
def test_a_benchmark_that_fails_is_one_clear_error(tmp_path, code, found):
    (tmp_path / "cpu_good.py").write_text(FIGURES)
    (tmp_path / "cpu_worse.py").write_text(code)
    (tmp_path / "bench.json").write_text("[]")  # of an earlier run
    result, output = runner(tmp_path)
    assert result.returncode == 1 and not output.exists()
    assert "error: a benchmark failed" in result.stderr and found in result.stderr and "Traceback" not in result.stderr
    assert str(tmp_path / "cpu_worse.py") in result.stderr


@pytest.mark.faults
def test_a_kind_without_benchmarks(tmp_path):
    result, output = runner(tmp_path, "tpu")
    assert result.returncode == 2 and "there are no such benchmarks" in result.stderr and not output.exists()


# the benchmarks


def test_the_training_loop_and_the_plain_loop_run(load):
    (figure,) = load("cpu_training_loop").measure(tiny=True)
    assert figure.target == 0.9 and 0.1 < figure.value < 10


def test_either_loop_is_timed_over_the_same_steps(load, tmp_path, monkeypatch):
    module = load("cpu_training_loop")
    steps = 2 + 3 * module.TURN
    schedule = module.replace(module.SCHEDULE, steps=steps, batch=2, snapshots=(0, 2, steps))
    ticks = {"ours": 0, "other": 0}
    monkeypatch.setattr(module, "perf_counter", lambda: ticks["ours"] + 1000 * ticks["other"])
    data = module.FAMILY.data(module.RECIPE, module.synthetic_corpus())
    model, other = (module.FAMILY.build(module.RECIPE, data.corpus) for _ in range(2))
    turns = module.InTurns(data, module.plain_steps(other, data, schedule))

    def tick(which):
        ticks[which] += 1

    model.register_forward_pre_hook(lambda *_: tick("ours") if model.training else None)
    other.register_forward_pre_hook(lambda *_: tick("other"))
    module.loop.train(model, turns, tmp_path / "run", schedule, 0, module.FAMILY.is_query_or_key, {})
    assert (turns.steps, turns.seconds, turns.seconds_of_other) == (steps - 2, steps - 2, 1000 * (steps - 2))


@pytest.mark.faults
def test_loops_that_did_other_work_are_not_compared(load, monkeypatch):
    module = load("cpu_training_loop")
    monkeypatch.setattr(module, "plain_steps", lambda model, data, schedule: iter([None] * schedule.steps))
    monkeypatch.setattr(module, "SAME_LOSS", 0.0)
    with pytest.raises(QkgeomError, match="did not do the same work"):
        module.measure(tiny=True)


def test_the_clock_counts_the_tokens_that_are_not_padding(load):
    settings = load("gpu_training_settings")
    recipe = settings.replace(settings.RECIPE, length=32)
    documents = settings.synthetic_documents(32 / 512)
    for lay_out, masks in ((settings.padded, True), (settings.packed, False)):
        data = settings.Clocked(lay_out(documents, recipe), batches=6, skipped=1)
        batches = [data.train_batch(range(first, first + 2)) for first in range(0, 12, 2)]
        useful = [batch["input_ids"] != 0 for batch in batches]
        assert data.tokens == sum(int(each.sum()) for each in useful[2:5])
        assert data.speed == pytest.approx(data.tokens / (data.ended - data.began)) and math.isfinite(data.speed)
        for batch, each in zip(batches, useful, strict=True):
            assert bool(each.all()) != masks
            assert ("attention_mask" in batch) == masks
            assert bool((batch["labels"][~each] == -100).all())
            assert not masks or torch.equal(batch["attention_mask"].bool(), each)


def test_the_gpu_script_runs(tmp_path):
    result = bench(str(BENCH / "gpu.sh"), "--tiny", "--output", str(tmp_path / "gpu.json"))
    assert result.returncode == 0, result.stderr
    records = {record["name"]: record for record in json.loads((tmp_path / "gpu.json").read_text())}
    training = records["training on a GPU against the authors' settings"]
    assert list(training) == ["name", "value", "unit", "target", "holds"]
    assert training["target"] == 2 and training["holds"] == (training["value"] >= 2)
    assert sum("pinned memory" in name for name in records) == 2 and "a layer of LLaMA-3.1-405B" in records


def test_the_gpu_script_scores_where_there_is_only_torch(tmp_path):
    for package in ("typer", "rich", "transformers", "pandas", "ml_dtypes", "yaml", "scipy", "safetensors"):
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(name={package!r})")
    paths = os.pathsep.join(map(str, (ROOT / "workflow", tmp_path)))
    command = (sys.executable, str(BENCH / "run.py"), "gpu", "--tiny", "--output", str(tmp_path / "gpu.json"))
    result = bench(*command, PYTHONPATH=paths)
    assert result.returncode == 0, result.stderr
    assert "gpu_training_settings.py is left out: there is no package transformers here" in result.stderr
    assert len(json.loads((tmp_path / "gpu.json").read_text())) == 6
    assert "the numbers mean nothing" in result.stdout


@pytest.mark.faults
def test_benchmarks_that_lack_all_they_need(tmp_path):
    (tmp_path / "cpu_one.py").write_text("import nothing_of_this_name")
    result, output = runner(tmp_path)
    assert result.returncode == 2 and "no benchmark can run here" in result.stderr and "nothing_of_this_name" in result.stderr
    assert "Traceback" not in result.stderr and not output.exists()


@pytest.mark.faults
def test_the_gpu_script_without_a_gpu(tmp_path):
    result = bench(str(BENCH / "gpu.sh"), "--output", str(tmp_path / "gpu.json"), CUDA_VISIBLE_DEVICES="")
    assert result.returncode == UsageError.exit_code == 2
    assert result.stderr.count("error:") == 1 and "this benchmark needs a CUDA GPU" in result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "gpu.json").exists()


def test_the_partial_reader_is_measured(load):
    figures = {figure.name: figure for figure in load("cpu_partial_reader").measure(tiny=True)}
    assert figures["bytes of a sharded checkpoint"].holds and figures["requests to resolve a file"].holds
    assert sum("extraction" in name for name in figures) == 3
    assert all(figure.value > 0 for figure in figures.values())


def test_scoring_from_the_disk_is_measured(load):
    figures = {figure.name: figure for figure in load("cpu_scoring_stream").measure(tiny=True)}
    assert sum("cache" in name for name in figures) == 2
    assert figures["peak memory of scoring 405B-shaped layers"].holds
    assert all(figure.value > 0 for figure in figures.values())


def test_the_plan_of_the_zoo_is_timed(load):
    (figure,) = load("cpu_plan").measure(tiny=True)
    assert figure.target == 10 and figure.at_most and 0 < figure.value < 60 and figure.detail.startswith("5 models; ")
