"""The null model: its moments proved against random matrices, its table re-derived, and the verdict's two errors."""

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import same_color
from scipy.stats import ortho_group

import qkgeom as library
from checkpoints import llama_config, llama_tensors, write_llama
from project import ROOT, qkgeom
from published_shapes import shape_of
from qkgeom import null, untrained
from qkgeom.figures import _null_band, scores_language
from qkgeom.scores import score_factors, score_layer
from qkgeom.scoring import COLUMNS
from qkgeom.tables import symmetry_scores
from scored_models import random_layer, summary_row, write_artifact

PUBLISHED = Path("/work/shared/published")
EXCESS = "directionality_excess"


@pytest.fixture(scope="module")
def table():
    return runpy.run_path(str(ROOT / "tools/null_table.py"))


@pytest.fixture(scope="module")
def calibration():
    return runpy.run_path(str(ROOT / "tools/null_calibration.py"))


def rows_of(d, r, n, seed=0):
    """Rows of scores.csv of `n` random matrices, scored as weights are."""
    torch.manual_seed(seed)
    scores = [vars(score_factors(torch.randn(d, r).double(), torch.randn(d, r).double())) for _ in range(n)]
    return pd.DataFrame(scores).assign(head="all", d_model=d, n_head=1, n_kv_head=1, d_head=r)


def number(score, d, r):
    return null.deviation(score, np.array([float(d)]), np.array([float(r)]))[0]


# moments


@pytest.mark.parametrize("singular", [(1, 0, 0, 0, 0, 0), (1, 1, 1, 1, 1, 1), (5, 3, 2, 1, 0.5, 0.1)])
def test_symmetry_of_any_matrix_turned_at_random_has_the_stated_moments(singular):
    d, n = len(singular), 40_000
    sigma = np.array(singular)
    turned = ortho_group.rvs(d, size=n, random_state=1) * sigma
    s = np.einsum("nij,nji->n", turned, turned) / np.sum(sigma**2)
    kappa = np.sum(sigma**4) / np.sum(sigma**2) ** 2
    second = (3 * (d + 1) - 6 * kappa) / (d * (d - 1) * (d + 2))
    assert s.mean() == pytest.approx(1 / d, abs=4 * s.std() / n**0.5)
    assert (s**2).mean() == pytest.approx(second, abs=4 * (s**2).std() / n**0.5)


def test_of_rank_1_the_symmetry_is_a_squared_cosine():
    for d in (2, 7, 512):
        assert number("symmetry", d, 1) ** 2 == pytest.approx(3 / (d * (d + 2)) - 1 / d**2, rel=1e-9)
    assert number("symmetry", 1, 1) == 0


@pytest.mark.parametrize(("d", "r"), [(8, 4), (24, 24), (48, 96), (96, 16)])
def test_random_matrices_have_the_stated_mean_and_spread(d, r):
    z = null.with_z(rows_of(d, r, 3000))
    for column, tolerance in zip(null.COLUMNS, (0.06, 0.06, 0.06), strict=True):
        assert z[column].mean() == pytest.approx(0, abs=4 / 3000**0.5)
        assert z[column].std() == pytest.approx(1, rel=tolerance), column


def test_a_layer_of_grouped_queries_is_as_random_as_factors_of_its_rank():
    torch.manual_seed(3)
    d, n_head, n_kv_head, d_head, n = 32, 8, 2, 4, 3000
    scores = [vars(score_layer(torch.randn(d, n_head, d_head), torch.randn(d, n_kv_head, d_head))["all"]) for _ in range(n)]
    z = null.with_z(pd.DataFrame(scores).assign(head="all", d_model=d, n_kv_head=n_kv_head, d_head=d_head))
    plain = null.with_z(rows_of(d, n_kv_head * d_head, n))
    for column in null.COLUMNS:
        assert z[column].mean() == pytest.approx(0, abs=4 / n**0.5)
        assert np.quantile(z[column], [0.1, 0.9]) == pytest.approx(np.quantile(plain[column], [0.1, 0.9]), abs=0.12)


def test_directionality_changes_sign_when_queries_and_keys_change_places():
    torch.manual_seed(0)
    A, B = torch.randn(2, 40, 8).double()
    there, back = score_factors(A, B), score_factors(B, A)
    assert there.directionality_excess == pytest.approx(-back.directionality_excess) != 0
    assert there.symmetry == pytest.approx(back.symmetry)


# the table


@pytest.mark.parametrize(("d", "r"), [(16, 4), (64, 64), (512, 1024)])
def test_the_table_is_what_its_tool_simulates(table, d, r):
    with null.TABLE.open(newline="") as file:
        kept = {(int(row["d"]), int(row["r"])): row for row in csv.DictReader(file)}
    assert set(kept) == {(d, r) for d in table["D"] for r in table["R"]}
    plain, excess = table["simulate"](d, r, 6000, np.random.default_rng(99))
    found = (plain.std(), np.quantile(abs(plain), 0.95), excess.std(), np.quantile(abs(excess), 0.95))
    expected = [float(kept[d, r][name]) for name in ("sd", "q95", "excess_sd", "excess_q95")]
    assert found == pytest.approx(expected, rel=0.045)
    assert np.mean(excess**4) / np.mean(excess**2) ** 2 == pytest.approx(float(kept[d, r]["excess_kurtosis"]), rel=0.08)


@pytest.mark.parametrize(("d", "r"), [(20, 6), (40, 200), (80, 24), (160, 40)])
def test_between_the_tables_shapes_the_spread_is_that_of_whole_matrices(table, d, r):
    n = 8000
    draws = [table["directionalities"](*norms) for norms in table["direct"](d, r, n, np.random.default_rng(7))]
    for score, values in zip(null.SCORES[1:], map(np.concatenate, zip(*draws, strict=True)), strict=True):
        assert number(score, d, r) == pytest.approx(values.std(), rel=0.04)
        low, high = np.ravel(null.interval(score, np.array([float(d)]), np.array([float(r)])))
        assert -low == high <= 1
        assert high > 0.95 or np.mean(abs(values) <= high) == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize(("d", "r"), [(64, 64), (96, 8), (128, 32)])
def test_the_norms_alone_give_nearly_what_whole_matrices_give(table, d, r):
    spread = {}
    for way in ("direct", "from_norms"):
        draws = [table["directionalities"](*norms)[1] for norms in table[way](d, r, 12_000, np.random.default_rng(5))]
        spread[way] = np.concatenate(draws).std()
    assert spread["from_norms"] == pytest.approx(spread["direct"], rel=0.035)


def test_beyond_the_table_the_spread_of_directionality_falls_as_the_root_of_the_width():
    assert number(EXCESS, 16384, 1024) == pytest.approx(number(EXCESS, 4096, 1024) / 2)
    assert 0 < number(EXCESS, 8192, 16384) < number(EXCESS, 4096, 4096)


# the columns


def test_z_is_missing_where_there_is_no_score_or_nothing_can_stand_out():
    rows = pd.concat([rows_of(5, 5, 1), rows_of(32, 8, 1), rows_of(32, 8, 1).assign(symmetry=None, directionality_excess=None)])
    z = null.with_z(rows.astype({"symmetry": float, EXCESS: float}))
    assert z["symmetry_z"].notna().tolist() == [True, True, False]
    assert z[f"{EXCESS}_z"].notna().tolist() == [False, True, False]
    assert list(z) == [*rows, *null.COLUMNS]


def test_a_heads_rank_is_its_own_size():
    rows = pd.DataFrame({"head": ["all", "3"], "d_model": 64, "n_kv_head": 4, "d_head": 8})
    assert [each.tolist() for each in null.shapes(rows)] == [[64, 64], [32, 8]]


# the verdict


def test_a_verdict_needs_a_score():
    rows = rows_of(32, 8, 3)
    nothing = rows.assign(**dict.fromkeys(null.SCORES, np.nan))
    assert np.isnan(untrained.p_value(nothing)) and untrained.verdict(untrained.p_value(nothing)) is None
    assert untrained.verdict(untrained.p_value(rows)) == "untrained"
    some = rows.assign(symmetry=[None, *rows["symmetry"][1:]], directionality_excess=None)
    assert 0 < untrained.p_value(some) < 1


@pytest.mark.parametrize("start", [1, -1])
def test_a_symmetric_or_skew_start_is_not_random(start):
    torch.manual_seed(0)
    A = torch.randn(32, 8).double()
    B = A if start == 1 else torch.hstack([A[:, 4:], -A[:, :4]])
    score = score_factors(A, B)
    assert score.symmetry == pytest.approx(start)
    rows = pd.DataFrame([vars(score)] * 2).assign(head="all", d_model=32, n_kv_head=1, d_head=8)
    assert untrained.verdict(untrained.p_value(rows)) == "not random"


def test_heads_have_no_say_in_the_verdict():
    rows = rows_of(32, 8, 4)
    heads = rows.assign(head="0", symmetry=0.99)
    assert untrained.p_value(pd.concat([rows, heads])) == untrained.p_value(rows)


@pytest.mark.slow
@pytest.mark.parametrize("initialisation", ["normal", "truncated normal", "Xavier uniform", "Kaiming uniform (torch's Linear)"])
def test_untrained_models_are_rarely_called_otherwise(calibration, initialisation):
    p = calibration["p_values"](initialisation, 400, seed=11)
    # 400 models at level 0.01: 4 expected; 12 or more come once in 1000 times
    assert np.sum(p < untrained.ALPHA) < 12
    assert 0.02 < np.mean(p < 0.05) < 0.09 and np.mean(p > 0.5) == pytest.approx(0.5, abs=0.1)


def test_keys_that_resemble_their_queries_are_noticed(calibration):
    p = [untrained.p_value(calibration["model"]("normal", np.random.default_rng(seed), part=0.6)) for seed in range(60)]
    assert np.mean(np.array(p) < untrained.ALPHA) > 0.9


def test_a_sentence_claims_no_more_than_the_scores_say():
    assert "untrained or too small to tell" in untrained.sentence(0.5) and "(p = 0.5)" in untrained.sentence(0.5)
    assert untrained.sentence(0.0).endswith("(p < 1e-300).") and "not random" in untrained.sentence(0.0)
    assert untrained.sentence(1e-200).endswith("(p = 1e-200).")


# through the command line


def test_score_tells_the_verdict_when_asked(tmp_path):
    model = write_llama(tmp_path / "llama")
    plain = qkgeom("score", str(model))
    told = qkgeom("score", str(model), "--null")
    assert told.returncode == 0, told.stderr
    assert "Verdict: untrained" in told.stderr and "symmetry_z" in told.stdout
    assert "Verdict: untrained" in plain.stderr and "symmetry_z" not in plain.stdout
    rows = json.loads(qkgeom("score", str(model), "--null", "--json").stdout)
    assert tuple(rows[0]) == (*COLUMNS, *untrained.COLUMNS) and isinstance(rows[0]["symmetry_z"], float)
    written = qkgeom("score", str(model), "--null", "--heads", "-o", str(tmp_path / "scores.csv"))
    assert written.returncode == 0 and written.stdout == ""
    assert f"wrote {tmp_path / 'scores.csv'}: " in written.stderr and "Verdict: untrained" in written.stderr
    table = pd.read_csv(tmp_path / "scores.csv", dtype={"head": str})
    whole = table["head"] == "all"
    assert table.loc[whole, "verdict"].eq("untrained").all()
    assert table.loc[~whole, ["untrained_p", "verdict"]].isna().all(axis=None)
    assert table.loc[whole, "untrained_p"].tolist() == pytest.approx([row["untrained_p"] for row in rows])
    frame = library.score(llama_tensors(), llama_config(), null=True)
    assert tuple(frame) == (*COLUMNS, *untrained.COLUMNS)
    assert frame["untrained_p"].tolist() == pytest.approx([row["untrained_p"] for row in rows])
    assert (tmp_path / "scores.csv").read_text().splitlines()[0] == ",".join((*COLUMNS, *untrained.COLUMNS))


def test_a_written_file_says_which_layers_have_no_score(tmp_path):
    layers = [random_layer(60) for _ in range(3)]
    layers[1] = tuple(np.zeros_like(W) for W in layers[1])
    layers[2][0][0, 0, 0] = np.nan
    folder = write_artifact(tmp_path / "m", layers)
    said = qkgeom("score", str(folder), "-o", str(tmp_path / "x.csv")).stderr
    assert f"wrote {tmp_path / 'x.csv'}: 3 rows; no score: layer 1 (zero), layer 2 (not_finite)\n" in said


def test_a_pipelines_tables_hold_z_and_verdict_and_check_names_the_model(tmp_path):
    folder = write_artifact(tmp_path / "all-minilm-l6-v2", [random_layer(d) for d in (60, 64, 72)])
    scores = folder / "scores.csv"
    assert qkgeom("score", str(folder), "--heads", "-o", str(scores)).returncode == 0
    collected = qkgeom("collect", str(scores), "-o", str(tmp_path))
    assert collected.returncode == 0, collected.stderr
    table, summary = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("scores", "summary"))
    assert tuple(table) == (*COLUMNS, *null.COLUMNS) and table[list(null.COLUMNS)].notna().all(axis=None)
    assert summary["verdict"].tolist() == ["untrained"] and summary["untrained_p"][0] > untrained.ALPHA
    assert summary["symmetry_null_low"][0] < 1 / 64 < summary["symmetry_null_high"][0]
    assert summary["directionality_excess_null_low"][0] == -summary["directionality_excess_null_high"][0] < 0
    line = "untrained or too small to tell (docs/null.md): all-minilm-l6-v2"
    assert line in qkgeom("check", str(folder)).stdout
    scores.write_text(",".join(COLUMNS) + "\n")
    checked = qkgeom("check", str(folder))
    assert checked.returncode == 0 and line not in checked.stdout
    assert qkgeom("collect", str(scores), "-o", str(tmp_path / "nothing")).returncode == 0


@pytest.mark.faults
def test_an_artifacts_own_scores_have_no_null_columns(tmp_path):
    """`collect` reads them, and a changed null model scores nothing again."""
    folder = write_artifact(tmp_path / "m", [random_layer(d) for d in (60, 64)])
    own, other = folder / "scores.csv", tmp_path / "other.csv"
    refused = qkgeom("score", str(folder), "--null", "-o", str(own))
    assert refused.returncode == 2 and "--null" in refused.stderr and "write another file" in refused.stderr
    assert not own.exists()
    assert qkgeom("score", str(folder), "--null", "-o", str(other)).returncode == 0
    assert tuple(pd.read_csv(other)) == (*COLUMNS, *untrained.COLUMNS)


def test_tables_mark_untrained_models():
    rows = [summary_row("a", "encoder", 10, 2, {}, verdict="untrained"), summary_row("b", "decoder", 10, 2, {})]
    printed = symmetry_scores.printed(pd.DataFrame(rows))
    assert printed["", "Model"].tolist() == ["a †", "b"]


def test_figures_show_where_random_layers_lie():
    rows = [summary_row(name, "encoder", 10**k, 4, {}) for k, name in ((6, "a"), (8, "b"))]
    figure = scores_language.draw(pd.DataFrame(rows).assign(symmetry_null_low=[-0.1, -0.01], symmetry_null_high=[0.1, 0.02]))
    bars = [each for each in figure.axes[0].collections if same_color(each.get_color()[0], _null_band.LOOK["color"])]
    ends = [segment[:, 1].tolist() for each in bars for segment in each.get_segments()]
    assert ends == [[-0.1, 0.1], [-0.01, 0.02]]


# published scores


@pytest.fixture(scope="module")
def published():
    """The p-value of each published row, from its per-layer scores (directionality is the excess there)."""
    if not PUBLISHED.is_dir():
        pytest.skip(f"the published scores are not at {PUBLISHED}")
    rows = pd.read_csv(PUBLISHED / "per_layer_scores.csv").rename(columns={"directionality": EXCESS})
    d, r = np.array([shape_of(*row) for row in rows[["family", "model_id"]].itertuples(index=False)]).T
    layers = rows.assign(head="all", d_model=d, n_kv_head=1, d_head=r, directionality=np.nan)
    return layers.groupby(["modality", "family", "model_id"]).apply(untrained.p_value)


def test_of_the_published_rows_those_scored_from_random_weights_are_untrained(published):
    looks_random = published[published >= untrained.ALPHA]
    assert {model for _, _, model in looks_random.index} == {
        "meta-llama/Meta-Llama-3-8B",
        "meta-llama/Llama-3.2-1B",
        "microsoft/Phi-3-mini-4k-instruct",
    }
    assert len(published) == 223 and (looks_random > 0.1).all()


def test_published_rows_that_read_weights_wrongly_do_not_look_untrained(published):
    wrongly = published[
        published.index.get_level_values("model_id").str.contains("deberta-(?:base|large)|pythia|musicgen|ModernBERT")
    ]
    assert len(wrongly) == 2 + 6 + 12 + 2 and (wrongly < 1e-6).all()
