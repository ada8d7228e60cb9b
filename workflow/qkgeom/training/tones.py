"""Touch-tone (DTMF) recordings of digit sequences, synthesised with noise, through Whisper's own log-mel front end.

A recording is a function of (seed, index) alone: how many digits, which, how long and how loud each tone and each gap.

Source: ITU-T Q.23, the two frequencies of a key; whisper/audio.py, `log_mel_spectrogram`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.training.sequences import IGNORED

if TYPE_CHECKING:
    import torch

RATE = 16_000  # samples per second, as Whisper's front end expects
HOP = 160  # samples per frame of the log-mel spectrogram
N_MELS = 80
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)  # Hz
KEYPAD = ("123", "456", "789", " 0 ")
FREQUENCIES = {
    int(key): (LOW[row], HIGH[column]) for row, keys in enumerate(KEYPAD) for column, key in enumerate(keys) if key != " "
}
START, END = 10, 11  # tokens after the ten digits
VOCABULARY = 12
TONE, GAP = (0.05, 0.07), (0.03, 0.05)  # seconds, shortest and longest
NOISE = 0.3  # standard deviation at most, where a tone's amplitude is 0.5 to 1


def frames(length: int) -> int:
    """Frames of the spectrogram of a recording with at most `length` digits, an even number."""
    return 2 * round((length + 1) * (TONE[1] + GAP[1]) * RATE / HOP / 2)


@dataclass(frozen=True)
class Tones:
    """Recordings and their transcriptions.

    Attributes:
        length: digits of a recording at most; at least half as many.
        seed: of the training recordings.
    """

    length: int
    seed: int

    @property
    def digest(self) -> str:
        """Of the first held-out recordings, for the run's record."""
        return hashlib.sha256(b"".join(self._recording((0, i))[0].tobytes() for i in range(4))).hexdigest()

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training recordings of these indices: `mel` [batch, 80, frames], `tokens` and `labels` [batch, length + 1]."""
        return self._batch([(1, self.seed, index) for index in indices])

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """`most` batches of held-out recordings, the same for every run."""
        return [self._batch([(0, first + i) for i in range(batch)]) for first in range(0, most * batch, batch)]

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The tokens of the transcriptions."""
        return batch["labels"]

    def _batch(self, seeds: list[tuple[int, ...]]) -> dict[str, torch.Tensor]:
        import torch
        from whisper.audio import log_mel_spectrogram

        recordings = [self._recording(seed) for seed in seeds]
        tokens = np.full((len(seeds), self.length + 1), END)
        labels = np.full((len(seeds), self.length + 1), IGNORED)
        tokens[:, 0] = START
        for row, (_, digits) in enumerate(recordings):
            tokens[row, 1 : len(digits) + 1] = digits
            labels[row, : len(digits) + 1] = [*digits, END]
        # one recording at a time, since the front end limits the range by its input's loudest point
        mel = torch.stack([log_mel_spectrogram(wave, N_MELS) for wave, _ in recordings])
        return {"mel": mel, "tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}

    def _recording(self, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Samples, float32 [frames * 160], and digits."""
        rng = np.random.default_rng(seed)
        digits = rng.integers(10, size=rng.integers((self.length + 1) // 2, self.length + 1))
        wave = rng.normal(0, rng.uniform(0.02, NOISE), frames(self.length) * HOP)
        start = rng.uniform(*GAP)
        for digit in digits:
            time = np.arange(int(rng.uniform(*TONE) * RATE)) / RATE
            tone = sum(np.sin(2 * np.pi * (each * time + rng.random())) for each in FREQUENCIES[digit])
            first = int(start * RATE)
            wave[first : first + len(time)] += rng.uniform(0.5, 1) * tone
            start += len(time) / RATE + rng.uniform(*GAP)
        return wave.astype(np.float32), digits
