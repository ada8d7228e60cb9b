"""The theory against the models' own gradients: implicit update, factor gradients, first-order change, tokens; bad input."""

import logging

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, T5Config, T5ForConditionalGeneration

from qkgeom.errors import ModelFault, QkgeomError
from qkgeom.theory.attention import _tell_of_switch, attention_gradients
from qkgeom.theory.factors import factors
from qkgeom.theory.updates import factor_gradients, first_order_change, implicit_gradient, products
from theory_models import (
    LENGTH,
    LLAMA,
    VOCABULARY,
    batch_for,
    bert,
    built,
    causal_bert,
    gpt2,
    gradients,
    llama,
    llama_with_rope,
)

WITHOUT_ROPE = [bert, causal_bert, gpt2, llama]
NEEDED = 1e-5  # relative; float64 gives far more


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def prepared(make, biases=False):
    """A model, a batch, its layers with beta, and W_q, W_k with their gradients by the model's own backward pass."""
    model = built(make, biases)
    batch = batch_for(model)
    _, layers = attention_gradients(model, batch)
    weights = factors(model.state_dict(), model.config)
    own = factors({name: value.detach() for name, value in gradients(model, batch).items()}, model.config)
    assert len(layers) == len(weights) == len(own) == 3
    return model, batch, layers, weights, own


@pytest.mark.parametrize("make", WITHOUT_ROPE)
def test_the_models_own_gradients_are_the_implicit_gradient_times_the_other_factor(make):
    _, _, layers, weights, own = prepared(make)
    for attention, (W_q, W_k), (dW_q, dW_k) in zip(layers, weights, own, strict=True):
        G = implicit_gradient(attention)
        group = W_q.shape[1] // W_k.shape[1]
        assert dW_q.norm() > 0 and dW_k.norm() > 0
        for h in range(W_q.shape[1]):
            assert relative(G[h] @ W_k[:, h // group], dW_q[:, h]) < NEEDED
        for g in range(W_k.shape[1]):
            of_group = sum(G[h].T @ W_q[:, h] for h in range(g * group, (g + 1) * group))
            assert relative(of_group, dW_k[:, g]) < NEEDED


def test_with_shared_key_heads_one_heads_gradient_alone_is_not_the_keys():
    _, _, [attention, *_], [(W_q, _), *_], [(_, dW_k), *_] = prepared(llama)
    G = implicit_gradient(attention)
    assert relative(G[0].T @ W_q[:, 0], dW_k[:, 0]) > 0.01


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("make", [*WITHOUT_ROPE, llama_with_rope])
def test_factor_gradients_are_the_models_own_also_with_biases_and_rope(make, biases):
    _, _, layers, _, own = prepared(make, biases)
    for attention, expected in zip(layers, own, strict=True):
        for found, wanted in zip(factor_gradients(attention), expected, strict=True):
            assert relative(found, wanted) < NEEDED


def test_with_rope_the_plain_implicit_gradient_is_another_object():
    _, _, layers, weights, own = prepared(llama_with_rope)
    for attention, (_, W_k), (dW_q, _) in zip(layers, weights, own, strict=True):
        assert relative(implicit_gradient(attention)[0] @ W_k[:, 0], dW_q[:, 0]) > 0.01


@pytest.mark.parametrize("make", [bert, causal_bert, gpt2])
def test_key_biases_leave_the_query_gradient_and_query_biases_do_not_leave_the_keys(make):
    """Since beta sums to zero over j, G W_k holds whatever the key's bias."""
    _, _, layers, weights, own = prepared(make, biases=True)
    for attention, (W_q, W_k), (dW_q, dW_k) in zip(layers, weights, own, strict=True):
        G = implicit_gradient(attention)[0]
        assert relative(G @ W_k[:, 0], dW_q[:, 0]) < NEEDED
        assert relative(G.T @ W_q[:, 0], dW_k[:, 0]) > 0.01


@pytest.mark.parametrize("make", [*WITHOUT_ROPE, llama_with_rope])
def test_beta_sums_to_zero_over_keys_and_a_causal_mask_has_none_ahead(make):
    _, _, layers, *_ = prepared(make, biases=True)
    for attention in layers:
        assert attention.beta.abs().max() > 0
        assert (
            float(attention.beta.sum(-1).abs().max() / attention.beta.abs().max()) < 1e-6
        )  # some models take the softmax in float32
        ahead = torch.triu(attention.beta, 1).abs().max()
        assert (ahead > 0) == (make is bert)


def test_rows_without_a_loss_have_beta_below_the_last_layer_only():
    model = built(bert)
    batch = batch_for(model)
    _, layers = attention_gradients(model, batch)
    unlabelled = batch["labels"] == -100
    sizes = [attention.beta.abs().sum((1, 3))[unlabelled].max() for attention in layers]
    assert sizes[0] > 0 and sizes[1] > 0 and sizes[2] == 0


@pytest.mark.parametrize("make", WITHOUT_ROPE)
def test_a_small_step_of_sgd_changes_w_qk_as_the_first_order_formula_says(make):
    model, batch, layers, weights, _ = prepared(make)
    before = [products(*pair) for pair in weights]
    rate = 1e-6
    gradients(model, batch)
    torch.optim.SGD(model.parameters(), lr=rate).step()
    after = [products(*pair) for pair in factors(model.state_dict(), model.config)]
    for attention, (W_q, W_k), old, new in zip(layers, weights, before, after, strict=True):
        G, group = implicit_gradient(attention), W_q.shape[1] // W_k.shape[1]
        for h in range(W_q.shape[1]):
            mates = range(h // group * group, (h // group + 1) * group)
            K, through_queries = W_k[:, h // group], sum(W_q[:, each].T @ G[each] for each in mates)
            formula = -rate * (G[h] @ K @ K.T + W_q[:, h] @ through_queries)
            assert relative(new[h] - old[h], formula) < 1e-4  # what is of second order in the step
        step = [-rate * each for each in factor_gradients(attention)]
        assert relative(new - old, first_order_change(W_q, W_k, *step)) < 1e-4


def test_beta_is_the_derivative_at_a_logit():
    """A finite difference: one entry of an additive mask, by a path of its own. The loss itself is in float32."""
    model = built(causal_bert)
    model.set_attn_implementation("eager")
    batch = batch_for(model, n=1)
    _, layers = attention_gradients(model, batch)
    causal = torch.triu(torch.full((LENGTH, LENGTH), -1e9, dtype=torch.float64), 1)[None, None]
    losses = []
    for nudge in (0.03, -0.03):
        mask = causal.clone()
        mask[0, 0, 4, 2] += nudge
        with torch.no_grad():
            losses.append(float(model(**batch, attention_mask=mask).loss))  # the mask of every layer and head
    scaling = (24 / 4) ** -0.5
    total = sum(float(attention.beta[0, :, 4, 2].sum()) for attention in layers) / scaling
    assert (losses[0] - losses[1]) / 0.06 == pytest.approx(total, rel=0.01)


def test_a_model_is_switched_to_eager_attention_and_back_and_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)
    _tell_of_switch.cache_clear()
    model = built(gpt2)
    assert model.config._attn_implementation == "sdpa"
    attention_gradients(model, batch_for(model))
    assert model.config._attn_implementation == "sdpa"
    assert "GPT2LMHeadModel: switched from sdpa to eager attention" in caplog.text
    assert not any(module._forward_pre_hooks for module in model.modules())


# bad input


def refused(model, batch):
    with pytest.raises(QkgeomError) as told:
        attention_gradients(model, batch)
    return " ".join(str(told.value).split())


@pytest.mark.faults
def test_a_batch_of_length_1():
    for make in (bert, llama):
        model = built(make)
        assert "found: length 1 expected: at least 2 tokens" in refused(model, batch_for(model, length=1))


@pytest.mark.faults
def test_a_loss_that_is_not_finite():
    model = built(bert)
    batch = batch_for(model)
    told = refused(model, {**batch, "labels": torch.full_like(batch["labels"], -100)})
    assert "the loss of a batch is not finite" in told and "found: nan" in told
    assert "found: no loss" in refused(model, {"input_ids": batch["input_ids"]})


@pytest.mark.faults
def test_weights_that_are_not_finite():
    model = built(bert)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    told = refused(model, batch_for(model))
    assert "attention weights of a model are not finite where: BertSelfAttention" in told and "NaN" in told


@pytest.mark.faults
def test_a_model_whose_logits_are_not_those_of_a_softmax_of_products():
    config = Gemma2Config(vocab_size=VOCABULARY, **LLAMA, head_dim=6, attn_logit_softcapping=1.0, initializer_range=0.3)
    model = Gemma2ForCausalLM(config).double()
    told = refused(model, batch_for(model))
    assert "no softmax attention logits" in told and "Gemma2Attention" in told and "differ by" in told
    assert model.config._attn_implementation != "qkgeom_recorded"  # and it is as it was


@pytest.mark.faults
def test_a_model_of_several_stacks():
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.raises(ModelFault) as told:
        factors(model.state_dict(), model.config)
    assert "where:    t5\n  found:    this architecture has the parts decoder, encoder\n" in str(told.value)
    assert "--part" not in str(told.value) and "`updates: runs`" in str(told.value)


@pytest.mark.faults
def test_a_model_that_is_not_of_transformers():
    assert "where: Linear found: not a model of transformers" in refused(torch.nn.Linear(2, 2), {})


@pytest.mark.faults
def test_an_implementation_that_cannot_be_switched(monkeypatch):
    model = built(bert)
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    assert "attention sdpa, which cannot be switched to eager" in refused(model, batch_for(model))


@pytest.mark.faults
def test_a_model_without_attention():
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, state_size=4)
    told = refused(MambaForCausalLM(config), {"input_ids": torch.ones(1, 4, dtype=torch.long)})
    assert "no softmax attention logits" in told
