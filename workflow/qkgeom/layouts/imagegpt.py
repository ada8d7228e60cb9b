"""ImageGPT: GPT-2's Conv1D weight and names, on colour clusters.

Source: transformers/models/imagegpt/modeling_imagegpt.py, `ImageGPTAttention`.
"""

from qkgeom.layouts.base import Case
from qkgeom.layouts.gpt2 import Gpt2

_TINY = {"n_embd": 24, "n_head": 3, "n_layer": 3, "vocab_size": 20, "n_positions": 16}


class ImageGpt(Gpt2):
    """ImageGPT, the only causal one of the vision models."""

    name = "imagegpt"
    model_types = ("imagegpt",)
    cases = tuple(Case(model, _TINY) for model in ("ImageGPTModel", "ImageGPTForCausalImageModeling"))
