"""Random inputs of the image, audio and multimodal models, by the kind that a case names."""

import torch

N_TOKEN = 7
N_SAMPLE = 61  # of a waveform; its tiny feature encoders make 9 tokens of them
SIDE = 64  # pixels of a large image


def example(model: torch.nn.Module, kind: str) -> dict[str, torch.Tensor]:
    """One random example as the forward method of `model` takes it."""
    return KINDS[kind](model.config)


def _tokens(config) -> torch.Tensor:
    return torch.randint(3, config.vocab_size, (1, N_TOKEN))


def _image(config) -> torch.Tensor:
    return torch.randn(1, 3, config.image_size, config.image_size)


def _waveform(config) -> torch.Tensor:
    return torch.randn(1, N_SAMPLE)


def _large_pixels(config):
    return {"pixel_values": torch.randn(1, 3, SIDE, SIDE)}


def _prompted_pixels(config):
    size = config.vision_config.image_size
    return {"pixel_values": _image(config.vision_config), "input_points": size * torch.rand(1, 1, 2, 2)}


def _image_pair(config):
    size = config.image_size[1]  # the image and its prompt lie one above the other
    return {name: torch.randn(1, 3, size, size) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")}


def _image_and_text(config):
    return {"input_ids": _tokens(config.get_text_config()), "pixel_values": _image(config.vision_config)}


def _tiles_and_text(config):
    """One tile; position 0 for every token, so that RoPE turns nothing."""
    return {
        "input_ids": _tokens(config.text_config),
        "position_ids": torch.zeros(1, N_TOKEN, dtype=torch.long),
        "pixel_values": _image(config.vision_config)[None, None],
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
    }


def _speech_decoder(config):
    return {
        "decoder_input_values": torch.randn(1, N_TOKEN, config.num_mel_bins),
        "speaker_embeddings": torch.randn(1, config.speaker_embedding_dim),
    }


def _music(config):
    audio = config.decoder
    return {
        "input_ids": _tokens(config.text_encoder),
        "decoder_input_ids": torch.randint(audio.vocab_size, (audio.num_codebooks, N_TOKEN)),
    }


KINDS = {
    "large_pixels": _large_pixels,
    "prompted_pixels": _prompted_pixels,
    "image_pair": _image_pair,
    "image_and_text": _image_and_text,
    "tiles_and_text": _tiles_and_text,
    "waveform": lambda config: {"input_values": _waveform(config)},
    "text_to_speech": lambda config: {"input_ids": _tokens(config), **_speech_decoder(config)},
    "speech_to_text": lambda config: {"input_values": _waveform(config), "decoder_input_ids": _tokens(config)},
    "speech_to_speech": lambda config: {"input_values": _waveform(config), **_speech_decoder(config)},
    "music": _music,
}
