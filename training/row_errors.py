"""row_errors.json of a grid: how much the choice of held-out rows moves the difference of two published models.

Intervals over seeds are conditional on the held-out rows; this is the other half of the uncertainty, of the one pair
of runs whose weights are there. `leaner guesses` writes it.
"""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from . import reevaluate
from .evaluate import load
from .grid import Grid


@torch.inference_mode()
def row_scores(folder: Path, words: list[str]) -> np.ndarray:
    """(rows, 2): of each held-out row the sum of the metric and what it is a sum over.

    Hits and 1 of a classification, nats and tokens of a language model.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = load(str(folder), words, scratch)
        task, rows, size = evaluation.task, evaluation.prepared, evaluation.arguments.per_device_eval_batch_size
        model = getattr(transformers, f"AutoModel{task.head}").from_pretrained(folder).eval()
        parts = []
        for start in range(0, len(rows), size):
            places = range(start, min(start + size, len(rows)))
            generators = [np.random.default_rng((0, 0, place)) for place in places]  # as of LeanTrainer
            batch = task.transform(task.collate([rows[place] for place in places]), generators, training=False)
            labels = batch.pop("labels")
            kept = reevaluate.reduced(task.head, model(**batch).logits, labels)
            if task.head.endswith("Classification"):
                hits = (kept.argmax(-1) == labels).float()
                kept = torch.stack([hits, torch.ones_like(hits)], dim=1)
            parts.append(kept[:, :2].numpy())
    return np.concatenate(parts).astype(np.float64)


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


def row_errors(grid: Grid, words: list[str], cards: Path) -> list[dict[str, object]] | None:
    """Of each published shape against the published baseline: difference and its error by the choice of rows.

    None where the baseline or all others are not published, or the metric is neither accuracy nor loss.
    """
    folders = {shape: cards / name for shape, name in (grid.publish or {}).items()}
    if len(folders) < 2 or not all((folder / "model.safetensors").is_file() for folder in folders.values()):
        return None
    if grid.baseline not in folders:
        return None
    results = json.loads((folders[grid.baseline] / "results.json").read_text(encoding="utf-8"))
    if results["main_metric"].removeprefix("eval_") not in ("accuracy", "loss"):
        return None
    scores = {shape: row_scores(folder, words) for shape, folder in folders.items()}
    found = []
    for shape, own in scores.items():
        if shape != grid.baseline:
            difference, error = paired_error(own, scores[grid.baseline])
            found.append({"shape": shape, "difference": difference, "error": error})
    return found
