"""README.md and docs/: every command and Python block runs as it stands there, and prints what the page says.

The pages run in a copy of what a clone holds. `make test` cuts the trainings to two steps and only reads the options
of LONG commands; `make test-full` runs all, and whole.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from encoders import write_stand_ins
from hub_server import LocalHub, reached
from modeling_leaner.training import slim
from test_export import needs_onnx
from transformers.utils import is_torchvision_available
from typer.main import get_command
from typer.testing import CliRunner

from modeling_leaner.cli.app import app


CLONE = Path(__file__).parent.parent
PAGES = [CLONE / "README.md", *sorted((CLONE / "docs").glob("*.md"))]
# Several trainings or processes, or every folder, however few the steps; each has tests of its own.
LONG = ("leaner sweep docs", "leaner publish", "torchrun")
LONG += ("leaner verify", "leaner bench")


class Example(NamedTuple):
    """A shell command or a Python block of a page, and the output that the page shows under it."""

    page: str
    kind: str
    text: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:60]}"


def examples_of(path: Path) -> list[Example]:
    """The page's examples in order; a ```text block right after one, under the same heading, is its output."""
    page = path.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL))
    examples = []
    for block, following in zip(blocks, [*blocks[1:], None]):
        kind, text = block.groups()
        output = None
        if following is not None and following[1] == "text" and "\n#" not in page[block.end() : following.start()]:
            output = following[2].strip()
        if kind == "python":
            examples.append(Example(path.stem, kind, text, output))
        if kind == "bash":
            lines = [line.split("  #")[0].strip() for line in text.splitlines()]
            examples += [Example(path.stem, kind, line, None) for line in lines if line and line[0] != "#"]
    return examples


EXAMPLES = [example for path in PAGES for example in examples_of(path)]
CASES = [
    pytest.param(example, marks=pytest.mark.full if example.text.startswith(LONG) else (), id=str(example))
    for example in EXAMPLES
]


@pytest.fixture(scope="module", params=["short", pytest.param("whole", marks=pytest.mark.full)])
def clone(request, tmp_path_factory):
    """A folder with what the commands of the pages read and write, and how far trainings go in it."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("training", "configuration", "docs"):
        shutil.copytree(CLONE / name, folder / name)
    write_stand_ins(folder)
    shutil.copytree(CLONE / "model_cards", folder / "model_cards", ignore=shutil.ignore_patterns("runs"))
    return folder, request.param


@pytest.fixture(scope="module")
def hub():
    """The Hub of the pages."""
    with LocalHub() as hub:
        yield hub


def with_option(words: list[str], name: str, value: str) -> list[str]:
    """The command with another value of an option."""
    at = words.index(name) if name in words else len(words)
    return [*words[:at], *words[at + 2 :], name, value]


def shortened(words: list[str]) -> list[str]:
    """The command with two steps of training, or a second, or with few rows."""
    if words[:2] == ["leaner", "train"] or "modeling_leaner.training.train" in words:
        words = [*with_option(words, "--max_steps", "2"), "--max_eval_rows", "64"]
    if words[:2] == ["leaner", "slim"] and "--no-training" not in words:
        words = with_option(words, "--minutes", "0.02")
    if words[:2] == ["leaner", "verify"]:
        words.append("--short")
    if words[:3] == ["leaner", "sweep", "docs/digits-grid.yaml"]:
        path = Path(words[2])
        grid = {**yaml.safe_load(path.read_text()), "overrides": {"max_steps": 2}, "seeds": [1]}
        path.write_text(yaml.safe_dump(grid))
    return words


def run_python(block: str) -> str:
    """What the block prints."""
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        exec(compile(block, "example", "exec"), {"__name__": "__main__"})
    return stdout.getvalue()


@pytest.mark.parametrize("example", CASES)
def test_example(example, clone, hub, monkeypatch):
    """In the order of the page: later examples read what earlier ones wrote."""
    folder, mode = clone
    monkeypatch.chdir(folder)
    if mode == "short":
        monkeypatch.setattr(slim, "CALIBRATION_ROWS", 32)
        monkeypatch.setattr(slim, "HELD_OUT_ROWS", 100)
    if example.page == "hub" or example.text.startswith("leaner push"):
        with reached(hub, folder / "home"):
            run_example(example, mode)
    else:
        run_example(example, mode)


LONG_COMMANDS = [example for example in EXAMPLES if example.text.startswith(LONG) and example.text[:6] == "leaner"]


@pytest.mark.parametrize("example", LONG_COMMANDS, ids=str)
def test_the_options_of_a_long_command_exist(example, tmp_path, monkeypatch):
    """Of one that `make test` does not run."""
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "training"):
        Path(folder).symlink_to(CLONE / folder)
    _, name, *words = shlex.split(example.text)
    for word in words:
        if word.startswith("model_cards/"):
            Path(word).mkdir(parents=True)
    command = get_command(app)
    parent = command.make_context("leaner", [name])
    command.commands[name].make_context(name, words, parent=parent)


def run_example(example: Example, mode: str) -> None:
    """Runs one example; a Python block prints what its page shows."""
    if example.kind == "python":
        has_processor = is_torchvision_available() or version("transformers") >= "5.18"
        if "AutoImageProcessor" in example.text and not has_processor:
            pytest.skip("transformers 5.17 has AutoImageProcessor only with torchvision")
        if "import onnxruntime" in example.text:
            needs_onnx()
        text = example.text
        if mode == "short":
            text = re.sub(r'"max_steps": \d+', '"max_steps": 2', text)
        printed = run_python(text)
        assert example.output is None or printed.strip() == example.output
        return
    words = shlex.split(example.text)
    if words[:3] == ["leaner", "export", "onnx"]:
        needs_onnx()
    if mode == "short":
        if words == ["leaner", "publish"]:
            pytest.skip("renews every folder: in make test-full; test_publish.py renews one")
        words = shortened(words)
    program, *options = words
    if program in ("make", "pip"):
        assert options[0] == "install" or f"\n{options[0]}:" in (CLONE / "Makefile").read_text()
        return
    if program == "leaner":
        result = CliRunner().invoke(app, options)
        assert result.exit_code == 0, (result.output[-2000:], result.stderr[-2000:], result.exception)
        return
    assert program == "torchrun", f"{example.text}: this test knows make, pip, leaner and torchrun"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    process = subprocess.run(launcher, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr[-3000:]


@pytest.mark.full
def test_the_notebook(clone, monkeypatch):
    """Its cells run one after another; `make test` takes a tiny encoder and no time to train."""
    folder, mode = clone
    monkeypatch.chdir(folder)
    short = {"model_cards/minilm-4-layers": "sentence-transformers/all-MiniLM-L6-v2", "--minutes 1": "--minutes 0.02"}
    cells = json.loads((folder / "docs" / "faster-encoder.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict = {}
    for cell in cells:
        text = "".join(cell["source"])
        for whole, brief in short.items() if mode == "short" else ():
            text = text.replace(whole, brief)
        if cell["cell_type"] == "code" and text.startswith("!leaner "):
            result = CliRunner().invoke(app, shlex.split(text)[1:])
            assert result.exit_code == 0, result.output
        elif cell["cell_type"] == "code":
            exec(compile(text, "cell", "exec"), names)
    slow, fast = (sum(tensor.numel() for tensor in names[name].parameters()) for name in ("slow", "fast"))
    assert fast < slow


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    """Every file that a page links to is there."""
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert not missing
