"""The contract of a layout: what it extracts is what the real module multiplies.

A tiny real model gets random weights, is saved in its native format and extracted. Then it runs, and a recorder notes
for every attention layer the input x of the projection that owns the extracted tensors, and the operands q and k of
the attention product that follows. Nothing here knows how a fused weight is split; the wrong readings at the end do,
to show that the comparison would notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from unittest import mock

import numpy as np
import safetensors.torch
import torch
import transformers
from torch.linalg import vector_norm
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import remote_models
from checkpoints import extract
from example_inputs import KINDS, N_TOKEN, example
from qkgeom.artifacts import read_layer
from qkgeom.layouts import layout_for
from qkgeom.layouts.base import AttentionShape, Case, FusedConv1D, FusedPerHead, FusedRows, Layout
from qkgeom.layouts.deepseek import DeepSeek, LatentShape
from qkgeom.sources import open_checkpoint

QK_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm")
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")  # between two weights that are both extracted: the gain stays
# a part of the name of a decoder's self-attention -> what of it differs in its cross-attention, and how
CROSS = {
    "layer.0.SelfAttention": ("layer.0.SelfAttention", "layer.1.EncDecAttention"),
    "mask_decoder": ("self_attn", "cross_attn_token_to_image"),
    "self_attn": ("self_attn", "encoder_attn"),
    ".attn.": (".attn.", ".cross_attn."),
}
NO_CROSS = ("vit_mae_decoder", "mask2former_decoder")  # decoders without one, or with one stored in another way
FUSED = (FusedRows, FusedPerHead, FusedConv1D)
# function -> where its operands begin
PROJECTIONS = {functional.linear: 0, torch.addmm: 1, torch.Tensor.matmul: 0}
PRODUCTS = dict.fromkeys((torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm), 0)
PRODUCTS |= dict.fromkeys((torch.baddbmm, torch.Tensor.baddbmm), 1)


def class_of(case: Case) -> type[transformers.PreTrainedModel]:
    """The model class of a case that transformers has, or a checkpoint brings with it."""
    return getattr(remote_models if case.library == "remote" else transformers, case.model)


def build(case: Case) -> torch.nn.Module:
    """The real model on the case's config, all weights random, all biases zero."""
    torch.manual_seed(0)
    if case.library == "timm":
        import timm

        model = timm.create_model(case.model, pretrained=False, **case.config)
    elif case.library == "whisper":
        import whisper.model

        model = whisper.model.Whisper(whisper.model.ModelDimensions(**case.config))
    else:
        model_class = class_of(case)
        model = model_class(model_class.config_class(**case.config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:  # gains, also those that start near zero
                parameter.normal_(1, 0.2)
            if case.library == "whisper":
                parameter.copy_(parameter.half())  # what its files hold
    return model.eval()


def save(model: torch.nn.Module, case: Case, folder: Path) -> Path:
    """Writes the checkpoint as the model's own library does: config.json and model.safetensors, or Whisper's .pt."""
    if case.library == "timm":
        from timm.models._hub import save_for_hf

        save_for_hf(model, folder, model_args=dict(case.config), safe_serialization=True)
    elif case.library == "whisper":
        folder.mkdir(exist_ok=True)
        state = {name: tensor.half() for name, tensor in model.state_dict().items()}
        torch.save({"dims": dict(vars(model.dims)), "model_state_dict": state}, folder / "model.pt")
    else:
        model.save_pretrained(folder)
    return folder


def inputs(model: torch.nn.Module, case: Case) -> dict[str, torch.Tensor]:
    """One random example; position 0 for every token, so that RoPE turns nothing."""
    if case.inputs in KINDS:
        return example(model, case.inputs)
    if case.inputs == "pixels":
        size = case.config.get("image_size") or case.config["img_size"]
        return {"x" if case.library == "timm" else "pixel_values": torch.randn(1, 3, size, size)}
    if case.library == "whisper":
        mel = torch.randn(1, case.config["n_mels"], 2 * case.config["n_audio_ctx"])
        return {"mel": mel, "tokens": torch.randint(case.config["n_vocab"], (1, N_TOKEN))}
    n_vocab = model.config.get_text_config().vocab_size
    tokens = torch.randint(3, n_vocab, (1, N_TOKEN))
    if case.inputs == "tokens":
        takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        return {"input_ids": tokens, **({"position_ids": torch.zeros_like(tokens)} if takes_positions else {})}
    to_decoder = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    if case.inputs == "audio":
        return {"input_features": features(case), **to_decoder}
    return {"input_ids": torch.randint_like(tokens, 3, n_vocab), **to_decoder}


def features(case: Case) -> torch.Tensor:
    """Random audio features as the model's own front end shapes them."""
    if "num_mel_bins" in case.config:
        return torch.randn(1, case.config["num_mel_bins"], 2 * case.config["max_source_positions"])
    return torch.randn(1, 40, case.config["input_feat_per_channel"])


def weight_file(checkpoint: Path) -> Path:
    """The file that `save` put the weights into."""
    (file,) = checkpoint.glob("model.*")
    return file


def stored_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a saved checkpoint, read by its format's own library, in float32."""
    file = weight_file(checkpoint)
    stored = torch.load(file)["model_state_dict"] if file.suffix == ".pt" else safetensors.torch.load_file(file)
    return {name: tensor.float() for name, tensor in stored.items()}


@dataclass(frozen=True)
class Execution:
    """One attention product as executed, all float64: x [batch, token, d_model], q and k [batch, n_head, token, d_head].

    A window of an image is an example of its own.
    """

    layer: int
    x: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor


class Recorder(TorchFunctionMode):
    """Notes the input of each watched weight, and the operands of the first attention product after it."""

    def __init__(self, watched: Mapping[torch.nn.Parameter, int], roles: int, n_token: int | None) -> None:
        """Inputs of another number of tokens than `n_token` are none: DeBERTa's relative positions may pass there too."""
        super().__init__()
        self.n_token = n_token
        # by address, since Falcon multiplies by its weight's transpose, which is another tensor
        self.layer_of = {weight.data_ptr(): layer for weight, layer in watched.items()}
        self.roles = roles
        self.inputs: dict[int, torch.Tensor] = {}  # of the layer under way, by weight
        self.layer = -1
        self.executions: list[Execution] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        operands = [*args, *(kwargs or {}).values()]
        if func is functional.multi_head_attention_forward:  # one call for torch: look at those inside
            with self, mock.patch.object(functional, "has_torch_function", return_value=False):
                return func(*args, **(kwargs or {}))
        if func is functional.normalize:  # SwinV2's norm of q and k
            return operands[0]
        x, weight = operands[PROJECTIONS[func] :][:2] if func in PROJECTIONS else (None, None)
        if func in PROJECTIONS and weight.data_ptr() in self.layer_of:
            if self.n_token in (None, x.shape[-2]):
                self.layer = self.layer_of[weight.data_ptr()]
                self.inputs[weight.data_ptr()] = x.reshape(-1, x.shape[-1]).double()
        elif self.inputs and (func is functional.scaled_dot_product_attention or func in PRODUCTS):
            q, k = operands[PRODUCTS.get(func, 0) :][:2]
            self._product(q, k.mT if func in PRODUCTS else k)
        return func(*args, **(kwargs or {}))

    def _product(self, q: torch.Tensor, k: torch.Tensor) -> None:
        xs, n_token = list(self.inputs.values()), q.shape[-2]
        if len(xs) == self.roles:
            assert all(torch.equal(x, xs[0]) for x in xs), "q and k come from different inputs: this is no self-attention"
        if k.shape[-2] != n_token or len(xs[0]) % n_token:
            return
        assert len(xs) == self.roles, "attention ran before all of the layer's extracted weights were used"
        x = xs[0].unflatten(0, (-1, n_token))
        q, k = (operand.reshape(len(x), -1, n_token, operand.shape[-1]).double() for operand in (q, k))
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # what torch does with enable_gqa=True
        self.executions.append(Execution(self.layer, x, q, k))
        self.inputs = {}


@dataclass(frozen=True)
class Extracted:
    """A case's checkpoint, its artifact, and what the model executed with each attention implementation."""

    layout: Layout
    case: Case
    checkpoint: Path
    artifact: Path
    manifest: dict[str, object]
    executions: dict[str, list[Execution]]

    def weights(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """W_q and W_k of the artifact, W_k repeated for each query head: both [d_model, n_head, d_head] in float64."""
        return for_each_query_head(*self.stored(layer))

    def stored(self, layer: int) -> list[torch.Tensor]:
        """W_q [d_model, n_head, d_head] and W_k [d_model, n_kv_head, d_head] of the artifact, in float64."""
        return [torch.tensor(W).double() for W in read_layer(self.artifact, "final.safetensors", layer)]


def for_each_query_head(W_q: torch.Tensor, W_k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """W_q [d_model, n_head, d_head] as it is, and W_k [d_model, n_kv_head, d_head] repeated for each query head."""
    return W_q, W_k[:, torch.arange(W_q.shape[1]) // (W_q.shape[1] // W_k.shape[1])]


def extracted(layout: Layout, case: Case, folder: Path) -> Extracted:
    """Builds, saves, extracts and runs a case."""
    model = build(case)
    checkpoint = save(model, case, folder / "checkpoint")
    with open_checkpoint(f"file:{checkpoint}") as opened:
        assert layout_for(opened.config, layout.part).name == layout.name
        manifest = extract(opened, layout, folder / "artifact", "tiny")
    watched = owners(model, checkpoint, manifest, layout)
    executions = {each: run(model, case, watched, each) for each in ("fused", "eager")}
    return Extracted(layout, case, checkpoint, folder / "artifact", manifest, executions)


def owners(model: torch.nn.Module, checkpoint: Path, manifest: Mapping, layout: Layout) -> dict[torch.nn.Parameter, int]:
    """The model's own parameters behind the tensors that were read, found by value: a library renames when it saves.

    Of a layout that multiplies several weights, those that act on x itself.
    """
    stored = stored_tensors(checkpoint)
    found = {}
    for layer in manifest["snapshots"]["final"]["layers"]:
        for name in {record["tensor"] for record in layer["read"].values()}:
            if layout.computed and stored[name].shape[1:] != (layer["d_model"],):
                continue
            equal = [p for p in model.parameters() if p.shape == stored[name].shape and torch.equal(p, stored[name])]
            assert len(equal) == 1, f"{name} is {len(equal)} parameters of the model"
            found[equal[0]] = layer["layer"]
    return found


def run(model: torch.nn.Module, case: Case, watched: Mapping, implementation: str) -> list[Execution]:
    """Runs the model once with torch's fused attention or with plain products."""
    if case.library == "timm":
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = implementation == "fused"
    elif implementation == "eager" and case.library in ("transformers", "remote"):
        model.set_attn_implementation("eager")
    for module in list(model.modules()):
        for norm in QK_NORMS:
            if isinstance(getattr(module, norm, None), torch.nn.Module):
                setattr(module, norm, torch.nn.Identity())
        for norm in LATENT_NORMS:
            if isinstance(getattr(module, norm, None), torch.nn.Module):
                setattr(module, norm, Gain(getattr(module, norm).weight))
    roles = len(watched) // len(set(watched.values()))
    n_token = N_TOKEN if case.inputs == "tokens" else None
    with _whisper_attention(case, implementation), torch.no_grad(), Recorder(watched, roles, n_token) as recorder:
        model(**inputs(model, case))
    assert not recorder.inputs, "a layer's projection ran without an attention product after it"
    return recorder.executions


class Gain(torch.nn.Module):
    """A norm without its division: what of it is extracted."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def _whisper_attention(case: Case, implementation: str):
    if case.library != "whisper" or implementation == "fused":
        return nullcontext()
    import whisper.model

    return whisper.model.disable_sdpa()


@dataclass(frozen=True)
class Mismatch:
    """Relative differences between executed and extracted products, after the best common scalar.

    Attributes:
        heads: q_h . k_g(h) of each head, [n_head].
        layer: their sum over heads.
        scale: the scalar.
    """

    heads: torch.Tensor
    layer: float
    scale: float


def mismatch(execution: Execution, W_q: torch.Tensor, W_k: torch.Tensor) -> Mismatch:
    """Compares q_h(x_i) . k_h(x_j) as executed with x_i W_q,h W_k,h^T x_j; W_q and W_k are [d_model, n_head, d_head]."""
    x = execution.x[:, None]
    executed = execution.q @ execution.k.mT  # [batch, n_head, token, token]
    heads = x @ (W_q.movedim(1, 0) @ W_k.movedim(1, 0).mT) @ x.mT
    layer = (x @ (W_q.flatten(1) @ W_k.flatten(1).T) @ x.mT)[:, 0]
    scale = (executed * heads).sum() / heads.square().sum()
    return Mismatch(
        vector_norm(executed - scale * heads, dim=(0, 2, 3)) / vector_norm(executed, dim=(0, 2, 3)),
        float((executed.sum(1) - scale * layer).norm() / executed.sum(1).norm()),
        float(scale),
    )


def wrong_readings(case: Extracted, layer: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Every wrong way to read the layer's tensors that the shapes allow: name, W_q and W_k for each query head."""
    W_q, W_k = case.weights(layer)
    yield "q and k exchanged", W_k, W_q
    record = case.manifest["snapshots"]["final"]["layers"][layer]
    shape = AttentionShape(*(record[size] for size in ("d_model", "n_head", "n_kv_head", "d_head")))
    if 1 < shape.n_kv_head < shape.n_head:
        pairing = torch.arange(shape.n_head) % shape.n_kv_head
        yield "query head h with key head h mod n_kv_head", W_q, case.stored(layer)[1][:, pairing]
    if case.layout.part == "decoder" and case.layout.name not in NO_CROSS:
        stored = stored_tensors(case.checkpoint)
        cross = {key: stored[cross_attention(read["tensor"])].numpy() for key, read in record["read"].items()}
        if all(cross[key].shape == need.shape for key, need in case.layout.needs(shape).items()):  # SAM's may be narrower
            yield "cross-attention for self-attention", *(torch.tensor(W).double() for W in case.layout.split(cross, shape))
    if isinstance(case.layout, DeepSeek):
        stored = stored_tensors(case.checkpoint)
        arrays = {key: stored[read["tensor"]].numpy() for key, read in record["read"].items()}
        sizes = LatentShape(**{size.name: record[size.name] for size in fields(LatentShape)})
        for way, wrong in _latent_readings(arrays, sizes):
            q, k = case.layout.split(arrays | wrong, sizes)
            yield way, *for_each_query_head(torch.tensor(q).double(), torch.tensor(k).double())
    if isinstance(case.layout, FUSED):
        name = next(iter(record["read"].values()))["tensor"]
        stored = stored_tensors(case.checkpoint)[name].numpy()
        for way, (q, k) in _fused_readings(case.layout, stored, shape):
            yield way, *for_each_query_head(torch.tensor(q).double(), torch.tensor(k).double())


def cross_attention(name: str) -> str:
    """The name (or pattern of names) in a decoder's cross-attention that stands for one in its self-attention."""
    plain = name.replace("\\", "")
    return plain.replace(*next(change for word, change in CROSS.items() if word in plain))


def _fused_readings(layout: Layout, stored: np.ndarray, shape: AttentionShape) -> Iterator[tuple[str, tuple]]:
    """The same tensor under the other fused splits, as it lies without a transpose, and one part further on."""
    columns, per_head = isinstance(layout, FusedConv1D), isinstance(layout, FusedPerHead)
    linear = stored.T if columns else stored  # [3 * n_head * d_head, d_model]
    if shape.n_kv_head > 1:  # with one key head both ways are the same
        other = FusedRows() if per_head else FusedPerHead()
        yield type(other).__name__, _split(other, linear, shape)
    if shape.n_kv_head == shape.n_head:
        untransposed = stored.reshape(stored.shape[::-1])
        for wrong in (FusedRows(), FusedPerHead()) if columns else (FusedConv1D(),):
            yield f"{type(wrong).__name__}, not transposed", _split(wrong, untransposed, shape)
    part = shape.d_head if per_head else shape.n_head * shape.d_head
    further = np.roll(linear, -part, 0)
    yield "k and v for q and k", _split(layout, further.T if columns else further, shape)


def _latent_readings(arrays: Mapping[str, np.ndarray], shape: LatentShape) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """Tensors of latent attention put in another order, so that the right way to read them is the wrong one."""
    nope, value = shape.qk_nope_head_dim, shape.v_head_dim
    query, up = (arrays[key].reshape(shape.n_head, -1, arrays[key].shape[1]) for key in ("q_b", "kv_b"))
    k, v = np.split(arrays["kv_b"], [shape.n_head * nope])
    parts = k.reshape(shape.n_head, nope, -1), v.reshape(shape.n_head, value, -1)
    yield "all of k, then all of v", {"kv_b": np.concatenate(parts, 1).reshape(arrays["kv_b"].shape)}
    yield "v before k", {"kv_b": np.roll(up, nope, 1).reshape(arrays["kv_b"].shape)}
    yield "the rotated part of q first", {"q_b": np.roll(query, nope, 1).reshape(arrays["q_b"].shape)}
    yield "the rotated part of k first", {"kv_a": np.roll(arrays["kv_a"], shape.kv_lora_rank, 0)}
    for gain in (key for key in arrays if key.endswith("norm")):
        yield f"without {gain}", {gain: np.ones_like(arrays[gain])}


def _split(layout: Layout, tensor: np.ndarray, shape: AttentionShape) -> tuple[np.ndarray, np.ndarray]:
    needs = layout.needs(shape)
    return layout.split({key: tensor[slice(*need.rows)] if need.rows else tensor for key, need in needs.items()}, shape)
