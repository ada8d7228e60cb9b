"""SpeechT5: separate Linear weights, `attention` in the encoder and `self_attn` in the decoder.

The same two stacks stand behind every prenet and postnet (speech or text). The decoder's `encoder_attn` does not match.

Source: transformers/models/speecht5/modeling_speecht5.py.
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field

_TINY = {
    "hidden_size": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 20,
    "conv_dim": [8, 8],
    "conv_kernel": [4, 4],
    "conv_stride": [3, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_mel_bins": 6,
    "speech_decoder_prenet_units": 12,
    "speech_decoder_postnet_units": 8,
    "speech_decoder_postnet_layers": 5,
    "speaker_embedding_dim": 4,
    "reduction_factor": 1,
}
_CASES = (
    Case("SpeechT5ForTextToSpeech", _TINY, inputs="text_to_speech"),
    Case("SpeechT5ForSpeechToText", {**_TINY, "encoder_layers": 2, "decoder_layers": 6}, inputs="speech_to_text"),
    Case("SpeechT5ForSpeechToSpeech", _TINY, inputs="speech_to_speech"),
)


class _SpeechT5(SeparateLinear):
    model_types = ("speecht5",)
    cases = _CASES

    def n_layer(self, config):
        return field(config, f"{self.part}_layers")

    def shape(self, config, layer):
        d_model, n_head = field(config, "hidden_size"), field(config, f"{self.part}_attention_heads")
        return AttentionShape.multi_head(d_model, n_head)


class SpeechT5Encoder(_SpeechT5):
    """The encoder, with relative positions in the scores."""

    name = "speecht5_encoder"
    part = "encoder"
    position = "relative"
    tensors = {
        "q": r"encoder\.wrapped_encoder\.layers\.{N}\.attention\.q_proj\.weight",
        "k": r"encoder\.wrapped_encoder\.layers\.{N}\.attention\.k_proj\.weight",
    }


class SpeechT5Decoder(_SpeechT5):
    """The decoder's self-attention."""

    name = "speecht5_decoder"
    part = "decoder"
    position = "sinusoidal"
    tensors = {
        "q": r"decoder\.wrapped_decoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"decoder\.wrapped_decoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
