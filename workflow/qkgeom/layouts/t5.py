"""T5, its version 1.1, FLAN-T5 and mT5: separate Linear weights without bias; n_head * d_kv need not be d_model.

Scores are not scaled, and relative positions are added to them. The decoder's `EncDecAttention` does not match.

Source: transformers/models/{t5,mt5}/modeling_*.py, `T5Attention`; an absent `num_decoder_layers` means `num_layers`
(configuration_t5.py).
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field

_TINY = {"d_model": 32, "num_heads": 4, "d_kv": 16, "d_ff": 32, "num_layers": 3, "num_decoder_layers": 2, "vocab_size": 50}
_GATED = {  # version 1.1's shapes: an inner dimension below d_model
    **_TINY,
    "num_heads": 3,
    "d_kv": 8,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
_CASES = (
    Case("T5Model", _TINY, inputs="seq2seq"),
    Case("T5ForConditionalGeneration", _TINY, inputs="seq2seq"),
    Case("T5ForConditionalGeneration", _GATED, inputs="seq2seq"),
    Case("MT5ForConditionalGeneration", _GATED, inputs="seq2seq"),
)


class _T5(SeparateLinear):
    model_types = ("t5", "mt5")
    position = "relative"

    def shape(self, config, layer):
        sizes = self.sizes(config)
        n_head = field(sizes, "num_heads")
        return AttentionShape(field(sizes, "d_model"), n_head, n_head, field(sizes, "d_kv"))


class T5Encoder(_T5):
    """The encoder; also alone, as in `T5EncoderModel`."""

    name = "t5_encoder"
    part = "encoder"
    tensors = {
        "q": r"encoder\.block\.{N}\.layer\.0\.SelfAttention\.q\.weight",
        "k": r"encoder\.block\.{N}\.layer\.0\.SelfAttention\.k\.weight",
    }
    cases = (*_CASES, Case("T5EncoderModel", _TINY, inputs="seq2seq"))

    def n_layer(self, config):
        return field(self.sizes(config), "num_layers")


class T5Decoder(_T5):
    """The decoder's self-attention."""

    name = "t5_decoder"
    part = "decoder"
    tensors = {
        "q": r"decoder\.block\.{N}\.layer\.0\.SelfAttention\.q\.weight",
        "k": r"decoder\.block\.{N}\.layer\.0\.SelfAttention\.k\.weight",
    }
    cases = _CASES

    def n_layer(self, config):
        return field(self.sizes(config), "num_decoder_layers", "num_layers")
