"""How large a training job is before it runs, from its row and preset; see `qkgeom.sizing`."""

from __future__ import annotations

from collections.abc import Mapping

from qkgeom.sizing import CUDA_CONTEXT, CUDA_HOST, PLAIN, START, TORCH, Need, Stack
from qkgeom.training.plans import Plan

TRAINER = 1200  # MiB of a process with torch and transformers' Trainer, measured
VOCABULARY = 2**15  # entries of a published tokenizer, before it is fetched; BERT's has 30,522
PER_LAYER = 12  # parameters of a layer over d_model^2: attention, and a feed-forward part four times as wide
CROSS = 4  # more of them where a decoder attends to an encoder
STATE = 16  # bytes of a parameter with its gradient and AdamW's two moments, in float32
SAVED = 12  # of them in a saved state
STATES = 3  # saved at a time: two are kept, and one is being written
ACTIVATIONS, GPU_ACTIVATIONS = 80, 40  # bytes of a token, layer and unit of width: in float32; in half precision
LOGITS, GPU_LOGITS = 20, 14  # bytes of a token and entry of the vocabulary, with gradient and softmax

# a second: of a CPU core in float32 (measured), and of a GPU in bfloat16 (nominal: a third of an A100's)
FLOPS, GPU_FLOPS = 1e11, 1e14
TOKENS = 2.5e5  # a second that one thread tokenises, measured
STEP = 0.01  # seconds of a step or held-out batch besides its operations
RATES = f"training at {FLOPS / 1e9:.0f} GFLOP/s of a CPU core (measured) and {GPU_FLOPS / 1e12:.0f} TFLOP/s of a GPU (nominal)"


def stack(plan: Plan) -> Stack:
    """The query and key weights of one of a run's models, in all its snapshots."""
    recipe, count = plan.recipe, len(plan.schedule.snapshots)
    layer = 2 * recipe.d_model**2
    reader = TORCH if plan.family.name == "whisper" else PLAIN  # which keeps torch's own format
    numbers = layer * recipe.n_layer
    return Stack(recipe.d_model, recipe.n_layer, recipe.n_head, numbers, layer, count, 4, 0, 4 * layer, False, reader)


def vocabulary(plan: Plan, corpora: Mapping[str, object]) -> int:
    """Entries of a run's vocabulary.

    Args:
        plan: of the run.
        corpora: what the preset says of them.
    """
    return int(corpora.get("vocab_size", VOCABULARY)) if plan.corpus else 0


def parameters(plan: Plan, n_vocabulary: int) -> float:
    """Of the model: its layers, and its embeddings once (they are tied, or small)."""
    recipe, towers = plan.recipe, len(plan.family.layouts)
    of_layers = recipe.n_layer * (towers * PER_LAYER + (towers - 1) * CROSS) * recipe.d_model**2
    return of_layers + (n_vocabulary + recipe.length) * recipe.d_model


def training(plan: Plan, corpora: Mapping[str, object], *, threads: int, gpu: bool, processes: int = 1, nodes: int = 1) -> Need:
    """A run: its parameters with the optimiser's state, a micro-step's activations, and the corpus as far as it is read.

    Args:
        plan: of the run.
        corpora: what the preset says of them.
        threads: of the CPU.
        gpu: whether it is trained on a GPU.
        processes: that train it together, each with its share of the batch.
        nodes: that they are spread over; memory and GPU memory are of one node and one GPU.
    """
    recipe, schedule, n_vocabulary = plan.recipe, plan.schedule, vocabulary(plan, corpora)
    n_params, towers = parameters(plan, n_vocabulary), len(plan.family.layouts)
    tokens = schedule.batch * recipe.length
    units = tokens * towers * recipe.n_layer * recipe.d_model
    on_cpu = STATE * n_params + ACTIVATIONS * units + LOGITS * tokens * n_vocabulary
    on_gpu = STATE * n_params + GPU_ACTIVATIONS * units + GPU_LOGITS * tokens * n_vocabulary
    corpus = corpus_bytes(plan, corpora)  # mapped into memory: what is read of it may stay
    read = min(corpus, 2 * tokens * schedule.accumulation * schedule.steps)
    memory = (TRAINER + (read + (SAVED * n_params if gpu else on_cpu)) / 2**20 + gpu * CUDA_HOST) * processes / nodes
    micro_steps, heldout = schedule.steps * schedule.accumulation, len(schedule.snapshots) * schedule.heldout_batches
    work = tokens * n_params * (6 * micro_steps + 2 * heldout)
    seconds = START + work / (GPU_FLOPS * processes if gpu else FLOPS * threads) + STEP * (micro_steps + heldout)
    return Need(memory, seconds, kept_bytes(plan, n_params), gpu * (CUDA_CONTEXT + on_gpu / 2**20))


def kept_bytes(plan: Plan, n_params: float) -> float:
    """What a finished run leaves: snapshots of query and key weights, and the last whole."""
    recipe, towers = plan.recipe, len(plan.family.layouts)
    return 4 * (len(plan.schedule.snapshots) * towers * recipe.n_layer * 2 * recipe.d_model**2 + n_params)


def state_bytes(plan: Plan, corpora: Mapping[str, object]) -> float:
    """What a run holds besides while it is trained: states to go on from."""
    return STATES * SAVED * parameters(plan, vocabulary(plan, corpora))


def corpus_bytes(plan: Plan, corpora: Mapping[str, object]) -> float:
    """The training tokens of its corpus at most, in two bytes each; held-out ones are few beside them."""
    return 2 * int(corpora["longest"]) if plan.corpus else 0


def corpus(corpora: Mapping[str, object], streamed: bool) -> Need:
    """Tokenising a corpus, whose texts are streamed through memory or lie in the environment."""
    longest = int(corpora["longest"])
    return Need(1000 if streamed else 300, START + longest / TOKENS, 2 * longest)
