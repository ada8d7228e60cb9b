"""Temporary folders: those of killed processes go at the next start, those of living ones stay."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import llama_config, llama_tensors
from hub_server import Hub, client
from qkgeom.errors import TransientFault
from qkgeom.scratch import PREFIX, scratch_folder

served_hub, hub = hub_server.served_hub, hub_server.hub
SIZES = {"d": 64, "n_head": 4, "n_kv_head": 2, "n_layer": 6}


def left_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{PREFIX}*"))


@pytest.mark.kill
def test_a_killed_score_leaves_nothing_for_good(hub: Hub, tmp_path):
    config = llama_config(**SIZES)
    hub.add("tiny/scored", {"config.json": json.dumps(config).encode(), "model.safetensors": save(llama_tensors(1, **SIZES))})
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with client(tmp_path / "home", hub, TMPDIR=str(temporary)) as it:
        hub.rate = 20_000  # the weights take several seconds
        pid = it.start("score", "hf:tiny/scored", "--device", "cpu", "-o", tmp_path / "scores.csv")
        end = time.monotonic() + 120
        while not list(temporary.glob(f"{PREFIX}*/*/.*.partial.*")):
            assert time.monotonic() < end
            time.sleep(0.02)
        (living,) = left_in(temporary)
        with scratch_folder(temporary):
            assert living.exists()  # its process lives, so it is not swept
        os.kill(pid, signal.SIGKILL)
        it.wait(pid)
        assert left_in(temporary) == [living]
        hub.reset()
        answer = it.verb("score", "hf:tiny/scored", "--device", "cpu", "-o", tmp_path / "scores.csv")
    assert "error" not in answer, answer
    assert (tmp_path / "scores.csv").read_text().count("\n") == SIZES["n_layer"] + 1
    assert left_in(temporary) == []


def test_folders_of_others_stay(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / "qkgeom-notes").mkdir()
    (tmp_path / f"{PREFIX}left").mkdir()
    with scratch_folder(tmp_path) as one, scratch_folder(tmp_path) as other:
        assert one != other and one.exists() and other.exists()
    assert not one.exists() and not other.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "qkgeom-notes", f"{PREFIX}link"]
    assert (elsewhere / "file").exists()


@pytest.mark.faults
def test_where_none_can_be_made_the_fault_says_what_to_do(tmp_path):
    with pytest.raises(TransientFault, match="TMPDIR"), scratch_folder(tmp_path / "nowhere"):
        pass
