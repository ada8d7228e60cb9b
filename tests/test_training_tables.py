"""Table 1 and the claims: smoothing, speed-up, pairs, sign test and verdicts, against numbers worked out by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qkgeom import tables
from qkgeom.rendering import Inputs
from qkgeom.tables import claims, symmetric_init, training_runs
from qkgeom.tables._evidence import ENOUGH, LEVEL, MIXED, NONE, SUPPORTED, UNSUPPORTED, sign_test, verdict
from qkgeom.tables._initialisations import WINDOW, difference, smoothed, step_reached
from qkgeom.trajectories import pairs
from trained_models import Run, write_tables, write_training

STEPS = range(100, 501, 100)
DEFAULT, SYMMETRIC = Run(), Run(init="symmetric")
PUBLISHED = Path(__file__).parents[2] / "shared" / "published" / "symmetric_init_loss.csv"


def curve(run: Run, losses: list[float], held: float | None = None) -> list[dict]:
    """Training losses at steps 100, 200, ..., and a last held-out loss."""
    rows = [{"model": run.model, "step": 100 * (k + 1), "split": "train", "loss": loss} for k, loss in enumerate(losses)]
    return rows if held is None else [*rows, {"model": run.model, "step": 500, "split": "heldout", "loss": held}]


def table_of(folder: Path, curves: dict[Run, list[float]], held: float | None = None) -> pd.DataFrame:
    losses = [row for run, values in curves.items() for row in curve(run, values, held)]
    return symmetric_init.table(write_tables(folder, [run.row() for run in curves], [], losses))


def scored(run: Run, first: float, last: float) -> list[dict]:
    """Two layers around these medians of symmetry and of directionality, at step 0 and at the last."""
    return [
        {"model": run.model, "snapshot": step, "layer": k, "head": "all", "symmetry": value, "directionality_excess": value}
        for step, middle in ((0, first), (500, last))
        for k, value in enumerate((middle - 0.1, middle + 0.1))
    ]


# smoothing and speed-up


def test_smoothing_is_a_trailing_mean_that_is_shorter_at_the_start():
    assert smoothed([6.0, 3.0, 3.0, 0.0, 9.0], window=3).tolist() == pytest.approx([6, 4.5, 4, 2, 4])
    assert smoothed([4.0], window=3).tolist() == [4.0]
    assert smoothed([], window=3).tolist() == []
    assert smoothed([5.0, 1.0], window=1).tolist() == [5.0, 1.0]


def test_the_first_step_at_or_below_a_loss():
    losses = [5.0, 4.0, 3.0, 2.0, 1.0]  # smoothed over five: 5, 4.5, 4, 3.5, 3
    assert step_reached(STEPS, losses, 4.0) == 300
    assert step_reached(STEPS, losses, 3.0) == 500
    assert step_reached(STEPS, losses, 2.99) is None
    assert step_reached(STEPS, losses, 9.0) == 100


def test_a_loss_that_is_reached(tmp_path):
    curves = {DEFAULT: [6.0, 5.0, 4.0, 3.0, 2.0], SYMMETRIC: [5.0, 4.0, 3.0, 2.0, 1.0]}
    (row,) = table_of(tmp_path, curves, held=3.5).to_dict("records")
    assert (row["train_loss_default"], row["train_loss_symmetric"]) == pytest.approx((4.0, 3.0))
    assert (row["heldout_loss_default"], row["heldout_loss_symmetric"]) == (3.5, 3.5)
    assert (row["result"], row["step_reached"]) == ("reached", 300)
    assert row["speed_up"] == pytest.approx(0.4)


def test_equal_curves_have_no_speed_up(tmp_path):
    losses = [6.0, 5.0, 4.0, 3.0, 2.0]
    (row,) = table_of(tmp_path, {DEFAULT: losses, SYMMETRIC: losses}).to_dict("records")
    assert (row["result"], row["step_reached"], row["speed_up"]) == ("reached", 500, 0.0)


def test_a_loss_that_is_not_reached(tmp_path):
    table = table_of(tmp_path, {DEFAULT: [5.0, 4.0, 3.0, 2.0, 1.0], SYMMETRIC: [6.0, 5.0, 4.0, 3.0, 2.0]})
    assert table["result"].tolist() == ["not reached"]
    assert table["speed_up"].isna().all() and table["step_reached"].isna().all()
    assert symmetric_init.printed(table)[("", "Speed-up (%)")].tolist() == ["not reached"]


@pytest.mark.parametrize("init", ["default", "symmetric"])
def test_a_run_that_diverged_has_no_final_loss(tmp_path, init):
    lost = Run(init=init, status="diverged")
    other = SYMMETRIC if init == "default" else DEFAULT
    table = table_of(tmp_path, {lost: [5.0, 1.0], other: [6.0, 5.0, 4.0, 3.0, 2.0]}, held=3.5)
    assert table["result"].tolist() == ["diverged"]
    assert table[f"train_loss_{init}"].isna().all() and table[f"heldout_loss_{init}"].isna().all()
    printed = symmetric_init.printed(table).iloc[0]
    assert printed[("", "Speed-up (%)")] == printed[("Training loss", init.capitalize())] == "diverged"
    assert printed[("Training loss", other.init.capitalize())] == "4.00"


def test_a_run_without_a_curve_is_no_comparison(tmp_path):
    table = table_of(tmp_path, {DEFAULT: [5.0, 4.0], SYMMETRIC: []})
    assert table["result"].tolist() == ["no losses"]
    assert symmetric_init.printed(table)[("Training loss", "Symmetric")].tolist() == ["no losses"]


def test_the_papers_own_losses_give_its_speed_up():
    if not PUBLISHED.exists():
        pytest.skip("the published losses are not here")
    losses = pd.read_csv(PUBLISHED)
    steps = 200 * np.arange(1, len(losses) + 1)

    def speed_up(name: str) -> float | None:
        target = smoothed(losses[name])[-1]
        step = step_reached(steps, losses[f"{name}--symmetric-init"], target)
        return step and 1 - step / steps[-1]

    assert speed_up("bert_small--encoder--wikipedia") == pytest.approx(0.73, abs=0.01)
    assert speed_up("bert_small--encoder--red_pajama") == pytest.approx(0.69, abs=0.01)
    assert speed_up("bert--encoder--jigsaw") is None


def test_losses_of_the_same_batches_are_compared_point_by_point():
    ours = pd.DataFrame({"step": STEPS, "loss": [5.0, 3.0, 4.0, 2.0, 3.0]})
    others = pd.DataFrame({"step": STEPS, "loss": [5.1, 3.2, 4.1, 2.2, 3.4]})
    gap, error = difference(ours, others)
    assert gap == pytest.approx(-0.2)
    assert error == pytest.approx(2.776 * np.std([0.1, 0.2, 0.1, 0.2, 0.4], ddof=1) / 5**0.5, rel=1e-3)
    earlier = pd.DataFrame({"step": [0, *STEPS], "loss": [99.0, *others["loss"]]})
    assert difference(ours, earlier) == pytest.approx((gap, error))
    assert np.isnan(difference(ours, others.head(1))).all()


def test_the_difference_is_printed_with_its_interval(tmp_path):
    curves = {DEFAULT: [6.0, 5.0, 4.0, 3.0, 2.0], SYMMETRIC: [5.0, 4.0, 3.0, 2.0, 1.0]}
    (row,) = symmetric_init.printed(table_of(tmp_path, curves)).to_dict("records")
    assert row[("Training loss", "Difference")] == "-1.000 ± 0.000"


# pairs


def test_a_row_without_a_partner_stays():
    ones = pd.DataFrame({"corpus": ["docstrings", "reference"], "depth": [4, 4], "seed": [0, 0], "x": [1, 2]})
    others = pd.DataFrame({"corpus": ["reference", "reference"], "depth": [4, 4], "seed": [1, 0], "x": [3, 4]})
    found = pairs(ones, others, names=("a", "b"))
    assert found[["corpus", "seed"]].values.tolist() == [["reference", 0], ["reference", 1], ["docstrings", 0]]
    assert found["x_a"].fillna(0).tolist() == [2, 0, 1]
    assert found["x_b"].fillna(0).tolist() == [4, 3, 0]


def test_seeds_are_paired_and_one_alone_is_listed_but_not_printed(tmp_path):
    falling = [6.0, 5.0, 4.0, 3.0, 2.0]
    faster = [5.0, 4.0, 3.0, 2.0, 1.0]
    curves = {DEFAULT: falling, SYMMETRIC: faster, Run(seed=1): falling, Run(init="symmetric", seed=1): falling}
    curves |= {Run(seed=2): falling, Run(corpus="docstrings"): falling}
    table = table_of(tmp_path, curves)
    assert table["result"].tolist() == ["reached", "reached", "no partner", "no partner"]
    printed = symmetric_init.printed(table)
    assert len(printed) == 1
    row = printed.iloc[0]
    assert (row[("", "Corpus")], row[("", "Layers")], row[("", "Seeds")]) == ("reference", "4", "2")
    assert row[("Training loss", "Symmetric")] == "3.50 [3.00, 4.00]"
    assert row[("", "Speed-up (%)")] == "20 [0, 40]"


def test_seeds_that_end_differently_are_all_told(tmp_path):
    curves = {DEFAULT: [6.0, 5.0, 4.0, 3.0, 2.0], SYMMETRIC: [5.0, 4.0, 3.0, 2.0, 1.0]}
    curves |= {Run(seed=1): [3.0] * 5, Run(init="symmetric", seed=1): [4.0] * 5}
    row = symmetric_init.printed(table_of(tmp_path, curves)).iloc[0]
    assert row[("", "Speed-up (%)")] == "40; not reached 1 of 2"


def test_runs_without_partners_leave_the_table_without_rows(tmp_path):
    """As `only` may choose them."""
    [row] = symmetric_init.printed(table_of(tmp_path, {DEFAULT: [3.0] * 5, Run(depth=2): [3.0] * 5})).to_dict("records")
    assert row[("", "Corpus")] == "no such run"


def test_tables_without_runs_say_so(tmp_path):
    inputs = write_tables(tmp_path, [], [], [])
    for name in ("symmetric_init", "claims"):
        tables.render(name, inputs, tmp_path / name)
        assert all("no such run" in (tmp_path / f"{name}.{ending}").read_text() for ending in ("tex", "md"))
        assert pd.read_csv(tmp_path / f"{name}.csv").empty


# sign test and verdict


@pytest.mark.parametrize(
    ("n_for", "n_against", "p"),
    [(6, 0, 2 / 64), (0, 6, 2 / 64), (5, 1, 14 / 64), (3, 3, 1.0), (9, 1, 22 / 1024), (0, 0, 1.0)],
)
def test_sign_test(n_for, n_against, p):
    assert sign_test(n_for, n_against) == pytest.approx(p)


def test_with_fewer_pairs_no_outcome_would_be_below_the_level():
    assert sign_test(ENOUGH, 0) < LEVEL < sign_test(ENOUGH - 1, 0)


@pytest.mark.parametrize(
    ("n_for", "n_pairs", "p", "word"),
    [
        (0, 0, None, NONE),
        (3, 3, None, SUPPORTED),
        (2, 3, None, MIXED),
        (1, 2, None, MIXED),
        (1, 3, None, UNSUPPORTED),
        (0, 1, None, UNSUPPORTED),
        (9, 10, 0.02, SUPPORTED),
        (7, 10, 0.3, MIXED),
        (1, 10, 0.02, UNSUPPORTED),
    ],
)
def test_verdict(n_for, n_pairs, p, word):
    assert verdict(n_for, n_pairs, p) == word


def test_captions_state_the_constants():
    assert f"{WINDOW} logged points" in symmetric_init.CAPTION and f"{WINDOW} logged points" in claims.CAPTION
    assert f"at least {ENOUGH} pairs" in claims.CAPTION and f"below {LEVEL}" in claims.CAPTION


# claims


def test_effects_are_worked_out_from_medians_at_the_ends(tmp_path):
    encoder, decoder = Run(), Run("decoder")
    scores = [*scored(encoder, 0.0, 0.5), *scored(decoder, 0.1, -0.4)]
    table = claims.table(write_tables(tmp_path, [encoder.row(), decoder.row()], scores, []))
    found = table[table["effect"].notna()].set_index("claim")
    effects = {"encoder_symmetry": 0.9, "decoder_columns": 0.9, "symmetry_emerges": 0.5, "columns_emerge": 0.5}
    assert found["effect"].to_dict() == pytest.approx(effects)
    assert set(found["speaks"]) == {"for"}
    emerged = found.loc["symmetry_emerges"]
    assert (emerged["model_a"], emerged["step_a"], emerged["value_a"]) == (encoder.model, 500, pytest.approx(0.5))
    assert (emerged["model_b"], emerged["step_b"], emerged["value_b"]) == (encoder.model, 0, pytest.approx(0.0))
    printed = claims.printed(table).set_index(("", "Claim"))
    assert printed.loc["symmetry emerges", ("", "p")] == "too few pairs"
    assert printed.loc["symmetric start is faster", ("", "Verdict")] == NONE


def test_a_claim_that_rests_on_untrained_runs_says_of_how_many_pairs(tmp_path):
    runs = [Run(role, seed=seed) for role in ("encoder", "decoder") for seed in (0, 1)]
    scores = [row for run in runs for row in scored(run, 0.0, 0.5 if run.role == "encoder" else -0.4)]
    inputs = write_tables(tmp_path, [run.row() for run in runs], scores, [], untrained=(Run("decoder", seed=1).model,))
    found = claims.printed(claims.table(inputs)).set_index(("", "Claim"))["", "Verdict"]
    one = f"{SUPPORTED} † 1 of 2"
    assert found.tolist() == [one, one, SUPPORTED, one, NONE]


def test_columns_must_dominate_and_not_only_be_less_outweighed(tmp_path):
    encoder, decoder = Run(), Run("decoder")
    scores = [*scored(encoder, 0.5, 0.5), *scored(decoder, 0.5, 0.2)]  # rows dominate still
    table = claims.table(write_tables(tmp_path, [encoder.row(), decoder.row()], scores, [])).set_index("claim")
    assert table.loc["decoder_columns", ["effect", "speaks"]].tolist() == [pytest.approx(0.3), "against"]
    assert table.loc["columns_emerge", ["effect", "speaks"]].tolist() == [pytest.approx(0.3), "against"]
    assert table.loc["symmetry_emerges", ["effect", "speaks"]].tolist() == [0.0, "neither"]


def test_runs_against_a_claim_are_not_supported(tmp_path):
    encoder, decoder = Run(), Run("decoder")
    scores = [*scored(encoder, 0.5, -0.3), *scored(decoder, -0.4, -0.1)]
    table = claims.table(write_tables(tmp_path, [encoder.row(), decoder.row()], scores, []))
    printed = claims.printed(table).set_index(("", "Claim"))
    assert printed[("", "Verdict")].tolist() == [UNSUPPORTED] * 4 + [NONE]
    assert printed[("Effect", "Median")].tolist()[:4] == pytest.approx([-0.2, -0.2, -0.8, -0.3])


def test_a_pair_that_cannot_be_compared_is_listed_with_the_reason_and_not_counted(tmp_path):
    runs = [Run(), Run("decoder", status="diverged"), Run(seed=1)]
    table = claims.table(write_training(tmp_path, runs))
    of_claim = table[table["claim"] == "encoder_symmetry"]
    assert of_claim["note"].tolist() == ["diverged", "no partner"] and of_claim["speaks"].isna().all()
    printed = claims.printed(table).set_index(("", "Claim"))
    assert printed.loc["encoders are more symmetric", ("", "Verdict")] == NONE
    assert printed.loc["symmetry emerges", ("Pairs", "All")] == "2"


@pytest.mark.parametrize(
    ("default", "symmetric", "status", "effect", "speaks"),
    [
        ([6, 5, 4, 3, 2], [5, 4, 3, 2, 1], "ok", 0.4, "for"),
        ([6, 5, 4, 3, 2], [6, 5, 4, 3, 2], "ok", 0.0, "neither"),
        ([5, 4, 3, 2, 1], [6, 5, 4, 3, 2], "ok", 0.0, "against"),
        ([4, 4, 4, 4, 4], [4, 5, 5, 5, 5], "ok", 0.8, "against"),  # sooner, but it ends higher
        ([4, 4, 4, 4, 4], [4, 4, 4, 4, 3.9], "ok", 0.8, "neither"),  # one lucky batch
        ([6, 5, 4, 3, 2], [5, 4], "diverged", None, "against"),
        ([6, 5, 4, 3, 2], [5, 4], "failed", None, None),
    ],
)
def test_a_symmetric_start_must_be_sooner_and_no_worse(tmp_path, default, symmetric, status, effect, speaks):
    runs = {DEFAULT: default, Run(init="symmetric", status=status): symmetric}
    losses = [row for run, values in runs.items() for row in curve(run, values)]
    table = claims.table(write_tables(tmp_path, [run.row() for run in runs], [], losses))
    row = table[table["claim"] == "symmetric_init"].iloc[0]
    assert (None if pd.isna(row["speaks"]) else row["speaks"]) == speaks
    assert (None if pd.isna(row["effect"]) else row["effect"]) == (effect if effect is None else pytest.approx(effect))


def test_with_enough_pairs_there_is_a_test(tmp_path):
    inputs: Inputs = write_training(tmp_path)
    table = claims.table(inputs)
    printed = claims.printed(table).set_index(("", "Claim"))
    assert set(printed[("Pairs", "All")]) == {"10"} and set(printed[("", "p")]) == {"0.002"}
    assert set(printed[("", "Verdict")]) == {SUPPORTED}
    assert len(table) == 50 and "gpt2" not in " ".join([*table["model_a"], *table["model_b"]])


# the runs


def test_every_run_is_listed_once_with_its_margin(tmp_path):
    towers = Run(family="t5").row() | {"run": "t5", "status": "not_learned"}
    rows = [Run().row()]
    rows += [towers | {"model": f"t5.{role}", "role": role} for role in ("encoder", "decoder")]
    listed = training_runs.table(write_tables(tmp_path, rows, [], [], untrained=("t5.decoder",)))
    assert list(listed["run"]) == [Run().run, "t5"]
    printed = training_runs.printed(listed)
    assert printed[("", "Model")].tolist() == [Run().run, "t5 †"]
    assert printed[("", "Ended")].tolist() == ["ok", "not learned"]
    assert printed[("Held-out", "Margin")].tolist()[1] == 0.8
    assert pd.isna(printed[("Held-out", "Margin")][0])
