"""`leaner train RECIPE --shape NAME`: one run of one recipe, from data to a folder that loads on the Hub.

In a clone also `python -m training.train` and `torchrun -m training.train`; installed,
`torchrun -m modeling_leaner.training.train`.
"""

import errno
import math
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import datasets
import numpy as np
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedModel

from modeling_leaner.conditioning import head_condition_numbers
from modeling_leaner.conversion import convert
from modeling_leaner.support.documents import write_json
from modeling_leaner.support.quiet import quiet_libraries

from .data.sources import Rows
from .publishing.cards import write_run_card
from .running.environment import environment, peak_memory_bytes
from .running.figure import plot
from .running.loading import build_model
from .running.preparation import prepare, split_name
from .running.run_folder import alone_in, compare_start, find_checkpoint, finished_results, open_folder
from .running.trainer import LeanTrainer, scores, whole_checkpoints
from .settings.arguments import RecipeArguments, parse
from .tasks.tasks import Task


NEEDED = ("task", "shape")
CONDITION_ROWS = 8  # on which the conditioning is measured
ANSWERS = ("labels", "start_positions", "end_positions")


def results_of_run(
    trainer: LeanTrainer, arguments: RecipeArguments, metrics: dict[str, float], rows: Rows | None
) -> dict:
    """results.json: the numbers of a finished run, and what is needed to get them again."""
    task = trainer.task
    state = trainer.state
    architecture = type(trainer.model).__name__
    seconds = [entry["seconds"] for entry in state.log_history if "loss" in entry or "train_loss" in entry]
    memory, kind = peak_memory_bytes()  # before a second model is built for the conditioning
    rows_evaluated = 0
    chance = None
    conditioning = None
    if rows is not None:
        rows_evaluated = trainer.rows_evaluated
        if not arguments.streaming:
            chance = chance_of(trainer, rows)
            conditioning = condition(trainer, arguments)
    return {
        "task": task.name,
        "dataset": arguments.dataset or "local files",
        "dataset_config": arguments.dataset_config,
        "split": split_name(arguments),
        "rows": rows_evaluated,
        "data_sha256": task.data_sha256,
        "shape": arguments.shape,
        "architecture": architecture,
        "seed": arguments.seed,
        "learning_rate": arguments.settings.get("learning_rate", RecipeArguments.learning_rate),
        "main_metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "metrics": scores(metrics),
        "chance": chance,
        "parameters": parameters_of(trainer),
        "training_data": task.training_data,
        "classes_never_seen": task.never_seen(trainer.train_dataset),
        "condition": conditioning,
        "recipe": arguments.settings,
        "train": {
            "steps": state.global_step,
            "epochs": state.epoch,
            "learning_rate": arguments.learning_rate,
            "seconds": max(seconds, default=0.0),
            "loss": last_entry(trainer, "loss").get("loss"),
            "peak_memory_bytes": memory,
            "peak_memory_kind": kind,
            "processes": arguments.world_size,
            **trainer.throughput(),
        },
        "environment": environment(),
    }


def parameters_of(trainer: LeanTrainer) -> int:
    """Parameters of the model; those of a bare one are counted, as it may have a pooling layer or not."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.task.head == "":
        return model.num_parameters()
    return model.config.count_parameters(type(model).__name__).total


def last_entry(trainer: LeanTrainer, key: str) -> dict[str, float]:
    """The latest entry of the log that has the key; empty where none has it."""
    return next((entry for entry in reversed(trainer.state.log_history) if key in entry), {})


def chance_of(trainer: LeanTrainer, rows: Rows) -> dict[str, object] | None:
    """Name and value of a guess that reads no input; None where the task has none."""
    guess = trainer.task.chance(trainer.train_dataset, rows)
    if guess is None:
        return None
    name, value = guess
    return {"name": name, "value": value}


def condition(trainer: LeanTrainer, arguments: RecipeArguments) -> dict[str, object] | None:
    """κ of each layer's concatenated head outputs on the first held-out rows, before and after the training.

    None where it cannot be measured: of sharded weights, or where memory does not suffice for a second model.
    """
    if trainer.is_fsdp_enabled:
        return None
    task = trainer.task
    rows = trainer.eval_dataset
    places = range(min(CONDITION_ROWS, len(rows)))
    batch = task.collate([rows[place] for place in places])
    generators = [np.random.default_rng((0, 0, place)) for place in places]
    transformed = task.transform(batch, generators, training=False)
    inputs = {name: value.to(arguments.device) for name, value in transformed.items() if name not in ANSWERS}
    try:
        start = build_model(arguments, task.config, task).to(arguments.device)
        if arguments.implementation == "transformers":
            start = convert(start)
        # Without the autocast that accelerate puts around forward: κ beyond 100 would be of bfloat16's rounding.
        end = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        models = {"start": start, "end": end}
        measured = {name: head_condition_numbers(model, **inputs) for name, model in models.items()}
    except RuntimeError:  # a finished run is not lost for a diagnosis
        return None
    return {name: [finite_or_none(value) for value in values] for name, values in measured.items()}


def finite_or_none(value: float) -> float | None:
    """The value, or None in place of NaN and infinity, which JSON does not have."""
    if math.isfinite(value):
        return value
    return None


def finish(trainer: LeanTrainer, arguments: RecipeArguments) -> dict | None:
    """Evaluates the final weights and writes weights, figure, results and card.

    Returns the results on the main process, None on the others.
    """
    folder = Path(arguments.output_dir)
    trainer.save_average()
    trainer.check_weights()
    rows = trainer.eval_dataset
    last = last_entry(trainer, "eval_loss")
    if rows is None:
        metrics = {}
    elif trainer.rows_evaluated and last["step"] == trainer.state.global_step and not arguments.load_best_model_at_end:
        metrics = last  # these very weights
    else:
        metrics = trainer.evaluate()
    if arguments.implementation == "transformers":
        trainer.model = convert(trainer.model)  # the folder is like any other; what was evaluated is not
    trainer.save_model()
    if not trainer.is_world_process_zero():
        return None
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
    results = results_of_run(trainer, arguments, metrics, rows)
    plot(trainer.metrics_file, folder / "training.png", trainer.task.metric)
    write_json(folder / "results.json", results)
    write_run_card(folder)
    return results


def run(arguments: RecipeArguments, recipe: str | None, command: str) -> dict | None:
    """One run to its end, or to where it was interrupted (None).

    Raises:
        ValueError, OSError: one line that names file, column and row, or key.
    """
    quiet_libraries()
    _ = arguments.device  # sets up the processes, if there are several
    with alone_in(arguments):
        return _run(arguments, recipe, command)


def _run(arguments: RecipeArguments, recipe: str | None, command: str) -> dict | None:
    checkpoint = find_checkpoint(arguments)
    task, config, train, held_out = prepare(arguments)
    start = compare_start(arguments, task, train, held_out)
    results = finished_results(Path(arguments.output_dir))
    if results is not None:
        if arguments.process_index != 0:
            return None
        print(f"{arguments.output_dir}: already finished; nothing is changed")
        return results
    model: PreTrainedModel = build_model(arguments, config, task)
    if held_out is None:
        arguments.eval_strategy = transformers.trainer_utils.IntervalStrategy.NO
    choose_best_by(arguments, task)
    trainer = LeanTrainer(model, arguments, task, train_dataset=train, eval_dataset=held_out)
    if trainer.is_world_process_zero():
        open_folder(arguments, recipe, start)
        warn_of_classes(task, train)
        count = model.num_parameters()
        print(f"{arguments.shape}: {type(model).__name__}, {count:,} parameters; {len_of(train)} rows to train on")
        if arguments.resume and checkpoint is None:
            print("no whole checkpoint yet: from the beginning")
        elif arguments.resume:
            print(f"continuing from {checkpoint}")
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.interrupted and trainer.state.global_step < trainer.state.max_steps:
        if trainer.is_world_process_zero():
            print(
                f"stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; continue with: {command}"
            )
        return None
    return finish(trainer, arguments)


def choose_best_by(arguments: RecipeArguments, task: Task) -> None:
    """Sets the metric by which the best checkpoint is chosen: the one that the settings name, or the task's.

    Raises:
        ValueError: the task has no such metric.
    """
    metric = arguments.settings.get("metric_for_best_model")
    if not metric:
        metric = task.metric
    metric = metric.removeprefix("eval_")
    if metric not in task.metrics:
        raise ValueError(f"metric_for_best_model: {metric}: the task {task.name} has {', '.join(task.metrics)}")
    arguments.metric_for_best_model = metric
    arguments.greater_is_better = metric not in task.lower_is_better


def warn_of_classes(task: Task, train: Rows) -> None:
    """Warns on stderr of classes that the model will have and never see."""
    unseen = task.never_seen(train)
    if unseen:
        names = ", ".join(unseen[:10])
        if len(unseen) > 10:
            names += ", ..."
        counted = f"{len(unseen)} of {len(task.classes)} classes are in no training row"
        print(f"warning: {task.label_column}: {counted}: {names}", file=sys.stderr)


def len_of(rows: Rows) -> str:
    """How many rows, for people."""
    if hasattr(rows, "__len__"):
        return f"{len(rows):,}"
    return "streamed"


def print_results(results: dict, folder: str) -> None:
    """The end of a run, for people."""
    train = results["train"]
    key = f"eval_{results['main_metric']}"
    quality = "not evaluated"
    if key in results["metrics"]:
        quality = f"{key} {results['metrics'][key]:.4f}"
    if results["chance"]:
        quality += f" ({results['chance']['name']} {results['chance']['value']:.4f})"
    print(f"{folder}: {quality}; {train['steps']} steps in {train['seconds']:.0f} s", end="")
    if train["items_per_second"]:
        share = 100 * train["input_pipeline_share"]
        print(f", {train['items_per_second']:.1f} rows/s, input pipeline {share:.1f} % of a step", end="")
    print(f"; peak memory {train['peak_memory_bytes'] / 2**30:.2f} GiB")


def fullest_disk(folder: str | None) -> tuple[Path, int]:
    """The folder with the fewest bytes free among those that a run writes to, and how many these are."""
    if not folder:
        folder = "."
    places = [Path(folder), Path(datasets.config.HF_DATASETS_CACHE), Path(tempfile.gettempdir())]
    free = {place: shutil.disk_usage(place).free for place in places if place.exists()}
    fullest = min(free, key=free.get)
    return fullest, free[fullest]


FULL_DISK = (
    "No space left",
    "os error 28",  # safetensors
    "inline_container",  # torch.save, whose message does not name the cause
)


def explain(error: Exception, folder: str | None) -> str:
    """One line for what went wrong."""
    text = " ".join(str(error).split())
    full = getattr(error, "errno", None) == errno.ENOSPC or any(phrase in text for phrase in FULL_DISK)
    if not full:
        return text
    place, free = fullest_disk(folder)
    text = f"{place}: no space left on the disk ({free / 2**20:.0f} MiB free)"
    if folder:
        whole = whole_checkpoints(Path(folder))
        if whole:
            text += f"; the last whole checkpoint is {whole[-1]}, --resume continues from it"
    return text


def resume_command(recipe: str | None, options: list[str]) -> str:
    """The command that continues a run that was started with the recipe and the options."""
    words = ["leaner", "train"]
    if recipe:
        words.append(recipe)
    words += [option for option in options if option not in ("--resume", "--restart")]
    return shlex.join([*words, "--resume"])


def train(recipe: str | None, words: list[str]) -> None:
    """Trains a shape by a recipe, or continues a run, and prints how it ended.

    Args:
        recipe: its name or file; None where `words` say all.
        words: the settings that win over the recipe's, such as `["--shape", "vit/nano", "--seed", "2"]`.

    Raises:
        ValueError: one line that says what is wrong.
        SystemExit: with status 130, where the run was interrupted.
    """
    folder = None
    try:
        arguments = parse(recipe, words, needed=NEEDED)
        folder = arguments.output_dir
        results = run(arguments, recipe, resume_command(recipe, words))
    except KeyboardInterrupt:
        print("leaner train: interrupted; nothing of the step under way is kept", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(explain(error, folder)) from error
    if results is None and arguments.process_index == 0:
        raise SystemExit(130)
    if results is not None:
        print_results(results, arguments.output_dir)


def main(words: list[str]) -> None:
    """`python -m modeling_leaner.training.train RECIPE --key value ...`: one process of `leaner train`."""
    recipe = None
    if words and not words[0].startswith("--"):
        recipe, *words = words
    try:
        train(recipe, words)
    except ValueError as error:
        print(f"leaner train: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1:])
