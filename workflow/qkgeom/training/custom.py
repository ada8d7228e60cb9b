"""The paper's custom models: BERT-shaped, trained bidirectionally (masked) or autoregressively (causal mask)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkgeom.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OBJECTIVES = ("masked", "autoregressive")
INITS = ("default", "symmetric")


@dataclass(frozen=True)
class Recipe:
    """What makes one custom model before it is trained.

    Attributes:
        objective: `masked` with bidirectional attention, or `autoregressive` with a causal mask.
        init: `default`, or `symmetric`: W_q = W_k in every layer, so that symmetry is 1 (paper, section 5).
        n_layer: depth.
        d_model: width; the feed-forward layers are four times as wide, as in BERT.
        n_head: heads.
        length: longest sequence.
        seed: of the initialisation, the order of the examples, and the masks.

    Raises:
        UsageError: there is no such model.
    """

    objective: str
    init: str
    n_layer: int
    d_model: int
    n_head: int
    length: int
    seed: int

    def __post_init__(self) -> None:
        for name, known in (("objective", OBJECTIVES), ("init", INITS)):
            if getattr(self, name) not in known:
                raise UsageError(f"there is no such {name}", found=getattr(self, name), expected=" or ".join(known))
        if self.d_model % self.n_head:
            raise UsageError(
                "the heads do not divide the width",
                found=f"n_head {self.n_head}",
                expected=f"a divisor of d_model {self.d_model}",
            )

    @property
    def masked(self) -> bool:
        """Whether the objective is masked, else autoregressive."""
        return self.objective == "masked"


def build(recipe: Recipe, vocab_size: int) -> PreTrainedModel:
    """A BERT with random weights."""
    from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel, set_seed

    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=recipe.d_model,
        num_hidden_layers=recipe.n_layer,
        num_attention_heads=recipe.n_head,
        intermediate_size=4 * recipe.d_model,
        max_position_embeddings=recipe.length,
        is_decoder=not recipe.masked,
        use_cache=False,
    )
    set_seed(recipe.seed)
    model = (BertForMaskedLM if recipe.masked else BertLMHeadModel)(config)
    if recipe.init == "symmetric":
        for layer in model.bert.encoder.layer:
            attention = layer.attention.self
            attention.query.weight.data.copy_(attention.key.weight.data)
    return model


def is_query_or_key(name: str) -> bool:
    """Whether a tensor is a query or key weight, or its bias, which the manifest reports: all that a snapshot needs."""
    return ".self.query." in name or ".self.key." in name
