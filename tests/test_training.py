"""The training loop: the same bytes from the same seed, kills and stops, damaged states, divergence, bad input.

Runs are tiny, and keep a snapshot after every step: a kill's step shows in the folder, and a comparison of two runs
compares the weights after every step. Commands run in processes forked from one that has imported torch and the
Trainer, so that each starts at once, with nothing of another run in its memory.
"""

import io
import json
import logging
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file
from transformers import BertForMaskedLM

from qkgeom import cli, scoring
from qkgeom.acquisition import acquire
from qkgeom.artifacts import read_manifest
from qkgeom.digests import PACKAGE, _reach, code_digest
from qkgeom.errors import ModelFault, QkgeomError, TransientFault, UsageError
from qkgeom.files import write_json
from qkgeom.provenance import OF_FOLDER
from qkgeom.training import families, loop, progress
from qkgeom.training.families.base import Recipe
from qkgeom.training.losses import mean_loss
from qkgeom.training.one_run import train_run
from qkgeom.training.plans import Plan
from qkgeom.training.schedule import Schedule, listed_steps
from qkgeom.training.sequences import IGNORED, Sequences
from qkgeom.training.state import state_to_go_on_from
from qkgeom.training.tokens import read_corpus, write_corpus
from qkgeom.training.vocabulary import train_tokenizer

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.usefixtures("one_thread")
WORKFLOW = Path(__file__).parents[1] / "workflow"
STEPS = 40
RUN = "tiny.a.s0"  # preset, row and seed
CUSTOM = families.load("custom")
RECIPE = Recipe("masked", "default", n_layer=2, d_model=16, n_head=2, length=8, dropout=0.1, init_std=0.02, seed=0)
SCHEDULE = Schedule(
    steps=STEPS,
    batch=2,
    accumulation=2,
    learning_rate=0.003,
    warmup=4,
    weight_decay=0.01,
    log_every=10,
    save_every=3,  # between the points of the curve, too
    heldout_batches=4,
    snapshots=tuple(range(STEPS + 1)),
    device="cpu",
    whole=(5, 20),
)
Q_AND_K = {
    f"bert.encoder.layer.{layer}.attention.self.{which}.{kind}"
    for layer in (0, 1)
    for which in ("query", "key")
    for kind in ("weight", "bias")
}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["qkgeom.cli", "qkgeom.training.loop", "transformers.models.bert.modeling_bert"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Folder of a corpus of made-up words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 7))) for _ in range(300)]
    texts = sorted({" ".join(rng.choices(words, k=20)) for _ in range(200)})
    folder = tmp_path_factory.mktemp("corpora") / "tiny"
    write_corpus(folder, "tiny", texts, train_tokenizer(texts, 300), 10**6)
    return folder


def arguments(corpus: Path, run: Path, recipe=RECIPE, schedule=SCHEDULE) -> list[str]:
    """The command line that trains `run`; its row and preset are written beside it."""
    (preset, row, seed), recipe = run.name.split("."), asdict(recipe)
    cells = {"run": row, "label": row, "group": "training", "family": "custom", "corpus": corpus.name}
    cells["role"] = "encoder" if recipe["objective"] == "masked" else "decoder"
    cells |= {"seeds": seed[1:], "presets": preset, **{key: str(recipe.pop(key)) for key in ("objective", "init", "n_layer")}}
    settings = {**recipe, **asdict(schedule), "snapshots": list(schedule.snapshots)}
    settings = {key: value for key, value in settings.items() if key not in ("seed", "device", "whole")}
    training = {"runs_per_job": 1, "require_margins": True, "corpora": {"vocab_size": 300, "longest": 10**6}}
    training |= {"defaults": {}, "families": {"custom": settings}}
    if schedule.whole:
        training["updates"] = {"runs": [f"{row}.s?"], "steps": list(schedule.whole), "batches": 2, "runs_per_job": 1}
    folder = run.parent.parent / "tables" / run.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.tsv").write_text("\n".join("\t".join(line) for line in (cells, cells.values())) + "\n")
    (folder / f"{preset}.yaml").write_text(yaml.safe_dump({"description": "test", "training": training}))
    tables = ["--table", str(folder / "runs.tsv"), "--presets", str(folder), "--corpora", str(corpus.parent)]
    return ["train", run.name, *tables, "--device", schedule.device, "--threads", "1", "--output", str(run.parent)]


def here(corpus: Path, run: Path, recipe=RECIPE, schedule=SCHEDULE) -> Path:
    """Trains in this process."""
    write_json(run / "done.json", train_run(Plan(CUSTOM, recipe, schedule, corpus.name, None), corpus.parent, run))
    return run


def typed(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as it is typed, in a folder."""
    environment = os.environ | {"PYTHONPATH": str(WORKFLOW)}
    argv = [sys.executable, "-m", "qkgeom", *argv]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _command(argv: list[str], errors: Path, file_size: int | None) -> None:
    """Runs in the forked process: the command line, stderr going to a file."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    sys.argv = ["qkgeom", *argv]
    if file_size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    cli.main()


@dataclass
class Command:
    """A command in a process of its own.

    Args:
        argv: after `python -m qkgeom`.
        folder: for its stderr.
        file_size: bytes that a file can have before the disk refuses more.
    """

    argv: list[str]
    folder: Path
    file_size: int | None = None

    def __post_init__(self):
        self.errors = self.folder / "stderr.txt"
        self.process = SERVER.Process(target=_command, args=(self.argv, self.errors, self.file_size))
        self.process.start()

    def end(self) -> tuple[int, str]:
        """Exit code and stderr."""
        self.process.join(120)
        return self.process.exitcode, self.errors.read_text()


def last_checkpoint(run: Path) -> Path:
    return max(run.glob("snapshots/[0-9]*")) / "model.safetensors"


def last_snapshot(run: Path) -> int:
    return max((int(path.name) for path in run.glob("snapshots/[0-9]*")), default=-1)


def interrupt(command: Command, ready: Callable[[], bool], number: int, delay: float = 0.0) -> None:
    """Sends a signal once something is the case, and `delay` seconds later."""
    while not ready() and command.process.is_alive():
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(command.process.pid, number)


def results(run: Path) -> dict[str, bytes]:
    """All that a finished run consists of, but for the command's record of it (test_audit.py)."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name != OF_FOLDER]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def assert_same(run: Path, other: Path) -> None:
    found, expected = results(run), results(other)
    assert list(found) == list(expected)
    assert [name for name in found if found[name] != expected[name]] == []


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """A run made by the command, as it is typed."""
    run = tmp_path_factory.mktemp("undisturbed") / RUN
    done = typed(arguments(corpus, run), run.parent)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
    """A run that SIGTERM stopped, and what it said."""
    folder = tmp_path_factory.mktemp("stopped")
    command = Command(arguments(corpus, folder / RUN), folder)
    interrupt(command, lambda: last_snapshot(folder / RUN) >= 13, signal.SIGTERM)
    return folder / RUN, *command.end()


@pytest.fixture
def unfinished(stopped, tmp_path):
    """A copy of a stopped run."""
    return Path(shutil.copytree(stopped[0], tmp_path / RUN))


# the same bytes


def test_two_processes_give_the_same_bytes(corpus, undisturbed, tmp_path):
    assert_same(here(corpus, tmp_path / RUN), undisturbed)


def test_another_seed_is_another_run(corpus, undisturbed, tmp_path):
    short = replace(SCHEDULE, whole=(), snapshots=(0, STEPS))
    other = here(corpus, tmp_path / RUN, replace(RECIPE, seed=1), short)
    for name in ("losses.csv", "snapshots/0000000/model.safetensors"):
        assert (other / name).read_bytes() != (undisturbed / name).read_bytes()


def test_snapshots_hold_q_and_k_and_the_last_and_whole_ones_everything(corpus, undisturbed):
    folders = sorted((undisturbed / "snapshots").iterdir())
    assert [int(folder.name) for folder in folders] == list(SCHEDULE.snapshots)
    for folder in folders[:-1]:
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
        kept = set(load_file(folder / "model.safetensors"))
        assert kept == (set(load_file(last_checkpoint(undisturbed))) if int(folder.name) in SCHEDULE.whole else Q_AND_K)
    model = BertForMaskedLM.from_pretrained(folders[-1])
    heldout = Sequences(read_corpus(corpus), RECIPE.length, True, 0).heldout_batches(SCHEDULE.batch, SCHEDULE.heldout_batches)
    done = json.loads((undisturbed / "done.json").read_text())
    assert mean_loss(model, heldout) == done["heldout_loss"]


def test_the_record_of_a_run(corpus, undisturbed):
    done = json.loads((undisturbed / "done.json").read_text())
    assert (done["status"], done["steps"], done["snapshots"]) == ("ok", STEPS, list(SCHEDULE.snapshots))
    assert done["definition"]["data_digest"] == json.loads((corpus / "corpus.json").read_text())["digest"]
    assert done["definition"] | asdict(RECIPE) == done["definition"]
    rows = [line.split(",") for line in (undisturbed / "losses.csv").read_text().splitlines()]
    assert [row[:3] for row in rows] == [
        ["model", "step", "split"],
        *(
            [RUN, str(step), split]
            for step in range(STEPS + 1)
            for split in (["heldout", "train"] if step in (10, 20, 30, 40) else ["heldout"])
        ),
    ]
    losses = {split: [float(row[3]) for row in rows if row[2] == split] for split in ("train", "heldout")}
    assert losses["train"][-1] < losses["train"][0]
    assert losses["heldout"][-1] == pytest.approx(done["heldout_loss"], rel=1e-8)
    assert losses["heldout"][-1] < losses["heldout"][0]
    assert done["n_params"] == sum(value.size for value in load_file(last_checkpoint(undisturbed)).values())
    measured = done["measured"]
    assert measured["value"] == pytest.approx(done["heldout_loss"], rel=0.05)  # here each batch counts the same
    assert measured["gain"] == measured["baseline"] - measured["value"]


def test_a_run_is_extracted_snapshot_by_snapshot(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = replace(SCHEDULE, steps=12, whole=(), snapshots=(0, 2, 10, 12))
    run = here(corpus, tmp_path / "results" / "runs" / "a", replace(RECIPE, init="symmetric"), kept)
    manifest = acquire("run:a", tmp_path / "artifact", "a")
    assert list(manifest["snapshots"]) == ["0", "2", "10", "12"]
    assert manifest["not_in_W_qk"]["bias"]
    for step in kept.snapshots:
        native = load_file(run / "snapshots" / f"{step:07d}" / "model.safetensors")
        stored = load_file(tmp_path / "artifact" / f"{step}.safetensors")
        for layer in (0, 1):
            for which, name in (("W_q", "query"), ("W_k", "key")):
                expected = native[f"bert.encoder.layer.{layer}.attention.self.{name}.weight"].T.reshape(16, 2, 8)
                assert np.array_equal(stored[f"layer.{layer:03d}.{which}"], expected)
    rows = scoring.score_artifact(tmp_path / "artifact", device="cpu")
    symmetry = {(row["snapshot"], row["layer"]): row["symmetry"] for row in rows}
    assert [symmetry["0", layer] for layer in (0, 1)] == pytest.approx([1.0, 1.0], abs=1e-6)
    assert all(symmetry["12", layer] < 0.9999 for layer in (0, 1))


def test_an_autoregressive_run_attends_backwards_only(corpus, tmp_path):
    """Of two sequences that differ in the last token only, the earlier predictions are the same."""
    model = CUSTOM.build(replace(RECIPE, objective="autoregressive"), read_corpus(corpus)).eval()
    tokens = torch.arange(10, 18)[None]
    other = tokens.clone()
    other[0, -1] = 99
    with torch.no_grad():
        before, after = (model(input_ids=ids).logits[0] for ids in (tokens, other))
    assert torch.equal(before[:-1], after[:-1]) and not torch.equal(before[-1], after[-1])


def test_micro_steps_make_one_step(corpus, tmp_path):
    """The loss of a step is the mean over its examples, however they are divided (dropout and order of sums aside)."""
    causal = replace(RECIPE, objective="autoregressive")
    losses = []
    for recipe in (RECIPE, causal):
        for batch, accumulation in ((16, 1), (4, 4)):
            schedule = replace(
                SCHEDULE, steps=4, batch=batch, accumulation=accumulation, log_every=1, whole=(), snapshots=(0, 4)
            )
            run = here(corpus, tmp_path / f"{recipe.objective}{batch}", recipe, schedule)
            losses.append(float((run / "losses.csv").read_text().splitlines()[2].split(",")[3]))
    assert losses[1] == pytest.approx(losses[0], rel=0.05) and losses[3] == pytest.approx(losses[2], rel=0.02)


def test_a_batch_always_has_something_to_predict(corpus):
    """A loss over no tokens is NaN; of one sequence of eight, one in four would have none."""
    sequences = Sequences(read_corpus(corpus), RECIPE.length, True, 0)
    labels = [sequences.train_batch([index])["labels"] for index in range(300)]
    counts = torch.tensor([int((each != IGNORED).sum()) for each in labels])
    assert counts.min() == 1 and 0.12 < counts.sum() / (300 * RECIPE.length) < 0.25


def test_changed_scores_train_nothing_again(tmp_path):
    package = shutil.copytree(PACKAGE, tmp_path / "qkgeom", ignore=shutil.ignore_patterns("__pycache__"))
    before = code_digest("training.one_run", package=package)
    for module, changes in (("scores", False), ("training/sequences", True)):
        with (package / f"{module}.py").open("a") as file:
            file.write("\n# changed\n")
        _reach.cache_clear()
        assert (code_digest("training.one_run", package=package) != before) == changes


# kills and stops


@pytest.mark.kill
def test_kills_leave_no_trace(corpus, undisturbed, tmp_path):
    run, rng, hits = tmp_path / RUN, random.Random(), []
    for earliest, latest in ((0, 3), (4, 14), (15, 25), (26, 34)):
        for _ in range(5):  # until one hits
            command = Command(arguments(corpus, run), tmp_path)
            step = rng.randint(earliest, latest)
            interrupt(command, lambda step=step: last_snapshot(run) >= step, signal.SIGKILL, rng.uniform(0, 0.05))
            code, _ = command.end()
            if code == -signal.SIGKILL and not (run / "done.json").exists():
                break
        states = sorted(int(path.parent.name.partition("-")[2]) for path in run.glob("state/checkpoint-*/sealed.json"))
        hits.append((last_snapshot(run), code, states))
    logger.info("kills: (last snapshot, exit code, sealed states) %s", hits)
    assert all(code == -signal.SIGKILL for _, code, _ in hits) and hits[0][0] < 10
    code, errors = Command(arguments(corpus, run), tmp_path).end()
    assert code == 0 and "going on from step" in errors
    assert_same(run, undisturbed)


@pytest.mark.kill
def test_states_from_the_future_do_not_replace_later_ones(corpus, undisturbed, tmp_path):
    """The clock is put back while a run is down: by time, the states that it writes next are the oldest."""
    run = tmp_path / RUN
    for step in (8, 17):
        command = Command(arguments(corpus, run), tmp_path)
        interrupt(command, lambda step=step: last_snapshot(run) >= step, signal.SIGKILL)
        assert command.end()[0] == -signal.SIGKILL
        for checkpoint in run.glob("state/checkpoint-*"):
            os.utime(checkpoint, (time.time() + 86400,) * 2)
    code, errors = Command(arguments(corpus, run), tmp_path).end()
    assert code == 0 and int(re.search(r"going on from step (\d+)", errors)[1]) >= 15
    assert_same(run, undisturbed)


@pytest.mark.kill
def test_a_state_and_a_snapshot_that_were_being_written(corpus, undisturbed, unfinished):
    newest = max((unfinished / "state").glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    (newest / "sealed.json").unlink()
    (newest / "optimizer.pt").unlink()
    (unfinished / "snapshots" / ".0000014.tmp").mkdir()
    (unfinished / "snapshots" / ".0000014.tmp" / "config.json").write_text("{")
    assert_same(here(corpus, unfinished), undisturbed)


class Killed(BaseException):
    pass


@pytest.mark.kill
@pytest.mark.parametrize("rate", [0.003, 1e30])
def test_a_kill_between_the_last_step_and_the_record(corpus, tmp_path, monkeypatch, rate):
    """The end of a run, `ok` or diverged, comes out the same when it is reached a second time."""
    schedule = replace(SCHEDULE, learning_rate=rate, save_every=1)
    whole, run = here(corpus, tmp_path / "whole" / RUN, schedule=schedule), tmp_path / RUN

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "write_losses", kill)
        here(corpus, run, schedule=schedule)
    assert newest_states(run) and not (run / "done.json").exists()
    assert_same(here(corpus, run, schedule=schedule), whole)
    assert not (run / "state").exists()


@pytest.mark.kill
def test_ctrl_c_saves_and_ends_too(corpus, undisturbed, tmp_path):
    run = tmp_path / RUN
    command = Command(arguments(corpus, run), tmp_path)
    interrupt(command, lambda: last_snapshot(run) >= 13, signal.SIGINT)
    code, errors = command.end()
    assert code == 1 and f"step {last_snapshot(run)} of {STEPS}, saved" in errors and "Traceback" not in errors
    assert_same(here(corpus, run), undisturbed)


@pytest.mark.kill
def test_sigterm_saves_and_ends(corpus, undisturbed, stopped, unfinished):
    _, code, errors = stopped
    reached = last_snapshot(unfinished)
    states = sorted(int(path.name.partition("-")[2]) for path in (unfinished / "state").glob("checkpoint-*"))
    logger.info("stopped after step %d, states %s", reached, states)
    assert code == 1 and "error: training was told to stop\n" in errors and "Traceback" not in errors
    assert f"step {reached} of {STEPS}, saved" in errors
    assert reached < STEPS and states[-1] == reached and len(states) == 2
    assert not (unfinished / "done.json").exists()
    assert_same(here(corpus, unfinished), undisturbed)


# states that cannot be used


def newest_states(run: Path) -> list[Path]:
    return sorted((run / "state").glob("checkpoint-*"), key=lambda path: -int(path.name.partition("-")[2]))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.faults
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "rng_state.pth", "unlogged.json"])
def test_a_flipped_byte_is_found_and_the_older_state_used(corpus, undisturbed, unfinished, caplog, file):
    newest, older = newest_states(unfinished)
    flip(newest / file)
    with caplog.at_level(logging.INFO):
        here(corpus, unfinished)
    assert f"{newest} is damaged or unfinished and is not used" in caplog.text
    assert f"going on from step {older.name.partition('-')[2]}" in caplog.text
    assert_same(unfinished, undisturbed)


@pytest.mark.faults
def test_with_every_state_cut_short_the_run_starts_afresh(corpus, undisturbed, unfinished, caplog):
    for state in newest_states(unfinished):
        os.truncate(state / "optimizer.pt", 1000)
    with caplog.at_level(logging.INFO):
        here(corpus, unfinished)
    assert caplog.text.count("is damaged or unfinished and is not used") == 2 and "going on" not in caplog.text
    assert_same(unfinished, undisturbed)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 30}, "steps was 40, is 30"),
        ({"d_model": 32}, "d_model was 16, is 32"),
        ({"seed": 5}, "seed was 0, is 5"),
        ({"data_digest": "another"}, "data_digest was "),
        ({"code": "another"}, "code was "),
    ],
)
def test_a_state_of_other_settings_is_not_used(unfinished, caplog, change, told):
    definition = json.loads((unfinished / "state" / "run.json").read_text())
    (unfinished / "losses.csv").touch()
    assert state_to_go_on_from(unfinished, definition, SCHEDULE.snapshots) == newest_states(unfinished)[0]
    assert state_to_go_on_from(unfinished, definition | change, SCHEDULE.snapshots) is None
    assert told in caplog.text and "starts afresh" in caplog.text
    assert [path.name for path in unfinished.iterdir()] == ["state"]
    assert json.loads((unfinished / "state" / "run.json").read_text()) == definition | change


@pytest.mark.faults
def test_other_settings_end_as_if_nothing_had_been_there(corpus, unfinished, tmp_path, caplog):
    wider, kept = replace(RECIPE, d_model=32, init="symmetric"), replace(SCHEDULE, whole=(), snapshots=(0, 5, STEPS))
    fresh = here(corpus, tmp_path / "fresh" / RUN, wider, kept)
    caplog.clear()
    here(corpus, unfinished, wider, kept)
    assert "d_model was 16, is 32" in caplog.text
    assert_same(unfinished, fresh)


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["definition", "snapshot"])
def test_a_folder_that_lost_something_starts_afresh(corpus, undisturbed, unfinished, caplog, damage):
    if damage == "definition":
        (unfinished / "state" / "run.json").write_text("{")
    else:
        shutil.rmtree(unfinished / "snapshots" / "0000004")
    here(corpus, unfinished)
    assert "starts afresh" in caplog.text
    assert_same(unfinished, undisturbed)


# several runs in one job


def test_runs_of_one_job_are_as_if_alone(corpus, undisturbed, tmp_path):
    """The second run's weights do not depend on the first's; and what is finished is not trained again."""
    other = tmp_path / "runs" / "tiny.a.s1"
    first = arguments(corpus, other)
    (tmp_path / "tables").mkdir(exist_ok=True)
    table = Path(first[first.index("--table") + 1])
    table.write_text(table.read_text().replace("\t1\ttiny", "\t0,1\ttiny"))
    both = ["train", "tiny.a.s1", RUN, *first[2:]]
    assert Command(both, tmp_path).end()[0] == 0
    assert_same(tmp_path / "runs" / RUN, undisturbed)
    before = (other / "losses.csv").stat().st_mtime_ns
    (other / "done.json").unlink()  # as Snakemake does when a job fails
    shutil.rmtree(tmp_path / "runs" / RUN)
    code, errors = Command(both, tmp_path).end()
    assert code == 0 and f"{other} is trained already" in errors
    assert (other / "losses.csv").stat().st_mtime_ns == before and (other / "done.json").exists()
    assert_same(tmp_path / "runs" / RUN, undisturbed)


@pytest.mark.faults
def test_a_model_that_learned_too_little_is_no_data_point(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "results" / "runs" / RUN
    short = replace(SCHEDULE, steps=4, whole=(), snapshots=(0, 4))
    plan = Plan(CUSTOM, RECIPE, short, corpus.name, 3.0)
    record = train_run(plan, corpus.parent, run)
    assert record["status"] == "not_learned" and record["measured"]["margin"] == 3.0
    write_json(run / "done.json", record)
    with pytest.raises(
        ModelFault, match=r"learned too little(.|\n)*held-out loss \d\.\d{3}, trivial baseline(.|\n)*better by 3"
    ):
        acquire(f"run:{RUN}", tmp_path / "artifact", "a")
    assert train_run(replace(plan, margin=-3.0), corpus.parent, run)["status"] == "ok"  # another margin is another definition


# divergence


@pytest.mark.faults
def test_a_run_that_diverges_is_kept_as_such(corpus, tmp_path):
    run, wild = tmp_path / "results" / "runs" / "tiny.wild.s0", replace(SCHEDULE, learning_rate=1e30, warmup=20, save_every=10)
    code, errors = Command(arguments(corpus, run, schedule=wild), tmp_path).end()
    assert code == 0 and "Traceback" not in errors
    done = json.loads((run / "done.json").read_text())
    assert (done["status"], done["heldout_loss"]) == ("diverged", None) and done["steps"] < STEPS
    assert (run / "losses.csv").read_text().startswith("model,step,split,loss\n")
    extracted = typed(["extract", "run:tiny.wild.s0", "--output", "artifact"], tmp_path)
    assert extracted.returncode == 0
    manifest = read_manifest(tmp_path / "artifact")
    assert manifest["status"] == "failed" and "diverged" in manifest["reason"]
    assert f"by step {done['steps']}" in manifest["reason"]


@pytest.mark.faults
def test_a_diverged_run_keeps_the_curve_before_it(corpus, tmp_path):
    run = here(corpus, tmp_path / RUN, schedule=replace(SCHEDULE, log_every=1, learning_rate=1e30))
    done = json.loads((run / "done.json").read_text())
    lines = [line.split(",") for line in (run / "losses.csv").read_text().splitlines()[1:]]
    steps = [int(step) for _, step, split, _ in lines if split == "train"]
    assert done["status"] == "diverged" and steps == list(range(1, done["steps"])) != []


@pytest.mark.faults
def test_weights_that_are_not_finite_at_the_end_are_a_divergence(corpus, tmp_path):
    """The last step ruins the model, and no training loss is taken after it."""
    run = here(
        corpus, tmp_path / RUN, schedule=replace(SCHEDULE, steps=3, whole=(), snapshots=(0, 3), learning_rate=1e38, warmup=2)
    )
    done = json.loads((run / "done.json").read_text())
    assert (done["status"], done["steps"], done["heldout_loss"]) == ("diverged", 3, None)


# bad input


@pytest.mark.faults
@pytest.mark.parametrize(("file_size", "what"), [(3_000, "0000000"), (30_000, "checkpoint-3"), (70_000, "checkpoint-3")])
def test_a_full_disk(corpus, undisturbed, tmp_path, file_size, what):
    run = tmp_path / RUN
    code, errors = Command(arguments(corpus, run), tmp_path, file_size).end()
    assert code == 1 and f"error: cannot write {what}: " in errors and "free disk space" in errors
    assert "Traceback" not in errors
    assert not (run / "done.json").exists()
    assert all(
        {path.name for path in each.iterdir()} == {"config.json", "model.safetensors"} for each in run.glob("snapshots/*")
    )
    assert_same(here(corpus, run), undisturbed)


@pytest.mark.faults
def test_a_folder_that_cannot_be_written(corpus, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TransientFault, match="cannot write"):
        here(corpus, tmp_path / "file" / RUN)


@pytest.mark.faults
@pytest.mark.parametrize("snapshots", [(), (0,), (0, 5), (5, STEPS), (0, 5, 5, STEPS), (0, 9, 5, STEPS), (0, STEPS, STEPS + 1)])
def test_snapshots_that_do_not_fit_the_run(snapshots):
    with pytest.raises(UsageError, match="the snapshots do not fit the run"):
        replace(SCHEDULE, whole=(), snapshots=snapshots)


@pytest.mark.faults
def test_steps_are_listed_singly_and_in_ranges():
    assert listed_steps([0, 5, [10, 40, 10], 45]) == (0, 5, 10, 20, 30, 40, 45)


@pytest.mark.faults
@pytest.mark.parametrize(("name", "value"), [("objective", "denoising"), ("init", "zero"), ("n_head", 3)])
def test_a_model_that_does_not_exist(name, value):
    with pytest.raises(UsageError, match=str(value)):
        CUSTOM.require_buildable(replace(RECIPE, **{name: value}))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("recipe", "schedule", "more", "told"),
    [
        ({"objective": "prefix"}, {}, [], "family custom has no such objective"),
        ({}, {"snapshots": (0, 5)}, [], "the snapshots do not fit the run"),
        ({}, {"batch": 0}, [], "batch has a value that is not allowed"),
        ({}, {}, ["--device", "cuda:99"], "there is no such device"),
        ({}, {}, ["tiny.b.s0"], "there is no such run: tiny.b.s0"),
    ],
)
def test_the_command_says_what_is_wrong(corpus, tmp_path, recipe, schedule, more, told):
    wrong = replace(SCHEDULE)
    for key, value in schedule.items():
        object.__setattr__(wrong, key, value)  # past its own check
    argv = [*arguments(corpus, tmp_path / "runs" / RUN, replace(RECIPE, **recipe), wrong), *more]
    code, errors = Command(argv, tmp_path).end()
    assert code == 2 and told in " ".join(errors.replace("│", " ").split()) and "Traceback" not in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.faults
def test_a_run_that_cannot_be_trained_is_recorded_and_stops_no_other(corpus, tmp_path):
    argv = arguments(corpus, tmp_path / "runs" / RUN, replace(RECIPE, length=100_000))
    code, errors = Command(argv, tmp_path).end()
    assert code == 0 and f"{RUN} failed" in errors and "a corpus is shorter than one sequence" in errors
    done = json.loads((tmp_path / "runs" / RUN / "done.json").read_text())
    assert done["status"] == "failed" and "shorter than one sequence" in done["reason"]
    assert (tmp_path / "runs" / RUN / "losses.csv").read_text() == "model,step,split,loss\n"


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_corpus_that_cannot_be_read(corpus, tmp_path, damage):
    folder = tmp_path / "tiny"
    if damage != "gone":
        shutil.copytree(corpus, folder)
    if damage == "cut":
        os.truncate(folder / "train.bin", 1001)  # half a token too much
    if damage == "other":
        np.zeros(10, np.uint16).tofile(folder / "train.bin")
    with pytest.raises(QkgeomError, match=r"a corpus cannot be read\n +where: +.*tiny"):
        read_corpus(folder)


# on a GPU


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_computes_in_bf16_where_it_has_it_and_in_fp16_elsewhere(monkeypatch, native):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    assert loop._precision("cuda") == {"bf16": native, "fp16": not native}
    assert loop._precision("cpu") == {}


def test_training_and_held_out_losses_have_the_same_precision(corpus, tmp_path, monkeypatch):
    seen = set()

    def note(module, _, output):
        if isinstance(module, torch.nn.Linear):
            seen.add((module.training, output.dtype))

    monkeypatch.setattr(loop, "_precision", lambda _: {"bf16": True})
    with torch.nn.modules.module.register_module_forward_hook(note):
        run = here(corpus, tmp_path / RUN, schedule=replace(SCHEDULE, steps=2, whole=(), snapshots=(0, 2)))
    assert seen == {(True, torch.bfloat16), (False, torch.bfloat16)}
    weights = load_file(last_checkpoint(run))
    assert {value.dtype for value in weights.values()} == {np.dtype("float32")}


@pytest.mark.parametrize(("objective", "causal"), [("masked", False), ("autoregressive", True)])
def test_attention_is_fused_and_has_no_mask_of_padding(corpus, monkeypatch, objective, causal):
    calls, fused = [], torch.nn.functional.scaled_dot_product_attention

    def noted(*operands, attn_mask=None, is_causal=False, **options):
        calls.append((attn_mask, is_causal))
        return fused(*operands, attn_mask=attn_mask, is_causal=is_causal, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    recipe = replace(RECIPE, objective=objective)
    tokens = read_corpus(corpus)
    CUSTOM.build(recipe, tokens)(**CUSTOM.data(recipe, tokens).train_batch([0, 1]))
    assert calls == [(None, causal)] * recipe.n_layer


# progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal(corpus, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    here(corpus, tmp_path / RUN)
    shown = terminal.getvalue()
    assert "40/40" in shown and "steps/s" in shown and "loss 5." in shown and "0:00:00 left" in shown


def test_progress_in_a_log(corpus, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    here(corpus, tmp_path / "one" / RUN)
    assert caplog.text.count(" of 40: ") == 1  # a run shorter than the interval has its last line only
    caplog.clear()
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    here(corpus, tmp_path / "two" / RUN, schedule=replace(SCHEDULE, whole=(), snapshots=(0, STEPS)))
    lines = [record.getMessage() for record in caplog.records if " of 40: " in record.getMessage()]
    assert len(lines) == STEPS + 1 and lines[0].startswith(f"{RUN}: step 1 of 40: loss -, ")
    assert lines[-1].startswith(f"{RUN}: step 40 of 40: loss 5.") and lines[-1].endswith(" steps/s, 0:00:00 left")


def test_a_run_that_reads_a_corpus_needs_one(tmp_path):
    result = typed(["train", "mini.vit.s0", "mini.bert.s0", "--output", str(tmp_path)], tmp_path)
    assert result.returncode == 2
    (found,) = re.findall("found: *(.*)", result.stderr)
    assert found == "mini.bert.s0" and "give --corpora" in result.stderr
