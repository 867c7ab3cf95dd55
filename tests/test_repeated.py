"""What is given twice is refused: keys of recipes and grids, options of every command; both values are named."""

import time

import pytest
import yaml
from modeling_leaner.training import settings as recipes
from modeling_leaner.training.experiments import grid
from modeling_leaner.training.reading import load_yaml, read_yaml
from typer.testing import CliRunner

from modeling_leaner.cli.app import app


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


@pytest.mark.parametrize(
    "options, message",
    [
        ("--seed 1 --seed 2", "seed: given twice on the command line, with 1 and 2"),
        ("--seed 1 --seed=2", "seed: given twice on the command line, with 1 and 2"),
        ("--max_steps 1 --max-steps 2", "max_steps: given twice on the command line, with 1 and 2"),
        ("--data_files a b --data_files c", "data_files: given twice on the command line, with a b and c"),
        ("--resume --seed 3 --resume", "resume: given twice on the command line"),
    ],
)
def test_options_of_train_and_evaluate(tmp_path, options, message):
    (tmp_path / "model.safetensors").touch()
    key = message.split(":")[0]
    for words in (["train", "digits"], ["evaluate", str(tmp_path)]):
        result = CliRunner().invoke(app, [*words, *options.split()])
        assert result.exit_code == 2
        assert result.stderr == f"leaner {words[0]}: --{key.replace('_', '-')}: given twice on the command line\n"


@pytest.mark.parametrize(
    "command, message",
    [
        ("sweep grid.yaml --jobs 1 --jobs=2", "--jobs: given twice on the command line"),
        ("publish --data_files a --data b c", "--data-files: given twice on the command line"),
        ("verify --short FOLDER --short", "--short: given twice on the command line"),
        ("plan --params 10M --params=20M", "--params: given twice on the command line"),
    ],
)
def test_options_of_the_other_commands(command, message):
    result = CliRunner().invoke(app, command.split())
    assert (result.exit_code, result.stderr) == (2, f"leaner {command.split()[0]}: {message}\n")


def test_an_option_for_several_values_may_be_given_twice(tmp_path):
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "none"), "out", "--ignore", "a", "--ignore", "b"])
    assert result.exit_code == 1 and "given twice" not in result.stderr
