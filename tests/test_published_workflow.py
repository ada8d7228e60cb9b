"""The published way in the pipeline: which models are read so, and what follows from it."""

import csv
import re

import pytest

from project import ROOT, Project

WAY = "published_way: [tiny-dec]\n"


@pytest.fixture
def project(tmp_path):
    """A tiny encoder and a tiny decoder with grouped queries, which the preset wants read in both ways."""
    made = Project.create(tmp_path / "project")
    made.append("workflow/presets/mini.yaml", WAY)
    return made


def published(project, *arguments):
    """The models that a dry run would read the published way."""
    outputs = re.findall(r"^ +output: (.*published_way.*)$", project.run("-n", *arguments), re.MULTILINE)
    return set(re.findall(r"results/models/([^/]+)/published_way.csv", " ".join(outputs)))


def test_models_that_the_preset_names_are_read_in_both_ways(project):
    project.run("tables")
    with (project.folder / "results/mini/tables/published_extraction.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert row["model"] == "tiny-dec" and row["defects"] == "grouped_heads"
    assert row["symmetry_here"] != row["symmetry_published_way"]
    compared = (project.folder / "results/mini/tables/published_vs_reproduced.csv").read_text()
    assert "tiny-dec" not in compared and "not reproduced here" in compared
    assert "Nothing to be done" in project.run("tables")
    table = project.folder / "workflow/published.tsv"
    table.write_text(table.read_text().replace("\tS1, S2\t", "\t\t", 1))
    assert project.planned("tables")["table"] == {"published_extraction", "published_vs_reproduced"}


def test_the_audit_follows_the_published_way_too(project):
    names = ("tables/published_extraction.csv", "tables/published_vs_reproduced.csv", "figures/published_vs_reproduced.pdf")
    project.run(*(f"results/mini/{name}" for name in names))
    found = project.qkgeom("audit", "results/mini")
    assert found.returncode == 0, found.stdout + found.stderr
    way = project.folder / "results/models/tiny-dec/published_way.csv"
    way.write_text(way.read_text().replace(",0.", ",0.1", 1))
    found = project.qkgeom("audit", "results/mini")
    assert found.returncode == 1 and "published_way.csv" in found.stdout + found.stderr


def test_models_of_the_paper_with_a_defect_that_can_be_applied_again_are_too(project):
    project.write("workflow/presets/mini.yaml", (project.folder / "workflow/presets/mini.yaml").read_text().replace(WAY, ""))
    assert published(project) == set()
    assert not any("published_extraction" in names for names in project.planned().values()), "there is nothing to show"
    project.add_model(model="mistral-7b-v0.1", uri="file:models/dec", layout="llama", role="decoder")
    project.add_model(model="llama-2-7b-hf", uri="file:models/dec", layout="llama", role="decoder")
    assert published(project) == {"mistral-7b-v0.1"}


def test_weights_are_read_before_they_are_dropped(project):
    project.write("workflow/presets/mini.yaml", "description: test, of which no figure shows weights\n" + WAY)
    project.run("results/models/tiny-dec/scores.csv", "--config", "keep_weights=false")
    folder = project.folder / "results/models/tiny-dec"
    assert (folder / "published_way.csv").is_file() and not list(folder.glob("*.safetensors"))


def test_the_presets_own_models_exist():
    """Each pattern of the default preset's `published_way` fits a model of it."""
    trained = {f"mini.{name}.s0" for name in ("llama", "mistral", "modernbert")}
    assert published(Project(ROOT), "--forceall") == {"smollm2-135m-instruct", *trained}
