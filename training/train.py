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
from modeling_leaner.support.quiet import quiet_libraries

from .data.sources import Rows
from .publishing.cards import write_run_card
from .running import report
from .running.loading import build_model
from .running.preparation import prepare, split_name
from .running.run_folder import alone_in, compare_start, find_checkpoint, finished_results, open_folder
from .running.trainer import LeanTrainer, scores, whole_checkpoints
from .settings.arguments import RecipeArguments, parse
from .settings.help import train_help
from .tasks.tasks import Task


NEEDED = ("task", "shape")
CONDITION_ROWS = 8  # on which the conditioning is measured
ANSWERS = ("labels", "start_positions", "end_positions")


def summarise(trainer: LeanTrainer, arguments: RecipeArguments, metrics: dict[str, float], rows: Rows | None) -> dict:
    """results.json: the numbers of a finished run, and what is needed to get them again."""
    task, config, state = trainer.task, trainer.model.config, trainer.state
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    seconds = [entry["seconds"] for entry in state.log_history if "loss" in entry or "train_loss" in entry]
    memory, kind = report.peak_memory_bytes()
    chance = None if rows is None or arguments.streaming else task.chance(trainer.train_dataset, rows)
    return {
        "task": task.name,
        "dataset": arguments.dataset or "local files",
        "dataset_config": arguments.dataset_config,
        "split": split_name(arguments),
        "rows": 0 if rows is None else trainer.rows_evaluated,
        "data_sha256": trainer.task.data_sha256,
        "shape": arguments.shape,
        "architecture": type(trainer.model).__name__,
        "seed": arguments.seed,
        "learning_rate": arguments.settings.get("learning_rate", RecipeArguments.learning_rate),
        "main_metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "metrics": scores(metrics),
        "chance": None if chance is None else {"name": chance[0], "value": chance[1]},
        "parameters": config.count_parameters(type(trainer.model).__name__).total,
        "training_data": trainer.task.training_data,
        "classes_never_seen": task.never_seen(trainer.train_dataset),
        "condition": None if rows is None or arguments.streaming else condition(trainer, arguments),
        "recipe": arguments.settings,
        "train": {
            "steps": state.global_step,
            "epochs": state.epoch,
            "learning_rate": arguments.learning_rate,
            "seconds": max(seconds, default=0.0),
            "loss": losses[-1] if losses else None,
            "peak_memory_bytes": memory,
            "peak_memory_kind": kind,
            "processes": arguments.world_size,
            **trainer.throughput(),
        },
        "environment": report.environment(),
    }


def condition(trainer: LeanTrainer, arguments: RecipeArguments) -> dict[str, object] | None:
    """κ of each layer's concatenated head outputs on the first held-out rows, before and after the training.

    None where it cannot be had: of sharded weights, or where memory does not suffice for a second model.
    """
    if trainer.is_fsdp_enabled:
        return None
    task, rows = trainer.task, trainer.eval_dataset
    places = range(min(CONDITION_ROWS, len(rows)))
    batch = task.collate([rows[place] for place in places])
    generators = [np.random.default_rng((0, 0, place)) for place in places]
    inputs = {**task.transform(batch, generators, training=False)}
    inputs = {name: value.to(arguments.device) for name, value in inputs.items() if name not in ANSWERS}
    try:
        start = build_model(arguments, task.config, task).to(arguments.device)
        start = convert(start) if arguments.implementation == "transformers" else start
        # Without the autocast that accelerate puts around forward: κ beyond 100 would be of bfloat16's rounding.
        end = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        ends = {"start": start, "end": end}
        found = {name: head_condition_numbers(model, **inputs) for name, model in ends.items()}
    except RuntimeError:  # a finished run is not lost for a diagnosis
        return None
    return {name: [value if math.isfinite(value) else None for value in values] for name, values in found.items()}


def finish(trainer: LeanTrainer, arguments: RecipeArguments) -> dict | None:
    """Evaluates the final weights, then writes weights, figure, results and card; the results on the main process."""
    folder, task = Path(arguments.output_dir), trainer.task
    trainer.save_average()
    trainer.check_weights()
    rows = trainer.eval_dataset
    last = next((entry for entry in reversed(trainer.state.log_history) if "eval_loss" in entry), {})
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
    results = summarise(trainer, arguments, metrics, rows)
    report.plot(trainer.metrics_file, folder / "training.png", task.metric)
    report.write_json(folder / "results.json", results)
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
    best = (arguments.settings.get("metric_for_best_model") or task.metric).removeprefix("eval_")
    if best not in task.metrics:
        raise ValueError(f"metric_for_best_model: {best}: the task {task.name} has {', '.join(task.metrics)}")
    arguments.metric_for_best_model, arguments.greater_is_better = best, best not in task.lower_is_better
    trainer = LeanTrainer(model, arguments, task, train_dataset=train, eval_dataset=held_out)
    if trainer.is_world_process_zero():
        open_folder(arguments, recipe, start)
        warn_of_classes(task, train)
        count = model.num_parameters()
        print(f"{arguments.shape}: {type(model).__name__}, {count:,} parameters; {len_of(train)} rows to train on")
        if arguments.resume:
            print(f"continuing from {checkpoint}" if checkpoint else "no whole checkpoint yet: from the beginning")
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.interrupted and trainer.state.global_step < trainer.state.max_steps:
        if trainer.is_world_process_zero():
            print(
                f"stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; continue with: {command}"
            )
        return None
    return finish(trainer, arguments)


def warn_of_classes(task: Task, train: Rows) -> None:
    """Says on stderr which classes the model will have and never see."""
    unseen = task.never_seen(train)
    if unseen:
        names = ", ".join(unseen[:10]) + (", ..." if len(unseen) > 10 else "")
        counted = f"{len(unseen)} of {len(task.classes)} classes are in no training row"
        print(f"warning: {task.label_column}: {counted}: {names}", file=sys.stderr)


def len_of(rows: Rows) -> str:
    """How many rows, for people."""
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "streamed"


def say(results: dict, folder: str) -> None:
    """The end of a run, for people."""
    train, key = results["train"], f"eval_{results['main_metric']}"
    quality = f"{key} {results['metrics'][key]:.4f}" if key in results["metrics"] else "not evaluated"
    if results["chance"]:
        quality += f" ({results['chance']['name']} {results['chance']['value']:.4f})"
    print(f"{folder}: {quality}; {train['steps']} steps in {train['seconds']:.0f} s", end="")
    if train["items_per_second"]:
        share = 100 * train["input_pipeline_share"]
        print(f", {train['items_per_second']:.1f} rows/s, input pipeline {share:.1f} % of a step", end="")
    print(f"; peak memory {train['peak_memory_bytes'] / 2**30:.2f} GiB")


def fullest_disk(folder: str | None) -> tuple[Path, int]:
    """Of the folders that a run writes to the one with the fewest bytes free, and those."""
    places = [Path(folder or "."), Path(datasets.config.HF_DATASETS_CACHE), Path(tempfile.gettempdir())]
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
    if getattr(error, "errno", None) == errno.ENOSPC or any(words in text for words in FULL_DISK):
        whole = whole_checkpoints(Path(folder)) if folder else []
        kept = f"; the last whole checkpoint is {whole[-1]}, --resume continues from it" if whole else ""
        place, free = fullest_disk(folder)
        return f"{place}: no space left on the disk ({free / 2**20:.0f} MiB free){kept}"
    return text


def main(argv: list[str] | None = None) -> None:
    """The command; leaves the process with status 1 after one line on stderr where something is wrong."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(train_help())
        return
    recipe = None if words[0].startswith("--") else words.pop(0)
    kept = [word for word in words if word not in ("--resume", "--restart")]
    command = shlex.join(["leaner", "train", *([recipe] if recipe else []), *kept])
    folder = None
    try:
        arguments = parse(recipe, words, needed=NEEDED)
        folder = arguments.output_dir
        results = run(arguments, recipe, f"{command} --resume")
    except KeyboardInterrupt:
        print("leaner train: interrupted; nothing of the step under way is kept", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        print(f"leaner train: {explain(error, folder)}", file=sys.stderr)
        raise SystemExit(1) from None
    if results is None and arguments.process_index == 0:
        raise SystemExit(130)
    if results is not None:
        say(results, arguments.output_dir)


if __name__ == "__main__":
    main()
