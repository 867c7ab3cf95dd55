"""`leaner inspect`: the conditioning of a model's attention on some rows, as tables or JSON.

A model with a recipe.yaml beside it reads rows as its recipe describes, by default its own held-out ones. Images given
as data are read without labels, texts without a recipe from a column.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from statistics import median
from time import perf_counter

from rich.table import Table
from transformers import PreTrainedModel

from ..conversion import load_lean
from ..family import IMAGES
from ..hub import load_processors, local_folder
from ..inspection import Row, Spectrum, inspect_layers, rows_of
from ..shapes import modality_of
from ..slimming.measures import make_batches
from ..terminal import plain_console
from ..training.data.sources import BUILT_IN, decoded_image, describe
from ..training.running.evaluation import prepare_evaluation
from ..training.running.run_folder import RECIPE
from ..training.slim import rows_with_content
from ..training.tasks.base import first_inputs


LENGTH = 128  # tokens of a row at most, if no recipe sets it
TEXTS_PER_ROW = 8  # read for each row that is wanted, since a recipe may join short texts


def run(
    source: str, data: list[str] | None, column: str | None, rows: int, layers: tuple[int, ...] | None, as_json: bool
) -> None:
    """Inspects a model and prints what was found. Raises ValueError or OSError that names the option, or the file."""
    model = load_lean(source).float()
    origin, inputs = read_inputs(source, model, data or [], column, rows)
    start = perf_counter()
    reports = inspect_layers(model, inputs, layers)
    seconds, tokens = perf_counter() - start, reports[0].tokens
    if as_json:  # None stands for infinity and for what is not defined
        found = json.loads(json.dumps(list(map(asdict, reports))), parse_constant=lambda name: None)
        for layer in found:
            del layer["tokens"]
        document = {"model": source, "data": origin, "tokens": tokens, "seconds": seconds, "layers": found}
        print(json.dumps(document, indent=1, allow_nan=False))
        return
    lengths = f"{min(tokens)} to {max(tokens)} tokens" if max(tokens) > min(tokens) else f"{min(tokens)} tokens each"
    print(f"{source} on {origin}: {len(tokens)} rows of {lengths}, {seconds:.1f} s")
    matrices = Table("layer", "heads", "head outputs (rows)", "W_Q W_Kᵀ (heads)", "W_V", "W_O", box=None)
    heads = Table("layer", "entropy, nats", "of the most", "similarity to another", "change without one", box=None)
    matrices.title, heads.title = "condition number κ: median (least to most)", "heads: median (least to most)"
    for report in reports:
        spectra = (report.head_outputs, report.query_key, [report.value], [report.output])
        matrices.add_row(str(report.layer), f"{report.heads}×{report.head_dim}", *map(conditions, spectra))
        pairs = [value for head, row in enumerate(report.similarity) for value in row[:head]]
        measured = (report.entropy, report.entropy_share, pairs, report.removal)
        heads.add_row(str(report.layer), *(extent(values, "{:.2f}") for values in measured))
    console = plain_console(width=112)
    for table in (matrices, heads):
        table.title_justify = "left"
        for column in table.columns:
            column.justify = "right"
        console.print(table)
    print(f"\nNext: leaner slim {source} OUT --total-heads N --data PATH removes the least important heads")


def read_inputs(
    source: str, model: PreTrainedModel, data: list[str], column: str | None, count: int
) -> tuple[str, list[Row]]:
    """Where rows come from, for people; and the first rows, each alone and without padding."""
    are_given_images = bool(data) and data[0] not in BUILT_IN and modality_of(model.config) is IMAGES
    if column is None and (local_folder(source) / RECIPE).is_file() and not are_given_images:
        # Held-out rows of the model's recipe, or of the data that are given in their place.
        words = ["--max_eval_rows", str(TEXTS_PER_ROW * count)]
        if data:
            words += ["--dataset" if data[0] in BUILT_IN else "--data_files", *data]
        with tempfile.TemporaryDirectory() as scratch:
            run = prepare_evaluation(source, words, scratch)
        return run.held_out.source, rows_of(first_inputs(run.task, run.held_out.rows, count))

    if not data:
        raise ValueError(f"--data: missing; expected a file or dataset with rows for {source}")
    processors = load_processors(source)
    if not processors:
        raise ValueError(f"{source}: no tokenizer or image processor, by which rows are read")
    rows, column = rows_with_content(data, column, model)
    origin = describe(data[0], "train", data)
    contents = [decoded_image(value, f"{origin}: {column}") for value in rows[:count][column]]
    batches = make_batches(model, processors[0], contents, LENGTH)
    return origin, [row for batch in batches for row in rows_of(batch)]


def conditions(spectra: Sequence[Spectrum]) -> str:
    """κ of matrices, or, of those that have lost rank, the lowest rank."""
    deficient = [spectrum for spectrum in spectra if spectrum.rank < spectrum.size]
    if not deficient:
        return extent([spectrum.condition_number for spectrum in spectra], "{:.4g}")
    lowest = min(deficient, key=lambda spectrum: spectrum.rank)
    several = f" ({len(deficient)} of {len(spectra)})" if len(spectra) > 1 else ""
    return f"rank {lowest.rank} of {lowest.size}{several}"


def extent(values: Sequence[float], form: str) -> str:
    """The median and, of several, in parentheses the least and the most; those that are not defined are left out."""
    defined = [value for value in values if isfinite(value)]
    if not defined:
        return "–"
    spread = f" ({form.format(min(defined))} to {form.format(max(defined))})" if len(defined) > 1 else ""
    return form.format(median(defined)) + spread
