"""Models whose code comes with their checkpoints, so that no library has their class: the attention of each, in small.

Names, shapes and the order of operations are those of the published code; norms, gates and sparsity, which do not
change how q and k come from x, are left out or simplified.

Source: `modeling_neobert`/`model.py` of chandar-lab/NeoBERT; `modeling_phi3_small.py` of microsoft/Phi-3-small;
facebookresearch/MobileLLM (`utils/modeling_llama.py`), which is transformers' LLaMA.
"""

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel


class MobileLLMConfig(LlamaConfig):
    model_type = "mobilellm"


class MobileLLMForCausalLM(LlamaForCausalLM):
    config_class = MobileLLMConfig


def _attention(config, q, k, v):
    """softmax(q k^T) v with torch's fused attention or plain products; all [batch, head, token, d_head]."""
    if config._attn_implementation != "eager":
        return functional.scaled_dot_product_attention(q, k, v)
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


class NeoBERTConfig(PretrainedConfig):
    model_type = "neobert"

    def __init__(self, hidden_size=768, num_hidden_layers=28, num_attention_heads=12, vocab_size=30522, **more):
        super().__init__(**more)
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_attention_heads, self.vocab_size = num_attention_heads, vocab_size


class _NeoBERTBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.attention_norm = nn.RMSNorm(config.hidden_size)

    def forward(self, x):
        n_head = self.config.num_attention_heads
        fused = self.qkv(self.attention_norm(x)).view(*x.shape[:2], n_head, 3 * x.shape[-1] // n_head)
        q, k, v = (part.transpose(1, 2) for part in fused.chunk(3, dim=-1))
        return x + self.wo(_attention(self.config, q, k, v).transpose(1, 2).reshape(x.shape))


class NeoBERT(PreTrainedModel):
    config_class = NeoBERTConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = nn.ModuleList(_NeoBERTBlock(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids):
        x = self.encoder(input_ids)
        for block in self.transformer_encoder:
            x = block(x)
        return x


class NeoBERTLMHead(PreTrainedModel):
    config_class = NeoBERTConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids):
        return self.decoder(self.model(input_ids))


class Phi3SmallConfig(PretrainedConfig):
    model_type = "phi3small"

    def __init__(
        self,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=100352,
        **more,
    ):
        super().__init__(**more)
        self.hidden_size, self.num_hidden_layers, self.vocab_size = hidden_size, num_hidden_layers, vocab_size
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads


class _Phi3SmallAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.d_head = config.hidden_size // config.num_attention_heads
        n_row = (config.num_attention_heads + 2 * config.num_key_value_heads) * self.d_head
        self.query_key_value = nn.Linear(config.hidden_size, n_row)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x):
        n_query = self.config.num_attention_heads // self.config.num_key_value_heads  # per key head
        # (q, ..., q, k, v), (q, ..., q, k, v), ...
        fused = self.query_key_value(x).view(*x.shape[:2], -1, n_query + 2, self.d_head)
        q = fused[:, :, :, :-2].flatten(2, 3).transpose(1, 2)
        k, v = (fused[:, :, :, at].transpose(1, 2).repeat_interleave(n_query, dim=1) for at in (-2, -1))
        return self.dense(_attention(self.config, q, k, v).transpose(1, 2).reshape(x.shape))


class _Phi3SmallLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = _Phi3SmallAttention(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size)

    def forward(self, x):
        return x + self.self_attn(self.input_layernorm(x))


class _Phi3SmallModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Phi3SmallLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Phi3SmallForCausalLM(PreTrainedModel):
    config_class = Phi3SmallConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.model = _Phi3SmallModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor):
        return self.lm_head(self.model(input_ids))
