"""`leaner slim`: reads the options and the rows, cuts, writes the folder with its card, and prints what was done."""

import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table

from ..conversion import load_lean
from ..layers_leaner import LeanPreTrainedModel
from ..planning.dials import flag_of
from ..slimming import budget, calibration
from ..slimming.figure import draw_scores
from ..slimming.measures import Batch, Reference, layer_names
from ..slimming.operations import SlimError, drop_pooler
from ..slimming.scores import score_tables
from ..slimming.slim import RECORD, Cut, Slimmed, Target, best_slims, check_choice, check_target
from ..source_files import check_vocabulary, copy_into, load_processors, sentence_transformers_files, weights_sha256
from ..support.documents import write_json
from ..support.files import whole_folder
from ..support.progress import progress_bar
from ..support.terminal import plain_console
from ..training.data.sources import describe
from ..training.publishing.slim_card import Making, Try, best_try, write_slim_card
from .checks import LEAST_CALIBRATION_ROWS, parse_layers
from .recovery import check_held_out, choose_by_recovery, read_recovery
from .rows import contents, rows_with_content


TABLE_WIDTH = 100


@dataclass(frozen=True)
class Options:
    """The options of `leaner slim`."""

    source: str
    output: Path
    layers: int | None
    keep: str | None
    heads: int | None
    total_heads: int | None
    head_dim: int | None
    intermediate_size: int | None
    params: str | None
    latency: str | None
    data: list[str]
    column: str | None
    rows: int
    max_length: int
    base_model: str | None
    license: str | None
    tries: int | None
    recovery: str | None


def run(options: Options) -> None:
    """Slims a checkpoint. Raises ValueError or OSError, before any work where possible; OUTPUT is whole or absent."""
    target = read_target(options)
    try:
        slim_to(options, target)
    except SlimError as error:
        raise ValueError(by_flags(error, options)) from error


def by_flags(error: SlimError, options: Options) -> str:
    """The message of an error, with the options in place of the settings, or with where rows are from."""
    if not error.settings:
        return str(error)
    if error.settings == ("count",):
        place = "--try"
    elif error.settings == ("calibration",):
        place = describe(None, "train", options.data)
    elif error.settings == ("layers",) and options.keep is not None:
        place = flag_of("keep")
    else:
        place = " and ".join(map(flag_of, error.settings))
    return f"{place}: {error.reason}"


def slim_to(options: Options, target: Target) -> None:
    """Reads the checkpoint and the rows, slims it, writes the folder and prints what was done."""
    model = load_lean(options.source).eval()
    sentence_transformers = sentence_transformers_files(options.source)  # now: refused later, the search would be lost
    parent_weights_sha256 = weights_sha256(options.source)
    recovery = None
    if options.tries is not None:
        recovery = read_recovery(options.recovery, model, options.source)
    count = options.tries or 1
    if not (options.params or options.latency):
        check_target(model, target)
        check_choice(model, target, count)
    processors = load_processors(options.source)
    check_vocabulary(options.source, processors, model.config)
    if not processors:
        raise ValueError(f"{options.source}: no tokenizer or image processor, which the calibration rows need")
    rows = calibration_rows(options, model)
    choosing_rows, held_out_rows = calibration.halves(rows)
    if recovery is not None:
        check_held_out(held_out_rows, options.data, recovery, options.source)
    choosing_batches = calibration.make_batches(model, processors[0], choosing_rows, options.max_length)
    held_out_batches = calibration.make_batches(model, processors[0], held_out_rows, options.max_length)
    target = within_budget(options, target, model, choosing_batches)
    slims = best_slims(model, target, choosing_batches, held_out_batches, count, progress_bar)
    if sentence_transformers:  # which pools by itself, without BERT's pooler
        slims = [replace(slimmed, model=drop_pooler(slimmed.model)) for slimmed in slims]
    making = Making(
        parent=options.base_model or options.source,
        chosen_by=len(choosing_rows),
        held_out=len(held_out_rows),
        command=command_line(),
        parent_weights_sha256=parent_weights_sha256,
    )
    slimmed = slims[0]
    if recovery is not None:
        held_out_reference = Reference.of(model, held_out_batches)
        slimmed, tries = choose_by_recovery(slims, recovery, options.source, processors, held_out_reference)
        making = replace(making, recovery=recovery.command(making.parent), tries=tries)
    write_folder(options, model, slimmed, processors, sentence_transformers, making)
    report(options.output, model, slimmed, making)


def read_target(options: Options) -> Target:
    """The shape that the options name."""
    keep = None
    if options.keep is not None:
        keep = tuple(parse_layers("--keep", options.keep))
    cuts = ("layers", "keep", "heads", "total_heads", "head_dim", "intermediate_size", "params", "latency")
    if all(getattr(options, name) is None for name in cuts):
        flags = ", ".join(flag_of(name) for name in cuts)
        raise ValueError(f"nothing to cut: give one of {flags}")
    budgets = [name for name in ("params", "latency") if getattr(options, name) is not None]
    if budgets and (keep is not None or options.layers is not None):
        raise ValueError(f"--{budgets[0]}: a budget chooses the number of layers; leave --layers and --keep out")
    if len(budgets) > 1:
        raise ValueError("--params and --latency: give one of them")
    if options.tries is not None and options.recovery is None:
        raise ValueError('--try: expected --recovery as well, a recipe and its keys, as "enwik8-text-embedding"')
    if options.recovery is not None and options.tries is None:
        raise ValueError("--recovery: expected --try as well, how many choices of layers are trained")
    if options.tries is not None and keep is not None:
        raise ValueError("--try: --keep has chosen the layers already; expected --layers in its place")
    return Target(
        layers=options.layers,
        keep=keep,
        heads=options.heads,
        total_heads=options.total_heads,
        head_dim=options.head_dim,
        intermediate_size=options.intermediate_size,
    )


def within_budget(options: Options, target: Target, model: LeanPreTrainedModel, batches: list[Batch]) -> Target:
    """The target with the most layers that the budget allows; unchanged where no budget is given.

    `batches`: the time of the first is what counts for `--latency`.
    """
    if options.params is not None:
        layers = budget.layers_for_params(model, budget.parse_share("--params", options.params))
    elif options.latency is not None:
        layers = budget.layers_for_latency(model, budget.parse_share("--latency", options.latency), batches[0])
    else:
        return target
    return replace(target, layers=layers)


def calibration_rows(options: Options, model: LeanPreTrainedModel) -> list:
    """Texts or images from the files of `--data`, or a built-in set, at most `--rows` of them."""
    if not options.data:
        raise ValueError("--data: missing; files or a folder with texts or images as the model reads")
    rows, column = rows_with_content(options.data, options.column, model)
    source = describe(options.data[0], "train", options.data)
    if len(rows) < LEAST_CALIBRATION_ROWS:
        few = f"{len(rows)} rows with content, expected at least {LEAST_CALIBRATION_ROWS}, half of them held out"
        raise ValueError(f"--data: {source}: {few}")
    return contents(rows, column, options.rows, source)


def write_folder(
    options: Options,
    source: LeanPreTrainedModel,
    slimmed: Slimmed,
    processors: list[object],
    sentence_transformers: dict[str, Path],
    making: Making,
) -> None:
    """The folder: model, code, tokenizer or image processor, files of sentence-transformers, card, numbers, figure."""
    with whole_folder(options.output) as folder:
        for part in (slimmed.model, *processors):
            part.save_pretrained(folder)
        copy_into(folder, sentence_transformers)
        write_slim_card(folder, options.output, source, slimmed, making, options.license)
        write_json(folder / RECORD, {**asdict(making), "cuts": [asdict(cut) for cut in slimmed.cuts]})
        figures = draw_scores(slimmed.scores, folder)
        if figures:
            write_json(folder / "scores.json", slimmed.scores.as_document())


def tries_table(tries: list[Try]) -> Table:
    """The change of the output on held-out rows of each cut, before and after its recovery."""
    table = Table(title="cuts that were tried, by the change on held-out rows", title_justify="left", box=None)
    table.add_column("layers")
    for name in ("after all cuts", "after recovery", ""):
        table.add_column(name, justify="right")
    best = best_try(tries)
    for attempt in tries:
        chosen = "chosen" if attempt is best else ""
        table.add_row(layer_names(attempt.layers), f"{attempt.before:.3f}", f"{attempt.after:.3f}", chosen)
    return table


def command_line() -> str:
    """The command as it was given."""
    return shlex.join(["leaner", *sys.argv[1:]])


def report(output: Path, source: LeanPreTrainedModel, slimmed: Slimmed, making: Making) -> None:
    """Prints what was chosen from, each cut with its rivals, what was tried, and what is left."""
    console = plain_console(width=TABLE_WIDTH)
    tables = score_tables(slimmed.scores)
    if making.tries:
        tables.append(tries_table(making.tries))
    for table in tables:
        console.print(table)
    for cut in slimmed.cuts:
        print(cut_line(cut))
        if cut.part != "layers":  # whose rivals have a table
            for rival, change in cut.rivals.items():
                print(f"    {rival}: {change:.3f}")
    before = budget.parameters_of(source)
    after = budget.parameters_of(slimmed.model)
    print(
        f"{output}: {type(slimmed.model).__name__}, {after.total / 1e6:.1f}M parameters of {before.total / 1e6:.1f}M; "
        f"without embeddings {after.without_embeddings / 1e6:.1f}M of {before.without_embeddings / 1e6:.1f}M"
    )
    if not slimmed.scores.is_empty():
        print(f"{output}: the scores of layers and heads are in scores.png, scores.svg and scores.json")


def cut_line(cut: Cut) -> str:
    """One cut: from what to what, and the change of the output on held-out rows."""
    return f"{cut.part}: {cut.before} → {cut.after}; the output changed by {cut.change:.3f} on held-out rows"
