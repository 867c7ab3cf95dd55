"""Recomputes a model's metrics from its weights, in a process that cannot import this package."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import EvalPrediction

from modeling_leaner.layers_leaner import WEIGHTS

from ..records.results import RESULTS
from ..running import reevaluate
from ..running.evaluation import prepare_evaluation
from ..running.trainer import METRICS_FILE, scores
from ..tasks.base import Task, evaluation_batches


UNVERIFIABLE = ("embedding", "question-answering")  # tasks whose outputs or labels `score_outputs` does not read
LOSSES = ("loss", "perplexity", "bits_per_byte", "squared_error")  # parts of their names
# What the other process does not get to see:
HIDDEN = (RESULTS, "README.md", ".eval_results", METRICS_FILE, "*.png", "checkpoint-*")


def run_without_package(model: Path, folder: Path, head: str, inputs: Path, outputs: Path) -> None:
    """Writes the outputs of a model, by `reevaluate.py`.

    Args:
        model: a copy of `folder`, without what is `HIDDEN`.
        head: of the Auto class, such as ForMaskedLM; empty for sentence embeddings.

    Raises:
        ValueError: the process fails; one line.
    """
    scratch = model.parent
    environment = {**os.environ, "HF_MODULES_CACHE": str(scratch / "modules")}
    command = [sys.executable, "-I", reevaluate.__file__, model, head, inputs, outputs]
    process = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1].replace(str(model), str(folder))
        raise ValueError(f"{folder}: loading and running it without the package failed: {reason}")


def score_outputs(task: Task, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> dict[str, float]:
    """The metrics of a model's outputs, named as the Trainer names them."""
    indices = range(len(outputs))
    labels = np.concatenate([inputs[f"{index}.labels"].numpy().reshape(-1) for index in indices])
    predictions = torch.cat([outputs[str(index)] for index in indices])
    metrics = task.score(EvalPrediction(predictions.numpy(), labels))
    if task.head.endswith("Classification") and not task.regression:
        loss = torch.nn.functional.cross_entropy(predictions, torch.from_numpy(labels))
        metrics = {**metrics, "loss": float(loss)}
    return scores({f"eval_{name}": float(value) for name, value in metrics.items()})


def metrics_of(folder: Path, options: list[str]) -> tuple[dict[str, float], int, str | None]:
    """Metrics, number and hash of the evaluation examples.

    Raises:
        ValueError: the data cannot be read, or the other process fails; one line.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        evaluation = prepare_evaluation(str(folder), options, str(scratch / "unused"))
        task, rows = evaluation.task, evaluation.held_out.rows
        size = evaluation.arguments.per_device_eval_batch_size
        inputs = {
            f"{index}.{name}": tensor.contiguous().clone()
            for index, batch in enumerate(evaluation_batches(task, rows, range(len(rows)), size))
            for name, tensor in batch.items()
        }
        shutil.copytree(folder, scratch / "model", ignore=shutil.ignore_patterns(*HIDDEN))
        files = [scratch / "inputs.safetensors", scratch / "outputs.safetensors"]
        save_file(inputs, files[0])
        run_without_package(scratch / "model", folder, task.head, *files)
        metrics = score_outputs(task, inputs, load_file(files[1]))
    return metrics, len(rows), evaluation.held_out.sha256


def metrics_with(weights: Path, folder: Path, options: list[str]) -> dict[str, float]:
    """The metrics of a folder if it had these weights. Raises ValueError as `metrics_of` does."""
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / folder.name
        shutil.copytree(folder, other, ignore=shutil.ignore_patterns(*HIDDEN))
        shutil.copyfile(weights, other / WEIGHTS)
        return metrics_of(other, options)[0]


def tolerance(name: str, value: float, rows: int) -> float:
    """How far a metric may be off on another machine: a loss by 1e-3 of it, a share by a few examples."""
    if any(part in name for part in LOSSES):
        return 1e-3 * max(1.0, abs(value))
    return max(2e-3, 3 / rows)


def tolerances(metrics: dict[str, float], rows: int) -> dict[str, float]:
    """`tolerance` of each metric."""
    return {name: tolerance(name, value, rows) for name, value in metrics.items()}


def check_metrics(place: str, stated: dict[str, float], found: dict[str, float], rows: int) -> None:
    """Raises ValueError for the first stated metric that the weights do not give, within its tolerance."""
    for name, value in stated.items():
        fresh = found.get(name)
        allowed = tolerance(name, value, rows)
        if fresh is None or not abs(fresh - value) <= allowed:
            raise ValueError(f"{place}.{name} is {value}, the weights give {fresh} (± {allowed:g})")
