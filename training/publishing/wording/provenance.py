"""Where a model comes from: data, training, the commands that recompute its numbers, and the machine."""

import shlex
from typing import Any

from modeling_leaner.support.terminal import plural

from ...experiments.evidence import dataset_name
from ...records import Evidence, PublishedResults, RunResults
from ...records.results import LOCAL_FILES, PUBLISHED
from ...running.environment import computed_on
from ...running.metadata import named_metrics, project_link
from ...settings.command_line import copy_options
from ...tasks.registry import TASKS
from .amounts import duration, millions, number


CODE_LICENCE = "Apache-2.0"
LICENCES = {"apache-2.0": CODE_LICENCE, "mit": "MIT"}  # identifier of the Hub → name; the others are named by theirs


def licence_name(license: str | None) -> str:
    """The licence of weights, by the Hub's identifier."""
    if license is None:
        return "none was given"
    return LICENCES.get(license, license)


def licence(license: str | None) -> str:
    """The licences of weights and code, and whose terms the data have."""
    name = licence_name(license)
    text = f"{name} for the weights, {CODE_LICENCE} for the code"
    if name == CODE_LICENCE:
        text = f"{name} for weights and code"
    return f"{text}; the terms of the data are their owners'"


def seen(results: RunResults, settings: dict[str, Any]) -> str:
    """How much the training read: tokens and tokens a parameter of a language model, else rows and epochs."""
    train = results.train
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    rows = train.steps * batch * train.processes
    if TASKS[results.task].is_scored_by_token and settings["max_length"]:
        tokens = rows * settings["max_length"]
        ratio = tokens / results.parameters
        return f"{millions(tokens)} tokens, {ratio:.1f} a parameter ({plural(train.steps, 'step')})"
    unit = TASKS[results.task].trained_unit
    text = f"{millions(rows)} {unit}"
    epochs = train.epochs
    if epochs and epochs >= 0.995:
        text += f", {epochs_text(epochs)}"
    return f"{text} ({plural(train.steps, 'step')})"


def epochs_text(epochs: float) -> str:
    """`16 epochs`, `1.6 epochs`; whole where it is nearly so."""
    if abs(epochs - round(epochs)) < 0.05:
        return plural(round(epochs), "epoch")
    return f"{epochs:.1f} epochs"


def overrides_listed(overrides: dict[str, Any] | None) -> str:
    """`max_steps 300, warmup_steps 30`; empty without overrides."""
    if not overrides:
        return ""
    return ", ".join(f"{key} {value}" for key, value in overrides.items())


def how_trained(evidence: Evidence) -> str:
    """A grid's recipe with its overrides, and where its weights start from."""
    text = f"Recipe `{evidence.recipe}`"
    overrides = overrides_listed(evidence.overrides)
    if overrides:
        text += f" with {overrides}"
    if evidence.start_from:
        start = f"`{evidence.start_from}`"
        if evidence.start_seed is not None:
            start = f"seed {evidence.start_seed} of {start}"
        text += f"; from the weights of {start}"
    if evidence.curves is not None:
        budgets = ", ".join(millions(curve.branch) for curve in evidence.curves)
        text += f"; max_steps is the trunk's, from which runs of {budgets} tokens are finished"
    return f"{text}."


def rows_of(results: RunResults) -> str:
    """What the training data is counted in: language models pack documents into rows of one length."""
    if TASKS[results.task].is_scored_by_token:
        return "documents"
    return "rows"


def limits_of_inputs(config: Any, results: PublishedResults) -> str:
    """Where the recipe cut the inputs, in tokens; nothing for images, which have one size."""
    length = results.recipe.get("max_length")
    positions = getattr(config, "max_position_embeddings", None)
    if length is None or positions is None:
        return ""
    if positions > length:
        return (
            f" Its training cut inputs at {length} tokens. Positions beyond the longest training row were never "
            f"trained ({positions} exist)."
        )
    return f" Its training cut inputs at {length} tokens."


def training(config: Any, results: PublishedResults, settings: dict[str, Any]) -> str:
    """The length of the training, and its last losses."""
    smoothing = results.recipe.get("label_smoothing_factor")
    smoothing_note = ""
    if smoothing:
        smoothing_note = f" (with labels smoothed by {smoothing:g}, which raises it)"
    last_loss = number(results.train.loss, ".4f")
    held_out_loss = number(named_metrics(results).get("loss"), ".4f")
    return (
        f"It read {seen(results, settings)}. Loss at the end: {last_loss} over the last training steps"
        f"{smoothing_note}, {held_out_loss} held out.{limits_of_inputs(config, results)}"
    )


def cut_training(results: PublishedResults, settings: dict[str, Any]) -> str:
    """What a cut learned from, and what the numbers beside its parent's are of."""
    shown = f"Scores are of the same {results.rows:,} held-out rows."
    teacher = settings["teacher"]
    if teacher is None:
        return shown
    who = "its parent"
    if teacher != f"{PUBLISHED}{results.parent}":
        who = teacher
    labels = ""
    if settings["distill_task"] > 0 and not TASKS[results.task].has_own_loss:
        labels = ", beside the labels of its rows"
    return f"{shown} The cut learned from {who}{labels}."


def slim_command(results: PublishedResults) -> str:
    """The command that makes a cut again, with a line break; empty for a model that was not cut."""
    parent = results.cut_parent
    if parent is None:
        return ""
    words = ["leaner", "slim", f"{PUBLISHED}{parent.name}", results.shape, *parent.slim_options]
    return f"{shlex.join(words)} --data FOLDER   # other rows, another change of the output\n"


def is_local(results: PublishedResults) -> bool:
    """Whether the rows are local files: neither generated nor from a dataset of the Hub."""
    if results.dataset == LOCAL_FILES:
        return True
    return "/" in results.dataset and not results.evidence.hub


def data(results: PublishedResults) -> str:
    """The data that the model was trained and evaluated on."""
    source = results.evidence.data
    if not source:
        source = f"{results.dataset}, as its owners publish it."
        if results.dataset == LOCAL_FILES:
            source = "Local files."
    unit = rows_of(results)
    training_rows = f"an unknown number of {unit}"
    training_data = results.training_data
    if training_data is not None and training_data.rows:
        training_rows = f"{training_data.rows:,} {unit}"
    if training_data is not None and training_data.sha256:
        training_rows += f" (sha256 of what they hold: `{training_data.sha256[:16]}…`)"
    evaluated = f"{results.rows:,}"
    if unit == "documents":
        evaluated += " rows cut from held-out documents"
    text = f"{source} Trained on {training_rows}, evaluated on {evaluated} (`{results.data_sha256[:16]}…`)."
    if is_local(results):
        text += " From a local copy, which no command here makes."
    return text


def place(results: PublishedResults) -> str:
    """Where the commands find what they name."""
    if results.is_own:
        return f"In a clone of {project_link()}"
    return f"In the project that published it, with {project_link()} installed"


def commands(results: PublishedResults, command: str) -> str:
    """The commands that recompute the card's numbers, and where the rows come from."""
    folder = f"{PUBLISHED}{results.name}"
    dataset = dataset_name(results)
    evidence = results.evidence
    verified_files = ""
    evaluated_files = ""
    training_files = ""
    if is_local(results):
        verified_files = f" --data_files {shlex.quote(dataset)}=FOLDER"
        training_files = " --data_files FOLDER"
        evaluated_files = " ".join(["", *copy_options(results.recipe, ["FOLDER"])])
        if evidence.data_files:
            training_files = f" --data_files {evidence.data_files}"
        rows = "FOLDER: the copy described above"
        if results.dataset == LOCAL_FILES:
            rows = "FOLDER: of the files, one a split, as train.csv and validation.csv"
    elif "/" in results.dataset:
        rows = f"rows from the Hub, or --data_files {dataset}=…"
    else:
        rows = "rows are generated"
    anew_folder = f"runs/{evidence.grid}"
    if not results.is_own:
        anew_folder = f"{results.rows_folder}-again"
    anew = "every cell, trained anew"
    if evidence.start_from:
        anew += f"; names the runs of {evidence.start_from} that it needs"
    return (
        f"leaner verify {folder}{verified_files}   # {rows}\n"
        f"leaner evaluate {folder}{evaluated_files}\n{slim_command(results)}{command}{training_files}\n"
        f"leaner sweep {results.grid_file} --output_dir {anew_folder}{training_files}   # {anew}"
    )


def hardware(results: PublishedResults) -> str:
    """Hardware, hours and software, of this run and of all runs of the grid."""
    evidence = results.evidence
    train = results.train
    machine = results.environment
    device = computed_on(machine.device, machine.processor, machine.threads)
    software = ", ".join(f"{name} {' and '.join(versions)}" for name, versions in evidence.software.items())
    commits = ", ".join(f"`{commit[:12]}`" for commit in evidence.commits) or "unknown"
    repeated = ""
    if evidence.failures:
        repeated = f", {evidence.failures} further attempts failed and were repeated"
    counted = ""
    if evidence.curves is not None:
        counted = " (trunks and branches count as runs of their own)"
    project = "this project"
    if not results.is_own:
        project = "modeling_leaner"
    return (
        f"This run: {train.seconds:,.0f} s for {train.steps:,} steps, {device}.\n\n"
        f"The grid: {evidence.runs} runs{counted}, {evidence.failed} of them failed{repeated}, "
        f"{duration(evidence.hours)} together without failed ones, on {'; '.join(evidence.processor)}; all of "
        f"them are in `{results.rows_folder}/results.csv`. Their software: {software}; commits of {project}: "
        f"{commits}."
    )
