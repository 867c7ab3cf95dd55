"""The built-in data: digits, the standard library's prose, ListOps by the benchmark's rules; empty files."""

import functools

import numpy as np
import pytest
from modeling_leaner.training import settings as recipes
from modeling_leaner.training.data import builtin as data
from modeling_leaner.training.data import sources


def evaluate(tokens):
    """An independent reading of an expression: a stack, and numpy's median."""
    stack = []
    for token in tokens:
        if token == "]":
            values = []
            while not isinstance(stack[-1], str):
                values.append(stack.pop())
            name = stack.pop()
            value = {
                "[MIN": min,
                "[MAX": max,
                "[MED": lambda v: int(np.median(v)),
                "[SM": lambda v: sum(v) % 10,
            }[name](values)
            stack.append(value)
        else:
            stack.append(token if token.startswith("[") else int(token))
    (value,) = stack
    return value


def test_python_docs():
    splits = data.python_docs(max_bytes=300_000, holdout=5)
    modules = splits["train"]["module"], splits["test"]["module"]
    assert not set(modules[0]) & set(modules[1])
    assert len(modules[1]) == (len(modules[0]) + len(modules[1])) // 5
    text = "\n".join(splits["train"]["text"])
    assert "def " not in text[:2000] and len(text) > 150_000


def test_listops_values_and_rules():
    splits = data.listops(data.SMALL_LISTOPS, train=2000, test=200)
    sources = splits["train"]["source"][:] + splits["test"]["source"][:]
    assert len(set(sources)) == 2200
    rules = data.SMALL_LISTOPS
    for source, label in zip(sources, splits["train"]["label"][:] + splits["test"]["label"][:]):
        tokens = source.split()
        assert rules.min_length < len(tokens) < rules.max_length
        assert evaluate(tokens) == label
    assert splits["train"][:5] == data.listops(rules, train=2000, test=200)["train"][:5]


def test_more_test_trees_continue_the_same_list(monkeypatch):
    """What was trained on, and the first trees that were tested on, stay exactly as they were."""
    asked = ["listops-short", "--task", "sequence-classification", "--shape", "bert/nano"]

    def splits(**sizes):
        made = functools.partial(data.listops, data.SMALL_LISTOPS, train=300, **sizes)
        monkeypatch.setitem(sources.BUILT_IN, "listops-short", made)
        return made

    def rows(split, *words):
        settings = recipes.parse(*asked[:1], [*asked[1:], "--eval_split", split, *words])
        return sources.load_rows(settings, split)[:]

    splits(test=20)
    train, test = rows("train"), rows("test")
    assert rows("train", "--test_trees", "90") == train and len(test["source"]) == 20
    more = rows("test", "--test_trees", "90")
    assert len(more["source"]) == 90 and {name: more[name][:20] for name in more} == test
    assert not set(more["source"]) & set(train["source"])


def test_the_published_trees():
    """The hash that the published ListOps folders state of their test trees, and the ends of the training ones."""
    train, test = (sources.load_split("listops-short", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (96_000, 2_000)
    assert sources.content_sha256(test, ["source", "label"]).startswith("de3e5649464cb207")
    assert sources.content_sha256(train.select([0, 95_999]), ["source", "label"]).startswith("c9e9a454dc329f81")


@pytest.mark.parametrize(
    ("words", "is_fair"),
    [
        (["--train_split", "train", "--eval_split", "validation"], True),
        (["--train_split", "train[:90%]", "--eval_split", "train[90%:]"], True),
        (["--train_split", "train", "--eval_split", "train[:10%]"], False),
        (["--train_split", "train[:90%]", "--eval_split", "train[:90%]"], False),
        (["--data_files", "*.jsonl", "--eval_split", "validation"], False),
        (["--data_files", "train=a.jsonl", "validation=a.jsonl", "--eval_split", "validation"], False),
        (["--data_files", "train=a.jsonl", "validation=b.jsonl", "--eval_split", "validation"], True),
    ],
)
def test_rows_that_are_trained_on_are_not_held_out(words, is_fair):
    settings = recipes.parse("listops-short", ["--shape", "bert/nano", "--holdout", "0", *words])
    if is_fair:
        sources.check_splits(settings)
    else:
        with pytest.raises(ValueError, match="^eval_split: .* would be rows of train_split "):
            sources.check_splits(settings)


@pytest.mark.parametrize("name", ["empty.csv", "empty.txt", "empty.jsonl", "missing"])
def test_a_file_without_rows_is_named(name, tmp_path):
    if name != "missing":
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"{name}.*: no (rows in it|such file or folder)"):
        sources.load_split(None, "train", data_files=[str(tmp_path / name)])
