"""Variations of the configurations of ViT, BERT and GPT-2, listed before the code was read: each exact both ways."""

import pytest
import torch
import transformers

from modeling_leaner.conversion import convert


VIT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 12}
VIT |= {"patch_size": 4, "initializer_range": 0.3}
BERT = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
BERT |= {"max_position_embeddings": 20, "initializer_range": 0.3}
GPT = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 20, "initializer_range": 0.3}
GPT |= {"bos_token_id": 0, "eos_token_id": 1}
# Kept out: layer_norm_eps 0, which the configuration refuses.
VARIATIONS = {
    "vit": [
        {}, {"num_hidden_layers": 1}, {"num_hidden_layers": 5}, {"num_attention_heads": 1},
        {"num_attention_heads": 24},
        {"num_attention_heads": 3, "intermediate_size": 7}, {"hidden_act": "relu"}, {"hidden_act": "gelu_new"},
        {"hidden_act": "quick_gelu"}, {"hidden_act": "silu"}, {"layer_norm_eps": 1e-3}, {"layer_norm_eps": 1e-8},
        {"qkv_bias": False}, {"image_size": (8, 12)}, {"image_size": 16, "patch_size": 2}, {"patch_size": 12},
        {"num_channels": 1}, {"num_channels": 5}, {"pooler_output_size": 10}, {"pooler_act": "relu"},
        {"hidden_dropout_prob": 0.5}, {"attention_probs_dropout_prob": 0.5}, {"encoder_stride": 4},
        {"num_labels": 1}, {"num_labels": 7, "problem_type": "multi_label_classification"},
    ],
    "bert": [
        {}, {"num_hidden_layers": 1}, {"num_hidden_layers": 5}, {"num_attention_heads": 1},
        {"num_attention_heads": 24},
        {"num_attention_heads": 3, "intermediate_size": 7}, {"hidden_act": "relu"}, {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_fast"}, {"hidden_act": "silu"}, {"layer_norm_eps": 1e-3}, {"type_vocab_size": 1},
        {"type_vocab_size": 5}, {"max_position_embeddings": 9}, {"max_position_embeddings": 64}, {"vocab_size": 51},
        {"tie_word_embeddings": False}, {"pad_token_id": 3}, {"pad_token_id": None}, {"classifier_dropout": 0.3},
        {"hidden_dropout_prob": 0.5}, {"attention_probs_dropout_prob": 0.5}, {"chunk_size_feed_forward": 2},
        {"use_cache": False}, {"num_labels": 1, "problem_type": "regression"},
    ],
    "gpt2": [
        {}, {"n_layer": 1}, {"n_layer": 5}, {"n_head": 1}, {"n_head": 24}, {"n_head": 3, "n_inner": 7},
        {"n_inner": 40}, {"activation_function": "relu"}, {"activation_function": "gelu"},
        {"activation_function": "silu"}, {"activation_function": "gelu_pytorch_tanh"}, {"layer_norm_epsilon": 1e-3},
        {"n_positions": 9}, {"n_positions": 64}, {"vocab_size": 51}, {"tie_word_embeddings": False},
        {"resid_pdrop": 0.5, "embd_pdrop": 0.5}, {"attn_pdrop": 0.5}, {"use_cache": False},
        {"bos_token_id": 3, "eos_token_id": 4}, {"pad_token_id": 1}, {"summary_first_dropout": 0.4},
        {"summary_use_proj": False}, {"num_labels": 1}, {"num_labels": 5, "pad_token_id": 0},
    ],
}  # fmt: skip
CLASSES = {
    "vit": (transformers.ViTConfig, VIT, ("ViTModel", "ViTForImageClassification")),
    "bert": (transformers.BertConfig, BERT, ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")),
    "gpt2": (transformers.GPT2Config, GPT, ("GPT2LMHeadModel", "GPT2ForSequenceClassification")),
}
CASES = [
    pytest.param(family, place, marks=[] if place % 7 == 0 else pytest.mark.full, id=f"{family}-{place}")
    for family, variations in VARIATIONS.items()
    for place in range(len(variations))
]


def inputs_of(family, config, padded):
    generator = torch.Generator().manual_seed(0)
    if family == "vit":
        size = config.image_size if isinstance(config.image_size, tuple) else (config.image_size, config.image_size)
        return {"pixel_values": torch.randn(2, config.num_channels, *size, generator=generator).double()}
    ids = torch.randint(5, 50, (2, 8), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 5:] = 0
        ids[1, 5:] = config.pad_token_id or 0
    return {"input_ids": ids, "attention_mask": mask}


def outputs_of(model, inputs):
    outputs = model(**inputs)
    output = outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]
    if output.ndim == 3 and "attention_mask" in inputs:
        return output[inputs["attention_mask"].bool()]
    return output


@torch.no_grad()
@pytest.mark.parametrize("family, place", CASES)
def test_exact_both_ways(family, place):
    config_class, small, classes = CLASSES[family]
    for name in classes:
        torch.manual_seed(0)
        config = config_class(**{**small, **VARIATIONS[family][place]})
        theirs = getattr(transformers, name)(config).double().eval()
        ours = convert(theirs)
        back = convert(ours)
        for padded in (False, True):
            if padded and "SequenceClassification" in name and family == "gpt2" and config.pad_token_id is None:
                continue  # of several rows GPT-2 asks for a padding token
            if "SequenceClassification" in name and family == "gpt2" and config.pad_token_id is None:
                inputs = {key: value[:1] for key, value in inputs_of(family, config, padded).items()}
            else:
                inputs = inputs_of(family, config, padded)
            expected = outputs_of(theirs, inputs)
            assert expected.isfinite().all()
            torch.testing.assert_close(outputs_of(ours, inputs), expected, rtol=0, atol=1e-11)
            torch.testing.assert_close(outputs_of(back, inputs), expected, rtol=0, atol=1e-12)
        for key, tensor in theirs.state_dict().items():
            if key != "cls.predictions.bias":  # which an untied BERT never reads
                assert torch.equal(back.state_dict()[key], tensor), key
