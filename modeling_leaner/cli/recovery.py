"""`leaner slim --try`: each of a few cuts is trained for a little by `leaner train`; the best of them is kept."""

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Sequence
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
from ..training.data.sources import load_training
from ..training.publishing.slim_card import Try, best_try
from ..training.running.checkpoints import explain
from ..training.settings.command_line import settings_parser
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


def check_held_out(held_out_rows: Sequence, recovery: Recovery, source: str) -> None:
    """Raises ValueError if texts by which the tries are judged, or sentences, are among those that train them."""
    arguments = parse(recovery.recipe, recovery.options, fixed=WITHOUT_EVALUATION | {"shape": source})
    rows, _ = load_training(arguments)
    task = TASKS[arguments.task]
    if task.modality is IMAGES or not isinstance(rows, Dataset):
        return
    held_out = set(held_out_rows)
    shared: set[str] = set()
    for column in task.text_columns_of(arguments, rows):
        for text in rows[column]:
            parts = sentences(text) if arguments.split_sentences and text is not None else []
            shared |= held_out.intersection([text, *parts])
    if shared:
        number = f"{len(shared)} of {len(held_out_rows)} held-out rows"
        example = min(shared)[:60]
        raise ValueError(f"--data: {number} are among those that --recovery trains on, such as {example!r}")


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
    trained = []
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
