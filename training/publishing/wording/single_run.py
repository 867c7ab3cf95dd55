"""The card of a single run that no grid publishes."""

import shlex
from pathlib import Path
from typing import Any

from ...records import Environment, RunResults
from ...running.environment import PACKAGES, machine_name


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
