"""BART and what is built like it, mBART, Speech2Text and transformers' Whisper: separate Linear weights.

Each tower states its own depth and heads (`num_hidden_layers` is the encoder's). The decoder's `encoder_attn` does not
match. Whisper's key has no bias.

Source: transformers/models/{bart,mbart,whisper,speech_to_text}/modeling_*.py.
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field

_TINY = {
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 50,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_WHISPER = {**_TINY, **_TOKENS, "num_mel_bins": 5, "max_source_positions": 10, "max_target_positions": 16}
_SPEECH2TEXT = {**_TINY, "input_feat_per_channel": 5, "conv_channels": 8}
_CASES = (
    Case("BartModel", _TINY, inputs="seq2seq"),
    Case("BartForConditionalGeneration", {**_TINY, "encoder_layers": 2, "decoder_layers": 4}, inputs="seq2seq"),
    Case("MBartForConditionalGeneration", _TINY, inputs="seq2seq"),
    Case("WhisperModel", _WHISPER, inputs="audio"),
    Case("WhisperForConditionalGeneration", {**_WHISPER, "encoder_layers": 4}, inputs="audio"),
    Case("Speech2TextForConditionalGeneration", _SPEECH2TEXT, inputs="audio"),
)


class _Bart(SeparateLinear):
    model_types = ("bart", "mbart", "whisper", "speech_to_text")
    sinusoidal: tuple[str, ...]  # those of them whose positions are not learned

    def n_layer(self, config):
        return field(config, f"{self.part}_layers")

    def shape(self, config, layer):
        d_model, n_head = field(config, "d_model"), field(config, f"{self.part}_attention_heads")
        return AttentionShape.multi_head(d_model, n_head)

    def position_in(self, config):
        return "sinusoidal" if config.get("model_type") in self.sinusoidal else self.position


class BartEncoder(_Bart):
    """The encoder."""

    name = "bart_encoder"
    part = "encoder"
    sinusoidal = ("whisper", "speech_to_text")
    tensors = {
        "q": r"encoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"encoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES


class BartDecoder(_Bart):
    """The decoder's self-attention."""

    name = "bart_decoder"
    part = "decoder"
    sinusoidal = ("speech_to_text",)
    tensors = {
        "q": r"decoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"decoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES
