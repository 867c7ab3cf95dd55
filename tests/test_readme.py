"""The README's shell commands, as they stand there; its Python blocks run in test_demo.py, where the demo has run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from modeling_leaner.training.grid import load_grid
from typer.testing import CliRunner

from modeling_leaner.cli import app


README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
GRID = re.search(r"```yaml\n# grid.yaml\n(.*?)```", README, flags=re.DOTALL).group(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, folder, monkeypatch):
    """In order: later commands read what earlier ones wrote."""
    monkeypatch.chdir(folder)
    program, *words = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (Path(__file__).parent.parent / "Makefile").read_text(), re.MULTILINE)
        return
    if program == "leaner":
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (result.output[-2000:], result.stderr[-2000:], result.exception)
        return
    assert program == "torchrun", f"{command}: this test knows make, leaner and torchrun"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = [sys.executable, "-m", "torch.distributed.run", *words]
    process = subprocess.run(launcher, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr[-3000:]


def test_commands_named_in_the_text_exist():
    names = set(re.findall(r"`leaner ([a-z]+)", README))
    registered = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert names and names <= registered


def test_the_grid(folder, monkeypatch):
    """The README's grid is one; cut to one rate, one seed and two steps, it runs to its end."""
    monkeypatch.chdir(folder)
    Path("grid.yaml").write_text(GRID)
    grid = load_grid(Path("grid.yaml"))
    assert len(grid.shapes) == 2 and grid.tuning.holdout == 200
    cut = {**yaml.safe_load(GRID), "learning_rates": [1e-3], "seeds": [1], "overrides": {"max_steps": 2}}
    Path("cut.yaml").write_text(yaml.safe_dump(cut))
    result = CliRunner().invoke(app, ["sweep", "cut.yaml", "--jobs", "2"])
    assert result.exit_code == 0, (result.output[-2000:], result.stderr[-2000:], result.exception)
    assert Path("runs/sweeps/cut/results.csv").read_text().count("finished") == 2
