"""Figures of training: which runs they show, the numbers they draw, and what they say of runs that are not there."""

import importlib
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color, to_rgb

from qkgeom import figures
from qkgeom.errors import QkgeomError
from qkgeom.figures import dynamics, dynamics_layers
from qkgeom.figures._null_band import legend_entry
from qkgeom.figures._style import COLOURS, RC
from qkgeom.rendering import Inputs, specs
from trained_models import STEPS, Run, score_rows, write_tables, write_training

NAMES = [name for name in specs(Path(figures.__file__).parent) if name.startswith("dynamics") and "public" not in name]
SCORES = ("symmetry", "directionality_excess")
BANDS_OF_SEEDS = "quartiles over layers, widest of the seeds"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Inputs:
    return write_training(tmp_path_factory.mktemp("trained"))


def scored(values: dict[tuple[Run, int], list[float]]) -> list[dict]:
    """One row per layer with this symmetry, and its negative as directionality."""
    return [
        {"model": run.model, "snapshot": step, "layer": layer, "head": "all", "symmetry": s, "directionality_excess": -s}
        for (run, step), layers in values.items()
        for layer, s in enumerate(layers)
    ]


# which runs


def test_there_is_a_figure_per_kind_corpus_and_size():
    kinds = ("dynamics", "dynamics_layers")
    endings = ("", "_docstrings", "_descriptions", "_small", "_large")
    assert set(NAMES) == {kind + ending for kind in kinds for ending in endings}


@pytest.mark.parametrize(
    ("ending", "corpus", "depth", "seeds"),
    [
        ("", "reference", 4, {"0", "1", "all"}),
        ("_docstrings", "docstrings", 4, {"0", "all"}),
        ("_descriptions", "descriptions", 4, {"0", "all"}),
        ("_small", "reference", 2, {"0", "all"}),
        ("_large", "reference", 6, {"0", "all"}),
    ],
)
@pytest.mark.parametrize("kind", ["dynamics", "dynamics_layers"])
def test_a_figure_shows_one_corpus_and_depth_from_the_default_start(trained, kind, ending, corpus, depth, seeds):
    numbers = importlib.import_module(f"qkgeom.figures.{kind}{ending}").numbers(trained)
    assert set(numbers["corpus"]) == {corpus} and set(numbers["depth"]) == {depth} and set(numbers["seed"]) == seeds
    models = set(numbers["model"].dropna())
    assert models == {Run(role, corpus, depth, "default", int(s)).model for role in COLOURS for s in seeds - {"all"}}
    assert sorted(set(numbers["step"])) == list(STEPS)


def test_the_papers_own_corpora_and_depths_are_shown_where_they_were_trained(tmp_path):
    runs = [Run(role, corpus, depth) for role in COLOURS for corpus in ("wikipedia", "jigsaw") for depth in (4, 12)]
    inputs = write_training(tmp_path, runs)
    for name, corpus, depth in (("dynamics", "wikipedia", 12), ("dynamics_small", "wikipedia", 4)):
        numbers = importlib.import_module(f"qkgeom.figures.{name}").numbers(inputs)
        assert set(numbers["model"].dropna()) == {Run(role, corpus, depth).model for role in COLOURS}
    # an embedded depth of 4 is the middle one, the paper's is the small one: corpora are never mixed
    both = write_training(tmp_path, [*runs, Run("encoder", "reference", 4)])
    assert set(dynamics.numbers(both)["model"].dropna()) == {Run("encoder", "reference", 4).model}


# the numbers


def test_medians_and_quartiles_over_layers_then_over_seeds(tmp_path):
    a, b = Run(seed=0), Run(seed=1)
    scores = scored({(a, 0): [0, 0, 0, 0], (b, 0): [0, 0, 0, 0], (a, 10): [0.0, 0.1, 0.3, 0.4], (b, 10): [0.4, 0.5, 0.7, 0.8]})
    numbers = dynamics.numbers(write_tables(tmp_path, [a.row(), b.row()], scores, []))
    last = numbers[numbers["step"] == 10].set_index("seed")
    assert last.loc["0", ["symmetry_q1", "symmetry_median", "symmetry_q3"]].tolist() == pytest.approx([0.075, 0.2, 0.325])
    assert last.loc["1", ["symmetry_q1", "symmetry_median", "symmetry_q3"]].tolist() == pytest.approx([0.475, 0.6, 0.725])
    # together: the median over seeds, and a band that holds every seed's
    assert last.loc["all", ["symmetry_q1", "symmetry_median", "symmetry_q3"]].tolist() == pytest.approx([0.075, 0.4, 0.725])
    assert last.loc["all", "directionality_excess_median"] == pytest.approx(-0.4)
    assert last["n_layers"].tolist() == [4, 4, 4]


def test_a_layer_without_a_score_is_left_out(tmp_path):
    run = Run()
    numbers = dynamics.numbers(write_tables(tmp_path, [run.row()], scored({(run, 0): [0.1, np.nan, 0.3, 0.8]}), []))
    assert numbers["symmetry_median"].tolist() == pytest.approx([0.3, 0.3])


def test_steps_are_in_the_order_of_numbers(tmp_path):
    run = Run()
    scores = scored({(run, step): [step / 1000] for step in (100, 5, 0, 50)})
    numbers = dynamics.numbers(write_tables(tmp_path, [run.row()], scores, []))
    assert numbers.loc[numbers["seed"] == "all", "step"].tolist() == [0, 5, 50, 100]


def test_layers_are_medians_over_seeds(tmp_path):
    a, b = Run(seed=0), Run(seed=1)
    scores = scored({(a, 0): [0.0, 0.2], (b, 0): [0.1, 0.6]})
    numbers = dynamics_layers.numbers(write_tables(tmp_path, [a.row(), b.row()], scores, []))
    together = numbers[numbers["seed"] == "all"]
    assert together["layer"].tolist() == [0, 1]
    assert together["symmetry"].tolist() == pytest.approx([0.05, 0.4])
    assert together["directionality_excess"].tolist() == pytest.approx([-0.05, -0.4])


# what is drawn


def test_lines_and_bands_are_the_numbers(trained):
    numbers = dynamics.numbers(trained)
    for axes, score in zip(_draw(dynamics, numbers).axes, SCORES, strict=True):
        assert axes.get_xlim()[0] < 0 < axes.get_ylim()[1] and axes.get_xlabel() == "training step"
        for role, colour in COLOURS.items():
            lines = [line for line in axes.lines if same_color(line.get_color(), colour)]
            drawn = {tuple(np.round(line.get_ydata().astype(float), 9)): line.get_linewidth() for line in lines}
            rows = numbers[numbers["role"] == role]
            expected = {seed: tuple(part[f"{score}_median"].round(9)) for seed, part in rows.groupby("seed")}
            assert set(drawn) == set(expected.values())
            assert drawn[expected["all"]] > max(drawn[expected[seed]] for seed in ("0", "1"))
            assert all(line.get_xdata().tolist() == list(STEPS) for line in lines)
            (band,) = [patch for patch in axes.collections if same_color(patch.get_facecolor()[0][:3], colour)]
            together = rows[rows["seed"] == "all"]
            corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(9)}
            for quartile in ("q1", "q3"):
                assert corners >= set(zip(STEPS, together[f"{score}_{quartile}"].round(9), strict=True))


def test_the_legend_explains_thin_lines_only_where_there_are_any(trained, tmp_path):
    (legend,) = _draw(dynamics, dynamics.numbers(trained)).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "encoder",
        "decoder",
        BANDS_OF_SEEDS,
        "single seeds",
        *legend_entry(),
    ]
    assert legend.get_title().get_text() == "4 layers, corpus: reference"
    (alone,) = _draw(dynamics, dynamics.numbers(write_training(tmp_path, [Run()]))).legends
    assert [text.get_text() for text in alone.get_texts()] == ["encoder", "quartiles over layers", *legend_entry()]


def test_the_legend_is_inside_the_figure(trained):
    figure = _draw(dynamics, dynamics.numbers(trained))
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1


def test_there_is_a_line_per_layer_darker_when_deeper(trained):
    numbers = importlib.import_module("qkgeom.figures.dynamics_layers_large").numbers(trained)
    figure = _draw(dynamics_layers, numbers)
    panels = [(role, score) for role in COLOURS for score in SCORES]
    for axes, (role, score) in zip(figure.axes, panels, strict=False):
        rows = numbers[(numbers["role"] == role) & (numbers["seed"] == "all")]
        lines = [line for line in axes.lines if len(line.get_xdata()) == len(STEPS)]
        assert len(lines) == 6 and axes.get_title() == role
        for layer, line in enumerate(lines):
            assert line.get_ydata() == pytest.approx(rows.loc[rows["layer"] == layer, score].to_numpy())
        brightness = [sum(to_rgb(line.get_color())) for line in lines]
        assert brightness == sorted(brightness, reverse=True) and len(set(brightness)) == 6
    assert [axes.get_ylabel() for axes in figure.axes[4:]] == ["layer", "layer"]


@pytest.mark.parametrize("name", NAMES)
def test_texts_stay_on_the_page_and_apart(trained, name):
    module = importlib.import_module(f"qkgeom.figures.{name}")
    figure = _draw(module, module.numbers(trained))
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in [*axes.texts, axes.yaxis.label] if text.get_text()]
        left, right = axes.get_xlim()  # matplotlib keeps ticks beyond the ends, and does not draw them
        ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        boxes += [label.get_window_extent() for tick, label in ticks if left <= tick <= right and label.get_text()]
        assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])
        assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= figure.bbox.x1 and b.y1 <= figure.bbox.y1 for b in boxes)


# runs that are not there


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_without_the_runs_says_so(tmp_path, name):
    inputs = write_training(tmp_path, [Run(corpus="some other"), Run("decoder", "reference", 4, family="gpt2")])
    figures.render(name, inputs, tmp_path / name)
    module = importlib.import_module(f"qkgeom.figures.{name}")
    figure = module.draw(module.numbers(inputs))
    assert all("no such run" in {text.get_text() for text in axes.texts} for axes in figure.axes)
    assert pd.read_csv(tmp_path / f"{name}.csv").empty


def test_runs_that_were_lost_are_named(tmp_path):
    runs = [Run(), Run(seed=1, status="diverged"), Run("decoder", status="failed")]
    inputs = write_training(tmp_path, runs)
    numbers = dynamics.numbers(inputs)
    lost = numbers[numbers["step"].isna()]
    assert dict(zip(lost["model"], lost["status"], strict=True)) == {runs[1].model: "diverged", runs[2].model: "failed"}
    (legend,) = _draw(dynamics, numbers).legends
    assert legend.get_title().get_text().splitlines()[1] == "encoder: 1 of 2 seeds diverged; decoder: failed"
    panels = _draw(dynamics_layers, dynamics_layers.numbers(inputs)).axes
    assert panels[0].get_title() == "encoder (1 of 2 seeds diverged)"
    assert "failed" in {text.get_text() for text in panels[2].texts}


def test_where_every_run_was_lost_the_figure_says_how(tmp_path):
    numbers = dynamics.numbers(write_training(tmp_path, [Run(status="diverged"), Run("decoder", status="failed")]))
    for axes in _draw(dynamics, numbers).axes:
        assert "encoder: diverged\ndecoder: failed" in {text.get_text() for text in axes.texts}


def test_a_run_with_one_snapshot_or_one_layer_is_drawn(tmp_path):
    run = Run(depth=4)
    inputs = write_tables(tmp_path, [run.row()], scored({(run, 0): [0.1]}), [])
    for name in ("dynamics", "dynamics_layers"):
        figures.render(name, inputs, tmp_path / name)


# bad input


@pytest.mark.faults
def test_two_runs_that_cannot_be_told_apart_are_named(tmp_path):
    twin = {**Run().row(), "model": "twin-s0", "run": "twin"}
    with pytest.raises(QkgeomError, match="cannot be told apart") as caught:
        dynamics.numbers(write_tables(tmp_path, [Run().row(), twin], [], []))
    assert "twin-s0" in str(caught.value) and Run().model in str(caught.value)


@pytest.mark.faults
def test_a_snapshot_that_is_no_step_and_a_role_that_is_none_are_named(tmp_path):
    rows = [{**score_rows(Run())[0], "snapshot": "final"}]
    with pytest.raises(QkgeomError, match="final"):
        dynamics.numbers(write_tables(tmp_path, [Run().row()], rows, []))
    with pytest.raises(QkgeomError, match="transducer"):
        dynamics.numbers(write_tables(tmp_path, [{**Run().row(), "role": "transducer"}], [], []))


@pytest.mark.faults
@pytest.mark.parametrize(("need", "what"), [("runs", "table of runs"), ("scores", "table of scores")])
@pytest.mark.parametrize("content", [None, "a,b\n1,2\n", "model,seed\nx,many\n"])
def test_a_table_that_cannot_be_read_is_named(trained, tmp_path, need, what, content):
    path = tmp_path / f"{need}.csv"
    if content is not None:
        path.write_text(content)
    inputs = Inputs(**{"scores": trained.scores, "runs": trained.runs, need: path})
    with pytest.raises(QkgeomError, match=what) as caught:
        figures.render("dynamics", inputs, tmp_path / "x")
    assert str(path) in str(caught.value)


def _draw(module, numbers: pd.DataFrame):
    with matplotlib.rc_context(RC):
        return module.draw(numbers)
