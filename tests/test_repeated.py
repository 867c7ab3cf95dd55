"""YAML is read strictly: keys given twice, aliases and very many values are refused in one line."""

import time

import pytest
from modeling_leaner.training import settings as recipes
from modeling_leaner.training.experiments import grid
from modeling_leaner.training.reading import read_yaml


@pytest.mark.parametrize(
    "text, message",
    [
        ("task: causal-lm\nseed: 1\nseed: 2\n", "seed: given twice, again in line 3"),
        ("lr_scheduler_kwargs: {a: 1, a: 3}\n", "a: given twice, again in line 1"),
    ],
)
def test_keys_given_twice(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    for read in (recipes.parse, grid.load_grid):
        with pytest.raises(ValueError) as error:
            read(str(path) if read is recipes.parse else path)
        assert str(error.value) == f"{path}: no YAML file: {message}"


def test_other_documents_are_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("list: [{a: 1}, {a: 2}]\n1: x\n'1': y\n")
    assert read_yaml(path) == {"list": [{"a": 1}, {"a": 2}], 1: "x", "1": "y"}
    path.write_text("a: &x [1]\nb: *x")
    with pytest.raises(ValueError, match="line 2: an alias"):
        read_yaml(path)


def test_large_files(tmp_path):
    """Refused soon: a loader of YAML in Python takes a minute for any of them."""
    path = tmp_path / "large.yaml"
    for text, message in (
        ("task: " + 30_000_000 * "x", "expected at most 1,000,000 bytes"),
        ("".join(f"k{index}:\n" for index in range(100_000)), "no YAML file: line 10000: an alias, or more"),
        (200_000 * "[", "no YAML file: line 1: an alias, or more"),
        (5_000 * "- ", "no YAML file: a value that cannot be read: maximum recursion"),
    ):
        path.write_text(text)
        start = time.process_time()
        with pytest.raises(ValueError) as error:
            read_yaml(path)
        assert str(error.value).startswith(f"{path}: {message}")
        assert time.process_time() - start < 2


def test_what_is_no_recipe_is_not_shown(tmp_path):
    path = tmp_path / "secret.yaml"
    for text in ("root:x:0:0:secret\nbin:x:1:1:secret\n", "[secret, secret]", "secret: [", "a: {}\n  secret: b"):
        path.write_text(text)
        for read in (read_yaml, grid.load_grid, recipes.read_recipe):
            with pytest.raises(ValueError) as error:
                read(path)
            assert str(error.value).startswith(f"{path}: ")
            assert "secret" not in str(error.value).removeprefix(str(path))
