"""`leaner slim --try`: each of a few cuts is trained for a little by `leaner train`; the best of them is kept."""

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from datasets import Dataset
from safetensors import SafetensorError

from ..conversion import load_lean
from ..layers_leaner import LeanPreTrainedModel
from ..registry import IMAGES
from ..slimming.measures import Reference, layer_names
from ..slimming.slim import Slimmed
from ..training.data.sentences import sentences
from ..training.data.sources import load_training, whole_split
from ..training.publishing.slim_card import Try, best_try
from ..training.running.checkpoints import explain
from ..training.settings.arguments import RecipeArguments
from ..training.settings.command_line import settings_parser
from ..training.settings.data_files import split_files
from ..training.settings.recipes import parse
from ..training.settings.repeated import given_options
from ..training.tasks.registry import TASKS
from ..training.train import run
from .rows import recipe_and_keys


STEPS = 100  # where the options name no number
OURS = ("shape", "teacher", "output_dir", "resume", "restart")  # settings that --try gives
# What the tries are judged by are the held-out rows of --data:
WITHOUT_EVALUATION = {"eval_split": "none", "holdout": 0, "eval_strategy": "no", "save_strategy": "no"}


@dataclass(frozen=True)
class Recovery:
    """How a cut is trained: a recipe of `leaner train` and the options that win over it."""

    recipe: str
    options: list[str]

    def command(self, source: str) -> str:
        """The command of one recovery, for the card."""
        return shlex.join(["leaner", "train", self.recipe, "--shape", "CUT", "--teacher", source, *self.options])


def read_recovery(text: str, model: LeanPreTrainedModel, source: str) -> Recovery:
    """The recovery of `--recovery "RECIPE --key value ..."`, checked before any work.

    Raises:
        ValueError: no such recipe or key, a key that `--try` gives, or a task that trains another head than the model
            has.
    """
    recipe, options = recipe_and_keys("--recovery", text)
    given = given_options(settings_parser(), options)
    for key in OURS:
        if key in given:
            raise ValueError(f"--recovery: {key} is what --try gives; leave it out")
    if "max_steps" not in given:
        options += ["--max_steps", str(STEPS)]
    with tempfile.TemporaryDirectory() as scratch:
        arguments = parse(recipe, options, needed=("task",), fixed={"shape": source, "output_dir": scratch})
    head = TASKS[arguments.task].head
    name = type(model).__name__
    if not name.endswith(head or "Model"):
        raise ValueError(f"--recovery: the task {arguments.task} does not train a {name}, as {source} is")
    return Recovery(recipe, options)


def check_held_out(held_out_rows: Sequence, data: list[str], recovery: Recovery, source: str) -> None:
    """Raises ValueError where rows by which the tries are judged are among those that they are trained on.

    Files are compared by path; texts by content, too: whole, or by sentence where the recipe splits.

    Args:
        held_out_rows: texts or images, every other row of `data`.
    """
    arguments = parse(recovery.recipe, recovery.options, fixed=WITHOUT_EVALUATION | {"shape": source})
    check_other_files(data, arguments)
    rows, _ = load_training(arguments)
    task = TASKS[arguments.task]
    if task.modality is IMAGES or not isinstance(rows, Dataset):
        return
    shared: set[str] = set()
    for column in task.text_columns_of(arguments, rows):
        shared |= shared_texts(set(held_out_rows), rows[column], arguments.split_sentences)
    if shared:
        number = f"{len(shared)} of {len(held_out_rows)} held-out rows"
        example = min(shared)[:60]
        raise ValueError(f"--data: {number} are among those that --recovery trains on, such as {example!r}")


def check_other_files(data: list[str], arguments: RecipeArguments) -> None:
    """Raises ValueError where a file of `data` is one that the recovery trains on."""
    by_split = split_files(arguments.data_files)
    of_all_splits = by_split.get(None, [arguments.dataset])
    trained = by_split.get(whole_split(arguments.train_split), of_all_splits)
    places = {Path(name).resolve() for name in trained if name}
    shared = sorted(name for name in data if Path(name).resolve() in places)
    if shared:
        names = ", ".join(shared)
        raise ValueError(f"--data: {names} is what --recovery trains on; every other row is held out, give others")


def shared_texts(held_out_texts: set[str], texts: Iterable[str | None], split_sentences: bool) -> set[str]:
    """The held-out texts that are among `texts`, or among their sentences."""
    shared: set[str] = set()
    for text in texts:
        shared |= held_out_texts & {text}
        if split_sentences and text is not None:
            shared |= held_out_texts.intersection(sentences(text))
    return shared


def choose_by_recovery(
    slims: Sequence[Slimmed], recovery: Recovery, source: str, processors: list[object], held_out_reference: Reference
) -> tuple[Slimmed, list[Try]]:
    """Trains each cut and returns the one whose output then is nearest to the source's, and what all came to.

    Args:
        source: folder or Hub id of the teacher.
        held_out_reference: the source's output on held-out rows.

    Raises:
        KeyboardInterrupt: a recovery was interrupted.
        ValueError: a recovery cannot be run; one line.
    """
    trained: list[tuple[Slimmed, Try]] = []
    for number, slimmed in enumerate(slims, start=1):
        layers = slimmed.scores.layers.kept
        print(f"recovery {number} of {len(slims)}: layers {layer_names(layers)}", file=sys.stderr)
        model = recover(slimmed.model, recovery, source, processors)
        attempt = Try(layers, before=slimmed.cuts[-1].change, after=held_out_reference.change(model))
        trained.append((replace(slimmed, model=model), attempt))
    tries = [attempt for _, attempt in trained]
    best = best_try(tries)
    chosen = next(slimmed for slimmed, attempt in trained if attempt is best)
    return chosen, tries


def recover(
    model: LeanPreTrainedModel, recovery: Recovery, source: str, processors: list[object]
) -> LeanPreTrainedModel:
    """The model, in its own dtype, after `leaner train` in a temporary folder. Raises as `choose_by_recovery`."""
    with tempfile.TemporaryDirectory(prefix="leaner-try-") as scratch:
        start = Path(scratch) / "cut"
        output = Path(scratch) / "run"
        for part in (model, *processors):
            part.save_pretrained(start)
        fixed = WITHOUT_EVALUATION | {"shape": str(start), "teacher": source, "output_dir": str(output)}
        try:
            with contextlib.redirect_stdout(sys.stderr):
                results = run(parse(recovery.recipe, recovery.options, fixed=fixed), recovery.recipe, "leaner slim")
        except (ValueError, OSError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"--recovery: {explain(error, scratch)}") from error
        if results is None:
            raise KeyboardInterrupt
        return load_lean(output).eval().to(model.dtype)
