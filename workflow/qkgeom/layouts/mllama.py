"""Llama 3.2 Vision: two stacks of an image encoder, neither causal, and the text model. Separate Linear weights.

The image encoder has local layers and, above them, gated global ones. Some of the text model's layers have
cross-attention to the image instead of self-attention (`cross_attention_layers`); they have another name, and the
self-attention layers' numbers skip theirs.

Source: transformers/models/mllama/modeling_mllama.py, configuration_mllama.py (published names) and
conversion_mapping.py (those of transformers 5 in memory).
"""

from qkgeom.errors import ModelFault
from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field

_TINY = {
    "vision_config": {
        "hidden_size": 20,
        "attention_heads": 2,
        "num_hidden_layers": 3,
        "num_global_layers": 2,
        "intermediate_size": 32,
        "image_size": 16,
        "patch_size": 4,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 40,
        "supported_aspect_ratios": [[1, 1]],
        "max_num_tiles": 1,
    },
    "text_config": {
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 6,
        "cross_attention_layers": [1, 3],
        "intermediate_size": 32,
        "vocab_size": 50,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
_CASES = (Case("MllamaForConditionalGeneration", _TINY, inputs="tiles_and_text"),)


class _MllamaVision(SeparateLinear):
    model_types = ("mllama",)
    section = "vision_config"
    cases = _CASES

    def shape(self, config, layer):
        sizes = self.sizes(config)
        d_model, n_head = field(sizes, "hidden_size"), field(sizes, "attention_heads", "num_attention_heads")
        return AttentionShape.multi_head(d_model, n_head)


class MllamaVision(_MllamaVision):
    """The image encoder's local layers."""

    name = "mllama_vision"
    part = "vision"
    tensors = {
        "q": r"vision_model\.transformer\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"vision_model\.transformer\.layers\.{N}\.self_attn\.k_proj\.weight",
    }


class MllamaVisionGlobal(_MllamaVision):
    """The image encoder's global layers."""

    name = "mllama_vision_global"
    part = "vision_global"
    tensors = {
        "q": r"vision_model\.global_transformer\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"vision_model\.global_transformer\.layers\.{N}\.self_attn\.k_proj\.weight",
    }

    def n_layer(self, config):
        return field(self.sizes(config), "num_global_layers")


class MllamaText(SeparateLinear):
    """The text model's self-attention layers."""

    name = "mllama_text"
    model_types = ("mllama",)
    part = "text"
    section = "text_config"
    needs_config = True
    position = "rope"
    tensors = {
        "q": r"language_model\.(?:model\.)?layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"language_model\.(?:model\.)?layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES

    def n_layer(self, config):
        return super().n_layer(config) - len(self._crossed(config))

    def numbers(self, config):
        crossed = self._crossed(config)
        return ((layer,) for layer in range(super().n_layer(config)) if layer not in crossed)

    def _crossed(self, config) -> set[int]:
        stated = self.sizes(config).get("cross_attention_layers")
        if not isinstance(stated, list | tuple):
            raise ModelFault(
                "the config does not state cross_attention_layers",
                found=stated,
                expected="the numbers of the text layers that have no self-attention",
                fix="correct config.json",
            )
        return set(stated)
