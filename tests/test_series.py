"""Series of published checkpoints: how a row names them, and their way from the hub to a figure."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from safetensors.numpy import load_file

import hub_server
from checkpoints import bert_config, bert_tensors, write_bert, write_checkpoint, write_llama
from hub_server import Client, Hub, client
from project import Project, row
from qkgeom import figures
from qkgeom.artifacts import read_layer, read_manifest
from qkgeom.collecting import summarise
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.figures import dynamics_public
from qkgeom.registry import MODELS, read_models
from qkgeom.rendering import Inputs
from qkgeom.series import pinned, snapshots
from qkgeom.verbs.collect import read_scores
from scored_models import summary_row, write_summary

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

STEPS = (0, 2, 1000)


def steps(series: str, uri: str = "hf:o/n@step{step}") -> list[int]:
    return [int(step) for step, _ in snapshots(uri, series)]


# how a row names them


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ("0", [0]),
        ("0,1,2", [0, 1, 2]),
        ("0, 5 ,1000", [0, 5, 1000]),
        ("1..8*2", [1, 2, 4, 8]),
        ("0,1..4*2,1000..9000+4000,143000", [0, 1, 2, 4, 1000, 5000, 9000, 143000]),
        ("7..7+1", [7]),
        ("0..999+1", list(range(1000))),
    ],
)
def test_steps_are_listed_or_in_ranges(series, expected):
    assert steps(series) == expected


def test_a_step_has_its_place_in_the_uri():
    assert snapshots("hf:o/n@step{step}", "0,512") == [("0", "hf:o/n@step0"), ("512", "hf:o/n@step512")]
    assert snapshots("hf:o/n-step_{k}k", "0,20000") == [("0", "hf:o/n-step_0k"), ("20000", "hf:o/n-step_20k")]
    named = snapshots("hf:o/n@{name}", "0=stage1-step0-tokens0B,300=v1.0/early")
    assert named == [("0", "hf:o/n@stage1-step0-tokens0B"), ("300", "hf:o/n@v1.0/early")]
    assert snapshots("file:runs/{step}/step{step}", "3") == [("3", "file:runs/3/step3")]


@pytest.mark.parametrize("uri", ["hf:o/n@step{step}", "hf:o/n-{step}", "o/n@{step}"])
def test_a_step_may_be_pinned_to_a_commit(uri):
    series = pinned("0,1..4*2,9", {"2": "a" * 40, "9": "b" * 40})
    assert series == f"0,1,2@{'a' * 40},4,9@{'b' * 40}" and steps(series) == [0, 1, 2, 4, 9]
    found, unpinned = dict(snapshots(uri, series)), dict(snapshots(uri, "0,1..4*2,9"))
    repo = {step: address.partition("@")[0] for step, address in unpinned.items()}
    assert found == unpinned | {"2": f"{repo['2']}@{'a' * 40}", "9": f"{repo['9']}@{'b' * 40}"}
    assert pinned(series, {"9": "c" * 40}) == series.replace("b", "c") and pinned("0,1..4*2", {}) == "0,1..4*2"
    named = pinned("0=zero,300=v1.0/early", {"300": "a" * 40})
    assert snapshots("hf:o/n@{name}", named) == [("0", "hf:o/n@zero"), ("300", f"hf:o/n@{'a' * 40}")]


@pytest.mark.parametrize(
    ("uri", "series", "said"),
    [
        ("hf:o/n@step{step}", "0,,2", "not understood"),
        ("hf:o/n@step{step}", "0,1,...,512", "not understood"),
        ("hf:o/n@step{step}", "0,-1", "not understood"),
        ("hf:o/n@step{step}", "007", "not understood"),
        ("hf:o/n@step{step}", "9" * 5000, "not understood"),
        ("hf:o/n@step{step}", "1..8", "not understood"),
        ("hf:o/n@step{step}", "1..8+0", "not understood"),
        ("hf:o/n@step{step}", "0,2,1", "1 after 2"),
        ("hf:o/n@step{step}", "1..8*2,8", "8 after 8"),
        ("hf:o/n@step{step}", "1..500*2", "1..500*2"),
        ("hf:o/n@step{step}", "8..1+1", "8..1+1"),
        ("hf:o/n@step{step}", "0..8*2", "0..8*2"),
        ("hf:o/n@step{step}", "1..8*1", "1..8*1"),
        ("hf:o/n@step{step}", "0..1000+1", "at most 1000 steps"),
        ("hf:o/n@step{step}", "0,300=x", "300=x"),
        ("hf:o/n@{name}", "300", "300=NAME"),
        ("hf:o/n@{name}", "300=a b", "not understood"),
        ("hf:o/n@{name}", "300=$(id)", "not understood"),
        ("hf:o/n-{k}k", "0,1500", "a multiple of 1000"),
        ("hf:o/n@step{step}", "0@main", "not understood"),
        ("hf:o/n@step{step}", "0..9+9@" + "a" * 40, "not understood"),
        ("file:runs/{step}", "0@" + "a" * 40, "not on the model hub"),
        ("hf:o/n@main", "0,1", "one of {step}, {k} and {name}"),
        ("hf:o/n-{k}k@step{step}", "1000", "one of {step}, {k} and {name}"),
    ],
)
def test_what_is_wrong_with_a_series_is_said(uri, series, said):
    with pytest.raises(UsageError) as caught:
        snapshots(uri, series)
    assert said in str(caught.value) and "series.py" in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"uri": "hf:o/n@step{step}", "series": "0,2,1"}, "1 after 2"),
        ({"uri": "hf:o/n@step{step}", "series": "0,1", "sha256": "0" * 64}, "sha256"),
        ({"uri": "hf:o/n@step{step}"}, "`series`"),
        ({"uri": "hf:o/n@main", "group": "dynamics_public"}, "`series`"),
        ({"uri": "o/n-{k}k", "series": "1500"}, "a multiple of 1000"),
    ],
)
def test_a_row_that_is_neither_a_series_nor_a_checkpoint_is_named(tmp_path, cells, said):
    with pytest.raises(UsageError) as caught:
        read_models(write_rows(tmp_path, cells))
    assert said in str(caught.value) and "models.tsv, line 2 (x)" in str(caught.value)


def test_a_row_knows_its_checkpoints(tmp_path):
    path = write_rows(tmp_path, {"uri": "o/n-{k}k", "series": "0,2000", "group": "dynamics_public"})
    assert read_models(path)["x"].uris == ["o/n-0k", "o/n-2k"]


def test_published_series_are_there_in_both_roles_and_not_with_single_checkpoints():
    series = [model for model in read_models().values() if model.series]
    assert {model.group for model in series} == {"dynamics_public"} and {model.role for model in series} == {
        "encoder",
        "decoder",
    }
    assert all(len(model.uris) == len(set(model.uris)) > 15 and "{" not in "".join(model.uris) for model in series)
    assert {f"hf:EleutherAI/pythia-{size}@step143000" for size in ("70m", "160m", "410m", "1.4b")} <= {
        m.uris[-1] for m in series
    }


# from the hub to the scores


def test_revisions_are_the_snapshots_of_one_model(hub: Hub, hub_client: Client, tmp_path):
    files = add_revisions(hub, "tiny/revisions", tmp_path)
    artifact = extract(hub_client, "hf:tiny/revisions@step{step}", tmp_path / "model")
    manifest = read_manifest(artifact)
    assert list(manifest["snapshots"]) == [str(step) for step in STEPS] and manifest["n_layer"] == 3
    assert manifest["uri"] == "hf:tiny/revisions@step{step}"
    for step in STEPS:
        snapshot = manifest["snapshots"][str(step)]
        assert (
            snapshot["source"]["revision"] == f"step{step}"
            and snapshot["source"]["commit"] == hub.repos["tiny/revisions"].refs[f"step{step}"]
        )
        W_q, _ = read_layer(artifact, snapshot["file"], 1)
        weight = files[step]["bert.encoder.layer.1.attention.self.query.weight"]
        np.testing.assert_array_equal(W_q.reshape(24, 24), weight.T)
    expected = {"manifest.json", "digests.json", *(f"{step}.safetensors" for step in STEPS)}
    assert {path.name for path in artifact.iterdir()} == expected


def test_repositories_are_the_snapshots_of_one_model(hub: Hub, hub_client: Client, tmp_path):
    for k in (0, 20):
        hub.add(f"tiny/bert-step_{k}k", write_bert(tmp_path / str(k), seed=k))
    artifact = extract(hub_client, "hf:tiny/bert-step_{k}k", tmp_path / "model", "0,20000")
    found = {step: snapshot["source"]["repo"] for step, snapshot in read_manifest(artifact)["snapshots"].items()}
    assert found == {"0": "tiny/bert-step_0k", "20000": "tiny/bert-step_20k"}


def test_a_series_is_scored_step_by_step_and_drawn(hub: Hub, hub_client: Client, tmp_path):
    add_revisions(hub, "tiny/scored", tmp_path)
    artifact = extract(hub_client, "hf:tiny/scored@step{step}", tmp_path / "x")
    answer = hub_client.verb("score", artifact, "-o", artifact / "scores.csv")
    assert "error" not in answer, answer
    scores = read_scores([artifact / "scores.csv"])
    assert list(zip(scores["snapshot"].astype(int), scores["layer"].astype(int), strict=True)) == [
        (step, layer) for step in STEPS for layer in range(3)
    ]
    rows = write_rows(tmp_path, {"uri": "hf:tiny/scored@step{step}", "series": "0,2,1000", "group": "dynamics_public"})
    summary = summarise(scores, list(read_models(rows).values()))
    summary.to_csv(tmp_path / "summary.csv", index=False)
    figures.render("dynamics_public", Inputs(summary=tmp_path / "summary.csv"), tmp_path / "drawn")
    numbers = dynamics_public.numbers(Inputs(summary=tmp_path / "summary.csv"))
    assert numbers["step"].tolist() == list(STEPS)
    medians = scores.groupby(scores["snapshot"].astype(int))["symmetry"].median()
    np.testing.assert_allclose(numbers["symmetry_median"].astype(float), medians, rtol=1e-6)


@pytest.mark.faults
def test_a_step_that_is_missing_is_named(hub: Hub, hub_client: Client, tmp_path):
    add_revisions(hub, "tiny/gap", tmp_path)
    artifact = extract(hub_client, "hf:tiny/gap@step{step}", tmp_path / "model", "0,2,3,1000")
    manifest = read_manifest(artifact)
    assert manifest["status"] == "failed" and "tiny/gap@step3" in manifest["reason"]
    assert not hub.asked("step1000")


@pytest.mark.faults
@pytest.mark.parametrize("sizes", [{"d": 48}, {"n_layer": 2}, {"n_head": 2}])
def test_a_step_of_another_shape_is_named(hub: Hub, hub_client: Client, tmp_path, sizes):
    repo = "tiny/other-" + next(iter(sizes))
    hub.add(repo, write_bert(tmp_path / "0"), "step0")
    tensors = bert_tensors(**{name: size for name, size in sizes.items() if name != "n_head"})
    hub.add(repo, write_checkpoint(tmp_path / "1", tensors, bert_config(**sizes)), "step1")
    reason = read_manifest(extract(hub_client, f"hf:{repo}@step{{step}}", tmp_path / "model", "0,1"))["reason"]
    assert f"{repo}@step1" in reason and "not of the first one's architecture" in reason


@pytest.mark.faults
def test_a_step_of_another_layout_is_named(hub: Hub, hub_client: Client, tmp_path):
    hub.add("tiny/layouts", write_bert(tmp_path / "0"), "step0")
    hub.add("tiny/layouts", write_llama(tmp_path / "1"), "step1")
    answer = hub_client.verb("extract", "hf:tiny/layouts@step{step}", "--series", "0,1", "-o", tmp_path / "model")
    assert "error" not in answer, answer
    reason = read_manifest(tmp_path / "model")["reason"]
    assert "tiny/layouts@step1" in reason and "layout llama" in reason and "layout bert" in reason


def test_a_series_on_this_machine_goes_through_the_workflow(tmp_path):
    project = Project.create(tmp_path / "project")
    for step in (0, 2):
        write_bert(project.folder / "models" / f"step{step}", seed=step)
    project.add_model(model="steps", uri="file:models/step{step}", series="0,2", group="dynamics_public")
    assert "dynamics_public" in project.planned()["figure"]
    project.run("results/mini/figures/dynamics_public.pdf")
    table = pd.read_csv(project.folder / "results/mini/figures/dynamics_public.csv")
    assert table["step"].tolist() == [0, 2] and table["n_layers"].tolist() == [3, 3]
    write_bert(project.folder / "models" / "step2", seed=9)
    assert project.planned()["extract"] == {"steps"}


@pytest.mark.kill
def test_a_killed_extraction_goes_on_with_the_step_it_was_at(hub: Hub, tmp_path):
    add_revisions(hub, "tiny/killed", tmp_path)
    uri, artifact = "hf:tiny/killed@step{step}", tmp_path / "model"
    with client(tmp_path / "hf home", hub) as worker:
        whole = extract(worker, uri, tmp_path / "whole" / "model")
    last = hub_server.digest_of("model.safetensors", (tmp_path / "checkpoints/1000/model.safetensors").read_bytes())
    with client(tmp_path / "another home", hub) as worker:
        hub.fail(f"storage GET /{last}", stall=60)
        pid = worker.start("extract", uri, "--series", "0,2,1000", "--layout", "bert", "--model", "model", "-o", artifact)
        wait_for(artifact / "2.safetensors")
        os.kill(pid, signal.SIGKILL)
        assert worker.wait(pid) == signal.SIGKILL
        assert not (artifact / "manifest.json").exists()
        hub.reset()
        (artifact / ".0123456789ab.journal.0.safetensors").write_text("killed between publishing and removing this")
        extract(worker, uri, artifact)
    assert {path for path, _, _ in hub.ranges()} == {f"/{last}"}
    assert {path.name for path in artifact.iterdir()} == {path.name for path in whole.iterdir()}
    layers = [{step: each["layers"] for step, each in read_manifest(f)["snapshots"].items()} for f in (artifact, whole)]
    assert layers[0] == layers[1]
    for step in STEPS:
        assert (artifact / f"{step}.safetensors").read_bytes() == (whole / f"{step}.safetensors").read_bytes()
        assert (
            read_manifest(artifact)["snapshots"][str(step)]["layers"] == read_manifest(whole)["snapshots"][str(step)]["layers"]
        )


# the figure


def test_lines_and_bands_are_the_numbers(tmp_path):
    numbers = dynamics_public.numbers(write_series(tmp_path))
    figure = dynamics_public.draw(numbers)
    assert len(figure.axes) == 4
    series = [table for _, table in numbers.groupby("model", sort=False)]
    assert [table["model"].iloc[0] for table in series] == ["bert", "small", "small-again", "large"]
    drawn = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) == len(STEPS)]
    shown = [
        (table, score)
        for role in ("encoder", "decoder")
        for score in dynamics_public.PANELS
        for table in series
        if table["role"].iloc[0] == role
    ]
    for line, (table, score) in zip(drawn, shown, strict=True):
        assert list(line.get_xdata()) == list(STEPS)
        np.testing.assert_allclose(line.get_ydata(), table[f"{score}_median"])
    bands = [band.get_paths()[0].vertices for axes in figure.axes for band in axes.collections]
    for band, (table, score) in zip(bands, shown, strict=True):
        assert (band[:, 1].min(), band[:, 1].max()) == (table[f"{score}_q1"].min(), table[f"{score}_q3"].max())


def test_sizes_have_colours_and_series_of_one_size_dashes(tmp_path):
    figure = dynamics_public.draw(dynamics_public.numbers(write_series(tmp_path)))
    small, again, large = [line for line in figure.axes[2].lines if len(line.get_xdata()) == len(STEPS)]
    assert same_color(small.get_color(), again.get_color()) and not same_color(small.get_color(), large.get_color())
    assert small.get_linestyle() != again.get_linestyle() and small.get_linestyle() == large.get_linestyle()
    names = [text.get_text() for part in figure.subfigs for legend in part.legends for text in legend.get_texts()]
    assert names == ["bert", "small", "small-again", "large"]


def test_one_role_alone_has_one_row_of_panels(tmp_path):
    numbers = dynamics_public.numbers(write_series(tmp_path))
    assert len(dynamics_public.draw(numbers[numbers["role"] == "decoder"]).axes) == 2


@pytest.mark.faults
def test_a_snapshot_that_is_no_step_is_named(tmp_path):
    path = write_summary(tmp_path / "summary.csv", [summary_row("bert", "encoder", 10**6, 2, {}, group="dynamics_public")])
    with pytest.raises(QkgeomError, match="final") as caught:
        dynamics_public.numbers(Inputs(summary=path))
    assert str(path) in str(caught.value)


def write_rows(folder: Path, cells: dict[str, str]) -> Path:
    """A table of models with one row, `x`."""
    columns = MODELS.read_text().splitlines()[0].split("\t")
    cells = row("x", **{"presets": "beyond", **cells})
    path = folder / "models.tsv"
    path.write_text("\t".join(columns) + "\n" + "\t".join(cells.get(column, "") for column in columns) + "\n")
    return path


def add_revisions(hub: Hub, repo: str, folder: Path) -> dict[int, dict[str, np.ndarray]]:
    """A repository with a tag per step; gives the tensors by step."""
    for step in STEPS:
        hub.add(repo, write_bert(folder / "checkpoints" / str(step), seed=step), f"step{step}")
    return {step: load_file(folder / "checkpoints" / str(step) / "model.safetensors") for step in STEPS}


def extract(worker: Client, uri: str, folder: Path, series: str = "0,2,1000") -> Path:
    answer = worker.verb("extract", uri, "--series", series, "--layout", "bert", "--model", folder.name, "-o", folder)
    assert "error" not in answer, answer
    return folder


def wait_for(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def write_series(folder: Path) -> Inputs:
    """The summary of an encoder and of three decoders, two of them of one size."""
    kinds = {
        "large": ("decoder", 10**9),
        "small": ("decoder", 10**8),
        "small-again": ("decoder", 10**8),
        "bert": ("encoder", 10**8),
    }
    rows = [
        summary_row(
            model,
            role,
            size,
            12,
            {score: (value, value - 0.1, value + 0.1) for score, value in (("symmetry", x), ("directionality_excess", -x))},
            snapshot=step,
            group="dynamics_public",
        )
        for k, (model, (role, size)) in enumerate(kinds.items())
        for step in STEPS
        for x in [0.1 * k + step / 5000]
    ]
    return Inputs(summary=write_summary(folder / "summary.csv", rows))
