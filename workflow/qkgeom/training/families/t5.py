"""T5, trained to restore spans of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Data, Family, Sizes
from qkgeom.training.spans import END, START, Spans, span_counts
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration


class T5(Family):
    """transformers' T5ForConditionalGeneration."""

    name = "t5"
    layouts = ("t5_encoder", "t5_decoder")
    projections = (".SelfAttention.q", ".SelfAttention.k")
    reads_corpus = True

    def data(self, seed: int, sizes: Sizes, corpus: Corpus | None = None) -> Data:
        """Texts with spans taken out."""
        return Spans(corpus, sizes.length, seed)

    def build(self, seed: int, sizes: Sizes) -> T5ForConditionalGeneration:
        """Two towers of `n_layer` layers, without dropout; a sentinel for each span follows the corpus's vocabulary."""
        from transformers import T5Config, T5ForConditionalGeneration, set_seed

        set_seed(seed)
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=sizes.vocab_size + span_counts(sizes.length)[1],  # a sentinel for each span
                d_model=sizes.d_model,
                d_kv=sizes.d_model // sizes.n_head,
                dropout_rate=0.0,
                d_ff=4 * sizes.d_model,
                num_layers=sizes.n_layer,
                num_heads=sizes.n_head,
                pad_token_id=START,
                decoder_start_token_id=START,
                eos_token_id=END,
                use_cache=False,
            )
        )
