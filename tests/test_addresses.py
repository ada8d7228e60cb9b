"""Addresses of the wrong form are found when the table of models is read, in whichever cell and of whichever kind; addresses
that lead nowhere are named when they are asked for.
"""

from __future__ import annotations

import json

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config
from hub_server import Client, Hub
from project import Project, qkgeom, row, write_models
from qkgeom.errors import UsageError
from qkgeom.registry import read_models
from qkgeom.sources import SCHEMES, require_form
from qkgeom.sources.hub_listing import split_address

pytestmark = pytest.mark.faults
served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

STEPS = {"group": "dynamics_public"}
WRONG = {
    "hf": ({"uri": "hf:org/../../x"}, "org/../../x"),
    "hf revision": ({"uri": "hf:org/name@../x"}, "org/name@../x"),
    "hf folder": ({"uri": "hf:org/name/file.bin"}, "org/name/file.bin"),
    "hf without a revision": ({"uri": "hf:org/name@"}, "org/name@"),
    "timm": ({"uri": "timm:../vit"}, "../vit"),
    "timm revision": ({"uri": "timm:vit_base@a b"}, "vit_base@a b"),
    "timm repository": ({"uri": "timm:timm/vit_base"}, "timm/vit_base"),
    "whisper": ({"uri": "whisper:../tiny"}, "../tiny"),
    "whisper revision": ({"uri": "whisper:tiny@main"}, "tiny@main"),
    "pypi without a version": ({"uri": "pypi:package/model.bin"}, "package/model.bin"),
    "pypi option": ({"uri": "pypi:--upgrade==1/model.bin"}, "--upgrade==1/model.bin"),
    "pypi path": ({"uri": "pypi:package==1.0/../../etc/passwd"}, "package==1.0/../../etc/passwd"),
    "file of another machine": ({"uri": "file://host/model"}, "'//host/model'"),
    "run": ({"uri": "run:../../x"}, "../../x"),
    "series": ({"uri": "hf:org/../../x@step{step}", "series": "0,1", **STEPS}, "org/../../x@step0"),
    "step": ({"uri": "hf:org/name@{name}", "series": "0=main,1=a..b", **STEPS}, "org/name@a..b"),
    "repository of a step": ({"uri": "hf:org/name--{k}k", "series": "0,1000", **STEPS}, "org/name--0k"),
    "adapter": ({"uri": "hf:org/name", "adapter": "hf:org/../../x"}, "org/../../x"),
    "adapter's folder": ({"uri": "hf:org/name", "adapter": "file://host/lora"}, "'//host/lora'"),
}
RIGHT = [
    *("hf:org/na-me_1.5@refs/pr/1", "gpt2", "timm:vit_base_patch16_224.augreg_in1k", "timm:no_such_name@v1.0"),
    *(
        "whisper:large-v9",
        "pypi:package==1.0+cpu/a/b.safetensors",
        "file:/a b/it's",
        "file:///a",
        "file:../a",
        "file:hf:odd",
        "run:mini.bert.s0",
    ),
]


@pytest.mark.parametrize(("cells", "found"), WRONG.values(), ids=WRONG)
def test_a_malformed_address_is_named_with_its_row(tmp_path, cells, found):
    table = write_models(tmp_path / "models.tsv", [row("good", "hf:org/name"), row("bad-one", **cells)])
    with pytest.raises(UsageError) as caught:
        read_models(table)
    assert f"{table}, line 3 (bad-one)" in str(caught.value)
    assert f"found:    {found}\n" in str(caught.value) and "expected:" in str(caught.value)


@pytest.mark.parametrize("uri", RIGHT)
def test_what_is_well_formed_is_not_looked_for(uri):
    require_form(uri)


def test_every_kind_of_address_is_tried():
    assert {each.partition(":")[0] for each in RIGHT if ":" in each} == set(SCHEMES)
    assert {cells["uri"].partition(":")[0] for cells, _ in WRONG.values()} == set(SCHEMES)


@pytest.mark.parametrize(
    "repo",
    [
        *("gpt2", "org/name", "a", "_a/b_", "a.b/c-d", "1/2", "n" * 96, "o" * 96 + "/" + "n" * 96),
        *("", "/", "a/", "/a", "a/b/c", "n" * 97, "o" * 97 + "/n", ".a", "a.", "-a", "a-", "a/.b", "a--b", "a/b--c", "a..b"),
        *("a.git", "a/b.git", "a b", "a\n", "a;b", "$(a)", "datasets/a/b"),
    ],
)
def test_repositories_are_those_of_the_hubs_client(repo):
    try:
        validate_repo_id(repo)
    except HFValidationError:
        with pytest.raises(UsageError):
            split_address(repo)
    else:
        assert split_address(repo) == (repo, "main")


@pytest.mark.parametrize("verb", ["lock", "plan", "models"])
def test_the_command_line_names_the_row(tmp_path, verb):
    table = write_models(tmp_path / "models.tsv", [row("bad-one", "hf:org/../../x")])
    result = qkgeom(verb, "--models", str(table), cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert f"{table}, line 2 (bad-one)" in result.stderr and "org/../../x" in result.stderr


def test_a_dry_run_names_the_row(tmp_path):
    project = Project.create(tmp_path / "project")
    project.add_model(**row("bad-one", "hf:org/../../x"))
    result = project.snakemake("-n")
    assert result.returncode != 0 and "(bad-one)" in result.stdout + result.stderr


def test_a_plan_says_which_checkpoint_of_a_series_is_not_there(hub: Hub, hub_client: Client, tmp_path):
    hub.add("plan/steps", {"config.json": json.dumps(bert_config(8, 2, 1)).encode(), "model.safetensors": save({})}, "step0")
    rows = [
        row("by-revision", "hf:plan/steps@step{step}", series="0,7", **STEPS),
        row("by-repository", "hf:plan/seed-{step}", series="0,9", **STEPS),
    ]
    table = write_models(tmp_path / "models.tsv", rows)
    result = hub_client.command("plan", "--models", str(table), "--json")
    notes = {plan["model"]: plan["note"] for plan in json.loads(result.stdout)["models"]}
    assert "not this revision: plan/steps@step7" in notes["by-revision"]
    assert "no such repository, or it is private: plan/seed-9" in notes["by-repository"]
