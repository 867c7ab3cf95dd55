"""README.md of a run: its own numbers, nothing to compare them with."""

import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined

from modeling_leaner.support.files import write_bytes

from ..records import Environment, RunResults
from .environment import PACKAGES, machine_name
from .finished_folder import Run, read_run
from .metadata import metadata, named_metrics
from .snippets import named_place, snippet


TRAINING_FIGURE = "training.png"
TEMPLATES = Templates(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,  # in Markdown there is nothing to escape
)


def title(results: RunResults) -> str:
    """What was trained, and on which data."""
    if results.started_from is not None:
        return f"{Path(results.started_from).name}, fine-tuned on {results.dataset}"
    return f"{results.shape} on {results.dataset}"


def start(results: RunResults) -> str:
    """Whose weights the training started from; empty where they were new."""
    parent = results.started_from
    if parent is None:
        return ""
    if parent.startswith("./"):
        return f" It started from the weights of `{Path(parent).name}`."
    return f" It started from the weights of [{parent}](https://huggingface.co/{parent})."


def run_shape(config: Any, results: RunResults) -> str:
    """The sizes of a run's model, and whose weights it started from."""
    heads = "/".join(map(str, dict.fromkeys(config.heads_per_layer)))
    return (
        f"{results.parameters:,} parameters: {config.num_hidden_layers} layers of width {config.hidden_size}, "
        f"{heads} heads of size {config.head_dim}, MLPs of width {config.intermediate_size}.{start(results)}"
    )


def caution(settings: dict[str, Any]) -> str:
    """What one run cannot show."""
    text = "One seed, evaluated on one split: a difference from another model may be chance, and other data may give "
    text += "other numbers."
    if settings["load_best_model_at_end"] or settings["early_stopping_patience"] is not None:
        text += " The split also chose the checkpoint, so its numbers flatter the model."
    return text


def run_training(results: RunResults, settings: dict[str, Any]) -> str:
    """Length, speed, memory and the settings that matter most."""
    train = results.train
    length = f"{train.steps:,} steps in {train.seconds:,.0f} s"
    rate = train.items_per_second
    waiting = train.input_pipeline_share
    if rate is not None and waiting is not None:
        length += f", {rate:,.1f} rows a second, {waiting:.1%} of the time waiting for data"
    if train.loss is not None:
        length += f", last training loss {train.loss:.4f}"
    return (
        f"{length}; peak memory "
        f"{train.peak_memory_bytes / 2**30:.2f} GiB ({train.peak_memory_kind}). Seed {results.seed}, "
        f"optimiser {settings['optim']}, highest learning rate {results.learning_rate:.4g}, "
        f"schedule {settings['lr_scheduler_type']}, warm-up {settings['warmup_steps']}, "
        f"weight decay {settings['weight_decay']}, {settings['per_device_train_batch_size']} rows × "
        f"{settings['gradient_accumulation_steps']} a step."
    )


def run_commands(command: str, where: str) -> str:
    """The commands that train and evaluate a run again."""
    folder = shlex.quote(f"{where}-again")
    return f"{command} --output_dir {folder}\nleaner evaluate {folder}"


def run_hardware(machine: Environment) -> str:
    """Device and software of a run."""
    packages = [name for name in ("modeling_leaner", *PACKAGES) if getattr(machine, name) is not None]
    software = ", ".join(f"{name} {getattr(machine, name)}" for name in packages)
    commit = machine.git_commit or "unknown"
    processor = machine_name(machine.processor, machine.threads)
    return (
        f"Device: {machine.device}. Processor: {processor}. Python {machine.python} on "
        f"{machine.platform}; {software}; commit {commit}."
    )


def run_scores(results: RunResults) -> str:
    """The lines of a run's metrics, the main one first, and of the guess that reads nothing."""
    main = results.metric
    values = {}
    for name, value in named_metrics(results).items():
        if name == main:
            name = f"**{name}** ({'higher' if results.higher_is_better else 'lower'} is better)"
        values[name] = value
    chance = results.chance
    if chance:
        values[f"{chance.name}, for comparison"] = chance.value
    if not values:
        return "| not evaluated | | | |"
    about = f"{results.rows:,} | {results.split}"
    return "\n".join(f"| {name} | {value:.4f} | {about} |" for name, value in values.items())


def run_card(folder: Path, run: Run) -> str:
    """The card of a run that is not published."""
    results = run.results
    where = named_place(folder)
    text = TEMPLATES.get_template("run_card.md").render(
        metadata=metadata(results, run.config.model_type),
        name=title(results),
        architecture=results.architecture,
        shape=run_shape(run.config, results),
        snippet=snippet(results, run.config, where),
        scores=run_scores(results),
        figure=(folder / TRAINING_FIGURE).is_file(),
        caution=caution(run.settings),
        training=run_training(results, run.settings),
        commands=run_commands(run.command, where),
        hardware=run_hardware(results.environment),
    )
    return str(ModelCard(text))


def write_run_card(folder: Path) -> None:
    """Writes README.md of a run folder, whole. Raises ValueError as `read_run`."""
    write_bytes(folder / "README.md", run_card(folder, read_run(folder)).encode())
