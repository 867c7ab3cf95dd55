"""κ of the concatenated head outputs, against a singular value decomposition written out, and on known matrices."""

import pytest
import torch

from modeling_leaner import LeanBERTConfig, LeanBERTModel, LeanGPTForCausalLM, LeanViTForImageClassification
from modeling_leaner.conditioning import head_condition_numbers
from modeling_leaner.modeling_lean_bert import LeanBERTForMultipleChoice
from modeling_leaner.models import evaluating
from modeling_leaner.shapes import load_shape


def small(**changes):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 4}
    return LeanBERTConfig(**{**sizes, "intermediate_size": 32, "vocab_size": 50, "initializer_range": 0.5, **changes})


def test_equals_the_head_outputs_put_together_by_hand():
    torch.manual_seed(0)
    model, ids = LeanBERTModel(small()).double().eval(), torch.randint(5, 50, (3, 12))
    found = head_condition_numbers(model, input_ids=ids)
    model.set_attn_implementation("eager")  # which returns its weights
    outputs = model(ids, output_attentions=True, output_hidden_states=True)
    for layer, weights, states in zip(range(2), outputs.attentions, outputs.hidden_states):
        attention = model.layers[layer].self_attn
        values = attention.v_proj(states).view(3, 12, 4, 4).transpose(1, 2)
        heads = (weights @ values).transpose(1, 2).reshape(3, 12, 16)
        singular = torch.linalg.svdvals(heads)
        assert found[layer] == pytest.approx((singular[:, 0] / singular[:, -1]).median().item(), rel=1e-4)


def test_padding_does_not_count():
    torch.manual_seed(0)
    model, ids = LeanBERTModel(small()).eval(), torch.randint(5, 50, (1, 12))
    longer = torch.cat([ids, torch.zeros(1, 6, dtype=torch.long)], dim=1)
    mask = (torch.arange(18) < 12).long()[None]
    short, padded = (
        head_condition_numbers(model, input_ids=ids),
        head_condition_numbers(model, input_ids=longer, attention_mask=mask),
    )
    assert padded == pytest.approx(short, rel=1e-3)
    assert head_condition_numbers(model, input_ids=longer) != pytest.approx(short, rel=1e-3)


@pytest.mark.parametrize("name", ["vit/nano", "gpt/nano"])
def test_other_families_and_what_is_left_behind(name):
    model_class = {"vit/nano": LeanViTForImageClassification, "gpt/nano": LeanGPTForCausalLM}[name]
    model = model_class(load_shape(name)).train()
    config = model.config
    inputs = (
        {"pixel_values": torch.rand(2, config.num_channels, *config.image_shape)}
        if name == "vit/nano"
        else {"input_ids": torch.randint(0, config.vocab_size, (2, 10))}
    )
    found = head_condition_numbers(model, **inputs)
    assert len(found) == config.num_hidden_layers and min(found) >= 1
    assert model.training and not any(module._forward_pre_hooks for module in model.modules())


def test_modules_that_were_frozen_stay_so():
    """Each module has the mode that it had, in a model that trains but for a layer."""
    model = LeanBERTModel(small()).train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    head_condition_numbers(model, input_ids=torch.randint(5, 50, (1, 6)))
    assert [module.training for module in model.modules()] == modes
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes


def test_choices_and_rows_without_tokens():
    """(B, C, T) of multiple choice are B·C rows; a row without tokens has no κ."""
    torch.manual_seed(0)
    model = LeanBERTForMultipleChoice(small()).eval()
    ids = torch.randint(5, 50, (2, 3, 12))
    mask = torch.ones_like(ids)
    mask[1, 2, 6:] = 0
    rows = head_condition_numbers(model.model, input_ids=ids.flatten(0, 1), attention_mask=mask.flatten(0, 1))
    assert head_condition_numbers(model, input_ids=ids, attention_mask=mask) == rows
