"""Figures of single heads and of norms: which are shown, and what is drawn."""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest

from qkgeom import artifacts, null
from qkgeom.figures import heads, norm_profiles
from qkgeom.figures._head_map import ABSENT
from qkgeom.figures._style import COLOURS, RC
from qkgeom.rendering import Inputs
from qkgeom.scoring import COLUMNS
from scored_models import random_layer, summary_row, write_artifact, write_summary


def score_rows(model: str, layers: list[list[float]], snapshot: str = "final") -> list[dict]:
    """A row per layer and head; `layers` are the heads' symmetries, directionality their negative."""
    common = {"model": model, "snapshot": snapshot, "status": "ok", "d_model": 64, "n_kv_head": 2, "d_head": 16}
    rows = []
    for layer, symmetries in enumerate(layers):
        for head, s in zip(["all", *range(len(symmetries))], [0.9, *symmetries], strict=True):
            rows.append(common | {"layer": layer, "head": head, "symmetry": s, "directionality_excess": -s})
    return rows


def inputs_of(folder: Path, models: list[dict], scores: list[dict], examples: dict[str, str] | None = None) -> Inputs:
    pd.DataFrame(scores, columns=list(COLUMNS)).to_csv(folder / "scores.csv", index=False)
    found = {role: (Path("results/models") / name, 0) for role, name in (examples or {}).items()}
    return Inputs(write_summary(folder / "summary.csv", models), folder / "scores.csv", found)


def draw(module, numbers: pd.DataFrame):
    with matplotlib.rc_context(RC):
        return module.draw(numbers)


def model(name: str, role: str, n_params: int = 10**6, group: str = "language", **more) -> dict:
    return summary_row(name, role, n_params, 2, {}, group=group, **more)


def texts(axes) -> str:
    return " ".join(text.get_text() for text in axes.texts)


# heads: which are shown


def test_every_head_of_the_last_snapshot_of_each_model_is_a_row(tmp_path):
    models = [model("run", "encoder", snapshot=step) for step in (0, 10)] + [
        model("gpt", "decoder"),
        model("other", "encoder", group="training"),
    ]
    scores = score_rows("run", [[0.5, 0.6]], "0") + score_rows("run", [[0.1, 0.2], [0.3, 0.4]], "10")
    numbers = heads.numbers(inputs_of(tmp_path, models, [*scores, *score_rows("gpt", [[-0.1]]), *score_rows("other", [[0.7]])]))
    assert numbers[["model", "layer", "head", "symmetry"]].to_numpy().tolist() == [
        ["run", 0, "0", 0.1],
        ["run", 0, "1", 0.2],
        ["run", 1, "0", 0.3],
        ["run", 1, "1", 0.4],
        ["gpt", 0, "0", -0.1],
    ]


def test_the_preset_s_examples_are_mapped(tmp_path):
    models = [model("small", "encoder"), model("large", "encoder", 10**9), model("gpt", "decoder")]
    scores = [row for each in models for row in score_rows(each["model"], [[0.1]])]
    for examples, mapped in [
        ({"encoder": "small", "decoder": "gpt"}, {"small", "gpt"}),
        ({}, {"large", "gpt"}),
        ({"encoder": "of another run"}, {"large", "gpt"}),
    ]:
        numbers = heads.numbers(inputs_of(tmp_path, models, scores, examples))
        assert set(numbers.loc[numbers["map"], "model"]) == mapped


def test_an_example_without_scored_heads_is_replaced_by_the_largest_of_the_first_group(tmp_path, caplog):
    models = [model("none", "encoder"), model("bert", "encoder"), model("vit", "encoder", 10**9, "vision")]
    scores = score_rows("bert", [[0.1]]) + score_rows("vit", [[0.2]]) + score_rows("none", [[]])
    numbers = heads.numbers(inputs_of(tmp_path, models, scores, {"encoder": "none"}))
    assert set(numbers.loc[numbers["map"], "model"]) == {"bert"}
    assert "none has no scored heads as encoder in these tables, so that bert is mapped" in caplog.text
    assert numbers.set_index("model").loc["none", ["layer", "head"]].isna().all()


# heads: what is drawn


def test_halves_of_each_group_hold_their_heads_and_their_quartiles(tmp_path):
    models = [model("bert", "encoder"), model("gpt", "decoder"), model("vit", "encoder", group="vision")]
    values = {"bert": [0.4, 0.41, 0.42, 0.9], "gpt": [-0.1, 0.0], "vit": [0.2]}
    scores = [row for name, symmetries in values.items() for row in score_rows(name, [symmetries])]
    figure = draw(heads, heads.numbers(inputs_of(tmp_path, models, scores)))
    symmetry, directionality = figure.axes[:2]
    assert [text.get_text().split() for text in symmetry.get_xticklabels()] == [["language", "4", "2"], ["vision", "1", "–"]]
    bars, medians = symmetry.lines[1::2], symmetry.lines[2::2]  # the first line is at 0
    assert [line.get_color() for line in bars] == [COLOURS["encoder"], COLOURS["decoder"], COLOURS["encoder"]]
    for (name, symmetries), bar, median in zip(values.items(), bars, medians, strict=True):
        assert list(bar.get_ydata()) == pytest.approx(np.percentile(symmetries, (25, 75))), name
        assert median.get_ydata() == pytest.approx(np.median(symmetries))
    assert [float(line.get_ydata()[0]) for line in directionality.lines[2::2]] == pytest.approx([-0.415, 0.05, -0.2])
    encoder, decoder, vision = (patch.get_path().get_extents() for patch in symmetry.patches)
    assert encoder.x0 < 0 == encoder.x1 and decoder.x0 == 0 < decoder.x1 and vision.x0 < 1 == vision.x1
    assert encoder.y1 >= 0.9 and decoder.y0 <= -0.1


def test_the_band_is_that_of_the_median_head_s_shape(tmp_path):
    models = [model("bert", "encoder"), model("gpt", "decoder"), model("gpt-2", "decoder")]
    scores = [row for name, width in zip(("bert", "gpt", "gpt-2"), (64, 100, 400), strict=True)
              for row in (line | {"d_model": width} for line in score_rows(name, [[0.1] * 3]))]  # fmt: skip
    figure = draw(heads, heads.numbers(inputs_of(tmp_path, models, scores)))
    for axes, score in zip(figure.axes[:2], ("symmetry", "directionality_excess"), strict=True):
        low, high = null.interval(score, np.array([64.0, 100, 400]), np.full(3, 16.0))
        boxes = [band.get_paths()[0].get_extents() for band in axes.collections]
        assert [(box.y0, box.y1) for box in boxes] == [
            pytest.approx((low[0], high[0])),
            pytest.approx((low[1:].mean(), high[1:].mean())),
        ]
        assert boxes[0].x0 < 0 == boxes[0].x1 == boxes[1].x0 < boxes[1].x1


def test_maps_show_layers_by_heads_and_what_is_missing_in_grey(tmp_path):
    scores = score_rows("swin", [[0.1, -0.2], [0.3, 0.4, 0.5, np.nan]])
    numbers = heads.numbers(inputs_of(tmp_path, [model("swin", "encoder", group="vision", label="Swin T")], scores))
    figure = draw(heads, numbers)
    symmetry, directionality = (axes for axes in figure.axes if axes.images)
    assert symmetry.get_title(loc="left") == "encoder: Swin T"
    for axes, sign in ((symmetry, 1), (directionality, -1)):
        (image,) = axes.images
        values = image.get_array()
        wanted = [[0.1, -0.2, np.nan, np.nan], [0.3, 0.4, 0.5, np.nan]]
        assert np.ma.filled(values, np.nan) == pytest.approx(sign * np.array(wanted), nan_ok=True)
        low, high = image.get_clim()
        assert low == -high == pytest.approx(-np.percentile([0.1, 0.2, 0.3, 0.4, 0.5], 99))
        assert matplotlib.colors.same_color(image.cmap(np.ma.masked_invalid([np.nan]))[0], ABSENT)


def test_models_without_scored_heads_are_counted(tmp_path):
    models = [model("bert", "encoder"), model("gpt", "decoder"), model("opt", "decoder")]
    figure = draw(heads, heads.numbers(inputs_of(tmp_path, models, score_rows("bert", [[0.1]]))))
    (legend,) = figure.subfigs[0].legends
    assert legend.get_title().get_text() == "2 of 3 models have no scored head"
    assert [text.get_text() for text in legend.get_texts()] == ["encoder", "decoder", "95 % of random heads"]


def test_without_any_scored_head_the_figure_says_what_to_set(tmp_path):
    figure = draw(heads, heads.numbers(inputs_of(tmp_path, [model("bert", "encoder")], score_rows("bert", [[]]))))
    assert len(figure.axes) == 2
    assert all("set `heads: true`" in texts(axes) for axes in figure.axes)


def test_a_model_whose_every_head_lacks_a_score_is_drawn(tmp_path):
    scores = score_rows("bert", [[np.nan, np.nan]])
    figure = draw(heads, heads.numbers(inputs_of(tmp_path, [model("bert", "encoder")], scores)))
    figure.draw_without_rendering()
    assert all(np.ma.getmaskarray(axes.images[0].get_array()).all() for axes in figure.axes if axes.images)


# norm profiles


def spiked() -> tuple[np.ndarray, np.ndarray]:
    """A layer whose columns 5 and 9 and row 2 stand out."""
    W_q, W_k = random_layer(60, 4, 2)
    W_q[2] *= 30
    W_k[[5, 9]] *= np.array([20, 40], np.float32)[:, None, None]
    return W_q, W_k


def test_norms_are_sorted_and_relative_to_their_mean(tmp_path):
    W_q, W_k = spiked()
    folder = write_artifact(tmp_path / "m", [random_layer(), (W_q, W_k)])
    numbers = norm_profiles.numbers(Inputs(examples={"decoder": (folder, 1)}))
    M = sum(W_q[:, h].astype(float) @ W_k[:, h // 2].T.astype(float) for h in range(4))
    for side, axis, first in (("rows", 1, [2]), ("columns", 0, [9, 5])):
        rows = numbers[numbers["side"] == side]
        norms = np.linalg.norm(M, axis=axis)
        assert rows["rank"].tolist() == list(range(1, 61))
        assert rows["index"].tolist()[: len(first)] == first
        assert rows["norm_over_mean"].to_numpy() == pytest.approx(np.sort(norms)[::-1] / norms.mean())
        assert rows["threshold_over_mean"].unique() == pytest.approx([1 + 2 * norms.std(ddof=1) / norms.mean()])
    axes = draw(norm_profiles, numbers).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["rows: 1 outlier (2)", "columns: 2 outliers (9, 5)"]


def test_profiles_are_called_by_the_label_of_the_summary_and_have_a_panel_each(tmp_path):
    folder = write_artifact(tmp_path / "m", [random_layer()])
    summary = write_summary(tmp_path / "summary.csv", [model("m", "decoder", label="Model M")])
    for given, label in ((summary, "Model M"), (None, "m")):
        numbers = norm_profiles.numbers(Inputs(summary=given, examples={"decoder": (folder, 0)}))
        assert [axes.get_title() for axes in draw(norm_profiles, numbers).axes] == [f"decoder: {label}\nlayer 0"]


@pytest.mark.parametrize(("value", "said"), [(0.0, "zero, or not finite"), (np.nan, "zero, or not finite")])
def test_a_layer_without_norms_says_so(tmp_path, value, said):
    bad = write_artifact(tmp_path / "bad", [tuple(np.full_like(W, value) for W in random_layer(12))])
    artifacts.write_manifest(tmp_path / "failed", {"model": "failed", "status": "failed", "reason": "gated"})
    numbers = norm_profiles.numbers(Inputs(examples={"encoder": (bad, 0), "decoder": (tmp_path / "failed", 0)}))
    encoder, decoder = draw(norm_profiles, numbers).axes
    assert texts(encoder) == said and encoder.get_title() == "encoder: bad\nlayer 0"
    assert texts(decoder) == "no stored weights" and decoder.get_title() == "decoder: failed\nlayer 0"


def test_equal_norms_have_no_outlier_and_no_threshold_line(tmp_path):
    same = write_artifact(tmp_path / "same", [tuple(np.ones_like(W) for W in random_layer(12))])
    figure = draw(norm_profiles, norm_profiles.numbers(Inputs(examples={"encoder": (same, 0)})))
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["rows: 0 outliers", "columns: 0 outliers"]
