"""wav2vec 2.0 and MMS, HuBERT, UniSpeech-SAT, WavLM: separate Linear weights on features of the waveform.

Positions enter by a convolution; WavLM also adds a gated relative bias to the scores.

Source: transformers/models/{wav2vec2,hubert,unispeech_sat,wavlm}/modeling_*.py.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_TINY = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 32,
    "conv_dim": [8, 8],
    "conv_kernel": [4, 4],
    "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 20,
    "num_codevectors_per_group": 4,
    "codevector_dim": 8,
    "proj_codevector_dim": 8,
}
_STABLE = {**_TINY, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}
_MMS = {**_STABLE, "adapter_attn_dim": 4}  # an adapter per language


class Wav2Vec2(SeparateLinear):
    """wav2vec 2.0, MMS, HuBERT, UniSpeech-SAT and WavLM."""

    name = "wav2vec2"
    model_types = ("wav2vec2", "hubert", "unispeech-sat", "wavlm")
    position = "convolutional"
    tensors = {
        "q": r"encoder\.layers\.{N}\.attention\.q_proj\.weight",
        "k": r"encoder\.layers\.{N}\.attention\.k_proj\.weight",
    }
    cases = (
        Case("Wav2Vec2Model", _TINY, inputs="waveform"),
        Case("Wav2Vec2ForCTC", _MMS, inputs="waveform"),
        Case("Wav2Vec2ForPreTraining", _STABLE, inputs="waveform"),
        Case("HubertModel", _TINY, inputs="waveform"),
        Case("HubertForCTC", _STABLE, inputs="waveform"),
        Case("UniSpeechSatModel", _TINY, inputs="waveform"),
        Case("UniSpeechSatForCTC", _STABLE, inputs="waveform"),
        Case("WavLMModel", _TINY, inputs="waveform"),
        Case("WavLMForCTC", _STABLE, inputs="waveform"),
    )

    def position_in(self, config):
        return "relative" if config.get("model_type") == "wavlm" else self.position
