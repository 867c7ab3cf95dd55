"""`leaner verify-cards [FOLDER ...]`: what a published card says of its model, from the weights alone.

Of each folder: its code is this package's, file by file, which is compared before any of it runs; the weights are the
ones that results.json names; the card is what `leaner card` writes from it; the metrics come out again, within the
tolerances of results.json, in a fresh process that cannot import this package and sees neither results.json nor the
card (`reevaluate.py`). ONNX graphs beside the weights give what the weights give. Rows come from the Hub, from a local
copy by `--data_files cifar10=FOLDER`, or are generated; what they hold must have the hash of the card's. Guesses
without a transformer are fitted again where the training rows are there. Where model_cards/grids/ is beside the
folder, all that the card says of other runs is gathered again from the rows there, and name, partners, settings, steps
and data are compared with the grid and the run's row; to get the rows again takes the sweep. What only the run itself
knew is not checked: its seconds, its last training loss, the rows that it was trained on.
"""

import contextlib
import fnmatch
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import EvalPrediction

from modeling_leaner.conversion import load_lean
from modeling_leaner.slimming.operations import keep_layers
from modeling_leaner.slimming.slim import RECORD
from modeling_leaner.support.documents import flat, read_object
from modeling_leaner.support.quiet import quiet_libraries

from ..experiments.encoder_rows import NAMES
from ..experiments.evidence import gather
from ..experiments.grid import Grid, is_cut, load_grid
from ..experiments.grid_results import load_folder, load_results
from ..experiments.rows import reported
from ..experiments.run_settings import settings
from ..experiments.simple_guesses import guesses
from ..records import Evidence, Guess, PublishedEncoder, PublishedResults, RunResults, Subset
from ..running.evaluation import load
from ..running.preparation import PreparedRun
from ..running.trainer import scores
from ..settings.yaml_files import read_yaml
from ..tasks.base import Task, evaluation_batches
from .cards import FIGURE, render
from .code_copies import check_code
from .cut_parents import cuts_in, parent_fields
from .folders import check_there, published_folders, results_in
from .metadata import eval_results
from .stranger import HIDDEN, run_without_package
from .verify_encoder import PARENT, verify_encoder
from .verify_onnx import ONNX_FOLDER, check_onnx


CARDS = Path("model_cards")
LICENSE = "apache-2.0"  # of weights and code
LOCAL = ("data_files",)  # settings that say where data lie on one machine
OF_SENTENCE_TRANSFORMERS = ("*sentence_*.json", "[0-9]_*")  # settings, and a folder a module
LOSSES = ("loss", "perplexity", "bits_per_byte", "squared_error")
KEPT = (  # what a published folder has of its run
    "config.json generation_config.json model.safetensors preprocessor_config.json tokenizer.json "
    "tokenizer_config.json special_tokens_map.json *_lean*.py training.png metrics.jsonl"
).split()


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
            evaluation = load(str(model), options, str(Path(scratch) / "unused"))
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
        shutil.copyfile(weights, other / "model.safetensors")
        try:
            metrics, _, _ = metrics_of(other, options)
        except ValueError as error:
            raise ValueError(str(error).replace(str(other), str(folder))) from error
    return metrics


def names_of(dataset: str, dataset_config: str | None) -> list[str]:
    """What `--data_files` may call a folder's dataset."""
    return [name for name in (dataset_config, dataset.split("/")[-1], dataset) if name]


def names_in(file: Path) -> list[str]:
    """What `--data_files` may call a folder's rows; none where it cannot be read, which the verification reports."""
    try:
        results = results_in(file)
    except (OSError, ValueError):
        return []
    if isinstance(results, PublishedEncoder):
        return [*NAMES, PARENT]
    return names_of(results.dataset, results.dataset_config)


def local_options(results: RunResults, given: dict[str, list[str]]) -> list[str]:
    """`--data_files` for the folder's dataset where a local copy is given, by its configuration's or its own name."""
    for name in names_of(results.dataset, results.dataset_config):
        if name in given:
            return ["--data_files", *given[name]]
    return []


def tolerance(name: str, value: float, rows: int) -> float:
    """How far a metric may be off on another machine: rounding moves a loss by 1e-3 of it, a share by a few rows."""
    if name.removeprefix("eval_") in LOSSES:
        return 1e-3 * max(1.0, abs(value))
    return max(2e-3, 3 / rows)


def tolerances(metrics: dict[str, float], rows: int) -> dict[str, float]:
    """`tolerance` of each metric."""
    return {name: tolerance(name, value, rows) for name, value in metrics.items()}


def same_value(held: object, fresh: object) -> bool:
    """Whether two values are equal, but for rounding."""
    if type(held) is type(fresh) is float and math.isclose(held, fresh, rel_tol=1e-6, abs_tol=1e-12):
        return True
    return held == fresh


def difference(held: object, fresh: object, name: str) -> str | None:
    """The first field in which two documents differ, as a sentence; None where they are the same but for rounding."""
    parts = []
    if isinstance(held, dict) and isinstance(fresh, dict):
        parts = [(f"{name}.{key}", held.get(key), fresh.get(key)) for key in {**held, **fresh}]
    elif isinstance(held, list) and isinstance(fresh, list) and len(held) == len(fresh):
        parts = [(f"{name}.{index}", *both) for index, both in enumerate(zip(held, fresh))]
    elif not same_value(held, fresh):
        return f"{name} is {held!r:.100}, {fresh!r:.100}"
    differences = (difference(held_part, fresh_part, place) for place, held_part, fresh_part in parts)
    return next((text for text in differences if text is not None), None)


def of_the_project(grids: Path) -> contextlib.chdir:
    """The folder that the paths in grid files are relative to, as the working directory."""
    return contextlib.chdir(grids.parent.parent)


def check_evidence(folder: Path, evidence: Evidence) -> None:
    """Raises ValueError where the evidence is not what the grids beside the folder, if there are any, say now."""
    file = folder / "results.json"
    grids = folder.resolve().parent / "grids"
    if not grids.is_dir():
        return
    path = grids / evidence.grid / "grid.yaml"
    if not path.is_file():
        raise ValueError(f"{file}: evidence.grid is {evidence.grid}, {grids} has no such grid")
    with of_the_project(grids):
        fresh = gather(load_results(load_grid(path)))
    stale = difference(evidence.document(), fresh.document(), "evidence")
    if stale is not None:
        raise ValueError(f"{file}: {stale} by the rows in {grids}; leaner publish renews it")


def expected_parent(folder: Path, grid: Grid, cell: str) -> dict[str, object]:
    """What a published folder must say of the parent that it was cut from, or that it has none.

    Raises:
        ValueError: its slim.json is not that of its cell.
    """
    if not is_cut(grid, cell):
        return {"cut_parent": None}
    grids = folder.resolve().parent / "grids"
    with of_the_project(grids):
        fields = parent_fields(grid, cell)
        recorded = read_object(Path(cell) / RECORD)
    if read_object(folder / RECORD) != recorded:
        raise ValueError(f"{folder / RECORD}: not the cut of {Path(cell) / RECORD}")
    return {f"cut_parent.{name}": value for name, value in fields.items()}


def check_run(folder: Path, results: PublishedResults) -> None:
    """Raises ValueError where name, partners, settings or counts are not those of the grid and of the run's row."""
    file = folder / "results.json"
    grids = folder.resolve().parent / "grids"
    if not grids.is_dir():
        return
    with of_the_project(grids):
        held = load_folder(grids / results.evidence.grid)
        grid = held.grid
        asked = settings(grid, results.cell).settings
    own = next(cell for cell in results.evidence.cells if cell.shape == results.cell)
    run = reported(grid, results.cell, results.seed, own.learning_rate)
    row = held.rows.get(run)
    name = None
    if grid.publish is not None:
        name = grid.publish.get(results.cell)
    expected = {
        "name": name,
        "partners": grid.partners(results.cell),
        "license": LICENSE,
        "learning_rate": own.learning_rate,
        "train.steps": None,
        "rows": None,
        "data_sha256": None,
    }
    if row is not None:
        expected |= {"train.steps": row.steps, "rows": row.rows, "data_sha256": row.data_sha256}
    asked |= {"seed": results.seed, "learning_rate": own.learning_rate}
    chosen = {"seed", "learning_rate"}  # what is not a default
    if grid.overrides is not None:
        chosen.update(grid.overrides)
    expected |= {f"recipe.{key}": asked.get(key) for key in results.recipe if key in chosen and key not in LOCAL}
    expected |= expected_parent(folder, grid, results.cell)
    values = flat(file, results.document())
    for field, value in expected.items():
        stated = values.get(field)
        if stated != value:
            raise ValueError(f"{file}: {field} is {stated!r}, expected {value!r}, as of its grid and its row there")


def check_files(folder: Path, results: PublishedResults | PublishedEncoder) -> None:
    """Raises ValueError for a file that publishing does not write, one that is missing, and another recipe."""
    written = {"README.md", "results.json", "recipe.yaml"}
    patterns = [*KEPT, ONNX_FOLDER]
    if isinstance(results, PublishedEncoder):
        written |= {RECORD, "modules.json", "tokenizer.json"}
        patterns += OF_SENTENCE_TRANSFORMERS
    else:
        written |= {FIGURE, "training.png"}
        if results.cut_parent is not None:
            written.add(RECORD)
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    for name in sorted(there - written):
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            raise ValueError(f"{folder / name}: not a file of a published folder")
    for name in sorted({"config.json", "model.safetensors", *written} - there):
        raise ValueError(f"{folder / name}: missing")
    recipe = read_yaml(folder / "recipe.yaml")
    if recipe != {**results.recipe, "shape": results.shape}:
        raise ValueError(f"{folder / 'recipe.yaml'}: not the recipe of {folder / 'results.json'}")


def training_options(evidence: Evidence, options: list[str]) -> list[str]:
    """`--data_files` with the files that the grid names in the copy's folder, where it names any."""
    stated = evidence.data_files
    if stated is None or len(options) != 2:
        return options
    return [options[0], *(file.replace("FOLDER", options[1]) for file in stated.split())]


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
        fresh = {guess["name"]: guess["value"] for guess in fitted}
    for guess in held:
        name = guess.name
        stated = guess.value
        value = fresh.get(name)
        allowed = max(2e-3, 3 / rows)
        if value is None or not abs(value - stated) <= allowed:
            message = f"{name} is {stated}, the data give {value} (± {allowed:g})"
            raise ValueError(f"{folder / 'results.json'}: evidence.guesses: {message}")
    return f", {len(held)} guesses"


def compare(file: Path, expected: PublishedResults | Subset, metrics: dict[str, float], main: str) -> None:
    """Raises ValueError for the first metric that is missing or too far off, and for a tolerance that was changed."""
    if main not in expected.metrics:
        raise ValueError(f"{file}: metrics.{main} is missing")
    allowed = tolerances(expected.metrics, expected.rows)
    if expected.tolerances != allowed:
        raise ValueError(f"{file}: tolerances is {expected.tolerances}, expected {allowed}")
    check_metrics(f"{file}: metrics", expected.metrics, metrics, allowed)


def check_metrics(place: str, stated: dict[str, float], found: dict[str, float], allowed: dict[str, float]) -> None:
    """Raises ValueError, naming the place, for the first stated metric that is not found, or off by more."""
    for name, value in stated.items():
        fresh = found.get(name)
        if fresh is None or not abs(fresh - value) <= allowed[name]:
            raise ValueError(f"{place}.{name} is {value}, the weights give {fresh} (± {allowed[name]:g})")


def as_written(folder: Path) -> RunResults:
    """The results of a folder, once its card is shown to be the one that `leaner card` writes from them.

    Raises:
        ValueError: the results lack a field, or the card or `.eval_results/` is not what `leaner card` writes.
    """
    file = folder / "results.json"
    text, results = render(folder)
    if not isinstance(results, PublishedResults | PublishedEncoder):
        raise ValueError(f"{file}: evidence is missing; leaner publish writes it")
    if isinstance(results, PublishedResults) and results.subset is None:
        raise ValueError(f"{file}: subset is missing; leaner publish writes it")
    readme = folder / "README.md"
    if not readme.is_file() or readme.read_text(encoding="utf-8") != text:
        raise ValueError(f"{readme}: not what leaner card writes from {file}")
    shown = None
    path = folder / ".eval_results" / "results.yaml"
    if path.is_file():
        shown = path.read_text(encoding="utf-8")
    expected = None
    if isinstance(results, PublishedResults):
        expected = eval_results(results)
    if shown != expected:
        raise ValueError(f"{path}: not what leaner card writes from {file}")
    return results


def verify(folder: Path, given: dict[str, list[str]], short: bool = False) -> str:
    """Verifies a folder; returns one line that says what was compared.

    Args:
        given: local copies of datasets by name.
        short: on the first rows only, whose metrics results.json holds as `subset`.

    Raises:
        ValueError: one line that names file and field of what does not hold.
    """
    check_there(folder)
    check_code(folder)  # before anything of the folder is loaded, let alone run
    results = as_written(folder)
    check_files(folder, results)
    graphs = check_onnx(folder)
    if isinstance(results, PublishedEncoder):
        copies = {name: paths[0] for name, paths in given.items()}
        return verify_encoder(folder, results, copies, short) + graphs
    return verify_cell(folder, results, given, short) + graphs


def verify_cell(folder: Path, results: PublishedResults, given: dict[str, list[str]], short: bool) -> str:
    """`verify` of a folder of a grid: what its grid says of it, and its metrics."""
    check_evidence(folder, results.evidence)
    check_run(folder, results)
    file = folder / "results.json"
    expected: PublishedResults | Subset = results
    options = local_options(results, given)
    if short:
        expected = results.subset
        options += ["--max_eval_rows", str(expected.max_eval_rows)]
    metrics, rows, data = metrics_of(folder, options)
    if (rows, data) != (expected.rows, expected.data_sha256):
        where = results.dataset
        if options:
            where = options[1]
        message = f"{rows} rows of {where} with {data} differ from the card's data, {expected.rows} rows with"
        raise ValueError(f"{file}: data_sha256: {message} {expected.data_sha256}")
    main = f"eval_{results.metric}"
    compare(file, expected, metrics, main)
    verified = f"{main.removeprefix('eval_')} {metrics[main]:.4f} on {rows:,} rows, {len(expected.metrics)} metrics"
    held = results.evidence.guesses
    if short:
        verified += " of results.json's subset, guesses not fitted again"
    elif held:
        verified += check_guesses(folder, held, rows, training_options(results.evidence, options))
    if results.cut_parent is not None and not short:
        verified += check_untrained(folder, results, options)
    if not (folder.resolve().parent / "grids").is_dir():
        verified += "; other cells not compared, no grids/ beside it"
    return verified


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
        metrics = metrics_with(Path(cut) / "model.safetensors", folder, options)
    place = f"{folder / 'results.json'}: cut_parent.untrained_metrics"
    check_metrics(place, parent.untrained_metrics, metrics, tolerances(parent.untrained_metrics, results.rows))
    return ", the untrained cut"


def local_copies(entries: Sequence[str]) -> dict[str, list[str]]:
    """The folders of `--data_files` by dataset. ValueError for what is not NAME=FOLDER, and for a name given twice."""
    copies = {}
    for entry in entries:
        name, _, where = entry.partition("=")
        if where:
            copies[name] = [where]
    if len(copies) < len(entries):
        raise ValueError("--data_files: expected NAME=FOLDER, each once, as cifar10=data/cifar10")
    return copies


def check_names(given: dict[str, list[str]], folders: Sequence[Path]) -> None:
    """ValueError for a name that is no dataset of the folders, unless one cannot be read, which is reported later."""
    names = [names_in(folder / "results.json") for folder in folders]
    known = set().union(*names)
    unknown = sorted(given.keys() - known)
    if unknown and all(names):
        message = f"{unknown[0]} is no dataset of these folders, expected one of {', '.join(sorted(known))}"
        raise ValueError(f"--data_files: {message}")


def verify_all(folders: Sequence[Path], data_files: Sequence[str] = (), short: bool = False) -> None:
    """`verify` of each folder, or where none is given of all published ones; prints a line for each.

    Args:
        data_files: local copies of datasets, each as NAME=FOLDER.

    Raises:
        ValueError: a folder does not hold what its card says, after all have been tried; or `data_files` are refused.
    """
    quiet_libraries()
    given = local_copies(data_files)
    if not folders:
        folders = published_folders(CARDS)
    if not folders:
        raise ValueError(f"no published folder in {CARDS}/")
    check_names(given, folders)
    failed = 0
    for folder in folders:
        try:
            print(f"{folder}: {verify(folder, given, short)}", flush=True)
        except (ValueError, OSError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            failed += 1
            message = str(error)
            if str(folder) not in message:
                message = f"{folder}: {message}"
            print(f"FAILED {' '.join(message.split())}", file=sys.stderr, flush=True)
    if failed:
        raise ValueError(f"{failed} of {len(folders)} failed")
    compared = "cards"
    if short:
        compared = "subsets"
    holding = "1 folder holds what its"
    if len(folders) > 1:
        holding = f"{len(folders)} folders hold what their"
    print(f"{holding} {compared} say")
