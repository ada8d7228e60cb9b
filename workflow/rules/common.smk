"""Configuration, the choice of models, and every helper function of the rules. No rule is defined here."""

import itertools
import re
import shlex
import sys
from pathlib import Path

WORKFLOW = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(WORKFLOW))

from qkgeom.device import gpu_slots
from qkgeom.digests import code_digest
from qkgeom.environment import prepare_jobs
from qkgeom.errors import QkgeomError
from qkgeom.future import bring_into_the_present
from qkgeom.layouts import layout_named
from qkgeom.lock import pinned, read_lock
from qkgeom.registry import read_models, select
from qkgeom.rendering import specs
from qkgeom.runs import read_runs
from qkgeom.settings import read_settings
from qkgeom.sole_writer import begin_invocation, refuse_if_orphan
from qkgeom.sources import source_module, split_uri
from qkgeom.training import corpora
from qkgeom.training.plans import plan_runs

prepare_jobs(WORKFLOW)
try:
    if workflow.remote_exec:
        refuse_if_orphan()  # before Snakemake removes the output that this job would make
    SETTINGS = read_settings(config)
    RUNS = read_runs(SETTINGS.preset)
    CORPORA = {name: corpora.kind_of(name) for name in sorted({run.corpus for run in RUNS.values() if run.corpus})}
    PLANS = plan_runs(RUNS.values(), SETTINGS.training, SETTINGS.device)
    TRAINED = {model.model: model for run in RUNS.values() for model in run.models(SETTINGS.preset)}
    PUBLISHED = read_models()
    ALL_MODELS = PUBLISHED | TRAINED
    PINS = read_lock()
    PINNED = {name: pinned(model, PINS) for name, model in ALL_MODELS.items()}
    MODELS = {model.model: model for model in select(ALL_MODELS, SETTINGS.preset, SETTINGS.only, SETTINGS.package_index)}
    EXAMPLES = {role: example for role, example in SETTINGS.examples.items() if example.model in MODELS}
    FIGURES = specs(WORKFLOW / "qkgeom" / "figures")
    TABLES = specs(WORKFLOW / "qkgeom" / "tables")
except QkgeomError as error:
    raise WorkflowError(str(error)) from None

COLLECTED = ("scores", "summary", "losses", "runs")
OUT = f"results/{SETTINGS.preset}"
CONDA = "../../envs/conda.yaml"
PLACES = {"gpu_jobs": "gpu", "network_jobs": "hub_slots"}  # a profile's name for the jobs that need this resource
TRIES = 3  # of a job that fetches a model, each of which asks the hub several times; then the run goes on without it
RETRIES = 0 if workflow.remote_exec else TRIES - 1  # a cluster's job leaves its next try to who submitted it, with more memory
GPUS = gpu_slots(SETTINGS.device)
GPU = min(GPUS, 1)  # resource `gpu` of a job that uses one where there is one
workflow.global_resources.setdefault("hub_slots", SETTINGS.hub_slots)
if workflow.global_resources["_cores"].value is not None:  # jobs run on this machine, and not on a cluster's
    workflow.global_resources.setdefault("gpu", GPUS)


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
    containers = [f"containers.{name}" for name in ("safetensors", "torch_zip", "torch_legacy", "gguf")]
    further = [row.adapter, "file:snapshot" if row.model in TRAINED else ""]
    sources = [source_module(uri) for uri in (row.uri, *filter(None, further))]
    own = [f"layouts.{layout_named(row.layout).file.stem}", *(name.removeprefix("qkgeom.") for name in sources)]
    return code_digest("verbs.extract", *containers, *own)


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


def corpus_resource(streamed, other):
    """A resource of `corpus`, which takes hours and the network for a streamed corpus."""
    return lambda wildcards: streamed if corpora.kind_of(wildcards.corpus) == "hub" else other


def training_jobs():
    """The runs in the table's order, so many in a job; whatever `only` says, so that a run's job is always the same."""
    names, size = list(RUNS), SETTINGS.training.get("runs_per_job", 1)
    return [names[first : first + size] for first in range(0, len(names), size)]


def train_inputs(names):
    return [f"{OUT}/corpora/{corpus}/corpus.json" for corpus in sorted({RUNS[name].corpus for name in names} - {""})]


def train_arguments(names):
    return shlex.join([*names, "--corpora", f"{OUT}/corpora", "--output", "results/runs"])


def train_plans(names):
    """All that these runs are told, so that a change of row or preset trains them again; the device is not part of it."""
    plans = [(PLANS[name], vars(PLANS[name].schedule) | {"device": ""}) for name in names]
    return [[plan.family.name, vars(plan.recipe), schedule, plan.corpus, plan.margin] for plan, schedule in plans]


def train_code(names):
    """Digest of the code of these runs: of their own families, not the others'."""
    return code_digest("verbs.train", *sorted(f"training.families.{RUNS[name].family}" for name in names))


def scoring_jobs():
    """Models trained here, those of one training job together: they are small, and starting PyTorch takes longer."""
    return [[model.model for name in names for model in RUNS[name].models(SETTINGS.preset)] for names in training_jobs()]


def weights_after_scoring(models):
    """Whether a scoring job keeps or drops weights; those that a figure shows stay, and those scored in one job with them."""
    shown = {example.model for example in SETTINGS.examples.values()}
    return "keep" if SETTINGS.keep_weights or shown & set(models) else "drop"


def score_downloads(wildcards):
    """1 where weights were dropped, so that scoring fetches them again."""
    manifest = Path(f"results/models/{wildcards.model}/manifest.json")
    return int(manifest.exists() and not any(manifest.parent.glob("*.safetensors")))


def score_columns():
    """What `score` computes besides the scores of whole layers."""
    return " ".join(f"--{name}" if getattr(SETTINGS, name) else f"--no-{name}" for name in ("heads", "structure"))


def score_code():
    return code_digest("verbs.score", "containers.safetensors")


def trained_runs():
    """The runs of this run's models, each once."""
    return list(dict.fromkeys(run_of(name) for name in MODELS if name in TRAINED))


def collect_runs():
    return [word for name in trained_runs() for word in ("--run", f"results/runs/{name}")]


def collect_rows(wildcards):
    """What the summary says of the models, so that an edited row is collected again."""
    return [[model.model, model.label, model.group, model.role, model.n_params, model.same_as] for model in MODELS.values()]


def drawn(spec):
    """Whether a figure or table has something to show in this run."""
    examples = EXAMPLES and EXAMPLES == SETTINGS.examples
    if ("examples" in spec.needs and not examples) or (spec.knob and not getattr(SETTINGS, spec.knob)):
        return False
    return any(model.group in spec.groups for model in MODELS.values())


def render_code(kind, name, spec):
    """Digest of the code that makes one figure or table, not the others'."""
    reads_weights = ["containers.safetensors"] if "examples" in spec.needs else []
    return code_digest(f"verbs.{kind}", f"{kind}s.{name}", *reads_weights)


def render_inputs(spec):
    """The files a figure or table needs or uses, by name."""
    inputs = {name: f"{OUT}/collected/{name}.csv" for name in COLLECTED if name in (*spec.needs, *spec.uses)}
    if "examples" in (*spec.needs, *spec.uses):
        inputs["examples"] = [f"results/models/{example.model}/manifest.json" for example in EXAMPLES.values()]
    return inputs


def render_arguments(spec):
    words = [word for name, path in render_inputs(spec).items() if name in COLLECTED for word in (f"--{name}", path)]
    if "examples" in (*spec.needs, *spec.uses):
        for role, example in EXAMPLES.items():
            words += ["--example", f"{role}=results/models/{example.model}:{example.layer}"]
    return shlex.join(words)


def figure_targets():
    return [f"{OUT}/figures/{name}.pdf" for name, spec in FIGURES.items() if drawn(spec)]


def table_targets():
    return [f"{OUT}/tables/{name}.csv" for name, spec in TABLES.items() if drawn(spec)]


def place_jobs():
    """Gives jobs that need a GPU or the network what a profile says of `gpu_jobs` and `network_jobs` in set-resources.

    The rules' own names would not do: a rule's jobs need a GPU or not by device and size, and there are many `train_<n>`.
    """
    settings = workflow.resource_settings.overwrite_resources
    for each, (place, need) in itertools.product(workflow.rules, PLACES.items()):
        for name, value in settings.get(place, {}).items():
            if name not in settings.get(each.name, {}):
                each.resources[name] = value_if_needed(each.resources.get(need), value, each.resources.get(name))


def value_if_needed(need, value, otherwise):
    """A resource that is `value` for jobs whose `need` is not 0; all three are Snakemake's Resource."""

    def choose(wildcards, **job):
        needed = need.evaluate(wildcards, **job).value
        return (value if needed else otherwise).evaluate(wildcards, **job).value

    return choose
