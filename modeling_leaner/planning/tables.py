"""What `leaner plan` prints, for people and as one JSON document, from the planner's candidates."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import NamedTuple

from rich.console import RenderableType
from rich.table import Table

from ..configuration_leaner import LeanConfig
from ..registry import IMAGES
from ..shapes import family_of, modality_of
from ..support.terminal import plain_console
from .advice import FIT_OFF, MOBILE_OFF, Source, Verdict, all_sources, kernels_for, refusals
from .flops import training_flops
from .head_times import HEAD_TIMES, USUAL_SIZE, read_head_times
from .memory import StepSetting
from .solver import Candidate
from .study_verdicts import Tested, read_tested
from .units import human, human_bytes, human_count


WIDTH = 100
SHAPES_ABREAST = 7  # columns of the verdicts
ADVICE = "What published sources say (each optimises something else, so the rows are not ranked):"
LEGEND = (
    "yes, no or nothing (–), and how far; *: outside what the source measured. Signs are one way: + more layers than "
    f"the source names, − fewer. fit says yes within {FIT_OFF} layer, mobile within {MOBILE_OFF}, sovit within 20 %: "
    "these limits are the planner's own."
)
NOT_REACHED = Verdict(None)  # by a law that was fitted here
COSTS = (
    "Parameters include the pretraining head. FLOPs are forward, of matrix products; attention is the share that "
    "grows with the length. Training memory is the most that the tensors of a step take at once."
)
MEASURED = "median ± half the interquartile range, the shapes taking turns; latency: one item, forward"


@dataclass(frozen=True)
class Heading:
    """For the first lines: how many shapes fit, the settings that were left at their defaults, and `--like`."""

    fitting: int
    assumed: Sequence[str] = ()
    like: str | None = None


def share(value: float | None) -> str:
    """A share in percent; empty where there is none."""
    if value is None:
        return ""
    return f"{100 * value:.0f}%"


def heads_text(candidate: Candidate) -> str:
    """Heads, the fewest and the most where layers differ."""
    fewest = min(candidate.config.heads_per_layer)
    most = max(candidate.config.heads_per_layer)
    if fewest == most:
        return str(most)
    return f"{fewest}-{most}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def plain_table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)


# The first lines


def data_settings(config: LeanConfig, length: int) -> dict[str, str]:
    """What the shapes read, by the flag that changes it."""
    if modality_of(config) is IMAGES:
        height, width = config.image_shape
        rows, columns = config.patch_shape
        return {"image_size": f"images of {height}×{width} pixels", "patch_size": f"patches of {rows}×{columns}"}
    return {"length": f"sequences of {length:,} tokens", "vocab_size": f"a vocabulary of {config.vocab_size:,}"}


def step_settings(setting: StepSetting) -> dict[str, str]:
    """What a training step runs on, by the flag that changes it."""
    attention = f"{setting.attention} attention"
    batch = f"batch {setting.batch_size}"
    return {"batch": batch, "dtype": setting.dtype, "attention": attention, "device": setting.device}


def count_line(shown: int, fitting: int) -> str:
    """How many shapes fit, and how to see those that are not shown."""
    if shown < fitting:
        return f"{shown} of the {fitting} shapes that fit, by depth (--rows {fitting} shows all)"
    if fitting > 1:
        return f"{fitting} shapes fit, by depth"
    return "1 shape fits"


def heading_lines(shown: Sequence[Candidate], candidates: int, setting: StepSetting, heading: Heading) -> list[str]:
    """How many of the shapes are shown; the settings that were given, taken from `--like`, or assumed."""
    config = shown[0].config
    data = data_settings(config, shown[0].flops.length)
    given = []
    of_start = []
    assumed = []
    for name, text in (data | step_settings(setting)).items():
        if name not in heading.assumed:
            given.append(text)
        elif name in data and heading.like:
            of_start.append(text)
        else:
            assumed.append(text)
    lines = [f"{family_of(config)}: {count_line(candidates, heading.fitting)}."]
    for label, texts in (("Given", given), (f"As in {heading.like}", of_start), ("Assumed", assumed)):
        if texts:
            lines.append(f"{label}: {', '.join(texts)}.")
    return lines


# Tables


def cost_columns(candidates: Sequence[Candidate]) -> list[tuple[str, list[str]]]:
    """Names and cells of the columns of costs; columns that are empty for these shapes are left out."""
    unit = modality_of(candidates[0].config).unit
    has_start = any(shape.parameters_over_start is not None for shape in candidates)
    has_cache = any(shape.kv_bytes_per_token is not None for shape in candidates)
    columns = [
        ("layers\n× width", [f"{shape.config.num_hidden_layers}×{shape.config.hidden_size}" for shape in candidates]),
        ("heads\n× size", [f"{heads_text(shape)}×{shape.config.head_dim}" for shape in candidates]),
        ("\nMLP", [str(shape.config.intermediate_size) for shape in candidates]),
        ("para-\nmeters", [human_count(shape.parameters.total) for shape in candidates]),
        ("without\nembeddings", [human_count(shape.parameters.without_embeddings) for shape in candidates]),
    ]
    if has_start:
        columns.append(("of\nstart", [share(shape.parameters_over_start) for shape in candidates]))
    columns.append((f"FLOPs\n/{unit}", [human(shape.flops_per_unit) for shape in candidates]))
    if has_start:
        columns.append(("of\nstart", [share(shape.flops_over_start) for shape in candidates]))
    attention = [share(shape.flops.attention / shape.flops.forward) for shape in candidates]
    columns.append(("of it\nattention", attention))
    columns.append(("training\nmemory", [human_bytes(shape.memory.peak) for shape in candidates]))
    if has_cache:
        columns.append(("KV bytes\n/token", [f"{shape.kv_bytes_per_token:,}" for shape in candidates]))
    return columns


def cost_table(candidates: Sequence[Candidate], labels: Sequence[str]) -> Table:
    """One row of costs per shape."""
    names, cells = zip(("row", labels), *cost_columns(candidates))
    table = plain_table()
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(*cells):
        table.add_row(*row)
    return table


def milliseconds(measurement: dict[str, float], name: str) -> str:
    """A measured time with its spread."""
    return f"{1e3 * measurement[name]:.1f} ± {1e3 * measurement[name + '_spread']:.1f}"


def measured_table(
    measurements: Sequence[dict[str, float]], candidates: Sequence[Candidate], labels: Sequence[str]
) -> Table:
    """Times and memory of each shape on this machine, beside the memory that was computed."""
    table = plain_table()
    for name in ("row", "training\nstep ms", "items/s\ntraining", "inference\nms", "items/s\ninference"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("latency\nms", "GFLOP/s\ntraining", "training\nmemory", "of what was\ncomputed"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, measurement, candidate in zip(labels, measurements, candidates):
        training = measurement["training_items_per_second"]
        peak = measurement["peak_memory_bytes"]
        table.add_row(
            label,
            milliseconds(measurement, "training_step_s"),
            f"{training:.1f}",
            milliseconds(measurement, "inference_s"),
            f"{measurement['inference_items_per_second']:.1f}",
            milliseconds(measurement, "latency_s"),
            f"{training_flops(candidate.config, candidate.flops.length) * training / 1e9:.1f}",
            human_bytes(peak),
            share(peak / candidate.memory.peak),
        )
    return table


def shown_sources(candidates: Sequence[Candidate]) -> dict[str, Source]:
    """The sources that say anything of one of the shapes: all published ones, and the laws that reach there."""
    return {name: source for name, source in all_sources().items() if any(name in each.advice for each in candidates)}


def verdict_tables(candidates: Sequence[Candidate], labels: Sequence[str]) -> list[Table]:
    """One row of verdicts per source, a column per shape; several tables where the shapes are many."""
    tables = []
    for first in range(0, len(candidates), SHAPES_ABREAST):
        abreast = slice(first, first + SHAPES_ABREAST)
        table = plain_table()
        table.add_column("source", no_wrap=True)
        for label in labels[abreast]:
            table.add_column(label, justify="right", no_wrap=True)
        for name in shown_sources(candidates):
            verdicts = [candidate.advice.get(name, NOT_REACHED) for candidate in candidates[abreast]]
            table.add_row(name, *map(str, verdicts))
        tables.append(table)
    return tables


def source_table(candidates: Sequence[Candidate]) -> Table:
    """What each source optimises, and where it is valid."""
    table = plain_table()
    for name in ("source", "optimises", "valid for; unit of how far", "from, arXiv"):
        table.add_column(name)
    for source in shown_sources(candidates).values():
        table.add_row(source.name, source.optimises, source.valid, source.reference)
    return table


# Sentences


def side(verdicts: list[tuple[Source, Verdict]], agrees: bool, head_dim: int) -> str:
    """The sources that measured such a shape and are for it, or against it, with their numbers."""
    reasons = []
    for source, verdict in verdicts:
        if verdict.agrees is agrees and not verdict.extrapolated:
            reasons.append(source.explain(verdict, head_dim))
    if not reasons:
        return ""
    verb = "favoured" if agrees else "opposed"
    return f"{verb} by {listed(reasons)}"


def advice_sentence(candidate: Candidate) -> str:
    """Which sources favour the shape and which oppose it, by what number; those that measured others are counted."""
    head_dim = candidate.config.head_dim
    sources = all_sources()
    verdicts = [(sources[name], verdict) for name, verdict in candidate.advice.items() if name != "kernels"]
    sides = [side(verdicts, agrees, head_dim) for agrees in (True, False)]
    sentence = ", ".join(filter(None, sides))
    if not sentence:
        sentence = "no source measured such a shape"
    extrapolated = [verdict.agrees for _, verdict in verdicts if verdict.extrapolated and verdict.agrees is not None]
    if extrapolated:
        counts = f"{extrapolated.count(True)} favour and {extrapolated.count(False)} oppose it"
        sentence += f"; of {len(extrapolated)} that measured other models or sizes, {counts}"
    return sentence[0].upper() + sentence[1:] + "."


def advice_lines(candidates: Sequence[Candidate], labels: Sequence[str]) -> list[str]:
    """One sentence per shape, wrapped beneath its row's label, and what does not take a head size."""
    lines = [ADVICE]
    indent = max(map(len, labels)) + 2
    for label, candidate in zip(labels, candidates):
        lines += textwrap.wrap(
            advice_sentence(candidate),
            WIDTH,
            initial_indent=f"{label:>{indent - 2}}  ",
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    for size in head_sizes(candidates):
        lacking = [name for name, takes in kernels_for(size).items() if not takes]
        if lacking:
            verb = "do" if len(lacking) > 1 else "does"
            lines.append(f"{listed(lacking)} {verb} not take heads of {size}.")
    return lines


def head_sizes(candidates: Sequence[Candidate]) -> list[int]:
    """The distinct head sizes, in rising order."""
    return sorted({candidate.config.head_dim for candidate in candidates})


def kernel_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Which kernels and servers take the heads, and what they cost where that was measured, a line per head size."""
    lines = []
    times = read_head_times()
    for size in head_sizes(candidates):
        able = [name for name, takes in kernels_for(size).items() if takes]
        line = f"heads of {size} are taken by {listed(able)}"
        if size in times and size != USUAL_SIZE:
            cost = f"{times[size]:.2f} times as long as with heads of {USUAL_SIZE}"
            line += f"; as measured on a CPU in float32 ({HEAD_TIMES}), a training step takes {cost}"
        lines.append(line)
    return lines


def tested(source: Source) -> Tested | None:
    """How the source's own statements fared in a study of the working folder; None where none tests them."""
    if source.study is None:
        return None
    return read_tested(source.study, source.reference, place=source.place)


def tested_lines(candidates: Sequence[Candidate]) -> list[str]:
    """What the studies of this project found of the sources, a line each."""
    lines = []
    for source in shown_sources(candidates).values():
        found = tested(source)
        if found is None:
            continue
        opening = "own statements tested here"
        if source.is_computed_alone:
            opening = "own statements, by arithmetic alone"
        lines.append(f"{opening}: {source.name}, {found.words}")
    return lines


class Refused(NamedTuple):
    """A law that was fitted here and says nothing of some rows, and why."""

    source: str
    rows: list[int]
    reason: str


def refused(candidates: Sequence[Candidate], start: Candidate | None) -> list[Refused]:
    """The laws that say nothing of some of the candidates, whose rows are counted from 1."""
    start_config = None
    if start is not None:
        start_config = start.config
    rows: dict[tuple[str, str], list[int]] = {}
    for row, candidate in enumerate(candidates, 1):
        reasons = refusals(candidate.config, candidate.flops.length, start_config)
        for name, reason in reasons.items():
            rows.setdefault((name, reason), []).append(row)
    return [Refused(name, of_reason, reason) for (name, reason), of_reason in rows.items()]


def refused_lines(candidates: Sequence[Candidate], start: Candidate | None) -> list[str]:
    """Why laws say nothing, a line for each reason."""
    lines = []
    for name, rows, reason in refused(candidates, start):
        noun = "rows" if len(rows) > 1 else "row"
        lines.append(f"{name} says nothing of {noun} {listed([*map(str, rows)])}: {reason}")
    return lines


# The whole


def source_document(source: Source) -> dict[str, object]:
    """A source for JSON; `tested` is null where no study here puts its statements to the test."""
    found = tested(source)
    return {
        "optimises": source.optimises,
        "valid": source.valid,
        "reference": source.reference,
        "tested": found and asdict(found),
    }


def plan_text(
    candidates: Sequence[Candidate],
    setting: StepSetting,
    start: Candidate | None = None,
    measurements: Sequence[dict[str, float]] | None = None,
    heading: Heading | None = None,
    verdicts: bool = False,
) -> str:
    """Costs, measurements and advice for people, in at most `WIDTH` columns; the starting point is the first row.

    With `verdicts` every verdict of every source follows, and what the sources are.
    """
    labels = [str(row) for row in range(1, len(candidates) + 1)]
    shown = list(candidates)
    if start is not None:
        labels.insert(0, "start")
        shown.insert(0, start)
    if heading is None:
        heading = Heading(len(candidates))
    parts: list[RenderableType] = ["\n".join(heading_lines(shown, len(candidates), setting, heading)), ""]
    parts += [cost_table(shown, labels), COSTS, ""]
    if measurements:
        parts += [measured_table(measurements, shown, labels), MEASURED, ""]
    parts += advice_lines(shown, labels)
    if verdicts:
        for table in verdict_tables(shown, labels):
            parts += ["", table]
        parts += [LEGEND, *refused_lines(candidates, start), "", source_table(shown), ""]
        parts += [*tested_lines(shown), *kernel_lines(shown)]
    console = plain_console(file=StringIO(), width=WIDTH)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def plan_document(
    candidates: Sequence[Candidate],
    setting: StepSetting,
    start: Candidate | None = None,
    measurements: Sequence[dict[str, float]] | None = None,
) -> dict[str, object]:
    """Everything as one JSON document; `measurements` begin with the starting point's, if there is one."""
    shown = list(candidates)
    if start is not None:
        shown.insert(0, start)
    rows = [shape.document() for shape in shown]
    if measurements is not None:
        for row, measurement in zip(rows, measurements):
            row["measured"] = measurement
    start_row = None
    if start is not None:
        start_row = rows.pop(0)
    described = {name: source_document(source) for name, source in shown_sources(shown).items()}
    return {
        "family": family_of(shown[0].config),
        "setting": {**asdict(setting), "length": shown[0].flops.length},
        "start": start_row,
        "candidates": rows,
        "sources": described,
        "refused": [each._asdict() for each in refused(candidates, start)],
        "kernels": {size: kernels_for(size) for size in head_sizes(shown)},
    }
