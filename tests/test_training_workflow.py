"""Training inside the pipeline: runs of runs.tsv become models, dynamics figures, Table 1 and the claims."""

import csv

import pytest

from project import ROOT, Project

SMALL = """
training:
  corpora: {vocab_size: 400, longest: 20000}
  custom: {d_model: 16, n_head: 2, length: 8, batch: 4, accumulation: 1, steps: 12, learning_rate: 0.003, warmup: 2,
           weight_decay: 0.01, log_every: 2, save_every: 6, snapshots: [0, 4, 12]}
"""
RUNS = ("encoder-2l-reference", "decoder-2l-reference", "encoder-2l-reference-symmetric")
MODELS = {f"mini.{run}.s0" for run in RUNS}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with three tiny training runs beside its two models, run once."""
    project = Project.create(tmp_path_factory.mktemp("trained") / "project")
    header, *rows = (ROOT / "workflow/runs.tsv").read_text().splitlines()
    chosen = [row.rpartition("\t")[0] + "\tmini" for row in rows if row.split("\t")[0] in RUNS]
    project.write("workflow/runs.tsv", "\n".join([header, *chosen]) + "\n")
    project.append("workflow/presets/mini.yaml", SMALL)
    project.run()
    return project


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_snapshot_of_a_run_is_scored(trained):
    for model in MODELS:
        rows = read(trained.folder / f"results/models/{model}/scores.csv")
        assert [(row["snapshot"], row["layer"]) for row in rows] == [
            (step, layer) for step in ("0", "4", "12") for layer in "01"
        ]
    rows = read(trained.folder / "results/models/mini.encoder-2l-reference-symmetric.s0/scores.csv")
    assert [float(row["symmetry"]) for row in rows[:2]] == pytest.approx([1, 1], abs=1e-6)
    assert all(float(row["symmetry"]) < 1 - 1e-6 for row in rows[2:])


@pytest.mark.slow
def test_collected_tables_describe_the_runs(trained):
    collected = trained.folder / "results/mini/collected"
    assert {row["model"] for row in read(collected / "runs.csv")} == MODELS
    losses = read(collected / "losses.csv")
    assert {(row["model"], row["split"]) for row in losses} == {
        (model, split) for model in MODELS for split in ("train", "heldout")
    }
    assert [row["step"] for row in losses if row["model"] == "mini.encoder-2l-reference.s0"] == [
        "2",
        "4",
        "6",
        "8",
        "10",
        "12",
        "12",
    ]


@pytest.mark.slow
def test_figures_and_tables_of_training_are_rendered(trained):
    out = trained.folder / "results/mini"
    assert {row["model"] for row in read(out / "figures/dynamics_small.csv")} & MODELS
    assert (out / "figures/dynamics.pdf").stat().st_size
    assert read(out / "tables/symmetric_init.csv")
    assert read(out / "tables/claims.csv")


@pytest.mark.slow
def test_what_trains_again_and_what_does_not(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    assert project.planned() == {}
    project.append("workflow/qkgeom/scores.py", "\n# edited\n")
    assert not {"train", "extract", "corpus"} & set(project.planned())
    project.append("workflow/qkgeom/training/custom.py", "\n# edited\n")
    planned = project.planned()
    assert planned["train"] == MODELS
    assert "corpus" not in planned
    assert planned["extract"] == MODELS


@pytest.mark.slow
def test_a_longer_schedule_trains_again(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    text = (project.folder / "workflow/presets/mini.yaml").read_text()
    project.write("workflow/presets/mini.yaml", text.replace("steps: 12", "steps: 14").replace("[0, 4, 12]", "[0, 4, 14]"))
    assert project.planned()["train"] == MODELS
    project.run("results/models/mini.decoder-2l-reference.s0/scores.csv")
    rows = read(project.folder / "results/models/mini.decoder-2l-reference.s0/scores.csv")
    assert [row["snapshot"] for row in rows[::2]] == ["0", "4", "14"]
