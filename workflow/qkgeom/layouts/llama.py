"""LLaMA and all that is stored like it: separate Linear weights, grouped queries (fewer key heads), RoPE.

The head of Qwen3 and Gemma 2 is not d_model / n_head, so their configs have to state it. MobileLLM's checkpoints bring
their own code, a copy of LLaMA's (tests/remote_models.py). For Gemma 3 see gemma3.py.

Source: transformers/models/{llama,mistral,mixtral,smollm3,phi,eurobert,qwen2,qwen3,gemma2,olmo2}/modeling_*.py
(`repeat_kv`: query head h reads key head h // (n_head / n_kv_head)). GGUF names: the gguf package,
`constants.TENSOR_NAMES`.
"""

from qkgeom.layouts.base import LANGUAGE_PREFIX, Case, SeparateLinear, field

_HEAD_DIM_STATED = ("qwen3", "gemma2")


def _tiny(n_head: int, n_kv_head: int, d_model: int = 24, **more: object) -> dict[str, object]:
    return {
        "hidden_size": d_model,
        "num_attention_heads": n_head,
        "num_key_value_heads": n_kv_head,
        "num_hidden_layers": 3,
        "intermediate_size": 32,
        "vocab_size": 50,
        **more,
    }


class Llama(SeparateLinear):
    """LLaMA 2 and 3, SmolLM2, Falcon3, Mistral, Mixtral, and those of the same names and shapes."""

    name = "llama"
    model_types = (
        "llama",
        "mistral",
        "mixtral",
        "mobilellm",
        "phi",
        "eurobert",
        "qwen2",
        "qwen3",
        "gemma2",
        "olmo2",
        "smollm3",
    )
    prefix = LANGUAGE_PREFIX
    position = "rope"
    tensors = {
        "q": r"layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"layers\.{N}\.self_attn\.k_proj\.weight",
    }
    gguf = {"q": r"blk\.{N}\.attn_q\.weight", "k": r"blk\.{N}\.attn_k\.weight"}
    cases = (
        Case("LlamaModel", _tiny(6, 6)),
        Case("LlamaForCausalLM", _tiny(6, 2)),
        Case("LlamaForCausalLM", _tiny(9, 3, d_model=36)),  # SmolLM2-135M's heads
        Case("LlamaForCausalLM", _tiny(6, 1)),
        Case("LlamaForCausalLM", _tiny(4, 2, head_dim=10)),
        Case("MistralForCausalLM", _tiny(6, 2, sliding_window=8)),
        Case("MixtralForCausalLM", _tiny(6, 2, num_local_experts=2)),
        Case("MobileLLMForCausalLM", _tiny(9, 3, d_model=36), "remote"),  # the 125M model's heads
        Case("PhiModel", _tiny(6, 6)),
        Case("PhiForCausalLM", _tiny(6, 6, qk_layernorm=True)),
        Case("EuroBertModel", _tiny(6, 2, pad_token_id=0)),
        Case("EuroBertForMaskedLM", _tiny(4, 4, head_dim=10, pad_token_id=0)),
        Case("Qwen2ForCausalLM", _tiny(6, 2)),
        Case("Qwen3ForCausalLM", _tiny(6, 2, head_dim=16)),
        Case("Gemma2ForCausalLM", _tiny(4, 2, head_dim=16)),
        Case("Olmo2ForCausalLM", _tiny(6, 6)),
        Case("Olmo2Model", _tiny(6, 2)),
        Case("SmolLM3ForCausalLM", _tiny(6, 2, pad_token_id=0)),
    )

    def shape(self, config, layer):
        if config.get("model_type") in _HEAD_DIM_STATED:
            field(config, "head_dim")
        return super().shape(config, layer)
