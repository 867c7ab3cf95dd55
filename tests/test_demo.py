"""`make demo` in miniature: a few steps, the whole path."""

import io
import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest
from modeling_leaner.training import demo
from modeling_leaner.training.data import builtin, sources
from training_data import merged


FEW = """--max_steps 2 --max_train_rows 48 --max_eval_rows 32 --per_device_train_batch_size 8 --warmup_steps 1
--logging_steps 1 --hardware cpu""".split()
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


@pytest.fixture
def again(finished, tmp_path, monkeypatch):
    """A function that runs the demo with the finished runs in place of a training; returns status and last line."""

    def train_shape(family, shape):
        return demo.results_of(finished.folder / f"{family}-{shape}")

    def run(capsys):
        with pytest.raises(SystemExit) as end:
            demo.main()
        return end.value.code, capsys.readouterr().err.splitlines()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "train_shape", train_shape)
    shutil.copytree(finished.folder / demo.LOADED_AGAIN, tmp_path / demo.OUTPUT / demo.LOADED_AGAIN)
    return run


def test_every_folder_is_ready_for_the_hub(finished):
    for name in FOLDERS:
        processing = "tokenizer.json"
        if name.startswith("vit"):
            processing = "preprocessor_config.json"
        files = {path.name for path in (finished.folder / name).iterdir()}
        assert files >= {
            "model.safetensors",
            "config.json",
            "README.md",
            "layers_leaner.py",
            "training.png",
            processing,
        }
        assert not any(file.endswith(".bin") or file.startswith("checkpoint-") for file in files)


def test_an_earlier_demo_is_replaced_and_nothing_else(finished):
    assert not (finished.folder / "vit-nano" / "of-an-earlier-demo").exists()
    assert {path.name for path in finished.folder.iterdir()} == {*FOLDERS, "own"}
    assert (finished.folder / "own" / "notes").exists()


def test_a_pair_differs_in_its_shape_alone(finished):
    for family in ("vit", "bert", "gpt"):
        base = finished.runs[f"{family}-nano"]
        twin = finished.runs[f"{family}-lean-nano"]
        assert twin["parameters"] <= 0.7 * base["parameters"]
        assert twin["recipe"] == base["recipe"] and twin["data_sha256"] == base["data_sha256"]
        assert (base["shape"], twin["shape"]) == (f"{family}/nano", f"{family}/lean-nano")


def test_the_table_has_the_numbers_of_every_run(finished):
    for results in finished.runs.values():
        (line,) = [line for line in finished.stdout.splitlines() if f"│ {results['shape']} " in line]
        _, shape, parameters, metric, score, guess, seconds, _ = (cell.strip() for cell in line.split("│"))
        assert metric == results["main_metric"]
        assert parameters == f"{results['parameters']:,}"
        assert score == f"{results['metrics'][f'eval_{metric}']:.3f}"
        assert guess == f"{results['chance']['value']:.3f}"
        assert float(seconds) == pytest.approx(results["train"]["seconds"], abs=0.06)


def test_commands_can_be_typed_as_printed(finished):
    commands = re.findall(r"^\$ leaner train (.+)$", finished.stdout, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        arguments = demo.train.parse(command.split()[0], command.split()[1:], needed=demo.train.NEEDED)
        assert arguments.max_steps == 2 and arguments.output_dir.startswith("runs/demo/")


def test_a_fresh_process_predicts(finished):
    assert re.search(r"^prints: \d$", finished.stdout, re.MULTILINE)
    assert f'"{finished.folder / demo.LOADED_AGAIN}"' in finished.stdout
    assert "AutoModelForSequenceClassification.from_pretrained(repository, trust_remote_code=True)" in finished.stdout


def test_training_shows_a_progress_bar(finished):
    assert "2/2" in finished.stderr


def test_a_refused_training_ends_the_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "RECIPES", {"vit": "digits --max_steps 0"})
    with pytest.raises(SystemExit) as end:
        demo.main()
    assert end.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        "leaner train: max_steps: 0 is neither a number from 1 on nor -1, no limit"
    ]


@pytest.mark.full
def test_a_folder_that_does_not_load_ends_the_demo(again, capsys):
    (demo.OUTPUT / demo.LOADED_AGAIN / "model.safetensors").write_bytes(b"cut off")
    status, lines = again(capsys)
    assert status == 1 and len(lines) == 1
    assert re.match(r"make demo: runs/demo/bert-lean-nano: loading it again ended with status 1: \S.*", lines[0])


def test_a_missing_folder_ends_the_demo(again, capsys):
    shutil.rmtree(demo.OUTPUT)
    status, lines = again(capsys)
    assert status == 1 and len(lines) == 1
    assert lines[0].startswith("make demo: ") and "runs/demo/bert-lean-nano/results.json" in lines[0]


def test_ctrl_c_ends_the_demo(again, monkeypatch, capsys):
    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "load_again", interrupted)
    assert again(capsys) == (130, ["make demo: interrupted"])
