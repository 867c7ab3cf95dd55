"""What `leaner plan` prints, for people and as one JSON document, from the planner's candidates."""

from collections.abc import Sequence
from io import StringIO
from math import expm1, log

from rich.table import Table

from ..configuration_leaner import LeanConfig
from ..family import IMAGES
from ..shapes import family_of, modality_of
from ..terminal import plain_console
from .advice import OPPOSES, REFUTATION, SOURCES
from .costs import StepSetting, human, human_bytes, human_count, training_flops
from .solver import Candidate


WIDTH = 110
BATCH = StepSetting().batch_size
Measurement = dict[str, float]  # of training.benchmarking


def heads_text(config: LeanConfig) -> str:
    """Heads, the fewest and the most if layers differ, and their size."""
    fewest, most = min(config.heads_per_layer), max(config.heads_per_layer)
    return f"{most if fewest == most else f'{fewest}-{most}'} × {config.head_dim}"


def distance(candidate: Candidate) -> float:
    """How far a shape is from the published optimum of its kind: SoViT's curve or Depth-Width's fit."""
    if modality_of(candidate.config) is IMAGES:
        return abs(log(candidate.advice["sovit"].number))
    return abs(candidate.advice["fit"].number)


def recommended(candidates: Sequence[Candidate]) -> int | None:
    """The row from 0 that is nearest to the published optimum.

    None for a single shape, and if this project's own runs speak against all of them.
    """
    rows = [row for row, each in enumerate(candidates) if each.advice["lean"].says != OPPOSES]
    if len(candidates) == 1 or not rows:
        return None
    return min(rows, key=lambda row: distance(candidates[row]))


def reason_of(candidate: Candidate) -> str:
    """Why a row is recommended, and how little that may mean."""
    off = distance(candidate)
    if modality_of(candidate.config) is IMAGES:
        source, text = "sovit", f"SoViT's curve for accuracy at equal compute, within {100 * expm1(off):.0f}%"
    else:
        source, text = "fit", f"the depth that Depth-Width's fit of the loss names, {off:.1f} layers off"
    outside = " (outside the sizes that it measured)" if candidate.advice[source].outside else ""
    return f"nearest to {text}{outside}"


def cost_columns(shown: Sequence[Candidate]) -> dict[str, list[str]]:
    """The columns of costs with their cells; those that say nothing new for these shapes are left out."""
    unit = modality_of(shown[0].config).unit
    counts = [each.parameters for each in shown]
    columns = {
        "layers\n× width": [f"{each.config.num_hidden_layers} × {each.config.hidden_size}" for each in shown],
        "heads\n× size": [heads_text(each.config) for each in shown],
        "MLP": [str(each.config.intermediate_size) for each in shown],
        "params": [human_count(each.total) for each in counts],
    }
    by_total = sorted(counts, key=lambda each: each.total)
    if by_total != sorted(counts, key=lambda each: each.without_embeddings):
        columns["without\nembeddings"] = [human_count(each.without_embeddings) for each in counts]
    columns[f"FLOPs\n/{unit}"] = [human(each.flops_per_unit) for each in shown]
    columns["training\nmemory"] = [human_bytes(each.memory.peak) for each in shown]
    if shown[0].kv_bytes_per_token is not None:
        columns["KV cache\n/token"] = [human_bytes(each.kv_bytes_per_token) for each in shown]
    return columns


def measured_columns(shown: Sequence[Candidate], measurements: Sequence[Measurement]) -> dict[str, list[str]]:
    """Times and memory on this machine; ± half the interquartile range."""
    speeds = [
        training_flops(each.config, each.flops.length) * measurement["training_items_per_second"] / 1e9
        for each, measurement in zip(shown, measurements)
    ]

    def milliseconds(name: str) -> list[str]:
        return [f"{1e3 * each[name]:.1f} ± {1e3 * each[name + '_spread']:.1f}" for each in measurements]

    return {
        "training\nstep ms": milliseconds("training_step_s"),
        "inference\nms": milliseconds("inference_s"),
        "latency of\none item ms": milliseconds("latency_s"),
        "GFLOP/s\ntraining": [f"{speed:.1f}" for speed in speeds],
        "measured\nmemory": [human_bytes(each["peak_memory_bytes"]) for each in measurements],
    }


def table_of(columns: dict[str, list[str]], labels: Sequence[str], notes: Sequence[str]) -> Table:
    """A row for each label, the notes at its end."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("row", *columns):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("", no_wrap=True)
    for row in zip(labels, *columns.values(), notes):
        table.add_row(*row)
    return table


def plan_text(
    candidates: Sequence[Candidate],
    fitting: int,
    start: Candidate | None = None,
    measurements: Sequence[Measurement] | None = None,
) -> str:
    """Costs and one recommendation; the starting point is the first row. `fitting` shapes there are in all."""
    best = recommended(candidates)
    labels = [str(row) for row in range(1, len(candidates) + 1)]
    notes = ["recommended" if row == best else "" for row in range(len(candidates))]
    shown = list(candidates)
    if start is not None:
        labels.insert(0, "start")
        shown.insert(0, start)
        notes.insert(0, "")
    config, first = shown[0].config, shown[0]
    inputs = f"{first.flops.length:,} tokens of {getattr(config, 'vocab_size', 'images')}"
    count = f"{len(candidates)} of {fitting} shapes (--json lists all)" if len(candidates) < fitting else "Shapes"
    parts = [f"{count}, shallow to deep, at {inputs}; training memory of batch {BATCH} in float32.", ""]
    parts += [table_of(cost_columns(shown), labels, notes), ""]
    if measurements:
        parts += [table_of(measured_columns(shown, measurements), labels, [""] * len(shown)), ""]
    if best is not None:
        parts.append(f"Recommended: row {best + 1}, {reason_of(candidates[best])}.")
    if any(each.advice["lean"].says == OPPOSES for each in candidates):
        verdict = "Recommended: keep the start, for" if best is None else "Not recommended:"
        parts.append(f"{verdict} {REFUTATION}.")
    console = plain_console(file=StringIO(), width=WIDTH)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def plan_document(
    candidates: Sequence[Candidate], start: Candidate | None = None, measurements: Sequence[Measurement] | None = None
) -> dict[str, object]:
    """Everything as one JSON document; `measurements` begin with the starting point's, if there is one."""
    shown = [start, *candidates] if start is not None else list(candidates)
    rows = [shape.document() for shape in shown]
    for row, measurement in zip(rows, measurements or []):
        row["measured"] = measurement
    best = recommended(candidates)
    return {
        "family": family_of(shown[0].config),
        "length": shown[0].flops.length,
        "batch": BATCH,
        "start": rows.pop(0) if start is not None else None,
        "candidates": rows,
        "recommended": None if best is None else {"row": best + 1, "reason": reason_of(candidates[best])},
        "sources": {
            name: {"title": each.title, "reference": each.reference, "optimises": each.optimises, "valid": each.valid}
            for name, each in SOURCES.items()
        },
    }
