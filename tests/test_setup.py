"""Set-up: which Python is taken, and what is said when none fits."""

import os
import shutil
import subprocess

import pytest

from project import ROOT

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
