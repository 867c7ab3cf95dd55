"""What `leaner plan` prints, for people and as one JSON document, from the planner's candidates."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO

from rich.console import Console, RenderableType
from rich.table import Table

from ..configuration_leaner import LeanConfig
from ..shapes import family_of
from .advice import FIT_OFF, MOBILE_OFF, SOURCES, kernels_for
from .memory import StepSetting
from .solver import Candidate, human, human_bytes, human_count


WIDTH = 100
SHAPES_ABREAST = 6  # columns of the verdicts
ADVICE = "What published sources say (each optimises something else, so the rows are not ranked):"
LEGEND = (
    "yes, no or nothing (–), and how far; *: outside what the source measured. Signs are one way: + more layers than "
    f"the source names, − fewer. fit says yes within {FIT_OFF} layer, mobile within {MOBILE_OFF}, sovit within 20 %: "
    "these limits are the planner's own."
)
COSTS = (
    "Parameters include the pretraining head. FLOPs are forward, of matrix products; attention is the share that "
    "grows with the length. Training memory is the most that the tensors of a step take at once."
)
MEASURED = "median ± half the interquartile range, the shapes taking turns; latency: one item, forward"


@dataclass(frozen=True)
class Heading:
    """What the first lines say: how many shapes fit, and which settings nobody gave (their flags' names)."""

    fitting: int
    assumed: Sequence[str] = ()
    like: str | None = None


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"


def heads_of(each: Candidate) -> str:
    """Heads, the fewest and the most where layers differ."""
    fewest = min(each.config.heads_per_layer)
    most = max(each.config.heads_per_layer)
    return str(most) if fewest == most else f"{fewest}-{most}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def plain_table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)


# The first lines


def data_settings(config: LeanConfig, length: int) -> dict[str, str]:
    """What the shapes read, by the flag that changes it."""
    if family_of(config) == "vit":
        height, width = config.image_shape
        rows, columns = config.patch_shape
        return {"image_size": f"images of {height}×{width} pixels", "patch_size": f"patches of {rows}×{columns}"}
    return {"length": f"sequences of {length:,} tokens", "vocab_size": f"a vocabulary of {config.vocab_size:,}"}


def step_settings(setting: StepSetting) -> dict[str, str]:
    """What a training step runs on, by the flag that changes it."""
    attention = f"{setting.attention} attention"
    batch = f"batch {setting.batch_size}"
    return {"batch": batch, "dtype": setting.dtype, "attention": attention, "device": setting.device}


def heading_lines(shown: Sequence[Candidate], candidates: int, setting: StepSetting, heading: Heading) -> list[str]:
    """How many of the shapes are shown, what was given, and what nobody gave."""
    config = shown[0].config
    count = "1 shape fits"
    if heading.fitting > 1:
        count = f"{heading.fitting} shapes fit, by depth"
    if candidates < heading.fitting:
        count = f"{candidates} of the {heading.fitting} shapes that fit, by depth (--rows {heading.fitting} shows all)"
    data = data_settings(config, shown[0].flops.length)
    settings = data | step_settings(setting)
    of_start = [text for name, text in data.items() if heading.like and name in heading.assumed]
    assumed = [settings[name] for name in settings if name in heading.assumed and settings[name] not in of_start]
    given = [settings[name] for name in settings if name not in heading.assumed]
    lines = [f"{family_of(config)}: {count}."]
    lines += [f"Given: {', '.join(given)}."] if given else []
    lines += [f"As in {heading.like}: {', '.join(of_start)}."] if of_start else []
    lines += [f"Assumed: {', '.join(assumed)}."] if assumed else []
    return lines


# Tables


def cost_table(candidates: Sequence[Candidate], labels: Sequence[str]) -> Table:
    """One row of costs per shape; columns that say nothing of these shapes are left out."""
    unit = "image" if family_of(candidates[0].config) == "vit" else "token"
    against = any(each.parameters_over_start is not None for each in candidates)
    cached = any(each.kv_bytes_per_token is not None for each in candidates)
    columns: dict[str, list[str]] = {
        "row": list(labels),
        "layers\n× width": [f"{each.config.num_hidden_layers}×{each.config.hidden_size}" for each in candidates],
        "heads\n× size": [f"{heads_of(each)}×{each.config.head_dim}" for each in candidates],
        "\nMLP": [str(each.config.intermediate_size) for each in candidates],
        "para-\nmeters": [human_count(each.parameters.total) for each in candidates],
        "without\nembeddings": [human_count(each.parameters.without_embeddings) for each in candidates],
    }
    if against:
        columns["of\nstart"] = [share(each.parameters_over_start) for each in candidates]
    columns[f"FLOPs\n/{unit}"] = [human(each.flops_unit) for each in candidates]
    if against:
        columns["of \nstart"] = [share(each.flops_over_start) for each in candidates]
    columns["of it\nattention"] = [share(each.flops.attention / each.flops.forward) for each in candidates]
    columns["training\nmemory"] = [human_bytes(each.memory.peak) for each in candidates]
    if cached:
        columns["KV bytes\n/token"] = [f"{each.kv_bytes_per_token:,}" for each in candidates]
    table = plain_table()
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(*columns.values()):
        table.add_row(*row)
    return table


def measured_table(measurements: Sequence[dict[str, float]], candidates: Sequence[Candidate], labels) -> Table:
    """Times and memory of each shape on this machine, beside the memory that was computed."""
    table = plain_table()
    for name in ("row", "training\nstep ms", "items/s\ntraining", "inference\nms", "items/s\ninference"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("latency\nms", "GFLOP/s\ntraining", "training\nmemory", "of what was\ncomputed"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, row, each in zip(labels, measurements, candidates):
        step, forward, latency = (
            f"{1e3 * row[name]:.1f} ± {1e3 * row[name + '_spread']:.1f}"
            for name in ("training_step_s", "inference_s", "latency_s")
        )
        training = row["training_items_per_second"]
        inference = row["inference_items_per_second"]
        peak = row["peak_memory_bytes"]
        speed = each.flops.training_step * training / 1e9
        cells = [step, f"{training:.1f}", forward, f"{inference:.1f}", latency, f"{speed:.1f}"]
        table.add_row(label, *cells, human_bytes(peak), share(peak / each.memory.peak))
    return table


def verdict_tables(candidates: Sequence[Candidate], labels: Sequence[str]) -> list[Table]:
    """One row of verdicts per source, a column per shape; several tables where the shapes are many."""
    tables = []
    for first in range(0, len(candidates), SHAPES_ABREAST + 1):
        abreast = slice(first, first + SHAPES_ABREAST + 1)
        table = plain_table()
        table.add_column("source", no_wrap=True)
        for label in labels[abreast]:
            table.add_column(label, justify="right", no_wrap=True)
        for name in SOURCES:
            table.add_row(name, *(str(each.advice[name]) for each in candidates[abreast]))
        tables.append(table)
    return tables


def source_table() -> Table:
    """What each source optimises, and where it is valid."""
    table = plain_table()
    for name in ("source", "optimises", "valid for; unit of how far", "from, arXiv"):
        table.add_column(name)
    for source in SOURCES.values():
        table.add_row(source.name, source.optimises, source.valid, source.reference)
    return table


# Sentences


def advice_sentence(each: Candidate) -> str:
    """Which sources favour the shape and which oppose it, by what number; those that measured others are counted."""
    head_dim = each.config.head_dim
    verdicts = [(SOURCES[name], verdict) for name, verdict in each.advice.items() if name != "kernels"]

    parts = []
    for agrees, word in ((True, "favoured"), (False, "opposed")):
        spoken = [pair for pair in verdicts if pair[1].agrees is agrees and not pair[1].extrapolated]
        if spoken:
            parts.append(f"{word} by {listed([source.explain(verdict, head_dim) for source, verdict in spoken])}")
    sentence = ", ".join(parts) if parts else "no source measured such a shape"
    elsewhere = [verdict.agrees for _, verdict in verdicts if verdict.extrapolated and verdict.agrees is not None]
    if elsewhere:
        counts = f"{elsewhere.count(True)} favour and {elsewhere.count(False)} oppose it"
        sentence += f"; of {len(elsewhere)} that measured other models or sizes, {counts}"
    return sentence[0].upper() + sentence[1:] + "."


def advice_lines(candidates: Sequence[Candidate], labels: Sequence[str]) -> list[str]:
    """One sentence per shape, wrapped beneath its row's label, and what does not take a head size."""
    lines = [ADVICE]
    indent = max(map(len, labels)) + 2
    for label, each in zip(labels, candidates):
        lines += textwrap.wrap(
            advice_sentence(each),
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
    return sorted({each.config.head_dim for each in candidates})


def kernel_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Which kernels and servers take the heads, a line per head size."""
    lines = []
    for size in head_sizes(candidates):
        able = [name for name, takes in kernels_for(size).items() if takes]
        lines.append(f"heads of {size} are taken by {listed(able)}")
    return lines


# The whole


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
    heading = heading or Heading(len(candidates))
    parts: list[RenderableType] = ["\n".join(heading_lines(shown, len(candidates), setting, heading)), ""]
    parts += [cost_table(shown, labels), COSTS, ""]
    if measurements:
        parts += [measured_table(measurements, shown, labels), MEASURED, ""]
    parts += advice_lines(shown, labels)
    if verdicts:
        for table in verdict_tables(shown, labels):
            parts += ["", table]
        parts += [LEGEND, "", source_table(), "", *kernel_lines(shown)]
    console = Console(file=StringIO(), width=WIDTH, highlight=False, markup=False)
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
    rows = [each.document() for each in candidates]
    shown = list(candidates)
    if start is not None:
        rows.insert(0, start.document())
        shown.insert(0, start)
    for row, measured in zip(rows, measurements or ()):
        row["measured"] = measured
    keys = ("optimises", "valid", "reference")
    described = {name: {key: getattr(source, key) for key in keys} for name, source in SOURCES.items()}
    return {
        "family": family_of(shown[0].config),
        "setting": {**asdict(setting), "length": shown[0].flops.length},
        "start": None if start is None else rows[0],
        "candidates": rows[-len(candidates) :],
        "sources": described,
        "kernels": {size: kernels_for(size) for size in head_sizes(shown)},
    }
