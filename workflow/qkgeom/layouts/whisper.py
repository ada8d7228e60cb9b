"""Whisper as openai-whisper stores it (`.pt`): separate Linear weights; the key has no bias.

The config is the file's own `dims` (containers/torch_zip.py). The decoder's `cross_attn` does not match. For Whisper in
transformers' names see bart.py.

Source: whisper/model.py, `ModelDimensions` and `MultiHeadAttention`.
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field

_TINY = {
    "n_mels": 5,
    "n_audio_ctx": 10,
    "n_audio_state": 24,
    "n_audio_head": 3,
    "n_audio_layer": 3,
    "n_vocab": 50,
    "n_text_ctx": 16,
    "n_text_state": 24,
    "n_text_head": 4,
    "n_text_layer": 2,
}
_CASES = (
    Case("Whisper", _TINY, "whisper", "audio"),
    Case("Whisper", {**_TINY, "n_audio_head": 2, "n_audio_layer": 2, "n_text_head": 2, "n_text_layer": 4}, "whisper", "audio"),
)


class _OpenaiWhisper(SeparateLinear):
    model_types = ("whisper_openai",)
    tower: str  # as the dims call it

    def n_layer(self, config):
        return field(config, f"n_{self.tower}_layer")

    def shape(self, config, layer):
        d_model, n_head = field(config, f"n_{self.tower}_state"), field(config, f"n_{self.tower}_head")
        return AttentionShape.multi_head(d_model, n_head)


class OpenaiWhisperEncoder(_OpenaiWhisper):
    """The audio encoder."""

    name = "whisper_openai_encoder"
    part = "encoder"
    tower = "audio"
    position = "sinusoidal"
    tensors = {
        "q": r"encoder\.blocks\.{N}\.attn\.query\.weight",
        "k": r"encoder\.blocks\.{N}\.attn\.key\.weight",
    }
    cases = _CASES


class OpenaiWhisperDecoder(_OpenaiWhisper):
    """The text decoder's self-attention."""

    name = "whisper_openai_decoder"
    part = "decoder"
    tower = "text"
    tensors = {
        "q": r"decoder\.blocks\.{N}\.attn\.query\.weight",
        "k": r"decoder\.blocks\.{N}\.attn\.key\.weight",
    }
    cases = _CASES
