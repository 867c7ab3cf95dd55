"""`make demo` in miniature: a few steps, the whole path."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
from modeling_leaner.training import demo
from modeling_leaner.training.data import builtin, sources
from training_data import merged


FEW = """--max_steps 2 --max_train_rows 48 --max_eval_rows 32 --per_device_train_batch_size 8 --warmup_steps 1
--logging_steps 1 --use_cpu true""".split()
FOLDERS = {f"{family}-{shape}" for family in ("vit", "bert", "gpt") for shape in ("nano", "lean-nano")}
SMALL = {
    "digits": builtin.digits,
    "python-docs": lambda: builtin.python_docs(max_bytes=200_000, holdout=10),
    "listops-short": lambda: builtin.listops(builtin.SMALL_LISTOPS, train=100, test=50),
}


def few_steps(recipe):
    """A recipe of the demo and its options, with FEW in their place."""
    name, *options = recipe.split()
    return " ".join([name, *merged(options, FEW)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A shortened demo in a folder where one ran before: the folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.setenv("COLUMNS", "80")
    patch.setattr(sources, "BUILT_IN", SMALL)
    patch.setattr(demo, "SHIPPED", str(Path(__file__).parents[1] / demo.SHIPPED))
    patch.setattr(demo, "MINUTES", 0.02)
    patch.setattr(demo, "RECIPES", {family: few_steps(recipe) for family, recipe in demo.RECIPES.items()})
    for path in ("vit-nano/of-an-earlier-demo", "own/notes"):
        (demo.OUTPUT / path).parent.mkdir(parents=True)
        (demo.OUTPUT / path).touch()
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        demo.main()
    patch.undo()
    runs = {name: json.loads((folder / demo.OUTPUT / name / "results.json").read_text()) for name in FOLDERS}
    return SimpleNamespace(folder=folder / demo.OUTPUT, runs=runs, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def test_a_shipped_model_is_made_faster(finished):
    config = json.loads((finished.folder / "faster" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"] and config["num_hidden_layers"] < 8


def test_every_folder_is_ready_for_the_hub(finished):
    for name in FOLDERS:
        files = {path.name for path in (finished.folder / name).iterdir()}
        assert files >= {"model.safetensors", "config.json", "README.md", "layers_leaner.py", "training.png"}
        assert ("preprocessor_config.json" if name.startswith("vit") else "tokenizer.json") in files
        assert not any(file.endswith(".bin") or file.startswith("checkpoint-") for file in files)


def test_an_earlier_demo_is_replaced_and_nothing_else(finished):
    assert not (finished.folder / "vit-nano" / "of-an-earlier-demo").exists()
    assert {path.name for path in finished.folder.iterdir()} == {*FOLDERS, "faster", "own"}
    assert (finished.folder / "own" / "notes").exists()


def test_a_pair_differs_in_its_shape_alone(finished):
    for family in ("vit", "bert", "gpt"):
        base = finished.runs[f"{family}-nano"]
        twin = finished.runs[f"{family}-lean-nano"]
        assert twin["parameters"] <= 0.7 * base["parameters"]
        assert twin["recipe"] == base["recipe"] and twin["data_sha256"] == base["data_sha256"]
        assert (base["shape"], twin["shape"]) == (f"{family}/nano", f"{family}/lean-nano")


def test_a_fresh_process_predicts(finished):
    assert re.search(r"^prints: \d$", finished.stdout, re.MULTILINE)
