"""What is installed, what travels to the Hub, and what a reader may rely on in every file."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modeling_leaner"
TRAVELLING = sorted(
    path
    for path in PACKAGE.glob("*.py")
    if path.name.startswith(("checkpoints_", "configuration_", "heads_", "layers_", "modeling_", "unpadding_"))
)


def test_the_files_that_travel_are_small():
    lines = {path.name: path.read_text().splitlines() for path in TRAVELLING}
    assert len(lines) == 11
    assert sum(map(len, lines.values())) <= 2200
    for path in TRAVELLING:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 62, f"{path.name}: {node.name}"


def test_the_files_that_travel_survive_the_hub():
    """Only `from .file import Name`; nothing in a docstring that the scan would read as an import."""
    files = {path.stem for path in TRAVELLING}
    for path in TRAVELLING:
        text = path.read_text()
        relative = re.findall(r"^\s*from\s+\.(\S*)\s+import|^\s*import\s+\.(\S+)", text, flags=re.MULTILINE)
        assert {name for pair in relative for name in pair if name} <= files, path.name
        assert not re.search(r"^\s*from\s+(\.\s+import|\.\.|modeling_leaner)", text, flags=re.MULTILINE)
        assert "isinstance(config" not in text
        imported = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
        assert not any(isinstance(node, ast.Try) and node.handlers for node in ast.parse(text).body)
        assert imported <= sys.stdlib_module_names | {"huggingface_hub", "safetensors", "torch", "transformers"}


def test_one_attention_and_one_block():
    classes = [
        node.name for path in TRAVELLING for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    assert [name for name in classes if name.endswith("Attention")] == ["LeanAttention"]
    assert [name for name in classes if name.endswith("Block")] == ["LeanBlock", "LeanPostNormBlock"]


def test_version_is_the_installed_one():
    import modeling_leaner

    assert importlib.metadata.version("modeling_leaner") == modeling_leaner.__version__


def test_constraints_pin_exactly_and_cover_every_requirement():
    import configparser

    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    needed = config["options"]["install_requires"].split() + config["options.extras_require"]["dev"].split()
    names = {re.split(r"[<>=]", need)[0].lower().replace("_", "-") for need in needed}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][^\s]*", line) for line in lines)
    assert names <= {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert "torch==2.13.0" in lines


@pytest.mark.full
def test_wheel_holds_one_package(tmp_path):
    """Nothing generic lands in site-packages; shapes come along."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"modeling_leaner"}
    assert "modeling_leaner/configuration/gpt/base.json" in names
    assert "modeling_leaner/training/demo.py" in names
