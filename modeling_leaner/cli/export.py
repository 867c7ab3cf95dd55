"""`leaner export`: traces a checkpoint, writes the folder, and prints how exact and how fast each file is."""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from ..conversion import load_lean
from ..exporting.files import FORMATS, Forward, output_names, require_packages
from ..exporting.graph import CACHE, ExportableModel, Inputs, Size, dynamic_axes, flattened, longest, make_inputs
from ..exporting.parity import IN_FLOAT32, Parity, compare
from ..planning.units import human_bytes
from ..source_files import check_vocabulary, load_processors
from ..support.documents import write_json
from ..support.files import whole_folder
from ..support.terminal import plain_console, plural
from ..support.turns import seconds_of, take_turns
from ..training.benchmarking.machine import free_memory
from ..training.records import Environment, ExportedFile, ExportFile, ForwardTime
from ..training.running.environment import environment


LENGTH = 128  # tokens of a text that is timed
TABLE_WIDTH = 100
PARITY_FILE = "parity.json"  # not export.json, which transformers.exporters writes
EXACT = Parity(difference=0.0, same_choice=None)


@dataclass(frozen=True)
class Options:
    """The options of `leaner export`."""

    kind: str
    source: str
    output: Path
    int8: bool
    batch: int
    length: int | None
    rounds: int


@dataclass(frozen=True)
class Contestant:
    """What is compared and timed: the model in eager PyTorch, or a file."""

    file: str | None
    bytes: int
    run: Forward
    parity: Parity


def run(options: Options) -> None:
    """Exports a checkpoint. Raises ValueError or OSError for what a user can put right; OUT is whole or absent."""
    require_packages(options.kind, options.int8)
    exportable = ExportableModel(load_lean(options.source).float())
    sizes = timed_sizes(exportable, options)
    check_memory(exportable, sizes)
    processors = load_processors(options.source)
    check_vocabulary(options.source, processors, exportable.model.config)
    with whole_folder(options.output) as folder:
        folder.mkdir()
        contestants = [eager(exportable), *write_files(exportable, folder, options)]
        write_parts(exportable, processors, folder)
        times = timed(exportable, contestants, sizes, options.rounds)
        document = describe(exportable, contestants, times, options.rounds)
        write_json(folder / PARITY_FILE, document.document())
    report(options.output, document)


def timed_sizes(exportable: ExportableModel, options: Options) -> list[Size]:
    """One row, then `--batch` rows; of a model that continues texts one more token of each, too.

    Raises ValueError for a length that the model does not read.
    """
    most = longest(exportable)
    if most is None:
        if options.length is not None:
            kind = type(exportable.model).__name__
            raise ValueError(f"--length {options.length}: {kind} reads images, which have none")
        return [Size(rows, 0) for rows in (1, options.batch)]
    length = options.length
    if exportable.keeps_cache:
        most -= 1  # room for one more
    if length is None:
        length = min(LENGTH, most)
    if length > most:
        raise ValueError(f"--length {length}: expected at most {most}, by max_position_embeddings of the model")
    sizes = [Size(rows, length) for rows in (1, options.batch)]
    if exportable.keeps_cache:
        sizes += [Size(size.rows, 1, past=length) for size in sizes]
    return sizes


def pass_bytes(exportable: ExportableModel, size: Size) -> int:
    """About what a forward pass holds at least: inputs, outputs, and the states of one block with those in its MLP."""
    one = make_inputs(exportable, replace(size, rows=1))
    with torch.inference_mode():
        outputs = exportable(**one)
    values = [*flattened(one).values(), *outputs.values()]
    config = exportable.model.config
    tokens = config.default_length
    if not exportable.reads_images:
        tokens = one["input_ids"].numel()
    states = 4 * tokens * (config.hidden_size + config.intermediate_size)
    return size.rows * (sum(tensor.nbytes for tensor in values) + states)


def check_memory(exportable: ExportableModel, sizes: list[Size]) -> None:
    """Raises ValueError for a batch that does not fit into the free memory."""
    free = free_memory(torch.device("cpu"))
    for size in sizes:
        needed = pass_bytes(exportable, size)
        if free is not None and needed > free:
            reason = f"takes at least {human_bytes(needed)}, and {human_bytes(free)} are free"
            raise ValueError(f"--batch {size.rows}: a forward pass {reason}; expected fewer rows")


def eager(exportable: ExportableModel) -> Contestant:
    """The model itself."""

    def run_model(inputs: Inputs) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return exportable(**inputs)

    size = sum(weight.nbytes for weight in exportable.model.parameters())
    return Contestant(None, size, run_model, EXACT)


def write_files(exportable: ExportableModel, folder: Path, options: Options) -> list[Contestant]:
    """Writes the file, and that in 8 bits, and compares each with the model.

    Raises ValueError where the file in the model's own precision does not say what the model says.
    """
    file_format = FORMATS[options.kind]
    whole = file_format.path(folder)
    whole.parent.mkdir(exist_ok=True)
    file_format.write(exportable, whole)
    contestants = [compared_file(exportable, file_format.load(whole), folder, whole)]
    difference = contestants[0].parity.difference
    if difference > IN_FLOAT32:
        raise ValueError(f"{options.source}: its {options.kind} file differs from it by {difference:.1e}; not kept")
    if options.int8:
        small = file_format.path(folder, int8=True)
        file_format.write_int8(exportable, small, whole)
        contestants.append(compared_file(exportable, file_format.load(small), folder, small))
    return contestants


def compared_file(exportable: ExportableModel, run_file: Forward, folder: Path, path: Path) -> Contestant:
    """A file that was written, compared with the model."""
    parts = path.parent.glob(f"{path.name}*")  # with the file beside it that holds large weights
    size = sum(part.stat().st_size for part in parts)
    return Contestant(path.relative_to(folder).as_posix(), size, run_file, compare(exportable, run_file))


def write_parts(exportable: ExportableModel, processors: list[object], folder: Path) -> None:
    """The configuration, without the names of code files, which are not there, and tokenizer or image processor."""
    config = json.loads(exportable.model.config.to_json_string())
    config.pop("auto_map", None)
    write_json(folder / "config.json", config)
    for processor in processors:
        processor.save_pretrained(folder)


def timed(
    exportable: ExportableModel, contestants: list[Contestant], sizes: list[Size], rounds: int
) -> list[list[ForwardTime]]:
    """The times of every contestant, size by size; at each size all take turns."""
    times: list[list[ForwardTime]] = [[] for _ in contestants]
    for size in sizes:
        inputs = make_inputs(exportable, size, padded=False)
        calls = [partial(seconds_of, partial(contestant.run, inputs)) for contestant in contestants]
        medians = np.median(take_turns(calls, rounds), axis=1).tolist()
        for rows, median in zip(times, medians):
            rows.append(forward_time(exportable, size, median))
    return times


def forward_time(exportable: ExportableModel, size: Size, median: float) -> ForwardTime:
    """A measured time with what was measured."""
    length = None
    past = None
    if not exportable.reads_images:
        length = size.length
    if exportable.keeps_cache:
        past = size.past
    return ForwardTime(rows=size.rows, length=length, past=past, seconds=median)


def describe(
    exportable: ExportableModel, contestants: list[Contestant], times: list[list[ForwardTime]], rounds: int
) -> ExportFile:
    """What parity.json holds."""
    files = []
    for contestant, measured in zip(contestants, times):
        parity = contestant.parity
        files.append(
            ExportedFile(
                file=contestant.file,
                bytes=contestant.bytes,
                difference=parity.difference,
                same_choice=parity.same_choice,
                times=measured,
            )
        )
    return ExportFile(
        architecture=type(exportable.model).__name__,
        inputs=input_shapes(exportable),
        outputs=output_names(exportable),
        rounds=rounds,
        files=files,
        environment=Environment(**environment()),
    )


def input_shapes(exportable: ExportableModel) -> dict[str, list[int | str]]:
    """The shape of every input, with names in place of free sizes."""
    shapes = {}
    axes = dynamic_axes(exportable)
    for name, tensor in flattened(make_inputs(exportable, exportable.traced_size)).items():
        free = axes[name.partition(".")[0]]
        shapes[name] = [free.get(axis, size) for axis, size in enumerate(tensor.shape)]
    return shapes


def column_of(time: ForwardTime) -> str:
    """The heading of a time: images; or rows × tokens of each, and how many the cache holds already."""
    if time.length is None:
        return plural(time.rows, "image")
    if time.past:
        return f"{time.rows}×{time.length} after {time.past}"
    return f"{time.rows}×{time.length}"


def report(output: Path, document: ExportFile) -> None:
    """Prints every file with its size, its distance from the model and its times, beside the model's."""
    table = Table(box=None, title="right: milliseconds by rows × tokens, medians in turns", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("size", "difference", "same choice", *map(column_of, document.files[0].times)):
        table.add_column(name, justify="right")
    for file in document.files:
        name = "PyTorch"
        parity = ["", ""]
        if file.file is not None:
            name = file.file
            parity[0] = f"{file.difference:.1e}"
            if file.same_choice is not None:
                parity[1] = f"{file.same_choice:.1%}"
        milliseconds = [f"{time.seconds * 1e3:.2f}" for time in file.times]
        table.add_row(name, human_bytes(file.bytes), *parity, *milliseconds)
    plain_console(width=TABLE_WIDTH).print(table)
    inputs = ", ".join(name for name in document.inputs if not name.startswith(CACHE))
    outputs = ", ".join(name for name in document.outputs if not name.startswith("present."))
    cache = ""
    if any(name.startswith(CACHE) for name in document.inputs):
        cache = ", with a cache"
    print(f"{output}: {document.architecture}, {inputs} → {outputs}{cache}; all shapes are in {PARITY_FILE}")
