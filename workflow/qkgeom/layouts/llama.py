"""LLaMA, Mistral, Mixtral: separate Linear weights, fewer key heads than query heads (grouped queries), RoPE.

Source: transformers/models/{llama,mistral,mixtral}/modeling_*.py (`repeat_kv`: query head h reads key head
h // (n_head / n_kv_head)). GGUF names: the gguf package, `constants.TENSOR_NAMES`.
"""

from qkgeom.layouts.base import LANGUAGE_PREFIX, Case, SeparateLinear


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
    """LLaMA 2 and 3, SmolLM2, Mistral and Mixtral."""

    name = "llama"
    model_types = ("llama", "mistral", "mixtral")
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
    )
