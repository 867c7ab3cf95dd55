"""Tokenizers trained on one's own text: special tokens, round trips, determinism, and the `tokenizer` command."""

import hashlib
import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
from command import leaner
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from modeling_leaner.training.data import builtin as data
from modeling_leaner.training.data import sources as data_sources
from modeling_leaner.training.data.tokenizer import TOKENIZER_KINDS, train_tokenizer
from transformers import AutoTokenizer


TEXTS = [
    "The cat sat on the mat, and the dog sat beside the cat.",
    "Élan vital: naïve café owners met in Zürich — twice!",
    "Привет, мир. 日本語 and 中文 😀 [MIN 3 [MAX 4 1 ] ]",
] * 5


def trained(kind, family, texts=TEXTS, vocab_size=600, max_length=64):
    return train_tokenizer(texts, kind, vocab_size, max_length, family)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_auto_tokenizer_loads_it_back(kind, family, tmp_path):
    tokenizer = trained(kind, family)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab() and loaded.model_max_length == 64
    assert sorted(loaded.get_vocab().values()) == list(range(len(loaded)))
    first, second = TEXTS[0], TEXTS[1]
    assert dict(loaded(first, second)) == dict(tokenizer(first, second))
    if family == "gpt":
        assert loaded.convert_ids_to_tokens(0) == loaded.bos_token == loaded.eos_token == loaded.pad_token
        assert list(loaded(first)) == ["input_ids", "attention_mask"]
        assert 0 not in loaded(first)["input_ids"]
    else:
        assert loaded.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        assert (loaded.pad_token_id, loaded.unk_token_id, loaded.mask_token_id) == (0, 1, 4)
        one, two = (loaded(text, add_special_tokens=False)["input_ids"] for text in (first, second))
        pair = loaded(first, second)
        assert pair["input_ids"] == [2, *one, 3, *two, 3] and loaded(first)["input_ids"] == [2, *one, 3]
        assert pair["token_type_ids"] == [0] * (len(one) + 2) + [1] * (len(two) + 1)
        assert loaded.num_special_tokens_to_add(pair=True) == 3
    assert loaded([first, "a"], padding=True)["attention_mask"][1][-1] == 0


@pytest.fixture(scope="module")
def byte_tokenizers():
    return [trained(kind, family) for kind in ("byte-bpe", "bytes") for family in ("gpt", "bert")]


@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_bytes_lose_nothing(byte_tokenizers, text):
    for tokenizer in byte_tokenizers:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text and tokenizer.unk_token_id not in ids


def test_wordpiece():
    tokenizer = trained("wordpiece", "bert", [*TEXTS, "lowest low"])
    assert tokenizer.tokenize("THE Café\x00") == ["the", "cafe"]
    assert tokenizer.tokenize("日本") == ["日", "本"]  # no word of two
    assert tokenizer.decode(tokenizer("The owners!")["input_ids"], skip_special_tokens=True) == "the owners !"
    assert tokenizer.tokenize("tac") == ["t", "##ac"] or tokenizer.tokenize("tac") == ["t", "##a", "##c"]
    assert tokenizer.tokenize("ßß") == ["[UNK]"]
    vocabulary = tokenizer.get_vocab()
    assert {"q", "##q", "!", "日"} & set(vocabulary) == {"!", "日"}
    assert {"##!", "##日", " "}.isdisjoint(vocabulary)
    for letter in "acé":  # both forms, wherever it was seen; accents are gone
        assert (letter in vocabulary) == (f"##{letter}" in vocabulary) == (letter != "é")


def test_words():
    texts = data.listops(data.SMALL_LISTOPS, train=200, test=10)["train"]["source"]
    tokenizer = trained("words", "bert", texts)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(10)), "[MAX", "[MED", "[MIN", "[SM", "]"]
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == words
    text = "[MIN 3 [SM 4 1 ] 0 ]"
    assert tokenizer.tokenize(text) == text.split()
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer.tokenize("[AVG 3") == ["[UNK]", "3"]
    assert trained("words", "bert", reversed(texts)).get_vocab() == tokenizer.get_vocab()


def fingerprints(folder):
    """A digest of every kind's and family's tokenizer.json, from text that is full of ties."""
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdeéжz日一 \n!😀", k=200)) for _ in range(100)]
    digests = []
    for kind, family in itertools.product(TOKENIZER_KINDS, ("gpt", "bert")):
        train_tokenizer(texts, kind, 9_000 if kind == "words" else 900, 64, family).save_pretrained(folder)
        digests.append(hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest())
    return digests


def test_training_is_deterministic(tmp_path):
    here = fingerprints(tmp_path)
    assert len(set(here)) == 2 * len(TOKENIZER_KINDS) and fingerprints(tmp_path) == here


@pytest.mark.full
def test_training_is_the_same_in_another_process(tmp_path):
    here = fingerprints(tmp_path)
    command = "import sys, pathlib, test_tokenizer as t; print(t.fingerprints(pathlib.Path('.')))"
    threads = {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"}
    environment = {"PYTHONPATH": str(Path(__file__).parent), **threads}
    process = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert process.returncode == 0 and process.stdout == f"{here}\n", process.stderr


@pytest.mark.parametrize(
    ("kind", "family", "texts", "vocab_size", "message"),
    [
        ("byte-bpe", "bert", TEXTS, 260, "vocab_size=260 is too small: 261 are needed, 5 of them special"),
        ("words", "bert", ["b a", "c a"], 7, "vocab_size=7 is too small: 8 are needed"),
        ("wordpiece", "gpt", ["ab!"], 5, "too small: 6 are needed, 1 of them special"),
        *((kind, "bert", iter([" \n"]), 600, "no text") for kind in ("wordpiece", "words")),
        *(
            (kind, "bert", ["a", "b", None], 600, "row 3: expected text, got an empty cell")
            for kind in ("byte-bpe", "wordpiece", "words")
        ),
    ],
)
def test_errors(kind, family, texts, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(texts, kind, vocab_size, 64, family)


@pytest.fixture
def sources(monkeypatch):
    """A stand-in for the data, and the list of what was asked of it."""
    asked = []
    rows = Dataset.from_dict({"text": TEXTS, "title": ["t"] * len(TEXTS), "number": range(len(TEXTS))})
    monkeypatch.setattr(data_sources, "load_split", lambda *place, **given: (asked.append((*place, given)), rows)[1])
    return asked


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_command(kind, sources, tmp_path, capsys):
    output = tmp_path / "deep" / "out"
    arguments = ["--kind", kind, "--vocab_size", "600", "--max_length", "77", "--data_files", "a.txt", "b.txt"]
    leaner("tokenizer", *arguments, "--output_dir", output)
    assert sources == [(None, "train", {"dataset_config": None, "data_files": ["a.txt", "b.txt"]})]
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer.model_max_length == 77 and tokenizer.cls_token == "[CLS]"
    assert tokenizer.get_vocab() == trained(kind, "bert").get_vocab()
    assert capsys.readouterr().out.startswith(f"{output}: {kind}, {len(tokenizer)} tokens\n")
    assert [path.name for path in output.parent.iterdir()] == ["out"]


def test_command_leaves_nothing_half_written(sources, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    with pytest.raises(SystemExit, match="there exists already"):
        leaner("tokenizer", "--kind", "words", "--dataset", "x", "--output_dir", tmp_path / "there")
    assert not sources  # refused before any data was read

    def broken(self, folder, **_):
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setattr("transformers.TokenizersBackend.save_pretrained", broken)
    with pytest.raises(SystemExit, match="disk full"):
        leaner("tokenizer", "--kind", "words", "--dataset", "x", "--output_dir", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
