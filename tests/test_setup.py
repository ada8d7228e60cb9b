"""Set-up: which Python is taken, and what is said when none fits."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from project import ROOT
from qkgeom.doctor import check_gpu, check_python

FAKE = "#!/bin/sh\necho 'Python 3.9.2'\nexit 1\n"  # a Python that fits nothing: every check it is asked to make fails


def set_up(folder, *arguments, path):
    shutil.copytree(ROOT / "envs", folder / "envs")
    environment = {"PATH": path, "HOME": str(folder)}
    shell = shutil.which("sh")
    command = [shell, "envs/setup.sh", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tools(tmp_path):
    """A PATH with the shell's tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "echo", "touch", "dirname"):
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    return folder


@pytest.mark.faults
@pytest.mark.parametrize("python", ["old", "none"])
def test_no_python_that_fits_is_one_clear_error(tmp_path, tools, python):
    if python == "old":
        (tools / "python3").write_text(FAKE)
        (tools / "python3").chmod(0o755)
    result = set_up(tmp_path / "project", "run", path=str(tools))
    assert result.returncode == 1
    assert "no Python 3.11 or 3.12" in result.stderr
    assert ("found: Python 3.9.2" if python == "old" else "found: no python3") in result.stderr
    assert "python3-venv" in result.stderr
    assert not (tmp_path / "project/.venv").exists()


@pytest.mark.faults
def test_a_failed_install_leaves_no_stamp(tmp_path):
    (project := tmp_path / "project").mkdir()
    shutil.copytree(ROOT / "envs", project / "envs")
    (project / "envs/requirements.txt").write_text("qkgeom-no-such-package==0\n")
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    result = subprocess.run(["sh", "envs/setup.sh", "run"], cwd=project, env=env, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "qkgeom-no-such-package" in result.stderr
    assert not (project / ".venv/run.stamp").exists()


def test_the_image_has_the_lock_and_the_python_of_the_other_environments():
    text = (ROOT / "envs/apptainer.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n((?:    .*\n|\n)*)", text, re.MULTILINE))
    lock, inside = sections["files"].split()
    assert (ROOT / lock) == ROOT / "envs/requirements.txt" and f"pip install -r {lock}" in (ROOT / "envs/setup.sh").read_text()
    assert [line for line in sections["post"].splitlines() if line.strip()][-1].endswith(f" -r {inside}")
    assert sections["post"].count("install") == 1  # the lock, and nothing else
    python = re.search(r"^From: python:(\d+)\.(\d+)-slim", text, re.MULTILINE)
    assert (int(python[1]), int(python[2])) in check_python.VERSIONS
    conda = yaml.safe_load((ROOT / "envs/conda.yaml").read_text())["dependencies"]
    assert f"python={python[1]}.{python[2]}" in conda
    assert "NOT TESTED" in text and "test" in sections


def test_the_documentation_of_environments_says_what_the_lock_needs():
    text = (ROOT / "docs/environments.md").read_text()
    cuda = check_gpu.cuda_of(ROOT / "envs/requirements.txt")
    assert f"CUDA {cuda}" in text and f"{check_gpu.DRIVERS[cuda]} or newer" in text
    assert all(f"{major}.{minor}" in text for major, minor in check_python.VERSIONS)
