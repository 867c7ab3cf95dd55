"""A published folder's model in a stranger's process: one that cannot import this package."""

import os
import subprocess
import sys
from pathlib import Path

from ..records.results import RESULTS
from ..running import reevaluate
from ..running.trainer import METRICS_FILE


# What the stranger does not get to see:
HIDDEN = (RESULTS, "README.md", ".eval_results", METRICS_FILE, "*.png", "checkpoint-*")


def run_without_package(model: Path, folder: Path, head: str, inputs: Path, outputs: Path) -> None:
    """Writes the outputs of a model, which is a copy of `folder`, in a process that cannot import this package.

    Raises:
        ValueError: the process fails; one line.
    """
    scratch = model.parent
    environment = {**os.environ, "HF_MODULES_CACHE": str(scratch / "modules")}
    command = [sys.executable, "-I", reevaluate.__file__, model, head, inputs, outputs]
    process = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
    if process.returncode == 0:
        return
    reason = "no message"
    printed = process.stderr.strip().splitlines()
    if printed:
        reason = printed[-1].replace(str(model), str(folder))
    raise ValueError(f"{folder}: loading and running it without the package failed: {reason}")
