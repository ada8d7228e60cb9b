"""MusicGen: its text encoder is a T5; its decoder, on audio tokens, is named as BART's.

Separate Linear weights without bias. The decoder's `encoder_attn` reads the text and does not match. The audio encoder
has no attention.

Source: transformers/models/musicgen/modeling_musicgen.py.
"""

from qkgeom.layouts.base import Case, SeparateLinear
from qkgeom.layouts.t5 import T5Encoder

_TINY = {
    "text_encoder": {
        "model_type": "t5",
        "d_model": 32,
        "num_heads": 4,
        "d_kv": 16,
        "d_ff": 32,
        "num_layers": 3,
        "vocab_size": 50,
    },
    "audio_encoder": {
        "model_type": "encodec",
        "num_filters": 4,
        "hidden_size": 8,
        "codebook_size": 16,
        "codebook_dim": 8,
        "upsampling_ratios": [2, 2],
        "num_lstm_layers": 1,
    },
    "decoder": {
        "model_type": "musicgen_decoder",
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "ffn_dim": 32,
        "vocab_size": 16,
        "num_codebooks": 2,
        "pad_token_id": 15,
        "bos_token_id": 15,
    },
}
_CASES = (Case("MusicgenForConditionalGeneration", _TINY, inputs="music"),)


class MusicgenEncoder(T5Encoder):
    """The text encoder, a published T5 that was not trained further."""

    name = "musicgen_encoder"
    model_types = ("musicgen",)
    section = "text_encoder"
    tensors = {role: r"text_encoder\." + pattern for role, pattern in T5Encoder.tensors.items()}
    cases = _CASES


class MusicgenDecoder(SeparateLinear):
    """The decoder's self-attention."""

    name = "musicgen_decoder"
    model_types = ("musicgen",)
    part = "decoder"
    section = "decoder"
    position = "sinusoidal"
    tensors = {
        "q": r"model\.decoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"model\.decoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES
