"""Swin and SwinV2 of transformers: separate Linear weights, in stages of growing width.

A tensor's name has two numbers, the stage's and the block's; layers are numbered through the stages. SwinV2 normalises
each query and key (cosine attention) and its key has no bias. Both names of the modules are read: transformers 5 has
`attention.q_proj` for Swin, published files and `save_pretrained` `attention.self.query`.

Source: transformers/models/{swin,swinv2}/modeling_*.py (`dim=int(config.embed_dim * 2**i_layer)`), conversion_mapping.py.
"""

from qkgeom.errors import ModelFault
from qkgeom.layouts.base import AttentionShape, Case, Layout, SeparateLinear, field

_TINY = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1, 3], "num_heads": [2, 4, 2], "window_size": 4}


class Staged(Layout):
    """A stack in stages: stage s has depths[s] layers of width embed_dim * 2^s and num_heads[s] heads."""

    needs_config = True
    position = "relative"

    def n_layer(self, config):
        return sum(self._by_stage(config, "depths"))

    def numbers(self, config):
        return ((stage, block) for stage, depth in enumerate(self._by_stage(config, "depths")) for block in range(depth))

    def shape(self, config, layer):
        stage, before = 0, layer  # `before`: how many layers of its stage come before it
        for depth in self._by_stage(config, "depths"):
            if before < depth:
                break
            stage, before = stage + 1, before - depth
        d_model = field(self.sizes(config), "embed_dim") * 2**stage
        n_head = self._by_stage(config, "num_heads")[stage]
        return AttentionShape(d_model, n_head, n_head, d_model // n_head)

    def _by_stage(self, config, name: str) -> list[int]:
        sizes = self.sizes(config)
        stated = [sizes.get(each) for each in ("depths", "num_heads")]
        if not all(isinstance(each, list | tuple) and all(isinstance(n, int) and n > 0 for n in each) for each in stated) or (
            len(stated[0]) != len(stated[1])
        ):
            raise ModelFault(
                "the config does not state the stages",
                found=f"depths {stated[0]}, num_heads {stated[1]}",
                expected="depths and num_heads, a positive whole number each per stage",
                fix="correct config.json",
            )
        return list(sizes[name])


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
