"""Whisper, as OpenAI's package has it, trained to transcribe touch tones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Data, Family, Sizes
from qkgeom.training.tokens import Corpus
from qkgeom.training.tones import N_MELS, VOCABULARY, Tones, frames

if TYPE_CHECKING:
    from qkgeom.training.wrappers import WhisperTranscriber


class Whisper(Family):
    """openai-whisper's Whisper."""

    name = "whisper"
    layouts = ("whisper_openai_encoder", "whisper_openai_decoder")
    projections = (".attn.query", ".attn.key")
    metric = "accuracy"

    def data(self, seed: int, sizes: Sizes, corpus: Corpus | None = None) -> Data:
        """Recordings and their transcriptions."""
        return Tones(sizes.length, seed)

    def build(self, seed: int, sizes: Sizes) -> WhisperTranscriber:
        """Two towers of `n_layer` layers, for recordings of at most `length` digits."""
        import torch
        from transformers import set_seed
        from whisper.model import ModelDimensions
        from whisper.model import Whisper as Native

        from qkgeom.training.wrappers import WhisperTranscriber

        set_seed(seed)
        tower = (sizes.d_model, sizes.n_head, sizes.n_layer)
        native = Native(ModelDimensions(N_MELS, frames(sizes.length) // 2, *tower, VOCABULARY, sizes.length + 1, *tower))
        # The package only ever loads weights. Its positions are uninitialised, its embeddings too large, and its
        # convolutions so small that the spectrogram drowns in the sinusoidal positions.
        for embedding in (native.decoder.token_embedding.weight, native.decoder.positional_embedding):
            torch.nn.init.normal_(embedding, std=sizes.init_std)
        for convolution in (native.encoder.conv1, native.encoder.conv2):
            torch.nn.init.kaiming_normal_(convolution.weight)
        return WhisperTranscriber(native)
