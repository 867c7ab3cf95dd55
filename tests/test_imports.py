"""The contract of the rooms in setup.cfg, as `make imports` checks it, sees an import that runs the wrong way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


CLONE = Path(__file__).parent.parent
LINTER = Path(sys.executable).with_name("lint-imports")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The package as it is installed, in one tree."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(CLONE / "modeling_leaner", folder / "modeling_leaner")
    for name in ("training", "configuration"):
        shutil.copytree(CLONE / name, folder / "modeling_leaner" / name)
    shutil.copy(CLONE / "setup.cfg", folder)
    return folder


def check(tree: Path) -> subprocess.CompletedProcess:
    command = [LINTER, "--config", "setup.cfg", "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("training/running/loading.py", "from ..publishing import cards\n"),
        ("training/data/sources.py", "from modeling_leaner.training.tasks import base\n"),
        ("layers_leaner.py", "from .planning import solver\n"),
    ],
)
def test_an_import_the_wrong_way_is_seen(tree, file, line):
    path = tree / "modeling_leaner" / file
    before = path.read_text()
    path.write_text(line + before)
    result = check(tree)
    path.write_text(before)
    assert result.returncode == 1 and "is not allowed to import" in result.stdout


def test_every_import_runs_one_way(tree):
    result = check(tree)
    assert result.returncode == 0, result.stdout
