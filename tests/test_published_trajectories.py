"""Fig. 3 over the authors' own trajectories, of which the user has a copy."""

import json
import shutil
from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest

from project import ROOT, Project, qkgeom
from qkgeom.errors import UsageError
from qkgeom.figures import dynamics, dynamics_descriptions, dynamics_large
from qkgeom.figures._dynamics import PUBLISHED
from qkgeom.figures._style import COLOURS, RC
from qkgeom.published_trajectories import FILE, read_trajectories
from scored_models import inputs_for

AUTHORS = ROOT.parent / "shared/published"
SCORES = ("symmetry", "directionality_excess")


@pytest.fixture
def folder(tmp_path):
    """A made-up copy: 12 layers on two corpora, three steps; the decoder's scores are the encoder's negative."""
    rows = [
        {"size": "12-layer", "objective": role, "dataset": corpus, "step": step, "layer": layer}
        | {"symmetry": sign * (step / 4000 + layer / 100 + by), "directionality": -sign * step / 4000}
        for corpus, by in (("wikipedia", 0.0), ("jigsaw", 0.05))
        for role, sign in (("encoder", 1), ("decoder", -1))
        for step in (1000, 2000, 3000)
        for layer in range(12)
    ]
    made = tmp_path / "authors"
    made.mkdir()
    pd.DataFrame(rows).to_csv(made / FILE, index=False)
    return made


def drawn_over(place, folder, module):
    place.mkdir(exist_ok=True)
    numbers = module.numbers(replace(inputs_for(place, "training"), published_trajectories=folder))
    with matplotlib.rc_context(RC):
        return numbers, module.draw(numbers)


@pytest.mark.parametrize(("module", "by"), [(dynamics, 0.0), (dynamics_descriptions, 0.05)])
def test_published_medians_are_drawn_dashed_on_the_share_of_their_training(tmp_path, folder, module, by):
    numbers, figure = drawn_over(tmp_path, folder, module)
    theirs = numbers[numbers["seed"] == PUBLISHED]
    assert len(theirs) == 6 and set(theirs["depth"]) == {12} and theirs["n_layers"].eq(12).all()
    expected = {"symmetry": np.array([0.25, 0.5, 0.75]) + 0.055 + by, "directionality_excess": -np.array([0.25, 0.5, 0.75])}
    for axes, score in zip(figure.axes, SCORES, strict=True):
        dashed = {line.get_color(): line for line in axes.lines if line.is_dashed()}
        for role, sign in (("encoder", 1), ("decoder", -1)):
            line = dashed[COLOURS[role]]
            np.testing.assert_allclose(line.get_xdata().astype(float), [500 / 3, 1000 / 3, 500])
            np.testing.assert_allclose(line.get_ydata().astype(float), sign * expected[score])
        assert len(dashed) == 2 and axes.get_xlim()[1] < 600
    [legend] = figure.legends
    assert "published" in {text.get_text() for text in legend.get_texts()}
    assert "its 3K steps scaled to this axis" in legend.get_title().get_text()


def test_runs_are_drawn_as_without_them(tmp_path, folder):
    numbers, figure = drawn_over(tmp_path / "with", folder, dynamics)
    (tmp_path / "without").mkdir()
    plain = dynamics.numbers(inputs_for(tmp_path / "without", "training"))
    pd.testing.assert_frame_equal(numbers[numbers["seed"] != PUBLISHED], plain)
    with matplotlib.rc_context(RC):
        alone = dynamics.draw(plain)
    for axes, other in zip(figure.axes, alone.axes, strict=True):
        lines, others = ([line for line in each.lines if not line.is_dashed()] for each in (axes, other))
        assert len(lines) == len(others) == len(other.lines)
        assert axes.get_xlim() == other.get_xlim()


def test_a_depth_that_the_authors_have_not_released_is_drawn_without(tmp_path, folder):
    numbers, figure = drawn_over(tmp_path, folder, dynamics_large)
    assert PUBLISHED not in set(numbers["seed"])
    assert "published" not in {text.get_text() for text in figure.legends[0].get_texts()}


def test_the_report_leaves_out_what_has_other_steps(tmp_path, folder):
    pytest.importorskip("altair", reason="needs altair, which draws the report's plots")
    from qkgeom.report.plots import panels

    numbers, _ = drawn_over(tmp_path, folder, dynamics)
    ours = numbers[numbers["seed"] != PUBLISHED]
    assert len(numbers) > len(ours)
    assert json.dumps(panels(numbers, []), default=str) == json.dumps(panels(ours.reset_index(drop=True), []), default=str)


@pytest.mark.skipif(not (AUTHORS / FILE).is_file(), reason="needs the authors' trajectories in ../shared/published")
def test_the_authors_own_trajectories(tmp_path):
    numbers, _ = drawn_over(tmp_path, AUTHORS, dynamics)
    last = numbers[(numbers["seed"] == PUBLISHED) & (numbers["step"] == 200_000)].set_index("role")
    assert last.loc["encoder", "symmetry_median"] == pytest.approx(0.317, abs=1e-3)
    assert last.loc["decoder", "symmetry_median"] < 0


def break_it(folder, how):
    path = folder / FILE
    table = pd.read_csv(path)
    if how == "column":
        table.drop(columns="step").to_csv(path, index=False)
    elif how == "role":
        table.replace("encoder", "encodre").to_csv(path, index=False)
    elif how == "range":
        table.loc[4, "symmetry"] = 1.5
        table.to_csv(path, index=False)
    elif how == "empty":
        path.write_text("")
    elif how == "other":
        path.rename(folder / "per_layer_scores.csv")
    else:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("column", ["lack the columns step", FILE]),
        ("role", ["unknown objective", "encodre"]),
        ("range", ["line 6", "1.5"]),
        ("empty", ["cannot be read", "size, objective"]),
        ("other", ["a folder with per_layer_scores.csv", f"there is no {FILE}"]),
        ("gone", ["no such folder"]),
    ],
)
def test_a_wrong_folder_is_named(folder, how, words):
    break_it(folder, how)
    with pytest.raises(UsageError) as caught:
        read_trajectories(folder, "wikipedia", 12)
    assert all(word in str(caught.value) for word in [*words, str(folder), "docs/published.md"])


def test_the_command_line_and_the_pipeline_say_so_too(tmp_path):
    given = inputs_for(tmp_path, "training")
    options = ["--scores", str(given.scores), "--runs", str(given.runs), "-o", str(tmp_path / "figure")]
    shown = qkgeom("figure", "dynamics", *options, "--published-trajectories", str(tmp_path))
    assert shown.returncode == 2 and f"there is no {FILE}" in shown.stderr
    project = Project.create(tmp_path / "project")
    refused = project.snakemake("-n", "--config", f"published_trajectories={tmp_path}")
    assert refused.returncode == 1 and f"there is no {FILE}" in refused.stdout + refused.stderr
