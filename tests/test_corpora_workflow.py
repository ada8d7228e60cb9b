"""Corpora inside the pipeline: a job for each, so that one that cannot be had stops none of the others."""

import csv
import os
from zipfile import ZipFile

import pytest

import hub_server
from hub_server import Hub
from project import ROOT, Project
from qkgeom.training.vocabulary import train_tokenizer

served_hub, hub = hub_server.served_hub, hub_server.hub

PRESET = """
training:
  runs_per_job: 1
  require_margins: false
  corpora: {vocab_size: 400, longest: 20000}
  defaults: {accumulation: 1, warmup: 2, weight_decay: 0.01, log_every: 2, save_every: 6, heldout_batches: 1}
  families:
    custom: {d_model: 16, n_head: 2, length: 8, dropout: 0.0, init_std: 0.07, batch: 4, steps: 12, learning_rate: 0.003}
"""
ZIP = "data/jigsaw-toxic-comment-classification-challenge.zip"  # as config.yaml says


def write_runs(project: Project, *corpora: str) -> None:
    """One run per corpus."""
    with (ROOT / "workflow/runs.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    row = next(row for row in rows if row["family"] == "custom")
    with (project.folder / "workflow/runs.tsv").open("w", newline="") as file:
        writer = csv.DictWriter(file, row, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        for corpus in corpora:
            name = f"encoder-{corpus.replace('_', '-')}"
            writer.writerow(row | {"run": name, "corpus": corpus, "seeds": "0", "presets": "mini"})


@pytest.fixture
def project(tmp_path):
    project = Project.create(tmp_path / "project")
    project.append("workflow/presets/mini.yaml", PRESET)
    return project


def targets(*corpora: str) -> list[str]:
    return [f"results/mini/corpora/{corpus}/corpus.json" for corpus in corpora]


@pytest.mark.slow
def test_a_missing_zip_stops_only_its_own_corpus(project, hub: Hub, tmp_path):
    words = [f"word{number % 50} number {number % 7}" for number in range(200)]
    hub.add("tiny/tokenizer", {"tokenizer.json": train_tokenizer(words, 60).encode()})
    environment = {"HF_ENDPOINT": hub.url(), "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "*"}
    write_runs(project, "reference", "jigsaw")
    text = (project.folder / "workflow/presets/mini.yaml").read_text()
    project.write("workflow/presets/mini.yaml", text.replace("vocab_size: 400", "tokenizer: tiny/tokenizer"))
    both = targets("jigsaw", "reference")
    missing = project.snakemake(*both, **environment)
    told = missing.stdout + missing.stderr
    assert missing.returncode and f"where:    {project.folder / ZIP}" in told and "kaggle.com" in told
    assert [(project.folder / target).exists() for target in both] == [False, True]
    (project.folder / "data").mkdir()
    with ZipFile(project.folder / ZIP, "w") as archive:
        archive.writestr("train.csv", "id,comment_text\n" + "".join(f"{i},comment number {i}\n" for i in range(100)))
    project.run(*both, **environment)
    assert project.planned(*both) == {}
    os.utime(project.folder / ZIP, (0, 0))  # another download
    assert project.planned(*both) == {"corpus": {"jigsaw"}}
    project.append("workflow/qkgeom/training/corpora/hub.py", "\n# edited\n")
    assert project.planned(*both) == {"corpus": {"jigsaw"}}


def test_a_published_tokenizer_and_streamed_corpora_are_planned(project):
    write_runs(project, "wikipedia", "red_pajama")
    text = (project.folder / "workflow/presets/mini.yaml").read_text()
    project.write("workflow/presets/mini.yaml", text.replace("vocab_size: 400", "tokenizer: google-bert/bert-base-uncased"))
    assert project.planned(*targets("wikipedia")) == {"tokenizer": {"-"}, "corpus": {"wikipedia"}}
    plan = project.run("-n", *targets("wikipedia", "red_pajama"))
    assert "tokenizer --pretrained google-bert/bert-base-uncased --output results/mini/corpora/tokenizer.json" in plan
    assert plan.count("hub_slots=1") == 3


@pytest.mark.faults
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("vocab_size: 400", "vocab_size: 400, tokenizer: a/b", "either vocab_size or tokenizer"),
        ("vocab_size: 400, ", "", "either vocab_size or tokenizer"),
        ("description", "description", "there is no such corpus"),
    ],
)
def test_a_preset_that_cannot_be(project, old, new, told):
    write_runs(project, "wikipedia" if old != new else "wiki")
    text = (project.folder / "workflow/presets/mini.yaml").read_text()
    project.write("workflow/presets/mini.yaml", text.replace(old, new))
    wrong = project.snakemake("-n", *targets("wikipedia"))
    assert wrong.returncode and told in wrong.stdout + wrong.stderr
