"""A clock that jumps: results from the future, or older than what they were made from."""

import os
import time
from pathlib import Path

import pytest

from project import Project
from tiny_pipeline import RUN, TARGETS, contents, create

pytestmark = [pytest.mark.faults, pytest.mark.slow]
DAY = 86400.0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    project = create(tmp_path_factory.mktemp("clock") / "project")
    project.run(*TARGETS, OMP_NUM_THREADS="1")
    return project


def jump(paths: list[Path], seconds: float) -> None:
    """As if the files had been written at another time."""
    for path in paths:
        os.utime(path, (time.time() + seconds,) * 2)


def files(project: Project, pattern: str) -> list[Path]:
    found = [path for path in (project.folder / "results").glob(pattern) if path.is_file()]
    assert found
    return found


@pytest.mark.parametrize(
    ("pattern", "days"), [("**/*", 2), ("models/*/manifest.json", 2), ("models/*/scores.csv", -2), ("mini/collected/*", -2)]
)
def test_nothing_runs_again_because_of_times(finished, tmp_path, pattern, days):
    project = finished.copy(tmp_path / "project")
    jump(files(project, pattern), days * DAY)
    assert project.planned(*TARGETS) == {}


def test_large_inputs_are_compared_by_content_too(finished, tmp_path):
    """Scores of a long series are larger than the million bytes to which Snakemake compares by itself."""
    project = finished.copy(tmp_path / "project")
    [scores] = files(project, "mini/collected/scores.csv")
    rows = scores.read_text().splitlines(keepends=True)[1:]
    with scores.open("a") as file:
        file.writelines(rows * (2_000_000 // len("".join(rows))))
    assert scores.stat().st_size > 1_000_000
    heads = "results/mini/figures/heads.pdf"
    project.run(heads, OMP_NUM_THREADS="1")
    jump([scores], 2 * DAY)
    assert project.planned(heads) == {}


def test_a_change_is_made_once_although_its_inputs_are_from_the_future(finished, tmp_path):
    projects = [finished.copy(tmp_path / name) for name in ("jumped", "steady")]
    jump(files(projects[0], "**/*"), 2 * DAY)
    for project in projects:
        table = (project.folder / "workflow/models.tsv").read_text()
        project.write("workflow/models.tsv", table.replace("\ttiny-enc\t", "\tanother name\t", 1))
        assert set(project.planned(*TARGETS)) == {"collect", "table", "figure"}
        project.run(*TARGETS, OMP_NUM_THREADS="1")
        assert project.planned(*TARGETS) == {}
    jumped, steady = (contents(project.folder) for project in projects)
    assert jumped == steady and b"another name" in jumped["results/mini/collected/summary.csv"]
    assert jumped[f"results/runs/{RUN}/losses.csv"]
