"""`leaner evaluate MODEL`: the metrics of a run folder, a published folder or a Hub id, from its weights alone."""

import json
import sys
import tempfile
from pathlib import Path

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import convert_checkpoint
from modeling_leaner.files import naming, read_json
from modeling_leaner.hub import local_folder
from modeling_leaner.layers_leaner import find_weights
from modeling_leaner.shapes import is_plain, load_config

from ..data.sources import describe, first_rows, load_rows, load_training
from ..records import RESULTS
from ..settings import parse, words_of
from ..tasks import TASKS
from ..tasks.classification import Classification
from .loading import PreparedRun, build_model, load_processing, prepare_held_out, shape_config, task_of, with_fields
from .results import environment
from .run_folder import RECIPE
from .trainer import LeanTrainer, scores


def print_evaluation(model: str, options: list[str], as_json: bool = False) -> None:
    """Prints the metrics of a model, or one JSON document; `options` are keys that win over its own recipe's."""
    results = evaluate(model, options)
    if as_json:
        with naming(model):  # outputs that are not finite
            print(json.dumps(results, allow_nan=False))
        return

    # What is stated beside the model, if it is of the same rows.
    file = local_folder(model) / RESULTS
    document = read_json(file) if file.is_file() else {}
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
        source, folder = model, local_folder(model)
        if (folder / "config.json").is_file() and is_plain(folder):  # of a BERT, ViT or GPT-2 an exact copy
            source = str(Path(scratch, Path(model).resolve().name))
            convert_checkpoint(model, Path(source))
        run = prepare_evaluation(source, options, scratch)
        with naming(model, (RuntimeError,)):  # weights that are damaged, or do not fit
            network = build_model(run.arguments, run.task, complete=True)
            trainer = LeanTrainer(network, run.arguments, run.task, eval_dataset=run.held_out.rows)
            metrics = trainer.evaluate()
    return {
        "model": model,
        "task": run.task.name,
        "data": run.held_out.source,
        "split": run.held_out.split,
        "rows": trainer.rows_evaluated,
        "data_sha256": run.held_out.sha256,
        "main_metric": run.task.metric,
        "metrics": scores(metrics),
        "rows_per_second": trainer.rows_evaluated / metrics["eval_runtime"],
        "environment": environment(),
    }


def prepare_evaluation(model: str, options: list[str], scratch: str) -> PreparedRun:
    """A model's evaluation, ready to run: its own recipe and its own evaluation rows, unless `options` name others."""
    folder = local_folder(model)
    if not find_weights(folder):
        raise ValueError(f"{model}: no model.safetensors in this folder")
    given = {word.removeprefix("--").partition("=")[0] for word in options if word.startswith("--")}
    fixed = {"shape": model, "output_dir": scratch, "eval_strategy": "no", "save_strategy": "no"}
    fixed["implementation"] = "lean"  # whichever was trained, this family's was saved
    if "report_to" not in given:
        fixed["report_to"] = "none"  # where a stranger's recipe reports to is not where this machine does
    if given & {"data_files", "dataset", "eval_split"} and not given & {"holdout", "tuning_holdout"}:
        fixed |= {"holdout": 0, "tuning_holdout": 0}  # those were rows of the model's own data
    recipe = str(folder / RECIPE) if (folder / RECIPE).is_file() else None
    if recipe is None and "task" not in given:
        architecture = (load_config(model).architectures or [""])[0]
        tasks = [name for name, task in TASKS.items() if task.head and architecture.endswith(task.head)]
        fixed["task"] = tasks[0] if len(tasks) == 1 else None
    arguments = parse(recipe, [*options, *words_of(fixed)], needed=("task",))

    is_holdout = bool(arguments.holdout or arguments.tuning_holdout)
    if arguments.eval_split == "none" and not is_holdout:
        raise ValueError(f"{model}: it was trained without evaluation rows; --eval_split NAME says which to take")
    config = shape_config(arguments)
    processing = load_processing(arguments, config, None)
    if is_holdout:
        _, rows = load_training(arguments)
    else:
        rows = first_rows(load_rows(arguments, arguments.eval_split), arguments.max_eval_rows)
    split = arguments.train_split if is_holdout else arguments.eval_split
    source = describe(arguments.dataset, split, arguments.data_files)
    task = task_of(arguments, config)(arguments, config, processing)
    with naming(source):
        task.configure(rows)
    if isinstance(task, Classification):
        is_number = config.num_labels == 1
        found = ", ".join(list(task.classes)[:5]) if task.classes else "numbers"
        task.classes = None if task.regression or is_number else known_classes(config, list(task.classes), source)
        if task.regression != is_number or (task.classes is None and not is_number):
            expected = "numbers" if is_number else f"classes such as {', '.join(list(config.id2label.values())[:5])}"
            name = Path(model).resolve().name  # which may be a temporary copy
            problem = f"{found} in place of {expected}, which {name} was trained on"
            raise ValueError(f"{source}: {task.label_column}: {problem}")
    task.config = with_fields(config, arguments, {})  # the model's labels, not those of the rows
    return PreparedRun(arguments, task, held_out=prepare_held_out(task, rows))


def known_classes(config: LeanConfig, names: list[str], source: str) -> dict[str, int] | None:
    """Numbers of the classes as the model has them, whatever the order of the `names` of the rows' classes.

    A class goes by its name; or by its number from 0; or if the model's classes have no names and are as many as the
    rows', by place. None if there is a class that the model does not know.
    """
    known = {name: index for index, name in config.id2label.items()}
    numbers = {str(index): index for index in range(len(known))}
    if set(names) <= set(known):
        return known
    if names[0] == "0" and set(names) <= set(numbers):  # some of them may have no row
        return known | numbers
    if len(names) == len(known) and set(known) == {f"LABEL_{index}" for index in range(len(known))}:
        print(f"{source}: the model's classes have no names; taken for {', '.join(names[:5])}", file=sys.stderr)
        return {name: index for index, name in enumerate(names)}
    return None
