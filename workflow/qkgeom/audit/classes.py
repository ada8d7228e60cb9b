"""A checkpoint as its own library loads it: transformers, timm or openai-whisper; and a tiny input for it."""

from __future__ import annotations

import inspect
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.audit.probe import NotProbed
from qkgeom.checkpoint import Checkpoint
from qkgeom.scratch import scratch_folder

if TYPE_CHECKING:
    import torch

Loaded = tuple["torch.nn.Module", dict[str, object]]
SAMPLES = 3200  # of sound, which any convolutional front end shortens to a few frames


def load(checkpoint: Checkpoint) -> Loaded:
    """The model in float32, in evaluation mode, and keywords for its forward.

    Raises:
        NotProbed: no library here has its class, or the class does not load it.
    """
    with _folder_of(checkpoint) as folder:
        try:
            with redirect_stderr(io.StringIO()):  # their progress bars
                return _loader(checkpoint)(checkpoint, folder)
        except NotProbed:
            raise
        except Exception as error:  # the libraries raise nothing narrower
            raise NotProbed(f"its class does not load it: {type(error).__name__}: {str(error).splitlines()[:1]}") from error


def _loader(checkpoint: Checkpoint) -> Callable[[Checkpoint, Path], Loaded]:
    """Which library's file this is: by the file's format, else by what config.json says."""
    (container, *_) = checkpoint.where.values()
    if container.format == "gguf":
        return _gguf
    if "n_audio_state" in container.config:
        return _whisper
    if "model_type" in checkpoint.config:
        return _transformers
    if "architecture" in checkpoint.config:
        return _timm
    raise NotProbed("nothing says what its class is")


@contextmanager
def _folder_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """A folder with links to the checkpoint's whole files, and its config.json."""
    with scratch_folder() as folder:
        for file in {container.file.name: container.file for container in checkpoint.where.values()}.values():
            (folder / file.name).symlink_to(file.local().resolve())
        (folder / "config.json").write_text(json.dumps(dict(checkpoint.config)), encoding="utf-8")
        yield folder


def _transformers(checkpoint: Checkpoint, folder: Path) -> Loaded:
    import transformers

    named = [getattr(transformers, name, None) for name in checkpoint.config.get("architectures") or ()]
    return _pretrained(next(filter(None, named), transformers.AutoModel), folder)


def _gguf(checkpoint: Checkpoint, folder: Path) -> Loaded:
    import transformers

    (folder / "config.json").unlink()  # the file says itself what it is
    (container, *_) = checkpoint.where.values()
    return _pretrained(transformers.AutoModelForCausalLM, folder, gguf_file=container.file.name)


def _pretrained(model_class: type, folder: Path, **more: str) -> Loaded:
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    names = {path.name for path in folder.iterdir()}
    if not more and not any(name.startswith(("model", "pytorch_model")) for name in names):
        (weights,) = (path for path in folder.iterdir() if path.name != "config.json")
        weights.rename(folder / ("model.safetensors" if weights.suffix == ".safetensors" else "pytorch_model.bin"))
    shards = sorted(path.name for path in folder.iterdir() if "-of-" in path.name)
    if shards:
        _write_index(folder, shards)
    model = model_class.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **more).eval()
    return model, _inputs(model)


def _write_index(folder: Path, shards: list[str]) -> None:
    """The index that a sharded checkpoint is loaded by, from the shards themselves."""
    from safetensors import safe_open

    where = {}
    for shard in shards:
        with safe_open(folder / shard, "pt") as file:
            where |= dict.fromkeys(file.keys(), shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")


def _inputs(model: torch.nn.Module) -> dict[str, object]:
    """One token of text, one image, a little sound: whatever the model's forward takes of these."""
    import torch

    config, taken = model.config, inspect.signature(model.forward).parameters
    token = torch.ones(1, 1, dtype=torch.long)
    inputs = {name: token for name in ("input_ids", "decoder_input_ids") if name in taken}
    inputs |= {"use_cache": False} if "use_cache" in taken else {}
    vision = getattr(config, "vision_config", config)
    if "pixel_values" in taken:
        size = getattr(vision, "image_size", 224)
        sizes = size if isinstance(size, (list, tuple)) else (size, size)
        inputs["pixel_values"] = torch.zeros(1, getattr(vision, "num_channels", 3), *sizes)
    if "input_features" in taken:
        inputs["input_features"] = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
    if "input_values" in taken:
        inputs["input_values"] = torch.randn(1, SAMPLES, generator=torch.Generator().manual_seed(0))
    return inputs


def _timm(checkpoint: Checkpoint, folder: Path) -> Loaded:
    import timm
    import torch

    logging.getLogger("timm").setLevel(logging.WARNING)
    config = checkpoint.config
    model = timm.create_model(str(config["architecture"]), pretrained=False, **_mapping(config, "model_args")).eval()
    _fill(model, timm.models.load_state_dict(str(next(folder.glob("*.[spb]*"))), use_ema=False))
    sizes = (
        model.pretrained_cfg.get("input_size", (3, 224, 224))
        if not hasattr(model, "patch_embed")
        else (
            model.patch_embed.proj.in_channels,
            *model.patch_embed.img_size,
        )
    )
    return model, {"x": torch.zeros(1, *sizes)}


def _whisper(checkpoint: Checkpoint, folder: Path) -> Loaded:
    import torch
    import whisper.model

    (container, *_) = checkpoint.where.values()
    saved = torch.load(folder / container.file.name, weights_only=True)
    dims = whisper.model.ModelDimensions(**saved["dims"])
    model = whisper.model.Whisper(dims).eval()
    _fill(model, saved["model_state_dict"])
    mel = torch.zeros(1, dims.n_mels, 2 * dims.n_audio_ctx)
    return model.float(), {"mel": mel, "tokens": torch.zeros(1, 1, dtype=torch.long)}


def _fill(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Loads weights, of which an early snapshot of a run has those of queries and keys alone."""
    missing, unexpected = model.load_state_dict({name: value.float() for name, value in state.items()}, strict=False)
    if unexpected or len(missing) == len(model.state_dict()):
        raise NotProbed(f"{type(model).__name__} does not know its tensors: {', '.join(unexpected[:3]) or 'none of them'}")


def _mapping(config: Mapping, key: str) -> dict:
    return dict(config.get(key) or {})
