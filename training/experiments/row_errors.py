"""row_errors.json of a grid: how much the choice of held-out rows moves the difference of two published models.

Intervals over seeds are conditional on the held-out rows; this is the other half of the uncertainty, of the one pair
of runs whose weights are there. `leaner sweep` writes it.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.files import read_json

from ..records import RowError, RunResults, checked
from ..records.results import RESULTS
from ..running import reevaluate
from ..running.evaluation import prepare_evaluation
from ..settings.command_line import copy_options
from ..tasks.base import evaluation_batches
from ..tasks.registry import TASKS
from .grid import Grid


@torch.inference_mode()
def row_scores(folder: Path, options: list[str]) -> np.ndarray:
    """Of each held-out row the sum of the metric and the number of its terms, (rows, 2).

    They are hits and 1 of a classification, nats and tokens of a language model.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = prepare_evaluation(str(folder), options, scratch)
        task = evaluation.task
        rows = evaluation.held_out.rows
        size = evaluation.arguments.per_device_eval_batch_size
        model = getattr(transformers, f"AutoModel{task.head}").from_pretrained(folder, trust_remote_code=False).eval()
        parts = []
        for batch in evaluation_batches(task, rows, range(len(rows)), size):
            labels = batch.pop("labels")
            scores = reevaluate.reduced(task.head, model(**batch).logits, labels)
            if task.head.endswith("Classification"):
                hits = (scores.argmax(-1) == labels).float()
                scores = torch.stack([hits, torch.ones_like(hits)], dim=1)
            parts.append(scores[:, :2].numpy())
    return np.concatenate(parts).astype(np.float64)


def measured_metric(task: str) -> str:
    """What `row_scores` measures of the task of that name."""
    if TASKS[task].head.endswith("Classification"):
        return "accuracy"
    return "loss"


def paired_error(own: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """Difference of two scores on the same rows, and its standard error by the choice of rows (a ratio's, for tokens).

    Args:
        own, base: (rows, 2), as of `row_scores`.
    """
    counts = own[:, 1]
    differences = own[:, 0] - base[:, 0]
    difference = differences.sum() / counts.sum()
    residuals = differences - difference * counts
    return float(difference), float(math.sqrt(len(counts)) * residuals.std(ddof=1) / counts.sum())


def row_errors(grid: Grid, data_files: Sequence[str], cards: Path) -> list[RowError] | None:
    """The difference of each published shape to the published baseline, and its error by the choice of rows.

    None where the baseline or all others are not published, or their metric is not the one that `row_scores` measures.
    """
    if grid.publish is None:
        return None
    folders = {shape: cards / name for shape, name in grid.publish.items()}
    if len(folders) < 2 or not all((folder / WEIGHTS).is_file() for folder in folders.values()):
        return None
    if grid.baseline not in folders:
        return None
    file = folders[grid.baseline] / RESULTS
    results = checked(RunResults, read_json(file), file)
    if results.metric != measured_metric(results.task):
        return None
    options = copy_options(results.recipe, data_files)
    scores = {shape: row_scores(folder, options) for shape, folder in folders.items()}
    errors = []
    for shape, own in scores.items():
        if shape != grid.baseline:
            difference, error = paired_error(own, scores[grid.baseline])
            errors.append(RowError(shape=shape, difference=difference, error=error))
    return errors
