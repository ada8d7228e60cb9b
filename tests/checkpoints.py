"""Small checkpoints with random weights, written with the real formats' libraries and no model class."""

import json

import numpy as np
from safetensors.numpy import save_file

from qkgeom.extraction import FINAL, finish, store_snapshot


def bert_tensors(seed=0, d=24, n_layer=3, prefix="bert."):
    rng = np.random.default_rng(seed)
    parts = [(layer, part) for layer in range(n_layer) for part in ("query", "key", "value")]
    names = [f"{prefix}encoder.layer.{layer}.attention.self.{part}.weight" for layer, part in parts]
    return {name: rng.standard_normal((d, d), dtype=np.float32) for name in names}


def bert_config(d=24, n_head=4, n_layer=3):
    return {"model_type": "bert", "hidden_size": d, "num_attention_heads": n_head, "num_hidden_layers": n_layer}


def llama_tensors(seed=1, d=24, n_head=4, n_kv_head=2, n_layer=3):
    rng = np.random.default_rng(seed)
    d_head = d // n_head
    tensors = {}
    for layer in range(n_layer):
        at = f"model.layers.{layer}.self_attn."
        tensors[at + "q_proj.weight"] = rng.standard_normal((n_head * d_head, d), dtype=np.float32)
        tensors[at + "k_proj.weight"] = rng.standard_normal((n_kv_head * d_head, d), dtype=np.float32)
    return tensors


def llama_config(d=24, n_head=4, n_kv_head=2, n_layer=3):
    return {
        "model_type": "llama",
        "hidden_size": d,
        "num_attention_heads": n_head,
        "num_key_value_heads": n_kv_head,
        "num_hidden_layers": n_layer,
    }


def write_checkpoint(folder, tensors, config):
    """A folder as save_pretrained leaves it: model.safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_bert(folder, seed=0, **sizes):
    return write_checkpoint(folder, bert_tensors(seed), bert_config(**sizes))


def write_llama(folder, seed=1):
    return write_checkpoint(folder, llama_tensors(seed), llama_config())


def extract(checkpoint, layout, folder, model):
    """Stores an opened checkpoint as an artifact with one snapshot, `final`, as the pipeline does; gives the manifest."""
    return finish(folder, model, checkpoint.uri, layout, {FINAL: store_snapshot(checkpoint, layout, folder, model, FINAL)})
