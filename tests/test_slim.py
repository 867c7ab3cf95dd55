"""`leaner slim`: from a trained model of each kind to a faster one that transformers loads; its gate; Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command import invoked
from datasets import Dataset
from encoders import save_sentence_encoder
from huggingface_hub import ModelCard
from modeling_leaner.training import slim
from modeling_leaner.training.data.tokenizer import train_tokenizer
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_data import documents, labelled, pictures
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from modeling_leaner import LeanBERTForQuestionAnswering, LeanBERTModel
from modeling_leaner.conversion import load_lean
from modeling_leaner.files import update_config
from modeling_leaner.hub import load_processors
from modeling_leaner.slimming import slim as cutting
from modeling_leaner.slimming.slim import Target


CARDS = Path(__file__).parents[1] / "model_cards"
BERT = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
BERT |= {"intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.3, "num_labels": 2}
KINDS = {
    "masked": (BertForMaskedLM, BertConfig(**BERT)),
    "sequence": (BertForSequenceClassification, BertConfig(**BERT)),
    "token": (BertForTokenClassification, BertConfig(**BERT)),
    "causal": (GPT2LMHeadModel, GPT2Config(vocab_size=300, n_embd=32, n_layer=3, n_head=4, n_positions=64)),
    "image": (
        ViTForImageClassification,
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=48,
            image_size=8,
            patch_size=4,
            num_labels=3,
        ),
    ),
}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(slim, "RESAMPLES", 100)


def save_model(folder, kind):
    model_class, config = KINDS[kind]
    torch.manual_seed(0)
    model_class(config).save_pretrained(folder)
    if kind == "image":
        ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(folder)
    else:
        family = "gpt" if kind == "causal" else "bert"
        train_tokenizer(documents(40, 0)["text"], "wordpiece", 300, 24, family).save_pretrained(folder)
    return folder


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.parquet"
    labelled(60, 1, ("text",), 2).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_becomes_a_smaller_model_of_transformers(tmp_path, kind, rows):
    source = save_model(tmp_path / "source", kind)
    if kind == "image":
        rows = tmp_path / "images.parquet"
        pictures(60, 1).to_parquet(rows)
    column = ["--column", "image"] if kind == "image" else []
    result = invoked("slim", source, tmp_path / "out", "--layers", 1, "--minutes", 0.02, "--data", rows, *column)
    assert result.exit_code == 0, result.output
    model_class = KINDS[kind][0]
    model, info = model_class.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()) and model.config.num_hidden_layers == 1
    assert not list((tmp_path / "out").glob("*.py"))
    assert not (tmp_path / "out.unfinished").exists()
    ModelCard.load(tmp_path / "out" / "README.md").data.to_yaml()
    record = json.loads((tmp_path / "out" / "slim.json").read_text())
    assert record["cuts"][0]["before"] == [0, 1, 2] and len(record["cuts"][0]["after"]) == 1


def test_labels_are_texts_in_a_csv(tmp_path, monkeypatch):
    source = save_model(tmp_path / "source", "sequence")
    rows = {"text": documents(60, 0)["text"], "label": [f"LABEL_{int(row < 20)}" for row in range(60)]}
    Dataset.from_dict(rows).to_csv(tmp_path / "rows.csv")
    seen = []

    def look(pair, settings):
        seen.extend((*pair.rows.train, *pair.rows.held_out))
        return {"steps": 0, "rows_per_step": 0}

    monkeypatch.setattr(slim, "train", look)
    words = ["--layers", 2, "--label-column", "label", "--data", tmp_path / "rows.csv"]
    result = invoked("slim", source, tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    assert sum(row["labels"] for row in seen) == 20


@pytest.mark.parametrize("kind", ["encoder", "sequence"])
def test_the_card_of_a_lean_result_loads_it(tmp_path, kind, rows):
    source = tmp_path / "source"
    save_sentence_encoder(source) if kind == "encoder" else save_model(source, kind)
    result = invoked("slim", source, tmp_path / "out", "--heads", 2, "--no-training", "--data", rows)
    assert result.exit_code == 0, result.output
    (code,) = re.findall("```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    assert isinstance(names["model"], torch.nn.Module)


def test_training_brings_an_encoder_nearer_to_its_original(tmp_path, monkeypatch):
    """A published encoder on real text, for a few steps."""
    monkeypatch.setattr(slim, "measured_plan", lambda *_: {"steps": 12, "bf16": False})
    monkeypatch.setattr(slim, "CALIBRATION_ROWS", 32)
    monkeypatch.setattr(slim, "HELD_OUT_ROWS", 100)
    monkeypatch.setattr(slim, "speeds_of", lambda *_: [1, 1.5])
    rows = tmp_path / "rows.txt"
    rows.write_text(
        "\n\n".join(line for line in (CARDS / "LOG.md").read_text().split("\n") if len(line) > 60)[:30_000]
    )
    kept = {}
    for name, options in (("cut", ["--no-training"]), ("trained", [])):
        words = ["--keep-layers", "0,2", "--data", rows, "--max-length", 16, "--lean", *options]
        result = invoked("slim", CARDS / "minilm-3-layers", tmp_path / name, *words)
        assert result.exit_code == 0, result.output
        kept[name] = json.loads((tmp_path / name / "slim.json").read_text())["comparison"]["result"]
        LeanBERTModel.from_pretrained(tmp_path / name)
    assert kept["trained"] > kept["cut"] + 0.01


@pytest.mark.parametrize("bf16", [False, True])
def test_it_trains_in_the_precision_of_the_plan(tmp_path, rows, monkeypatch, bf16):
    used = []

    class Watched(slim.Distiller):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            linear = next(module for module in self.model.modules() if isinstance(module, torch.nn.Linear))
            linear.register_forward_hook(lambda *_: used.append(torch.is_autocast_enabled("cpu")))

    monkeypatch.setattr(slim, "Distiller", Watched)
    monkeypatch.setattr(slim, "measured_plan", lambda *_: {"steps": 2, "bf16": bf16})
    source = save_sentence_encoder(tmp_path / "source")
    result = invoked("slim", source, tmp_path / "out", "--layers", 2, "--data", rows)
    assert result.exit_code == 0, result.output
    assert used[:2] == [bf16, bf16]
    assert used[2:] and not any(used[2:])  # what is compared, and timed, is what is saved


def test_tokens_of_one_row_are_drawn_together():
    """Fifty tokens that are right or wrong together say no more than one."""
    kind = slim.KINDS["ForTokenClassification"]
    rows = np.arange(40)
    scored = np.stack([rows % 10 > 0, rows % 4 > 0]).astype(float)
    once = slim.interval_of(kind, scored, rows)
    assert once == slim.interval_of(kind, np.repeat(scored, 50, axis=1), np.repeat(rows, 50))
    assert once[1] - once[0] > 0.2


def test_every_line_of_an_article_is_read_by_an_encoder(tmp_path):
    save_sentence_encoder(tmp_path / "encoder")
    model, (processor, *_) = load_lean(tmp_path / "encoder"), load_processors(tmp_path / "encoder")
    articles = Dataset.from_dict({"text": [f"line one of {number}\n\nline two of {number}\n" for number in range(40)]})
    articles.to_parquet(tmp_path / "articles.parquet")
    settings = SimpleNamespace(
        data=[str(tmp_path / "articles.parquet")], column=None, label_column=None, seed=0, max_length=16
    )
    rows = slim.read_rows(settings, model, processor, slim.ENCODER)
    assert len(rows.train) + len(rows.held_out) == 80
    assert sorted(rows.contents)[0] == "line one of 0"


def test_rows_may_be_those_of_the_hub(tmp_path, rows, monkeypatch):
    asked = []

    def load(dataset, split, data_files=None):
        asked.append((dataset, data_files))
        return labelled(60, 1, ("text",), 2)

    monkeypatch.setattr(slim, "load_split", load)
    model = load_lean(save_sentence_encoder(tmp_path / "encoder"))
    for data in ("someone/texts-v2.1", "someone/texts.csv", str(rows)):
        slim.rows_with_content([data], None, model)
    assert asked == [("someone/texts-v2.1", None), (None, ["someone/texts.csv"]), (None, [str(rows)])]


def test_a_plain_encoder_is_its_lean_twin(tmp_path, rows):
    """Written as BERT and as LeanBERT: the same tensors, dtype and files of sentence-transformers."""
    source = tmp_path / "source"
    save_sentence_encoder(source)
    BertModel(BertConfig(**{**BERT, "num_labels": 2})).half().save_pretrained(source)
    update_config(source, dtype="float32")  # in which it is loaded
    train_tokenizer(documents(40, 0)["text"], "wordpiece", 300, 24, "bert").save_pretrained(source)
    ids = AutoTokenizer.from_pretrained(source)(["a text", "another text"], padding=True, return_tensors="pt")
    states = []
    for name, options, model_class in (("plain", [], BertModel), ("lean", ["--lean"], LeanBERTModel)):
        command = ["slim", source, tmp_path / name, "--layers", 2, "--data", rows, "--no-training", *options]
        assert invoked(*command).exit_code == 0
        tensors = load_file(tmp_path / name / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
        assert (tmp_path / name / "model.safetensors").stat().st_mode & 0o077 == 0o044
        model, info = model_class.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(info.values()) and model.dtype == torch.float32
        states.append(model.eval()(ids["input_ids"], attention_mask=ids["attention_mask"]).last_hidden_state)
        for file in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
            assert (tmp_path / name / file).read_bytes() == (source / file).read_bytes()
    torch.testing.assert_close(*states, rtol=0, atol=1e-5)


def test_below_the_gate_the_status_is_3(tmp_path, rows):
    source = save_sentence_encoder(tmp_path / "source")
    result = invoked("slim", source, tmp_path / "out", "--layers", 1, "--no-training", "--keep", 1, "--data", rows)
    assert result.exit_code == 3 and "--keep" in result.output
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--speedup", "9"], "speedup: expected below 3.6"),
        (["--speedup", "2", "--layers", "1"], "--layers"),
        ([], "nothing to remove: give --speedup"),
        (["--layers", "5"], "layers: expected 1..3, got 5"),
        (["--layers", "1", "--column", "other"], "other"),
        (["--layers", "1", "--label-column", "label"], "--label-column"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, rows, options, expected):
    source = save_sentence_encoder(tmp_path / "source")
    result = invoked("slim", source, tmp_path / "out", "--data", rows, *options)
    assert result.exit_code == 1 and expected in result.output
    assert not (tmp_path / "out").exists()


def test_a_speedup_that_one_layer_does_not_reach_is_refused(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(slim, "speeds_of", lambda *_: [1, 1.5, 2.0])
    source = save_sentence_encoder(tmp_path / "source")
    result = invoked("slim", source, tmp_path / "out", "--data", rows, "--speedup", 3)
    assert result.exit_code == 1 and "expected at most 2.0, which 1 of 3 layers reaches" in result.output


def test_a_head_that_cannot_be_taught_is_refused(tmp_path, rows):
    source = save_sentence_encoder(tmp_path / "source")
    LeanBERTForQuestionAnswering.from_pretrained(source).save_pretrained(source)
    result = invoked("slim", source, tmp_path / "out", "--speedup", 2, "--data", rows)
    assert result.exit_code == 1 and "LeanBERTForQuestionAnswering cannot be made faster" in result.output


@pytest.mark.parametrize(
    "pooling", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}, {"pooling_mode": "mean"}]
)
def test_an_encoder_learns_the_embedding_that_it_gives(tmp_path, rows, pooling, monkeypatch):
    source = save_sentence_encoder(tmp_path / "source")
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    model = load_lean(source).eval()
    kind = slim.kind_of(model, str(source))
    texts = ["a text", "another, longer text"]
    batch = AutoTokenizer.from_pretrained(source)(texts, padding=True, return_tensors="pt")
    expected = SentenceTransformer(str(source)).encode(texts, convert_to_tensor=True)
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(kind.compared(model(**batch), batch), dim=-1)
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)

    chosen = []
    monkeypatch.setattr(slim, "slim", lambda *args, pool: chosen.append(pool) or cutting.slim(*args, pool=pool))
    result = invoked("slim", source, tmp_path / "out", "--layers", 2, "--data", rows, "--no-training")
    assert result.exit_code == 0 and chosen == [kind.pool], result.output


def test_an_encoder_with_another_pooling_is_refused(tmp_path, rows):
    source = save_sentence_encoder(tmp_path / "source")
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    result = invoked("slim", source, tmp_path / "out", "--layers", 1, "--data", rows)
    assert result.exit_code == 1 and "pooling_mode_max_tokens" in result.output
    assert not (tmp_path / "out").exists()


def test_the_speedup_chooses_the_layers(tmp_path, monkeypatch):
    """By the times of the cuts; what is missing to the speed-up the MLPs make up."""
    model = LeanBERTModel.from_pretrained(save_sentence_encoder(tmp_path / "source"))
    monkeypatch.setattr(slim, "speeds_of", lambda models, batch: [1.0, 1.4, 2.2][: len(models)])
    assert slim.shape_for(model, Target(), 2.0, {}).layers == 1
    monkeypatch.setattr(slim, "speeds_of", lambda models, batch: [1.0, 1.9, 2.8][: len(models)])
    target = slim.shape_for(model, Target(), 2.0, {})
    assert target.layers == 2 and 0 < target.intermediate_size < model.config.intermediate_size
    assert slim.shape_for(model, Target(intermediate_size=5), 2.0, {}).intermediate_size == 5
    times = iter([[1.0, 1.9, 1.6], [1.0, 2.2, 2.4]])  # the second measurement finds the cut fast enough
    monkeypatch.setattr(slim, "speeds_of", lambda models, batch: next(times))
    assert slim.shape_for(model, Target(), 2.0, {}).intermediate_size == model.config.intermediate_size


def test_a_missed_speedup_is_said(tmp_path, rows, monkeypatch):
    """Layers are chosen by one measurement, and the result is timed by another."""
    monkeypatch.setattr(slim, "speeds_of", lambda models, batch: [1.0, 1.1] if len(models) == 2 else [1.0, 1.5, 2.0])
    source = save_sentence_encoder(tmp_path / "source")
    result = invoked("slim", source, tmp_path / "out", "--speedup", 1.5, "--no-training", "--data", rows)
    assert result.exit_code == 0 and "slower than the --speedup asked for" in result.output, result.output


def test_what_removes_nothing_is_refused(tmp_path, rows):
    source = save_sentence_encoder(tmp_path / "source")
    depth = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    result = invoked("slim", source, tmp_path / "out", "--layers", depth, "--data", rows)
    assert result.exit_code == 1 and "nothing to remove" in result.output, result.output
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == []


def test_the_minutes_are_planned_by_short_and_long_texts(tmp_path, monkeypatch):
    lengths = []

    class Watched(slim.Distiller):
        def compute_loss(self, model, inputs, *args, **options):
            lengths.append(inputs["input_ids"].shape[1])
            return super().compute_loss(model, inputs, *args, **options)

    monkeypatch.setattr(slim, "Distiller", Watched)
    source = save_sentence_encoder(tmp_path / "source")
    texts = (documents(1, row, words=row // 20)["text"][0] for row in range(400))
    (tmp_path / "rows.txt").write_text("\n".join(texts))
    rows = tmp_path / "rows.txt"
    result = invoked("slim", source, tmp_path / "out", "--layers", 2, "--minutes", 0.01, "--data", rows)
    assert result.exit_code == 0, result.output
    assert lengths[0] < lengths[1] < lengths[2]


def test_an_interrupted_command_continues(tmp_path):
    """And may have another gate; the card has the licence of the original's."""
    source = save_sentence_encoder(tmp_path / "source")
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    out = tmp_path / "out"
    rows = tmp_path / "rows.parquet"
    labelled(1000, 1, ("text",), 2).to_parquet(rows)
    words = ["slim", source, out, "--layers", 2, "--data", rows]
    command = [sys.executable, "-m", "modeling_leaner", *map(str, words)]
    plan = tmp_path / "out.unfinished" / "training.json"
    plan.parent.mkdir()
    plan.write_text('{"steps": 40, "bf16": false}')  # a busy machine would plan too few to be interrupted
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list(plan.parent.glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert not out.exists() and list((tmp_path / "out.unfinished").glob("checkpoint-*"))
    different = invoked(*words[:4], 1, *words[5:])
    assert different.exit_code == 1 and "started with another --layers;" in different.output
    result = invoked(*words, "--keep", 0)
    assert result.exit_code == 0, result.output
    assert not plan.exists()
    card = (out / "README.md").read_text()
    assert "license: mit" in card and "40 steps of 64 rows" in card


def test_an_interruption_before_the_training(tmp_path, monkeypatch, rows):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(slim, "choose", interrupted)
    source = save_sentence_encoder(tmp_path / "source")
    result = invoked("slim", source, tmp_path / "out", "--layers", 2, "--data", rows)
    assert result.exit_code == 130 and result.stderr.endswith("interrupted; the same command starts again\n")
