"""T5, trained to restore spans of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Data, Family, Recipe
from qkgeom.training.spans import END, START, Spans, span_counts
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration


class T5(Family):
    """transformers' T5ForConditionalGeneration."""

    name = "t5"
    layouts = ("t5_encoder", "t5_decoder")
    projections = (".SelfAttention.q", ".SelfAttention.k")
    objectives = ("denoising",)
    reads_corpus = True

    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """Texts with spans taken out."""
        return Spans(corpus, recipe.length, recipe.seed)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> T5ForConditionalGeneration:
        # Two towers of `n_layer` layers, without dropout; a sentinel for each span follows the corpus's vocabulary.
        from transformers import T5Config, T5ForConditionalGeneration

        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=corpus.vocab_size + span_counts(recipe.length)[1],  # a sentinel for each span
                d_model=recipe.d_model,
                d_kv=recipe.d_model // recipe.n_head,
                dropout_rate=0.0,
                d_ff=4 * recipe.d_model,
                num_layers=recipe.n_layer,
                num_heads=recipe.n_head,
                pad_token_id=corpus.special[START],
                decoder_start_token_id=corpus.special[START],
                eos_token_id=corpus.special[END],
                use_cache=False,
            )
        )
