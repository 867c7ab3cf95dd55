"""What a run folder says of itself, from made-up results of every task."""

import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import ModelCard
from matplotlib.image import imread
from modeling_leaner.training.running.loading import has_weights
from modeling_leaner.training.running.results import code_commit, environment, peak_memory_bytes
from modeling_leaner.training.running.run_card import plot, snippet, write_run_card
from modeling_leaner.training.settings import TASK_NAMES, parse
from tokenizers import Tokenizer, models
from transformers import TokenizersBackend, ViTImageProcessorPil
from transformers.utils import is_torchvision_available

import modeling_leaner
from modeling_leaner.files import write_json
from modeling_leaner.shapes import load_shape


# task → shape, architecture, dataset, the metrics with the main one first
RUNS = {
    "image-classification": ("vit/lean-nano", "LeanViTForImageClassification", "digits", {"accuracy": 0.95}),
    "masked-lm": ("bert/nano", "LeanBERTForMaskedLM", "listops", {"loss": 1.5, "perplexity": 4.4817}),
    "causal-lm": ("gpt/lean-nano", "LeanGPTForCausalLM", "python-docs", {"perplexity": 4.4817, "loss": 1.5}),
    "sequence-classification": ("bert/lean-nano", "LeanBERTForSequenceClassification", "nyu-mll/glue", {"f1": 0.5}),
    "embedding": ("bert/nano", "LeanBERTModel", "LTCB/enwik8", {"cosine": 0.9}),
}


def make_results(task):
    shape, architecture, dataset, metrics = RUNS[task]
    parameters = load_shape(shape).count_parameters(architecture).total
    if task == "embedding":  # without the pooling layer
        parameters -= load_shape(shape).hidden_size * (load_shape(shape).hidden_size + 1)
    recipe = {"task": task, "dataset": dataset, "learning_rate": 3e-4, "seed": 7, "max_grad_norm": 0.5}
    if task == "embedding":
        recipe["teacher"] = "owner/teacher"
    return {
        "task": task,
        "dataset": dataset,
        "dataset_config": "sst2" if task == "sequence-classification" else None,
        "split": "validation",
        "rows": 1234,
        "shape": shape,
        "architecture": architecture,
        "seed": 7,
        "learning_rate": 2.5e-4,
        "main_metric": next(iter(metrics)),
        "higher_is_better": next(iter(metrics)) not in ("loss", "perplexity"),
        # the main one last: the card must put it first
        "metrics": {f"eval_{name}": value for name, value in reversed(metrics.items())},
        "parameters": parameters,
        "recipe": recipe,
        "train": {
            "steps": 4321,
            "seconds": 65.4,
            "items_per_second": 1098.7,
            "input_pipeline_share": 0.0123,
            "peak_memory_bytes": 3 * 2**28,
            "peak_memory_kind": "resident memory of the process",
            "loss": 0.4567,
        },
        "environment": environment(),
    }


def make_run(folder, task="masked-lm", weights=False):
    """A run folder, with or without the weights."""
    results = make_results(task)
    model_class, config = getattr(modeling_leaner, results["architecture"]), load_shape(results["shape"])
    config.architectures = [results["architecture"]]
    folder.mkdir(parents=True, exist_ok=True)
    if weights:
        model_class(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    write_json(folder / "results.json", results)
    return results


def change(folder, file, name, value):
    """Sets `train.loss` and the like in a JSON file of a folder; a value of ... removes it."""
    document = json.loads((folder / file).read_text())
    *parents, last = name.split(".")
    place = document
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    (folder / file).write_text(json.dumps(document))


def test_environment_names_hardware_and_versions(monkeypatch):
    said = environment()
    assert said["threads"] == torch.get_num_threads() and said["torch"] == version("torch")
    assert said["device"] == "cpu" or torch.cuda.is_available()
    assert platform.release() not in said["platform"]
    monkeypatch.setattr("modeling_leaner.training.running.results.CPU_INFO", Path("missing"))
    assert environment()["processor"]


def make_clone(folder):
    """A git repository that looks like ours."""
    (folder / "modeling_leaner").mkdir(parents=True)
    (folder / "modeling_leaner" / "__init__.py").write_text("")
    (folder / "setup.cfg").write_text("[metadata]\nname = modeling_leaner\n")
    (folder / ".gitignore").write_text("runs/\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", folder, *arguments], check=True)
    return folder / "modeling_leaner"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_our_own_clone(tmp_path):
    package = make_clone(tmp_path / "clone")
    git_commit = code_commit.__wrapped__  # which is asked once a process
    commit = git_commit(package)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    for ignored in ("runs/ignored", "model_cards/results.csv"):
        (tmp_path / "clone" / ignored).parent.mkdir()
        (tmp_path / "clone" / ignored).write_text("")
        assert git_commit(package) == commit
    (package / "new.py").write_text("")
    assert git_commit(package) == commit + "-dirty"
    installed = tmp_path / "clone" / ".venv" / "site-packages" / "modeling_leaner"
    installed.mkdir(parents=True)
    assert git_commit(installed) is None  # a copy in an environment that lies in the clone
    (tmp_path / "clone" / "setup.cfg").write_text("[metadata]\nname = other\n")
    assert git_commit(package) is None


def test_peak_memory_of_the_process(tmp_path, monkeypatch):
    held = bytearray(100 << 20)
    held[::4096] = b"x" * len(held[::4096])  # touched
    peak, kind = peak_memory_bytes()
    assert len(held) < peak < 64 << 30 and kind == "resident memory of the process"
    monkeypatch.setattr("modeling_leaner.training.running.results.PROCESS_STATUS", tmp_path / "status")
    assert peak_memory_bytes()[0] > 0.5 * peak


def test_json_is_whole_and_finite(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"é": [1, 2.5, None, True], "inner": {"text": "x"}})
    before = path.read_bytes()
    assert json.loads(before) == {"é": [1, 2.5, None, True], "inner": {"text": "x"}}
    with pytest.raises(ValueError, match="results.json: "):
        write_json(path, {"train": [1.0, {"loss": math.inf}]})
    monkeypatch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_figure(tmp_path):
    """Of a log with gaps, a step logged twice and an undefined metric."""
    lines = [
        {"step": 20, "loss": 2.0, "seconds": 1.0},
        {"step": 20, "eval_loss": 2.5, "eval_accuracy": 0.5},
        {"step": 20, "loss": 1.9},
        {"step": 30, "loss": math.nan, "eval_loss": 2.25, "eval_accuracy": None},
    ]
    for log in (lines, lines[:1]):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
        plot(tmp_path / "metrics.jsonl", tmp_path / "training.png", "accuracy")
        assert imread(tmp_path / "training.png").std() > 0.05


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_card_loads_its_folder(task, tmp_path, monkeypatch, capsys):
    if "image" in task and not (is_torchvision_available() or version("transformers") >= "5.18"):
        pytest.skip("transformers 5.17 has AutoImageProcessor only with torchvision")
    monkeypatch.chdir(tmp_path)
    results = make_run(Path("runs/it"), task, weights=True)
    words = Tokenizer(models.WordLevel({"x": 0, "[MASK]": 1}, unk_token="x"))
    tokenizer = TokenizersBackend(tokenizer_object=words, mask_token="[MASK]", pad_token="x")
    config = load_shape(results["shape"])
    if "image" in task:
        size, mean = dict.fromkeys(("height", "width"), config.image_size), [0.5] * config.num_channels
        ViTImageProcessorPil(size=size, image_mean=mean, image_std=mean).save_pretrained("runs/it")
    else:
        tokenizer.save_pretrained("runs/it")
    write_run_card(Path("runs/it"))
    block, names = re.search(r"```python\n(.*?)```", Path("runs/it/README.md").read_text(), re.DOTALL)[1], {}
    assert len(block.splitlines()) <= 10
    exec(compile(block, "README.md", "exec"), names)
    assert type(names["model"]).__name__ == results["architecture"]
    assert names["model"].num_parameters() == results["parameters"]
    assert capsys.readouterr().out.strip()  # what it makes of its input


def test_a_card_prints_the_number_of_a_regression():
    numbers = SimpleNamespace(problem_type="regression", num_channels=1)
    for task in ("sequence-classification", "image-classification"):
        results = SimpleNamespace(task=task, architecture="LeanForIt", dataset="mine")
        assert snippet(results, numbers, "folder").splitlines()[-1] == "print(logits.item())"


def test_a_checkpoint_is_known_by_its_weights(tmp_path):
    for source in ("bert/nano", str(tmp_path / "bert.json"), str(tmp_path)):
        assert not has_weights(source)
    (tmp_path / "model.safetensors").touch()
    assert has_weights(str(tmp_path)) and has_weights("owner/first")


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_card_of_every_task(task, tmp_path, monkeypatch):
    """Its metadata is what the Hub reads, its numbers are those of results.json, and its command repeats the run."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs") / "made up"
    results = make_run(folder, task)
    write_run_card(folder)
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    data = card.data
    assert (data.library_name, data.license) == ("transformers", None)
    rounded = {name: float(f"{value:.4g}") for name, value in RUNS[task][3].items()}
    assert {each.metric_type: each.metric_value for each in data.eval_results} == rounded
    for value in RUNS[task][3].values():
        assert f" | {value:.4f} | 1,234 | validation |\n" in card.text
    train, evaluate = re.search(r"```bash\n(.*?)\n(.*?)\n```", card.text, re.DOTALL).groups()
    assert shlex.split(evaluate) == ["leaner", "evaluate", f"{folder}-again"]  # the run itself is there already
    again = parse(None, shlex.split(train)[2:], needed=("task", "shape"))
    assert again.shape == results["shape"] and again.settings == results["recipe"]


@pytest.mark.parametrize(("start", "base"), [("./first", None), ("owner/first", "owner/first"), (None, None)])
def test_the_card_of_a_fine_tuned_run(start, base, tmp_path):
    make_run(tmp_path, "sequence-classification")
    change(tmp_path, "results.json", "started_from", start)
    write_run_card(tmp_path)
    card = ModelCard((tmp_path / "README.md").read_text())
    assert card.data.base_model == base and ("fine-tuned" in card.text) == (start is not None)
    assert str(tmp_path) not in card.content and "OWNER" not in card.content


def test_a_run_without_evaluation_has_a_card(tmp_path):
    make_run(tmp_path)
    change(tmp_path, "results.json", "metrics", {})
    change(tmp_path, "results.json", "rows", 0)
    write_run_card(tmp_path)
    assert not ModelCard((tmp_path / "README.md").read_text()).data.eval_results
