"""Training inside the pipeline: runs of runs.tsv become models, dynamics figures, Table 1 and the claims."""

import csv
import json

import pytest
from safetensors.numpy import load_file

from project import ROOT, Project
from qkgeom.runs import read_runs
from qkgeom.settings import read_preset
from qkgeom.training import families
from qkgeom.training.plans import plan_runs

SMALL = """
training:
  runs_per_job: 2
  require_margins: false
  corpora: {vocab_size: 400, longest: 20000}
  updates: {runs: ["*-2l-reference.s0"], steps: [0, 4], batches: 2, runs_per_job: 2}
  defaults:
    {dropout: 0.0, init_std: 0.07, batch: 4, accumulation: 1, steps: 12, learning_rate: 0.003, warmup: 2, weight_decay: 0.01,
     log_every: 2, save_every: 6}
  families:
    custom: {d_model: 16, n_head: 2, length: 8, heldout_batches: 2, snapshots: [0, 4, 12]}
    t5: {d_model: 16, n_head: 2, length: 32, heldout_batches: 2}
    vit: {d_model: 16, n_head: 2, length: 4, heldout_batches: 2}
"""
CUSTOM = ("encoder-2l-reference", "decoder-2l-reference", "encoder-2l-reference-symmetric")
RUNS = {f"mini.{run}.s0" for run in (*CUSTOM, "t5", "vit")}
MODELS = RUNS - {"mini.t5.s0"} | {"mini.t5.s0.encoder", "mini.t5.s0.decoder"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with five tiny training runs, in three jobs, beside its two models, run once."""
    project = Project.create(tmp_path_factory.mktemp("trained") / "project")
    header, *rows = (ROOT / "workflow/runs.tsv").read_text().splitlines()
    chosen = ["\t".join([*row.split("\t")[:-2], "0", "mini"]) for row in rows if row.split("\t")[0] in (*CUSTOM, "t5", "vit")]
    project.write("workflow/runs.tsv", "\n".join([header, *chosen]) + "\n")
    project.append("workflow/presets/mini.yaml", SMALL)
    project.run()
    return project


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_snapshot_of_a_run_is_scored(trained):
    for model in (f"mini.{run}.s0" for run in CUSTOM):
        rows = read(trained.folder / f"results/models/{model}/scores.csv")
        assert [(row["snapshot"], row["layer"], row["head"]) for row in rows] == [
            (step, layer, head) for step in ("0", "4", "12") for layer in "01" for head in ("all", *"01")
        ]
    of_heads = [row for row in read(trained.folder / "results/mini/collected/scores.csv") if row["head"] != "all"]
    assert {row["snapshot"] for row in of_heads if row["model"] == f"mini.{CUSTOM[0]}.s0"} == {"12"}
    rows = read(trained.folder / "results/models/mini.encoder-2l-reference-symmetric.s0/scores.csv")
    rows = [row for row in rows if row["head"] == "all"]
    assert [float(row["symmetry"]) for row in rows[:2]] == pytest.approx([1, 1], abs=1e-6)
    assert all(float(row["symmetry"]) < 1 - 1e-6 for row in rows[2:])


@pytest.mark.slow
def test_collected_tables_describe_the_runs(trained):
    collected = trained.folder / "results/mini/collected"
    runs = {row["model"]: row for row in read(collected / "runs.csv")}
    assert set(runs) == MODELS
    assert {row["status"] for row in runs.values()} == {"ok"}
    t5 = [runs[f"mini.t5.s0.{role}"] for role in ("encoder", "decoder")]
    assert [(row["role"], row["group"], row["label"]) for row in t5] == [
        (role, "encoder_decoder", f"T5 (trained here), {role}") for role in ("encoder", "decoder")
    ]
    assert runs["mini.vit.s0"]["metric"] == "accuracy"
    assert 0 < float(runs["mini.vit.s0"]["baseline"]) < 0.6
    losses = read(collected / "losses.csv")
    assert {row["model"] for row in losses} == RUNS
    of_one = [(row["step"], row["split"]) for row in losses if row["model"] == "mini.encoder-2l-reference.s0"]
    assert [step for step, split in of_one if split == "train"] == ["2", "4", "6", "8", "10", "12"]
    assert [step for step, split in of_one if split == "heldout"] == ["0", "4", "12"]


@pytest.mark.slow
def test_models_trained_here_stand_at_their_size(trained):
    summary = {row["model"]: row for row in read(trained.folder / "results/mini/collected/summary.csv")}
    record = json.loads((trained.folder / "results/runs/mini.vit.s0/done.json").read_text())
    weights = load_file(trained.folder / "results/runs/mini.vit.s0/snapshots/0000012/model.safetensors")
    assert int(summary["mini.vit.s0"]["n_params"]) == record["n_params"] == sum(each.size for each in weights.values())
    assert (trained.folder / "results/mini/figures/scores_vision.pdf").stat().st_size
    drawn = read(trained.folder / "results/mini/figures/scores_encoder_decoder.csv")
    assert {row["model"] for row in drawn} == {"mini.t5.s0.encoder", "mini.t5.s0.decoder"}


@pytest.mark.slow
def test_figures_and_tables_of_training_are_rendered(trained):
    out = trained.folder / "results/mini"
    assert {row["model"] for row in read(out / "figures/dynamics_small.csv")} & MODELS
    assert (out / "figures/dynamics.pdf").stat().st_size
    assert read(out / "tables/symmetric_init.csv")
    assert read(out / "tables/claims.csv")


@pytest.mark.slow
def test_updates_of_the_runs_that_the_preset_names_are_measured_and_drawn(trained):
    measured = {path.parents[1].name for path in trained.folder.glob("results/runs/*/updates/done.json")}
    assert measured == {"mini.encoder-2l-reference.s0", "mini.decoder-2l-reference.s0"}
    out = trained.folder / "results/mini"
    assert {row["role"] for row in read(out / "figures/update_dynamics.csv")} == {"encoder", "decoder"}
    assert {row["model"] for row in read(out / "figures/framework.csv")} == measured
    assert {row["model"] for row in read(out / "tables/token_roles.csv")} <= measured
    claims = {row["claim"] for row in read(out / "tables/claims.csv")}
    assert {"realised_symmetry", "encoder_symmetry"} <= claims


@pytest.mark.slow
def test_what_is_measured_again_and_what_is_not(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    project.append("workflow/qkgeom/theory/tables.py", "\n# edited\n")
    planned = project.planned()
    assert "updates_0" in planned and not trains(planned) and not {"extract", "collect"} & set(planned)


def trains(jobs):
    """The training jobs of a dry run; the first has the default runs, the second the symmetric one and T5."""
    return {name for name in jobs if name.startswith("train_")}


@pytest.mark.slow
def test_what_trains_again_and_what_does_not(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    assert project.planned() == {}
    project.append("workflow/qkgeom/scores.py", "\n# edited\n")
    assert not trains(project.planned()) and not {"extract", "corpus"} & set(project.planned())
    project.append("workflow/qkgeom/training/families/t5.py", "\n# edited\n")
    assert trains(project.planned()) == {"train_1"}
    project.append("workflow/qkgeom/training/families/custom.py", "\n# edited\n")
    planned = project.planned()
    assert trains(planned) == {"train_0", "train_1"}
    assert "corpus" not in planned


@pytest.mark.slow
def test_a_longer_schedule_trains_again_and_what_shares_its_job_does_not(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    text = (project.folder / "workflow/presets/mini.yaml").read_text()
    longer = text.replace("t5: {d_model: 16,", "t5: {steps: 14, d_model: 16,")
    project.write("workflow/presets/mini.yaml", longer)
    assert trains(project.planned()) == {"train_1"}
    first = "mini.encoder-2l-reference-symmetric.s0"
    other = project.folder / f"results/runs/{first}/losses.csv"
    before = other.stat().st_mtime_ns
    project.run()
    assert other.stat().st_mtime_ns == before
    rows = read(project.folder / "results/models/mini.t5.s0.decoder/scores.csv")
    assert list(dict.fromkeys(row["snapshot"] for row in rows)) == ["0", "14"]
    assert "is trained already" in (project.folder / f"results/mini/logs/train/{first}.log").read_text()


@pytest.mark.slow
def test_a_run_that_learned_too_little_or_cannot_be_trained_fails_the_check_and_not_the_figures(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    text = (project.folder / "workflow/presets/mini.yaml").read_text()
    text = text.replace("require_margins: false", "require_margins: true")
    project.write("workflow/presets/mini.yaml", text.replace("length: 32", "length: 100000"))
    result = project.snakemake()
    assert result.returncode == 1
    found = (project.folder / "results/mini/check.txt").read_text()
    assert "mini.vit.s0 failed: this model learned too little to be a data point" in found
    assert (
        "mini.t5.s0.encoder failed: this run could not be trained" in found
        and "mini.encoder-2l-reference.s0 failed" not in found
    )
    assert (project.folder / "results/mini/figures/dynamics.pdf").exists()


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("family", "rnn", "there is no such family"),
        ("role", "encoder-decoder", "family custom has another role"),
        ("role", "decoder", "a role contradicts its objective"),
        ("corpus", "", "family custom has another `corpus`"),
        ("objective", "denoising", "family custom has no such objective"),
        ("margin", "much", "margin has a value that is not allowed"),
    ],
)
def test_a_row_that_does_not_fit_its_family(tmp_path, column, cell, told):
    project = Project.create(tmp_path / "project")
    header, row, *_ = (ROOT / "workflow/runs.tsv").read_text().splitlines()
    cells = dict(zip(header.split("\t"), row.split("\t"), strict=True)) | {column: cell}
    project.write("workflow/runs.tsv", header + "\n" + "\t".join(cells.values()) + "\n")
    project.append("workflow/presets/mini.yaml", SMALL)
    result = project.snakemake("-n")
    assert result.returncode == 1 and told in result.stdout + result.stderr


@pytest.mark.parametrize("preset", ["mini", "smoke", "paper"])
def test_every_run_of_a_preset_has_a_plan(preset):
    training = read_preset(preset)["training"]
    runs = read_runs(preset)
    plans = plan_runs(runs.values(), training, "cpu")
    custom = {(run.corpus, run.n_layer, run.role, run.init) for run in runs.values() if run.family == "custom"}
    assert len(custom) == 27
    if preset == "paper":
        schedule = next(iter(plans.values())).schedule
        assert (schedule.steps, schedule.batch, schedule.accumulation, schedule.log_every) == (200_000, 32, 8, 200)
        assert (schedule.learning_rate, schedule.warmup, schedule.weight_decay) == (5e-5, 200, 0.01)
        assert set(range(0, 200_001, 1000)) <= set(schedule.snapshots)
    else:
        assert {run.family for run in runs.values()} == set(families.names()) - {"control"}  # of preset theory
        assert all(run.margin for run in runs.values() if run.family != "custom")
        assert {run.seed for run in runs.values() if run.corpus == "reference"} == {0, 1}


@pytest.mark.slow
def test_weights_of_trained_models_are_dropped_and_read_again_from_their_runs(trained, tmp_path):
    project = trained.copy(tmp_path / "copy")
    model = "mini.t5.s0.decoder"
    artifact = project.folder / "results/models" / model
    before = [row["symmetry"] for row in read(artifact / "scores.csv") if row["head"] == "all"]
    for heads in ("false", "true"):  # the second time there are no weights
        project.run(f"results/models/{model}/scores.csv", "--config", "keep_weights=false", f"heads={heads}")
        assert {path.name for path in artifact.iterdir()} == {"manifest.json", "scores.csv", "scores.provenance.json"}
        assert [row["symmetry"] for row in read(artifact / "scores.csv") if row["head"] == "all"] == before
    log = (project.folder / "results/mini/logs/score/mini.encoder-2l-reference-symmetric.s0.log").read_text()
    assert "fetched again from file:results/runs/mini.t5.s0/snapshots/0000012" in log
