"""What is measured of updates and made of it: dense scores, token sums, controls, one run's tables, figures, predictions."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from measured_updates import write_updates
from qkgeom import figures
from qkgeom.errors import ModelFault, QkgeomError, UsageError
from qkgeom.figures import framework, update_dynamics
from qkgeom.files import write_json
from qkgeom.measured_updates import measured_runs
from qkgeom.rendering import Inputs
from qkgeom.runs import read_runs
from qkgeom.scores import score_factors
from qkgeom.settings import read_preset
from qkgeom.tables import _predictions, claims
from qkgeom.theory.attention import attention_gradients
from qkgeom.theory.matrices import dense_scores, pair_symmetry, recentred, resampled_weights
from qkgeom.theory.one_run import TABLES, measure_run
from qkgeom.theory.sums import LayerSums, step_sums
from qkgeom.theory.tokens import added, frequent, pair_sums, shuffled_positions, sides, texts
from qkgeom.theory.updates import implicit_gradient
from qkgeom.training import families
from qkgeom.training.controls import Controlled
from qkgeom.training.families.base import Recipe
from qkgeom.training.families.control import SWAP_AFTER
from qkgeom.training.one_run import train_run
from qkgeom.training.plans import Plan, plan_runs
from qkgeom.training.schedule import Schedule
from qkgeom.training.sequences import IGNORED
from qkgeom.training.tokens import SPECIAL, Corpus, write_corpus
from qkgeom.training.vocabulary import train_tokenizer
from qkgeom.verbs import updates as updates_verb
from theory_models import VOCABULARY, batch_for, bert, built, causal_bert, gpt2, llama_with_rope
from trained_models import Run, write_tables

pytestmark = pytest.mark.usefixtures("one_thread")
CUSTOM, CONTROL = (families.load(name) for name in ("custom", "control"))
RECIPE = Recipe("masked", "default", n_layer=2, d_model=16, n_head=2, length=8, dropout=0.0, init_std=0.1, seed=0)
SCHEDULE = Schedule(
    **{"steps": 12, "batch": 8, "accumulation": 1, "learning_rate": 0.003, "warmup": 2, "weight_decay": 0.01, "log_every": 4},
    **{"save_every": 6, "heldout_batches": 2, "snapshots": (0, 2, 4, 8, 12), "device": "cpu", "whole": (0, 4, 8)},
)


# dense scores


def test_dense_scores_are_the_scores():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(20, 30, 30)) * (1 + 3 * (rng.random((20, 1, 30)) > 0.95)) * (1 + 2 * (rng.random((20, 30, 1)) > 0.95))
    found = dense_scores(M)
    for each, matrix in enumerate(M):
        score = score_factors(torch.from_numpy(matrix), torch.eye(30, dtype=torch.float64))
        for name, values in found.items():
            assert values[each] == pytest.approx(getattr(score, name), abs=1e-12)
    assert len(set(found["directionality_excess"])) > 15


def test_matrices_without_scores():
    M = np.stack([np.zeros((6, 6)), np.full((6, 6), np.nan), np.eye(6)])
    assert np.isnan(dense_scores(M)["symmetry"]).tolist() == [True, True, False]
    assert dense_scores(M)["directionality_excess"][2] == 0  # equal norms have no outlier


def test_pair_symmetry_leaves_out_the_diagonal_and_sums_before_it_compares():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(3, 5, 5))
    weights = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    for found, weight in zip(pair_symmetry(B, weights), weights, strict=True):
        S = np.tensordot(weight, B, 1)
        np.fill_diagonal(S, 0)
        assert found == pytest.approx((S * S.T).sum() / (S * S).sum())
    same = B + np.swapaxes(B, 1, 2)
    assert pair_symmetry(same, weights) == pytest.approx([1, 1])


def test_bootstrap_weights_are_means_of_as_many_batches():
    weights = resampled_weights(8, 500, 0)
    assert weights.shape == (501, 8) and weights[0].tolist() == [1 / 8] * 8
    assert weights.sum(1) == pytest.approx(np.ones(501))
    assert weights[1:].var() == pytest.approx((1 / 8) * (7 / 8) / 8, rel=0.1)


def test_the_interval_of_a_noisy_symmetry_holds_the_symmetry():
    """A weak symmetric part under noise of each batch: resampled batches are less symmetric than all of them."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(40, 40))
    found = pair_symmetry(signal + signal.T + 3 * rng.normal(size=(8, 40, 40)), resampled_weights(8, 400, 0))
    assert np.percentile(found[1:], 97.5) < found[0]
    low, high = np.percentile(recentred(found), [2.5, 97.5])
    assert low < found[0] < high and recentred(found).mean() == pytest.approx(found[0])
    assert recentred(found).std() == pytest.approx(found[1:].std())
    assert update_dynamics._interval(found[None])[1] < found[0] < update_dynamics._interval(found[None])[2]


# sums by token


@pytest.mark.parametrize("make", [bert, causal_bert, gpt2])
def test_both_groupings_by_token_add_up_to_the_implicit_gradient(make):
    model = built(make)
    batch = batch_for(model)
    for attention in attention_gradients(model, batch)[1]:
        G = implicit_gradient(attention).sum(0)
        c, r = sides(attention)
        types = torch.unique(batch["input_ids"])
        rows, columns = (added(*pair, batch["input_ids"], types) for pair in ((attention.x, c), (r, attention.x)))
        assert torch.allclose(rows.sum(0), G) and torch.allclose(columns.sum(0), G)
        assert not torch.allclose(rows[0], columns[0])


def test_sums_by_pair_hold_every_beta_once_and_no_position_with_itself():
    rng = np.random.default_rng(0)
    beta, tokens = rng.normal(size=(4, 6, 6)), rng.integers(0, 5, (4, 6))
    found = pair_sums(beta, tokens, np.arange(5))
    expected = np.zeros((5, 5))
    for b, i, j in np.ndindex(beta.shape):
        if i != j:
            expected[tokens[b, i], tokens[b, j]] += beta[b, i, j]
    assert found == pytest.approx(expected)
    kept = np.array([1, 3])
    assert pair_sums(beta, tokens, kept) == pytest.approx(expected[np.ix_(kept, kept)])


def test_shuffled_positions_keep_the_tokens_of_each_sequence():
    tokens = np.random.default_rng(0).integers(0, 40, (20, 12))
    shuffled = shuffled_positions(tokens, np.random.default_rng(1))
    assert (np.sort(shuffled) == np.sort(tokens)).all() and (shuffled != tokens).mean() > 0.5
    assert frequent(np.array([7, 7, 2, 5, 5, 5]), 2).tolist() == [5, 7]


def test_whitened_updates_are_those_of_whitened_rows():
    model = built(bert)
    batches = [batch_for(model, 12) for _ in range(2)]
    recorded = [attention_gradients(model, batch)[1][1] for batch in batches]
    layer = LayerSums(np.zeros((24, 24)))
    for attention in recorded:
        W_q = torch.zeros(24, 4, 6, dtype=torch.float64)
        layer.add(attention, W_q, W_q)
    rows = torch.cat([attention.x.flatten(0, 1) for attention in recorded])
    values, vectors = torch.linalg.eigh(torch.cov(rows.T))
    there = values > 1e-9 * values[-1]
    assert there.sum() == 23  # a layer norm leaves one direction without variance
    P = vectors[:, there] @ torch.diag(values[there] ** -0.5) @ vectors[:, there].T
    white = (rows - rows.mean(0)) @ P
    assert torch.allclose(torch.cov(white.T), vectors[:, there] @ vectors[:, there].T, atol=1e-8)
    for found, attention, x in zip(layer.whitened(), recorded, white.unflatten(0, (2, 12, -1)), strict=True):
        expected = -torch.einsum("bhij,bid,bje->de", attention.beta, x, x)
        assert np.allclose(found, expected.numpy())


def test_terms_of_a_position_with_itself_are_symmetric_and_left_out_of_pairs():
    model = built(causal_bert)
    attention = attention_gradients(model, batch_for(model))[1][1]
    layer, W = LayerSums(np.zeros((24, 24))), torch.zeros(24, 4, 6, dtype=torch.float64)
    layer.add(attention, W, W)
    own = layer.implicit[0] - layer.implicit_pairs[0]
    assert np.abs(own).max() > 0 and np.allclose(own, own.T)
    pairs = replace(attention, beta=attention.beta * (1 - torch.eye(attention.beta.shape[-1], dtype=torch.float64)))
    assert np.allclose(layer.implicit_pairs[0], -implicit_gradient(pairs).sum(0).numpy())


def test_the_texts_of_a_masked_batch_have_their_tokens_back():
    batch = {"input_ids": torch.tensor([[4, 8, 9]]), "labels": torch.tensor([[7, IGNORED, IGNORED]])}
    assert texts(batch).tolist() == [[7, 8, 9]]
    moved = {**batch, "attention_mask": torch.ones(1, 1, 3, 3, dtype=torch.bool)}
    assert texts(moved).tolist() == [[4, 8, 9]]


def test_a_step_is_summed_over_batches():
    model = built(bert)
    sums = step_sums(model, [batch_for(model, 40) for _ in range(4)], [torch.tensor([1, 1, 2])], seed=0)
    assert sums.targets == {1: 8, 2: 4} or sums.targets == {1: 2, 2: 1}
    assert len(sums.losses) == 4 and len(sums.layers) == 3
    assert sums.layers[0].pairs[0].shape == (VOCABULARY, VOCABULARY)
    assert not np.allclose(sums.layers[0].pairs[0], sums.layers[0].pairs_shuffled[0])


@pytest.mark.faults
def test_models_that_are_not_measured():
    model = built(llama_with_rope)
    with pytest.raises(ModelFault, match=r"a model with RoPE has no W_qk whose plain update"):
        step_sums(model, [batch_for(model)], [torch.tensor([1])], seed=0)
    with pytest.raises(ModelFault, match=r"examples have none\n +where: +BertForMaskedLM\n +found: +pixel_values"):
        step_sums(built(bert), [{"pixel_values": torch.zeros(1)}], [torch.tensor([1])], seed=0)


# controls


def made_up(n=4000):
    ids = (len(SPECIAL) + np.random.default_rng(0).integers(0, 60, n)).astype(np.int32)
    return Corpus("made up", ids, ids[:800], 70, "digest", {token: i for i, token in enumerate(SPECIAL)})


def test_a_causal_batch_makes_the_bidirectional_model_a_decoder():
    """The control's model on a causal batch has the loss of transformers' own decoder with the same weights."""
    corpus = made_up()
    recipe = replace(RECIPE, objective="autoregressive")
    ours, theirs = CONTROL.build(recipe, corpus).eval(), CUSTOM.build(recipe, corpus).eval()
    theirs.load_state_dict(ours.state_dict())
    causal, plain = (family.data(recipe, corpus).train_batch(range(6)) for family in (CONTROL, CUSTOM))
    assert torch.equal(causal["input_ids"], plain["input_ids"])
    with torch.no_grad():
        assert float(ours(**causal).loss) == pytest.approx(float(theirs(**plain).loss), rel=1e-5)
    beta = attention_gradients(ours, causal)[1][0].beta
    assert beta.triu(1).abs().max() == 0 and beta.abs().max() > 0


def test_a_prefix_sees_itself_both_ways_and_is_not_predicted():
    batch = Controlled(made_up(), 8, 0, "prefix").train_batch(range(3))
    seen, labels, ids = batch["attention_mask"][0, 0], batch["labels"], batch["input_ids"]
    assert seen[:4, :4].all() and not seen[:4, 4:].any() and torch.equal(seen[4:], torch.ones(8, 8).tril().bool()[4:])
    assert (labels[:, :3] == IGNORED).all() and (labels[:, 7] == IGNORED).all()
    assert torch.equal(labels[:, 3:7], ids[:, 4:])


def test_shuffled_sequences_hold_the_same_tokens():
    recipes = [replace(RECIPE, objective=each) for each in ("autoregressive", "autoregressive shuffled")]
    plain, shuffled = (CONTROL.data(recipe, made_up()).train_batch(range(5)) for recipe in recipes)
    assert torch.equal(plain["input_ids"].sort().values, shuffled["input_ids"].sort().values)
    assert not torch.equal(plain["input_ids"], shuffled["input_ids"])


def test_an_objective_changes_in_the_middle():
    data = CONTROL.data(replace(RECIPE, objective="masked then autoregressive"), made_up())
    before, after = (data.train_batch(range(first, first + 8)) for first in (SWAP_AFTER - 8, SWAP_AFTER))
    assert "attention_mask" not in before and "attention_mask" in after
    assert "attention_mask" in data.heldout_batches(4, 1)[0]


def test_white_embeddings_are_white_and_are_not_trained():
    model = CONTROL.build(replace(RECIPE, objective="autoregressive white"), made_up())
    embeddings = model.bert.embeddings.word_embeddings.weight
    spread = torch.linalg.eigvalsh(torch.cov(embeddings.detach().T))
    assert float(spread[-1] / spread[0]) == pytest.approx(1, abs=1e-3)
    assert float(embeddings.std()) == pytest.approx(RECIPE.init_std, rel=0.1)
    assert not embeddings.requires_grad
    plain = CONTROL.build(RECIPE, made_up()).bert.embeddings.word_embeddings.weight
    assert plain.requires_grad


# one run


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(3, 6))) for _ in range(60)]
    lines = sorted({" ".join(rng.choice(words, 20)) for _ in range(200)})
    folder = tmp_path_factory.mktemp("corpora")
    write_corpus(folder / "tiny", "tiny", lines, train_tokenizer(lines, 120), 10**6)
    return folder


@pytest.fixture(scope="module")
def trained(corpora, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "tiny.a.s0"
    plan = Plan(CUSTOM, RECIPE, SCHEDULE, "tiny", None)
    write_json(run / "done.json", train_run(plan, corpora, run))
    return plan, run


def tables_of(run):
    return {name: pd.read_csv(run / "updates" / f"{name}.csv") for name in TABLES}


def test_a_run_is_measured_at_its_whole_snapshots(trained, corpora):
    plan, run = trained
    record = measure_run(plan, corpora, run, 3, {4: "[MASK]"})
    assert record["status"] == "ok" and record["steps"] == [0, 4, 8] and len(record["losses"]["4"]) == 3
    tables = tables_of(run)
    updates = tables["updates"]
    whole = {"implicit", "implicit_pairs", "implicit_batch", "first_order", "whitened"}
    whole |= {"beta_pairs", "beta_pairs_shuffled", "realised", "weights"}
    assert {step: set(part["quantity"]) for step, part in updates.groupby("step")} == {
        0: whole | {"realised_all"},
        4: whole | {"realised_second_half"},
        8: whole,
        12: {"weights"},
    }
    assert (updates.groupby(["step", "quantity"]).size() == plan.recipe.n_layer).all()
    assert set(updates["until"]) == {4, 8, 12}
    sampled = updates.dropna(subset="symmetry_low")
    assert (sampled["symmetry_low"] <= sampled["symmetry_high"]).all() and len(sampled)
    assert tables["resamples"].groupby(["step", "quantity"])["resample"].nunique().eq(41).all()
    assert set(tables["terms"]["panel"]) >= {"term 1", "term 3", "sum", "symmetric", "skew", "row norms", "column norms"}
    assert tables["growth"]["correlation"].dropna().between(-1, 1).all()


def test_the_first_realised_change_is_that_of_the_snapshots_and_losses_those_of_training(trained, corpora):
    from safetensors.torch import load_file

    plan, run = trained
    record = measure_run(plan, corpora, run, 3, {})
    found = tables_of(run)["updates"]
    states = [load_file(run / "snapshots" / f"{step:07d}" / "model.safetensors") for step in (0, 4)]
    name = "bert.encoder.layer.1.attention.self.{}.weight"
    before, after = (s[name.format("query")].double().T @ s[name.format("key")].double() for s in states)
    row = found[(found["step"] == 0) & (found["layer"] == 1) & (found["quantity"] == "realised")].iloc[0]
    change = (after - before).numpy()
    assert row["symmetry"] == pytest.approx(np.trace(change @ change) / np.square(change).sum(), abs=1e-6)
    logged = pd.read_csv(run / "losses.csv").query("split == 'train' and step == 4")["loss"].item()
    assert record["losses"]["0"][0] == pytest.approx(logged, rel=0.1)  # of these four batches' mean


def test_a_measured_run_is_not_measured_again_unless_something_changed(trained, corpora, caplog):
    plan, run = trained
    measure_run(plan, corpora, run, 3, {})
    written = (run / "updates/updates.csv").read_bytes()
    stamp = (run / "updates/updates.csv").stat().st_mtime_ns
    measure_run(plan, corpora, run, 3, {})
    assert (run / "updates/updates.csv").stat().st_mtime_ns == stamp
    (run / "updates/record.json").unlink()  # as a kill leaves it
    measure_run(plan, corpora, run, 3, {})
    assert (run / "updates/updates.csv").read_bytes() == written
    measure_run(plan, corpora, run, 2, {})
    assert (run / "updates/updates.csv").read_bytes() != written


@pytest.mark.faults
def test_a_run_that_is_not_trained_or_whose_snapshots_are_not_whole(trained, corpora, tmp_path):
    plan, run = trained
    with pytest.raises(QkgeomError, match=r"a run is not trained\n +where: +.*nowhere"):
        measure_run(plan, corpora, tmp_path / "nowhere", 3, {})
    partial = replace(plan, schedule=replace(SCHEDULE, whole=(0, 2)))
    with pytest.raises(ModelFault, match=r"a snapshot does not hold the whole model\n +where: +.*0000002.model.safetensors"):
        measure_run(partial, corpora, run, 4, {})
    gone = replace(plan, schedule=replace(SCHEDULE, snapshots=(0, 3, 4, 8, 12), whole=(0, 3)))
    with pytest.raises(ModelFault, match=r"a snapshot is missing\n +where: +.*0000003"):
        measure_run(gone, corpora, run, 5, {})


@pytest.mark.faults
def test_steps_without_a_snapshot_and_runs_that_there_are_not(tmp_path):
    with pytest.raises(UsageError, match=r"measures updates at steps without a snapshot\n +found: +3, 5\n"):
        replace(SCHEDULE, whole=(0, 3, 5))
    with pytest.raises(UsageError, match=r"there is no such run: mini.nothing.s0"):
        updates_verb.command(["mini.nothing.s0"], output=tmp_path, corpora=tmp_path)
    with pytest.raises(UsageError) as error:
        updates_verb.command(["mini.encoder-2l-referense.s0"], output=tmp_path, corpora=tmp_path)
    assert "such as mini.encoder-2l-reference.s0" in str(error.value) and len(str(error.value)) < 500
    with pytest.raises(UsageError, match=r"runs of one preset are planned at a time\n +where: +theory.control-masked.s0\n"):
        updates_verb.command(["mini.encoder-2l-reference.s0", "theory.control-masked.s0"], output=tmp_path, corpora=tmp_path)


@pytest.mark.faults
def test_a_run_that_the_preset_does_not_measure(trained, corpora, tmp_path):
    plan, _ = trained
    run = tmp_path / "tiny.a.s0"
    write_json(run / "done.json", {"status": "ok", "definition": {}})
    unnamed = replace(plan, schedule=replace(SCHEDULE, whole=()))
    with pytest.raises(UsageError, match=r"does not measure the updates of a run.*\n +where: +tiny.a.s0\n.*\n +do: +name a.s0"):
        measure_run(unnamed, corpora, run, 3, {})
    with pytest.raises(UsageError, match="does not measure the updates of a run"):  # the last step has no update
        measure_run(replace(plan, schedule=replace(SCHEDULE, whole=(12,))), corpora, run, 3, {})
    llama = replace(unnamed, family=families.load("llama"), recipe=replace(RECIPE, objective="autoregressive"))
    with pytest.raises(ModelFault, match="a model with RoPE has no W_qk"):
        measure_run(llama, corpora, run, 3, {})
    with pytest.raises(
        ModelFault, match=r"examples have none\n +where: +tiny.a.s0\n +found: +family vit, which reads no corpus"
    ):
        measure_run(replace(unnamed, family=families.load("vit"), corpus=""), corpora, run, 3, {})
    assert not (run / "updates").exists()


def test_presets_name_the_runs_that_are_measured_and_objectives_change_at_a_measured_step():
    plans = {
        preset: plan_runs(read_runs(preset).values(), read_preset(preset)["training"], "cpu")
        for preset in ("mini", "smoke", "theory", "paper")
    }
    measured = {preset: sum(bool(plan.schedule.whole) for plan in each.values()) for preset, each in plans.items()}
    assert measured == {"mini": 16, "smoke": 2, "theory": 48, "paper": 0}
    for plan in plans["theory"].values():
        schedule = plan.schedule
        per_step = schedule.batch * schedule.accumulation
        assert schedule.steps * per_step == 2 * SWAP_AFTER and SWAP_AFTER // per_step in schedule.whole
    assert {plan.recipe.objective for plan in plans["theory"].values()} == set(CONTROL.objectives)


@pytest.mark.faults
def test_a_run_that_diverged_is_recorded_and_has_no_tables(trained, corpora, tmp_path):
    plan, _ = trained
    write_json(tmp_path / "a" / "done.json", {"status": "diverged", "definition": {}})
    assert measure_run(plan, corpora, tmp_path / "a", 3, {})["status"] == "diverged"
    assert {path.name for path in (tmp_path / "a" / "updates").iterdir()} == {"record.json", "provenance.json"}
    assert json.loads((tmp_path / "a/updates/record.json").read_text())["steps"] == []


# figures and predictions


def inputs_of(tmp_path, shift=0.0, objectives=("masked", "autoregressive"), seeds=(0, 1, 2, 3, 4, 5)):
    """Runs of these objectives, each with measured updates."""
    folders, rows = [], []
    for objective in objectives:
        role = "encoder" if objective.startswith("masked") else "decoder"
        for seed in seeds:
            run = Run(role, seed=seed, family="custom" if objective in ("masked", "autoregressive") else "control")
            row = run.row() | {"objective": objective, "model": f"{objective.replace(' ', '-')}.s{seed}"}
            rows.append(row)
            folders.append(write_updates(tmp_path / "runs", row["model"], role, shift if objective == objectives[0] else 0.0))
    tables = write_tables(tmp_path / "tables", rows, [], [])
    return replace(tables, updates=tuple(folders))


def test_update_dynamics_draws_medians_over_runs_within_their_interval(tmp_path):
    inputs = inputs_of(tmp_path)
    table = update_dynamics.numbers(inputs)
    assert set(table["role"]) == {"encoder", "decoder"} and (table["n_runs"] == 6).all()
    assert not len(table[(table["quantity"] == "beta_pairs") & (table["score"] == "directionality_excess")])
    row = table.query("role == 'encoder' and quantity == 'realised' and score == 'symmetry' and step == 200").iloc[0]
    folders = [folder for folder in inputs.updates if "masked" in folder.name]
    runs = [pd.read_csv(folder / "updates/updates.csv").query("quantity == 'realised' and step == 200") for folder in folders]
    assert row["value"] == pytest.approx(np.median([run["symmetry"].median() for run in runs]), rel=1e-8)
    assert (table["low"] <= table["high"]).all() and row["low"] <= row["value"] <= row["high"] and row["until"] == 400


def test_figures_of_updates_render_without_any_run_that_ended_well_and_with_one_role(tmp_path):
    for number, objectives in enumerate(((), ("autoregressive",))):
        inputs = inputs_of(tmp_path / str(number), objectives=objectives, seeds=(0,))
        inputs = replace(inputs, updates=(*inputs.updates, tmp_path / "diverged"))
        for name in ("framework", "update_dynamics"):
            figures.render(name, inputs, tmp_path / f"{number}{name}")
            assert (tmp_path / f"{number}{name}.png").stat().st_size


def test_framework_shows_the_first_run_of_each_role(tmp_path):
    table = framework.numbers(inputs_of(tmp_path))
    assert table.drop_duplicates("role").set_index("role")["model"].to_dict() == {
        "encoder": "masked.s0",
        "decoder": "autoregressive.s0",
    }


def test_framework_prefers_a_layer_that_is_not_the_last(tmp_path):
    inputs = inputs_of(tmp_path)  # of every run layer 1 is shown
    runs = pd.read_csv(inputs.runs)
    runs.assign(depth=runs["model"].map({"masked.s3": 4}).fillna(2).astype(int)).to_csv(inputs.runs, index=False)
    shown = framework.numbers(inputs).drop_duplicates("role").set_index("role")["model"].to_dict()
    assert shown == {"encoder": "masked.s3", "decoder": "autoregressive.s0"}


def test_framework_keeps_long_tokens_over_their_own_panels(tmp_path):
    numbers = framework.numbers(inputs_of(tmp_path))
    is_term = numbers["panel"].str.startswith("term ")
    figure = framework.draw(numbers.assign(label=numbers["label"].mask(is_term, "[MASK] ← counterexamples")))
    FigureCanvasAgg(figure).draw()
    rows = np.array(figure.axes).reshape(2, -1)
    for row in rows:
        texts = [row[0].yaxis.label, *(axes.title for axes in row if axes.get_title())]
        assert texts[1].get_text() == "[MASK]\n← counter…"
        boxes = [text.get_window_extent() for text in texts]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_framework_draws_the_sum_and_its_parts_to_one_scale_and_the_norms_to_another(tmp_path):
    grid = np.array(framework.draw(framework.numbers(inputs_of(tmp_path))).axes).reshape(2, -1)
    for row in grid:
        scales = [axes.images[0].get_clim() for axes in row if axes.images]
        assert len(scales) == 5 and len(set(scales[2:])) == 1 and len(set(scales)) == 3
    assert grid[0, -1].get_ylim() == grid[1, -1].get_ylim()


def verdicts(inputs):
    table = _predictions.evidence(inputs)
    return {name: part["speaks"].value_counts().to_dict() for name, part in table.groupby("claim")}, table


def test_predictions_are_weighed_by_measured_updates(tmp_path):
    found, table = verdicts(inputs_of(tmp_path))
    assert found["beta_pairs"] == found["realised_symmetry"] == found["realised_columns"] == {"for": 6}
    assert found["row_growth"] == {"for": 12}
    row = table.query("claim == 'realised_symmetry'").iloc[0]
    assert row["effect"] == pytest.approx(row["value_a"] - row["value_b"]) and row["effect"] == pytest.approx(0.3, abs=0.03)
    assert not set(found) & {"swap_to_masked", "prefix_between", "white_columns"}, "no such run"


def test_predictions_can_fail(tmp_path):
    found, _ = verdicts(inputs_of(tmp_path, shift=-1.0))
    assert found["realised_symmetry"] == found["realised_columns"] == {"against": 6}


def test_controls_are_weighed_against_the_plain_objectives(tmp_path):
    more = ("masked then autoregressive", "autoregressive then masked", "prefix", "autoregressive white")
    inputs = inputs_of(tmp_path, objectives=("masked", "autoregressive", *more), seeds=(0, 1))
    found, table = verdicts(inputs)
    assert {"swap_to_autoregressive", "swap_to_masked", "prefix_between", "white_columns"} <= set(found)
    between = table.query("claim == 'prefix_between'")
    assert (between["model_a"].str.startswith("prefix")).all() and len(between) == 2
    assert len(measured_runs(inputs)) == 12


def test_a_prefix_run_is_weighed_against_runs_of_its_own_seed(tmp_path):
    inputs = inputs_of(tmp_path, objectives=("masked", "autoregressive", "prefix"), seeds=(0, 1))
    runs = pd.read_csv(inputs.runs)
    gone = {"prefix.s0", "autoregressive.s0"}
    runs[~runs["model"].isin(gone)].to_csv(inputs.runs, index=False)
    rows = verdicts(inputs)[1].query("claim == 'prefix_between'")
    assert rows[["model_a", "model_b"]].to_numpy().tolist() == [["prefix.s1", "masked.s1"]]
    assert rows["effect"].notna().all()


def test_every_prediction_is_weighed_and_the_table_is_older_than_the_figures():
    assert set(_predictions.titles()) == set(_predictions.WEIGHED)
    table = pd.read_csv(_predictions.TABLE, sep="\t", quoting=3)
    assert table.notna().all().all() and list(table) == ["prediction", "claim", "effect", "because"]


def test_claims_print_predictions_only_where_updates_were_measured(tmp_path):
    inputs = inputs_of(tmp_path)
    printed = claims.printed(claims.table(inputs))
    titles = _predictions.titles()
    assert titles["realised_symmetry"] in set(printed["", "Claim"]) and titles["swap_to_masked"] not in set(
        printed["", "Claim"]
    )
    without = claims.printed(claims.table(replace(inputs, updates=())))
    assert not set(titles.values()) & set(without["", "Claim"])


@pytest.mark.faults
def test_a_damaged_table_of_updates_is_named(tmp_path):
    inputs = inputs_of(tmp_path)
    (inputs.updates[0] / "updates/updates.csv").write_text("model,step\na,1\n")
    with pytest.raises(QkgeomError, match=r"measured updates cannot be read\n +where: +.*s0.updates.updates.csv"):
        update_dynamics.numbers(inputs)
    assert Inputs().measured("updates", ["model"]).empty
