"""`leaner evaluate MODEL`: the metrics of a run folder, a published folder or a Hub id, from its weights alone."""

import json
import math
import sys
import tempfile
from pathlib import Path

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import convert_checkpoint
from modeling_leaner.files import naming, read_json
from modeling_leaner.hub import local_folder
from modeling_leaner.layers_leaner import find_weights
from modeling_leaner.shapes import is_plain, load_config

from ..data.sources import first_rows, load_rows, load_training
from ..records import RESULTS
from ..settings import RecipeArguments, parse
from ..tasks import TASKS
from ..tasks.classification import Classification
from .loading import (
    PreparedRun,
    build_model,
    held_out_source,
    holdout_key,
    load_processing,
    prepare_held_out,
    split_name,
    task_of,
    with_fields,
)
from .results import environment
from .run_folder import RECIPE
from .trainer import LeanTrainer, scores


def print_evaluation(model: str, options: list[str], as_json: bool = False) -> None:
    """Prints the metrics of a model, or one JSON document.

    Args:
        options: keys of a recipe, which win over the model's own recipe, such as `["--data_files", "FOLDER"]`.

    Raises:
        ValueError, OSError: one line that names what is missing or does not fit.
    """
    results = evaluate(model, options)
    if as_json:
        print(json.dumps(results, allow_nan=False))
        return

    # What is stated beside the model, if it is of the same rows.
    file = saved_file(model, RESULTS)
    document = read_json(file) if file else {}
    is_same = "metrics" in document and document.get("data_sha256") == results["data_sha256"]
    stated = document["metrics"] if is_same else {}
    guess = (document.get("evidence") or {}).get("best_guess") if is_same else None
    for key, value in sorted(results["metrics"].items()):
        beside = f" (its card: {stated[key]:.4f})" if stated.get(key) is not None else ""
        print(f"{key}: {'undefined' if value is None else f'{value:.4f}'}{beside}")
    if guess:
        print(f"best simple baseline: {guess['value']:.4f} ({guess['name']})")
    print(f"{results['rows']:,} rows, {results['rows_per_second']:.0f} rows/s")


def evaluate(model: str, options: list[str]) -> dict[str, object]:
    """Metrics of a model on the rows of `prepare_evaluation`; raises as that, and ValueError of its weights."""
    with tempfile.TemporaryDirectory() as scratch:
        run = prepare_evaluation(as_lean(model, scratch), options, scratch)
        with naming(model, (RuntimeError,)):  # weights that are damaged, or do not fit
            network = build_model(run.arguments, run.task, complete=True)
            trainer = LeanTrainer(network, run.arguments, run.task, eval_dataset=run.held_out.rows)
            metrics = trainer.evaluate()
    found = scores(metrics)
    if not all(value is None or math.isfinite(value) for value in found.values()):
        raise ValueError(f"{model}: the model's outputs are not finite")
    return {
        "model": model,
        "task": run.task.name,
        "data": run.held_out.source,
        "split": split_name(run.arguments),
        "rows": trainer.rows_evaluated,
        "data_sha256": run.held_out.sha256,
        "main_metric": run.task.metric,
        "metrics": found,
        "rows_per_second": trainer.rows_evaluated / metrics["eval_runtime"],
        "environment": environment(),
    }


def as_lean(model: str, scratch: str) -> str:
    """A model of this family as it is; of a BERT, ViT or GPT-2 an exact copy in this family's class."""
    folder = local_folder(model)
    if not (folder / "config.json").is_file() or not is_plain(folder):
        return model
    copy = Path(scratch, Path(model).resolve().name)
    convert_checkpoint(model, copy)
    return str(copy)


def prepare_evaluation(model: str, options: list[str], scratch: str) -> PreparedRun:
    """A model's evaluation, ready to run: its own recipe and its own evaluation rows, unless `options` name others."""
    arguments = evaluation_settings(model, options, scratch)
    config = load_config(model)
    held_out = holdout_key(arguments) is not None
    if arguments.eval_split == "none" and not held_out:
        raise ValueError(f"{model}: it was trained without evaluation rows; --eval_split NAME says which to take")
    processing = load_processing(arguments, config, None)
    if held_out:
        _, rows = load_training(arguments)
    else:
        rows = first_rows(load_rows(arguments, arguments.eval_split), arguments.max_eval_rows)
    source = held_out_source(arguments)
    task = task_of(arguments, config)(arguments, config, processing)
    with naming(source):
        fields = task.configure(rows)
    name = Path(model).resolve().name  # which may be a temporary copy
    if isinstance(task, Classification) and task.regression != (config.num_labels == 1):
        expected = "numbers" if config.num_labels == 1 else f"one of {config.num_labels} classes"
        raise ValueError(f"{source}: {task.label_column}: expected {expected}, which {name} was trained on")
    if task.classes is not None:
        task.classes = known_classes(config, list(fields["label2id"]), f"{source}: {name}")
    task.config = with_fields(config, arguments, {})  # the model's labels, not those of the rows
    return PreparedRun(arguments, task, held_out=prepare_held_out(task, rows))


def evaluation_settings(model: str, options: list[str], scratch: str) -> RecipeArguments:
    """The settings of the model's own recipe, if there is one, and of `options`, which win over it."""
    if not find_weights(local_folder(model)):
        raise ValueError(f"{model}: no model.safetensors in this folder")
    recipe = saved_file(model, RECIPE)
    given = {word.removeprefix("--").partition("=")[0] for word in options if word.startswith("--")}
    fixed = {"shape": model, "output_dir": scratch, "eval_strategy": "no", "save_strategy": "no"}
    fixed["implementation"] = "lean"  # whichever was trained, this family's was saved
    if "report_to" not in given:
        fixed["report_to"] = "none"  # where a stranger's recipe reports to is not where this machine does
    if given & {"data_files", "dataset", "eval_split"} and not given & {"holdout", "tuning_holdout"}:
        fixed |= {"holdout": 0, "tuning_holdout": 0}  # those were rows of the model's own data
    if recipe is None and "task" not in given:
        architecture = (load_config(model).architectures or [""])[0]
        tasks = [name for name, task in TASKS.items() if task.head and architecture.endswith(task.head)]
        fixed["task"] = tasks[0] if len(tasks) == 1 else None
    return parse(recipe and str(recipe), options, needed=("task",), fixed=fixed)


def saved_file(model: str, name: str) -> Path | None:
    """A file beside the weights of a folder or Hub id, such as recipe.yaml; None if there is none."""
    path = local_folder(model) / name
    return path if path.is_file() else None


def known_classes(config: LeanConfig, names: list[str], where: str) -> dict[str, int]:
    """Numbers of the classes as the model has them, whatever the order of the `names` of the rows' classes.

    A class goes by its name; or by its number from 0; or if the model's classes have no names and are as many as the
    rows', by place. Raises ValueError for a class that the model does not know.
    """
    known = {name: index for index, name in config.id2label.items()}
    foreign = [name for name in names if name not in known]
    numbers = {str(index): index for index in range(len(known))}
    if not foreign:
        return known
    if names[0] == "0" and set(names) <= set(numbers):  # some of them may have no row
        return known | numbers
    if len(names) == len(known) and set(known) == {f"LABEL_{index}" for index in range(len(known))}:
        print(f"{where} does not name its classes; they are taken for {', '.join(names[:5])}", file=sys.stderr)
        return {name: index for index, name in enumerate(names)}
    raise ValueError(f"{where} does not know the classes {', '.join(foreign[:5])}")
