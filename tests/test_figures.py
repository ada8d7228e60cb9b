"""Figures: what they say of themselves, the numbers they draw, and how they look to a reader."""

import importlib
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color, to_rgba
from matplotlib.text import Annotation

from project import qkgeom
from qkgeom import artifacts, figures, tables
from qkgeom.errors import ModelFault, QkgeomError, UsageError
from qkgeom.figures import scores_language, wqk_examples
from qkgeom.figures._style import COLOURS, MAPS, MARKERS, RC, WIDTH
from qkgeom.rendering import Inputs, parse_examples, specs
from qkgeom.scores import score_layer
from qkgeom.scoring import to_torch
from scored_models import inputs_for, random_layer, summary_row, write_artifact, write_summary, zoo

FIGURES = specs(Path(figures.__file__).parent)
GOOD = {"PAPER": '"Fig. 9"', "CAPTION": '"A " "caption."', "GROUP": '"language"', "NEEDS": '("summary",)'}


def write_figure(folder: Path, **changed: str | None) -> Path:
    lines = [f"{name} = {value}" for name, value in {**GOOD, **changed}.items() if value is not None]
    file = folder / "some_figure.py"
    file.write_text("import a_module_that_does_not_exist\n" + "\n".join(lines) + "\n")
    return file


# what a figure says of itself


def test_a_file_is_read_without_importing_it(tmp_path):
    file = write_figure(tmp_path)
    (tmp_path / "_shared.py").write_text("1 / 0\n")
    found = specs(tmp_path)
    assert list(found) == ["some_figure"]
    spec = found["some_figure"]
    assert (spec.name, spec.file) == ("some_figure", file)
    assert (spec.paper, spec.caption, spec.groups, spec.needs) == ("Fig. 9", "A caption.", ("language",), ("summary",))
    assert (spec.uses, spec.knob) == ((), "")
    write_figure(tmp_path, GROUP='"vision, audio"', USES='("examples",)', KNOB='"heads"')
    spec = specs(tmp_path)["some_figure"]
    assert (spec.groups, spec.uses, spec.knob) == (("vision", "audio"), ("examples",), "heads")


def test_planning_imports_nothing_heavy():
    code = (
        "import sys; from pathlib import Path; from qkgeom.rendering import specs, HERE\n"
        "assert specs(HERE / 'figures') and specs(HERE / 'tables')\n"
        "print(sorted({'numpy', 'pandas', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_path())
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAPER", None),
        ("CAPTION", "make_caption()"),
        ("GROUP", "1"),
        ("NEEDS", '["summary"]'),
        ("NEEDS", '("weather",)'),
        ("NEEDS", "()"),
        ("NEEDS", "([],)"),
        ("USES", '("weather",)'),
        ("KNOB", "1"),
    ],
)
def test_a_literal_that_is_missing_or_wrong_is_named(tmp_path, name, value):
    file = write_figure(tmp_path, **{name: value})
    with pytest.raises(QkgeomError) as caught:
        specs(tmp_path)
    assert f"does not say its {name}" in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_python_is_named(tmp_path):
    (tmp_path / "broken.py").write_text("PAPER = (\n")
    with pytest.raises(QkgeomError, match=r"broken\.py"):
        specs(tmp_path)


def test_names_can_be_wildcards_and_captions_are_for_readers():
    for spec in [*FIGURES.values(), *specs(Path(tables.__file__).parent).values()]:
        assert spec.name.replace("_", "").isalnum() and spec.name.islower()
        assert len(spec.caption) > 60 and spec.caption.endswith(".")


# every figure


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_renders_and_its_csv_holds_what_is_drawn(tmp_path, name):
    inputs = inputs_for(tmp_path, FIGURES[name].groups[0])
    stem = tmp_path / "out v1.2" / name
    figures.render(name, inputs, stem)
    endings = ("csv", "md", "pdf", "png", "provenance.json")
    assert sorted(path.name for path in stem.parent.iterdir()) == [f"{name}.{ending}" for ending in endings]
    caption = (stem.parent / f"{name}.md").read_text()
    assert FIGURES[name].caption in caption and "(none)" not in caption
    module = importlib.import_module(f"qkgeom.figures.{name}")
    expected = module.numbers(inputs)
    assert len(expected)
    written = pd.read_csv(f"{stem}.csv", dtype=expected.dtypes.to_dict())
    pd.testing.assert_frame_equal(written, expected, rtol=1e-8)
    figure = module.draw(expected)
    assert figure.get_figwidth() == WIDTH
    sizes = [text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    assert min(sizes) >= 7


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_inputs_give_the_same_bytes(tmp_path, name):
    inputs = inputs_for(tmp_path, FIGURES[name].groups[0])
    for stem in ("a", "b"):
        figures.render(name, inputs, tmp_path / stem)
    for ending in ("csv", "pdf", "png"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_a_readers_own_matplotlib_settings_and_process_change_no_byte(tmp_path):
    inputs = inputs_for(tmp_path, "language")
    figures.render("scores_language", inputs, tmp_path / "a")
    (tmp_path / "matplotlibrc").write_text("font.family: serif\naxes.facecolor: yellow\nbackend: tkagg\n")
    code = (
        "import sys; from pathlib import Path; from qkgeom.figures import render; from qkgeom.rendering import Inputs\n"
        "render('scores_language', Inputs(summary=Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    environment = _path(MATPLOTLIBRC=str(tmp_path), PYTHONHASHSEED="7")
    subprocess.run([sys.executable, "-c", code, str(inputs.summary), str(tmp_path / "b")], check=True, env=environment)
    for ending in ("csv", "pdf", "png"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


# the comparison with the paper says it in its own way: tests/test_published_values.py
@pytest.mark.parametrize(
    "name", [name for name, spec in FIGURES.items() if "summary" in spec.needs and "published" not in spec.needs]
)
def test_a_figure_without_any_scored_model_says_so(tmp_path, name):
    spec = FIGURES[name]
    rows = [row for row in zoo(spec.groups[0]) if row["symmetry_median"] is None or row["group"] not in spec.groups]
    inputs = inputs_for(tmp_path, spec.groups[0], rows)
    figures.render(name, inputs, tmp_path / name)
    module = importlib.import_module(f"qkgeom.figures.{name}")
    figure = module.draw(module.numbers(inputs))
    assert all("no scored model" in {text.get_text() for text in axes.texts} for axes in figure.axes)
    assert pd.read_csv(tmp_path / f"{name}.csv").empty


# scores against size


def test_numbers_of_scores_language(tmp_path):
    inputs = Inputs(summary=write_summary(tmp_path / "summary.csv", zoo()))
    numbers = scores_language.numbers(inputs)
    assert numbers["model"].tolist() == ["enc-shallow", "enc-small", "dec-large", "dec-unknown"]
    assert numbers["label"].tolist() == ["enc_shallow & 50%", "enc-small", "dec-large", "dec-unknown"]
    assert numbers["n_params"].fillna(0).tolist() == [4_385_920, 22_713_216, 405_849_522_176, 0]
    assert numbers["n_layers"].tolist() == [2, 6, 30, 4]
    assert numbers["symmetry_median"].tolist() == [0.1, 0.5, 0.05, -0.001]
    assert numbers["directionality_excess_q1"].tolist() == [0.0, -0.2, 0.0, 0.0]


def test_a_series_is_shown_by_its_last_snapshot(tmp_path):
    rows = [summary_row("run", "encoder", 10**6, 4, {"symmetry": (s, s, s)}, snapshot=k) for k, s in enumerate((0.1, 0.2, 0.3))]
    numbers = scores_language.numbers(Inputs(summary=write_summary(tmp_path / "summary.csv", rows)))
    assert numbers["symmetry_median"].tolist() == [0.3]


def test_models_of_the_same_weights_are_shown_once(tmp_path):
    rows = [summary_row(name, "encoder", 10**6, 2, {}) for name in ("wavlm", "other")]
    rows.insert(1, summary_row("wavlm-sd", "encoder", 10**6, 2, {}, same_as="wavlm"))
    rows += [summary_row(f"musicgen-{k}", "encoder", 10**6, 2, {}, same_as="t5 of another figure") for k in range(2)]
    assert list(_numbers(tmp_path, rows)["model"]) == ["musicgen-0", "other", "wavlm"]


def test_a_model_called_na_keeps_its_name_and_a_missing_label_is_the_model(tmp_path):
    rows = [summary_row("NA", "encoder", 10**6, 4, {}), summary_row("nan", "decoder", 10**7, 4, {}, label=None)]
    numbers = scores_language.numbers(Inputs(summary=write_summary(tmp_path / "summary.csv", rows)))
    assert numbers["label"].tolist() == ["NA", "nan"]


def test_points_and_bars_are_the_numbers(tmp_path):
    numbers = _numbers(tmp_path, zoo()[:2])
    for axes, score in zip(_draw(numbers).axes, ("symmetry", "directionality_excess"), strict=True):
        assert axes.get_xscale() == "log"
        assert axes.get_ylim() == pytest.approx((-1.05, 1.05))
        assert score.split("_")[-1] in axes.get_ylabel()
        drawn = {}
        for marks in axes.containers:
            (x,), (y,) = marks.lines[0].get_data()
            (bar,) = marks.lines[2][0].get_segments()
            drawn[float(x)] = [float(y), *bar[:, 1]]
        for row in numbers.to_dict("records"):
            assert drawn[row["n_params"]] == pytest.approx([row[f"{score}_{q}"] for q in ("median", "q1", "q3")])


def test_the_towers_of_one_model_stand_side_by_side(tmp_path):
    rows = [summary_row(f"t5.{role}", role, 10**6, 2, {}) for role in ("encoder", "decoder")]
    axes = _draw(_numbers(tmp_path, [*rows, summary_row("bert", "encoder", 10**7, 2, {})])).axes[0]
    places = sorted(float(x) for marks in axes.containers for x in marks.lines[0].get_xdata())
    assert places[0] < 10**6 < places[1] < 1.1 * places[0] * 1.1
    assert places[2] == 10**7


def test_models_of_nearly_the_same_size_stand_side_by_side_and_not_far_from_it(tmp_path):
    rows = [summary_row(f"m{k}", "decoder", 10**6 + k, 2, {}) for k in range(3)]
    many = [summary_row(f"n{k}", "decoder", 10**8, 2, {}) for k in range(40)]
    axes = _draw(_numbers(tmp_path, [*rows, *many])).axes[0]
    places = np.log(sorted(float(x) for marks in axes.containers for x in marks.lines[0].get_xdata()))
    assert np.diff(places[:3]) == pytest.approx(0.1) and places[1] == pytest.approx(np.log(10**6), abs=1e-4)
    assert np.abs(places[3:] - np.log(10**8)).max() == pytest.approx(0.15)


def test_colour_and_marker_tell_the_roles_and_open_ones_the_shallow(tmp_path):
    sizes = {"encoder": 1, "decoder": 2}
    rows = [summary_row(f"{role}{n}", role, size * 10 ** (6 + n), n, {}) for role, size in sizes.items() for n in (2, 3)]
    axes = _draw(_numbers(tmp_path, rows)).axes[0]
    seen = set()
    for marks in axes.containers:
        line = marks.lines[0]
        role = next(role for role, colour in COLOURS.items() if same_color(line.get_color(), colour))
        assert line.get_marker() == MARKERS[role]
        is_open = not same_color(line.get_markerfacecolor(), COLOURS[role])
        assert set(line.get_xdata()) == {sizes[role] * 10 ** (6 + (2 if is_open else 3))}
        seen.add((role, is_open))
    assert seen == {(role, is_open) for role in COLOURS for is_open in (True, False)}
    assert COLOURS == {"encoder": "navy", "decoder": "purple"}
    assert len(set(MARKERS.values())) == 2


@pytest.mark.parametrize(("n_layers", "explained"), [(2, True), (3, False)])
def test_the_legend_explains_open_markers_only_where_there_are_any(tmp_path, n_layers, explained):
    (legend,) = _draw(_numbers(tmp_path, [summary_row("a", "encoder", 10**6, n_layers, {})])).legends
    few = ["fewer than 3 layers"] if explained else []
    assert [text.get_text() for text in legend.get_texts()] == ["encoder", *few, "95 % of random layers"]


def test_a_model_of_unknown_size_is_drawn_apart(tmp_path):
    axes = _draw(_numbers(tmp_path, zoo())).axes[0]
    labels = dict(zip([text.get_text() for text in axes.get_xticklabels()], axes.get_xticks(), strict=True))
    drawn = {float(x) for marks in axes.containers for x in marks.lines[0].get_xdata()}
    assert min(drawn) == labels["n/a"] < labels["1M"]
    alone = _draw(_numbers(tmp_path, [summary_row("a", "encoder", None, 4, {})])).axes[0]
    assert [text.get_text() for text in alone.get_xticklabels()] == ["n/a"]


def test_a_few_models_are_named_beside_their_points(tmp_path):
    numbers = _numbers(tmp_path, zoo()[:2])
    figure = _draw(numbers)
    for axes in figure.axes:
        assert {text.get_text(): to_rgba(text.get_color()) for text in _names(axes)} == {
            "enc-small": to_rgba("navy"),
            "dec-large": to_rgba("purple"),
        }
    _assert_nothing_overlaps(figure)


def test_crowded_models_get_numbers_and_a_key(tmp_path):
    rows = [summary_row(f"a-model-with-a-long-name-{k}", "encoder", int(1e8 * 1.1**k), 12, {}) for k in range(12)]
    figure = _draw(_numbers(tmp_path, rows))
    for axes in figure.axes:
        assert [text.get_text() for text in _names(axes)] == [str(k) for k in range(1, 13)]
    key = [text.get_text() for text in figure.legends[-1].get_texts()]
    assert key == [f"{k}  a-model-with-a-long-name-{k - 1}" for k in range(1, 13)]
    _assert_nothing_overlaps(figure)


def test_a_key_of_long_names_stays_on_the_page(tmp_path):
    rows = [summary_row(f"{k}-{'a-very-long-name' * 3}", "encoder", int(1e8 * 1.1**k), 12, {}) for k in range(7)]
    figure = _draw(_numbers(tmp_path, rows))
    figure.draw_without_rendering()
    box = figure.legends[-1].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert box.y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)


def test_many_models_are_not_named(tmp_path):
    rows = [summary_row(f"model-{k}", "encoder", 10**6 + k, 12, {}) for k in range(13)]
    figure = _draw(_numbers(tmp_path, rows))
    assert not any(_names(axes) for axes in figure.axes)
    assert len(figure.legends) == 1


def test_untrained_models_have_a_dagger_named_or_not(tmp_path):
    rows = [
        summary_row(f"m{k}", "encoder", 10 ** (5 + k), 12, {}, verdict="untrained" if k == 1 else "not random") for k in (1, 2)
    ]
    for axes in _draw(_numbers(tmp_path, rows)).axes:
        assert [text.get_text() for text in _names(axes)] == ["m1 †", "m2"]
    many = rows + [summary_row(f"n{k}", "decoder", 10**8 + k, 12, {}) for k in range(12)]
    for axes in _draw(_numbers(tmp_path, many)).axes:
        assert [(text.get_text(), text.xy) for text in _names(axes)] == [("†", (10**6, 0.1))]


# the corner of W_qk


@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
def test_entries_are_sums_over_heads_with_their_key_head(tmp_path, n_kv_head):
    W_q, W_k = random_layer(60, 4, n_kv_head)
    folder = write_artifact(tmp_path / "some-model", [random_layer(8), (W_q, W_k)])
    numbers = wqk_examples.numbers(Inputs(examples={"decoder": (folder, 1)}))
    expected = sum(W_q[:, h].astype(float) @ W_k[:, h // (4 // n_kv_head)].T.astype(float) for h in range(4))
    assert len(numbers) == 2500
    assert numbers[["role", "model", "layer"]].drop_duplicates().to_numpy().tolist() == [["decoder", "some-model", 1]]
    assert numbers["value"].to_numpy() == pytest.approx(expected[numbers["row"], numbers["col"]], abs=1e-9)
    symmetry = np.trace(expected @ expected) / np.linalg.norm(expected) ** 2
    assert numbers["symmetry"].unique() == pytest.approx([symmetry])
    (image,) = wqk_examples.draw(numbers).axes[1].images
    assert np.asarray(image.get_array()) == pytest.approx(expected[:50, :50], abs=1e-9)


def test_colours_are_symmetric_robust_and_of_the_role(tmp_path):
    inputs = inputs_for(tmp_path, "language")
    numbers = wqk_examples.numbers(inputs)
    figure = wqk_examples.draw(numbers)
    for axes, role in zip(figure.axes, ("encoder", "decoder"), strict=False):
        (image,) = axes.images
        end = np.percentile(numbers.loc[numbers["role"] == role, "value"].abs(), 99)
        assert image.get_clim() == pytest.approx((-end, end))
        assert same_color(image.cmap(1.0), COLOURS[role]) and np.allclose(MAPS[role](0.5)[:3], 1, atol=0.01)
        folder, layer = inputs.examples[role]
        score = score_layer(*(to_torch(W, "cpu") for W in artifacts.read_layer(folder, "final.safetensors", layer)))["all"]
        assert axes.get_title() == f"{role}: {folder.name}\nlayer {layer}, symmetry {score.symmetry:.2f}"


def test_small_and_bfloat16_and_zero_layers_are_drawn(tmp_path):
    import ml_dtypes

    small = write_artifact(tmp_path / "small", [random_layer(12, dtype=ml_dtypes.bfloat16)])
    zero = write_artifact(tmp_path / "zero", [tuple(np.zeros_like(W) for W in random_layer(12))])
    numbers = wqk_examples.numbers(Inputs(examples={"encoder": (small, 0), "decoder": (zero, 0)}))
    assert numbers.groupby("role").size().to_dict() == {"encoder": 144, "decoder": 144}
    assert "no score" in wqk_examples.draw(numbers).axes[1].get_title()


def test_a_failed_example_leaves_its_panel_empty(tmp_path):
    good = write_artifact(tmp_path / "good", [random_layer()])
    artifacts.write_manifest(tmp_path / "bad", {"model": "bad", "status": "failed", "reason": "gated"})
    stem = tmp_path / "figure"
    figures.render("wqk_examples", Inputs(examples={"encoder": (tmp_path / "bad", 0), "decoder": (good, 0)}), stem)
    numbers = pd.read_csv(f"{stem}.csv")
    assert set(numbers["role"]) == {"decoder"}
    assert [text.get_text() for text in wqk_examples.draw(numbers).axes[0].texts] == ["no encoder with stored weights"]
    figures.render("wqk_examples", Inputs(examples={"encoder": (tmp_path / "bad", 0)}), stem)
    assert pd.read_csv(f"{stem}.csv").empty


# bad input


@pytest.mark.faults
def test_an_unknown_figure_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UsageError) as caught:
        figures.render("scores_langauge", Inputs(), tmp_path / "x")
    assert "scores_langauge" in str(caught.value)
    assert all(name in str(caught.value) for name in FIGURES)


@pytest.mark.faults
@pytest.mark.parametrize(("name", "option"), [("scores_language", "--summary"), ("wqk_examples", "--example")])
def test_an_input_that_is_not_given_is_named(tmp_path, name, option):
    with pytest.raises(UsageError, match=option):
        figures.render(name, Inputs(), tmp_path / "x")


@pytest.mark.faults
@pytest.mark.parametrize("content", [None, "", "not,a,summary\n1,2,3\n", b"\xff\xfe\x00", "n_params\nmany\n"])
def test_a_summary_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "summary.csv"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(QkgeomError, match="summary of scores") as caught:
        figures.render("scores_language", Inputs(summary=path), tmp_path / "x")
    assert str(path) in str(caught.value)
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.faults
def test_an_unknown_role_is_named(tmp_path):
    path = write_summary(tmp_path / "summary.csv", [summary_row("a", "transducer", 10**6, 4, {})])
    with pytest.raises(QkgeomError, match="transducer"):
        figures.render("scores_language", Inputs(summary=path), tmp_path / "x")


@pytest.mark.faults
@pytest.mark.parametrize(
    "texts",
    [["folder:3"], ["encoder=folder"], ["encoder=folder:-1"], ["encoder=:1"], ["other=f:1"], ["encoder=f:1", "encoder=g:1"]],
)
def test_an_example_that_is_not_understood_is_refused(texts):
    with pytest.raises(UsageError, match=r"ROLE=FOLDER:LAYER"):
        parse_examples(texts)


def test_examples_may_have_colons_and_spaces_in_their_folders(tmp_path):
    folder = write_artifact(tmp_path / "a folder:b=c", [random_layer()])
    assert parse_examples([f"encoder={folder}:12"]) == {"encoder": (folder, 12)}


@pytest.mark.faults
def test_an_example_without_artifact_is_refused_before_anything_is_written(tmp_path):
    result = qkgeom("figure", "norm_profiles", "--example", f"encoder={tmp_path / 'nosuch'}:0", "-o", str(tmp_path / "x"))
    assert (
        result.returncode == 2 and "an example's folder holds no artifact" in result.stderr and "Traceback" not in result.stderr
    )
    assert not list(tmp_path.glob("x*"))


def test_the_caption_shows_the_picture_beside_it(tmp_path):
    folder = write_artifact(tmp_path / "model", [random_layer()])
    figures.render("wqk_examples", Inputs(examples={"encoder": (folder, 0)}), tmp_path / "mine")
    assert "![wqk_examples](mine.png)" in (tmp_path / "mine.md").read_text() and (tmp_path / "mine.png").is_file()


@pytest.mark.faults
def test_an_example_without_artifact_or_layer_is_named(tmp_path):
    folder = write_artifact(tmp_path / "model", [random_layer()])
    with pytest.raises(ModelFault, match=r"layer\.007"):
        figures.render("wqk_examples", Inputs(examples={"encoder": (folder, 7)}), tmp_path / "x")
    with pytest.raises(QkgeomError, match="nowhere"):
        figures.render("wqk_examples", Inputs(examples={"encoder": (tmp_path / "nowhere", 0)}), tmp_path / "x")


def test_the_command_line_draws(tmp_path):
    folder = write_artifact(tmp_path / "a model", [random_layer()])
    stem = tmp_path / "out" / "corner"
    result = qkgeom("figure", "wqk_examples", "--example", f"encoder={folder}:0", "--output", str(stem))
    assert result.returncode == 0, result.stderr
    assert {path.suffix for path in stem.parent.iterdir()} == {".pdf", ".png", ".csv", ".md", ".json"}


def _numbers(folder: Path, rows: list[dict]) -> pd.DataFrame:
    return scores_language.numbers(Inputs(summary=write_summary(folder / "summary.csv", rows)))


def _draw(numbers: pd.DataFrame):
    with matplotlib.rc_context(RC):
        return scores_language.draw(numbers)


def _names(axes) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation)]


def _assert_nothing_overlaps(figure) -> None:
    figure.draw_without_rendering()
    page = figure.bbox
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        boxes += [axes.transData.transform(marks.lines[0].get_xydata())[0] for marks in axes.containers]
        for k, box in enumerate(boxes):
            if isinstance(box, np.ndarray):
                assert not any(other.contains(*box) for other in boxes if not isinstance(other, np.ndarray))
                continue
            assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
            assert not any(box.overlaps(other) for other in boxes[:k] if not isinstance(other, np.ndarray))


def _path(**more: str) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(figures.__file__).parents[2]), **more}
