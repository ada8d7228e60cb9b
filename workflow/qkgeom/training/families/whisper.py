"""Whisper, as OpenAI's package has it, trained to transcribe touch tones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Data, Family, Recipe
from qkgeom.training.tokens import Corpus
from qkgeom.training.tones import N_MELS, VOCABULARY, Tones, frames

if TYPE_CHECKING:
    from qkgeom.training.wrappers import WhisperTranscriber


class Whisper(Family):
    """openai-whisper's Whisper."""

    name = "whisper"
    layouts = ("whisper_openai_encoder", "whisper_openai_decoder")
    projections = (".attn.query", ".attn.key")
    objectives = ("transcription",)
    metric = "accuracy"

    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """Recordings and their transcriptions."""
        return Tones(recipe.length, recipe.seed)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> WhisperTranscriber:
        # Two towers of `n_layer` layers, for recordings of at most `length` digits.
        import torch
        from whisper.model import ModelDimensions
        from whisper.model import Whisper as Native

        from qkgeom.training.wrappers import WhisperTranscriber

        tower = (recipe.d_model, recipe.n_head, recipe.n_layer)
        native = Native(ModelDimensions(N_MELS, frames(recipe.length) // 2, *tower, VOCABULARY, recipe.length + 1, *tower))
        # The package only ever loads weights. Its positions are uninitialised, its embeddings too large, and its
        # convolutions so small that the spectrogram drowns in the sinusoidal positions.
        for embedding in (native.decoder.token_embedding.weight, native.decoder.positional_embedding):
            torch.nn.init.normal_(embedding, std=recipe.init_std)
        for convolution in (native.encoder.conv1, native.encoder.conv2):
            torch.nn.init.kaiming_normal_(convolution.weight)
        return WhisperTranscriber(native)
