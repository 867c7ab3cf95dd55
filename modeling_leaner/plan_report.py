"""What `leaner plan` prints, for people and as one JSON document, from the planner's candidates."""

from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO

from rich.console import Console
from rich.table import Table

from .advice import FIT_OFF, MOBILE_OFF, SOURCES, kernels_for
from .memory import StepSetting
from .planner import Candidate, human, human_bytes, human_count
from .shapes import family_of


WIDTH = 119
NO_WEIGHT = "Rows go by depth and are not ranked: the sources optimise different costs and disagree."
LEGEND = (
    "yes, no or nothing (–), and how far; *: outside what the source measured. Signs are one way: + more layers than "
    f"the source names, − fewer. fit says yes within {FIT_OFF} layer, mobile within {MOBILE_OFF}, sovit within 20 %: "
    "these limits are the planner's own."
)
COSTS = (
    "parameters with the pretraining head, and without embeddings; FLOPs of matrix products per {unit}, forward and "
    "of a training step; attention: its scores and sums, which grow with length; memory: tensors of a training step"
)


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"


def heads_of(each: Candidate) -> str:
    """Heads, the fewest and the most where layers differ."""
    heads = each.config.heads_per_layer
    return f"{min(heads)}-{max(heads)}" if len(set(heads)) > 1 else str(heads[0])


def cost_table(candidates: Sequence[Candidate], setting: StepSetting, labels: Sequence[str]) -> Table:
    """One row of costs per shape."""
    config = candidates[0].config
    unit = "image" if family_of(config) == "vit" else "token"
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, caption=COSTS.format(unit=unit))
    against = any(each.parameters_over_start is not None for each in candidates)
    names = ["", "layers\n× width", "heads\n× size", "MLP", "para-\nmeters", "without\nembed."]
    names += ["of\nstart"] if against else []
    names += [f"FLOPs\n/{unit}", "atten-\ntion", "training\nstep"] + (["of\nstart"] if against else [])
    names += ["KV bytes\n/token", f"activations\nbatch {setting.batch_size}", "memory\npeak"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for label, each in zip(labels, candidates):
        row, memory = each.document(), each.memory
        cells = [label, f"{row['layers']}×{row['width']}", f"{heads_of(each)}×{row['head_dim']}", str(row["mlp"])]
        cells += [human_count(row["parameters"]), human_count(row["parameters_without_embeddings"])]
        cells += [share(each.parameters_over_start)] if against else []
        cells += [human(row["flops_forward"]), share(row["flops_attention"] / row["flops_forward"])]
        cells += [human(row["flops_training_step"])] + ([share(each.flops_over_start)] if against else [])
        cache = "–" if each.kv_bytes_per_token is None else f"{each.kv_bytes_per_token:,}"
        table.add_row(*cells, cache, human_bytes(memory.activations), human_bytes(memory.peak))
    return table


def advice_table(candidates: Sequence[Candidate], labels: Sequence[str]) -> Table:
    """One row of verdicts per shape, a column per source."""
    caption = f"{LEGEND} {NO_WEIGHT}"
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    for name in ("", *SOURCES):
        table.add_column(name, justify="right", no_wrap=True)
    for label, each in zip(labels, candidates):
        table.add_row(label, *map(str, each.advice.values()))
    return table


def source_table() -> Table:
    """What each source optimises, and where it is valid."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("source", "optimises", "valid for; unit of how far", "from, arXiv"):
        table.add_column(name, no_wrap=True)
    for source in SOURCES.values():
        table.add_row(source.name, source.optimises, source.valid, source.reference)
    return table


def kernel_lines(candidates: Sequence[Candidate]) -> list[str]:
    """What runs where, a line per head size."""
    lines = []
    for size in sorted({each.config.head_dim for each in candidates}):
        takes = kernels_for(size)
        lacks = [name for name, able in takes.items() if not able]
        runs = ", ".join(name for name, able in takes.items() if able)
        lines.append(f"head size {size}: {runs}" + (f"; not {', '.join(lacks)}" if lacks else ""))
    return lines


def measured_table(measurements: Sequence[dict[str, float]], candidates: Sequence[Candidate], labels) -> Table:
    """Times and memory of each shape on this machine, beside what the arithmetic said."""
    caption = "median ± half the interquartile range, the shapes taking turns; latency: one item, forward"
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    for name in ("", "training\nstep ms", "items/s\ntraining", "inference\nms", "items/s\ninference", "latency\nms"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("GFLOP/s\ntraining", "memory\npeak", "of the\nprediction"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, row, each in zip(labels, measurements, candidates):
        step, forward, latency = (
            f"{1e3 * row[name]:.1f} ± {1e3 * row[name + '_spread']:.1f}"
            for name in ("training_step_s", "inference_s", "latency_s")
        )
        rates = [row["training_items_per_second"], row["inference_items_per_second"]]
        done, peak = each.flops.training_step * rates[0] / 1e9, row["peak_memory_bytes"]
        cells = [step, f"{rates[0]:.1f}", forward, f"{rates[1]:.1f}", latency, f"{done:.1f}"]
        table.add_row(label, *cells, human_bytes(peak), share(peak / each.memory.peak))
    return table


def plan_text(
    candidates: Sequence[Candidate],
    setting: StepSetting,
    start: Candidate | None = None,
    measurements: Sequence[dict[str, float]] | None = None,
    done: Sequence[str] = (),
) -> str:
    """The tables for people and what was done; the starting point is the first row."""
    shown = [*([start] if start else []), *candidates]
    labels = [*(["start"] if start else []), *map(str, range(1, len(candidates) + 1))]
    config, console = shown[0].config, Console(file=StringIO(), width=WIDTH, highlight=False)
    words = f"batch {setting.batch_size}, {setting.dtype}, {setting.attention} attention, {setting.device}"
    console.print(f"{family_of(config)}, sequences of {shown[0].flops.length} tokens, {words}")
    console.print(cost_table(shown, setting, labels), "", advice_table(shown, labels), "", source_table(), "")
    for line in kernel_lines(shown):
        console.print(line)
    if measurements:
        console.print("", measured_table(measurements, shown, labels))
    return "\n".join([console.file.getvalue().rstrip("\n"), *done])


def plan_document(
    candidates: Sequence[Candidate],
    setting: StepSetting,
    start: Candidate | None = None,
    measurements: Sequence[dict[str, float]] | None = None,
) -> dict[str, object]:
    """The tables as one JSON document; `measurements` begin with the starting point's, if there is one."""
    shown = [*([start] if start else []), *candidates]
    rows = [each.document() for each in shown]
    for row, measured in zip(rows, measurements or ()):
        row["measured"] = measured
    keys = ("optimises", "valid", "reference")
    described = {name: {key: getattr(source, key) for key in keys} for name, source in SOURCES.items()}
    return {
        "family": family_of(shown[0].config),
        "setting": {**asdict(setting), "length": shown[0].flops.length},
        "start": rows[0] if start else None,
        "candidates": rows[1:] if start else rows,
        "sources": described,
        "kernels": {size: kernels_for(size) for size in sorted({each.config.head_dim for each in shown})},
    }
