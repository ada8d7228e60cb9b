"""The theory's controls: BERT-shaped models as the custom ones, with objectives that could prove the theory wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qkgeom.training.controls import Controlled, Swapped
from qkgeom.training.families.base import Data, Family, Recipe
from qkgeom.training.families.bert import bert_config
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    import torch
    from transformers import BertForMaskedLM

SWAP_AFTER = 16_000  # examples; the middle of 500 steps of 64
SHUFFLED, THEN, WHITE = " shuffled", " then ", " white"


class Control(Family):
    """transformers' BertForMaskedLM, whose batches say in which direction it sees.

    `shuffled`: tokens in random order within each sequence. `a then b`: another objective from the middle of training on.
    `white`: word embeddings are made white at the start (all directions alike) and held there.
    """

    name = "control"
    layouts = ("bert",)
    projections = (".self.query", ".self.key")
    objectives = (
        *("masked", "autoregressive", "prefix", "masked shuffled", "autoregressive shuffled"),
        *("masked then autoregressive", "autoregressive then masked", "autoregressive white"),
    )
    reads_corpus = True
    has_dropout = True

    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """Packed sequences with the masks and labels of the objective."""
        objective = recipe.objective.removesuffix(SHUFFLED).removesuffix(WHITE)
        shuffled = recipe.objective.endswith(SHUFFLED)
        parts = [Controlled(corpus, recipe.length, recipe.seed, each, shuffled) for each in objective.split(THEN)]
        return parts[0] if len(parts) == 1 else Swapped(*parts, SWAP_AFTER)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> BertForMaskedLM:
        from transformers import BertForMaskedLM

        model = BertForMaskedLM(bert_config(replace(recipe, objective="masked"), corpus))
        if recipe.objective.endswith(WHITE):
            embeddings = model.bert.embeddings.word_embeddings.weight
            embeddings.data.copy_(whitened(embeddings.data))
            embeddings.requires_grad_(False)  # the output layer shares them
        return model


def whitened(rows: torch.Tensor) -> torch.Tensor:
    """Rows [n, d], n > d, with mean 0 and the same variance in every direction; the total variance stays."""
    import torch

    centred = rows - rows.mean(0)
    U, sizes, Vt = torch.linalg.svd(centred, full_matrices=False)
    return (U @ Vt) * (sizes.square().mean().sqrt())
