"""Structure of W_qk: against numpy's singular value decomposition in float64, and matrices with known answers."""

import csv
import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import qkgeom as library
from checkpoints import bert_config, bert_tensors
from fake_gpu import OnGpu
from project import qkgeom
from qkgeom import engine
from qkgeom.collecting import read_scores
from qkgeom.scoring import COLUMNS, to_torch
from qkgeom.structure import COLUMNS as STRUCTURE
from qkgeom.structure import NORMS, Structure, layer_structure, outlier_threshold, structure_of
from scored_models import random_layer, write_artifact

# of one matrix


def expected(M):
    """The definitions, word for word (docs/definitions.md)."""
    sigma = np.linalg.svd(M, compute_uv=False)
    p = sigma[sigma > 1e-12 * sigma[0]] / sigma.sum()
    found = {
        "effective_rank": np.exp(-(p * np.log(p)).sum()),
        "top1_share": sigma[0] ** 2 / (M**2).sum(),
        "top10_share": (sigma[:10] ** 2).sum() / (M**2).sum(),
    }
    for side, axis in (("row", 1), ("col", 0)):
        norms = np.sqrt((M**2).sum(axis))
        outliers = np.flatnonzero(norms > norms.mean() + 2 * norms.std(ddof=1))
        top = sorted(outliers, key=lambda i: -norms[i])[:5]
        found[f"top_{side}_share"] = (norms[top] ** 2).sum() / (M**2).sum()
        found[f"top_{side}s"] = " ".join(map(str, top))
    return found


def near(found: Structure, M, **tolerance):
    wanted = expected(M)
    for name, value in vars(found).items():
        assert value == (wanted[name] if isinstance(value, str) else pytest.approx(wanted[name], **tolerance)), name


@st.composite
def factors(draw):
    """Random factors, narrow and wide, some with outlier rows and columns, some badly scaled."""
    d, r = draw(st.integers(6, 60)), draw(st.integers(1, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    A, B = rng.standard_normal((2, d, r))
    for W in (A, B):
        W[rng.integers(d, size=draw(st.integers(0, 3)))] *= draw(st.sampled_from([3.0, 1000.0]))
    return A * 10.0 ** draw(st.integers(-18, 18)), B


def distinct(M):
    """Whether no two norms, and no norm and the threshold, are within rounding."""
    for axis in (0, 1):
        norms = np.sort(np.sqrt((M**2).sum(axis)))
        marks = np.sort([*norms, norms.mean() + 2 * norms.std(ddof=1)])
        if np.diff(marks).min() < 1e-7 * norms.mean():
            return False
    return True


@given(factors())
def test_equal_to_the_definitions(weights):
    A, B = weights
    M = A @ B.T
    assume(distinct(M))
    structure, norms = structure_of(torch.as_tensor(A), torch.as_tensor(B))
    near(structure, M, rel=1e-6)
    assert norms.rows == pytest.approx(np.linalg.norm(M, axis=1), rel=1e-9)
    assert norms.columns == pytest.approx(np.linalg.norm(M, axis=0), rel=1e-9)


@pytest.mark.parametrize("r", [40, 200])
def test_nearly_dependent_directions_are_no_trouble(r):
    rng = np.random.default_rng(r)
    A, B = rng.standard_normal((2, 100, r)) * np.logspace(0, -9, r)
    near(structure_of(torch.as_tensor(A), torch.as_tensor(B))[0], A @ B.T, rel=1e-5)


@pytest.mark.parametrize("r", [1, 8, 64])
def test_rank_one(r):
    rng = np.random.default_rng(0)
    A = np.outer(rng.standard_normal(64), rng.standard_normal(r))
    structure, _ = structure_of(torch.as_tensor(A), torch.as_tensor(np.outer(rng.standard_normal(64), np.ones(r))))
    assert (structure.effective_rank, structure.top1_share, structure.top10_share) == pytest.approx((1, 1, 1), abs=1e-12)


def test_an_orthogonal_matrix_uses_every_direction_and_has_no_outliers():
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((32, 32)))
    structure, _ = structure_of(torch.as_tensor(Q), torch.eye(32, dtype=torch.float64))
    assert structure.effective_rank == pytest.approx(32)
    assert (structure.top1_share, structure.top10_share) == pytest.approx((1 / 32, 10 / 32))
    assert (structure.top_row_share, structure.top_rows, structure.top_col_share, structure.top_cols) == (0, "", 0, "")


def test_the_largest_five_outliers_are_named_largest_first():
    M = np.random.default_rng(0).standard_normal((200, 200))
    columns = [7, 150, 3, 99, 42, 11, 60]
    M[:, columns] *= [20, 70, 30, 60, 40, 10, 50]
    structure, _ = structure_of(torch.as_tensor(M), torch.eye(200, dtype=torch.float64))
    assert structure.top_cols == "150 99 60 42 3"
    assert structure.top_rows != structure.top_cols
    near(structure, M, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_types_are_computed_in_float64(dtype):
    A, B = torch.randn(2, 48, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert structure_of(A, B)[0] == structure_of(A.double(), B.double())[0]


def test_an_exponent_beyond_float32_is_no_trouble():
    A, B = torch.randn(2, 48, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = structure_of(A, B), structure_of(A * 2.0**-500, B * 2.0**-500)
    assert other[0] == one[0]
    assert other[1].rows == pytest.approx(one[1].rows * 2.0**-1000, rel=1e-12, abs=0)


@pytest.mark.faults
@pytest.mark.parametrize("r", [4, 32])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_has_no_structure(r, bad):
    A, B = torch.ones(2, 16, r)
    B[3, 1] = bad
    structure, norms = structure_of(A, B)
    assert structure == Structure()
    assert np.isnan([norms.rows, norms.columns]).all()


@pytest.mark.faults
@pytest.mark.parametrize("r", [4, 32])
def test_zero_has_no_structure(r):
    structure, norms = structure_of(torch.zeros(16, r), torch.ones(16, r))
    assert structure == Structure()
    assert not norms.rows.any() and not norms.columns.any()
    disjoint = torch.zeros(2, 16, r)
    disjoint[0, :, :2] = disjoint[1, :, 2:4] = 1  # neither factor is zero
    assert structure_of(*disjoint)[0] == Structure()
    nearly = disjoint.double()
    nearly[1, :, 0] = 1e-200  # their product's square underflows
    assert structure_of(*nearly)[0] == Structure()


def test_equal_norms_have_no_threshold():
    assert outlier_threshold(np.ones(9)) == outlier_threshold(np.ones(1)) == np.inf
    assert outlier_threshold(np.array([1.0, 2, 3])) == pytest.approx(4)


# of an artifact


def dense(W_q, W_k, head=None):
    """W_qk of a layer or of a head, in float64."""
    group = W_q.shape[1] // W_k.shape[1]
    heads = range(W_q.shape[1]) if head is None else [head]
    return sum(W_q[:, h].astype(float) @ W_k[:, h // group].T.astype(float) for h in heads)


@pytest.fixture
def layers():
    W_q, W_k = random_layer(60, 4, 2)
    W_k[[5, 19]] *= np.array([20, 40], np.float32)[:, None, None]
    return [random_layer(24, 4, 4, 8), (W_q, W_k)]  # of two widths, as Swin's stages


@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
def test_layer_and_heads_are_those_of_their_matrices(n_kv_head):
    W_q, W_k = random_layer(60, 4, n_kv_head)
    found = layer_structure(to_torch(W_q, "cpu"), to_torch(W_k, "cpu"), heads=True)
    assert list(found) == ["all", "0", "1", "2", "3"]
    for head, (structure, norms) in found.items():
        M = dense(W_q, W_k, None if head == "all" else int(head))
        near(structure, M, rel=1e-5)
        assert norms.columns == pytest.approx(np.linalg.norm(M, axis=0), rel=1e-5)


def test_an_artifact_gets_columns_after_the_scores_and_its_norms(tmp_path, layers):
    folder = write_artifact(tmp_path / "m", layers)
    result = qkgeom("score", str(folder), "--structure", "--heads", "--device", "cpu", "-o", str(folder / "scores.csv"))
    assert result.returncode == 0, result.stderr
    with (folder / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == (*COLUMNS, *STRUCTURE)
    assert len(rows) == 2 * 5
    assert rows[5]["top_cols"] == "19 5"
    assert float(rows[5]["top_col_share"]) == pytest.approx(expected(dense(*layers[1]))["top_col_share"], rel=1e-5)
    with np.load(folder / NORMS) as norms:
        assert set(norms) == {f"final.layer.{k:03d}.{side}" for k in (0, 1) for side in ("rows", "columns")}
        for k, weights in enumerate(layers):
            M = dense(*weights)
            assert norms[f"final.layer.{k:03d}.rows"] == pytest.approx(np.linalg.norm(M, axis=1), rel=1e-5)
            assert norms[f"final.layer.{k:03d}.columns"] == pytest.approx(np.linalg.norm(M, axis=0), rel=1e-5)
    before = (folder / NORMS).read_bytes()
    assert qkgeom("score", str(folder), "--structure", "--device", "cpu", "--in-place").returncode == 0
    assert (folder / NORMS).read_bytes() == before, "the same weights give the same bytes"


def test_norms_are_written_and_removed_with_the_artifacts_own_scores_only(tmp_path, layers):
    folder = write_artifact(tmp_path / "m", layers)
    elsewhere = ("score", str(folder), "--device", "cpu", "-o", str(tmp_path / "x.csv"))
    assert qkgeom(*elsewhere, "--structure").returncode == 0
    assert not (folder / NORMS).exists()
    for in_place in (["--in-place"], ["-o", str(folder / "scores.csv")]):
        (folder / NORMS).write_bytes(b"of an earlier run")
        assert qkgeom(*elsewhere).returncode == 0
        assert (folder / NORMS).exists()
        assert qkgeom("score", str(folder), "--device", "cpu", *in_place).returncode == 0
        assert not (folder / NORMS).exists()


def test_without_the_option_there_are_neither_columns_nor_norms(tmp_path, layers):
    folder = write_artifact(tmp_path / "m", layers)
    rows = json.loads(qkgeom("score", str(folder), "--json", "--device", "cpu").stdout)
    assert set(rows[0]) == set(COLUMNS)
    assert not (folder / NORMS).exists()


def test_collected_lists_of_indices_stay_as_they_are(tmp_path, layers):
    for name, options in (("with", ["--structure"]), ("without", [])):
        folder = write_artifact(tmp_path / name, layers)
        assert qkgeom("score", str(folder), "-o", str(folder / "scores.csv"), *options).returncode == 0
    (tmp_path / "with/scores.csv").write_text((tmp_path / "with/scores.csv").read_text().replace(",19 5", ",19"))
    table = read_scores([tmp_path / "without/scores.csv", tmp_path / "with/scores.csv"])
    assert table["top_cols"].iloc[-1] == "19"
    assert table.loc[table["model"] == "without", list(STRUCTURE)].isna().all(axis=None)


@pytest.mark.faults
def test_a_layer_with_nan_and_a_zero_layer_have_empty_cells(tmp_path, layers):
    layers.append(tuple(np.zeros_like(W) for W in layers[0]))
    W_q, W_k = (W[:, :1] for W in layers[0])
    layers.append((np.concatenate([W_q, W_q], 1), np.concatenate([W_k, -W_k], 1)))  # its heads cancel, but for rounding
    layers[0][1][3, 1, 2] = np.nan
    folder = write_artifact(tmp_path / "m", layers)
    assert qkgeom("score", str(folder), "--structure", "--device", "cpu", "-o", str(tmp_path / "x.csv")).returncode == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["not_finite", "ok", "zero", "zero"]
    assert [{row[name] for name in STRUCTURE} == {""} for row in rows] == [True, False, True, True]


def test_structure_from_python_and_on_the_terminal(tmp_path, layers):
    frame = library.score(bert_tensors(), bert_config(), structure=True)
    assert tuple(frame.columns) == (*COLUMNS, *STRUCTURE)
    assert frame["effective_rank"].between(1, 24).all()
    shown = qkgeom("score", str(write_artifact(tmp_path / "m", layers)), "--structure", "--device", "cpu").stdout
    assert "effective_rank" in shown and "\t19 5\n" in shown


@pytest.mark.faults
def test_short_of_a_gpus_memory_the_cpu_finds_it(monkeypatch, caplog):
    def short(W_q, W_k, heads):
        if W_q.device.type == "cuda" or W_q is full:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return layer_structure(W_q, W_k, heads)

    W_q, W_k = (to_torch(W, "cpu") for W in random_layer())
    full = W_q.clone()
    monkeypatch.setattr(engine, "layer_structure", short)
    found = engine.Engine().structure(OnGpu(W_q), OnGpu(W_k))
    assert found["all"][0] == layer_structure(W_q, W_k)["all"][0]
    assert "this layer's structure is found on the CPU" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        engine.Engine().structure(full, W_k)
