"""From an artifact to rows: reading ahead, two layers in memory, and what happens when reading or memory fails."""

import json
import logging
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from fake_gpu import OnGpu
from project import qkgeom
from qkgeom import engine, streaming
from qkgeom.artifacts import read_layer
from qkgeom.engine import Engine
from qkgeom.errors import ModelFault
from qkgeom.layer_file import stream_layers
from qkgeom.products import GPU_TILE_BYTES
from qkgeom.scores import score_layer
from qkgeom.scoring import score_artifact, to_torch
from scored_models import random_layer, write_artifact

CPU = torch.device("cpu")
FILE = "final.safetensors"


# reading


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_layers_come_as_they_are_stored(tmp_path, dtype):
    folder = write_artifact(tmp_path / "m", [random_layer(d, dtype=dtype) for d in (60, 20, 40, 33)])  # of several sizes
    for layer, weights in enumerate(stream_layers(folder / FILE, range(4), CPU)):
        for ours, plain in zip(weights, read_layer(folder, FILE, layer), strict=True):
            assert torch.equal(ours, to_torch(plain, CPU)) and ours.dtype == to_torch(plain, CPU).dtype


def test_mixed_types_are_scored(tmp_path):
    (W_q, W_k) = random_layer()
    folder = write_artifact(tmp_path / "m", [(W_q.astype(ml_dtypes.bfloat16), W_k)])
    (row,) = score_artifact(folder, device="cpu")
    exact = score_layer(torch.tensor(W_q).bfloat16().double(), torch.tensor(W_k).double())["all"]
    assert row["symmetry"] == pytest.approx(exact.symmetry, abs=1e-6)


def test_the_next_layer_is_read_while_the_present_one_is_used_and_no_third():
    asked = [threading.Event() for _ in range(5)]

    def read(number):
        asked[number].set()
        return torch.tensor(number), torch.tensor(number)

    for number, (W_q, _) in enumerate(streaming.stream(read, 5, CPU)):
        assert W_q == number
        if number < 4:
            assert asked[number + 1].wait(10), "the next layer is not read ahead"
        assert number + 2 >= 5 or not asked[number + 2].wait(0.05), "a third layer is in memory"


def test_nothing_to_read():
    assert list(streaming.stream(None, 0, CPU)) == []


@pytest.mark.faults
def test_a_file_cut_short_while_it_is_read_is_named(tmp_path):
    folder = write_artifact(tmp_path / "m", [random_layer() for _ in range(3)])
    layers = stream_layers(folder / FILE, range(3), CPU)
    next(layers)
    size = (folder / FILE).stat().st_size
    with (folder / FILE).open("r+b") as file:
        file.truncate(size - 10)
    with pytest.raises(ModelFault, match="truncated") as error:
        list(layers)
    assert FILE in str(error.value) and f"at least {size} bytes" in str(error.value)


@pytest.mark.faults
@pytest.mark.parametrize(("spoil", "message"), [("cut", "truncated or damaged"), ("gone", "cannot read a checkpoint file")])
def test_a_file_that_is_not_whole_is_named(tmp_path, spoil, message):
    folder = write_artifact(tmp_path / "m", [random_layer()])
    content = (folder / FILE).read_bytes()
    (folder / FILE).unlink()
    if spoil == "cut":
        (folder / FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFault, match=message) as error:
        next(stream_layers(folder / FILE, [0], CPU))
    assert FILE in str(error.value)


@pytest.mark.faults
def test_integers_are_refused_by_name(tmp_path):
    folder = write_artifact(tmp_path / "m", [random_layer()])
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content.replace(b'"F32"', b'"I32"'))
    with pytest.raises(ModelFault) as error:
        score_artifact(folder, device="cpu")
    assert all(part in str(error.value) for part in (FILE, "tensor layer.000.W_q", "I32"))


@pytest.mark.faults
def test_shapes_that_are_no_layer_are_refused_by_name(tmp_path):
    W_q, W_k = random_layer(n_head=4, n_kv_head=2)
    folder = write_artifact(tmp_path / "odd", [(W_q, W_k), (W_q[:, :3], W_k)])
    with pytest.raises(ModelFault, match="do not belong to one layer") as error:
        score_artifact(folder, device="cpu")
    assert "odd final, layer 1" in str(error.value) and "[60, 3, 16]" in str(error.value)


@pytest.mark.faults
def test_a_layer_without_scores_stops_nothing(tmp_path):
    layers = [random_layer() for _ in range(4)]
    layers[1][0][...] = 0
    layers[2][1][3, 1, 0] = np.nan
    folder = write_artifact(tmp_path / "m", layers)
    assert [row["status"] for row in score_artifact(folder, device="cpu")] == ["ok", "zero", "not_finite", "ok"]


# several artifacts


@pytest.mark.faults
def test_a_damaged_artifact_stops_no_other(tmp_path):
    folders = [write_artifact(tmp_path / name, [random_layer()]) for name in ("one", "bad", "two")]
    (folders[1] / FILE).write_bytes((folders[1] / FILE).read_bytes()[:-1])
    result = qkgeom("score", *map(str, folders), "--in-place")
    assert result.returncode == 1 and "1 of 3 artifacts could not be scored" in result.stderr
    assert [(folder / "scores.csv").exists() for folder in folders] == [True, False, True]
    result = qkgeom("score", *map(str, folders), "--in-place", "--record", "lasting")
    assert result.returncode == 0, result.stderr  # it is recorded, as one that cannot be extracted, and `check` names it
    assert "bad cannot be scored, and the run goes on without it" in result.stderr
    assert [len((folder / "scores.csv").read_text().splitlines()) for folder in folders] == [2, 1, 2]
    assert "bad failed: " in qkgeom("check", *map(str, folders)).stdout


@pytest.mark.faults
def test_an_artifact_without_manifest_stops_no_other(tmp_path):
    folders = [write_artifact(tmp_path / name, [random_layer()]) for name in ("one", "bad", "two")]
    (folders[1] / "manifest.json").write_text("{")
    result = qkgeom("score", *map(str, folders), "--in-place")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "1 of 3 artifacts could not be scored" in result.stderr and f"where:    {folders[1]}\n" in result.stderr
    assert [(folder / "scores.csv").exists() for folder in folders] == [True, False, True]


@pytest.mark.parametrize("options", [[], ["--precision", "float64"]])
def test_precision_is_a_choice(tmp_path, options):
    W_q, W_k = random_layer(dtype=ml_dtypes.bfloat16)
    folder = write_artifact(tmp_path / "m", [(W_q, W_k)])
    (row,) = json.loads(qkgeom("score", str(folder), "--json", *options).stdout)
    exact = score_layer(*(to_torch(W, CPU).double() for W in (W_q, W_k)), precision="float64")["all"]
    assert row["symmetry"] == pytest.approx(exact.symmetry, abs=1e-14 if options else 1e-5)


# memory


@pytest.fixture
def gpu(monkeypatch, caplog):
    """Pretends that a GPU scores, and lacks the memory so many times; gives what was tried: where, and with which tiles."""
    caplog.set_level(logging.WARNING)
    tried = []

    def short(failures):
        def score(W_q, W_k, heads, precision, tile_bytes, alone):
            tried.append((W_q.device.type, tile_bytes))
            if len(tried) <= failures:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return score_layer(*(W.W if isinstance(W, OnGpu) else W for W in (W_q, W_k)), heads)

        monkeypatch.setattr(engine, "score_layer", score)
        return tried

    return short


@pytest.fixture
def weights():
    return [to_torch(W, CPU) for W in random_layer()]


@pytest.mark.faults
def test_tiles_are_halved_until_they_fit_and_stay_so(gpu, weights, caplog):
    tried, scorer = gpu(2), Engine()
    first, second = (scorer.score(*map(OnGpu, weights)) for _ in range(2))
    assert first == second == score_layer(*weights)
    assert tried == [("cuda", None), *[("cuda", GPU_TILE_BYTES // part) for part in (2, 4, 4)]]
    assert [record.message for record in caplog.records] == [
        f"out of memory on cuda; going on in tiles of {GPU_TILE_BYTES // part // 2**20} MiB" for part in (2, 4)
    ]


@pytest.mark.faults
def test_a_layer_that_fits_in_no_tile_is_scored_on_the_cpu(gpu, weights, caplog, monkeypatch):
    monkeypatch.setattr(engine, "SMALLEST_TILE", GPU_TILE_BYTES // 4)
    tried, scorer = gpu(3), Engine()
    assert scorer.score(*map(OnGpu, weights)) == score_layer(*weights)
    assert [where for where, _ in tried] == ["cuda", "cuda", "cuda", "cpu"]
    assert tried[-2:] == [(where, GPU_TILE_BYTES // 4) for where in ("cuda", "cpu")]
    assert "this layer is scored on the CPU" in caplog.text
    scorer.score(*map(OnGpu, weights))
    assert tried[-1][0] == "cuda", "the next layer is tried on the GPU again"


@pytest.mark.faults
def test_a_machine_without_memory_is_an_error(gpu, weights):
    gpu(99)
    with pytest.raises(torch.OutOfMemoryError):
        Engine().score(*weights)


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda's streams and events on a machine without a GPU; gives what happened in order."""
    done = []
    stream = SimpleNamespace(record_event=lambda: done.append("copied") or "event")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_event=lambda _: done.append("waited"))
    )
    return done


def test_layers_are_copied_to_two_places_in_turn(cuda):
    copies = streaming._CudaCopies(CPU)
    layers = [(torch.full((4, 2, 3), i), torch.full((4, 1, 3), i)) for i in range(3)] + [(torch.zeros(5, 1, 2),) * 2]
    places = []
    for number, layer in enumerate(layers):
        there = copies.wait(copies.start(number, layer))
        assert all(torch.equal(*pair) for pair in zip(there, layer, strict=True))
        places.append(there[0].data_ptr())
    assert places[0] == places[2] != places[1]
    assert cuda == ["copied", "waited"] * 4


@pytest.mark.faults
def test_a_layer_that_the_gpu_cannot_hold_stays_on_the_cpu(cuda, monkeypatch, weights, caplog):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty_like", full)
    copies = streaming._CudaCopies(CPU)
    there = copies.wait(copies.start(0, weights))
    assert all(one is other for one, other in zip(there, weights, strict=True)) and cuda == []
    assert "layer 0 does not fit into the memory of cpu" in caplog.text
