"""The mini zoo: every family learns, resumes, and is extracted from its own format; its data say what they should."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, BeitForMaskedImageModeling

from qkgeom.acquisition import acquire
from qkgeom.artifacts import read_layer
from qkgeom.checkpoint import read_config
from qkgeom.errors import UsageError
from qkgeom.files import UMASK
from qkgeom.layouts import layout_for, layout_named
from qkgeom.scoring import score_artifact
from qkgeom.training import families, loop
from qkgeom.training.digits import SIDE, Digits, MaskedDigits, patch_size
from qkgeom.training.families.base import Recipe, entropy
from qkgeom.training.losses import mean_loss
from qkgeom.training.schedule import Schedule
from qkgeom.training.sequences import IGNORED
from qkgeom.training.snapshots import write_checkpoint
from qkgeom.training.spans import Spans
from qkgeom.training.tokens import SPECIAL, Corpus
from qkgeom.training.tones import END, FREQUENCIES, HIGH, HOP, LOW, RATE, START, Tones

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = families.names()
READERS = {
    "bert": AutoModelForMaskedLM,
    "modernbert": AutoModelForMaskedLM,
    "gpt2": AutoModelForCausalLM,
    "llama": AutoModelForCausalLM,
    "mistral": AutoModelForCausalLM,
    "t5": AutoModelForSeq2SeqLM,
    "beit": BeitForMaskedImageModeling,
}


def _text(count: int, seed: int) -> np.ndarray:
    """Tokens of which each follows from the one before, mostly."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([1, 7], count, p=[0.9, 0.1]).cumsum()
    return (len(SPECIAL) + steps % (40 - len(SPECIAL))).astype(np.int32)


CORPUS = Corpus("made up", _text(4000, 0), _text(800, 1), 40, "digest", {token: i for i, token in enumerate(SPECIAL)})


def recipe(name: str, seed: int = 0) -> Recipe:
    objective, length = families.load(name).objectives[0], 4 if name == "whisper" else 16
    return Recipe(objective, "default", n_layer=2, d_model=16, n_head=4, length=length, dropout=0.0, init_std=0.07, seed=seed)


def schedule(name: str) -> Schedule:
    steps = 150 if name == "vit" else 30  # timm's initial weights are so small that it starts slowly
    speed = {"learning_rate": 0.005, "warmup": 0, "weight_decay": 0.0}
    kept = {"log_every": 10, "save_every": steps - 10, "heldout_batches": 4, "snapshots": (0, steps)}
    return Schedule(steps=steps, batch=16, accumulation=1, device="cpu", **speed, **kept)


def test_families_are_found_by_their_files():
    assert set(NAMES) >= {"bert", "modernbert", "gpt2", "llama", "mistral", "vit", "beit", "whisper", "t5"}
    with pytest.raises(UsageError, match="no such family"):
        families.load("base")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2", {"dropout": 0.1}, "family gpt2 has no dropout"),
        ("custom", {"objective": "autoregressive", "init": "symmetric"}, "a symmetric start is for encoders"),
        ("bert", {"init": "symmetric"}, "family bert has no such init"),
        ("vit", {"n_head": 3}, "the heads do not divide the width"),
    ],
)
def test_a_recipe_that_the_family_does_not_have_is_refused(name, change, message):
    with pytest.raises(UsageError, match=message):
        families.load(name).require_buildable(replace(recipe(name), **change))


@pytest.mark.parametrize("name", [name for name in NAMES if families.load(name).has_dropout])
def test_dropout_and_initial_weights_are_those_of_the_recipe(name):
    model = families.load(name).build(replace(recipe(name), d_model=64, dropout=0.3, init_std=0.11), CORPUS)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
    (query,) = (value for key, value in model.named_parameters() if "layer.0.attention.self.query.weight" in key)
    assert float(query.detach().std()) == pytest.approx(0.11, rel=0.1)


def test_entropy_of_few_draws_is_not_too_low():
    rng = np.random.default_rng(0)
    drawn = [np.unique(rng.integers(0, 100, 400), return_counts=True)[1] for _ in range(50)]
    plain = [-(counts / 400 * np.log(counts / 400)).sum() for counts in drawn]
    assert np.mean(plain) < np.log(100) - 0.1
    assert np.mean([entropy(counts) for counts in drawn]) == pytest.approx(np.log(100), abs=0.01)
    assert entropy(np.array([7])) == 0


@pytest.mark.parametrize("name", NAMES)
def test_family_learns_and_goes_on_as_if_never_killed(name, tmp_path):
    family = families.load(name)
    whole, _, before = _train(family, tmp_path / "whole", iter(()))
    with pytest.raises(InterruptedError):  # at the last batch, ten steps after the saved state
        _train(family, tmp_path / "killed", iter([*[None] * (schedule(name).steps - 1), InterruptedError()]))
    resumed, outcome, _ = _train(family, tmp_path / "killed", iter(()))
    assert outcome.status == "ok"
    assert outcome.heldout_loss < before - 0.02
    assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())


class _Faulty:
    """Data whose training batches raise what `faults` says."""

    def __init__(self, data, faults: Iterator) -> None:
        self.data, self.faults = data, faults
        self.heldout_batches = data.heldout_batches

    def train_batch(self, indices):
        if fault := next(self.faults, None):
            raise fault
        return self.data.train_batch(indices)


def _train(family, folder, faults: Iterator):
    plan = schedule(family.name)
    data = family.data(recipe(family.name), CORPUS)
    model = family.build(recipe(family.name), CORPUS)
    before = mean_loss(model, data.heldout_batches(plan.batch, 4))
    outcome = loop.train(model, _Faulty(data, faults), folder, plan, 0, family.is_query_or_key, {})
    return model, outcome, before


@pytest.mark.parametrize("name", NAMES)
def test_query_and_key_weights_are_extracted_from_the_native_checkpoint_and_scored(name, tmp_path):
    family = families.load(name)
    model = family.build(recipe(name, 3), CORPUS)
    write_checkpoint(tmp_path / "whole", model, lambda _: True)
    write_checkpoint(tmp_path / "partial", model, family.is_query_or_key)
    for part in (layout_named(layout).part for layout in family.layouts):
        whole, partial = (
            acquire(f"file:{tmp_path / kind}", tmp_path / f"{kind}.{part}", "m", part=part) for kind in ("whole", "partial")
        )
        assert whole["layout"] in family.layouts
        assert partial["n_layer"] == 2
        assert partial["not_in_W_qk"] == whole["not_in_W_qk"]
        for layer in range(2):
            stored = [read_layer(tmp_path / f"{kind}.{part}", "final.safetensors", layer) for kind in ("whole", "partial")]
            assert all(np.array_equal(*pair) for pair in zip(*stored, strict=True))
        scores = score_artifact(tmp_path / f"partial.{part}", device="cpu")
        assert [0 < abs(row["symmetry"]) < 0.5 for row in scores] == [True, True]  # random weights
    kept, everything = (_bytes(tmp_path / kind) for kind in ("partial", "whole"))
    assert kept < everything / 2
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {0o666 & ~UMASK}  # others may read them too


def _bytes(folder):
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".pt"))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_queries_are_grouped(name, tmp_path):
    family = families.load(name)
    model = family.build(recipe(name), CORPUS)
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path / "config.json")
    shape = layout_for(config).shape(config, 0)
    assert (shape.n_head, shape.n_kv_head) == (4, 2)
    assert config["rope_parameters"]["rope_theta"] == {"llama": 500_000, "mistral": 10_000}[name]
    assert config.get("sliding_window") == {"llama": None, "mistral": 8}[name]


@pytest.mark.parametrize("name", READERS)
def test_transformers_reads_the_last_checkpoint(name, tmp_path):
    family = families.load(name)
    model = family.build(recipe(name), CORPUS).eval()
    write_checkpoint(tmp_path / "last", model, lambda _: True)
    batch = family.data(recipe(name), CORPUS).train_batch(range(4))
    again = READERS[name].from_pretrained(tmp_path / "last").eval()
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(again(**batch).loss, model(**batch).loss)


def test_timm_reads_the_last_checkpoint(tmp_path):
    import timm
    from safetensors.torch import load_file

    family = families.load("vit")
    model = family.build(recipe("vit"), CORPUS).eval()
    write_checkpoint(tmp_path / "last", model, lambda _: True)
    config = read_config(tmp_path / "last" / "config.json")
    again = timm.create_model(config["architecture"], **config["model_args"]).eval()
    again.load_state_dict(load_file(tmp_path / "last" / "model.safetensors"))
    pixels = Digits(0).train_batch(range(4))["pixel_values"]
    assert torch.equal(again(pixels), model.native(pixels))
    assert config["pretrained_cfg"]["mean"] == [0.5]


def test_whisper_reads_the_last_checkpoint(tmp_path):
    import whisper

    family = families.load("whisper")
    model = family.build(recipe("whisper"), CORPUS).eval()
    write_checkpoint(tmp_path / "last", model, lambda _: True)
    batch = Tones(4, 0).train_batch(range(4))
    again = whisper.load_model(str(tmp_path / "last" / "model.pt"), device="cpu")
    assert torch.equal(again(batch["mel"], batch["tokens"]), model.native(batch["mel"], batch["tokens"]))


@pytest.mark.parametrize("name", NAMES)
def test_batches_depend_on_seed_and_index_alone(name):
    family = families.load(name)
    first, again, other = (family.data(recipe(name, seed), CORPUS) for seed in (0, 0, 1))
    first.train_batch(range(8))  # whatever came before
    assert _equal(first.train_batch(range(8, 16)), again.train_batch(range(8, 16)))
    assert not _equal(first.train_batch(range(8, 16)), other.train_batch(range(8, 16)))
    assert not _equal(first.train_batch(range(8, 16)), first.train_batch(range(16, 24)))
    assert all(_equal(*pair) for pair in zip(first.heldout_batches(8, 3), other.heldout_batches(8, 3), strict=True))
    assert first.digest == other.digest


def _equal(one, other) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items())


class _Constant(torch.nn.Module):
    """Predicts the same probabilities everywhere."""

    device = torch.device("cpu")

    def __init__(self, probabilities: torch.Tensor) -> None:
        super().__init__()
        self.log_probabilities = probabilities.log()

    def forward(self, labels: torch.Tensor, **_: torch.Tensor):
        logits = self.log_probabilities.expand(*labels.shape, -1)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        return type("Output", (), {"loss": loss, "logits": logits})


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "whisper"])
def test_the_best_constant_prediction_gains_no_more_than_the_correction_and_any_other_less(name):
    family = families.load(name)
    data = family.data(recipe(name), CORPUS)
    heldout = data.heldout_batches(8, 4)
    targets = torch.cat([batch["labels"].flatten() for batch in heldout])
    counts = torch.bincount(targets[targets != IGNORED], minlength=40).double()
    best = family.measure(_Constant(counts / counts.sum()), data, heldout)
    corrected = 0 if family.metric == "accuracy" else float((counts > 0).sum() - 1) / (2 * float(counts.sum()))
    assert best.gain == pytest.approx(corrected, abs=1e-6)
    rare = int(torch.where(counts > 0, counts, torch.inf).argmin())
    worse = counts.clone()
    worse[rare] = 2 * counts.max()
    assert family.measure(_Constant(worse / worse.sum()), data, heldout).gain < corrected - 0.01


def test_a_causal_model_is_measured_on_the_tokens_that_it_predicts(tmp_path):
    family = families.load("gpt2")
    data = family.data(recipe("gpt2"), CORPUS)
    model, (batch, *_) = family.build(recipe("gpt2"), CORPUS), data.heldout_batches(8, 1)
    predicted = batch["input_ids"][:, 1:].flatten()
    with torch.no_grad():
        logits = model.eval()(input_ids=batch["input_ids"]).logits[:, :-1]
    measured = family.measure(model, data, [batch])
    assert measured.value == pytest.approx(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), predicted)), rel=1e-5)
    assert measured.baseline == pytest.approx(entropy(np.unique(predicted, return_counts=True)[1]), rel=1e-5)


def test_spans_put_back_give_the_text():
    data = Spans(CORPUS, 32, 0)
    batch = data.train_batch(range(8))
    texts = CORPUS.train[: len(CORPUS.train) // 32 * 32].reshape(-1, 32).tolist()
    for source, target, shifted in zip(
        *(batch[key].tolist() for key in ("input_ids", "labels", "decoder_input_ids")), strict=True
    ):
        assert target[-1] == SPECIAL.index("[SEP]")
        assert shifted == [SPECIAL.index("[PAD]"), *target[:-1]]
        spans, current = {}, None
        for token in target[:-1]:
            current = spans.setdefault(token, []) if token >= 40 else current.append(token) or current
        restored = [token for each in source for token in (spans[each] if each >= 40 else [each])]
        assert restored in texts
        assert sum(map(len, spans.values())) == 16
        assert sorted(spans) == [40, 41]
    for held in data.heldout_batches(8, 2):
        assert int(held["labels"].max()) < 40
        assert ((held["labels"] != IGNORED).sum(1) == 16).all()


def test_a_corpus_without_room_for_a_sequence_is_refused():
    short = replace(CORPUS, heldout=CORPUS.heldout[:20])
    with pytest.raises(UsageError, match="shorter than one sequence"):
        Spans(short, 32, 0)


def test_held_out_images_are_never_trained_on():
    data = Digits(0)
    train, held = data.splits
    assert not set(train) & set(held)
    assert len(train) + len(held) == len(data.images[1]) == 1797
    assert 0.15 < len(held) / 1797 < 0.25
    one_epoch = data.train_batch(range(len(train)))["pixel_values"]
    assert sorted(map(bytes, one_epoch.numpy())) == sorted(map(bytes, data.images[0][train]))
    assert float(one_epoch.min()) == -1
    assert float(one_epoch.max()) == 1


@pytest.mark.parametrize("patches", [4, 16])
def test_visual_tokens_are_those_of_the_masked_patches(patches):
    data = MaskedDigits(0, patches)
    batch = data.train_batch(range(8))
    masked = batch["bool_masked_pos"]
    assert (masked.sum(1) == round(0.4 * patches)).all()
    size = patch_size(patches)
    cut = torch.nn.functional.unfold(batch["pixel_values"], size, stride=size).swapaxes(1, 2)  # [batch, patches, pixels]
    seen = {}
    for patch, token in zip(cut[masked].tolist(), batch["labels"].tolist(), strict=True):
        assert seen.setdefault(tuple(patch), token) == token  # equal patches, equal tokens
    assert len(set(seen.values())) > 2


@pytest.mark.parametrize("patches", [0, 1000, 15, 9])
def test_an_image_is_cut_into_squares_only(patches):
    with pytest.raises(UsageError, match="cut into so many patches"):
        patch_size(patches)


def test_a_single_patch_is_the_whole_image():
    assert patch_size(1) == SIDE


def test_a_recording_holds_the_frequencies_of_its_digits():
    for index in range(20):
        wave, digits = Tones(1, 0)._recording((1, 0, index))
        power = np.abs(np.fft.rfft(wave)) ** 2
        loudest = [max(band, key=lambda f: power[round(f * len(wave) / RATE)]) for band in (LOW, HIGH)]
        assert FREQUENCIES[int(digits[0])] == tuple(loudest)


def test_a_transcription_is_predicted_token_by_token():
    batch = Tones(4, 0).train_batch(range(64))
    assert batch["mel"].shape == (64, 80, len(Tones(4, 0)._recording((1, 0, 0))[0]) // HOP)
    lengths = set()
    for tokens, labels in zip(batch["tokens"].tolist(), batch["labels"].tolist(), strict=True):
        count = labels.index(END)
        lengths.add(count)
        assert tokens[0] == START
        assert tokens[1 : count + 1] == labels[:count]
        assert all(label < 10 for label in labels[:count])
        assert set(labels[count + 1 :]) <= {IGNORED}
    assert lengths == {2, 3, 4}
