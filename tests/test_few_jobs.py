"""Few jobs: how many the large presets have, and small models that are scored in one job."""

import csv
import json
import re
from collections import Counter

import pytest
import yaml

from checkpoints import write_bert
from project import ROOT, Project, qkgeom, row
from qkgeom.jobs import shared_scoring_jobs
from qkgeom.registry import Model
from qkgeom.settings import preset_names, read_settings

MOST = 500  # jobs of `paper` and `beyond` together
SCORES = [f"results/models/{name}/scores.csv" for name in ("tiny-enc", "tiny-dec", "gone")]


def dry_run(tmp_path, preset):
    """A dry run of a preset of the real tables: the number of jobs by rule, numbered rules as one."""
    project = Project.create(tmp_path / preset)
    for name in ("models.tsv", "runs.tsv", "presets/mini.yaml"):
        project.write(f"workflow/{name}", (ROOT / "workflow" / name).read_text())
    text = project.run("-n", "--quiet", "rules", "--config", f"preset={preset}")
    jobs = Counter()
    for rule, count in set(re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE)):  # printed before and after
        jobs[re.sub(r"_\d+$", "", rule)] += int(count)
    assert jobs.pop("total") == sum(jobs.values())
    return jobs


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets")
    return {preset: dry_run(folder, preset) for preset in preset_names()}


def test_the_large_presets_have_few_jobs(jobs):
    assert sum(sum(jobs[preset].values()) for preset in ("paper", "beyond")) < MOST


def test_plan_counts_the_jobs_of_a_dry_run(jobs, tmp_path):
    for preset, expected in jobs.items():
        result = qkgeom("plan", "--json", "--preset", preset, "--results", str(tmp_path), HF_HUB_OFFLINE="1")
        told = json.loads(result.stdout)["preset"]
        assert {rule: count for rule, count in told["jobs_of"].items() if count} == expected, preset
        assert told["jobs"] == sum(expected.values())


def models(*names):
    return [Model(**row(name, f"hf:a/{name}@main", qk_params="1000000")) for name in names]


def settings(**knobs):
    return read_settings({**yaml.safe_load((ROOT / "config.yaml").read_text()), "preset": "paper", **knobs})


def test_a_new_row_changes_one_job_only():
    names = [f"model-{number}" for number in range(60)]
    before, after = (shared_scoring_jobs(models(*each), settings()) for each in (names, ["new", *names]))
    assert sorted(name for job in before for name in job) == sorted(names)
    assert len(before) == settings().scoring_jobs
    assert [[name for name in job if name != "new"] for job in after] == before


def test_large_models_and_those_whose_weights_go_are_scored_alone():
    large = Model(**row("large", "hf:a/large@main", n_params="8000000000", qk_params="2000000000"))
    series = Model(**row("series", "hf:a/s@step{step}", qk_params="100000000", series="0,1..512*2,1000"))
    assert shared_scoring_jobs([large, series, *models("small")], settings()) == [["small"]]
    assert shared_scoring_jobs(models("small"), settings(keep_weights=False)) == []
    assert shared_scoring_jobs(models("small"), settings(preset="laptop")) == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A project whose models are scored in one job; of one there is no checkpoint."""
    project = Project.create(tmp_path_factory.mktemp("shared") / "project")
    project.append("workflow/presets/mini.yaml", "scoring_jobs: 1\n")
    project.add_model(model="gone", uri="file:models/gone")
    return project


def rows(project, name):
    with (project.folder / f"results/models/{name}/scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_models_scored_in_one_job_fail_and_come_back_one_by_one(shared):
    assert shared.planned(*SCORES)["score_0"] == {"-"} and "score" not in shared.planned(*SCORES)
    shared.run(*SCORES, OMP_NUM_THREADS="1")
    assert len(rows(shared, "tiny-enc")) > 3 and len(rows(shared, "tiny-dec")) > 3 and rows(shared, "gone") == []
    assert shared.planned(*SCORES) == {}
    before = rows(shared, "tiny-enc")

    write_bert(shared.folder / "models/gone", seed=7)
    assert shared.qkgeom("retry").stdout.startswith("cleared: gone;")
    assert shared.planned(*SCORES) == {"extract": {"gone"}, "score_0": {"-"}}
    weights = shared.folder / "results/models/tiny-dec/final.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    shared.run(*SCORES, OMP_NUM_THREADS="1")
    assert rows(shared, "gone") and rows(shared, "tiny-enc") == before
    assert rows(shared, "tiny-dec") == [] and "truncated" in shared.qkgeom("show", "tiny-dec").stdout + (
        weights.with_name("unscored.json").read_text()
    )
