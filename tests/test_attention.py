"""`attn_implementation="lean"`: exact whichever kernel it picks, and nobody else's."""

import copy
import statistics
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from common import NO_DROPOUT, TOLERANCE, WRONG, check_training, distance, loss_and_gradients, sharpen
from test_remote_code import FAMILIES
from torch import nn
from transformers import StaticCache

from modeling_leaner import attention_leaner
from modeling_leaner.attention_leaner import (
    LEAN_ATTENTION,
    LONGEST_PRODUCTS,
    block_attention_forward,
    blocks_of,
    fastest_kernel,
    products_attention_forward,
    sdpa_attention_forward,
)


TEXTS = ("bert", "gpt")
KERNELS = {
    "blocks": block_attention_forward,
    "products": products_attention_forward,
    "sdpa": sdpa_attention_forward,
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of ten scores, in rows of three where causal."""
    monkeypatch.setattr(attention_leaner, "SCORES_OF_A_BLOCK", 10)
    monkeypatch.setattr(attention_leaner, "ROWS_OF_A_CAUSAL_BLOCK", 3)


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch, small_blocks):
    """Each of the three kernels, whatever is fastest."""
    monkeypatch.setattr(attention_leaner, "fastest_kernel", lambda *arguments: KERNELS[request.param])


def pair(family, shape="per-layer", **overrides):
    """A model with "lean" and the same with eager attention."""
    lean = FAMILIES[family]().build(shape, **overrides)
    eager = copy.deepcopy(lean)
    lean.set_attn_implementation("lean")
    eager.set_attn_implementation("eager")
    assert lean.config._attn_implementation == LEAN_ATTENTION
    return lean, eager


def labelled(family):
    """Inputs and labels of the family's first head."""
    tests = FAMILIES[family]()
    return tests.inputs(next(iter(tests.heads)))


@pytest.mark.parametrize("family", FAMILIES)
def test_masks(family, kernel):
    lean, eager = pair(family)
    inputs, counts = FAMILIES[family]().padded()
    if family == "gpt":  # which does not look to the right
        counts = counts.flip(1)
        inputs["attention_mask"] = counts.long()
    without = {name: value for name, value in inputs.items() if name != "attention_mask"}
    expected = eager(**inputs).logits[counts]
    assert distance(lean(**inputs).logits[counts], expected) < TOLERANCE
    assert distance(lean(**without).logits, eager(**without).logits) < TOLERANCE
    if family in TEXTS:
        assert distance(lean(**without).logits[counts], expected) > WRONG
        exact = eager.double()(**inputs).logits[counts]
        assert exact.isfinite().all() and distance(lean.double()(**inputs).logits[counts], exact) < 1e-12


@pytest.mark.parametrize("family", TEXTS)
def test_packed_sequences_and_masks_of_four_dimensions(family, kernel):
    """Positions that restart; a mask that is made already, of truth values or of what is added to the scores."""
    lean, eager = pair(family)
    ids = FAMILIES[family]().inputs()["input_ids"]
    rows, length = ids.shape
    positions = torch.cat((torch.arange(4), torch.arange(length - 4))).expand(rows, -1)
    expected = eager(ids, position_ids=positions).logits
    assert distance(lean(ids, position_ids=positions).logits, expected) < TOLERANCE
    seen = torch.ones(rows, 1, length, length, dtype=torch.bool).tril()
    seen[..., 1:, 2] = False
    seen[..., 2, 2] = True
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = eager(ids, attention_mask=added).logits
    for mask in (seen, added):
        assert distance(lean(ids, attention_mask=mask).logits, expected) < TOLERANCE
    for mask in (seen, seen.long()):
        assert distance(eager(ids, attention_mask=mask).logits, expected) < TOLERANCE


def test_padding_on_the_left_sees_no_future(kernel):
    """The last place of padding predicts the first token, by nothing that comes after it."""
    lean, _ = pair("gpt", **NO_DROPOUT)
    ids = FAMILIES["gpt"]().ids(2, 9)
    mask = torch.ones_like(ids)
    mask[:, :4] = 0
    others = ids.clone()
    others[:, 5:] += 1
    first, second = (lean.train()(each, attention_mask=mask).logits for each in (ids, others))
    assert distance(first[:, :5], second[:, :5]) < TOLERANCE
    assert distance(first[:, 5:], second[:, 5:]) > WRONG


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_see_nothing_are_finite(dtype, kernel):
    """Not NaN: the least float32 is -inf in half precision, as are scores below its least number."""
    lean, _ = pair("gpt", attention_probs_dropout_prob=0.5)
    ids = FAMILIES["gpt"]().inputs()["input_ids"]
    padded = torch.ones_like(ids)
    padded[0, :4] = 0
    masks = [padded]
    for least in (torch.finfo(dtype).min, torch.finfo(torch.float32).min):
        added = torch.zeros(*ids.shape, ids.shape[1])[:, None]
        added[:, :, 3:, 2] = least
        added[:, :, 5] = least
        masks += [added.to(dtype), added == 0]
    with torch.no_grad():
        for layer in lean.model.layers:
            layer.self_attn.q_proj.bias += 30
            layer.self_attn.k_proj.bias -= 30
    for model in (lean.to(dtype).eval(), lean.train()):
        for mask in masks:
            assert model(ids, attention_mask=mask).logits.isfinite().all()
            assert model(ids, attention_mask=mask, output_attentions=True).logits.isfinite().all()
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            assert lean.float()(ids, attention_mask=masks[-1]).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_training(family, kernel):
    lean, eager = pair(family, **NO_DROPOUT)
    inputs = labelled(family)
    check_training(loss_and_gradients(lean.train(), inputs), loss_and_gradients(eager.train(), inputs))


@pytest.mark.parametrize("scores", [10, 2**18])
@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_that_of_eager_attention(family, scores, small_blocks, monkeypatch):
    """The same weights are dropped, however many scores a block has: blocks draw as eager attention does."""
    monkeypatch.setattr(attention_leaner, "SCORES_OF_A_BLOCK", scores)
    lean, eager = pair(family, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    inputs = labelled(family)
    loss, gradients = loss_and_gradients(lean.train(), inputs)
    check_training((loss, gradients), loss_and_gradients(eager.train(), inputs))
    assert not torch.allclose(loss, loss_and_gradients(eager.eval(), inputs)[0], rtol=1e-3)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_that_is_computed_again_runs_the_same_kernel(reentrant, monkeypatch):
    """And drops the same. A reentrant checkpoint computes without gradients first."""
    lean, _ = pair("gpt", attention_probs_dropout_prob=0.5)
    inputs = labelled("gpt")
    expected = loss_and_gradients(lean.train(), inputs)
    lean.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    blocks = Mock(side_effect=block_attention_forward)
    monkeypatch.setattr(attention_leaner, "block_attention_forward", blocks)
    check_training(loss_and_gradients(lean, inputs), expected, 1e-5)
    assert blocks.call_count == 2 * lean.config.num_hidden_layers


@pytest.mark.parametrize("shape", ["per-layer", "grouped"])
def test_caches(shape, kernel):
    lean, eager = pair("gpt", shape)
    ids = FAMILIES["gpt"]().ids(2, 9)
    expected = eager(ids).logits
    past = lean(ids[:, :4], use_cache=True).past_key_values
    several = lean(ids[:, 4:8], past_key_values=past, use_cache=True)
    last = lean(ids[:, 8:], past_key_values=several.past_key_values, use_cache=True)
    assert distance(several.logits, expected[:, 4:8]) < TOLERANCE
    assert distance(last.logits, expected[:, 8:]) < TOLERANCE
    if shape == "grouped":
        static = StaticCache(config=lean.config, max_cache_len=12)
        assert distance(lean(ids[:, :4], past_key_values=static, use_cache=True).logits, expected[:, :4]) < TOLERANCE
        assert distance(lean(ids[:, 4:], past_key_values=static, use_cache=True).logits, expected[:, 4:]) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_are_recorded_where_they_are_asked_for(family):
    lean, eager = pair(family)
    inputs, _ = FAMILIES[family]().padded()
    expected = eager(**inputs, output_attentions=True).attentions
    recorded = lean(**inputs, output_attentions=True).attentions
    assert len(recorded) == lean.config.num_hidden_layers
    by_config = FAMILIES[family]().build("per-layer", output_attentions=True)
    assert [weights.shape for weights in by_config(**inputs).attentions] == [weights.shape for weights in recorded]
    for weights, others in zip(recorded, expected):
        assert distance(weights, others) < TOLERANCE
    with torch.autocast("cpu", torch.bfloat16):
        assert lean(**inputs, output_attentions=True).attentions[0].dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_no_less_exact_than_eager_attention(family):
    """Gradients under autocast, beside those in float32: the typical ratio of squared errors over draws of weights.

    One draw's ratio varies from 0.5 to 4 by rounding alone.
    """
    ratios = []
    for seed in range(64):
        model = sharpen(FAMILIES[family]().build("base", **NO_DROPOUT), seed).train()
        with torch.no_grad():
            for layer in model.base_model.layers:  # within half precision's reach
                layer.self_attn.q_proj.weight.mul_(0.25)
        model.set_attn_implementation("eager")
        _, exact = loss_and_gradients(model, labelled(family))
        errors = {}
        for attention in ("lean", "eager"):
            model.set_attn_implementation(attention)
            with torch.autocast("cpu", torch.bfloat16):
                _, gradients = loss_and_gradients(model, labelled(family))
            errors[attention] = sum(((gradients[name] - exact[name]) ** 2).sum().item() for name in exact)
        ratios.append(errors["lean"] / errors["eager"])
    assert min(ratios) > 0 and statistics.geometric_mean(ratios) < 1.3, ratios


@pytest.mark.parametrize(
    ("training", "dtype", "dropout", "length", "is_causal", "expected"),
    [
        (True, torch.bfloat16, 0.0, LONGEST_PRODUCTS, False, "products"),
        (True, torch.bfloat16, 0.0, LONGEST_PRODUCTS + 1, False, "blocks"),
        (True, torch.bfloat16, 0.1, 8, False, "blocks"),
        (True, torch.float32, 0.0, 200, True, "sdpa"),
        (True, torch.float32, 0.1, 8, False, "blocks"),
        (True, torch.float32, 1e-6, 8, False, "sdpa"),  # which rounds to none
        (False, torch.bfloat16, 0.0, 8, False, "blocks"),
        (False, torch.bfloat16, 0.0, 1, False, "sdpa"),
        (False, torch.float16, 0.0, 8, False, "sdpa"),
        (False, torch.float32, 0.0, 200, False, "sdpa"),
        (False, torch.float32, 0.0, 200, True, "blocks"),
        (False, torch.float32, 0.0, 8, True, "sdpa"),
    ],
)
def test_what_is_picked(training, dtype, dropout, length, is_causal, expected, monkeypatch):
    monkeypatch.setattr(attention_leaner, "multiplies_bfloat16", lambda: True)
    module = nn.Module().train(training)
    module.is_causal = is_causal
    states = torch.empty(1, 1, length, 4, dtype=dtype)
    assert fastest_kernel(module, states, states, None, dropout) is KERNELS[expected]
    elsewhere = states.to("meta")
    assert fastest_kernel(module, elsewhere, elsewhere, None, dropout) is sdpa_attention_forward
    if dtype == torch.bfloat16 and dropout == 0:
        monkeypatch.setattr(attention_leaner, "multiplies_bfloat16", lambda: False)
        assert fastest_kernel(module, states, states, None, dropout) is sdpa_attention_forward


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("scores", [1, 30, 2**18])
def test_blocks_cover_what_is_seen_once(scores, is_causal, small_blocks, monkeypatch):
    """And have no more scores than they may, where one query of a head has no more keys."""
    monkeypatch.setattr(attention_leaner, "SCORES_OF_A_BLOCK", scores)
    covered = torch.zeros(3, 4, 8, 8)
    for block in blocks_of(covered.shape, is_causal):
        assert covered[block].numel() <= max(scores, 8)
        covered[block] += 1
    assert covered.max() == 1
    seen = torch.ones(8, 8, dtype=torch.bool)
    assert covered[..., seen.tril() if is_causal else seen].min() == 1
    assert not is_causal or covered[..., 0, 3:].max() == 0


def heads(groups=1, is_causal=False):
    """What a kernel reads of an attention layer in training."""
    module = nn.Module()
    module.num_key_value_groups = groups
    module.is_causal = is_causal
    return module


MASKS = {
    "none": lambda queries, keys: None,
    "bool": lambda queries, keys: (torch.rand(2, 1, queries, keys) > 0.3) | (torch.arange(keys) == 0),
    "numbers": lambda queries, keys: torch.randn(2, 4, queries, keys),
    "one row for all": lambda queries, keys: torch.arange(keys) < torch.tensor([keys, 1])[:, None, None, None],
}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_blocks_are_products(mask, is_causal, groups, small_blocks, monkeypatch):
    """Output and gradients in float64, the same weights dropped; the gradient comes in another layout."""
    torch.manual_seed(0)
    sizes = [(7, 7), (3, 9), (9, 3), (1, 5), (1, 1)]
    for (queries, keys), scores in product(sizes, (10, 2**18)):
        monkeypatch.setattr(attention_leaner, "SCORES_OF_A_BLOCK", scores)
        seen = MASKS[mask](queries, keys)
        shapes = [(2, 4, queries, 8), *[(2, 4 // groups, keys, 8)] * 2]
        states = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        weight = torch.randn(2, 8, 4, queries, dtype=torch.float64).permute(0, 3, 2, 1)
        found = []
        for kernel in (block_attention_forward, products_attention_forward):
            leaves = [state.clone().requires_grad_() for state in states]
            torch.manual_seed(1)
            output, _ = kernel(heads(groups, is_causal), *leaves, seen, 0.3, 0.4)
            output.backward(weight)
            found.append([output, *(leaf.grad for leaf in leaves)])
        torch.testing.assert_close(*found, msg=f"{queries} × {keys}, {scores} scores a block")


def test_blocks_compute_in_float32_where_autocast_would_not():
    """Autocast reaches neither pass."""
    torch.manual_seed(0)
    states = [torch.randn(2, 3, 16, 8) for _ in range(3)]
    found = []
    for autocast in (True, False):
        leaves = [state.clone().requires_grad_() for state in states]
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, _ = block_attention_forward(heads(), *leaves, None, 0.25, 0.1)
            output.square().sum().backward()
        found.append([output, *(leaf.grad for leaf in leaves)])
    assert all(map(torch.equal, *found))


def test_a_mask_that_is_learnt_is_left_to_products():
    mask = torch.zeros(1, 1, 4, 4, requires_grad=True)
    states = [torch.randn(1, 1, 4, 8) for _ in range(3)]
    output, _ = block_attention_forward(heads(), *states, mask, 0.3, 0.1)
    output.square().sum().backward()
    assert mask.grad.abs().max() > 0


@pytest.mark.parametrize("family", TEXTS)
def test_gradients_of_each_example_by_torch_func(family):
    """torch.func takes no kernel of blocks; dropout is PyTorch's there, and differs from example to example."""
    lean, _ = pair(family, attention_probs_dropout_prob=0.5)
    inputs = {name: each[:1].repeat(2, 1) for name, each in FAMILIES[family]().inputs().items()}
    parameters = dict(lean.train().named_parameters())

    def loss(parameters, example):
        one = {name: each[None] for name, each in example.items()}
        return torch.func.functional_call(lean, parameters, (), one).logits.square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="different")(parameters, inputs)
    first, second = gradients["model.layers.0.self_attn.v_proj.weight"]
    assert first.isfinite().all() and not torch.allclose(first, second)


@pytest.mark.parametrize("family", TEXTS)
def test_second_derivatives(family):
    """Gradients of gradients by blocks are those of eager attention with the same dropout."""
    lean, eager = pair(family, attention_probs_dropout_prob=0.2)
    inputs = labelled(family)
    found = []
    for model in (lean.double().train(), eager.double().train()):
        parameters = [p for name, p in model.named_parameters() if "self_attn" in name]
        torch.manual_seed(1)
        gradients = torch.autograd.grad(model(**inputs).loss, parameters, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), parameters))
    largest = max(float(g.abs().max()) for g in found[1])
    assert all((a - b).abs().max() < 1e-6 * largest for a, b in zip(*found))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_is_sdpa_to_transformers_and_lean_to_the_layers(family, monkeypatch):
    model = FAMILIES[family]().build("per-layer").train()
    assert model.config._attn_implementation == "sdpa"
    asked = Mock(side_effect=attention_leaner.fastest_kernel)
    monkeypatch.setattr(attention_leaner, "fastest_kernel", asked)
    inputs = labelled(family)
    model(**inputs)
    assert asked.called
    asked.reset_mock()
    model.set_attn_implementation("sdpa")  # by name: nothing else
    model(**inputs)
    assert not asked.called
