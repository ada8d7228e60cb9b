"""DeepSeek-V2, V3 and R1: latent attention (MLA), stored here in its absorbed form.

x goes down to small latents and up again to the heads: q = up_q(norm(down_q(x))), in V2-Lite one Linear weight, and
k = [up_k(norm(latent)); rotated], where latent and the rotated part, which all heads share, are the two parts of
down_kv(x). q . k is the same when up_k moves to the query's side; then all heads read one key head:

    W_q,h = [W_q,h^nope up_k,h gain_kv ; W_q,h^rope]        W_k = down_kv, [latent; rotated]

The norms' gains are absorbed; their division by the latent's size is no part of W_qk. Layers after the config's depth
predict tokens further on (`num_nextn_predict_layers`) and are left out.

Source: transformers/models/{deepseek_v2,deepseek_v3}/modeling_*.py, `DeepseekV3Attention.forward` and `expand_kv`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkgeom.layouts.base import LANGUAGE_PREFIX, AttentionShape, Case, Layout, Need, field

_TINY = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 3,
    "intermediate_size": 32,
    "vocab_size": 50,
    "q_lora_rank": 18,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}


@dataclass(frozen=True)
class LatentShape(AttentionShape):
    """The sizes of latent attention, the further ones by their names in the config; d_head is the absorbed key's."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class DeepSeek(Layout):
    """DeepSeek-V2, V2-Lite (no latent for the query), V3, R1."""

    name = "deepseek"
    model_types = ("deepseek_v2", "deepseek_v3")
    prefix = LANGUAGE_PREFIX
    position = "rope"
    tensors = {
        "q_a": r"layers\.{N}\.self_attn\.q_a_proj\.weight",
        "q_a_norm": r"layers\.{N}\.self_attn\.q_a_layernorm\.weight",
        "q_b": r"layers\.{N}\.self_attn\.(?:q_b_proj|q_proj)\.weight",
        "kv_a": r"layers\.{N}\.self_attn\.kv_a_proj_with_mqa\.weight",
        "kv_a_norm": r"layers\.{N}\.self_attn\.kv_a_layernorm\.weight",
        "kv_b": r"layers\.{N}\.self_attn\.kv_b_proj\.weight",
    }
    optional = ("q_a", "q_a_norm")
    computed = True
    cases = (
        Case("DeepseekV2ForCausalLM", _TINY),
        Case("DeepseekV2ForCausalLM", {**_TINY, "q_lora_rank": None}),
        Case("DeepseekV3ForCausalLM", _TINY),
    )

    def n_surplus(self, config):
        return field(config, "num_nextn_predict_layers") if config.get("num_nextn_predict_layers") else 0

    def shape(self, config, layer):
        rank, rope = field(config, "kv_lora_rank"), field(config, "qk_rope_head_dim")
        return LatentShape(
            d_model=field(config, "hidden_size"),
            n_head=field(config, "num_attention_heads"),
            n_kv_head=1,
            d_head=rank + rope,
            q_lora_rank=field(config, "q_lora_rank") if config.get("q_lora_rank") else None,
            kv_lora_rank=rank,
            qk_nope_head_dim=field(config, "qk_nope_head_dim"),
            qk_rope_head_dim=rope,
            v_head_dim=field(config, "v_head_dim"),
        )

    def infer(self, shapes, n_head, n_kv_head):
        d_head, d_model = shapes["kv_a"]
        rows, rank = shapes["kv_b"]
        rope = d_head - rank
        nope = shapes["q_b"][0] // n_head - rope
        q_lora_rank = shapes["q_a"][0] if "q_a" in shapes else None
        return LatentShape(d_model, n_head, 1, d_head, q_lora_rank, rank, nope, rope, rows // n_head - nope)

    def needs(self, shape):
        d_query = shape.qk_nope_head_dim + shape.qk_rope_head_dim
        d_up = shape.qk_nope_head_dim + shape.v_head_dim
        needs = {
            "q_b": Need("q_b", (shape.n_head * d_query, shape.q_lora_rank or shape.d_model)),
            "kv_a": Need("kv_a", (shape.d_head, shape.d_model)),
            "kv_a_norm": Need("kv_a_norm", (shape.kv_lora_rank,)),
            "kv_b": Need("kv_b", (shape.n_head * d_up, shape.kv_lora_rank)),
        }
        if shape.q_lora_rank:
            needs["q_a"] = Need("q_a", (shape.q_lora_rank, shape.d_model))
            needs["q_a_norm"] = Need("q_a_norm", (shape.q_lora_rank,))
        return needs

    def split(self, arrays, shape):
        weights = {key: array.astype(np.float32, copy=False) for key, array in arrays.items()}
        query = weights["q_b"]
        if shape.q_lora_rank:
            query = (query * weights["q_a_norm"]) @ weights["q_a"]
        query = query.reshape(shape.n_head, -1, shape.d_model)  # [head, (nope, rope), d_model]
        up = weights["kv_b"].reshape(shape.n_head, -1, shape.kv_lora_rank)  # [head, (nope, v), latent]
        nope = shape.qk_nope_head_dim
        latent = (up[:, :nope] * weights["kv_a_norm"]).mT @ query[:, :nope]  # [head, latent, d_model]
        W_q = np.concatenate([latent, query[:, nope:]], axis=1)
        return W_q.transpose(2, 0, 1), weights["kv_a"].T[:, None]
