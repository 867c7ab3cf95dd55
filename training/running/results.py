"""results.json of a finished run: its numbers, and what is needed to get them again."""

from pathlib import Path

from modeling_leaner.conditioning import head_condition_numbers
from modeling_leaner.conversion import convert
from modeling_leaner.files import finite_or_none

from ..records import RunResults, checked
from ..records.results import LOCAL_FILES, RESULTS
from ..settings import RecipeArguments
from ..tasks.base import first_inputs
from .environment import environment, peak_memory_bytes
from .loading import build_model, recorded_settings, started_from
from .preparation import PreparedRun, split_name
from .trainer import LeanTrainer, scores


CONDITION_ROWS = 8  # on which the conditioning is measured


def results_of_run(trainer: LeanTrainer, run: PreparedRun, metrics: dict[str, float]) -> RunResults:
    """results.json: the numbers of a finished run, and what is needed to get them again.

    Raises:
        ValueError: a number is not finite; names the file and the number.
    """
    arguments = run.arguments
    task = run.task
    state = trainer.state
    architecture = type(trainer.model).__name__
    seconds = [entry["seconds"] for entry in state.log_history if "loss" in entry or "train_runtime" in entry]
    memory, kind = peak_memory_bytes()  # before a second model is built for the conditioning
    can_be_counted = run.held_out is not None and not arguments.streaming
    guess = task.chance(trainer.train_dataset, run.held_out.rows) if can_be_counted else None
    document = {
        "task": task.name,
        "dataset": arguments.dataset or LOCAL_FILES,
        "dataset_config": arguments.dataset_config,
        "split": split_name(arguments),
        "rows": 0 if run.held_out is None else trainer.rows_evaluated,
        "data_sha256": None if run.held_out is None else run.held_out.sha256,
        "shape": arguments.shape,
        "started_from": started_from(str(arguments.shape)),
        "architecture": architecture,
        "seed": arguments.seed,
        "learning_rate": arguments.settings.get("learning_rate", RecipeArguments.learning_rate),
        "main_metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "metrics": scores(metrics),
        "chance": None if guess is None else {"name": guess[0], "value": guess[1]},
        "parameters": parameters_of(trainer),
        "training_data": run.training_data,
        "classes_never_seen": task.never_seen(run.train),
        "condition": condition(trainer, arguments) if can_be_counted else None,
        "recipe": recorded_settings(arguments),
        "train": {
            "steps": state.global_step,
            "epochs": state.epoch,
            "learning_rate": arguments.learning_rate,
            "seconds": max(seconds, default=0.0),
            "loss": last_entry(trainer, "loss").get("loss"),
            "peak_memory_bytes": memory,
            "peak_memory_kind": kind,
            "processes": arguments.world_size,
            **trainer.clock.throughput(),
            **trainer.clock.process(),
        },
        "environment": environment(),
    }
    return checked(RunResults, document, Path(arguments.output_dir) / RESULTS)


def parameters_of(trainer: LeanTrainer) -> int:
    """Parameters of the model; those of a bare one are counted, as it may have a pooling layer or not."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.task.trains_bare_model():
        return model.num_parameters()
    return model.config.count_parameters(type(model).__name__).total


def last_entry(trainer: LeanTrainer, key: str) -> dict[str, float]:
    """The latest entry of the log that has the key; empty where none has it."""
    return next((entry for entry in reversed(trainer.state.log_history) if key in entry), {})


def condition(trainer: LeanTrainer, arguments: RecipeArguments) -> dict[str, object] | None:
    """κ of each layer's concatenated head outputs on the first held-out rows, before and after the training.

    None where it cannot be measured: of sharded weights, where memory does not suffice for a second model, or where
    the weights that it started from have gone.
    """
    if trainer.is_fsdp_enabled:
        return None
    inputs = first_inputs(trainer.task, trainer.eval_dataset, CONDITION_ROWS)
    inputs = {name: value.to(arguments.device) for name, value in inputs.items()}
    try:
        start = build_model(arguments, trainer.task, quietly=True).to(arguments.device)
        if arguments.implementation == "transformers":
            start = convert(start)
        # Without the autocast that accelerate puts around forward: κ beyond 100 would be of bfloat16's rounding.
        end = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        models = {"start": start, "end": end}
        measured = {name: head_condition_numbers(model, **inputs) for name, model in models.items()}
    except (RuntimeError, ValueError, OSError):  # a finished run is not lost for a diagnosis
        return None
    return {name: [finite_or_none(value) for value in values] for name, values in measured.items()}
