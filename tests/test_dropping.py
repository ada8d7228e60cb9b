"""Weights that are dropped after scoring, what fetches them again, and the checksums that hold all readings together."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, bert_tensors, write_bert
from hub_server import Client, Hub
from project import Project
from qkgeom.artifacts import read_manifest
from qkgeom.checksums import EARLIER

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client
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
    return it.verb("score", folder, "-o", folder / "scores.csv", "--drop-weights", "--device", "cpu", *more)


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
    assert inside(artifact) == {"manifest.json", "scores.csv"}
    assert "final.safetensors" in inside(project.folder / "results/models/tiny-enc"), "wqk_examples shows it"
    manifest = (artifact / "manifest.json").read_bytes()
    assert project.planned("--config", DROPPED) == project.planned() == {}
    assert "weights of 1 were dropped" in (project.folder / "results/mini/check.txt").read_text()
    assert "dropped; `score` fetches them again" in project.qkgeom("show", "more").stdout
    assert "weights" not in project.qkgeom("show", "tiny-enc").stdout

    assert "extract" not in project.planned("--config", DROPPED, "heads=true")
    project.run("results/models/more/scores.csv", "--config", DROPPED, "heads=true")
    assert inside(artifact) == {"manifest.json", "scores.csv"}
    assert (artifact / "manifest.json").read_bytes() == manifest
    scored = project.qkgeom("score", "models/more", "--heads", "--json", "--device", "cpu")
    expected = [[str(row["head"]), f"{row['symmetry']:.9g}"] for row in json.loads(scored.stdout)]
    with (artifact / "scores.csv").open(newline="") as file:
        assert [[row["head"], row["symmetry"]] for row in csv.DictReader(file)] == expected
    assert len(expected) == 3 * 5

    write_bert(project.folder / "models/more", seed=6)
    refused = project.qkgeom("score", "more")
    assert refused.returncode == 1 and "fetched again from file:models/more" in refused.stderr
    assert "the sha256 of a tensor differs" in refused.stderr and "layer.0.attention.self.query.weight" in refused.stderr
    assert inside(artifact) == {"manifest.json", "scores.csv"}


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
    assert inside(tmp_path / "m") == {"manifest.json", "scores.csv", EARLIER}


@pytest.mark.faults
def test_dropped_weights_that_are_others_now_are_not_scored(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("drop/changed", files(3))
    manifest = extract(hub_client, "hf:drop/changed@main", tmp_path / "m")
    assert "error" not in score(hub_client, tmp_path / "m")
    before = (tmp_path / "m/scores.csv").read_bytes()
    hub.repos["drop/changed"].commits[commit] = files(3, key=np.ones((24, 24), np.float32))
    answer = score(hub_client, tmp_path / "m", "--heads")
    assert answer["error"] == "ModelFault"
    assert KEY in answer["text"] and digest(manifest) in answer["text"] and f"drop/changed@{commit}" in answer["text"]
    assert (tmp_path / "m/scores.csv").read_bytes() == before
    assert inside(tmp_path / "m") == {"manifest.json", "scores.csv", EARLIER}


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
    assert inside(tmp_path / "m") == {"manifest.json", "scores.csv", EARLIER}


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
