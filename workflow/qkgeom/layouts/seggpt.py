"""SegGPT: one Linear weight with rows [Q; K; V].

Source: transformers/models/seggpt/modeling_seggpt.py, `SegGptAttention`
(`reshape(batch_size, height * width, 3, heads, -1)`).
"""

from qkgeom.layouts.base import Case, FusedRows

_TINY = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "mlp_dim": 32,
    "image_size": [16, 8],
    "patch_size": 4,
    "pretrain_image_size": 8,
    "decoder_hidden_size": 8,
    "intermediate_hidden_state_indices": [0, 1, 2],
    "merge_index": 0,
}


class SegGpt(FusedRows):
    """SegGPT's encoder; its decoder has no attention."""

    name = "seggpt"
    model_types = ("seggpt",)
    tensors = {"qkv": r"encoder\.layers\.{N}\.attention\.qkv\.weight"}
    cases = tuple(Case(model, _TINY, inputs="image_pair") for model in ("SegGptModel", "SegGptForImageSegmentation"))

    def position_in(self, config):
        return "relative" if config.get("use_relative_position_embeddings", True) else self.position
