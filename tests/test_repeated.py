"""A key given twice in a recipe or grid is refused; both values are named."""

import time

import pytest
import yaml
from modeling_leaner.training import settings as recipes
from modeling_leaner.training.experiments import grid
from modeling_leaner.training.reading import load_yaml, read_yaml


GRID = "recipe: digits\nshapes: [vit/nano]\nbaseline: vit/nano\nseeds: [1]\nlearning_rates: [1e-3]\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("task: causal-lm\nseed: 1\nseed: 2\n", "seed: given twice, as 1 (line 2) and 2 (line 3)"),
        ("lr_scheduler_kwargs: {a: 1, a: 3}\n", "a: given twice, as 1 (line 1) and 3 (line 1)"),
        ("data_files:\n- a.csv\ndata_files:\n", "data_files: given twice, as - a.csv (line 2) and nothing (line 3)"),
    ],
)
def test_keys_of_a_recipe(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        recipes.parse(str(tmp_path / "mine.yaml"))
    assert str(error.value) == f"{tmp_path / 'mine.yaml'}: {message}"


def test_keys_of_a_grid(tmp_path):
    path = tmp_path / "grid.yaml"
    for text, message in (
        (GRID + "seeds: [2, 3]\n", "seeds: given twice, as [1] (line 4) and [2, 3] (line 6)"),
        (GRID + "tuning: {seed: 0, holdout: 9, seed: 4}\n", "seed: given twice, as 0 (line 6) and 4 (line 6)"),
    ):
        path.write_text(text)
        with pytest.raises(grid.GridError) as error:
            grid.load_grid(path)
        assert str(error.value) == f"{path}: {message}"
    path.write_text(GRID)
    assert grid.load_grid(path).seeds == [1]


def test_other_documents_are_read_as_before():
    text = "base: &base {a: 1, b: 2}\nmore: {<<: *base, a: 3}\nlist: [{a: 1}, {a: 2}]\n1: x\n'1': y\n"
    assert load_yaml(text) == {
        "base": {"a": 1, "b": 2},
        "more": {"a": 3, "b": 2},
        "list": [{"a": 1}, {"a": 2}],
        1: "x",
        "1": "y",
    }


def nested(levels):
    """Lists of nine, each the one before: 9 ** levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize("text", [nested(9), "a: &x [*x]", "a: &x {b: *x}"])
def test_aliases_of_very_many_values(text):
    with pytest.raises(yaml.YAMLError, match=r"line \d+: more than 10,000 values"):
        load_yaml(text)


def test_large_files(tmp_path):
    """Refused or read soon: a loader of YAML in Python takes a minute for any of them."""
    path = tmp_path / "large.yaml"
    for text, message in (
        ("task: " + 30_000_000 * "x", "expected at most 1,000,000 bytes"),
        ("".join(f"key{index}: 1\n" for index in range(200_000)), "expected at most 1,000,000 bytes"),
        ("".join(f"k{index}:\n" for index in range(100_000)), "no YAML file: line 5000: more than 10"),
        (200_000 * "[", "no YAML file: line 1: more than 10"),
        (5_000 * "- ", "no YAML file: brackets within brackets, too deep to read"),
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
