"""YAML is read strictly: keys given twice are refused in one line."""

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
        assert str(error.value) == f"{path}: no YAML file of keys and values: {message}"


def test_other_documents_are_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("list: [{a: 1}, {a: 2}]\n1: x\n'1': y\n")
    assert read_yaml(path) == {"list": [{"a": 1}, {"a": 2}], 1: "x", "1": "y"}
    path.write_text("a: &x [1]\nb: *x")
    assert read_yaml(path) == {"a": [1], "b": [1]}
