"""`leaner evaluate MODEL`: a task's metrics of a run folder, a published folder or a Hub id; one JSON line last."""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.hub import require_source
from modeling_leaner.shapes import load_config
from modeling_leaner.support.quiet import quiet_libraries

from . import report
from .arguments import RecipeArguments, SettingsParser, parse
from .help import HELP
from .loading import build_model, has_weights, load_processing, task_of, with_fields
from .repeated import given_options
from .sources import Rows, content_sha256, describe, load_evaluation, load_training
from .tasks import Task
from .train import split_name
from .trainer import LeanTrainer, scores


def saved_recipe(model: str) -> Path | None:
    """`recipe.yaml` beside the weights, where the model was trained by this package."""
    if Path(model).is_dir():
        path = Path(model) / "recipe.yaml"
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(model, "recipe.yaml"))
    except (HfHubHTTPError, OSError, ValueError):
        return None


def known_classes(config: LeanConfig, found: list[str], where: str) -> dict[str, int]:
    """Numbers of the classes as the model has them, whatever the order in which the rows' classes were found.

    Classes without names, in the rows or in the model, go by their number.

    Raises:
        ValueError: the rows have a class that the model does not know.
    """
    known = {name: index for index, name in config.id2label.items()}
    numbered = found == [str(index) for index in range(len(found))]
    foreign = found[len(known) :] if numbered else sorted(set(found) - set(known))
    if not foreign:
        return known
    if numbered or set(known) != {f"LABEL_{index}" for index in range(len(known))}:
        raise ValueError(f"{where} does not know the classes {', '.join(foreign[:5])}")
    return {name: index for index, name in enumerate(found)}


class Evaluation(NamedTuple):
    """What is evaluated: the settings, the rows as they were found and as the model reads them, and where they are."""

    arguments: RecipeArguments
    config: LeanConfig
    task: Task
    prepared: Rows
    data_sha256: str | None
    source: str
    split: str


def load(model: str, words: list[str], scratch: str) -> Evaluation:
    """The model's own recipe, or the task that `words` name, and its evaluation rows, or those that `words` name.

    Raises:
        ValueError: no weights, no task, or the data do not fit; one line that names what is missing.
    """
    if Path(model).is_dir() and not has_weights(model):
        raise ValueError(f"{model}: no model.safetensors in this folder")
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise ValueError(f"{model}: no such folder")
    require_source(model)
    recipe = saved_recipe(model)
    given = set(given_options(SettingsParser(), words))
    for key in ("shape", "output_dir"):
        if key in given:
            raise ValueError(f"{key}: not for evaluate, which reads {model} and writes no folder")
    if recipe is None and not Path(model).is_dir() and "task" not in given:
        raise ValueError(f"{model}: no such folder, nor a Hub id with a recipe.yaml; --task says what to evaluate")
    fixed = {"shape": model, "output_dir": scratch, "eval_strategy": "no", "save_strategy": "no"}
    fixed["implementation"] = "lean"  # whichever was trained, this family's was saved
    if given & {"data_files", "dataset", "eval_split"} and not given & {"holdout", "tuning_holdout"}:
        fixed["holdout"] = fixed["tuning_holdout"] = 0  # those were rows of the model's own data
    arguments = parse(None if recipe is None else str(recipe), words, needed=("task",), fixed=fixed)
    config, held_out = load_config(model), arguments.holdout or arguments.tuning_holdout
    if arguments.eval_split == "none" and not held_out:
        raise ValueError(f"{model}: it was trained without evaluation rows; --eval_split NAME says which to take")
    processing = load_processing(arguments, config, None)
    rows = load_training(arguments)[1] if held_out else load_evaluation(arguments)
    split = split_name(arguments)
    source = describe(arguments.dataset, arguments.train_split if held_out else split, arguments.data_files)
    task = task_of(arguments, config)(arguments, config, processing)
    fields = task.configure(rows)
    labelled = task.regression or task.classes is not None
    if labelled and task.regression != (config.num_labels == 1):
        wanted = "numbers" if task.classes else f"one of {config.num_labels} classes"
        raise ValueError(f"{source}: {task.label_column}: not what {model} was trained on, which is {wanted}")
    if task.classes is not None:
        task.classes = known_classes(config, list(fields["label2id"]), f"{source}: {model}")
    config = with_fields(config, arguments, {})
    prepared = task.prepare(rows, source, training=False).with_format("numpy")
    return Evaluation(arguments, config, task, prepared, content_sha256(rows, task.columns()), source, split)


def evaluate(model: str, words: list[str]) -> dict[str, object]:
    """Metrics of a model from its weights alone; rows, and errors, as of `load`."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments, config, task, prepared, data_sha256, source, split = load(model, words, scratch)
        network = build_model(arguments, config, task, complete=True)
        trainer = LeanTrainer(network, arguments, task, eval_dataset=prepared)
        metrics = trainer.evaluate()
    for name, value in scores(metrics).items():
        if not math.isfinite(value):
            raise ValueError(f"{model}: {name} is {value}: the model's outputs are not finite")
    return {
        "model": model,
        "task": task.name,
        "data": source,
        "split": split,
        "rows": trainer.rows_evaluated,
        "data_sha256": data_sha256,
        "main_metric": task.metric,
        "metrics": scores(metrics),
        "rows_per_second": trainer.rows_evaluated / metrics["eval_runtime"],
        "environment": report.environment(),
    }


def main(argv: list[str] | None = None) -> None:
    """The command; status 1 after one line on stderr where something is wrong."""
    words = sys.argv[1:] if argv is None else list(argv)
    words = ["--data_files" if word == "--data" else word for word in words]
    if not words or words[0] in ("-h", "--help") or words[0].startswith("--"):
        print(HELP["evaluate"])
        raise SystemExit(0 if words and words[0] in ("-h", "--help") else 2)
    quiet_libraries()
    try:
        results = evaluate(words[0], words[1:])
    except (ValueError, OSError, RuntimeError) as error:
        print(f"leaner evaluate: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(1) from None
    for key, value in sorted(results["metrics"].items()):
        print(f"{key}: {value:.4f}")
    print(json.dumps(results, allow_nan=False))


if __name__ == "__main__":
    main()
