"""`leaner verify [FOLDER ...]`: recomputes what a published card says of its model, from the weights alone.

For each folder of a grid's model: its code is this package's, which is compared before any of it runs; the weights
and the data have the hashes of results.json; the card is the one that `leaner publish` writes; and the metrics
come out again in a process that cannot import this package and sees neither results.json nor the card.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import EvalPrediction

from modeling_leaner.layers_leaner import WEIGHTS

from ..reading import read_yaml
from ..records import RESULTS
from ..running.evaluation import prepare_evaluation
from ..running.run_folder import RECIPE
from ..running.trainer import METRICS_FILE, scores
from ..settings import words_of
from ..tasks.base import evaluation_batches
from . import reevaluate
from .cards import render
from .encoders import verify_encoder
from .folders import CARDS, README, check_folder, is_encoder, published_folders, results_in


LOSSES = ("loss", "perplexity", "bits_per_byte", "squared_error")  # parts of their names
HIDDEN = (RESULTS, README, METRICS_FILE, "*.png", "checkpoint-*")  # from the other process


def metrics_of(folder: Path, options: list[str], weights: Path | None = None) -> tuple[dict, int, str | None]:
    """Metrics, number and hash of the evaluation examples, by `reevaluate.py`, a process without this package.

    `options` are those of `leaner evaluate`; `weights` take the place of the folder's own.
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
        model, given, output = (scratch / name for name in ("model", "inputs.safetensors", "outputs.safetensors"))
        shutil.copytree(folder, model, ignore=shutil.ignore_patterns(*HIDDEN))
        if weights is not None:
            shutil.copyfile(weights, model / WEIGHTS)
        save_file(inputs, given)
        command = [sys.executable, "-I", reevaluate.__file__, model, task.head, given, output]
        environment = {**os.environ, "HF_MODULES_CACHE": str(scratch / "modules")}
        process = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
        if process.returncode:
            reason = (process.stderr.strip().splitlines() or ["no message"])[-1].replace(str(model), str(folder))
            raise ValueError(f"{folder}: loading and running it without the package failed: {reason}")
        outputs = load_file(output)

    # Its metrics, named as the Trainer names them.
    indices = range(len(outputs))
    labels = np.concatenate([inputs[f"{index}.labels"].numpy().reshape(-1) for index in indices])
    predictions = torch.cat([outputs[str(index)] for index in indices])
    metrics = dict(task.score(EvalPrediction(predictions.numpy(), labels)))
    if task.head.endswith("Classification") and not task.regression:
        metrics["loss"] = torch.nn.functional.cross_entropy(predictions, torch.from_numpy(labels))
    named = scores({f"eval_{name}": float(value) for name, value in metrics.items()})
    return named, len(rows), evaluation.held_out.sha256


def verify(folder: Path, given: Mapping[str, list[str]], short: bool = False) -> str:
    """Verifies a folder; returns one line that says what was compared. Raises ValueError that names file and field.

    Args:
        given: local copies of datasets, by their configuration, short name or id.
        short: only the first examples, whose metrics results.json holds as `subset`.
    """
    check_folder(folder)  # before anything of the folder is loaded, let alone run
    file = folder / RESULTS
    as_published = {README: (folder / README).read_text(encoding="utf-8") == render(folder)}
    if not is_encoder(folder):
        results = results_in(file)
        as_published[RECIPE] = read_yaml(folder / RECIPE) == {**results.recipe, "shape": results.shape}
    for name, holds in as_published.items():
        if not holds:
            raise ValueError(f"{folder / name}: not what leaner publish writes from {file}")
    if is_encoder(folder):
        return verify_encoder(folder, {name: paths[0] for name, paths in given.items()}, short)

    expected = results.subset if short else results
    names = (results.dataset_config, results.dataset.split("/")[-1], results.dataset)
    copy = next((given[name] for name in names if name in given), [])
    options = words_of({"data_files": copy, "holdout": results.recipe.get("holdout")})  # the same rows held out
    if short:
        options += ["--max_eval_rows", str(expected.max_eval_rows)]
    metrics, rows, data = metrics_of(folder, options)
    if (rows, data) != (expected.rows, expected.data_sha256):
        where = " ".join(copy) or results.dataset
        raise ValueError(
            f"{file}: data_sha256: {rows} rows of {where} with {data} differ from the card's data, "
            f"{expected.rows} rows with {expected.data_sha256}"
        )

    for name, value in expected.metrics.items():
        # On another machine a loss may be off by 1e-3 of it, a share by a few examples.
        is_loss = any(part in name for part in LOSSES)
        allowed = 1e-3 * max(1.0, abs(value)) if is_loss else max(2e-3, 3 / rows)
        found = metrics.get(name)
        if found is None or not abs(found - value) <= allowed:
            raise ValueError(f"{file}: metrics.{name} is {value}, the weights give {found} (± {allowed:g})")
    name = results.main_metric
    return f"{name} {metrics[f'eval_{name}']:.4f} on {rows:,} rows, {len(metrics)} metrics"


def verify_all(folders: Sequence[Path], data_files: Sequence[str], short: bool) -> None:
    """`verify` of each folder, by default of all published ones, with local copies of datasets, each as NAME=FOLDER.

    Prints a line for each; raises ValueError if one does not hold what its card says, after all have been tried.
    """
    folders = folders or published_folders(CARDS)
    if not folders:
        raise ValueError(f"{CARDS}: no published folder; expected a clone of the project here")
    given = {name: [where] for name, _, where in (entry.partition("=") for entry in data_files) if where}
    if len(given) < len(data_files):
        raise ValueError("--data: expected NAME=FOLDER, each once, such as cifar10=data/cifar10")
    failed = 0
    for folder in folders:
        try:
            print(f"{folder}: {verify(folder, given, short)}", flush=True)
        except Exception as error:  # whatever a stranger's folder raises
            failed += 1
            message = " ".join(str(error).split())
            print(f"FAILED {message if str(folder) in message else f'{folder}: {message}'}", file=sys.stderr)
    if failed:
        raise ValueError(f"{failed} of {len(folders)} failed")
    print(f"verified: {len(folders)}")
