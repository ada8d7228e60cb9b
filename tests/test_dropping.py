"""Weights that are dropped after scoring, what fetches them again, and the checksums that hold all readings together."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, bert_tensors, write_bert, write_llama
from hub_server import Client, Hub
from project import Project, qkgeom
from qkgeom.acquisition import acquire
from qkgeom.artifacts import read_layer, read_manifest
from qkgeom.checkpoint import Heads
from qkgeom.checksums import EARLIER
from qkgeom.dropping import drop, dropped, weights_of
from qkgeom.figures import wqk_examples
from qkgeom.rendering import Inputs
from qkgeom.scoring import score_artifact
from qkgeom.unscored import RECORD as UNSCORED

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client
SCORES = ("scores.csv", "scores.provenance.json")
DROPPED = "keep_weights=false"
KEY = "bert.encoder.layer.1.attention.self.key.weight"


def files(seed: int, **spoilt: np.ndarray) -> dict[str, bytes]:
    """A repository of one BERT."""
    tensors = bert_tensors(seed)
    if "key" in spoilt:
        tensors[KEY] = spoilt["key"]
    return {"config.json": json.dumps(bert_config()).encode(), "model.safetensors": save(tensors)}


def inside(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def extract(it: Client, uri: str, folder: Path) -> dict:
    answer = it.verb("extract", uri, "-o", folder)
    assert "error" not in answer, answer
    return read_manifest(folder)


def score(it: Client, folder: Path, *more: str) -> dict:
    return it.verb("score", folder, "--in-place", "--record", "lasting", "--drop-weights", "--device", "cpu", *more)


def digest(manifest: dict) -> str:
    """The sha256 of `KEY` as read."""
    return manifest["snapshots"]["final"]["layers"][1]["read"]["k"]["sha256"]


@pytest.mark.slow
def test_the_pipeline_drops_weights_and_scores_again_without_them(tmp_path):
    project = Project.create(tmp_path / "project")
    write_bert(project.folder / "models/more", seed=5)
    project.add_model(model="more", uri="file:models/more")
    artifact = project.folder / "results/models/more"
    project.run("--config", DROPPED)
    assert inside(artifact) == {"manifest.json", *SCORES}
    assert "final.safetensors" in inside(project.folder / "results/models/tiny-enc"), "wqk_examples shows it"
    manifest = (artifact / "manifest.json").read_bytes()
    assert project.planned("--config", DROPPED) == project.planned() == {}
    assert "weights of 1 were dropped" in (project.folder / "results/mini/check.txt").read_text()
    assert "dropped; `score` fetches them again" in project.qkgeom("show", "more").stdout
    assert "weights" not in project.qkgeom("show", "tiny-enc").stdout

    assert "extract" not in project.planned("--config", DROPPED, "heads=false")
    project.run("results/models/more/scores.csv", "--config", DROPPED, "heads=false")
    assert inside(artifact) == {"manifest.json", *SCORES}
    assert (artifact / "manifest.json").read_bytes() == manifest
    scored = project.qkgeom("score", "models/more", "--json", "--device", "cpu")
    expected = [[str(row["head"]), f"{row['symmetry']:.9g}"] for row in json.loads(scored.stdout)]
    with (artifact / "scores.csv").open(newline="") as file:
        assert [[row["head"], row["symmetry"]] for row in csv.DictReader(file)] == expected
    assert len(expected) == 3

    write_bert(project.folder / "models/more", seed=6)
    refused = project.qkgeom("score", "more")
    assert refused.returncode == 1 and "fetched again from file:models/more" in refused.stderr
    assert "the sha256 of a tensor differs" in refused.stderr and "layer.0.attention.self.query.weight" in refused.stderr
    assert inside(artifact) == {"manifest.json", *SCORES}


def test_dropped_weights_come_again_from_the_same_commit(hub: Hub, hub_client: Client, tmp_path):
    hub.add("drop/moving", files(1))
    manifest = extract(hub_client, "hf:drop/moving@main", tmp_path / "m")
    assert "error" not in score(hub_client, tmp_path / "m")
    first = (tmp_path / "m/scores.csv").read_bytes()
    hub.add("drop/moving", files(2))
    hub.reset()
    assert "error" not in score(hub_client, tmp_path / "m")
    assert (tmp_path / "m/scores.csv").read_bytes() == first
    asked = manifest["snapshots"]["final"]["bytes"]["read"]
    assert asked <= sum(stop - start for _, start, stop in hub.ranges()) < asked + 2000  # with the header
    assert inside(tmp_path / "m") == {"manifest.json", *SCORES, EARLIER}


@pytest.mark.faults
def test_dropped_weights_that_are_others_now_are_not_scored(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("drop/changed", files(3))
    manifest = extract(hub_client, "hf:drop/changed@main", tmp_path / "m")
    assert "error" not in score(hub_client, tmp_path / "m")
    before = (tmp_path / "m/scores.csv").read_bytes()
    hub.repos["drop/changed"].commits[commit] = files(3, key=np.ones((24, 24), np.float32))
    answer = hub_client.verb("score", tmp_path / "m", "-o", tmp_path / "other.csv", "--device", "cpu")
    assert answer["error"] == "ModelFault"  # who asks for it oneself is told so
    assert KEY in answer["text"] and digest(manifest) in answer["text"] and f"drop/changed@{commit}" in answer["text"]
    assert (tmp_path / "m/scores.csv").read_bytes() == before
    assert inside(tmp_path / "m") == {"manifest.json", *SCORES, EARLIER}


@pytest.mark.faults
def test_a_model_whose_dropped_weights_are_gone_stops_no_other(hub: Hub, hub_client: Client, tmp_path):
    models = {name: tmp_path / "results/models" / name for name in ("gone", "stays")}
    for seed, (name, folder) in enumerate(models.items(), 40):
        hub.add(f"drop/{name}", files(seed))
        extract(hub_client, f"hf:drop/{name}@main", folder)
        assert "error" not in score(hub_client, folder)
    scored = {name: (folder / "scores.csv").read_text() for name, folder in models.items()}
    manifest = (models["gone"] / "manifest.json").read_bytes()
    hub.repos["drop/gone"].private = True
    for folder in models.values():
        assert "error" not in score(hub_client, folder)
    assert (models["stays"] / "scores.csv").read_text() == scored["stays"]
    assert (models["gone"] / "scores.csv").read_text() == scored["gone"].splitlines(keepends=True)[0], "no stale scores"
    assert (models["gone"] / "manifest.json").read_bytes() == manifest
    assert "gone cannot be scored, and the run goes on without it" in hub_client.errors.read_text()

    folders = [str(folder) for folder in models.values()]
    checked = qkgeom("check", *folders)
    assert checked.returncode == 1 and "1 of 2 models are missing from the figures: gone" in checked.stderr
    assert "1 of 2 models extracted and scored" in checked.stdout
    assert "gone failed: the hub has no such repository" in checked.stdout
    assert qkgeom("check", *folders, "--allow-missing").returncode == 0

    assert "cleared: gone;" in qkgeom("retry", "--results", str(tmp_path / "results")).stdout
    assert inside(models["gone"]) == {"manifest.json", EARLIER, "scores.earlier.csv"} and "scores.csv" in inside(
        models["stays"]
    )
    hub.repos["drop/gone"].private = False
    assert "error" not in score(hub_client, models["gone"])
    assert (models["gone"] / "scores.csv").read_text() == scored["gone"]
    assert qkgeom("check", *folders).returncode == 0


@pytest.mark.faults
def test_a_model_whose_stored_weights_are_damaged_is_extracted_anew(hub: Hub, hub_client: Client, tmp_path):
    hub.add("drop/damaged", files(46))
    folder = tmp_path / "results/models/damaged"
    extract(hub_client, "hf:drop/damaged@main", folder)
    weights = folder / "final.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "error" not in hub_client.verb("score", folder, "--in-place", "--record", "lasting", "--device", "cpu")
    checked = qkgeom("check", str(folder))
    assert checked.returncode == 1 and "damaged failed: " in checked.stdout
    assert "cleared: damaged;" in qkgeom("retry", "damaged", "--results", str(tmp_path / "results")).stdout
    assert "manifest.json" not in inside(folder)


@pytest.mark.slow
@pytest.mark.faults
def test_the_pipeline_goes_on_without_a_model_that_cannot_be_scored_again(hub: Hub, tmp_path):
    hub.add("drop/pipe", files(47))
    project = Project.create(tmp_path / "project")
    project.add_model(model="gone", uri="hf:drop/pipe@main")
    home = {"HF_HOME": str(tmp_path / "home"), "QKGEOM_CACHE": str(tmp_path / "cache")}
    env = home | {"HF_ENDPOINT": hub.url(), "NO_PROXY": "*", "no_proxy": "*"}
    summary = project.folder / "results/mini/collected/summary.csv"
    project.run("results/mini/collected/summary.csv", "--config", DROPPED, **env)
    assert "gone," in summary.read_text()
    hub.repos["drop/pipe"].private = True
    result = project.snakemake("--config", DROPPED, "heads=false", **env)
    assert result.returncode != 0
    assert "gone," not in summary.read_text() and "tiny-enc," in summary.read_text()
    findings = (project.folder / "results/mini/check.txt").read_text()
    assert "2 of 3 models extracted and scored" in findings and "gone failed: the hub has no such repository" in findings
    assert "results/models/gone/scores.earlier.csv" in findings
    earlier = (project.folder / "results/models/gone/scores.earlier.csv").read_text()
    assert earlier.count("\ngone,") == earlier.count("\n") - 1 > 0, "nothing is lost"
    assert (project.folder / "results/mini/figures/wqk_examples.pdf").exists()
    assert project.planned("--config", DROPPED, "heads=false").keys() == {"check"}
    hub.repos["drop/pipe"].private = False
    assert "cleared: gone;" in project.qkgeom("retry").stdout
    result = project.snakemake("--config", DROPPED, "heads=false", "--until", "score", **env, HF_HUB_OFFLINE="1")
    findings = (project.folder / "results/models/gone" / UNSCORED).read_text()
    assert "HF_HUB_OFFLINE" in findings and "scores.earlier.csv" in findings
    assert (result.stdout + result.stderr).count("Trying to restart job") == 2
    assert "cleared: gone;" in project.qkgeom("retry").stdout
    project.run("--config", DROPPED, "heads=false", **env)
    assert not (project.folder / "results/models/gone/scores.earlier.csv").exists()
    assert "gone," in summary.read_text()


@pytest.mark.faults
def test_a_model_scored_again_is_no_longer_named(hub: Hub, hub_client: Client, tmp_path):
    hub.add("drop/back", files(45))
    extract(hub_client, "hf:drop/back@main", tmp_path / "m")
    score(hub_client, tmp_path / "m")
    hub.repos["drop/back"].private = True
    assert "error" not in hub_client.verb("score", tmp_path / "m", "--in-place", "--record", "lasting", "--device", "cpu")
    assert UNSCORED in inside(tmp_path / "m")
    hub.repos["drop/back"].private = False
    assert "error" not in hub_client.verb("score", tmp_path / "m", "--in-place", "--record", "lasting", "--device", "cpu")
    assert inside(tmp_path / "m") == {"manifest.json", *SCORES, EARLIER}


@pytest.mark.faults
def test_a_hub_out_of_reach_leaves_what_has_come_for_the_next_try(hub: Hub, hub_client: Client, tmp_path):
    hub.add("drop/reach", files(4))
    extract(hub_client, "hf:drop/reach@main", tmp_path / "m")
    assert "error" not in score(hub_client, tmp_path / "m")
    hub.fail("storage GET", status=503)
    assert score(hub_client, tmp_path / "m")["error"] == "TransientFault"
    assert ".again" in inside(tmp_path / "m")
    hub.reset()
    assert "error" not in score(hub_client, tmp_path / "m")
    assert inside(tmp_path / "m") == {"manifest.json", *SCORES, EARLIER}


@pytest.mark.faults
def test_a_tensor_that_differs_from_an_earlier_run_of_the_commit_is_named(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("drop/earlier", files(5))
    uri, folder = "hf:drop/earlier@main", tmp_path / "m"
    expected = digest(extract(hub_client, uri, folder))
    hub.repos["drop/earlier"].commits[commit] = files(5, key=np.ones((24, 24), np.float32))
    for _ in range(2):  # the first failure does not make the second one's truth
        (folder / "manifest.json").unlink()  # as Snakemake does, or `retry`
        failed = extract(hub_client, uri, folder)
        assert failed["status"] == "failed"
        for text in (KEY, expected, f"drop/earlier@{commit}", "the sha256 of a tensor differs from an earlier run's"):
            assert text in failed["reason"]
        assert inside(folder) == {"manifest.json", EARLIER}
    hub.repos["drop/earlier"].commits[commit] = files(5)
    assert digest(extract(hub_client, uri, folder)) == expected
    hub.add("drop/earlier", files(6))  # another commit may hold other weights
    assert extract(hub_client, uri, folder)["status"] == "ok"


def acquired(source: Path, folder: Path, **how: object) -> dict:
    """An artifact whose weights are dropped; gives what it had in layer 1."""
    manifest = acquire(f"file:{source}", folder, folder.name, **how)
    weights = read_layer(folder, "final.safetensors", 1)
    drop(folder, manifest)
    assert dropped(folder, manifest) == ["final"]
    return {"manifest": manifest, "weights": weights}


def test_a_checkpoint_without_config_is_read_again_as_it_was(tmp_path):
    bare = write_llama(tmp_path / "bare")
    (bare / "config.json").unlink()
    told = {"architecture": "llama", "heads": Heads(4, 2)}
    was = acquired(bare / "model.safetensors", tmp_path / "m", **told)
    with weights_of(tmp_path / "m", was["manifest"], "final") as place:
        for array, expected in zip(read_layer(place, "final.safetensors", 1), was["weights"], strict=True):
            assert np.array_equal(array, expected)
    assert inside(tmp_path / "m") == {"manifest.json"}


def test_a_figure_shows_an_example_that_another_preset_has_dropped(tmp_path):
    W_q, W_k = acquired(write_bert(tmp_path / "bert"), tmp_path / "enc")["weights"]
    shown = wqk_examples.numbers(Inputs(examples={"encoder": (tmp_path / "enc", 1)}))
    corner = np.einsum("ihd,jhd->ij", W_q.astype(float), W_k.astype(float))
    np.testing.assert_allclose(shown["value"], corner.ravel())
    assert inside(tmp_path / "enc") == {"manifest.json"}


def test_two_that_need_the_same_weights_take_turns(tmp_path):
    manifest = acquired(write_bert(tmp_path / "bert"), tmp_path / "m")["manifest"]
    with ThreadPoolExecutor(1) as pool:
        with weights_of(tmp_path / "m", manifest, "final") as place:
            second = pool.submit(score_artifact, tmp_path / "m", device="cpu")
            with pytest.raises(TimeoutError):
                second.result(1)
            assert (place / "final.safetensors").exists()
        assert len(second.result(60)) == 3
    assert inside(tmp_path / "m") == {"manifest.json"}
