"""Writes a finished run as a Workflow Run RO-Crate.

It holds the workflow with its lock and citation, what each step was told, and everything that came out; the metadata say
which models were read from where, when each step ran, and with which versions. Paths in it are those of the project's
folder, so that the unpacked crate can be run again.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom import __version__
from qkgeom.crate.entities import TEXT, Files, action, entity, file, one_or_all, software
from qkgeom.errors import DiskFault, QkgeomError
from qkgeom.files import whole_file
from qkgeom.finished import FinishedRun, find_run
from qkgeom.origins import Origin, read_origins
from qkgeom.scratch import scratch_folder
from qkgeom.steps import Step, read_steps

if TYPE_CHECKING:
    from rocrate.model.entity import Entity
    from rocrate.rocrate import ROCrate

ROOT = Path(__file__).parents[3]
PROJECT = ("README.md", "CITATION.cff", "LICENSE", "CHANGELOG.md")  # described each as a file, as the workflow's own
FOLDERS = {"workflow": "rules, presets, tables of models and runs, and the code", "envs": "the lock", "profiles": "profiles"}
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
LICENCE = "https://spdx.org/licenses/MIT"
PAPER = "https://arxiv.org/abs/2502.10927"
SOFTWARE = ("snakemake", "torch", "transformers", "numpy", "pandas", "matplotlib")
PAGES = ("report.html", "check.txt", "audit/*")
# what a step makes: verb -> patterns below the results folder of all presets
MADE = {
    "extract": ("models/{name}/manifest.json",),
    "score": ("models/{name}/scores.csv",),
    "train": ("runs/{name}/done.json", "runs/{name}/losses.csv"),
    "collect": ("{preset}/collected/*.csv",),
    "figure": ("{preset}/figures/{name}.*",),
    "table": ("{preset}/tables/{name}.*",),
}


def write_crate(results: Path | None, target: Path, agent: str = "", root: Path = ROOT) -> None:
    """Writes the crate.

    Args:
        results: `results/<preset>`, see `finished.find_run`.
        target: a name that ends in `.zip`.
        agent: who ran it: a name, or a name and an ORCID URL; empty for nobody.
        root: the project's folder.

    Raises:
        QkgeomError: there is no finished run, or none of its steps has a log.
        TransientFault: the disk refuses the write; no part of a crate is left.
    """
    run = find_run(results)
    steps = read_steps(run.results)
    if not any(step.ended for step in steps):
        expected = "logs/<step>/<name>.log and benchmarks/<step>/<name>.tsv"
        raise QkgeomError("nothing says when this run took place", where=run.results, found="no log", expected=expected)
    if absent := [name for name in (*PROJECT, *FOLDERS, "Snakefile", "config.yaml") if not (root / name).exists()]:
        raise QkgeomError("the project's folder is not whole", where=root, found=f"no {', '.join(absent)}", fix="restore them")
    with scratch_folder() as folder, whole_file(target) as temporary:
        staged, unpacked = folder / "staged", folder / "crate"
        try:
            for name in FOLDERS:
                shutil.copytree(root / name, staged / name, ignore=IGNORED)
            _crate(run, steps, staged, root, agent).write(unpacked)
        except OSError as error:
            fix = "free disk space, set TMPDIR to a folder with room, or mend the file that is named"
            raise DiskFault("a crate cannot be put together", where=folder, found=str(error)[:500], fix=fix) from error
        # and not the library's own zip, which has no entries for folders, as the validator wants them
        shutil.make_archive(str(temporary.with_suffix("")), "zip", unpacked)


def _crate(run: FinishedRun, steps: Sequence[Step], staged: Path, root: Path, agent: str) -> ROCrate:
    import yaml
    from rocrate.rocrate import ROCrate

    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    crate = ROCrate(version="1.1")  # on which Workflow Run Crate 0.5 builds
    crate.metadata.extra_terms["sha256"] = "https://w3id.org/ro/terms/workflow-run#sha256"
    began = min(step.began for step in steps if step.began)
    ended = max(step.ended for step in steps if step.ended)
    crate.name = f"qkgeom: a run of preset {run.preset}"
    crate.description = (
        f"Symmetry and directionality of query-key weights: preset {run.preset} of qkgeom {__version__}, with figures, tables, "
        "scores and what they were made from. Weights are left out; the manifests say where they came from, to the byte."
    )
    crate.license = entity(crate, LICENCE, "CreativeWork", name="MIT License", description="see the file LICENSE")
    crate.root_dataset["author"] = crate.root_dataset["publisher"] = entity(
        crate, "#developers", "Organization", name=cited["authors"][0]["name"]
    )
    crate.datePublished = ended
    crate.keywords = "attention, transformers, query-key weights, Snakemake"
    crate.root_dataset["citation"] = entity(crate, PAPER, "ScholarlyArticle", name=cited["preferred-citation"]["title"])
    crate.root_dataset["conformsTo"] = [
        entity(crate, uri, "CreativeWork", name=name, version=uri.rpartition("/")[2]) for uri, name in PROFILES.items()
    ]
    files = Files(crate, run.results.resolve().parent)
    workflow = _workflow(crate, staged, root)
    inputs = _inputs(crate, workflow, run, root)
    outputs = _outputs(crate, files, workflow, run)
    main = action(
        crate, "#run", f"Preset {run.preset}", (began, ended), workflow, f"snakemake --cores all --config preset={run.preset}"
    )
    main["object"], main["result"] = one_or_all(inputs), one_or_all(outputs)
    actions = [main, *_actions(crate, files, run, steps)]
    if agent:
        person = _agent(crate, agent)
        for each in actions:
            each["agent"] = person
    crate.root_dataset["mentions"] = actions
    if (measured := run.results / "benchmarks").is_dir():
        crate.add_dataset(measured, files.place(measured), properties={"name": "time and memory of the steps"})
    return crate


def _workflow(crate: ROCrate, staged: Path, root: Path) -> Entity:
    from rocrate.model.computerlanguage import snakemake

    language = crate.add(snakemake(crate, version=metadata("snakemake")["Version"]))
    told = {
        "name": "qkgeom",
        "encodingFormat": TEXT,
        "description": "Snakemake workflow: from checkpoints to the figures of arXiv 2502.10927",
    }
    workflow = crate.add_workflow(root / "Snakefile", "Snakefile", main=True, lang=language, properties=told)
    workflow["version"] = __version__
    workflow["license"] = {"@id": LICENCE}
    workflow["conformsTo"] = {"@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"}
    workflow["softwareRequirements"] = [software(crate, name) for name in SOFTWARE]
    parts = [file(crate, root / name, name) for name in PROJECT]
    parts[0]["about"] = crate.root_dataset
    parts += [
        crate.add_dataset(staged / name, f"{name}/", properties={"name": name, "description": what})
        for name, what in FOLDERS.items()
    ]
    workflow["hasPart"] = parts
    return workflow


def _inputs(crate: ROCrate, workflow: Entity, run: FinishedRun, root: Path) -> list[Entity]:
    """The preset, the knobs, and the source of every model that was not trained here."""
    config = file(crate, root / "config.yaml", "config.yaml")
    preset = entity(crate, "#preset", "PropertyValue", name="preset", value=run.preset)
    sources = [_source(crate, origin) for origin in read_origins(run.artifacts, run.rows) if not origin.uri.startswith("run:")]
    parameters = {
        "preset": ("Text", "which models, runs, figures and tables: a file of workflow/presets/", [preset]),
        "config": ("File", "the knobs", [config]),
        "models": ("PropertyValue", "checkpoints: what was asked for, and what was read", sources),
    }
    return _bound(crate, workflow, "input", parameters)


def _outputs(crate: ROCrate, files: Files, workflow: Entity, run: FinishedRun) -> list[Entity]:
    models = [folder.resolve().relative_to(files.base).as_posix() for folder in run.artifacts]
    parameters = {
        "figures": ("File", "figures with their numbers and captions", _files_of(run, "figures")),
        "tables": ("File", "tables as printed and in full precision", _files_of(run, "tables")),
        "collected": ("File", "scores, summary, losses and runs", [f"{run.preset}/collected/*"]),
        "scores": ("File", "scores of each layer, per model", [f"{model}/*scores*" for model in models]),
        "manifests": ("File", "where every tensor came from, per model", [f"{model}/manifest.json" for model in models]),
        "records": ("File", "how each training run ended", [f"{each}/*.json" for each in _runs(run)]),
        "report": ("File", "all of it as a page, the audit, and what is missing", [f"{run.preset}/{each}" for each in PAGES]),
    }
    found = {name: (kind, what, files.matching(patterns)) for name, (kind, what, patterns) in parameters.items()}
    return _bound(crate, workflow, "output", {name: each for name, each in found.items() if each[2]})


def _files_of(run: FinishedRun, kind: str) -> list[str]:
    return [f"{run.preset}/{kind}/{stem.name}.*" for stem in getattr(run, kind)]


def _runs(run: FinishedRun) -> list[str]:
    uris = [run.rows[folder.name].uri for folder in run.artifacts]
    return list(dict.fromkeys(f"runs/{uri.removeprefix('run:')}" for uri in uris if uri.startswith("run:")))


def _bound(crate: ROCrate, workflow: Entity, side: str, parameters: dict[str, tuple]) -> list[Entity]:
    """Declares parameters of the workflow, and gives all their values."""
    values: list[Entity] = []
    for name, (kind, description, examples) in parameters.items():
        if not examples:
            continue
        place = f"#{side}-{name}"
        parameter = crate.add_formal_parameter(name, kind, place, description, properties={"workExample": one_or_all(examples)})
        workflow.append_to(side, parameter)
        for example in examples:
            example["exampleOfWork"] = parameter
        values += examples
    return values


def _actions(crate: ROCrate, files: Files, run: FinishedRun, steps: Sequence[Step]) -> Iterator[Entity]:
    """One action per step that has a log and a benchmark, by qkgeom's own command line."""
    tool = entity(crate, "#qkgeom", "SoftwareApplication", name="qkgeom", softwareVersion=__version__)
    for step in steps:
        if step.ended is None:
            continue
        done = action(
            crate, f"#{step.verb}-{step.name}", f"{step.verb} {step.name}", (step.began, step.ended), tool, step.command
        )
        log = run.results / "logs" / step.verb / f"{step.name}.log"
        names = {step.name, *(Path(word).name for word in shlex.split(step.command))}  # a job may be about several models
        patterns = [each.format(name=name, preset=run.preset) for each in MADE.get(step.verb, ()) for name in sorted(names)]
        made = files.matching(dict.fromkeys(patterns))
        done["result"] = one_or_all([*made, files.add(log)])
        yield done


def _source(crate: ROCrate, origin: Origin) -> Entity:
    told = {"name": origin.model, "value": origin.uri, "description": origin.revision or origin.reason}
    return entity(crate, f"#source-{origin.model}", "PropertyValue", **told)


def _agent(crate: ROCrate, agent: str) -> Entity:
    name, _, address = agent.partition(" https://")
    return entity(crate, f"https://{address}" if address else "#agent", "Person", name=name)
