"""Configuration, the choice of models, and every helper function of the rules. No rule is defined here."""

import itertools
import re
import shlex
import sys
from pathlib import Path

WORKFLOW = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(WORKFLOW))

from qkgeom import sizing
from qkgeom.device import gpu_slots
from qkgeom.digests import code_digest
from qkgeom.environment import prepare_jobs
from qkgeom.errors import QkgeomError
from qkgeom.future import bring_into_the_present
from qkgeom.jobs import (
    drawn,
    measuring_jobs,
    published_way_jobs,
    read_published_way,
    shared_scoring_jobs,
    trained_scoring_jobs,
    training_jobs,
)
from qkgeom.layouts import layout_named
from qkgeom.lock import pinned, read_lock
from qkgeom.published import WAYS
from qkgeom.published_trajectories import require_file
from qkgeom.registry import read_models, select
from qkgeom.provenance import code_of
from qkgeom.rendering import code_of as render_code
from qkgeom.rendering import specs
from qkgeom.runs import read_runs
from qkgeom.settings import read_settings
from qkgeom.sole_writer import begin_invocation, refuse_if_orphan
from qkgeom.sources import source_module, split_uri
from qkgeom.training import corpora
from qkgeom.training import sizing as training_sizing
from qkgeom.training.plans import plan_runs, updates_of

prepare_jobs(WORKFLOW)
try:
    if workflow.remote_exec:
        refuse_if_orphan()  # before Snakemake removes the output that this job would make
    SETTINGS = read_settings(config)
    RUNS = read_runs(SETTINGS.preset)
    CORPORA = {name: corpora.kind_of(name) for name in sorted({run.corpus for run in RUNS.values() if run.corpus})}
    PLANS = plan_runs(RUNS.values(), SETTINGS.training, SETTINGS.device)
    for plan in PLANS.values():
        plan.schedule.share(SETTINGS.gpus_per_run if gpu_slots(SETTINGS.device) else 1)
    TRAINED = {model.model: model for run in RUNS.values() for model in run.models(SETTINGS.preset)}
    PUBLISHED = read_models()
    ALL_MODELS = PUBLISHED | TRAINED
    PINS = read_lock()
    PINNED = {name: pinned(model, PINS) for name, model in ALL_MODELS.items()}
    MODELS = {model.model: model for model in select(ALL_MODELS, SETTINGS.preset, SETTINGS.only, SETTINGS.package_index)}
    EXAMPLES = {role: example for role, example in SETTINGS.examples.items() if example.model in MODELS}
    FIGURES = specs(WORKFLOW / "qkgeom" / "figures")
    TABLES = specs(WORKFLOW / "qkgeom" / "tables")
    TRAJECTORIES = require_file(Path(SETTINGS.published_trajectories)) if SETTINGS.published_trajectories else None
    PUBLISHED_WAY = read_published_way(MODELS, SETTINGS)
except QkgeomError as error:
    raise WorkflowError(str(error)) from None

COLLECTED = ("scores", "summary", "losses", "runs")
OUT = f"results/{SETTINGS.preset}"
TRAINING = training_jobs(RUNS, SETTINGS)
SHARED = shared_scoring_jobs([model for name, model in PUBLISHED.items() if name in MODELS], SETTINGS)
ALONE = [name for name in PUBLISHED if name not in set(itertools.chain(*SHARED))]  # scored in a job of its own
CONDA = "../../envs/conda.yaml"
CONTAINERS = [f"containers.{name}" for name in ("safetensors", "torch_zip", "torch_legacy", "gguf")]  # any may be a source's
PLACES = {"gpu_jobs": "gpu", "network_jobs": "hub_slots"}  # a profile's name for the jobs that need this resource
LARGE = "gpu_jobs_above_"  # and for those that need more GPU memory than the number of MB that follows
TRIES = 3  # of a job that fetches a model, each of which asks the hub several times; then the run goes on without it
RETRIES = 0 if workflow.remote_exec else TRIES - 1  # a cluster's job leaves its next try to who submitted it, with more memory
GPUS = gpu_slots(SETTINGS.device)
GPU = min(GPUS, 1)  # resource `gpu` of a job that uses one where there is one
RUN_GPUS = GPU * SETTINGS.gpus_per_run
RUN_NODES = SETTINGS.nodes_per_run if GPU else 1
workflow.global_resources.setdefault("hub_slots", SETTINGS.hub_slots)
if (
    workflow.global_resources["_nodes"].value is None and not workflow.remote_exec
):  # jobs run here, and not on a cluster's nodes
    workflow.global_resources.setdefault("gpu", GPUS)
    if RUN_GPUS > GPUS or RUN_NODES > 1:
        raise WorkflowError(
            f"config.yaml wants {RUN_GPUS} GPUs on {RUN_NODES} nodes for a run (gpus_per_run, nodes_per_run), and there are {GPUS}"
            " on this machine; lower them, or use a cluster (docs/cluster.md)"
        )


wildcard_constraints:
    model="|".join(map(re.escape, ALL_MODELS)),
    figure="|".join(map(re.escape, FIGURES)),
    table="|".join(map(re.escape, TABLES)),
    corpus="|".join(map(re.escape, corpora.kinds())),


def recorded_faults(wildcards, attempt):
    """Faults of a model that a job records, so that the run goes on without it; at the last try also that it is out of reach."""
    return "all" if attempt == TRIES else "lasting"


def extract_arguments(wildcards):
    """What `extract` is told of a model: its row, with the commits that models.lock pins it to."""
    row = PINNED[wildcards.model]
    options = {
        "series": row.series,
        "adapter": row.adapter,
        "layout": row.layout,
        "sha256": row.sha256,
        "n-head": row.n_head,
        "n-kv-head": row.n_kv_head,
    }
    return shlex.join([row.uri, *(word for key, value in options.items() if value for word in (f"--{key}", value))])


def extract_files(wildcards):
    """Size and time of a local model's files, so that changed files are extracted again."""
    row = ALL_MODELS[wildcards.model]
    uris = [*row.uris, *filter(None, [row.adapter])]
    places = [Path(address) for scheme, address in map(split_uri, uris) if scheme == "file"]
    files = [file for path in places for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def extract_code(wildcards):
    """Digest of the code that reads this model: its own layout and source, not the others'."""
    row = ALL_MODELS[wildcards.model]
    further = [row.adapter, "file:snapshot" if row.model in TRAINED else ""]
    sources = [source_module(uri) for uri in (row.uri, *filter(None, further))]
    own = [f"layouts.{layout_named(row.layout).file.stem}", *(name.removeprefix("qkgeom.") for name in sources)]
    return code_digest("verbs.extract", *CONTAINERS, *own)


def run_of(model):
    """The run that trains a model; an encoder-decoder's two models share one."""
    return split_uri(TRAINED[model].uri)[1]


def extract_inputs(wildcards):
    """A trained model is extracted from its run; a published one needs nothing but its row."""
    return [f"results/runs/{run_of(wildcards.model)}/done.json"] if wildcards.model in TRAINED else []


def tokenizer_arguments(wildcards):
    """What `tokenizer` is told: which one to fetch, or the texts to train it on and its size."""
    sizes = SETTINGS.training["corpora"]
    if "tokenizer" in sizes:
        return shlex.join(["--pretrained", sizes["tokenizer"]])
    return shlex.join([*CORPORA, "--vocab-size", str(sizes["vocab_size"])])


def corpus_arguments(wildcards):
    """What `corpus` is told: how much to keep, and where the user's own file is."""
    own_file = ["--jigsaw-zip", SETTINGS.jigsaw_zip] if wildcards.corpus == "jigsaw" else []
    return shlex.join(["--longest", str(SETTINGS.training["corpora"]["longest"]), *own_file])


def corpus_files(wildcards):
    """Size and time of the user's own file, so that a changed one is read again."""
    path = Path(SETTINGS.jigsaw_zip)
    return [path.stat().st_size, path.stat().st_mtime_ns] if wildcards.corpus == "jigsaw" and path.is_file() else []


def corpus_code(wildcards):
    """Digest of the code that reads this corpus, not the others'."""
    return code_digest("verbs.corpus", f"training.corpora.{corpora.kind_of(wildcards.corpus)}")


def streamed(wildcards):
    """Whether a corpus comes from the model hub."""
    return corpora.kind_of(wildcards.corpus) == "hub"


def corpus_need(wildcards):
    return training_sizing.corpus(SETTINGS.training["corpora"], streamed(wildcards))


def train_inputs(names):
    return [f"{OUT}/corpora/{corpus}/corpus.json" for corpus in sorted({RUNS[name].corpus for name in names} - {""})]


def train_arguments(names):
    return shlex.join([*names, "--corpora", f"{OUT}/corpora", "--output", "results/runs"])


def train_across():
    """What SLURM is told of a run on several nodes: a launcher on each, started by the job itself (`mpi`) through srun."""
    # tasks_per_gpu 0, since the executor would otherwise ask for `tasks` on each GPU
    return {"mpi": "srun", "tasks": RUN_NODES, "tasks_per_gpu": 0} if RUN_NODES > 1 else {}


def train_plans(names):
    """All that these runs are told, so that a change of row or preset trains them again; the device is not part of it."""
    plans = [(PLANS[name], vars(PLANS[name].schedule) | {"device": ""}) for name in names]
    return [[plan.family.name, vars(plan.recipe), schedule, plan.corpus, plan.margin] for plan, schedule in plans]


def runs_code(verb, names):
    """Digest of the code with which a verb works on these runs: of their own families, not the others'."""
    return code_digest(f"verbs.{verb}", *sorted(f"training.families.{RUNS[name].family}" for name in names))


def weights_after_scoring(models):
    """Whether a scoring job keeps or drops weights; those that a figure shows stay, and those scored in one job with them."""
    shown = {example.model for example in SETTINGS.examples.values()}
    return "keep" if SETTINGS.keep_weights or shown & set(models) else "drop"


def score_downloads(models):
    """1 where weights of one were dropped, so that scoring fetches them again."""
    manifests = [Path(f"results/models/{model}/manifest.json") for model in models]
    return int(any(path.exists() and not any(path.parent.glob("*.safetensors")) for path in manifests))


def published_way_first(wildcards):
    """Where weights are not kept, they are read the published way before they are scored and dropped."""
    first = not SETTINGS.keep_weights and wildcards.model in PUBLISHED_WAY
    return [f"results/models/{wildcards.model}/published_way.csv"] if first else []


def published_downloads(models):
    """1 where a source is read: two readings need more of it than the artifact holds, or its weights were dropped."""
    from_source = any(WAYS[ALL_MODELS[model].layout].layout is not None for model in models)
    return int(from_source or score_downloads(models))


def published_code(models):
    """Digest of the code that reads and scores these models; the sources' where they are read again."""
    sources = sorted({source_module(ALL_MODELS[model].uri).removeprefix("qkgeom.") for model in models})
    return code_digest("verbs.published", *sources, *CONTAINERS)


def score_columns():
    """What `score` computes besides the scores of whole layers."""
    return " ".join(f"--{name}" if getattr(SETTINGS, name) else f"--no-{name}" for name in ("heads", "structure"))


def norms_of(models):
    """The norms beside the scores of some models, where these are computed."""
    return expand("results/models/{model}/norms.npz", model=models) if SETTINGS.structure else []


def stack_of(model):
    """The query and key weights of a model, as far as the tables say."""
    return training_sizing.stack(PLANS[run_of(model)]) if model in TRAINED else sizing.published(PUBLISHED[model])


def extract_need(wildcards):
    return sizing.extraction(stack_of(wildcards.model))


def score_need(models):
    how = {"heads": SETTINGS.heads, "structure": SETTINGS.structure, "threads": SETTINGS.threads, "gpu": bool(GPU)}
    return sizing.together([sizing.scoring(stack_of(model), **how) for model in models])


def train_need(names):
    how = {"corpora": SETTINGS.training["corpora"], "threads": SETTINGS.threads, "gpu": bool(GPU)}
    how |= {"processes": max(RUN_GPUS, 1), "nodes": RUN_NODES}
    return sizing.together([training_sizing.training(PLANS[name], **how) for name in names])


def sized(need, *names):
    """Resources of a job, more at each try.

    Args:
        need: gives the job's `sizing.Need` from its wildcards.
        names: keys of `sizing.Need.resources`.
    """

    def resource(name):
        def choose(wildcards, attempt):
            value = need(wildcards).resources(attempt)[name]
            return min(value, SETTINGS.longest_job or value) if name == "runtime" else value

        return choose

    return {name: resource(name) for name in names}


def trained_runs():
    """The runs of this run's models, each once."""
    return list(dict.fromkeys(run_of(name) for name in MODELS if name in TRAINED))


def measured_runs():
    """The runs of this run's models whose updates are measured."""
    return [name for name in trained_runs() if updates_of(RUNS[name], SETTINGS.training)]


def collect_runs():
    return [word for name in trained_runs() for word in ("--run", f"results/runs/{name}")]


def collect_rows(wildcards):
    """What the summary says of the models, so that an edited row is collected again."""
    return [[model.model, model.label, model.group, model.role, model.n_params, model.same_as] for model in MODELS.values()]


def updates_links():
    return expand("results/runs/{run}/updates/done.json", run=measured_runs())


def published_way_links():
    return expand("results/models/{model}/published_way.csv", model=PUBLISHED_WAY)


def render_inputs(spec):
    """The files a figure or table needs or uses, by name."""
    wanted = {*spec.needs, *spec.uses}
    inputs = {name: f"{OUT}/collected/{name}.csv" for name in COLLECTED if name in wanted}
    if "updates" in wanted:
        inputs["updates"] = updates_links()
    if "examples" in wanted:
        inputs["examples"] = [f"results/models/{example.model}/manifest.json" for example in EXAMPLES.values()]
    if "published" in wanted:
        inputs["published"] = "workflow/published.tsv"
    if "published_way" in wanted:
        inputs["published_way"] = published_way_links()
    if "published_trajectories" in wanted and TRAJECTORIES:
        inputs["published_trajectories"] = str(TRAJECTORIES)
    return inputs


def render_arguments(spec):
    inputs = render_inputs(spec)
    words = [word for name, path in inputs.items() if name in (*COLLECTED, "published") for word in (f"--{name}", path)]
    words += [word for path in inputs.get("published_way", ()) for word in ("--published-way", path)]
    if "published_trajectories" in inputs:
        words += ["--published-trajectories", SETTINGS.published_trajectories]
    if "updates" in inputs:
        words += [word for name in measured_runs() for word in ("--updates", f"results/runs/{name}")]
    if "examples" in inputs:
        for role, example in EXAMPLES.items():
            words += ["--example", f"{role}=results/models/{example.model}:{example.layer}"]
    return shlex.join(words)


def further_links():
    """What figures and tables are made from besides scores: measured updates, and models read the published way."""
    return updates_links() + published_way_links()


def figure_targets():
    return [f"{OUT}/figures/{name}.pdf" for name, spec in FIGURES.items() if drawn(spec, SETTINGS, MODELS, RUNS.values())]


def table_targets():
    return [f"{OUT}/tables/{name}.csv" for name, spec in TABLES.items() if drawn(spec, SETTINGS, MODELS, RUNS.values())]


def rendered_arguments():
    """The run's figures and tables, so that leftovers beside them are told from them."""
    return [word for path in figure_targets() + table_targets() for word in ("--rendered", path)]


def report_knobs():
    """What the report says of config.yaml: the knobs that decide what there is to see. Devices are in the logs."""
    shown = {name: getattr(SETTINGS, name) for name in ("heads", "structure", "package_index", "allow_missing")}
    shown |= {"only": ",".join(SETTINGS.only) or "all models"}
    return shlex.join(word for name, value in shown.items() for word in ("--knob", f"{name}={str(value).lower()}"))


def place_jobs():
    """Gives jobs that need a GPU, much of its memory, or the network what a profile says of them in set-resources.

    The rules' own names would not do: a rule's jobs need a GPU or not by device and size, and there are many `train_<n>`.
    """
    settings = workflow.resource_settings.overwrite_resources
    large = sorted((int(place.removeprefix(LARGE)), place) for place in settings if place.startswith(LARGE))
    places = [(place, need, 0) for place, need in PLACES.items()]
    places += [(place, "gpu_mem_mb", most) for most, place in large]  # the last that fits a job decides
    for each, (place, need, most) in itertools.product(workflow.rules, places):
        for name, value in settings.get(place, {}).items():
            if name not in settings.get(each.name, {}):
                each.resources[name] = value_if_above(most, each.resources.get(need), value, each.resources.get(name))


def value_if_above(most, need, value, otherwise):
    """A resource that is `value` for jobs whose `need` is above a number; all but the number are Snakemake's Resource."""

    def choose(wildcards, **job):
        needed = (need.evaluate(wildcards, **job).value or 0) > most
        return (value if needed else otherwise).evaluate(wildcards, **job).value

    return choose
