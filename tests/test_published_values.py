"""What the paper gives (published.tsv), and how it is compared with what is found here."""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Annotation

from project import ROOT
from qkgeom import figures, tables
from qkgeom.comparison import AGREES, DIFFERS, NOT_HERE, NOT_PUBLISHED, compared
from qkgeom.errors import UsageError
from qkgeom.figures import published_vs_reproduced as figure
from qkgeom.published_values import DEFECTS, PUBLISHED, QUARTILES, SCORES, read_published
from qkgeom.registry import read_models
from qkgeom.rendering import Inputs
from qkgeom.runs import read_runs
from qkgeom.scoring import COLUMNS, write_scores
from scored_models import summary_row, write_summary

NUMBERS = [f"{score}_{quartile}" for score in SCORES for quartile in QUARTILES]
AUTHORS = ROOT.parent / "shared/published/per_layer_scores.csv"
ROWS = read_published()
MODELS = read_models()

# published.tsv


def test_every_row_is_of_a_model_or_of_a_run_of_the_paper():
    runs = {run.run for run in read_runs("paper").values()}
    for name, row in ROWS.items():
        known = runs if row["table"] == "1" else {model for model in MODELS if "paper" in MODELS[model].presets.split(",")}
        assert name in known, name


def test_every_model_of_the_paper_has_a_row_with_numbers_or_a_reason():
    paper = {name for name, model in MODELS.items() if "paper" in model.presets.split(",")}
    assert paper <= set(ROWS)
    for name in paper:
        row = ROWS[name]
        given = [row[number] for number in NUMBERS]
        assert (all(given) and row["n_layers"]) or (not any(given) and row["note"]), name
    encoders = {run.run for run in read_runs("paper").values() if run.role == "encoder" and run.init == "default"}
    assert encoders == {name for name, row in ROWS.items() if row["table"] == "1"}
    for name in encoders:
        assert ROWS[name]["train_loss_default"] or ROWS[name]["note"]


def test_every_row_says_what_it_rests_on_and_its_quartiles_are_in_order():
    for name, row in ROWS.items():
        assert row["source"], name
        for score in SCORES:
            if row[f"{score}_median"]:
                q1, median, q3 = (float(row[f"{score}_{q}"]) for q in ("q1", "median", "q3"))
                assert -1 <= q1 <= median <= q3 <= 1, name


def test_the_words_of_defects_are_those_of_the_schema_and_of_the_docs():
    pattern = (ROOT / "workflow/schemas/published.schema.yaml").read_text()
    docs = (ROOT / "docs/published.md").read_text()
    for word in DEFECTS:
        assert word in pattern and f"`{word}`" in docs
    assert {word for row in ROWS.values() for word in row["defect"].split(",") if word} == set(DEFECTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("\t0.49\t", "\t0.491\t", 1), "a number with two decimals"),
        (lambda text: text.replace("grouped_heads", "grouped_hats", 1), "known defects"),
        (lambda text: text + text.splitlines()[1] + "\n", "two rows are about"),
        (lambda text: text.replace("printed_as", "printed", 1), "unknown column printed"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, change, message):
    path = tmp_path / "published.tsv"
    path.write_text(change(PUBLISHED.read_text()))
    with pytest.raises(UsageError, match=message) as caught:
        read_published(path)
    assert "published.tsv" in str(caught.value)


@pytest.mark.skipif(not AUTHORS.is_file(), reason="needs the authors' released scores in ../shared/published")
def test_the_numbers_are_those_of_the_released_scores():
    with AUTHORS.open() as file:
        released: dict[tuple, list] = {}
        for row in csv.DictReader(file):
            released.setdefault((row["family"].lower(), row["model_id"]), []).append(row)
    n_checked = 0
    for name, row in ROWS.items():
        if not row["symmetry_median"]:
            continue
        part = name.rpartition(".")[2]
        of_model = {
            family: layers
            for (family, model), layers in released.items()
            if model == row["printed_as"] and (part not in ("encoder", "decoder") or part in family or "coder" not in family)
        }
        wanted = [float(row[number]) for number in NUMBERS]
        found = [
            [
                np.percentile([float(layer[column]) for layer in layers], q)
                for column in ("symmetry", "directionality")
                for q in (50, 25, 75)
            ]
            for layers in of_model.values()
            if len(layers) == int(row["n_layers"])
        ]
        assert any(np.allclose(numbers, wanted, atol=0.0051) for numbers in found), name
        n_checked += 1
    assert n_checked == 180


# against what is found here

HEADER = "model\tprinted_as\ttable\tn_layers\t" + "\t".join(NUMBERS) + "\tdefect\tsource\tnote\n"


def published(folder: Path, **models: tuple) -> Path:
    """Rows of model -> its symmetry and directionality (quartiles 0.10 away), layers, defect and note."""
    lines = []
    for name, (symmetry, excess, n_layers, defect, note) in models.items():
        cells = [f"{x + by:.2f}" for x in (symmetry, excess) for by in (0, -0.1, 0.1)] if n_layers else [""] * 6
        lines.append("\t".join([name, f"org/{name}", "", str(n_layers or ""), *cells, defect, "a test", note]) + "\n")
    path = folder / "published.tsv"
    path.write_text(HEADER + "".join(lines))
    return path


def here(name: str, symmetry: float, excess: float, role: str = "decoder", **more) -> dict:
    scores = {score: (x, x - 0.1, x + 0.1) for score, x in zip(SCORES, (symmetry, excess), strict=True)}
    return summary_row(name, role, 10**6, 4, scores, **more)


def rows_of(model: str, values: list[tuple[float, float]], **more) -> list[dict]:
    sizes = {"d_model": 8, "n_head": 2, "n_kv_head": 2, "d_head": 4, "fro_norm": 1.0, "n_row_outliers": 1, "n_col_outliers": 1}
    return [
        {"model": model, "snapshot": "final", "layer": layer, "head": "all", **sizes, "symmetry": s, "directionality": 0.0}
        | {"directionality_excess": d, "status": "ok", **more}
        for layer, (s, d) in enumerate(values)
    ]


@pytest.fixture
def inputs(tmp_path):
    """One model of each verdict, one of them read the published way and one of which layers were left out."""
    path = published(
        tmp_path,
        same=(0.3, -0.2, 4, "", ""),
        near=(0.3, -0.2, 4, "", ""),
        far=(0.3, -0.2, 4, "", ""),
        grouped=(0.03, -0.3, 4, "grouped_heads", ""),
        cut=(0.2, -0.4, 2, "missing_layers", ""),
        absent=(0.3, -0.2, 4, "grouped_heads", ""),
        unscored=(0.3, -0.2, 4, "", ""),
        unpublished=(0, 0, 0, "", "commented out"),
    )
    rows = [
        here("same", 0.3, -0.2, "encoder"),
        here("near", 0.3049, -0.2049, "encoder"),
        here("far", 0.307, -0.2, "encoder"),
        here("grouped", 0.09, -0.25),
        here("cut", 0.5, -0.1),
        summary_row("unscored", "encoder", 10**6, 4),
        here("unpublished", 0.5, -0.1),
        here("elsewhere", 0.5, -0.1),  # a model that the paper does not have
    ]
    scores = [*rows_of("cut", [(0.1, -0.5), (0.3, -0.3), (0.7, 0.2), (0.9, 0.3)]), *rows_of("same", [(0.3, -0.2)] * 4)]
    pd.DataFrame(scores, columns=list(COLUMNS)).to_csv(tmp_path / "scores.csv", index=False)
    write_scores(tmp_path / "way.csv", rows_of("grouped", [(0.02, -0.31), (0.03, -0.3), (0.05, 0.1)], defects="grouped_heads"))
    write_scores(tmp_path / "nothing.csv", [])
    ways = [tmp_path / "nothing.csv", tmp_path / "way.csv"]
    return Inputs(write_summary(tmp_path / "summary.csv", rows), tmp_path / "scores.csv", published=path, published_way=ways)


def test_every_model_of_the_paper_has_a_verdict(inputs):
    table = compared(inputs).set_index("model")
    assert dict(table["verdict"]) == {
        **{"same": AGREES, "near": AGREES, "far": DIFFERS, "grouped": DIFFERS, "cut": DIFFERS},
        **{"absent": NOT_HERE, "unscored": NOT_HERE, "unpublished": NOT_PUBLISHED},
    }
    causes = dict(table["cause"].dropna())
    assert causes == {"grouped": DEFECTS["grouped_heads"], "cut": DEFECTS["missing_layers"]}
    assert table.loc["far", "symmetry_difference"] == pytest.approx(0.007)
    assert table.loc["absent", [f"{name}_here" for name in NUMBERS]].isna().all()


@pytest.mark.parametrize("number", NUMBERS)
def test_one_number_off_is_a_difference(inputs, tmp_path, number):
    rows = [here("same", 0.3, -0.2) | {}]
    rows[0][number] += 0.006
    summary = write_summary(tmp_path / "other.csv", rows)
    table = compared(Inputs(summary, published=inputs.published)).set_index("model")
    assert table.loc["same", "verdict"] == DIFFERS and table.loc["near", "verdict"] == NOT_HERE


def test_the_published_way_shows_where_a_published_value_comes_from(inputs):
    table = compared(inputs).set_index("model")
    assert table.loc["grouped", "symmetry_published_way"] == pytest.approx(0.03)
    assert table.loc["grouped", "directionality_excess_published_way"] == pytest.approx(-0.3)
    assert table.loc["cut", "symmetry_published_way"] == pytest.approx(0.2), "of the first two layers"
    assert dict(table["published_way"].dropna()) == {"grouped": AGREES, "cut": AGREES}


def test_the_table_as_printed(inputs, tmp_path):
    tables.render("published_vs_reproduced", inputs, tmp_path / "table")
    lines = {
        cells[0]: cells[1:]
        for cells in (re.split(r"\s*\|\s*", line.strip("| \n")) for line in (tmp_path / "table.md").open() if line[0] == "|")
    }
    assert lines["grouped"][:4] == ["0.03", "0.09", "0.06", "0.03 ="]
    assert lines["grouped"][-1] == f"differs: {DEFECTS['grouped_heads']}"
    assert lines["far"][-1] == "differs" and lines["same"][-1] == "agrees"
    assert lines["absent"] == ["0.30", "--", "--", "--", "-0.20", "--", "--", "--", "not reproduced here"]
    assert lines["unpublished"][-1] == "no published value: commented out"
    assert "elsewhere" not in lines


def test_both_readings_of_a_model_that_the_paper_lacks(inputs, tmp_path):
    write_scores(tmp_path / "way2.csv", rows_of("elsewhere", [(0.1, 0.2)], defects="contiguous_thirds,no_transpose"))
    ways = [*inputs.published_way, tmp_path / "way2.csv"]
    both = Inputs(inputs.summary, published=inputs.published, published_way=ways)
    tables.render("published_extraction", both, tmp_path / "table")
    found = pd.read_csv(tmp_path / "table.csv").set_index("model")
    assert list(found.index) == ["grouped", "elsewhere"]
    assert found.loc["elsewhere", "symmetry_here"] == 0.5 and found.loc["elsewhere", "symmetry_published_way"] == 0.1
    assert np.isnan(found.loc["elsewhere", "symmetry_published"]) and found.loc["grouped", "symmetry_published"] == 0.03
    shown = (tmp_path / "table.md").read_text()
    assert f"{DEFECTS['contiguous_thirds']}; {DEFECTS['no_transpose']}" in shown


# Table 1


def training_inputs(folder: Path, run: str) -> Inputs:
    """One pair of encoders of 4 layers on `wikipedia`, whose losses fall evenly to the published ones."""
    rows, losses = [], []
    for init, end in (("default", 0.98), ("symmetric", 0.81)):
        name = f"paper.{run}{'' if init == 'default' else '-symmetric'}.s0"
        rows.append({"model": name, "run": run, "seed": 0, "family": "custom", "role": "encoder", "corpus": "wikipedia"})
        rows[-1] |= {"depth": 4, "init": init, "steps": 1000, "status": "ok"}
        values = np.full(101, end) if init == "default" else np.where(np.arange(101) < 23, 2.0, end)
        losses += [{"model": name, "step": 10 * k, "split": "train", "loss": v} for k, v in enumerate(values)]
    pd.DataFrame(rows).to_csv(folder / "runs.csv", index=False)
    pd.DataFrame(losses).to_csv(folder / "losses.csv", index=False)
    return Inputs(losses=folder / "losses.csv", runs=folder / "runs.csv")


def test_table_1_against_the_same_run_here(tmp_path):
    tables.render("published_vs_reproduced_training", training_inputs(tmp_path, "encoder-4l-wikipedia"), tmp_path / "t")
    table = pd.read_csv(tmp_path / "t.csv").set_index("model")
    found = table.loc["encoder-4l-wikipedia"]
    assert found["verdict"] == AGREES and found["seed"] == 0
    assert (found["train_loss_default_here"], found["train_loss_symmetric_here"]) == pytest.approx((0.98, 0.81))
    assert found["speed_up_here"] == pytest.approx(0.73)
    others = table.drop(index="encoder-4l-wikipedia")
    assert set(others["verdict"]) == {NOT_HERE, NOT_PUBLISHED} and others["train_loss_default_here"].isna().all()


def test_a_miniature_is_no_reproduction_of_table_1(tmp_path):
    tables.render("published_vs_reproduced_training", training_inputs(tmp_path, "encoder-4l-reference"), tmp_path / "t")
    table = pd.read_csv(tmp_path / "t.csv")
    assert set(table["verdict"]) == {NOT_HERE, NOT_PUBLISHED} and table["speed_up_here"].isna().all()


# the figure


def texts(panel) -> set[str]:
    return {text.get_text() for text in panel.texts} - {""}


def test_models_off_the_line_are_named_and_no_others(inputs):
    panels = figure.draw(figure.numbers(inputs)).axes
    assert texts(panels[0]) == {"far", "grouped", "cut"}
    assert texts(panels[1]) == {"grouped", "cut"}
    colours = {
        text.get_text(): text.get_color() for text in panels[0].texts if isinstance(text, Annotation) and text.get_text()
    }
    assert colours == {"far": "navy", "grouped": "purple", "cut": "purple"}


def test_many_models_off_the_line_are_numbered_with_a_key(tmp_path):
    many = {f"model-{k}": (0.1 + k / 100, -0.2, 4, "", "") for k in range(20)}
    rows = [here(name, values[0] + 0.1, -0.2) for name, values in many.items()]
    one = Inputs(write_summary(tmp_path / "summary.csv", rows), published=published(tmp_path, **many))
    drawn = figure.draw(figure.numbers(one))
    assert texts(drawn.axes[0]) == {str(k) for k in range(1, 21)} and not texts(drawn.axes[1])
    key = {text.get_text() for legend in drawn.legends for text in legend.get_texts()}
    assert "20  model-19" in key


def test_without_any_model_of_the_paper_the_axes_say_so(inputs, tmp_path):
    summary = write_summary(tmp_path / "other.csv", [here("elsewhere", 0.5, -0.1)])
    alone = Inputs(summary, published=inputs.published)
    numbers = figure.numbers(alone)
    assert len(numbers) == 7 and set(numbers["verdict"]) == {NOT_HERE}
    drawn = figure.draw(numbers)
    assert all(texts(panel) == {"no model of the paper\nis part of this run"} for panel in drawn.axes)
    assert drawn.legends[0].get_title().get_text().startswith("0 of the paper's 7 models")
    figures.render("published_vs_reproduced", alone, tmp_path / "figure")
    assert (tmp_path / "figure.pdf").is_file()
