"""Models of libraries that leave the loss to their user, as the training loop wants them: forward gives a loss.

`save_pretrained` writes the library's own format, with the library's own tensor names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import ImageClassifierOutput, Seq2SeqLMOutput

if TYPE_CHECKING:
    from whisper.model import Whisper


class _Wrapper(torch.nn.Module):
    """Holds the library's model as `native`."""

    def __init__(self, native: torch.nn.Module) -> None:
        super().__init__()
        self.native = native

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    @staticmethod
    def native_state(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors under the library's names."""
        return {name.removeprefix("native."): value.detach().cpu().contiguous() for name, value in state_dict.items()}


class TimmClassifier(_Wrapper):
    """A timm model with cross-entropy over classes, for images that were scaled to [-1, 1]."""

    def __init__(self, native: torch.nn.Module) -> None:
        super().__init__(native)
        channels = native.patch_embed.proj.in_channels
        self.preprocessing = {"mean": (0.5,) * channels, "std": (0.5,) * channels}

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> ImageClassifierOutput:
        """Logits and loss of images [batch, channel, height, width] with classes [batch]."""
        logits = self.native(pixel_values)
        return ImageClassifierOutput(loss=cross_entropy(logits, labels), logits=logits)

    def save_pretrained(self, folder: Path, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Writes timm's config.json and model.safetensors."""
        from safetensors.torch import save_file
        from timm.models import save_for_hf

        save_for_hf(self.native, str(folder), safe_serialization=True, data_config=self.preprocessing)
        save_file(self.native_state(state_dict), folder / "model.safetensors")  # the chosen tensors only


class WhisperTranscriber(_Wrapper):
    """openai-whisper's model with teacher-forced cross-entropy over tokens."""

    native: Whisper

    def forward(self, mel: torch.Tensor, tokens: torch.Tensor, labels: torch.Tensor) -> Seq2SeqLMOutput:
        """Logits and loss of `labels`, each the token after one of `tokens`, both [batch, token]."""
        logits = self.native(mel, tokens)
        return Seq2SeqLMOutput(loss=cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)

    def save_pretrained(self, folder: Path, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Writes model.pt as OpenAI's files are: `dims` and `model_state_dict`."""
        folder.mkdir(parents=True)
        saved = {"dims": asdict(self.native.dims), "model_state_dict": self.native_state(state_dict)}
        torch.save(saved, folder / "model.pt")
