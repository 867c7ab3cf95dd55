"""Exact relatives: the same outputs as transformers' ViT, BERT and GPT-2, and the same bits after the round trip."""

import json

import pytest
import torch
import transformers
from common import distance
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import BertConfig, GPT2Config
from typer.testing import CliRunner

from modeling_leaner import LeanBERTConfig, LeanGPTConfig, LeanGPTForCausalLM, LeanViTConfig
from modeling_leaner.cli.app import app
from modeling_leaner.conversion import (
    RELATIVES,
    convert,
    convert_checkpoint,
    from_lean_config,
    load_lean,
    to_lean_config,
)


SMALL = {
    "vit": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    | {"image_size": 12, "patch_size": 4},
    "bert": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    | {"vocab_size": 50, "max_position_embeddings": 20},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 20}
    | {"bos_token_id": 0, "eos_token_id": 1},
}
# Kept out: layer_norm_eps 0, which the configuration refuses.
VARIATIONS = {
    "vit": [
        {}, {"num_hidden_layers": 1}, {"num_attention_heads": 1}, {"num_attention_heads": 24},
        {"num_attention_heads": 3, "intermediate_size": 7}, {"hidden_act": "relu"}, {"hidden_act": "gelu_new"},
        {"hidden_act": "quick_gelu"}, {"layer_norm_eps": 1e-3}, {"layer_norm_eps": 1e-8},
        {"qkv_bias": False}, {"image_size": (8, 12)}, {"image_size": 16, "patch_size": 2}, {"patch_size": 12},
        {"num_channels": 1}, {"num_channels": 5}, {"pooler_output_size": 10}, {"pooler_act": "relu"},
        {"hidden_dropout_prob": 0.5}, {"attention_probs_dropout_prob": 0.5}, {"encoder_stride": 4},
        {"num_labels": 1}, {"num_labels": 7, "problem_type": "multi_label_classification"},
    ],
    "bert": [
        {}, {"num_hidden_layers": 1}, {"num_attention_heads": 1}, {"num_attention_heads": 24},
        {"num_attention_heads": 3, "intermediate_size": 7}, {"hidden_act": "relu"}, {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_fast"}, {"layer_norm_eps": 1e-3}, {"type_vocab_size": 5},
        {"tie_word_embeddings": False}, {"vocab_size": 51}, {"max_position_embeddings": 9},
        {"max_position_embeddings": 64}, {"pad_token_id": 3}, {"pad_token_id": None}, {"classifier_dropout": 0.3},
        {"hidden_dropout_prob": 0.5}, {"attention_probs_dropout_prob": 0.5}, {"chunk_size_feed_forward": 2},
        {"use_cache": False}, {"num_labels": 1, "problem_type": "regression"},
    ],
    "gpt2": [
        {}, {"n_layer": 1}, {"n_head": 1}, {"n_head": 24}, {"n_head": 3, "n_inner": 7},
        {"n_inner": 40}, {"activation_function": "relu"}, {"activation_function": "gelu"},
        {"activation_function": "silu"}, {"activation_function": "gelu_pytorch_tanh"}, {"layer_norm_epsilon": 1e-3},
        {"n_positions": 9}, {"n_positions": 64}, {"vocab_size": 51}, {"use_cache": False},
        {"tie_word_embeddings": False}, {"resid_pdrop": 0.5, "embd_pdrop": 0.5}, {"attn_pdrop": 0.5},
        {"bos_token_id": 3, "eos_token_id": 4}, {"pad_token_id": 1}, {"summary_first_dropout": 0.4},
        {"summary_use_proj": False}, {"num_labels": 1}, {"num_labels": 5, "pad_token_id": 0},
    ],
}  # fmt: skip
# Of a family's first two classes every variation, of its other heads the first and the last two, on labels.
CASES = [
    pytest.param(relative, name, changes, marks=[] if place % 5 == 0 else pytest.mark.full, id=f"{name}-{place}")
    for relative in RELATIVES
    for number, name in enumerate(relative.classes)
    for place, changes in enumerate(VARIATIONS[relative.model_type])
    if number < 2 or place == 0 or place >= len(VARIATIONS[relative.model_type]) - 2
]


def build(name, **changes):
    """A model of transformers with weights, biases and norms of high variance."""
    config_class = getattr(transformers, name).config_class
    if name.endswith("QuestionAnswering"):
        changes = {**changes, "num_labels": 2}
    torch.manual_seed(0)
    model = getattr(transformers, name)(config_class(**{**SMALL[config_class.model_type], **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.ndim > 1 else 0.7))
    model.tie_weights()
    return model.eval()


def inputs_of(name, config):
    """Images, or two texts of which one is padded; GPT-2 classifies two only by a padding token."""
    generator = torch.Generator().manual_seed(1)
    if name.startswith("ViT"):
        size = config.image_size if isinstance(config.image_size, tuple) else [config.image_size] * 2
        return {"pixel_values": torch.randn(2, config.num_channels, *size, generator=generator).double()}
    ids = torch.randint(5, 50, (2, 8), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    ids[1, 5:] = config.pad_token_id or 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("Bert"):
        inputs["token_type_ids"] = torch.randint(0, 2, (2, 8), generator=generator)
    if name.endswith("MultipleChoice"):
        return {key: value[:, None].repeat(1, 3, 1) for key, value in inputs.items()}
    if name == "GPT2ForSequenceClassification" and config.pad_token_id is None:
        return {key: value[:1] for key, value in inputs.items()}
    return inputs


@torch.no_grad()
@pytest.mark.parametrize(("relative", "name", "changes"), CASES)
def test_exact_both_ways(relative, name, changes):
    theirs = build(name, **changes).double()
    ours = convert(theirs)
    back = convert(ours)
    assert type(ours).__name__ == relative.classes[name] and type(back) is type(theirs)
    assert ours.num_parameters() == ours.config.count_parameters(type(ours).__name__).total
    before, after = theirs.state_dict(), back.state_dict()
    if name == "BertForMaskedLM" and not theirs.config.tie_word_embeddings:
        assert not torch.equal(before["cls.predictions.bias"], before["cls.predictions.decoder.bias"])
        before.pop("cls.predictions.bias")  # untied, BERT never reads this one; ours has no place for it
        after.pop("cls.predictions.bias")
    torch.testing.assert_close(after, before, rtol=0, atol=0)

    inputs = inputs_of(name, theirs.config)
    without = {key: value for key, value in inputs.items() if key in ("input_ids", "pixel_values")}
    for given in (inputs, without):
        expected = theirs(**given)
        for model in (ours, back):
            found = model(**given)
            compared = [key for key in expected if isinstance(expected[key], torch.Tensor)]
            assert compared and all(distance(found[key], expected[key]) < 1e-11 for key in compared)
    for model in (theirs, ours):
        model.set_attn_implementation("eager")
    recorded = {"output_hidden_states": True, "output_attentions": True}
    expected, found = theirs(**inputs, **recorded), ours(**inputs, **recorded)
    for key in ("hidden_states", "attentions"):
        assert len(expected[key]) == len(found[key])
        assert all(distance(mine, other) < 1e-6 for mine, other in zip(found[key], expected[key])), key  # ViT: float32


def test_an_untied_bert_keeps_the_bias_that_it_reads(monkeypatch):
    """In whatever order its tensors are: the decoder's own, not the one beside it."""
    model = build("BertForMaskedLM", tie_word_embeddings=False)
    state = model.state_dict()
    for tensors in (state, dict(reversed(state.items()))):
        monkeypatch.setattr(model, "state_dict", lambda tensors=tensors: tensors)
        assert torch.equal(convert(model).lm_head.bias, model.cls.predictions.decoder.bias)


@pytest.mark.parametrize(
    ("name", "output"), [("GPT2LMHeadModel", "lm_head.weight"), ("BertForMaskedLM", "cls.predictions.decoder.weight")]
)
def test_output_embeddings_of_their_own_stay(name, output, tmp_path):
    """A checkpoint whose config ties the embeddings, with an output matrix of its own in its file."""
    model = build(name)
    model.save_pretrained(tmp_path / "source")
    weights = tmp_path / "source" / "model.safetensors"
    own = torch.randn(model.get_output_embeddings().weight.shape)
    save_file({**load_file(weights), output: own}, weights, {"format": "pt"})
    theirs = type(model).from_pretrained(tmp_path / "source").eval().double()
    inputs = inputs_of(name, model.config)
    expected = theirs(**inputs).logits
    convert_checkpoint(tmp_path / "source", tmp_path / "ours")
    assert distance(load_lean(tmp_path / "ours").eval().double()(**inputs).logits, expected) < 1e-12
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    back = type(model).from_pretrained(tmp_path / "back").eval().double()
    assert distance(back(**inputs).logits, expected) < 1e-12


def test_a_head_size_of_its_own_in_a_vit_is_held():
    """ViT reads head_dim from its config, which is no declared field."""
    theirs = build("ViTModel", head_dim=4).double()
    inputs = inputs_of("ViTModel", theirs.config)
    expected = theirs(**inputs).last_hidden_state
    assert distance(convert(theirs)(**inputs).last_hidden_state, expected) < 1e-12


@pytest.mark.parametrize("name", ["ViTModel", "BertModel"])
def test_without_pooler(name, tmp_path):
    model = getattr(transformers, name)(build(name).config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "theirs")
    lean = convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert lean.pooler is None
    again = convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folders(dtype, tmp_path):
    """The file that comes back is the file that went in, whatever dtype its config says."""
    build("GPT2LMHeadModel").to(dtype).save_pretrained(tmp_path / "theirs")
    edit_config(tmp_path / "theirs", dtype="float16")
    assert convert_checkpoint(tmp_path / "theirs", tmp_path / "ours").dtype == dtype
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "back").dtype == torch.float16
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_many_classes_keep_their_order(tmp_path):
    """Also in config.json, whose keys are text: 10 does not come before 2."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(**sizes, vocab_size=20, num_labels=12)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert [*transformers.AutoConfig.from_pretrained(tmp_path / "ours").id2label] == [*range(12)]


def test_generation_config_and_tokenizer_come_along(tmp_path):
    from tokenizers import Tokenizer, models

    model = build("GPT2LMHeadModel")
    model.generation_config.update(do_sample=True, top_k=7)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.TokenizersBackend(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")))
    tokenizer.save_pretrained(tmp_path / "theirs")
    lean = convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert (lean.generation_config.do_sample, lean.generation_config.top_k) == (True, 7)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").get_vocab() == {"a": 0, "b": 1}
    assert isinstance(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), LeanGPTForCausalLM)

    tokenizer.add_tokens([f"new{number}" for number in range(60)])
    tokenizer.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match="vocab_size"):
        convert_checkpoint(tmp_path / "theirs", tmp_path / "larger")
    assert not (tmp_path / "larger").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPT2Config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx=True"),
        (GPT2Config(embd_pdrop=0.3), "embd_pdrop=0.3: LeanGPTConfig supports only 0.1"),
        (GPT2Config(is_causal=False), "is_causal=False"),
        (BertConfig(is_causal=True), "is_causal=True"),
        (transformers.AlbertConfig(), "model_type 'albert'"),
        (LeanBERTConfig(head_dim=32), "head_dim=32 × num_attention_heads=12"),
        (LeanGPTConfig(num_key_value_heads=4), "num_key_value_heads=4"),
        (LeanViTConfig(per_layer_config={0: {"num_attention_heads": 6}}), "per_layer_config"),
    ],
)
def test_options_without_a_relative(config, message):
    with pytest.raises(ValueError, match=message):
        (from_lean_config if config.model_type.startswith("lean") else to_lean_config)(config)


@pytest.mark.parametrize(("stated", "expected"), [(None, 0.3), (0.0, 0.0), (0.2, 0.2)])
def test_the_dropout_of_a_classifier_stays_what_it_is(stated, expected):
    """GPT-2 has one of its own, 0.1, where LeanGPT takes that of the hidden states."""
    config = LeanGPTConfig(hidden_dropout_prob=0.3, classifier_dropout=stated)
    assert from_lean_config(config).classifier_dropout == expected


@pytest.fixture
def bert(tmp_path):
    """A folder with a small BERT, to be damaged."""
    build("BertForMaskedLM").save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


WEIGHT = "bert.encoder.layer.1.intermediate.dense.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor * float("nan"), f"NaN or infinite weights in {WEIGHT}"),
        (lambda tensor: (100 * tensor).long(), rf"tensors of integers, expected floating point: {WEIGHT} \(I64\)"),
        (lambda tensor: tensor[:3], rf"tensors of another shape: {WEIGHT} is \[3, 24\], expected \[40, 24\]"),
        (None, f"missing tensors for BertForMaskedLM: {WEIGHT}"),
    ],
)
def test_tensors_that_are_no_weights(bert, tmp_path, change, message):
    weights = bert / "model.safetensors"
    tensors = load_file(weights)
    weight = tensors.pop(WEIGHT)
    if change:
        tensors[WEIGHT] = change(weight)
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ValueError, match=f"theirs: {message}$"):
        convert_checkpoint(bert, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_tensors_that_have_no_place(bert, tmp_path):
    """What pretraining leaves beside the head of a BERT is left out, anything else is refused."""
    weights = bert / "model.safetensors"
    pretraining = {"cls.seq_relationship.weight": torch.ones(2, 24), "bert.pooler.dense.weight": torch.ones(24, 24)}
    save_file({**load_file(weights), **pretraining}, weights, {"format": "pt"})
    convert_checkpoint(bert, tmp_path / "ours")
    with pytest.raises(ValueError, match="ours: cannot be written"):
        convert_checkpoint(bert, tmp_path / "ours")
    save_file({**load_file(weights), "cls.other.weight": torch.ones(2, 48)}, weights, {"format": "pt"})
    with pytest.raises(ValueError, match="unexpected tensors for BertForMaskedLM: cls.other.weight"):
        convert_checkpoint(bert, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["theirs", "ours"])
def test_damaged_sources(bert, tmp_path, name):
    source = convert_checkpoint(bert, tmp_path / "ours") if name == "ours" else build("BertForMaskedLM")
    weights = tmp_path / name / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(ValueError, match=f"{name}: Error while deserializing header"):
        convert_checkpoint(tmp_path / name, tmp_path / "out")
    weights.unlink()
    torch.save(source.state_dict(), tmp_path / name / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no model.safetensors; pickles, which can run code"):
        convert_checkpoint(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 10,000, got 1000000000"),
        ({"architectures": None}, "architectures in config.json is None, expected one of BertForMaskedLM, "),
        ({"model_type": "albert"}, "model_type 'albert' is not supported, expected one of vit, lean_vit, bert, "),
        ({"model_type": "evil", "auto_map": {"AutoConfig": "evil.E"}}, "theirs: model_type 'evil' is not supported"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantization_config"),
    ],
)
def test_configurations_that_cannot_be_converted(bert, tmp_path, values, message):
    edit_config(bert, **values)
    (bert / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(bert, tmp_path / "ours")
    assert not (tmp_path / "ran").exists()


def test_sources_that_hold_no_checkpoint(bert, tmp_path):
    with pytest.raises(ValueError, match="Repo id must .*'a b/c d'"):
        load_lean("a b/c d")
    for source in (tmp_path / "nowhere", bert / "config.json"):
        with pytest.raises(ValueError, match=f"{source}: no such folder"):
            convert_checkpoint(source, tmp_path / "ours")
    (bert / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"theirs: tokenizer.json: "):
        convert_checkpoint(bert, tmp_path / "ours")
    (bert / "config.json").write_text("{")
    with pytest.raises(ValueError, match=str(bert)):
        convert_checkpoint(bert, tmp_path / "ours")
    (bert / "config.json").unlink()
    with pytest.raises(ValueError, match="config.json"):
        convert_checkpoint(bert, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    "error", [SafetensorError("Error while serializing: I/O error: No space left on device"), OSError(28, "No space")]
)
def test_a_full_disk(bert, tmp_path, monkeypatch, error):
    """One line, nothing half-written. safetensors has an error of its own, which is no OSError."""

    def write_half(model, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", write_half)
    result = CliRunner().invoke(app, ["convert", str(bert), str(tmp_path / "ours")])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "ours: cannot be written, nothing is left of it: " in result.stderr and "No space" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
