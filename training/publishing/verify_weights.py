"""What the weights of a published folder give, beside what its results.json says: metrics, untrained cut, guesses."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import EvalPrediction

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.conversion import load_lean
from modeling_leaner.slimming.operations import keep_layers

from ..experiments.baselines import guesses
from ..records import Guess, PublishedResults, Subset
from ..records.results import RESULTS
from ..running.evaluation import prepare_evaluation
from ..running.preparation import PreparedRun
from ..running.trainer import scores
from ..settings.command_line import copy_options
from ..tasks.base import Task, evaluation_batches
from .cut_parents import cuts_in
from .stranger import HIDDEN, run_without_package


UNVERIFIABLE = ("embedding", "question-answering")  # tasks whose outputs or labels `score_outputs` does not read
LOSSES = ("loss", "perplexity", "bits_per_byte", "squared_error")


def batches(evaluation: PreparedRun) -> dict[str, torch.Tensor]:
    """All evaluation rows as the model reads them, in batches: `0.input_ids`, `0.labels`, `1.input_ids` ..."""
    task = evaluation.task
    rows = evaluation.held_out.rows
    size = evaluation.arguments.per_device_eval_batch_size
    tensors = {}
    for index, batch in enumerate(evaluation_batches(task, rows, range(len(rows)), size)):
        tensors |= {f"{index}.{name}": tensor.contiguous().clone() for name, tensor in batch.items()}
    return tensors


def score_outputs(task: Task, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> dict[str, float]:
    """The metrics of a model's outputs on `batches`, named as the Trainer names them."""
    indices = range(len(outputs))
    labels = np.concatenate([inputs[f"{index}.labels"].numpy().reshape(-1) for index in indices])
    predictions = torch.cat([outputs[str(index)] for index in indices])
    metrics = task.score(EvalPrediction(predictions.numpy(), labels))
    if task.head.endswith("Classification") and not task.regression:
        loss = torch.nn.functional.cross_entropy(predictions, torch.from_numpy(labels))
        metrics = {**metrics, "loss": float(loss)}
    return scores({f"eval_{name}": float(value) for name, value in metrics.items()})


def metrics_of(folder: Path, options: list[str]) -> tuple[dict[str, float], int, str | None]:
    """Metrics, number and hash of the rows; the model runs where the package cannot be imported.

    Raises:
        ValueError: the data cannot be had, or the other process fails; one line.
    """
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        shutil.copytree(folder, model, ignore=shutil.ignore_patterns(*HIDDEN))
        try:
            evaluation = prepare_evaluation(str(model), options, str(Path(scratch) / "unused"))
        except (ValueError, OSError) as error:
            raise ValueError(str(error).replace(str(model), str(folder))) from error
        inputs = Path(scratch) / "inputs.safetensors"
        outputs = Path(scratch) / "outputs.safetensors"
        save_file(batches(evaluation), inputs)
        run_without_package(model, folder, evaluation.task.head, inputs, outputs)
        metrics = score_outputs(evaluation.task, load_file(inputs), load_file(outputs))
        return metrics, len(evaluation.held_out.rows), evaluation.held_out.sha256


def metrics_with(weights: Path, folder: Path, options: list[str]) -> dict[str, float]:
    """`metrics_of` a folder that had these weights in place of its own. Raises ValueError as that does."""
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / folder.name
        shutil.copytree(folder, other, ignore=shutil.ignore_patterns(*HIDDEN))
        shutil.copyfile(weights, other / WEIGHTS)
        try:
            metrics, _, _ = metrics_of(other, options)
        except ValueError as error:
            raise ValueError(str(error).replace(str(other), str(folder))) from error
    return metrics


def tolerance(name: str, value: float, rows: int) -> float:
    """How far a metric may be off on another machine: rounding moves a loss by 1e-3 of it, a share by a few rows."""
    if name.removeprefix("eval_") in LOSSES:
        return 1e-3 * max(1.0, abs(value))
    return max(2e-3, 3 / rows)


def tolerances(metrics: dict[str, float], rows: int) -> dict[str, float]:
    """`tolerance` of each metric."""
    return {name: tolerance(name, value, rows) for name, value in metrics.items()}


def check_metrics(place: str, stated: dict[str, float], found: dict[str, float], allowed: dict[str, float]) -> None:
    """Raises ValueError, naming the place, for the first stated metric that is not found, or off by more."""
    for name, value in stated.items():
        fresh = found.get(name)
        if fresh is None or not abs(fresh - value) <= allowed[name]:
            raise ValueError(f"{place}.{name} is {value}, the weights give {fresh} (± {allowed[name]:g})")


def compare(file: Path, expected: PublishedResults | Subset, metrics: dict[str, float], main: str) -> None:
    """Raises ValueError for the first metric that is missing or too far off, and for a tolerance that was changed."""
    if main not in expected.metrics:
        raise ValueError(f"{file}: metrics.{main} is missing")
    allowed = tolerances(expected.metrics, expected.rows)
    if expected.tolerances != allowed:
        raise ValueError(f"{file}: tolerances is {expected.tolerances}, expected {allowed}")
    check_metrics(f"{file}: metrics", expected.metrics, metrics, allowed)


def training_options(results: PublishedResults, files: list[str]) -> list[str]:
    """`copy_options`; where the grid names files in FOLDER, of these files of the one folder that is given."""
    stated = results.evidence.data_files
    if stated is not None and len(files) == 1:
        (folder,) = files
        files = [file.replace("FOLDER", folder) for file in stated.split()]
    return copy_options(results.recipe, files)


def check_guesses(folder: Path, held: list[Guess], rows: int, options: list[str]) -> str:
    """Fits the guesses without a transformer again, if the training rows can be had; returns how it went.

    Raises:
        ValueError: they are not those of the evidence.
    """
    try:
        fitted = guesses(folder, options)
    except ValueError as error:  # the evaluation rows were there
        return f", guesses not fitted again: no training rows ({error})"
    fresh = {}
    if fitted is not None:
        fresh = {guess.name: guess.value for guess in fitted}
    for guess in held:
        name = guess.name
        stated = guess.value
        value = fresh.get(name)
        allowed = max(2e-3, 3 / rows)
        if value is None or not abs(value - stated) <= allowed:
            message = f"{name} is {stated}, the data give {value} (± {allowed:g})"
            raise ValueError(f"{folder / RESULTS}: evidence.guesses: {message}")
    return f", {len(held)} guesses"


def check_untrained(folder: Path, results: PublishedResults, options: list[str]) -> str:
    """Makes a cut of layers again from its parent beside the folder, and scores it; returns how it went.

    Raises:
        ValueError: it has another score than the card's untrained cut.
    """
    parent = results.cut_parent
    source = folder.resolve().parent / parent.name
    steps = cuts_in(folder)
    if [step.part for step in steps] != ["layers"] or not source.is_dir():
        return ", the untrained cut not scored again"
    with tempfile.TemporaryDirectory() as cut:
        keep_layers(load_lean(str(source)), steps[0].after).save_pretrained(cut)
        metrics = metrics_with(Path(cut) / WEIGHTS, folder, options)
    place = f"{folder / RESULTS}: cut_parent.untrained_metrics"
    check_metrics(place, parent.untrained_metrics, metrics, tolerances(parent.untrained_metrics, results.rows))
    return ", the untrained cut"
