"""Swin and SwinV2 of transformers: separate Linear weights, in stages of growing width.

A tensor's name has two numbers, the stage's and the block's; layers are numbered through the stages. SwinV2 normalises
each query and key (cosine attention) and its key has no bias. Both names of the modules are read: transformers 5 has
`attention.q_proj` for Swin, published files and `save_pretrained` `attention.self.query`.

Source: transformers/models/{swin,swinv2}/modeling_*.py (`dim=int(config.embed_dim * 2**i_layer)`), conversion_mapping.py.
"""

from itertools import islice

from qkgeom.errors import ModelFault
from qkgeom.layouts.base import AttentionShape, Case, Layout, SeparateLinear, field

_TINY = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1, 3], "num_heads": [2, 4, 2], "window_size": 4}


class Staged(Layout):
    """A stack in stages: stage s has depths[s] layers of width embed_dim * 2^s and num_heads[s] heads."""

    needs_config = True
    position = "relative"

    def n_layer(self, config):
        return sum(depth for depth, _ in self._stages(config))

    def numbers(self, config):
        return ((stage, block) for stage, (depth, _) in enumerate(self._stages(config)) for block in range(depth))

    def shape(self, config, layer):
        stage, _ = next(islice(self.numbers(config), layer, None))
        d_model, (_, n_head) = field(self.sizes(config), "embed_dim") * 2**stage, self._stages(config)[stage]
        return AttentionShape.multi_head(d_model, n_head)

    def _stages(self, config) -> list[tuple[int, int]]:
        """Depth and number of heads of each stage."""
        stated = {name: self.sizes(config).get(name) for name in ("depths", "num_heads")}
        depths, heads = (each if isinstance(each, list | tuple) else () for each in stated.values())
        if not depths or len(depths) != len(heads) or not all(isinstance(n, int) and n > 0 for n in (*depths, *heads)):
            raise ModelFault(
                "the config does not state the stages",
                found=stated,
                expected="depths and num_heads, a positive whole number each per stage",
                fix="correct config.json",
            )
        return list(zip(depths, heads, strict=True))


class Swin(Staged, SeparateLinear):
    """Swin and SwinV2."""

    name = "swin"
    model_types = ("swin", "swinv2")
    tensors = {
        "q": r"encoder\.layers\.{S}\.blocks\.{N}\.attention\.(?:self\.)?(?:query|q_proj)\.weight",
        "k": r"encoder\.layers\.{S}\.blocks\.{N}\.attention\.(?:self\.)?(?:key|k_proj)\.weight",
    }
    cases = tuple(
        Case(model, _TINY, inputs="pixels")
        for model in ("SwinModel", "SwinForImageClassification", "Swinv2Model", "Swinv2ForImageClassification")
    )
