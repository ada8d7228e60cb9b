"""Tables: full precision in .csv, two decimals as in the paper in .tex and .md."""

import importlib
from pathlib import Path

import pandas as pd
import pytest

from project import qkgeom
from qkgeom import tables
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.rendering import Inputs, short_number, specs
from qkgeom.tables import directionality_scores, symmetry_scores
from qkgeom.tables._printing import two_decimals
from scored_models import inputs_for, summary_row, write_summary, zoo

TABLES = specs(Path(tables.__file__).parent)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_renders_and_its_csv_is_exact(tmp_path, name):
    inputs = inputs_for(tmp_path, TABLES[name].groups[0])
    stem = tmp_path / "out v1.2" / name
    tables.render(name, inputs, stem)
    assert sorted(path.name for path in stem.parent.iterdir()) == [
        f"{name}.{ending}" for ending in ("csv", "md", "provenance.json", "tex")
    ]
    expected = importlib.import_module(f"qkgeom.tables.{name}").table(inputs)
    assert len(expected)
    written = pd.read_csv(f"{stem}.csv", dtype=expected.dtypes.to_dict())
    pd.testing.assert_frame_equal(written, expected, rtol=1e-8)
    tex = Path(f"{stem}.tex").read_text()
    assert all(word in tex for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption", rf"\label{{tab:{name}}}"))
    _assert_rows_are_whole(tex)
    assert Path(f"{stem}.md").read_text().startswith(TABLES[name].caption + "\n\n|")


@pytest.mark.parametrize("name", TABLES)
def test_the_same_inputs_give_the_same_bytes(tmp_path, name):
    inputs = inputs_for(tmp_path, TABLES[name].groups[0])
    for stem in ("a", "b"):
        tables.render(name, inputs, tmp_path / stem)
    for ending in ("csv", "tex", "md"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


@pytest.mark.parametrize("name", [name for name, spec in TABLES.items() if spec.needs == ("summary",)])
def test_a_table_without_any_scored_model_says_so(tmp_path, name):
    inputs = Inputs(summary=write_summary(tmp_path / "summary.csv", [summary_row("a", "encoder", 10**6, 4)]))
    tables.render(name, inputs, tmp_path / name)
    assert all("no scored model" in (tmp_path / f"{name}.{ending}").read_text() for ending in ("tex", "md"))
    assert pd.read_csv(tmp_path / f"{name}.csv").empty


def test_table_s1(tmp_path):
    inputs = Inputs(summary=write_summary(tmp_path / "summary.csv", zoo()))
    tables.render("symmetry_scores", inputs, tmp_path / "s1")
    exact = pd.read_csv(tmp_path / "s1.csv")
    assert exact["symmetry_q3"].tolist() == [0.2, 0.6, 0.123456789, 0.2]
    assert exact["n_params"].iloc[2] == 405_849_522_176
    rows = _markdown_rows(tmp_path / "s1.md")
    assert rows == [
        ["Role", "Model", "Parameters", "Layers", "Symmetry Median", "Symmetry Q1", "Symmetry Q3"],
        ["encoder", "enc_shallow & 50%", "4.39M", "2", "0.10", "0.00", "0.20"],
        ["encoder", "enc-small", "22.7M", "6", "0.50", "0.40", "0.60"],
        ["decoder", "dec-large", "406B", "30", "0.05", "-0.01", "0.12"],
        ["decoder", "dec-unknown", "--", "4", "0.00", "-0.30", "0.20"],
    ]
    tex = (tmp_path / "s1.tex").read_text()
    assert r"encoder & enc\_shallow \& 50\% & 4.39M & 2 & $0.10$ & $0.00$ & $0.20$ \\" in tex
    assert r"decoder & dec-unknown & -- & 4 & $0.00$ & $-0.30$ & $0.20$ \\" in tex


def test_table_s2_has_both_directionalities(tmp_path):
    inputs = Inputs(summary=write_summary(tmp_path / "summary.csv", zoo()))
    tables.render("directionality_scores", inputs, tmp_path / "s2")
    rows = _markdown_rows(tmp_path / "s2.md")
    assert rows[0][4:] == [
        f"{name} {q}" for name in ("Directionality (excess)", "Directionality") for q in ("Median", "Q1", "Q3")
    ]
    assert rows[1][4:] == ["0.10", "0.00", "0.20", "-0.70", "-0.80", "-0.60"]
    assert rows[2][4:] == ["-0.10", "-0.20", "0.00", "0.10", "0.00", "0.20"]


@pytest.mark.parametrize("module", [symmetry_scores, directionality_scores])
def test_a_long_table_can_break_over_pages(tmp_path, module):
    rows = [summary_row(f"model-{k}", "encoder", 10**6 + k, 12, {}) for k in range(41)]
    inputs = Inputs(summary=write_summary(tmp_path / "summary.csv", rows))
    name = module.__name__.rpartition(".")[2]
    tables.render(name, inputs, tmp_path / name)
    tex = (tmp_path / f"{name}.tex").read_text()
    # TeX wants \caption to be the first thing in a longtable
    assert tex.splitlines()[0].startswith("% needs the packages booktabs and longtable")
    assert tex.splitlines()[1].startswith(r"\begin{longtable}")
    assert tex.splitlines()[2].startswith(r"\caption{")
    assert tex.count("model-") == 41
    _assert_rows_are_whole(tex)


@pytest.mark.parametrize(
    ("value", "text"), [(-0.001, "0.00"), (-0.006, "-0.01"), (0.125, "0.12"), (1.0, "1.00"), (-0.4149, "-0.41"), (0.0, "0.00")]
)
def test_two_decimals(value, text):
    assert two_decimals(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *[(12, "12"), (4_500, "4.5K"), (1_000_000, "1M"), (22_713_216, "22.7M"), (134_515_008, "135M")],
        *[(999_900_000, "1B"), (1_240_000_000, "1.24B"), (405_849_522_176, "406B"), (10**12, "1T")],
    ],
)
def test_short_number(number, text):
    assert short_number(number) == text


@pytest.mark.faults
def test_unknown_table_and_missing_inputs(tmp_path):
    with pytest.raises(UsageError) as caught:
        tables.render("nothing", Inputs(), tmp_path / "x")
    assert all(name in str(caught.value) for name in TABLES)
    with pytest.raises(UsageError, match="--summary"):
        tables.render("symmetry_scores", Inputs(), tmp_path / "x")
    with pytest.raises(QkgeomError, match="absent"):
        tables.render("symmetry_scores", Inputs(summary=tmp_path / "absent.csv"), tmp_path / "x")


@pytest.mark.faults
def test_a_column_that_is_missing_is_named(tmp_path):
    rows = [{key: cell for key, cell in row.items() if key != "directionality_q3"} for row in zoo()]
    with pytest.raises(QkgeomError, match="directionality_q3"):
        tables.render("directionality_scores", Inputs(summary=write_summary(tmp_path / "summary.csv", rows)), tmp_path / "x")


def test_the_command_line_prints_a_table_and_refuses_an_unknown_one(tmp_path):
    summary = write_summary(tmp_path / "summary.csv", zoo())
    options = ["--summary", str(summary), "--output", str(tmp_path / "table")]
    assert qkgeom("table", "symmetry_scores", *options).returncode == 0
    assert {path.suffix for path in tmp_path.glob("table.*")} == {".tex", ".csv", ".md", ".json"}
    refused = qkgeom("table", "symmetry_score", *options)
    assert refused.returncode == 2
    assert "symmetry_scores" in refused.stderr and "Traceback" not in refused.stderr


def _markdown_rows(path: Path) -> list[list[str]]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("|") and not line.startswith("|:")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _assert_rows_are_whole(tex: str) -> None:
    """Every row of the body has one cell per column, and braces close."""
    columns = len(tex.split(r"\begin{tabular}{" if r"\begin{tabular}" in tex else r"\begin{longtable}{")[1].split("}")[0])
    body = [line for line in tex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line and "caption" not in line]
    assert body
    assert {line.replace(r"\&", "").count("&") + 1 for line in body} == {columns}
    assert tex.count("{") == tex.count("}")
