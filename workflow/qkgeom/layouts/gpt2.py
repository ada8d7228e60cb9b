"""GPT-1 and GPT-2: one Conv1D weight, already [in, out], with columns [Q | K | V].

`attn.bias` of old checkpoints is the causal mask, not a weight. Source: transformers/models/{gpt2,openai}/modeling_*.py.
"""

from qkgeom.layouts.base import Case, FusedConv1D

_TINY = {"n_embd": 24, "n_head": 3, "n_layer": 3, "vocab_size": 50, "n_positions": 32}


class Gpt2(FusedConv1D):
    """GPT-2, distilGPT-2 and GPT-1."""

    name = "gpt2"
    model_types = ("gpt2", "openai-gpt")
    tensors = {"qkv": r"h\.{N}\.attn\.c_attn\.weight"}
    cases = tuple(
        Case(model, dict(_TINY)) for model in ("GPT2Model", "GPT2LMHeadModel", "OpenAIGPTModel", "OpenAIGPTLMHeadModel")
    )
