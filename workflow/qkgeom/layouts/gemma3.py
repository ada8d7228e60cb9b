"""Gemma 3, stored like LLaMA: 1B alone, the larger ones inside a multimodal model.

That model's config nests the language model's, and leaves out what is the default of its class: the published 4B states
no head counts, 4B to 27B no `head_dim`.

Source: transformers/models/gemma3/{modeling,configuration}_gemma3.py.
"""

from qkgeom.layouts.base import Case
from qkgeom.layouts.llama import Llama

_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_TINY = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "intermediate_size": 32,
    "vocab_size": 50,
}
_VISION = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}


class Gemma3(Llama):
    """Gemma 3's language model; the image encoder's names have another prefix."""

    name = "gemma3"
    model_types = ("gemma3_text", "gemma3")
    cases = (
        Case("Gemma3TextModel", _TINY),
        Case("Gemma3ForCausalLM", {**_TINY, "num_key_value_heads": 1}),
        Case("Gemma3ForConditionalGeneration", {"text_config": _TINY, "vision_config": _VISION}),
    )

    def sizes(self, config):
        return _DEFAULTS | config.get("text_config", config)
