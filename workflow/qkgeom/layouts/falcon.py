"""Falcon: one Linear weight whose rows are, key head by key head, the queries that read it, then its k and v.

How many key heads there are depends on flags of the config, and the tensor's name is BLOOM's:

- 40B, 180B (`new_decoder_architecture`): `num_kv_heads`;
- 7B (`multi_query`, the default): one;
- RW-1B, RW-7B (`multi_query` false): one for each query head.

Configs older than the class in transformers call the model RefinedWeb (40B) or RefinedWebModel, its heads `n_head` and
`n_head_kv`, and only 40B's has the latter.

Source: transformers/models/falcon/modeling_falcon.py, `FalconAttention._split_heads`.
"""

from qkgeom.layouts.base import AttentionShape, Case, FusedPerHead

_TINY = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 3, "ffn_hidden_size": 32, "vocab_size": 50}
_NEW = {**_TINY, "new_decoder_architecture": True, "num_kv_heads": 2}
_RW = {**_TINY, "multi_query": False, "alibi": True}


class Falcon(FusedPerHead):
    """Falcon, all three ways; Falcon3 is a LLaMA."""

    name = "falcon"
    model_types = ("falcon", "RefinedWeb", "RefinedWebModel")
    tensors = {"qkv": r"h\.{N}\.self_attention\.query_key_value\.weight"}
    cases = (
        Case("FalconModel", _TINY),
        Case("FalconForCausalLM", {**_TINY, "multi_query": True, "num_kv_heads": 6}),
        Case("FalconModel", _NEW),
        Case("FalconForCausalLM", _NEW),
        Case("FalconModel", {**_RW, "alibi": False}),
        Case("FalconForCausalLM", _RW),
    )

    def shape(self, config, layer):
        shape = super().shape(config, layer)
        return AttentionShape(shape.d_model, shape.n_head, self._n_kv_head(config, shape.n_head), shape.d_head)

    def _n_kv_head(self, config, n_head: int) -> int:
        if config.get("new_decoder_architecture", "n_head_kv" in config):
            return config.get("num_kv_heads") or config.get("n_head_kv") or n_head
        return 1 if config.get("multi_query", True) else n_head

    def position_in(self, config):
        return "alibi" if config.get("alibi") else "rope"
