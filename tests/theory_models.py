"""Small models with random weights in float64, and batches, for the tests of the theory."""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

VOCABULARY, LENGTH, WIDTH = 40, 7, 24
COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.3}
BERT = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
BERT |= {"max_position_embeddings": LENGTH, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
GPT2 = {"n_embd": WIDTH, "n_layer": 3, "n_head": 4, "n_positions": LENGTH}
LLAMA = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"intermediate_size": 32, "max_position_embeddings": LENGTH}


def bert():
    return BertForMaskedLM(BertConfig(**COMMON, **BERT))


def causal_bert():
    return BertLMHeadModel(BertConfig(**COMMON, **BERT, is_decoder=True))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(**COMMON, **GPT2, resid_pdrop=0.1, attn_pdrop=0.1))


def llama_with_rope():
    return LlamaForCausalLM(LlamaConfig(**COMMON, **LLAMA))


def llama():
    """Grouped queries, and every position rotated by nothing."""
    model = llama_with_rope()
    model.model.rotary_emb.inv_freq.zero_()
    return model


def built(make, biases: bool = False):
    """A model in float64 and evaluation mode; its biases are zero unless asked for."""
    model = make().double().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(".bias"):
                value.normal_(std=0.3) if biases else value.zero_()
    return model


def batch_for(model, n: int = 3, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Random tokens; of a masked model some have no loss."""
    ids = torch.randint(0, VOCABULARY, (n, length))
    labels = ids.clone()
    if isinstance(model, BertForMaskedLM):
        labels[torch.rand(labels.shape) > 0.4] = -100
        labels[0, 0] = ids[0, 0]
    return {"input_ids": ids, "labels": labels}


def gradients(model, batch) -> dict[str, torch.Tensor]:
    """Of every weight, by the model's own backward pass, with its own implementation of attention."""
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()}
