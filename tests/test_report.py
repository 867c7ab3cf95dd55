"""What a run folder says of itself, from made-up results of every task."""

import copy
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command import leaner
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from matplotlib.figure import Figure
from matplotlib.image import imread
from modeling_leaner.training.records import Guess
from modeling_leaner.training.running.card import write_run_card as write_card
from modeling_leaner.training.running.environment import environment, git_commit, peak_memory_bytes
from modeling_leaner.training.running.figure import plot
from modeling_leaner.training.running.loading import started_from
from modeling_leaner.training.running.snippets import task_snippet
from modeling_leaner.training.settings.arguments import TASK_NAMES
from modeling_leaner.training.settings.recipes import parse
from tokenizers import Tokenizer, models
from transformers import TokenizersBackend, ViTImageProcessorPil
from transformers.utils import is_torchvision_available

import modeling_leaner
from modeling_leaner.shapes import load_shape
from modeling_leaner.support.documents import write_json


# task → shape, architecture, dataset, the metrics with the main one first, and what the Hub calls the task
RUNS = {
    "image-classification": ("vit/lean-nano", "LeanViTForImageClassification", "digits", {"accuracy": 0.95}),
    "masked-lm": ("bert/nano", "LeanBERTForMaskedLM", "listops", {"loss": 1.5, "perplexity": 4.4817}),
    "causal-lm": ("gpt/lean-nano", "LeanGPTForCausalLM", "python-docs", {"perplexity": 4.4817, "loss": 1.5}),
    "sequence-classification": ("bert/lean-nano", "LeanBERTForSequenceClassification", "nyu-mll/glue", {"f1": 0.5}),
    "question-answering": ("bert/nano", "LeanBERTForQuestionAnswering", "rajpurkar/squad", {"exact_match": 0.25}),
    "embedding": ("bert/nano", "LeanBERTModel", "LTCB/enwik8", {"cosine": 0.9}),
}
HUB_TASKS = {
    "image-classification": "image-classification",
    "masked-lm": "fill-mask",
    "causal-lm": "text-generation",
    "sequence-classification": "text-classification",
    "question-answering": "question-answering",
    "embedding": "sentence-similarity",
}


def make_results(task):
    shape, architecture, dataset, metrics = RUNS[task]
    parameters = load_shape(shape).count_parameters(architecture).total
    if task == "embedding":  # without the pooling layer
        parameters -= load_shape(shape).hidden_size * (load_shape(shape).hidden_size + 1)
    recipe = {"task": task, "dataset": dataset, "learning_rate": 3e-4, "seed": 7, "max_grad_norm": 0.5}
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
    assert said["python"] == platform.python_version() and said["threads"] == torch.get_num_threads()
    assert said["device"] == "cpu" or torch.cuda.is_available()
    assert said["processor"] and said["platform"] and said["modeling_leaner"] == modeling_leaner.__version__
    for name in "torch transformers accelerate datasets tokenizers safetensors huggingface_hub numpy".split():
        assert said[name] == version(name)
    monkeypatch.setattr("modeling_leaner.training.running.environment.CPU_INFO", Path("missing"))
    assert environment()["processor"]
    json.dumps(said)


def test_the_platform_is_named_without_the_release(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.39"))
    assert environment()["platform"] == "Linux x86_64, glibc 2.39"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert environment()["platform"] == "Darwin arm64"


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
def test_the_commit_is_that_of_our_own_clone(tmp_path, monkeypatch):
    package = make_clone(tmp_path / "clone")
    commit = git_commit(package)
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "clone" / "runs").mkdir()
    (tmp_path / "clone" / "runs" / "ignored").write_text("")
    assert git_commit(package) == commit
    (tmp_path / "clone" / "model_cards").mkdir()
    (tmp_path / "clone" / "model_cards" / "results.csv").write_text("")
    assert git_commit(package) == commit
    (package / "new.py").write_text("")
    assert git_commit(package) == commit + "-dirty"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("changed = True\n")
    assert git_commit(package) == commit + "-dirty"
    installed = tmp_path / "clone" / ".venv" / "site-packages" / "modeling_leaner"
    installed.mkdir(parents=True)
    assert git_commit(installed) is None  # a copy in an environment that lies in the clone
    shutil.copy(tmp_path / "clone" / "setup.cfg", installed.parent)
    assert git_commit(installed) is None  # or unpacked sources
    (tmp_path / "clone" / "setup.cfg").write_text("[metadata]\nname = other\n")
    assert git_commit(package) is None
    assert git_commit(make_clone(tmp_path / "second")) is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path / "second" / "modeling_leaner") is None  # no git


def test_peak_memory_of_the_process(tmp_path, monkeypatch):
    """The kernel's mark for this program where there is one: getrusage starts at what the parent process held."""
    held = bytearray(100 << 20)
    held[::4096] = b"x" * len(held[::4096])  # touched
    peak, kind = peak_memory_bytes()
    assert len(held) < peak < 64 << 30 and kind == "resident memory of the process"
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    1500 kB\nVmRSS:\t    1200 kB\n")
    monkeypatch.setattr("modeling_leaner.training.running.environment.PROCESS_STATUS", tmp_path / "status")
    assert peak_memory_bytes() == (1500 * 1024, kind)
    monkeypatch.setattr("modeling_leaner.training.running.environment.PROCESS_STATUS", Path("missing"))
    assert peak_memory_bytes()[0] > 0.99 * peak  # getrusage, in bytes too
    with monkeypatch.context() as patch:
        patch.setattr(platform, "system", lambda: "Darwin")  # where it counts bytes, not KiB
        assert peak_memory_bytes()[0] < 0.01 * peak
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory_bytes() == (0, "not measured on this platform")


def test_peak_memory_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda index: (0, 77)[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert peak_memory_bytes() == (77, "allocated by tensors, on the fullest GPU")
    assert environment()["device"] == "GPU 1"


def test_json_is_whole_and_finite(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"é": [1, 2.5, None, True], "inner": {"text": "x"}})
    before = path.read_text(encoding="utf-8")
    assert json.loads(before) == {"é": [1, 2.5, None, True], "inner": {"text": "x"}} and before.endswith("\n")
    os.umask(mask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask  # as of any other file
    for document, name in (
        ({"metrics": {"eval_loss": math.nan}}, "metrics.eval_loss is nan"),
        ({"train": [1.0, {"loss": math.inf}]}, "train.1.loss is inf"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"results.json: {name}")):
            write_json(path, document)
    with pytest.raises(TypeError):
        write_json(path, {"path": tmp_path})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_json(path, {})
    assert path.read_text(encoding="utf-8") == before and list(tmp_path.iterdir()) == [path]


LINES = [
    {"step": 20, "loss": 2.0, "learning_rate": 1e-3},
    {"step": 10, "loss": 3.0, "grad_norm": 1.0},
    {"step": 20, "eval_loss": 2.5, "eval_accuracy": 0.5},
    {"step": 20, "loss": 1.9},  # a continued run logs the step again
    {"step": 30, "loss": math.nan, "eval_loss": 2.25, "eval_accuracy": None},
    {"step": 40, "eval_accuracy": 0.75},
    {"step": 40, "train_runtime": 3.0},
]
EXPECTED = {
    "training": ([10, 20, 30], [3.0, 1.9, math.nan]),
    "held-out": ([20, 30], [2.5, 2.25]),
    "metric": ([20, 40], [0.5, 0.75]),
}


@pytest.mark.parametrize(
    "lines", [LINES, LINES[:2], LINES[2:3], []], ids=["all", "no evaluation", "one point", "none"]
)
def test_the_figure_shows_every_point(lines, tmp_path, monkeypatch):
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))[1])
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot(tmp_path / "metrics.jsonl", tmp_path / "training.png", "accuracy", "nats")
    pixels = imread(tmp_path / "training.png")
    assert pixels.shape[1] > 1000 and pixels.std() > 0.05 and not list(tmp_path.glob(".*"))
    left, *beside = figures[0].axes
    drawn = {line.get_label(): line for line in left.lines}
    if lines == LINES:
        drawn["metric"] = beside[0].lines[0]
        assert beside[0].get_ylabel() == "accuracy" and beside[0].get_ylim() == (0, 1)
    else:
        assert not beside  # a metric that was measured once at most has no panel
    assert all(line.get_marker() == "." for line in drawn.values())  # a single point has no line
    assert (lines == LINES) == (not any(": none" in name for name in drawn))
    for name, (steps, values) in EXPECTED.items():
        if lines == LINES:
            assert list(drawn[name].get_xdata()) == steps
            assert list(drawn[name].get_ydata()) == pytest.approx(values, nan_ok=True)
    assert left.get_ylabel() == "loss, nats" and "step" in left.get_xlabel()
    if lines == LINES[2:3]:
        assert [len(line.get_xdata()) for line in left.lines] == [0, 1] and "held-out: 2.500" in drawn
    for axis in (left, *beside):
        assert axis.get_legend().get_window_extent().y0 >= axis.get_window_extent().y1 - 1  # above the data


@pytest.mark.parametrize(
    "metric, unit, labels",
    [
        ("loss", "nats", ["loss, nats"]),
        ("loss", "squared error", ["loss, squared error"]),
        ("eval_perplexity", "nats", ["loss, nats", "perplexity"]),
        ("pearson", "weighted sum", ["loss, weighted sum", "pearson"]),
    ],
)
def test_the_figure_names_units(metric, unit, labels, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self))
    values = {"eval_loss": 1.0, "eval_perplexity": 2.7, "eval_pearson": 0.5}
    lines = [json.dumps({"step": step, **values}) for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    bag = Guess(name="a bag", value=0.25)
    plot(tmp_path / "metrics.jsonl", tmp_path / "training.png", metric, unit, guess=bag)
    assert [axis.get_ylabel() for axis in figures[0].axes] == labels
    *_, guess = figures[0].axes[-1].lines
    assert guess.get_label() == "best guess: a bag, 0.250" and list(guess.get_ydata()) == [0.25, 0.25]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_card_of_every_task(task, tmp_path, monkeypatch):
    """Its metadata is what the Hub reads, its numbers are those of results.json, and its commands parse."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs") / "made up"
    results = make_run(folder, task)
    write_card(folder)
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    data, config = card.data, load_shape(results["shape"])
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", HUB_TASKS[task], None)
    assert data.model_name == results["shape"].replace("/", "-")
    assert data.tags == ["modeling_leaner", config.model_type, "custom_code"]
    rounded = {name: float(f"{value:.4g}") for name, value in RUNS[task][3].items()}
    assert {each.metric_type: each.metric_value for each in data.eval_results} == rounded
    for each in data.eval_results:
        validate_repo_id(each.dataset_type)
        assert (each.task_type, each.dataset_type, each.dataset_name) == (HUB_TASKS[task], *[results["dataset"]] * 2)
        assert (each.dataset_config, each.dataset_split) == (results["dataset_config"], "validation")
    assert data.eval_results[0].metric_type == results["main_metric"]
    way = "higher" if results["higher_is_better"] else "lower"
    for name, value in RUNS[task][3].items():
        label = f"**{name}** ({way} is better)" if name == results["main_metric"] else name
        assert f"\n| {label} | {value:.4f} | 1,234 | validation |\n" in card.text
    text = " ".join(card.text.split())
    shape = f"{results['parameters']:,} parameters: {config.num_hidden_layers} layers of width {config.hidden_size}, "
    shape += f"{config.heads_per_layer[0]} heads of size {config.head_dim}, MLPs of width {config.intermediate_size}."
    assert shape in text and "One seed, evaluated on one split" in text and "flatter" not in text
    assert "4,321 steps in 65 s, 1,098.7 rows a second, 1.2% of the time waiting for data" in text
    assert "peak memory 0.75 GiB (resident memory of the process)" in text and "last training loss 0.4567" in text
    assert "highest learning rate 0.00025, schedule cosine, warm-up 0.05, weight decay 0.05, 32 rows × 1" in text
    machine = results["environment"]
    assert machine["processor"] in text and f"torch {machine['torch']}" in text and "training.png" not in text
    train, evaluate = re.search(r"```bash\n(.*?)\n(.*?)\n```", card.text, re.DOTALL).groups()
    assert shlex.split(train)[:2] == ["leaner", "train"] and shlex.split(evaluate)[:2] == ["leaner", "evaluate"]
    assert shlex.split(evaluate)[2:] == [f"{folder}-again"]  # the run itself is there already
    again = parse(None, shlex.split(train)[2:], needed=("task", "shape"))
    assert again.shape == results["shape"] and again.settings == results["recipe"]


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
    write_card(Path("runs/it"))
    block, names = re.search(r"```python\n(.*?)```", Path("runs/it/README.md").read_text(), re.DOTALL)[1], {}
    assert len(block.splitlines()) <= 10
    exec(compile(block, "README.md", "exec"), names)
    assert type(names["model"]).__name__ == results["architecture"]
    assert names["model"].num_parameters() == results["parameters"]
    assert capsys.readouterr().out.strip()  # what it makes of its input


@pytest.mark.parametrize("task", ["sequence-classification", "image-classification"])
def test_a_card_prints_the_number_of_a_regression(task):
    """Of texts and of images alike; of classes it prints the name."""
    numbers = SimpleNamespace(problem_type="regression", num_channels=1)
    classes = SimpleNamespace(problem_type="single_label_classification", num_channels=1)
    code = task_snippet(task, "LeanForIt", numbers, "folder")
    assert code.splitlines()[-1] == "print(logits.item())"
    other = task_snippet(task, "LeanForIt", classes, "folder")
    assert other.splitlines()[-1] == "print(model.config.id2label[logits.argmax().item()])"
    assert code.splitlines()[:-1] == other.splitlines()[:-1]


def test_what_else_a_card_says(tmp_path, monkeypatch):
    folder = tmp_path / "it"
    make_run(folder, "sequence-classification")

    def card(**changes):
        for name, value in changes.items():
            change(folder, "results.json", name.replace("__", "."), value)
        write_card(folder)
        return ModelCard((folder / "README.md").read_text(encoding="utf-8"))

    assert str(tmp_path) not in card().content and "leaner evaluate it-again\n" in card().text
    assert "so its numbers flatter the model" in card(recipe__load_best_model_at_end=True).text
    patient = card(recipe__load_best_model_at_end=..., recipe__early_stopping_patience=3).text
    assert "so its numbers flatter the model" in patient and "--early_stopping_patience=3" in patient
    assert card(license="apache-2.0").data.license == "apache-2.0"
    assert "| majority f1, for comparison | 0.3300 |" in card(chance={"name": "majority f1", "value": 0.33}).text
    assert "rows a second" not in card(train__items_per_second=None, train__input_pipeline_share=None).text
    assert "last training loss" not in card(train__loss=None).text
    (folder / "training.png").write_bytes(b"")
    assert "](training.png)" in card().text
    assert card(shape="./shapes/mine.json").data.model_name == "shapes-mine"
    local = card(dataset="/home/somebody/my data", shape="bert/lean-nano").data.eval_results[0]
    assert (local.dataset_type, local.dataset_name) == ("my-data", "my-data")
    assert card(dataset="local files").data.eval_results[0].dataset_type == "local-files"
    before = card().content
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        card(seed=8)
    assert (folder / "README.md").read_text() == before


def test_what_was_written_by_hand_is_not_lost(tmp_path, monkeypatch):
    """A card that the command would write over with other text stays, and so do the others, unless it is said."""
    monkeypatch.chdir(tmp_path)
    own, other = (Path("runs", name, "README.md") for name in ("one", "two"))
    make_run(own.parent, "sequence-classification")
    make_run(other.parent, "sequence-classification")
    leaner("card", own.parent)
    written = own.read_text()
    leaner("card", own.parent)
    own.write_text(written + "\nIt is used by our translators.\n")
    said = "^leaner card: runs/one/README.md: not the card that leaner card would write; --replace writes over it$"
    with pytest.raises(SystemExit, match=said):
        leaner("card", other.parent, own.parent)
    assert "our translators" in own.read_text() and not other.exists()
    leaner("card", other.parent, own.parent, "--replace")
    assert own.read_text() == written and other.exists()


def test_the_licence_of_a_run(tmp_path, monkeypatch):
    """As given, from then on; none before. What the Hub does not know, or whose weights are not said, is refused."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/it")
    make_run(folder, "sequence-classification")

    def stated(*words):
        leaner("card", *words)
        return ModelCard.load(folder / "README.md").data.license

    assert stated(folder) is None
    assert stated(folder, "--license", "mit") == stated(folder) == "mit"
    with pytest.raises(SystemExit, match="^leaner card: license 'MIT': expected .*; did you mean mit"):
        stated(folder, "--license", "MIT")
    with pytest.raises(SystemExit, match="^2$"):
        stated("--license", "mit")
    published = Path(__file__).parent.parent / "model_cards"
    for name, command in (("leanvit-mini-cifar10", "publish GRID.yaml"), ("minilm-4-layers", "publish-encoder")):
        with pytest.raises(SystemExit, match=f"{name} is published; leaner {command} --license states that of"):
            stated(published / name, "--license", "mit")


def test_the_card_of_a_fine_tuned_run(tmp_path, monkeypatch):
    """Its name is its own, and its parent is one that a reader of the Hub finds, or is named in the text alone."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/it")
    make_run(folder, "sequence-classification")
    for shape, start, base in (
        ("model_cards/first", "./first", None),
        ("runs/first", "./first", None),
        ("owner/first", "owner/first", "owner/first"),
    ):
        change(folder, "results.json", "shape", shape)
        change(folder, "results.json", "started_from", start)
        write_card(folder)
        card = ModelCard((folder / "README.md").read_text())
        assert "OWNER" not in card.content and card.text.startswith("\n# first, fine-tuned on ")
        assert card.data.base_model == base
        assert card.data.model_name.startswith("first-finetuned-")
        parent = f"[{base}](https://huggingface.co/{base})" if base else "`first`"
        assert f"It started from the weights of {parent}." in card.text
    trained = re.search(r"```bash\nleaner train .* --output_dir (\S+)\nleaner evaluate (\S+)\n", card.text).groups()
    assert trained == ("runs/it-again", "runs/it-again")
    change(folder, "results.json", "started_from", None)  # a shape whose file is not here any more
    write_card(folder)
    card = ModelCard((folder / "README.md").read_text())
    assert "fine-tuned" not in card.content and "started from" not in card.content


def test_a_parent_is_known_by_its_id_or_folder(tmp_path):
    for source in ("bert/nano", str(tmp_path / "bert.json"), str(tmp_path)):
        assert started_from(source) is None
    (tmp_path / "model.safetensors").touch()
    assert started_from(str(tmp_path)) == f"./{tmp_path.name}"
    assert started_from("owner/first") == "owner/first"


def test_a_run_without_evaluation_has_a_card(tmp_path):
    make_run(tmp_path)
    change(tmp_path, "results.json", "metrics", {})
    with pytest.raises(ValueError, match="main_metric"):
        write_card(tmp_path)
    change(tmp_path, "results.json", "rows", 0)
    write_card(tmp_path)
    card = ModelCard((tmp_path / "README.md").read_text())
    assert not card.data.eval_results and "| not evaluated |" in card.text


def test_heads_that_differ_from_layer_to_layer(tmp_path):
    results = make_run(tmp_path)
    config = load_shape("bert/nano", per_layer_config={1: {"num_attention_heads": 2}})
    config.save_pretrained(tmp_path)
    parameters = config.count_parameters("ForMaskedLM").total
    assert parameters < results["parameters"]
    change(tmp_path, "results.json", "parameters", parameters)
    write_card(tmp_path)
    assert "4/2 heads of size 32" in " ".join((tmp_path / "README.md").read_text().split())


WRONG = [
    ("config.json", "hidden_size", ..., "hidden_size is None, expected int"),
    ("config.json", "head_dim", "64", "head_dim is '64', expected int"),
    ("config.json", "hidden_act", "gelo", "hidden_act 'gelo' is not one of"),
    ("config.json", "model_type", ..., "model_type is None, expected str"),
    ("results.json", "task", ..., "task is None, expected str"),
    ("results.json", "task", "poetry", "task is 'poetry', expected one of"),
    ("results.json", "rows", 12.0, "rows is 12.0, expected int"),
    ("results.json", "rows", True, "rows is True, expected int"),
    ("results.json", "higher_is_better", 1, "higher_is_better is 1, expected bool"),
    ("results.json", "train", ..., "train is None, expected dict"),
    ("results.json", "train.seconds", ..., "train.seconds is None, expected float"),
    ("results.json", "train.seconds", "65 s", "train.seconds is '65 s', expected float"),
    ("results.json", "metrics.eval_loss", "low", "metrics.eval_loss is 'low', expected float"),
    ("results.json", "metrics.eval_loss", math.nan, "metrics.eval_loss is nan, expected a finite number"),
    ("results.json", "main_metric", "accuracy", "main_metric is 'eval_accuracy', expected one of"),
    ("results.json", "architecture", "LeanGPTForCausalLM", "architecture is 'LeanGPTForCausalLM', expected one of"),
    ("results.json", "architecture", "LeanBERTModel", "architecture is 'LeanBERTModel', expected one of"),
    ("results.json", "parameters", 1000, "parameters is 1000, expected "),
    ("results.json", "environment.device", ..., "environment.device is None, expected str"),
    ("results.json", "recipe.learning_rat", 1e-3, "learning_rat: unknown key, did you mean learning_rate"),
]


@pytest.mark.parametrize("file, name, value, message", WRONG, ids=[f"{each[1]}={each[2]}" for each in WRONG])
def test_a_wrong_field_is_named_with_its_file(file, name, value, message, tmp_path):
    make_run(tmp_path)
    change(tmp_path, file, name, value)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / file))) as error:
        write_card(tmp_path)
    assert message in str(error.value) and str(error.value).count(str(tmp_path)) == 1
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("file", ["config.json", "results.json"])
def test_a_missing_or_damaged_file_is_named(file, tmp_path):
    make_run(tmp_path)
    whole = (tmp_path / file).read_text()
    for damage in (lambda path: path.write_text(whole[:50]), lambda path: path.write_text("[]"), Path.unlink):
        damage(tmp_path / file)
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / file))):
            write_card(tmp_path)


def test_a_run_writes_what_a_card_reads(tmp_path):
    """The fields of results.json survive writing and reading, and reading changes nothing."""
    results = make_run(tmp_path)
    before = copy.deepcopy(json.loads((tmp_path / "results.json").read_text()))
    write_card(tmp_path)
    assert before == results == json.loads((tmp_path / "results.json").read_text())
