"""The scores: matrices with known answers, properties that must hold for every matrix, and two real models."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from qkgeom import scores as engine
from qkgeom.errors import QkgeomError
from qkgeom.products import _ranges, gram, tiles, ways
from qkgeom.scores import layer_factors, score_factors, score_layer


def dense_scores(M):
    """The definitions, word for word, on a float64 matrix (DESIGN.md, section 1)."""
    S, N = (M + M.T) / 2, (M - M.T) / 2
    fro2 = (M**2).sum()
    sums = {}
    for side, norms in (("R", np.sqrt((M**2).sum(1))), ("C", np.sqrt((M**2).sum(0)))):
        threshold = norms.mean() + 2 * norms.std(ddof=1)
        large = norms[norms > threshold] if norms.std(ddof=1) > 1e-6 * norms.mean() else norms[:0]
        sums[side] = large.sum(), (large - threshold).sum() if large.size else 0.0
    (R, R_excess), (C, C_excess) = sums["R"], sums["C"]
    ratio = lambda a, b: (a - b) / (a + b) if a + b else 0.0  # noqa: E731
    return ((S**2).sum() - (N**2).sum()) / fro2, ratio(R, C), ratio(R_excess, C_excess), math.sqrt(fro2)


def factors(M):
    return torch.as_tensor(M), torch.eye(len(M), dtype=torch.float64)


def values(score):
    return score.symmetry, score.directionality, score.directionality_excess


def near_threshold(M):
    """Whether a norm lies within rounding of its threshold, the documented exception."""
    for axis in (0, 1):
        norms = np.sqrt((M**2).sum(axis))
        threshold = norms.mean() + 2 * norms.std(ddof=1)
        if norms.std(ddof=1) <= 1e-5 * norms.mean() or np.any(np.abs(norms - threshold) <= 1e-6 * threshold):
            return True
    return False


@st.composite
def matrices(draw, low=8, high=40):
    """Random square matrices, some with outlier rows and columns, some nearly symmetric or skew."""
    d = draw(st.integers(low, high))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    M = rng.standard_normal((d, d))
    lean = draw(st.sampled_from([0.0, 0.9, -0.9]))
    M = M + lean * M.T
    if draw(st.booleans()):
        M[:, rng.integers(d)] *= draw(st.sampled_from([3.0, 30.0, 1000.0]))
    if draw(st.booleans()):
        M[rng.integers(d)] *= draw(st.sampled_from([3.0, 30.0, 1000.0]))
    return M


@given(matrices())
def test_equal_to_the_definitions(M):
    assume(not near_threshold(M))
    score = score_factors(*factors(M))
    assert (*values(score), score.fro_norm) == pytest.approx(dense_scores(M), rel=1e-9, abs=1e-9)


@given(matrices())
def test_transposing_keeps_symmetry_and_negates_directionality(M):
    assume(not near_threshold(M))
    one, other = score_factors(*factors(M)), score_factors(*factors(M.T.copy()))
    assert other.symmetry == pytest.approx(one.symmetry, abs=1e-12)
    assert other.directionality == pytest.approx(-one.directionality, abs=1e-9)
    assert other.directionality_excess == pytest.approx(-one.directionality_excess, abs=1e-9)
    assert (other.n_row_outliers, other.n_col_outliers) == (one.n_col_outliers, one.n_row_outliers)


@given(matrices(), st.integers(-18, 18))
def test_scaling_changes_nothing(M, exponent):
    assume(not near_threshold(M))
    one, other = score_factors(*factors(M)), score_factors(*factors(M * 10.0**exponent))
    assert values(other) == pytest.approx(values(one), abs=1e-9)
    assert other.fro_norm == pytest.approx(one.fro_norm * 10.0**exponent, rel=1e-12)


@given(matrices(), st.integers(-18, 18))
def test_scaling_one_float32_factor_changes_nothing(M, exponent):
    assume(not near_threshold(M))
    W_q, W_k = torch.as_tensor(M).float()[:, None], torch.eye(len(M))[:, None]
    one, other = (score_layer(W_q * scale, W_k)["all"] for scale in (1.0, 2.0 ** (3 * exponent)))
    assert values(other) == pytest.approx(values(one), abs=1e-9)


@given(matrices())
def test_symmetric_and_skew_matrices(M):
    assert score_factors(*factors(M + M.T)).symmetry == pytest.approx(1, abs=1e-12)
    assert score_factors(*factors(M - M.T)).symmetry == pytest.approx(-1, abs=1e-12)


def layer(seed, d, n_head, n_kv_head, d_head):
    generator = torch.Generator().manual_seed(seed)
    shape = lambda heads: torch.randn(d, heads, d_head, generator=generator, dtype=torch.float64)  # noqa: E731
    return shape(n_head), shape(n_kv_head)


@st.composite
def layers(draw):
    n_kv_head = draw(st.integers(1, 4))
    n_head = n_kv_head * draw(st.integers(1, 3))
    return layer(draw(st.integers(0, 10**6)), draw(st.integers(8, 48)), n_head, n_kv_head, draw(st.integers(1, 6)))


@given(layers())
def test_grouped_queries_equal_explicit_sums_over_heads(weights):
    W_q, W_k = (W.numpy() for W in weights)
    group = W_q.shape[1] // W_k.shape[1]
    per_head = [W_q[:, h] @ W_k[:, h // group].T for h in range(W_q.shape[1])]
    assume(not any(near_threshold(M) for M in (*per_head, sum(per_head))))
    scores = score_layer(*weights, heads=True)
    assert list(scores) == ["all", *map(str, range(len(per_head)))]
    for M, score in zip([sum(per_head), *per_head], scores.values(), strict=True):
        assert (*values(score), score.fro_norm) == pytest.approx(dense_scores(M), rel=1e-7, abs=1e-7)


@given(layers())
def test_repeating_key_heads_changes_nothing(weights):
    W_q, W_k = weights
    repeated = W_k.repeat_interleave(W_q.shape[1] // W_k.shape[1], dim=1)
    one, other = score_layer(W_q, W_k)["all"], score_layer(W_q, repeated)["all"]
    assert other.symmetry == pytest.approx(one.symmetry, abs=1e-10)
    assert other.fro_norm == pytest.approx(one.fro_norm, rel=1e-10)


@given(layers(), st.integers(0, 10**6))
def test_a_change_of_basis_inside_the_heads_changes_nothing(weights, seed):
    W_q, W_k = weights
    Q, _ = torch.linalg.qr(
        torch.randn(W_q.shape[2], W_q.shape[2], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )
    one, other = score_layer(W_q, W_k)["all"], score_layer(W_q @ Q, W_k @ Q)["all"]
    assert other.symmetry == pytest.approx(one.symmetry, abs=1e-10)
    assert other.fro_norm == pytest.approx(one.fro_norm, rel=1e-10)


@pytest.mark.parametrize("n_kv_head", [1, 2, 12])
@pytest.mark.parametrize("tile_bytes", [1, 8 * 150**2, 2**30])
def test_gram_and_tile_ways_agree(n_kv_head, tile_bytes):
    A, B = layer_factors(*layer(0, 400, 12, n_kv_head, 6))
    M = (A @ B.T).numpy()
    norms = (np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
    for moments in (gram(A, B, *norms), tiles(A, B, *norms, dtype=torch.float64, tile_bytes=tile_bytes)):
        assert moments.rows == pytest.approx(np.linalg.norm(M, axis=1), rel=1e-10)
        assert moments.columns == pytest.approx(np.linalg.norm(M, axis=0), rel=1e-10)
        assert moments.trace == pytest.approx(np.trace(M @ M), rel=1e-9)


def test_the_cheaper_way_is_taken():
    """10 d r^2 operations of float64 against 2 d^2 r of float32 (half as dear) or of float64."""
    first = lambda d, r, exact: next(ways(d, r, torch.device("cpu"), exact))  # noqa: E731
    assert first(4096, 400, False) is gram
    assert first(4096, 420, False).keywords["dtype"] == torch.float32
    assert first(4096, 800, True) is gram
    assert first(4096, 840, True).keywords["dtype"] == torch.float64
    assert first(256, 256, False).keywords["dtype"] == torch.float64, "small products are exact"
    of_sums = lambda d, r: next(ways(d, r, torch.device("cpu"), False, bfloat16_parts=2))  # noqa: E731
    assert of_sums(16384, 1024) is gram, "a layer of LLaMA-3.1-405B"
    assert of_sums(4096, 1024).keywords["parts"] == 2


def test_column_outliers_are_negative():
    M = np.ones((64, 64))
    M[:, 3] = 20
    score = score_factors(*factors(M))
    assert (score.directionality, score.directionality_excess, score.status) == (-1, -1, "ok")


@pytest.mark.parametrize("M", [np.eye(16), np.ones((16, 16)), np.diag(np.arange(1.0, 6.0))])
def test_no_outlier_is_no_direction(M):
    score = score_factors(*factors(M))
    assert (score.directionality, score.directionality_excess, score.status) == (0, 0, "no_outliers")
    assert score.symmetry == pytest.approx(1)


@pytest.mark.faults
@pytest.mark.parametrize(("bad", "status"), [(0.0, "zero"), (float("nan"), "not_finite"), (float("inf"), "not_finite")])
def test_what_has_no_score_says_so(bad, status):
    W_q, W_k = layer(0, 16, 2, 1, 4)
    if bad == 0:
        W_q = W_q * 0
    else:
        W_q[3, 0, 1] = bad
    scores = score_layer(W_q, W_k, heads=True)
    assert scores["all"].status == status
    assert values(scores["all"]) == (None, None, None)
    assert scores["1"].status == ("zero" if bad == 0 else "ok"), "a head without the bad value keeps its score"


@pytest.mark.faults
@pytest.mark.parametrize(
    "shapes",
    [
        ((16, 3, 4), (16, 2, 4)),
        ((16, 2, 4), (8, 2, 4)),
        ((16, 2, 4), (16, 2, 5)),
        ((16, 8), (16, 8)),
        ((16, 2, 4), (16, 0, 4)),
        ((0, 2, 4), (0, 2, 4)),
        ((16, 2, 0), (16, 2, 0)),
    ],
)
def test_weights_of_different_layers_are_refused(shapes):
    with pytest.raises(QkgeomError, match="do not belong to one layer") as error:
        score_layer(*(torch.zeros(shape) for shape in shapes))
    assert str(list(shapes[0])) in str(error.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_weights_are_scored_in_float64(dtype):
    W_q, W_k = (W.to(dtype) for W in layer(3, 48, 4, 2, 6))
    exact = score_layer(W_q.double(), W_k.double())["all"]
    assert score_layer(W_q, W_k)["all"] == exact


def test_a_random_matrix_has_mean_symmetry_of_one_over_d():
    rng = np.random.default_rng(0)
    symmetries = [score_factors(*factors(rng.standard_normal((20, 20)))).symmetry for _ in range(2000)]
    assert np.mean(symmetries) == pytest.approx(1 / 20, abs=4 * np.std(symmetries) / math.sqrt(2000))


def hard_factors(d, r):
    """Factors on which float32 is put to the test: by scale, outliers, symmetry, rank, and cancellation across ranks."""
    generator = torch.Generator().manual_seed(d + r)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    A, B = random(d, r), random(d, r)
    half = r // 2
    outlier_rows, outlier_columns = A.clone(), B.clone()
    outlier_rows[[5, d // 3]] *= 1e3
    outlier_columns[[3, d // 2]] *= 1e3
    left, right = torch.cat([A[:, :half], B[:, :half]], 1), torch.cat([B[:, :half], A[:, :half]], 1)
    skew = torch.cat([B[:, :half], -A[:, :half]], 1)
    yield "random", A, B
    yield "times 1e-18", A * 1e-18, B
    yield "times 1e18", A * 1e9, B * 1e9
    yield "one tiny, one huge", A * 1e-30, B * 1e30
    yield "outlier columns", A, outlier_columns
    yield "outlier rows and columns", outlier_rows, outlier_columns
    yield "symmetric", left, right
    yield "nearly symmetric", left, right + 1e-3 * random(d, 2 * half)
    yield "skew", left, skew
    yield "nearly skew", left, skew + 1e-3 * random(d, 2 * half)
    yield "a symmetric start", A, A
    yield "rank 1", random(d, 1).expand(d, r) / r, B
    yield "falling spectrum", A * torch.logspace(0, -8, r), B
    yield "far from zero", A + 3, B + 3
    yield "equal norms", torch.linalg.qr(random(d, d))[0][:, :r], torch.linalg.qr(random(d, d))[0][:, :r]
    for size in (1e-2, 1e-4, 1e-6):
        cancelling = torch.cat([B[:, :half], -B[:, :half]], 1) + size * random(d, 2 * half)
        yield f"ranks that cancel to {size:g}", torch.cat([A[:, :half], A[:, :half]], 1), cancelling


@pytest.mark.parametrize(
    ("dtype", "alone"), [(torch.float32, True), (torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)]
)
@pytest.mark.parametrize(("d", "r"), [(300, 640), (640, 640), (1024, 256), (1500, 100), (1024, 64)])
def test_fast_scores_are_within_the_tolerances(d, r, dtype, alone):
    for name, *weights in hard_factors(d, r):
        A, B = (W.to(dtype) for W in weights)
        if not (A.isfinite().all() and B.isfinite().all() and A.any() and B.any()):
            continue  # float16 has no such numbers
        fast, exact = score_factors(A, B, alone=alone), score_factors(A, B, "float64")
        assert fast.symmetry == pytest.approx(exact.symmetry, abs=1e-5), name
        assert fast.directionality == pytest.approx(exact.directionality, abs=1e-4), name
        assert fast.directionality_excess == pytest.approx(exact.directionality_excess, abs=1e-4), name
        assert fast.fro_norm == pytest.approx(exact.fro_norm, rel=1e-5), name
        assert fast.status == exact.status, name


def test_the_tolerances_are_kept_by_the_estimate(monkeypatch):
    """Without falling back to float64, cancelling ranks are scored wrongly: the estimate is what notices."""
    factors_of = {name: weights for name, *weights in hard_factors(640, 640)}
    A, B = factors_of["ranks that cancel to 1e-06"]
    exact = score_factors(A, B, "float64")
    monkeypatch.setattr(engine, "SAFETY", 0)
    monkeypatch.setattr(engine, "NOISE", 0)
    monkeypatch.setattr("qkgeom.products.SMALL", 0)
    assert abs(score_factors(A, B).directionality - exact.directionality) > 1e-3


@pytest.fixture
def matrix_unit(monkeypatch):
    """Pretends that the CPU has a matrix unit; gives the precision of each product of float32 matrices that is computed."""
    used, mm, backend = [], torch.mm, torch.backends.mkldnn.matmul

    def noting(A, *others, **options):
        if A.dtype == torch.float32:
            used.append(backend.fp32_precision)
        return mm(A, *others, **options)

    monkeypatch.setattr(torch, "mm", noting)
    monkeypatch.setattr(engine, "has_matrix_unit", lambda device: True)
    return used


@pytest.mark.parametrize(
    ("dtype", "n_kv_head", "alone", "used"),
    [
        (torch.bfloat16, 8, True, {"bf16"}),
        (torch.bfloat16, 8, False, {"none"}),  # other threads may multiply
        (torch.bfloat16, 4, True, {"bf16"}),  # sums of queries are two such numbers each
        (torch.float16, 8, True, {"none"}),
        (torch.float32, 8, True, {"none"}),
    ],
)
def test_the_matrix_unit_multiplies_bfloat16_only(matrix_unit, dtype, n_kv_head, alone, used):
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    backend.fp32_precision = "none"
    W_q, W_k = (W.to(dtype) for W in layer(4, 640, 8, n_kv_head, 80))
    try:
        fast, exact = score_layer(W_q, W_k, alone=alone)["all"], score_layer(W_q, W_k, precision="float64")["all"]
        assert set(matrix_unit) == used
        assert values(fast) == pytest.approx(values(exact), abs=1e-5)
        assert backend.fp32_precision == "none"
    finally:
        backend.fp32_precision = before


@pytest.mark.parametrize("group", [2, 4, 16])
@pytest.mark.parametrize("d_head", [80, 160])
def test_sums_of_bfloat16_numbers_are_multiplied_as_two_of_them(matrix_unit, group, d_head):
    generator = torch.Generator().manual_seed(group)
    for name, A, B in hard_factors(640, 4 * d_head):
        W_k = B.unflatten(1, (4, d_head)).bfloat16()
        uneven = torch.randn(640, 4, group, d_head, generator=generator)  # heads of a group that differ in size and sign
        W_q = (A.unflatten(1, (4, 1, d_head)) * (1 + uneven)).flatten(1, 2).bfloat16()
        matrix_unit.clear()
        fast, exact = score_layer(W_q, W_k, alone=True)["all"], score_layer(W_q, W_k, precision="float64")["all"]
        assert set(matrix_unit) == {"bf16"}
        assert fast.symmetry == pytest.approx(exact.symmetry, abs=1e-5), name
        assert values(fast)[1:] == pytest.approx(values(exact)[1:], abs=1e-4), name
        assert name != "random" or fast != exact, "ordinary weights need no float64"


@pytest.mark.faults
def test_a_fault_leaves_the_matrix_unit_switched_off(matrix_unit, monkeypatch):
    backend, seen = torch.backends.mkldnn.matmul, []

    def fails(M):
        seen.append(backend.fp32_precision)
        raise MemoryError

    before = backend.fp32_precision
    monkeypatch.setattr("qkgeom.products._trace_of_square", fails)
    with pytest.raises(MemoryError):
        score_layer(*(W.bfloat16() for W in layer(4, 640, 8, 8, 80)), alone=True)
    assert seen == ["bf16"] and backend.fp32_precision == before


@pytest.mark.parametrize(
    ("d", "most", "widths"), [(100, 1024, [100]), (1500, 1024, [768, 732]), (4096, 1024, [1024] * 4), (300, 150, [192, 108])]
)
def test_tiles_are_aligned(d, most, widths):
    ranges = _ranges(d, most)
    assert [each.stop - each.start for each in ranges] == widths
    assert [each.start for each in ranges] == [0, *(each.stop for each in ranges[:-1])] and ranges[-1].stop == d


def test_ordinary_weights_are_scored_in_float32():
    A, B = next(weights for _, *weights in hard_factors(640, 640))
    fast = next(ways(*A.shape, A.device, exact=False))
    norms = (np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
    assert fast.keywords["dtype"] == torch.float32
    assert engine._from_moments(fast(A, B, *norms), 0)[1]


@pytest.mark.faults
def test_an_unknown_precision_is_refused():
    with pytest.raises(QkgeomError, match="no such precision"):
        score_layer(*layer(0, 16, 2, 1, 4), precision="float16")


@pytest.mark.faults
def test_integers_are_refused():
    with pytest.raises(QkgeomError, match="not floating-point numbers"):
        score_layer(*(W.to(torch.int8) for W in layer(0, 16, 2, 1, 4)))


def test_mixed_types_are_scored():
    W_q, W_k = layer(0, 64, 4, 2, 6)
    W_q, W_k = W_q.bfloat16(), W_k.float()
    exact = score_layer(W_q.double(), W_k.double())["all"]
    assert values(score_layer(W_q, W_k)["all"]) == pytest.approx(values(exact), abs=1e-6)


def test_query_heads_that_cancel_are_summed_exactly():
    """Two float32 heads of a group that all but cancel: their sum in float32 would keep no digit."""
    W_q, W_k = layer(5, 64, 2, 1, 4)
    W_q = W_q.float()
    W_q[:, 1] = -W_q[:, 0] * (1 + 2**-20)
    exact = score_layer(W_q.double(), W_k.double())["all"]
    assert values(score_layer(W_q, W_k.float())["all"]) == pytest.approx(values(exact), abs=1e-6)


@pytest.mark.parametrize(("exponent", "norm"), [(200, math.inf), (-200, 0.0)])
def test_a_norm_beyond_the_range_of_float64_spoils_no_score(exponent, norm):
    W_q, W_k = layer(7, 32, 2, 2, 4)
    one, other = score_layer(W_q, W_k)["all"], score_layer(W_q * 10.0**exponent, W_k * 10.0**exponent)["all"]
    assert values(other) == pytest.approx(values(one), abs=1e-9)
    assert (other.fro_norm, other.status) == (norm, "ok")
