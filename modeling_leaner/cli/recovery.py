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
from ..slimming.operations import SlimError
from ..slimming.scores import Reference
from ..slimming.slim import Slimmed
from ..slimming.worth import layer_names
from ..training.data.sentences import sentences
from ..training.data.sources import load_training, split_files, whole_split
from ..training.publishing.slim_card import Try, best_try
from ..training.running.errors import explain
from ..training.settings.arguments import SettingsParser, parse, read_recipe
from ..training.settings.repeated import given_options
from ..training.tasks.registry import TASKS
from ..training.train import run


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
    try:
        recipe, *options = shlex.split(text) or [""]
    except ValueError as error:  # a quote without its end
        raise SlimError(f"--recovery: {str(error).lower()}, got {text!r}") from error
    read_recipe(recipe)
    given = given_options(SettingsParser(), options)
    for key in OURS:
        if key in given:
            raise SlimError(f"--recovery: {key} is what --try gives; leave it out")
    if "max_steps" not in given:
        options += ["--max_steps", str(STEPS)]
    with tempfile.TemporaryDirectory() as scratch:
        arguments = parse(recipe, options, needed=("task",), fixed={"shape": source, "output_dir": scratch})
    head = TASKS[arguments.task].head
    name = type(model).__name__
    if not name.endswith(head or "Model"):
        raise SlimError(f"--recovery: the task {arguments.task} does not train a {name}, as {source} is")
    return Recovery(recipe, options)


def check_held_out(held_out: Sequence, data: list[str], recovery: Recovery, source: str) -> None:
    """Raises ValueError where rows by which the tries are judged are among those that they are trained on.

    Images are compared by their files, texts by what they say, too: whole, or by sentence where the recipe splits.

    Args:
        held_out: texts or images, every other row of `data`.
    """
    arguments = parse(recovery.recipe, recovery.options, fixed=WITHOUT_EVALUATION | {"shape": source})
    files = split_files(arguments.data_files)
    trained = files.get(whole_split(arguments.train_split), files.get(None, [arguments.dataset]))
    shared = {str(Path(name).resolve()) for name in data} & {str(Path(name).resolve()) for name in trained if name}
    if shared:
        what = ", ".join(sorted(name for name in data if str(Path(name).resolve()) in shared))
        raise SlimError(f"--data: {what} is what --recovery trains on; every other row is held out, give others")
    rows, _ = load_training(arguments)
    if TASKS[arguments.task].modality is IMAGES or not isinstance(rows, Dataset):
        return
    (column, *_) = TASKS[arguments.task].text_columns_of(arguments, rows)
    searched = set(held_out)
    shared_rows = searched & set(rows[column])
    if arguments.split_sentences:
        shared_rows |= {sentence for text in rows[column] for sentence in searched.intersection(sentences(text))}
    if shared_rows:
        number = f"{len(shared_rows)} of {len(held_out)} held-out rows"
        example = min(shared_rows)[:60]
        raise SlimError(f"--data: {number} are among those that --recovery trains on, such as {example!r}")


def choose_by_recovery(
    slims: Sequence[Slimmed], recovery: Recovery, source: str, processors: list[object], reference: Reference
) -> tuple[Slimmed, list[Try]]:
    """Trains each cut and returns the one whose output then is nearest to the source's, and what all came to.

    Args:
        source: folder or Hub id of the teacher.
        reference: the source's output on held-out rows.

    Raises:
        KeyboardInterrupt: a recovery was interrupted.
        ValueError: a recovery cannot be run; one line.
    """
    trained = []
    tries = []
    for number, slimmed in enumerate(slims, start=1):
        layers = slimmed.worth.layers.kept
        print(f"recovery {number} of {len(slims)}: layers {layer_names(layers)}", file=sys.stderr)
        model = recover(slimmed.model, recovery, source, processors)
        trained.append(replace(slimmed, model=model))
        tries.append(Try(layers, slimmed.cuts[-1].change, reference.change(model)))
    return trained[tries.index(best_try(tries))], tries


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
