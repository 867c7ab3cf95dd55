"""Exact relatives: the same logits as transformers' ViT, BERT and GPT-2, and the same bits after the round trip."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest
import torch
import transformers
from common import distance
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from modeling_leaner import LeanBERTConfig, LeanGPTConfig, LeanGPTForCausalLM, LeanViTConfig, conversion
from modeling_leaner.cli.app import app
from modeling_leaner.conversion import (
    RELATIVES,
    ConversionError,
    convert,
    convert_checkpoint,
    from_lean_config,
    load_lean,
    to_lean_config,
)


TOLERANCE = 1e-5
SHAPES = {
    "vit": [
        {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80},
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "qkv_bias": False},
        {"hidden_size": 24, "num_hidden_layers": 1, "pooler_output_size": 7, "pooler_act": "relu"},
    ],
    "bert": [
        {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80},
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "pad_token_id": 5, "type_vocab_size": 3},
        {"hidden_size": 24, "num_hidden_layers": 1, "hidden_act": "relu", "tie_word_embeddings": False},
    ],
    "gpt2": [
        {"n_embd": 48, "n_layer": 3, "n_head": 4, "pad_token_id": 0},
        {"n_embd": 32, "n_layer": 2, "n_head": 8, "n_inner": 70, "pad_token_id": 0, "layer_norm_epsilon": 1e-3},
        {"n_embd": 24, "n_layer": 1, "activation_function": "relu", "tie_word_embeddings": False, "pad_token_id": 0},
    ],
}
CASES = [
    pytest.param(relative, name, shape, id=f"{name}-{index}")
    for relative in RELATIVES
    for name in relative.classes
    for index, shape in enumerate(SHAPES[relative.model_type])
]


def build(name, shape):
    """A model of transformers with weights, biases and norms of high variance."""
    config_class = getattr(transformers, name).config_class
    sizes = {"image_size": 32, "patch_size": 8} if name.startswith("ViT") else {"vocab_size": 120}
    ends = {"bos_token_id": 1, "eos_token_id": 2} if name.startswith("GPT2") else {}
    torch.manual_seed(0)
    model = getattr(transformers, name)(config_class(**{**sizes, **ends, **shape}, num_labels=3))
    if name == "BertForQuestionAnswering":
        model = getattr(transformers, name)(config_class(**{**sizes, **shape}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.ndim > 1 else 0.7))
    model.tie_weights()
    return model.eval()


def inputs(name):
    torch.manual_seed(1)
    if name.startswith("ViT"):
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, 8:] = 0
    values = {"input_ids": torch.randint(6, 120, (2, 11)), "attention_mask": mask}
    if name.startswith("Bert"):
        values["token_type_ids"] = torch.randint(0, 2, (2, 11))
    if name.endswith("MultipleChoice"):
        values = {key: value[:, None].repeat(1, 3, 1) for key, value in values.items()}
    return values


@pytest.mark.parametrize(("relative", "name", "shape"), CASES)
def test_same_outputs_and_same_bits(relative, name, shape):
    model = build(name, shape)
    lean = convert(model)
    assert type(lean).__name__ == relative.classes[name]
    assert lean.num_parameters() == lean.config.count_parameters(type(lean).__name__).total
    given = inputs(name)
    with torch.no_grad():
        expected, found = model(**given), lean(**given)
        recorded = {"output_hidden_states": True, "output_attentions": True}
        for each in (model, lean):
            each.set_attn_implementation("eager")
        theirs, ours = model(**given, **recorded), lean(**given, **recorded)
    for key in ("hidden_states", "attentions"):
        assert len(theirs[key]) == len(ours[key])
        assert all(distance(a, b) < TOLERANCE for a, b in zip(ours[key], theirs[key])), key
    compared = 0
    for key in expected:
        if isinstance(expected[key], torch.Tensor):
            compared += 1
            assert distance(found[key], expected[key]) < TOLERANCE, key
    assert compared

    again = convert(lean)
    assert type(again) is type(model)
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    if name == "BertForMaskedLM" and not model.config.tie_word_embeddings:
        before.pop("cls.predictions.bias")  # untied, BERT never reads this one; ours has no place for it
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", ["ViTForImageClassification", "BertForMaskedLM", "GPT2LMHeadModel"])
def test_comparison_sees_a_planted_bug(name):
    """Query and value exchanged must not pass."""
    source = {"V": "vit", "B": "bert", "G": "gpt2"}[name[0]]
    model = build(name, SHAPES[source][0])
    lean = convert(model)
    for layer in lean.model.layers:
        layer.self_attn.q_proj, layer.self_attn.v_proj = layer.self_attn.v_proj, layer.self_attn.q_proj
    with torch.no_grad():
        assert distance(lean(**inputs(name)).logits, model(**inputs(name)).logits) > 1e-2


def test_an_untied_bert_keeps_the_bias_that_it_reads(monkeypatch):
    """In whatever order its tensors are: the decoder's own, not the one beside it."""
    model = build("BertForMaskedLM", SHAPES["bert"][2])
    predictions = model.cls.predictions
    assert not torch.equal(predictions.bias, predictions.decoder.bias)
    state = model.state_dict()
    for tensors in (state, dict(reversed(state.items()))):
        monkeypatch.setattr(model, "state_dict", lambda tensors=tensors: tensors)
        assert torch.equal(convert(model).lm_head.bias, predictions.decoder.bias)


@pytest.mark.parametrize("name", ["ViTModel", "BertModel"])
def test_without_pooler(name, tmp_path):
    config = build(name, SHAPES["vit" if name == "ViTModel" else "bert"][0]).config
    model = getattr(transformers, name)(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "theirs")
    lean = convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert lean.pooler is None
    again = convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folders(tmp_path, dtype):
    """The file that comes back is the file that went in."""
    build("GPT2LMHeadModel", SHAPES["gpt2"][0]).to(dtype).save_pretrained(tmp_path / "theirs")
    lean = convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert lean.dtype == dtype
    convert_checkpoint(tmp_path / "ours", tmp_path / "back")
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.GPT2Config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx=True"),
        (transformers.GPT2Config(reorder_and_upcast_attn=True), "reorder_and_upcast_attn=True"),
        (transformers.GPT2Config(scale_attn_weights=False), "scale_attn_weights=False"),
        (transformers.GPT2Config(add_cross_attention=True), "add_cross_attention=True"),
        (transformers.GPT2Config(embd_pdrop=0.3), "embd_pdrop=0.3 differs from resid_pdrop=0.1"),
        (transformers.BertConfig(is_decoder=True), "is_decoder=True"),
        (transformers.AlbertConfig(), "model_type 'albert'"),
    ],
)
def test_options_without_a_relative(config, message):
    with pytest.raises(ConversionError, match=message):
        to_lean_config(config)


@pytest.mark.parametrize(("stated", "expected"), [(None, 0.3), (0.0, 0.0), (0.2, 0.2)])
def test_the_dropout_of_a_classifier_stays_what_it_is(stated, expected):
    """GPT-2 has one of its own, 0.1, where LeanGPT takes that of the hidden states."""
    config = LeanGPTConfig(hidden_dropout_prob=0.3, classifier_dropout=stated)
    assert from_lean_config(config).classifier_dropout == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LeanBERTConfig(head_dim=32), "head_dim=32 × num_attention_heads=12"),
        (LeanGPTConfig(num_key_value_heads=4), "num_key_value_heads=4"),
        (LeanViTConfig(per_layer_config={0: {"num_attention_heads": 6}}), "per_layer_config"),
    ],
)
def test_shapes_without_a_relative(config, message):
    with pytest.raises(ConversionError, match=message):
        from_lean_config(config)


def test_classes_without_a_relative():
    config = transformers.BertConfig(hidden_size=24, num_hidden_layers=1, intermediate_size=8, vocab_size=20)
    with pytest.raises(ConversionError, match="BertForNextSentencePrediction has no relative"):
        convert(transformers.BertForNextSentencePrediction(config))


def test_strict_about_tensors(tmp_path):
    build("BertForMaskedLM", SHAPES["bert"][0]).save_pretrained(tmp_path / "theirs")
    weights = tmp_path / "theirs" / "model.safetensors"
    whole = load_file(weights)

    save_file({**whole, "cls.seq_relationship.weight": torch.ones(2, 48)}, weights, metadata={"format": "pt"})
    with pytest.raises(ConversionError, match="unexpected tensors for BertForMaskedLM: cls.seq_relationship.weight"):
        convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours", ignore=["cls.seq_relationship.*"])
    with pytest.raises(FileExistsError, match="ours exists already"):
        convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")

    name = "bert.encoder.layer.1.output.dense.bias"
    save_file({key: value for key, value in whole.items() if key != name}, weights, metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=f"missing tensors for BertForMaskedLM: {name}"):
        convert_checkpoint(tmp_path / "theirs", tmp_path / "elsewhere")

    save_file({**whole, name: torch.ones(3)}, weights, metadata={"format": "pt"})
    with pytest.raises(ConversionError, match=rf"{name} is \[3\], expected \[48\]"):
        convert_checkpoint(tmp_path / "theirs", tmp_path / "elsewhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]


def test_damaged_sources(tmp_path):
    model = build("BertForMaskedLM", SHAPES["bert"][0])
    for name, source in (("theirs", model), ("ours", convert(model))):
        source.save_pretrained(tmp_path / name)
        weights = tmp_path / name / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        with pytest.raises(OSError, match=f"{name}: damaged or not safetensors"):
            convert_checkpoint(tmp_path / name, tmp_path / "out")
        weights.unlink()
        torch.save(source.state_dict(), tmp_path / name / "pytorch_model.bin")
        with pytest.raises(OSError, match="pytorch_model.bin is a pickle"):
            convert_checkpoint(tmp_path / name, tmp_path / "out")


def test_generation_config_and_tokenizer_come_along(tmp_path):
    from tokenizers import Tokenizer, models

    plain = build("GPT2LMHeadModel", SHAPES["gpt2"][0])
    plain.generation_config.update(do_sample=True, top_k=7)
    plain.save_pretrained(tmp_path / "plain")
    lean = convert_checkpoint(tmp_path / "plain", tmp_path / "lean")
    assert (lean.generation_config.do_sample, lean.generation_config.top_k) == (True, 7)
    assert not list((tmp_path / "lean").glob("tokenizer*")), "a tokenizer that the source does not have"
    (tmp_path / "plain" / "tokenizer.json").write_text("{")
    with pytest.raises(Exception):  # noqa: B017
        convert_checkpoint(tmp_path / "plain", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()

    build("GPT2LMHeadModel", SHAPES["gpt2"][0]).save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.TokenizersBackend(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")))
    tokenizer.save_pretrained(tmp_path / "theirs")
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").get_vocab() == {"a": 0, "b": 1}
    assert isinstance(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), LeanGPTForCausalLM)


@pytest.fixture
def bert(tmp_path):
    """A folder with a small BERT, to be damaged."""
    build("BertForMaskedLM", SHAPES["bert"][0]).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


WEIGHT = "bert.encoder.layer.1.intermediate.dense.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor * float("nan"), f"NaN or infinite weights in {WEIGHT}"),
        (lambda tensor: tensor.index_fill(0, torch.tensor([3]), float("inf")), f"NaN or infinite weights in {WEIGHT}"),
        (lambda tensor: (100 * tensor).long(), rf"tensors of integers, expected floating point: {WEIGHT} \(I64\)"),
        (lambda tensor: tensor > 0, rf"tensors of integers, expected floating point: {WEIGHT} \(BOOL\)"),
    ],
)
def test_tensors_that_are_no_weights(bert, tmp_path, change, message):
    weights = bert / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, WEIGHT: change(tensors[WEIGHT])}, weights, {"format": "pt"})
    with pytest.raises(ConversionError, match=f"theirs: {message}$"):
        convert_checkpoint(bert, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 10,000, got 1000000000"),
        ({"vocab_size": 10**10}, "vocab_size must be an integer from 1"),
        ({"hidden_act": "gleu"}, "theirs: .*hidden_act 'gleu'"),
        ({"hidden_size": "wide"}, "theirs: .*'hidden_size'"),
        ({"dtype": "foo"}, "has no attribute 'foo'"),
        ({"id2label": "abc"}, "theirs: (cannot be loaded|Validation error for field 'id2label')"),
        ({"architectures": None}, "architectures in config.json is None, expected one of BertForMaskedLM, "),
        ({"architectures": "BertModel"}, "architectures.* 'BertModel'"),
        ({"architectures": ["BertModel", "BertForMaskedLM"]}, "expected one of BertForMaskedLM, "),
        ({"model_type": "albert"}, "model_type 'albert' has no relative here, expected one of vit, lean_vit, bert, "),
        ({"model_type": "evil", "auto_map": {"AutoConfig": "evil.E"}}, "theirs: model_type 'evil' has no relative"),
    ],
)
def test_configurations_that_cannot_be_converted(bert, tmp_path, values, message):
    edit_config(bert, **values)
    (bert / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ConversionError, match=message) as refusal:
        convert_checkpoint(bert, tmp_path / "ours")
    assert "\n" not in str(refusal.value) and not (tmp_path / "ran").exists()


def test_only_what_is_damaged_is_called_so(bert, tmp_path, monkeypatch):
    """A bug stays what it is; a name that no model has, and files beside config.json, are named as themselves."""
    with pytest.raises(OSError, match="^Repo id must .*'a b/c d'"):
        load_lean("a b/c d")
    lean = convert(build("GPT2LMHeadModel", SHAPES["gpt2"][0]))
    lean.save_pretrained(tmp_path / "lean")
    (tmp_path / "lean" / "generation_config.json").write_text("[]")
    of_transformers = "list indices" if version("transformers") == "5.17.0" else "'list' object"  # the words it has
    with pytest.raises(ConversionError, match=f"lean: cannot be loaded: {of_transformers}"):
        load_lean(tmp_path / "lean")

    def broken(model):
        raise TypeError("a bug")

    monkeypatch.setattr(conversion, "convert", broken)
    with pytest.raises(TypeError, match="^a bug$"):
        load_lean(bert)


def test_sources_that_hold_no_checkpoint(bert, tmp_path):
    for source in (tmp_path / "nowhere", bert / "config.json"):
        with pytest.raises(OSError, match=f"{source}: no such folder"):
            convert_checkpoint(source, tmp_path / "ours")
    for text in ("{", "null"):
        (bert / "config.json").write_text(text)
        with pytest.raises((OSError, ConversionError), match=str(bert)):
            convert_checkpoint(bert, tmp_path / "ours")
    (bert / "config.json").unlink()
    with pytest.raises(OSError, match="config.json"):
        convert_checkpoint(bert, tmp_path / "ours")


def test_an_index_that_leads_out_of_the_folder(bert, tmp_path):
    weights = bert / "model.safetensors"
    names = list(load_file(weights))
    weights.rename(tmp_path / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../elsewhere.safetensors")}
    (bert / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(OSError, match="'../elsewhere.safetensors' is not the name of a file in this folder"):
        convert_checkpoint(bert, tmp_path / "ours")


def test_a_damaged_tokenizer(bert, tmp_path):
    (bert / "tokenizer.json").write_text("{}")
    with pytest.raises(OSError, match=r"theirs: damaged Tokenizer \(tokenizer.json\)"):
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


@pytest.mark.parametrize("whole", [False, True])
def test_interrupted(bert, tmp_path, monkeypatch, whole):
    """Ctrl-C before the folder is whole leaves nothing; after that OUT is complete. What holds is printed."""
    convert_as_always = conversion.convert_checkpoint

    def interrupted(source, output, ignore):
        if whole:
            convert_as_always(source, output, ignore)
        raise KeyboardInterrupt

    monkeypatch.setattr(conversion, "convert_checkpoint", interrupted)
    result = CliRunner().invoke(app, ["convert", str(bert), str(tmp_path / "ours")])
    assert result.exit_code == 130 and (tmp_path / "ours").exists() == whole
    state = "is complete" if whole else "was not written"
    assert result.output == f"leaner convert: interrupted; {tmp_path}/ours {state}\n"
    (tmp_path / "there").mkdir()  # not this command's work
    assert CliRunner().invoke(app, ["convert", str(bert), str(tmp_path / "there")]).exit_code != 0


@pytest.mark.full
def test_interrupted_while_writing(bert, tmp_path):
    """A real SIGINT, in the middle of writing."""
    code = """
import pathlib, signal, sys, time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

import transformers
from modeling_leaner.cli.app import app

def slow(model, folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    pathlib.Path("writing").touch()
    time.sleep(60)

transformers.PreTrainedModel.save_pretrained = slow
app(["convert", *sys.argv[1:]])
"""
    command = [sys.executable, "-c", code, str(bert), str(tmp_path / "ours")]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "writing").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs", "writing"]
