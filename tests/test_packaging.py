"""What is installed, what travels to the Hub, and what a reader may rely on in every file."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modeling_leaner"
TRAVELS = ("attention_", "configuration_", "dropout_", "heads_", "layers_", "modeling_", "unpadding_")
LIBRARIES = {"huggingface_hub", "numpy", "safetensors", "torch", "transformers"}  # transformers needs the others
TRAVELLING = sorted(path for path in PACKAGE.glob("*.py") if path.name.startswith(TRAVELS))


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
        assert imported <= sys.stdlib_module_names | LIBRARIES


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


def test_one_version():
    import modeling_leaner

    version = modeling_leaner.__version__
    assert importlib.metadata.version("modeling_leaner") == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    newest = re.search(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest.group(1) == version


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel's names, and a folder into which it was installed: built from the source archive, as pip does."""
    folder = tmp_path_factory.mktemp("archives")
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run([sys.executable, "-c", build], ROOT)
    (source,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)], folder)
    (wheel,) = folder.glob("*.whl")
    run([*pip, "install", "-q", "--no-deps", "--target", str(folder / "site"), str(wheel)], folder)
    return zipfile.ZipFile(wheel).namelist(), folder / "site"


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command prints, which succeeds in this folder."""
    ended = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_holds_one_package(installed):
    """Nothing generic lands in site-packages, and no file of the package stays behind."""
    names, _ = installed
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"modeling_leaner"}
    rooms = {"modeling_leaner": "", "configuration": "configuration/", "training": "training/"}
    for room, inside in rooms.items():
        tracked = run(["git", "ls-files", room], ROOT).split()
        assert {f"modeling_leaner/{inside}{name.removeprefix(room + '/')}" for name in tracked} <= set(names)


def test_the_wheel_is_used_from_another_folder(installed, tmp_path):
    """A shape, a recipe, its data and a card's template, where the project's folder is neither here nor imported."""
    _, site = installed
    command = "import modeling_leaner.__main__; print(modeling_leaner.__file__); modeling_leaner.__main__.main()"
    words = "train digits --shape vit/nano --max_steps 1 --output_dir run".split()
    printed = run([sys.executable, "-P", "-c", command, *words], tmp_path, PYTHONPATH=str(site))
    assert printed.splitlines()[0] == str(site / "modeling_leaner" / "__init__.py")
    assert "vit/nano" in (tmp_path / "run" / "README.md").read_text()
    shapes = run([str(site / "bin" / "leaner"), "shapes"], tmp_path, PYTHONPATH=str(site))
    assert "gpt/base" in shapes
