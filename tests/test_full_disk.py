"""A disk that is full under each stage of the pipeline: one clear error, nothing half, and the same command goes on."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from project import ROOT
from tiny_pipeline import RUN, TARGETS, contents, create

pytestmark = [pytest.mark.faults, pytest.mark.slow]
MANIFESTS = [f"results/models/{model}/manifest.json" for model in ("tiny-enc", "tiny-dec", RUN)]
SUMMARY = "results/mini/collected/summary.csv"
STEPS = [  # the disks that are full, what is asked for, and where something cannot be written
    (("models", "runs"), MANIFESTS, ["results/models/tiny-enc", "results/models/tiny-dec", f"results/runs/{RUN}"]),
    ((), MANIFESTS, []),
    (("models",), [SUMMARY], [f"results/models/{model}" for model in ("tiny-enc", "tiny-dec", RUN)]),
    (("mini/collected",), [SUMMARY], ["results/mini/collected"]),
    (("mini/tables", "mini/figures"), TARGETS, ["results/mini/tables", "results/mini/figures"]),
    ((), TARGETS, []),
]
DISKS = sorted({place for places, _, _ in STEPS for place in places})


@contextmanager
def own_disk(folder: Path, megabytes: int):
    """A disk of its own, as small as that, at `folder`; skips the test where none can be made."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk (root)")
    (folder / ".keep").touch()  # Snakemake removes empty folders, which a disk's own cannot be
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def filled(folder: Path):
    """No room on the folder's disk inside the block."""
    filler = folder / ".filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**16))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    yield
    filler.unlink()


def test_a_full_disk_under_each_stage(tmp_path):
    """Extraction and training, then scores, then what is collected, then figure and table; in between there is room again."""
    project = create(tmp_path / "project")
    results = project.folder / "results"
    with ExitStack() as disks:
        for place in DISKS:
            disks.enter_context(own_disk(results / place, 4))
        undisturbed = create(tmp_path / "undisturbed")
        undisturbed.run(*TARGETS, OMP_NUM_THREADS="1")
        wanted = contents(undisturbed.folder)
        for places, targets, refusing in STEPS:
            with ExitStack() as full:
                for place in places:
                    full.enter_context(filled(results / place))
                result = project.snakemake(*targets, OMP_NUM_THREADS="1")
            told = result.stdout + result.stderr
            assert result.returncode == bool(refusing) and "Traceback" not in told, told
            for words in ("error: cannot write ", "No space left on device", "do:       free disk space"):
                assert (words in told) == bool(refusing), told
            for folder in refusing:
                assert f"where:    {folder}" in told or f"where:    {', '.join(refusing)}" in told, told
            found = contents(project.folder)
            assert [name for name in found if found[name] != wanted.get(name)] == []
        assert found == wanted


@pytest.mark.parametrize(("verb", "most"), [("extract", 2000), ("score", 700)])
def test_a_full_disk_is_not_recorded_as_the_models_fault(tmp_path, verb, most):
    """At the last try a job records what may pass; but the next run has to try again once there is room."""
    project = create(tmp_path / "project")
    extract = ["extract", "file:models/enc", "--record", "all", "--output", "results/models/x"]
    score = ["score", "results/models/x", "--in-place", "--structure", "--record", "all"]
    if verb == "score":
        assert project.qkgeom(*extract).returncode == 0
    result = subprocess.run(
        [sys.executable, "-B", "-m", "qkgeom", *(extract if verb == "extract" else score)],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    assert result.returncode == 1 and "cannot write" in result.stderr and "free disk space" in result.stderr, result.stderr
    folder = project.folder / "results/models/x"
    assert not (folder / ("manifest.json" if verb == "extract" else "unscored.json")).exists()
    assert not (folder / "scores.csv").exists()
