"""Configurations: what they refuse, how they count, and the named shapes."""

import json
from dataclasses import fields

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, PreTrainedConfig

import modeling_leaner
from modeling_leaner import LeanBERTConfig, LeanGPTConfig, LeanViTConfig
from modeling_leaner.conversion import to_lean_config
from modeling_leaner.names import SHAPES, baseline_of, shape_names
from modeling_leaner.shapes import CONFIG_CLASSES, load_shape


CONFIGS = list(CONFIG_CLASSES.values())
INPUTS = {
    "lean_vit": lambda config: {"pixel_values": torch.randn(2, config.num_channels, *config.image_shape)},
    "lean_bert": lambda config: {"input_ids": torch.randint(config.vocab_size, (2, config.max_position_embeddings))},
    "lean_gpt": lambda config: {"input_ids": torch.randint(config.vocab_size, (2, config.max_position_embeddings))},
}


def build(config):
    """The family's pretraining head."""
    prefix = type(config).__name__.removesuffix("Config")
    return getattr(modeling_leaner, prefix + config.task_heads[0])(config)


@pytest.mark.parametrize("config_class", CONFIGS)
class TestKeys:
    def test_unknown_keys_are_refused_by_name(self, config_class):
        with pytest.raises(ValueError, match="hiden_size: did you mean hidden_size?"):
            config_class(hiden_size=48)
        with pytest.raises(ValueError, match="n_hidden_layers: did you mean num_hidden_layers"):
            config_class(n_hidden_layers=4)
        with pytest.raises(ValueError, match="zebra: unknown key"):
            config_class(zebra=1)

    def test_keys_of_transformers_are_not_refused(self, config_class):
        known = {"output_hidden_states": True, "tokenizer_class": "x", "name_or_path": "z", "temperature": 0.5}
        known |= {"quantization_config": {"quant_method": "y"}, "problem_type": "regression", "architectures": ["A"]}
        config = config_class(**known, num_labels=3, attn_implementation="eager", torch_dtype="float32")
        assert config.num_labels == 3 and config._attn_implementation == "eager" and config.dtype == torch.float32
        assert config_class(num_labels=None).num_labels == 2
        assert config_class(initializer_range=1, layer_norm_eps=1).initializer_range == 1
        assert config_class(num_labels=1, problem_type="regression").num_labels == 1

    def test_files(self, config_class, tmp_path):
        config_class().save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        values = json.loads(path.read_text())
        with pytest.raises(ValueError, match="num_hiden_layers: did you mean num_hidden_layers?"):
            AutoConfig.from_pretrained(tmp_path, num_hiden_layers=3)
        path.write_text(json.dumps({**values, "hiden_size": 48}))
        for load in (config_class.from_pretrained, AutoConfig.from_pretrained):
            with pytest.raises(ValueError, match="hiden_size: did you mean hidden_size?"):
                load(tmp_path)
        path.write_text(json.dumps({**values, "some_future_key": 7}))
        config_class.from_pretrained(tmp_path).save_pretrained(tmp_path)
        assert json.loads(path.read_text())["some_future_key"] == 7
        path.write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match=f"model_type must be '{config_class.model_type}', got 'bert'"):
            config_class.from_pretrained(tmp_path)

    def test_every_field_is_documented(self, config_class):
        own = {field.name for field in fields(config_class)} - {field.name for field in fields(PreTrainedConfig)}
        documentation = "".join(each.__doc__ or "" for each in config_class.__mro__)
        missing = [name for name in own if f"        {name} (`" not in documentation]
        assert not missing


ANY = [
    ({"num_attention_heads": 7}, "num_attention_heads=7 .* hidden_size=768"),
    ({"hidden_size": 0}, "hidden_size must be an integer from 1 to 2,147,483,647, got 0"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
    ({"hidden_size": "large"}, "'hidden_size' expected int, got str .*'large'"),
    ({"hidden_act": "gleu"}, "hidden_act 'gleu'"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps must be finite and above 0, got 0.0"),
    ({"num_labels": 0}, "num_labels must be an integer from 1 to 10,000,000, got 0"),
    ({"problem_type": "foo"}, "problem_type must be one of .*regression.* got 'foo'"),
    ({"id2label": {"x": "y"}}, "id2label must map numbers to names"),
    ({"per_layer_config": {12: {"num_attention_heads": 4}}}, "per_layer_config must map layers in 0..11"),
    ({"per_layer_config": {0: {"num_attention_heads": 0}}}, "per_layer_config must map layers in 0..11 to heads"),
]
OWN = [
    (LeanViTConfig, {"image_size": 230}, "image_size: height 230 is not a multiple of patch_size 16"),
    (LeanViTConfig, {"image_size": [224]}, "image_size must be one or two integers"),
    (LeanViTConfig, {"out_features": ["stage99"]}, "out_features"),
    (LeanBERTConfig, {"pad_token_id": 40000}, "pad_token_id 40000 must be in 0..vocab_size-1=30521"),
    (LeanGPTConfig, {"num_key_value_heads": 5}, "num_attention_heads=12 of layer 0 .* num_key_value_heads=5"),
    (
        LeanGPTConfig,
        {"num_key_value_heads": 4, "per_layer_config": {3: {"num_attention_heads": 6}}},
        "num_attention_heads=6 of layer 3 .* num_key_value_heads=4",
    ),
]


@pytest.mark.parametrize(("config_class", "values", "message"), [*[(LeanBERTConfig, *case) for case in ANY], *OWN])
def test_refused_by_name(config_class, values, message, tmp_path):
    with pytest.raises(ValueError, match=message) as refusal:
        config_class(**values)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 250
    if values.keys() & {"out_features", "num_attention_heads"}:
        return  # a file states its own: the other heads need not divide
    config_class(head_dim=64).save_pretrained(tmp_path)
    with pytest.raises(ValueError):
        AutoConfig.from_pretrained(tmp_path, **values)


# Property: an accepted configuration builds, runs and counts its parameters exactly; any other raises a ValueError
# that names the field.

SIZES = {
    "hidden_size": st.integers(0, 24),
    "num_hidden_layers": st.integers(0, 3),
    "num_attention_heads": st.integers(0, 5),
    "head_dim": st.none() | st.integers(-1, 9),
    "intermediate_size": st.integers(0, 20),
    "hidden_act": st.sampled_from(["gelu", "gelu_new", "relu", "silu"]),
    "hidden_dropout_prob": st.sampled_from([0.0, 0.1, 1.5]),
}
HEADS_OF_LAYERS = st.none() | st.dictionaries(
    st.integers(0, 3), st.fixed_dictionaries({"num_attention_heads": st.integers(0, 6)}), max_size=2
)
FAMILY_FIELDS = {
    LeanViTConfig: {
        "image_size": st.integers(0, 12) | st.lists(st.integers(0, 12), min_size=2, max_size=2),
        "patch_size": st.integers(1, 4) | st.lists(st.integers(1, 4), min_size=2, max_size=2),
        "num_channels": st.integers(0, 3),
        "qkv_bias": st.booleans(),
        "num_labels": st.integers(1, 4),
    },
    LeanBERTConfig: {
        "vocab_size": st.integers(0, 20),
        "max_position_embeddings": st.integers(0, 9),
        "type_vocab_size": st.integers(0, 2),
        "tie_word_embeddings": st.booleans(),
    },
    LeanGPTConfig: {
        "vocab_size": st.integers(0, 20),
        "max_position_embeddings": st.integers(0, 9),
        "tie_word_embeddings": st.booleans(),
    },
}


@pytest.mark.parametrize("config_class", CONFIGS)
def test_accepted_configurations_run_and_others_name_the_field(config_class):
    accepted = []

    @settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values=st.fixed_dictionaries({**SIZES, **FAMILY_FIELDS[config_class]}), heads=HEADS_OF_LAYERS)
    def check(values, heads):
        if heads:
            values = {**values, "per_layer_config": heads}
        try:
            config = config_class(**values)
        except ValueError as error:
            assert any(name in str(error) for name in values), f"{values} refused without a field: {error}"
            return
        accepted.append(values)
        model = build(config).eval()
        assert model.num_parameters() == config.count_parameters().total
        inputs = INPUTS[config.model_type](config)
        with torch.no_grad():
            assert torch.isfinite(model(**inputs).logits).all()

    check()
    assert len(accepted) >= 5, "nearly everything was refused: the property says nothing"


class TestNamedShapes:
    def test_counts_equal_the_built_module(self):
        tables = ("embed_tokens", "embed_positions", "embed_token_types", "cls_token", "position_embeddings")
        for name in shape_names():
            config = load_shape(name)
            with torch.device("meta"):
                model = build(config)
            count = config.count_parameters()
            embeddings = sum(p.numel() for n, p in model.named_parameters() if any(table in n for table in tables))
            assert (count.total, count.embeddings) == (model.num_parameters(), embeddings), name
            assert config.architectures == [type(model).__name__]
            assert "tiny" not in name or 1e6 <= count.total <= 5e6 and getattr(config, "vocab_size", 0) <= 8192, name

    def test_files_are_complete_and_load(self):
        unstated = {"pooler_output_size", "loss_chunk_size", "unpad_inputs"}
        for name in shape_names():
            path = SHAPES / f"{name}.json"
            values = json.loads(path.read_text())
            config_class = CONFIG_CLASSES[name.split("/")[0]]
            own = {field.name for field in fields(config_class)} - {field.name for field in fields(PreTrainedConfig)}
            missing = {key for key in own if not key.startswith("_")} - values.keys() - unstated
            assert not missing and {"model_type", "architectures"} <= values.keys(), name
            assert AutoConfig.from_pretrained(path) == load_shape(name)

    def test_baselines_are_the_defaults_of_transformers(self):
        """Every field of `base` is what transformers' own ViT, BERT and GPT-2 configurations say."""
        for name, theirs in (("vit", "ViTConfig"), ("bert", "BertConfig"), ("gpt", "GPT2Config")):
            ours, expected = load_shape(f"{name}/base"), to_lean_config(getattr(transformers, theirs)())
            own = {field.name for field in fields(ours)} - {field.name for field in fields(PreTrainedConfig)}
            different = {key for key in own if getattr(ours, key) != getattr(expected, key)}
            assert different <= {"classifier_dropout"}, different  # left out, LeanGPT's is GPT-2's 0.1 as well

    def test_twins_and_controls_differ_from_the_baseline_as_their_names_say(self):
        for name in filter(baseline_of, shape_names()):
            self.check_variant(name)

    def check_variant(self, name):
        config, baseline = load_shape(name), load_shape(baseline_of(name))
        differing = {key for key, value in config.to_dict().items() if value != baseline.to_dict()[key]}
        differing -= {"out_features", "out_indices"}
        parameters, most = config.count_parameters(), baseline.count_parameters().total
        if any(control in name for control in ("half-mlp", "quarter-mlp", "narrow")):
            twin = load_shape(f"{name.split('/')[0]}/lean-mini").count_parameters()
            assert differing & {"hidden_size", "intermediate_size"}
            if "half" in name:
                assert twin.total < parameters.total < most
            elif "/narrow" in name:
                without = [count.total - count.embeddings for count in (parameters, twin)]
                assert without[0] == pytest.approx(without[1], rel=0.01)
            else:
                assert parameters.total == pytest.approx(twin.total, rel=0.01)
            return
        assert differing <= {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"}
        assert "shallow" not in name or differing == {"num_hidden_layers"}
        if "many-heads" in name:
            assert parameters.total == most
        else:
            assert parameters.total <= 0.7 * most


class TestCounting:
    def test_cache_bytes(self):
        config = load_shape("gpt/tiny", num_key_value_heads=1)
        assert config.kv_bytes_per_token() == 2 * 6 * 1 * 64 * 2 and config.kv_bytes_per_token(4) == 2 * 6 * 64 * 4
        assert load_shape("bert/tiny").kv_bytes_per_token() is None
        assert load_shape("vit/tiny").kv_bytes_per_token() is None

    @pytest.mark.parametrize(
        ("name", "overrides"),
        [
            ("vit/lean-tiny", {"head_dim": 40}),
            ("bert/lean-tiny", {"vocab_size": 500}),
            ("gpt/lean-tiny", {"vocab_size": 500, "num_key_value_heads": 2}),
            ("gpt/tiny", {"vocab_size": 500, "per_layer_config": {0: {"num_attention_heads": 9}}}),
        ],
    )
    def test_flops_are_a_profilers(self, name, overrides):
        """torch counts the matrix products of eager attention, forward and backward; causal attention counts full."""
        from torch.utils.flop_counter import FlopCounterMode

        config = load_shape(name, **overrides)
        config._attn_implementation = "eager"
        model = build(config).train()
        length = config.default_length if "vit" in name else 32
        if "vit" in name:
            inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 2])}
        else:
            ids = torch.randint(500, (2, 32))
            inputs = {"input_ids": ids, "labels": ids}
        with FlopCounterMode(display=False) as counter:
            loss = model(**inputs).loss
        flops = config.count_flops(length)
        assert abs(counter.get_total_flops() / (2 * flops.forward) - 1) < 0.01
        for head in ("Model", *(head for head in config.task_heads if head not in ("Backbone", "ForMultipleChoice"))):
            other = getattr(modeling_leaner, type(config).__name__.removesuffix("Config") + head)(config)
            given = {key: value[:1] for key, value in inputs.items() if key != "labels"}
            with FlopCounterMode(display=False) as heads_counter, torch.no_grad():
                other(**given)
            assert abs(heads_counter.get_total_flops() / config.count_flops(length, head).forward - 1) < 0.001, head
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        assert abs(counter.get_total_flops() / (2 * (flops.training_step - flops.forward)) - 1) < 0.01
