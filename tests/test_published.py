"""The published way to read weights: it is what the paper's code did, and not what the models multiply."""

import shutil

import numpy as np
import pytest
import torch

from checkpoints import extract, llama_config, llama_tensors, write_bert, write_checkpoint
from contract import extracted, mismatch, stored_tensors
from project import qkgeom
from qkgeom import artifacts
from qkgeom.layouts import all_layouts
from qkgeom.layouts.base import AttentionShape
from qkgeom.published import EMULATED, WAYS, published_weights, score_published, way_of, way_of_artifact
from qkgeom.published_values import DEFECTS, read_published
from qkgeom.registry import read_models
from qkgeom.sources import open_checkpoint

CPU = torch.device("cpu")
CASES = [
    pytest.param((layout, case), id=f"{name}-{case.model}-{number}")
    for name in WAYS
    for layout in [all_layouts()[name]]
    for number, case in enumerate(layout.cases)
]
READ_RIGHT = {"LlamaModel", "PhiModel", "PhiForCausalLM", "Olmo2ForCausalLM"}  # as many key heads as query heads


@pytest.fixture(scope="module", params=CASES)
def proof(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("case")
    yield extracted(*request.param, folder)
    shutil.rmtree(folder)


def test_the_published_way_fails_the_hook_check_and_the_right_way_passes(proof):
    way = way_of_artifact(proof.manifest)
    if way is None:
        sizes = proof.manifest["snapshots"]["final"]["layers"][0]
        wide = sizes["n_head"] * sizes["d_head"] != sizes["d_model"]
        fused_groups = proof.layout.name == "phi3" and sizes["n_kv_head"] < sizes["n_head"]
        assert proof.case.model in READ_RIGHT or sizes["n_kv_head"] == 1 or wide or fused_groups
        assert score_published(proof.artifact, "cpu") == []
        return
    with published_weights(proof.artifact, proof.manifest, way, CPU) as weights:
        theirs = [[W.double() for W in pair] for pair in weights]
    assert len(theirs) == proof.manifest["n_layer"]
    for execution in proof.executions["fused"]:
        right, wrong = mismatch(execution, *proof.weights(execution.layer)), mismatch(execution, *theirs[execution.layer])
        assert right.heads.max() < 1e-4 and right.layer < 1e-4
        # a thousand times what the right way may differ; grouped heads differ least, since some are paired right
        assert wrong.heads.max() > 0.5 and wrong.layer > 0.1, way.defects


def test_the_published_scores_are_those_of_the_matrix_that_the_published_code_formed(proof):
    rows = score_published(proof.artifact, "cpu")
    for row, layer in zip(rows, proof.manifest["snapshots"]["final"]["layers"], strict=bool(rows)):
        M = published_matrix(proof, layer)
        assert row["symmetry"] == pytest.approx(np.trace(M @ M) / (M**2).sum(), abs=1e-5)
        assert row["directionality_excess"] == pytest.approx(excess(M), abs=1e-4)
        assert set(row["defects"].split(",")) <= EMULATED


def published_matrix(proof, layer):
    """What utils/funs.py of the authors' repository gives for a layer, from the tensors in its checkpoint."""
    names = [read["tensor"] for read in layer["read"].values()]
    stored = {name: tensor.double().numpy() for name, tensor in stored_tensors(proof.checkpoint).items()}
    d = layer["d_model"]
    if proof.layout.name == "llama":
        q, k = (stored[name].T for name in names)
        d_head = d // layer["n_head"]
        folded = k.reshape(d, d_head, layer["n_kv_head"])
        return q @ np.repeat(folded, layer["n_head"] // layer["n_kv_head"], axis=0).reshape(d, d).T
    if proof.layout.name == "musicgen_decoder":
        q, k = (stored[name.replace("self_attn", "encoder_attn")].T for name in names)
        return q @ k.T
    fused = stored[names[0]]
    return fused[:d] @ fused[d : 2 * d].T


def excess(M):
    above = []
    for axis in (1, 0):
        norms = np.sqrt((M**2).sum(axis))
        threshold = norms.mean() + 2 * norms.std(ddof=1)
        above.append((norms[norms > threshold] - threshold).sum())
    return (above[0] - above[1]) / (above[0] + above[1]) if sum(above) else 0


@pytest.mark.parametrize(
    ("n_head", "n_kv_head", "d_head", "wrong"), [(8, 2, 8, True), (8, 1, 8, False), (8, 8, 8, False), (8, 2, 16, False)]
)
def test_groups_are_mispaired_where_there_are_several(n_head, n_kv_head, d_head, wrong):
    assert (way_of(all_layouts()["llama"], AttentionShape(64, n_head, n_kv_head, d_head)) is not None) == wrong


def test_the_untransposed_symmetry_is_the_right_trace_over_the_wrong_norm(tmp_path):
    """tr(M M) does not change when the factors are contracted the other way round."""
    layout, case = all_layouts()["modernbert"], all_layouts()["modernbert"].cases[0]
    proof = extracted(layout, case, tmp_path)
    [W_q, W_k] = [W.flatten(1).numpy() for W in proof.stored(0)]
    right, theirs = W_q @ W_k.T, W_q.T @ W_k
    assert np.trace(right @ right) == pytest.approx(np.trace(theirs @ theirs))
    assert score_published(proof.artifact, "cpu")[0]["fro_norm"] == pytest.approx(np.linalg.norm(theirs), rel=1e-5)


def test_every_defect_of_the_paper_that_can_be_applied_again_belongs_to_a_way():
    assert set(DEFECTS) - {"random_weights", "missing_layers"} == EMULATED
    models = read_models()
    for name, row in read_published().items():
        defects = set(row["defect"].split(",")) & EMULATED
        if defects:
            assert defects == set(WAYS[models[name].layout].defects), name


# the command


@pytest.fixture
def llama(tmp_path):
    """A checkpoint with grouped queries, and its artifact."""
    write_checkpoint(tmp_path / "llama", llama_tensors(), llama_config())
    with open_checkpoint(f"file:{tmp_path / 'llama'}") as opened:
        extract(opened, all_layouts()["llama"], tmp_path / "artifact", "tiny")
    return tmp_path


@pytest.mark.parametrize("target", ["artifact", "llama"])
def test_the_command_shows_both_readings(llama, target):
    shown = qkgeom("published", target, cwd=llama)
    assert shown.returncode == 0, shown.stderr
    header, *lines = [line.split("\t") for line in shown.stdout.splitlines()]
    assert header[:3] == ["layer", "symmetry_here", "symmetry_published_way"]
    assert [line[0] for line in lines] == ["0", "1", "2"] and all(line[1] != line[2] for line in lines)
    expected = score_published(llama / "artifact", "cpu")
    assert [line[2] for line in lines] == [f"{row['symmetry']:+.4f}" for row in expected]
    assert DEFECTS["grouped_heads"] in shown.stderr and "the published way" in shown.stderr


def test_a_model_that_was_read_right_has_nothing_to_show(tmp_path):
    write_bert(tmp_path / "bert")
    shown = qkgeom("published", "bert", cwd=tmp_path)
    assert shown.returncode == 0 and shown.stdout == ""
    assert "there is no other reading" in shown.stderr


def test_a_source_that_is_gone_is_recorded_in_the_pipeline_only(tmp_path):
    layout = all_layouts()["gpt_neox"]
    extracted(layout, layout.cases[0], tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    failed = qkgeom("published", "artifact", "--in-place", cwd=tmp_path)
    assert failed.returncode == 1 and "checkpoint" in failed.stderr and not (tmp_path / "artifact/published_way.csv").exists()
    recorded = qkgeom("published", "artifact", "--in-place", "--record", "lasting", cwd=tmp_path)
    assert recorded.returncode == 0 and "the run goes on without it" in recorded.stderr
    assert len((tmp_path / "artifact/published_way.csv").read_text().splitlines()) == 1


def test_a_model_that_failed_leaves_a_table_without_rows(tmp_path):
    artifacts.write_manifest(tmp_path / "artifact", {"model": "tiny", "status": "failed", "reason": "gated", "uri": "hf:a/b"})
    assert qkgeom("published", "artifact", "--in-place", cwd=tmp_path).returncode == 0
    assert len((tmp_path / "artifact/published_way.csv").read_text().splitlines()) == 1
