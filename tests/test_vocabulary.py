"""A vocabulary is cut: tokens that stay mean the same, words whose token went are written with shorter ones."""

import json
import shutil

import pytest
import torch
from command import invoked
from datasets import Dataset
from encoders import TRAIN, save_sentence_encoder
from modeling_leaner.training import train
from modeling_leaner.training.publishing.encoders import ENCODER, history_of
from training_data import documents
from transformers import AutoModel, AutoTokenizer

from modeling_leaner.files import write_json


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """An encoder, the same with fewer tokens, and the texts that say which."""
    folder = tmp_path_factory.mktemp("vocabulary")
    parent = save_sentence_encoder(folder / "parent")
    texts = [documents(1, row, words=4 + row % 7)["text"][0] for row in range(40)]
    Dataset.from_dict({"text": texts}).to_parquet(folder / "texts.parquet")
    size = len(AutoTokenizer.from_pretrained(parent)) - 10
    data = f"train={folder / 'texts.parquet'}"
    result = invoked("slim", parent, folder / "cut", "--vocab-size", size, "--no-training", "--data", data)
    assert result.exit_code == 0, result.output
    return parent, folder / "cut", texts, size


def test_texts_of_kept_tokens_give_the_same_vectors(cut):
    parent, smaller, texts, size = cut
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (parent, smaller))
    whole, part = (AutoModel.from_pretrained(folder).eval() for folder in (parent, smaller))
    assert len(after) == part.config.vocab_size == size
    same = [text for text in texts if before.tokenize(text) == after.tokenize(text)]
    assert len(same) > len(texts) // 2
    inputs = [tokenizer(same, padding=True, return_tensors="pt") for tokenizer in (before, after)]
    assert not torch.equal(*(each["input_ids"] for each in inputs))
    with torch.no_grad():
        vectors = [model(**each).last_hidden_state for model, each in zip((whole, part), inputs)]
    mask = inputs[0]["attention_mask"].bool()
    torch.testing.assert_close(vectors[0][mask], vectors[1][mask], rtol=0, atol=1e-6)
    assert after("[UNK] [CLS]")["input_ids"][0] == after.cls_token_id
    assert json.loads((smaller / "modules.json").read_text())
    (step,) = json.loads((smaller / "slim.json").read_text())["cuts"]
    assert step["before"] - step["after"] == 10
    assert "not measured" in (smaller / "README.md").read_text()


def test_it_learns_from_the_original_which_reads_its_own_tokens(cut, tmp_path):
    parent, smaller, texts, size = cut
    assert invoked("convert", smaller, tmp_path / "student").exit_code == 0
    files = f"train={parent.parent / 'texts.parquet'}"
    words = ["--shape", tmp_path / "student", "--teacher", parent, "--output_dir", tmp_path / "run"]
    train.main([*TRAIN, "--eval_split", "none", "--logging_steps", "1", *map(str, words), "--data_files", files])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first = next(line["loss"] for line in lines if "loss" in line)
    assert first < 1e-5  # 1 - cosine: the student began as the original
    words = ["--vocab-size", size - 5, "--no-training", "--data", parent.parent / "texts.parquet"]
    assert invoked("slim", tmp_path / "run", tmp_path / "again", *words).exit_code == 0  # it has no pooler


def test_a_published_encoder_keeps_its_history(cut, tmp_path):
    """So that its card says how it was made; it is published under the encoder that taught it alone."""
    parent = shutil.copytree(cut[0], tmp_path / "published")
    history = {"base_model": "A/PARENT", "cuts": [{"part": "layers"}], "training": [{"seed": 1}], "commands": ["a"]}
    write_json(parent / "results.json", {"kind": ENCODER, **history})
    words = ["--vocab-size", cut[3], "--no-training", "--data", cut[0].parent / "texts.parquet"]
    assert invoked("slim", parent, tmp_path / "fewer", *words).exit_code == 0
    kept = history_of(tmp_path / "fewer", "parent", "A/PARENT")
    assert [step["part"] for step in kept["cuts"]] == ["layers", "vocab_size"]
    assert kept["training"] == history["training"] and [kept["commands"][0], len(kept["commands"])] == ["a", 2]
    with pytest.raises(ValueError, match="slim.json: base_model is A/PARENT, expected A/OTHER"):
        history_of(tmp_path / "fewer", "parent", "A/OTHER")


def test_the_layers_that_were_kept_are_still_known(cut, tmp_path):
    """A training reads there from which of its teacher's layers each layer learns."""
    data = ["--no-training", "--data", cut[0].parent / "texts.parquet"]
    assert invoked("slim", cut[0], tmp_path / "shallow", "--keep-layers", "0,2", *data).exit_code == 0
    assert invoked("slim", tmp_path / "shallow", tmp_path / "fewer", "--vocab-size", cut[3], *data).exit_code == 0
    layers, tokens = json.loads((tmp_path / "fewer" / "slim.json").read_text())["cuts"]
    assert layers["after"] == [0, 2] and tokens["after"] == cut[3]


def test_what_cannot_be_cut(cut, tmp_path):
    parent = cut[0]
    data = parent.parent / "texts.parquet"
    too_small, trained = ["--vocab-size", 3, "--no-training"], ["--vocab-size", 9]
    for options, expected in ((too_small, "vocab_size: expected"), (trained, "only with --no-training")):
        result = invoked("slim", parent, tmp_path / "out", "--data", data, *options)
        assert result.exit_code == 1
        assert expected in result.output
    assert not (tmp_path / "out").exists()
