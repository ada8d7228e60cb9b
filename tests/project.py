"""A copy of the project in a temporary folder, with a small table of models, and a reader of its dry runs."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from checkpoints import write_bert, write_llama

ROOT = Path(__file__).parents[1]
PARTS = ("Snakefile", "config.yaml", "workflow", "envs", "profiles")
TEXTS = ("README.md", "CITATION.cff", "LICENSE", "CHANGELOG.md")
JOB = re.compile(r"^(?:local)?rule (\w+):$", re.MULTILINE)


class Project:
    """A copy of the workflow that can be run and edited."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> "Project":
        """A fresh copy whose preset `mini` is a tiny encoder and a tiny decoder on disk."""
        folder.mkdir(parents=True)
        for part in (*PARTS, *TEXTS):
            source = ROOT / part
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, folder / part, ignore=ignore) if source.is_dir() else shutil.copy2(source, folder / part)
        project = cls(folder)
        write_bert(folder / "models" / "enc")
        write_llama(folder / "models" / "dec")
        project.write_models([row("tiny-enc", "file:models/enc"), row("tiny-dec", "file:models/dec", "llama", "decoder")])
        examples = "examples:\n  encoder: {model: tiny-enc, layer: 0}\n  decoder: {model: tiny-dec, layer: 1}\n"
        project.write("workflow/presets/mini.yaml", "description: test\n" + examples)
        project.write("workflow/runs.tsv", (ROOT / "workflow/runs.tsv").read_text().splitlines()[0] + "\n")
        return project

    def copy(self, folder: Path) -> "Project":
        """The same with its results and Snakemake's memory, times kept."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def append(self, name: str, text: str) -> None:
        self.write(name, (self.folder / name).read_text() + text)

    def write_models(self, rows: list[dict]) -> None:
        write_models(self.folder / "workflow/models.tsv", rows)

    def add_model(self, **cells) -> None:
        with (self.folder / "workflow/models.tsv").open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        self.write_models([*rows, row(**cells)])

    def write_runs(self, *names: str) -> None:
        """Puts these rows of the project's runs.tsv in preset `mini`, with seed 0."""
        header, *rows = (ROOT / "workflow/runs.tsv").read_text().splitlines()
        chosen = ["\t".join([*row.split("\t")[:-2], "0", "mini"]) for row in rows if row.split("\t")[0] in names]
        self.write("workflow/runs.tsv", "\n".join([header, *chosen]) + "\n")

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
        env = {**os.environ, **environment}
        env.pop("PYTHONPATH", None)
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=env, check=False)

    def run(self, *arguments: str, **environment: str) -> str:
        """Runs the pipeline; it must end well."""
        result = self.snakemake(*arguments, **environment)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout + result.stderr

    def planned(self, *arguments: str) -> dict[str, set[str]]:
        """What a dry run would do: rule -> its wildcards (`-` where it has none)."""
        text = self.run("-n", *arguments)
        jobs: dict[str, set[str]] = {}
        for block in text.split("\n\n"):
            if match := JOB.search(block):
                wildcards = re.search(r"wildcards: (?:\w+)=(\S+)", block)
                jobs.setdefault(match[1], set()).add(wildcards[1] if wildcards else "-")
        jobs.pop("all", None)
        assert jobs or "Nothing to be done" in text, text
        return jobs

    def qkgeom(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return qkgeom(*arguments, cwd=self.folder, **environment)


def qkgeom(*arguments: str, cwd: Path = ROOT, code: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    """Runs the command line as a person does, without a terminal."""
    env = {**os.environ, "COLUMNS": "160", **environment, "PYTHONPATH": str((code or ROOT) / "workflow")}
    command = [sys.executable, "-m", "qkgeom", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=env, check=False)


def write_models(path: Path, rows: list[dict]) -> Path:
    """Writes a table of models."""
    with (ROOT / "workflow/models.tsv").open() as file:
        columns = file.readline().rstrip("\n").split("\t")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(model: str, uri: str, layout: str = "bert", role: str = "encoder", **more: str) -> dict[str, str]:
    cells = {"model": model, "label": model, "uri": uri, "layout": layout, "group": "language", "role": role}
    return {**cells, "objective": "none", "n_params": "1000000", "presets": "mini", "verified": "test", **more}
