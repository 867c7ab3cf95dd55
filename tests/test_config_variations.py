"""Twenty-five variations of each family's config, converted both ways in float64, with padding and without."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from modeling_leaner.conversion import convert


SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
ENCODER = SIZES | {"intermediate_size": 20}
ACTIVATIONS = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "quick_gelu", "tanh", "relu2"]
HEADS = [{"num_attention_heads": heads} for heads in (1, 2, 4, 6, 12)]
EPSILONS = [1e-12, 1e-5, 1e-2]
OF_ENCODERS = [
    *({"hidden_act": name} for name in ACTIVATIONS),
    *HEADS,
    *({"layer_norm_eps": value} for value in EPSILONS),
    *({"num_hidden_layers": layers} for layers in (1, 3)),
    {"intermediate_size": 1},
]
VIT = OF_ENCODERS + [
    {"qkv_bias": False},
    {"image_size": [16, 8]},
    {"patch_size": [4, 8]},
    {"num_channels": 1},
    {"num_labels": 7},
    {"encoder_stride": 2},
]
BERT = OF_ENCODERS + [
    {"tie_word_embeddings": False},
    {"type_vocab_size": 1},
    {"type_vocab_size": 5},
    {"pad_token_id": None},
    {"chunk_size_feed_forward": 2},
    {"max_position_embeddings": 8},
]
GPT = [
    *({"activation_function": name} for name in ACTIVATIONS),
    *({"n_head": heads["num_attention_heads"]} for heads in HEADS),
    *({"layer_norm_epsilon": value} for value in EPSILONS),
    *({"n_layer": layers} for layers in (1, 3)),
    *({"n_inner": width} for width in (1, 20)),
    {"tie_word_embeddings": False},
    {"n_positions": 8},
    {"use_cache": False},
    {"pad_token_id": 3},
    {"vocab_size": 21},
]
CASES = [
    *((ViTForImageClassification, ViTConfig, ENCODER | {"image_size": 16, "patch_size": 4}, case) for case in VIT),
    *((BertForMaskedLM, BertConfig, ENCODER | {"vocab_size": 40}, case) for case in BERT),
    *(
        (GPT2LMHeadModel, GPT2Config, {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 40}, case)
        for case in GPT
    ),
]


def inputs_of(model):
    """Inputs of the model, without padding, and of a text model with padding on the right, too."""
    torch.manual_seed(1)
    config = model.config
    if config.model_type == "vit":
        size = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
        return [{"pixel_values": torch.randn(2, config.num_channels, *size, dtype=torch.float64)}]
    ids = torch.randint(config.vocab_size, (2, 8))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return [{"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}]


@pytest.mark.parametrize("model_class, config_class, sizes, change", CASES, ids=lambda value: str(value)[:60])
def test_a_variation_is_exact_both_ways(model_class, config_class, sizes, change):
    torch.manual_seed(0)
    model = model_class(config_class(**sizes | change)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
        lean = convert(model)
        back = convert(lean)
        for inputs in inputs_of(model):
            real = inputs.get("attention_mask", torch.ones(2, 8)).bool()
            expected, *found = (each(**inputs).logits for each in (model, lean, back))
            if expected.dim() == 3:
                expected, *found = (logits[real] for logits in (expected, *found))
            for logits in found:
                torch.testing.assert_close(logits, expected, rtol=0, atol=1e-11)
    state = back.state_dict()
    for name, tensor in model.state_dict().items():
        if name != "cls.predictions.bias":  # BERT reads the decoder's
            assert torch.equal(state[name], tensor), name
