"""models.tsv as a whole: every model of the paper, each once, with the role that its attention has."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from qkgeom.layouts import layout_named
from qkgeom.registry import read_models
from qkgeom.sources import split_uri

MODELS = read_models()
ZOO = Path(__file__).parents[2] / "shared" / "zoo.csv"
LAPTOP = 2.1e9  # parameters


def published(model) -> str:
    """The id under which the paper's authors loaded it: some have an organisation before it by now."""
    return split_uri(model.uri)[1].partition("@")[0].rpartition("/")[2]


def test_every_model_of_the_paper_has_a_row_for_every_stack():
    if not ZOO.exists():
        pytest.skip("the list of the paper's models is not here")
    with ZOO.open(newline="") as file:
        wanted = {(row["model_id"].rpartition("/")[2], row["architecture"]) for row in csv.DictReader(file)}
    gguf = {(name, stack) for name, stack in wanted if name.endswith("-gguf")}  # the same weights, quantised by others
    assert len(gguf) == 2
    stacks = Counter(name for name, _ in wanted - gguf)
    rows = Counter(published(model) for model in MODELS.values() if "paper" in model.presets.split(","))
    rows["Llama-3.2-11B-Vision"] -= 1  # its global layers are a stack of their own
    assert {name: n for name, n in stacks.items() if rows[name] != n} == {}
    assert sum(rows.values()) == sum(stacks.values())


def test_a_stack_of_a_checkpoint_has_one_row():
    assert [
        each for each, n in Counter((model.uri, model.layout, model.adapter) for model in MODELS.values()).items() if n > 1
    ] == []


def test_towers_of_one_checkpoint_are_told_apart_by_their_ids():
    for model in MODELS.values():
        part = layout_named(model.layout).part
        assert part is None or model.model.endswith("." + part.replace("_", "-")), model.model


def test_queries_that_see_one_another_both_ways_are_no_decoders():
    for layout in ("detr_decoder", "mask2former_decoder", "sam_decoder", "mllama_vision"):
        assert {model.role for model in MODELS.values() if model.layout == layout} == {"encoder"}
    assert {model.role for model in MODELS.values() if model.layout in ("gpt2", "imagegpt", "bart_decoder")} == {"decoder"}


def test_sizes_are_stated_and_query_and_key_weights_are_a_part_of_them():
    rows = [model for model in MODELS.values() if model.uri.startswith("hf:")]
    assert rows and all(0 < int(model.qk_params) < 0.7 * int(model.n_params) for model in rows)
    on_a_laptop = {model.model for model in rows if "laptop" in model.presets.split(",")}
    small = {model.model for model in rows if "paper" in model.presets.split(",") and int(model.n_params) < LAPTOP}
    assert on_a_laptop == small


@pytest.mark.parametrize("first, second", [("ettin-encoder-{}", "ettin-decoder-{}")])
@pytest.mark.parametrize("size", ["17m", "32m", "68m", "150m", "400m", "1b"])
def test_pairs_of_one_recipe_are_there_with_both_roles(first, second, size):
    pair = [MODELS[name.format(size)] for name in (first, second)]
    assert [model.role for model in pair] == ["encoder", "decoder"]
    assert pair[0].n_params == pair[1].n_params and pair[0].qk_params == pair[1].qk_params


@pytest.mark.parametrize("size", ["150m", "400m"])
def test_checkpoints_of_a_pair_are_of_the_same_steps(size):
    pair = [MODELS[f"ettin-{role}-{size}.steps"] for role in ("encoder", "decoder")]
    assert pair[0].series == pair[1].series and [model.role for model in pair] == ["encoder", "decoder"]


def test_an_adapter_stands_beside_its_base():
    adapted = [model for model in MODELS.values() if model.adapter]
    bases = {(model.uri, model.layout) for model in MODELS.values() if not model.adapter}
    assert adapted and all((model.uri, model.layout) in bases for model in adapted)
