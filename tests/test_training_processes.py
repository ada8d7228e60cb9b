"""Several processes that train one run: the examples, losses and weights of one process; stops, kills, and what comes after.

On the CPU, by gloo. Without dropout one process and two differ by the order of float32 sums alone: losses by less than 1e-5 and
query and key weights by less than 1e-4 (relative to their norm), here after 40 steps.
"""

# ruff: noqa: F401, F811
# the fixture `corpus` is used by its name

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from qkgeom.acquisition import acquire
from qkgeom.errors import UsageError
from qkgeom.extraction import FINAL
from qkgeom.training import families, ranks
from qkgeom.training.digits import MaskedDigits
from qkgeom.training.losses import mean_loss
from qkgeom.training.parts import WEIGHT, part
from qkgeom.training.sequences import IGNORED, Sequences
from qkgeom.training.tokens import read_corpus
from test_training import (
    RECIPE,
    RUN,
    SCHEDULE,
    STEPS,
    Command,
    arguments,
    assert_same,
    corpus,
    here,
    interrupt,
    last_checkpoint,
    last_snapshot,
    newest_states,
    typed,
)

STILL = replace(RECIPE, dropout=0.0)
TWO = ["--processes", "2"]
CUT = replace(SCHEDULE, batch=4, accumulation=1)  # each process takes half of each batch


def losses(run: Path) -> tuple[list[list[str]], np.ndarray]:
    """Model, step and split of each row of losses.csv, and the losses."""
    rows = [line.split(",") for line in (run / "losses.csv").read_text().splitlines()[1:]]
    return [row[:3] for row in rows], np.array([float(row[3]) for row in rows])


def assert_close(run: Path, other: Path, tolerance: float = 1e-5) -> None:
    (rows, found), (expected_rows, expected) = losses(run), losses(other)
    assert rows == expected_rows
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    assert [path.name for path in sorted(run.glob("snapshots/*"))] == [path.name for path in sorted(other.glob("snapshots/*"))]


def query_and_key(run: Path, folder: Path) -> dict[str, np.ndarray]:
    """The query and key weights of the last snapshot, as the pipeline extracts them."""
    manifest = acquire(f"file:{last_checkpoint(run).parent}", folder, "a")
    assert manifest["status"] == "ok"
    return load_file(folder / f"{FINAL}.safetensors")


def assert_weights_close(run: Path, other: Path, folder: Path) -> None:
    found, expected = query_and_key(run, folder / "a"), query_and_key(other, folder / "b")
    assert set(found) == set(expected) and len(found) == 2 * RECIPE.n_layer
    for name, value in expected.items():
        assert np.linalg.norm(found[name] - value) < 1e-4 * np.linalg.norm(value), name


def train(corpus, run, recipe=STILL, schedule=SCHEDULE, more=TWO):
    """Starts the command, by default with two processes."""
    run.parent.mkdir(exist_ok=True)
    return Command([*arguments(corpus, run, recipe, schedule), *more], run.parent)


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """A run by two processes with dropout, as it is typed."""
    run = tmp_path_factory.mktemp("undisturbed") / RUN
    done = typed([*arguments(corpus, run), *TWO], run.parent)
    assert done.returncode == 0, done.stderr
    return run


# the same run


@pytest.mark.parametrize(
    ("objective", "schedule"),
    [("masked", SCHEDULE), ("masked", CUT), ("autoregressive", CUT)],
    ids=["masked, whole batches", "masked, halves of a batch", "autoregressive, halves of a batch"],
)
def test_two_processes_train_as_one(corpus, tmp_path, objective, schedule):
    recipe = replace(STILL, objective=objective, init="symmetric" if objective == "masked" else "default")
    one, two = here(corpus, tmp_path / "one" / RUN, recipe, schedule), tmp_path / "two" / RUN
    code, errors = train(corpus, two, recipe, schedule).end()
    assert code == 0, errors
    assert_close(two, one)
    first = "snapshots/0000000/model.safetensors"
    assert (two / first).read_bytes() == (one / first).read_bytes(), "the same start, symmetric where it is to be"
    assert_weights_close(two, one, tmp_path)
    records = [json.loads((run / "done.json").read_text()) for run in (one, two)]
    assert records[0]["definition"] == records[1]["definition"], "how many processes is not part of what a run is"
    assert records[0]["measured"]["value"] == pytest.approx(records[1]["measured"]["value"], rel=1e-5)


def test_two_processes_and_one_with_twice_the_batch(corpus, tmp_path):
    """Autoregressive, since masks are drawn for a whole batch. The held-out set is so many batches, and another one."""
    recipe = replace(STILL, objective="autoregressive")
    one = here(corpus, tmp_path / "one" / RUN, recipe, replace(SCHEDULE, batch=4, accumulation=1))
    two = tmp_path / "two" / RUN
    code, errors = train(corpus, two, recipe, replace(SCHEDULE, batch=2, accumulation=2)).end()
    assert code == 0, errors
    curves = [[value for row, value in zip(*losses(run), strict=True) if row[2] == "train"] for run in (one, two)]
    assert len(curves[0]) == 4
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
    assert_weights_close(two, one, tmp_path)


# shares of a step


@pytest.mark.parametrize(
    ("processes", "share"), [(1, (6, 4)), (2, (6, 2)), (4, (6, 1)), (8, (3, 1)), (3, (2, 4)), (6, (2, 2)), (24, (1, 1))]
)
def test_shares_make_the_whole(processes, share):
    schedule = replace(SCHEDULE, batch=6, accumulation=4)
    assert schedule.share(processes) == share
    assert share[0] * share[1] * processes == 6 * 4


@pytest.mark.faults
def test_what_cannot_be_shared_is_said_before_anything_starts(corpus, tmp_path):
    with pytest.raises(UsageError, match="batch 6 and accumulation 4 for 5 processes"):
        replace(SCHEDULE, batch=6, accumulation=4).share(5)
    code, errors = train(corpus, tmp_path / "runs" / RUN, more=["--processes", "3"]).end()
    assert code == 2 and "batch 2 and accumulation 2 for 3 processes" in errors and not (tmp_path / "runs" / RUN).exists()


def test_parts_of_a_batch_are_the_batch(corpus):
    data = Sequences(read_corpus(corpus), RECIPE.length, True, 0)
    for first in (0, 8, 16):
        whole = data.train_batch(range(first, first + 8))
        parts = [part(data, 8, range(first + i, first + i + 2)) for i in range(0, 8, 2)]
        assert torch.equal(torch.cat([each["input_ids"] for each in parts]), whole["input_ids"])
        targets = [int((each["labels"] != IGNORED).sum()) if each[WEIGHT] else 0 for each in parts]
        assert [each[WEIGHT] for each in parts] == [
            pytest.approx(4 * n / int((whole["labels"] != IGNORED).sum())) for n in targets
        ]
    assert WEIGHT not in part(data, 8, range(8, 16))


def test_a_part_without_targets_weighs_nothing_and_is_no_nan(corpus):
    data = Sequences(read_corpus(corpus), RECIPE.length, True, 0)
    model = families.load("custom").build(STILL, read_corpus(corpus)).train()
    empty = 0
    for first in range(0, 40, 2):  # of one sequence of eight, one in four has no target
        whole = model(**data.train_batch([first, first + 1])).loss
        parts = [part(data, 2, [first + i]) for i in (0, 1)]
        weights = [each.pop(WEIGHT) for each in parts]
        empty += weights.count(0.0)
        mean = sum(weight * model(**each).loss for weight, each in zip(weights, parts, strict=True)) / 2
        assert float(mean) == pytest.approx(float(whole), rel=1e-6)
    assert empty


def test_parts_of_masked_images_keep_their_labels():
    """Their labels are a list over the batch, as long as there are masked patches."""
    data = MaskedDigits(seed=0, patches=16)
    whole, second = data.train_batch(range(4)), part(data, 4, range(2, 4))
    assert torch.equal(second["pixel_values"], whole["pixel_values"][2:])
    assert torch.equal(second["labels"], whole["labels"][len(whole["labels"]) // 2 :])
    assert len(second["labels"]) == int(second["bool_masked_pos"].sum()) and second[WEIGHT] == 1.0


def test_each_held_out_batch_counts_once(corpus, monkeypatch):
    """Three processes share seven batches; what they gather is what one process finds, to the last bit."""
    heldout = Sequences(read_corpus(corpus), RECIPE.length, True, 0).heldout_batches(2, 7)
    model = families.load("custom").build(STILL, read_corpus(corpus))
    expected, told = mean_loss(model, heldout), []
    monkeypatch.setattr(ranks, "count", lambda: 3)
    for rank in (0, 1, 2):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(ranks, "gathered", lambda value: (told.append(value), [dict.fromkeys(range(7), 0.0)])[1])
        mean_loss(model, heldout)
    assert sorted(i for each in told for i in each) == list(range(7)) and len(heldout) == 7
    monkeypatch.setattr(ranks, "gathered", lambda value: told)
    assert mean_loss(model, heldout) == expected


# stops and kills


def ranks_of(command: Command) -> dict[int, int]:
    """The processes that a launcher has started: rank -> id."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = int(status.read_text().partition("PPid:")[2].split()[0])
            variables = (status.parent / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == command.process.pid:
            found |= {int(each[5:]): int(status.parent.name) for each in variables if each.startswith(b"RANK=")}
    return found


@pytest.mark.kill
@pytest.mark.parametrize("whom", ["launcher", "rank 1"])
def test_sigterm_saves_and_ends(corpus, undisturbed, tmp_path, whom):
    """All stop after the same step, whoever is told; the run goes on from there to the same bytes."""
    run = tmp_path / RUN
    command = train(corpus, run, RECIPE)
    while last_snapshot(run) < 13 and command.process.is_alive():
        time.sleep(0.01)
    os.kill(command.process.pid if whom == "launcher" else ranks_of(command)[1], signal.SIGTERM)
    if whom == "launcher":
        os.kill(command.process.pid, signal.SIGTERM)  # SLURM may say it twice
    code, errors = command.end()
    reached = last_snapshot(run)
    assert code == 1 and errors.count("error: training was told to stop\n") == 1 and "Traceback" not in errors
    assert f"step {reached} of {STEPS}, saved" in errors and reached < STEPS
    newest = newest_states(run)[0]
    assert newest.name == f"checkpoint-{reached}" and not (run / "done.json").exists()
    states = [torch.load(newest / f"rng_state_{rank}.pth", weights_only=False)["cpu"] for rank in (0, 1)]
    assert not torch.equal(*states), "else both would drop the same units"
    code, errors = train(corpus, run, RECIPE).end()
    assert code == 0 and f"going on from step {reached}" in errors
    assert_same(run, undisturbed)


@pytest.mark.kill
def test_a_rank_that_is_killed_takes_the_others_down(corpus, undisturbed, tmp_path):
    run = tmp_path / RUN
    command = train(corpus, run, RECIPE)
    while last_snapshot(run) < 13 and command.process.is_alive():
        time.sleep(0.01)
    pids = ranks_of(command)
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    code, errors = command.end()
    assert code == 1 and time.monotonic() - began < 40, "30 s after the kill at the latest"
    assert "error: a process of the training was killed" in errors and "rank 0: signal 9" in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    code, errors = train(corpus, run, RECIPE).end()
    assert code == 0 and "going on from step" in errors
    assert_same(run, undisturbed)


@pytest.mark.kill
def test_ranks_do_not_outlive_their_launcher(corpus, tmp_path):
    run = tmp_path / RUN
    command = train(corpus, run, RECIPE)
    while last_snapshot(run) < 5 and command.process.is_alive():
        time.sleep(0.01)
    pids = ranks_of(command)
    os.kill(command.process.pid, signal.SIGKILL)
    command.end()
    end = time.monotonic() + 20
    while any(alive(pid) for pid in pids.values()) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(alive(pid) for pid in pids.values())


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie, which nobody may have fetched in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.kill
@pytest.mark.parametrize(("before", "after"), [(TWO, []), ([], TWO)], ids=["two then one", "one then two"])
def test_a_run_goes_on_with_another_number_of_processes(corpus, tmp_path, before, after):
    whole, run = here(corpus, tmp_path / "whole" / RUN, STILL), tmp_path / RUN
    command = train(corpus, run, more=before)
    interrupt(command, lambda: last_snapshot(run) >= 13, signal.SIGTERM)  # between two points of the curve
    assert command.end()[0] == 1
    reached = last_snapshot(run)
    assert reached < 20
    code, errors = train(corpus, run, more=after).end()
    assert code == 0 and f"going on from step {reached}" in errors
    assert_close(run, whole)


@pytest.mark.faults
def test_a_full_disk_ends_all(corpus, tmp_path):
    run = tmp_path / RUN
    code, errors = Command([*arguments(corpus, run), *TWO], tmp_path, 30_000).end()
    assert code == 1 and "error: cannot write checkpoint-3: " in errors and not (run / "done.json").exists()
