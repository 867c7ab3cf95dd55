"""`leaner slim`: reads the rows, cuts, writes the folder with its card, and prints what was done."""

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

from ..conversion import load_lean
from ..layers_leaner import LeanPreTrainedModel
from ..planning.dials import flag_of
from ..slimming import budget, calibration
from ..slimming.measures import Batch, Reference, layer_names
from ..slimming.operations import SlimError, drop_pooler
from ..slimming.slim import RECORD, Slimmed, Target, best_slims, check_choice, check_target
from ..source_files import check_vocabulary, copy_into, load_processors, sentence_transformers_files, weights_sha256
from ..support.documents import write_json
from ..support.files import whole_folder
from ..support.progress import progress_bar
from ..training.data.sources import describe
from ..training.publishing.slim_card import Making, best_try, head_of, write_slim_card
from ..training.tasks.registry import TASKS
from .checks import LEAST_CALIBRATION_ROWS
from .recovery import check_held_out, choose_by_recovery, read_recovery
from .rows import contents, rows_with_content


def run(
    source: str,
    output: Path,
    target: Target,
    latency: str | None,
    data: list[str],
    column: str | None,
    rows: int,
    max_length: int,
    base_model: str | None,
    license: str | None,
    tries: int | None,
    recovery: str | None,
) -> None:
    """Slims a checkpoint; the parameters are the options. OUTPUT is whole or absent.

    Raises:
        ValueError: what a user can put right, by the option's name; before any work if possible.
    """
    if (tries is None) != (recovery is None):
        raise ValueError('--try and --recovery: expected both, as --try 2 --recovery "enwik8-text-embedding"')
    try:
        model = load_lean(source).eval()
        sentence_transformers = sentence_transformers_files(source)  # refused later, the search would be lost
        parent_weights_sha256 = weights_sha256(source)
        training = read_recovery(recovery, model, source) if recovery else None
        if latency is None:
            check_target(model, target)
            check_choice(model, target, tries or 1)
        processors = load_processors(source)
        check_vocabulary(source, processors, model.config)
        if not processors:
            raise ValueError(f"{source}: no tokenizer or image processor, which the calibration rows need")
        choosing_rows, held_out_rows = calibration.halves(calibration_rows(data, column, rows, model))
        if training is not None:
            check_held_out(held_out_rows, training, source)
        choosing, held_out = (
            calibration.make_batches(model, processors[0], each, max_length) for each in (choosing_rows, held_out_rows)
        )
        if latency is not None:
            target = within_latency(target, latency, model, choosing[0])
        slims = best_slims(model, target, choosing, held_out, tries or 1, progress_bar)
    except SlimError as error:
        raise ValueError(by_flags(error, target, data)) from error
    if sentence_transformers:  # which pools by itself, without BERT's pooler
        slims = [replace(slimmed, model=drop_pooler(slimmed.model)) for slimmed in slims]
    making = Making(
        parent=base_model or source,
        chosen_by=len(choosing_rows),
        held_out=len(held_out_rows),
        command=shlex.join(["leaner", *sys.argv[1:]]),
        parent_weights_sha256=parent_weights_sha256,
    )
    slimmed = slims[0]
    if training is not None:
        slimmed, attempts = choose_by_recovery(slims, training, source, processors, Reference.of(model, held_out))
        making = replace(making, recovery=training.command(making.parent), tries=attempts)
    with whole_folder(output) as folder:
        for part in (slimmed.model, *processors):
            part.save_pretrained(folder)
        copy_into(folder, sentence_transformers)
        write_slim_card(folder, output, model, slimmed, making, license)
        write_json(folder / RECORD, {**asdict(making), "cuts": [asdict(cut) for cut in slimmed.cuts]})
        if not slimmed.scores.is_empty():
            write_json(folder / "scores.json", slimmed.scores.as_document())
    report(source, output, model, slimmed, making)


def by_flags(error: SlimError, target: Target, data: list[str]) -> str:
    """The message of an error, with the options in place of the settings, or with where rows are from."""
    if not error.settings:
        return str(error)
    places = {"count": "--try", "calibration": describe(None, "train", data)}
    if target.keep is not None:
        places["layers"] = "--keep" if target.layers is None else "--layers"
    return f"{' and '.join(places.get(name, flag_of(name)) for name in error.settings)}: {error.reason}"


def within_latency(target: Target, share: str, model: LeanPreTrainedModel, batch: Batch) -> Target:
    """The target with the most layers that a share of the model's time allows, as "0.5x"."""
    if target.layers is not None or target.keep is not None:
        raise ValueError("--latency: a budget chooses the number of layers; leave --layers and --keep out")
    layers = budget.layers_for_latency(model, budget.parse_share("--latency", share), batch)
    return replace(target, layers=layers)


def calibration_rows(data: list[str], column: str | None, count: int, model: LeanPreTrainedModel) -> list:
    """Texts or images from the files of `--data`, or a built-in set, at most `count` of them."""
    if not data:
        raise ValueError("--data: missing; files or a folder with texts or images as the model reads")
    rows, column = rows_with_content(data, column, model)
    source = describe(data[0], "train", data)
    if len(rows) < LEAST_CALIBRATION_ROWS:
        few = f"{len(rows)} rows with content, expected at least {LEAST_CALIBRATION_ROWS}, half of them held out"
        raise ValueError(f"--data: {source}: {few}")
    return contents(rows, column, count, source)


def report(source: str, output: Path, model: LeanPreTrainedModel, slimmed: Slimmed, making: Making) -> None:
    """Prints each cut, what was tried, what is left and what to do next."""
    for cut in slimmed.cuts:
        if cut.part == "layers":
            kept = " ".join(map(str, cut.after))
            print(f"Kept layers {kept} of {len(cut.before)}.")
        else:
            print(f"{cut.part}: {cut.before} → {cut.after}.")
    if making.tries:
        best = best_try(making.tries)
        for attempt in making.tries:
            chosen = ", chosen" if attempt is best else ""
            layers = layer_names(attempt.layers)
            print(f"Layers {layers}: error {attempt.before:.1%} before, {attempt.after:.1%} after training{chosen}.")
    before, after = (budget.parameters_of(each).total / 1e6 for each in (model, slimmed.model))
    change = f"{slimmed.cuts[-1].change:.1%}" if slimmed.cuts else "0 %"
    print(
        f"{output}: {before:.1f}M → {after:.1f}M parameters. Output error before training: {change} "
        "(0 % = identical, 100 % = constant)."
    )
    head = head_of(slimmed.model)
    task = next((name for name, each in TASKS.items() if each.head == head), "embedding")
    words = shlex.join(["leaner", "train", "--task", task, "--shape", str(output), "--teacher", source])
    print(f"Next: {words} --output_dir NAME --data FILES")
