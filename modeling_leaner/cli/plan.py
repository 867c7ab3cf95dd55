"""`leaner shapes` and `leaner plan`: what they compute, write and print."""

import json
import shlex
from collections.abc import Sequence
from math import log
from pathlib import Path

from rich.table import Table

from ..family import IMAGES
from ..files import write_json
from ..names import baseline_of, shape_names
from ..planning.advice import REFUTATION, SOURCES
from ..planning.costs import BATCH, human, parse_count, training_flops
from ..planning.solver import SOLVED, Candidate, cost_of, fields_of, plan, with_inputs
from ..shapes import family_of, heads_of, load_config, load_shape, modality_of
from ..terminal import plain_console


ROWS = 6
WIDTH = 110
FIRST_RECIPES = {"vit": "digits", "bert": "listops-short", "gpt": "python-docs"}  # without downloads
CAPTION = "params: with the pretraining head. FLOPs: forward, at length. KV: bfloat16."
COLUMNS = (
    "layers\n× width",
    "heads\n× size",
    "MLP",
    "params",
    "of\nbase",
    "at\nlength",
    "FLOPs\n/token",
    "KV bytes\n/token",
)


# leaner shapes


def shape_rows(family: str | None) -> list[dict[str, object]]:
    """The counts of the named shapes of one family or of all; FLOPs are forward, at the stated length."""
    rows = []
    for name in shape_names():
        if family not in (None, name.split("/")[0]):
            continue
        config = load_shape(name)
        count, flops, baseline = config.count_parameters(), config.count_flops(), baseline_of(name)
        rows.append(
            {
                "shape": name,
                "layers": config.num_hidden_layers,
                "width": config.hidden_size,
                "heads": heads_of(config),
                "head_dim": config.head_dim,
                "mlp": config.intermediate_size,
                "parameters": count.total,
                "parameters_without_embeddings": count.without_embeddings,
                "parameters_over_baseline": baseline and count.total / load_shape(baseline).count_parameters().total,
                "length": flops.length,
                "flops_per_token": flops.forward / flops.length,
                "flops_per_sequence": flops.forward,
                "training_flops_per_sequence": training_flops(config),
                "kv_bytes_per_token": config.kv_bytes_per_token(),
            }
        )
    return rows


def shape_table(rows: list[dict[str, object]]) -> Table:
    """The rows for people, in 80 columns."""
    table = Table(caption=CAPTION, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("shape", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        share = row["parameters_over_baseline"]
        cache = row["kv_bytes_per_token"]
        table.add_row(
            row["shape"],
            f"{row['layers']}×{row['width']}",
            f"{row['heads']}×{row['head_dim']}",
            str(row["mlp"]),
            f"{row['parameters'] / 1e6:.2f}M",
            "–" if share is None else f"{100 * share:.0f}%",
            str(row["length"]),
            f"{row['flops_per_token'] / 1e6:.1f}M",
            "–" if cache is None else f"{cache:,}",
        )
    return table


# leaner plan


def run(
    family: str | None,
    like: str | None,
    params: str | None,
    flops: str | None,
    length: int | None,
    vocab_size: int | None,
    write: Path | None,
    as_json: bool,
    **dials: int | None,
) -> None:
    """Solves, writes and prints. Raises ValueError that names the option, or the nearest shape."""
    fixed = {name: value for name, value in dials.items() if value is not None}
    has_size = params is not None or flops is not None or all(name in fixed for name in SOLVED)
    if (like is None) == (family is None) or None not in (params, flops) or not (like or has_size):
        raise ValueError(
            "expected --like SHAPE, or --family and one of --params and --flops, as --family gpt --params 30M"
        )
    base = load_config(like or f"{family}/base")
    base = with_inputs(base, length, vocab_size)
    start = base if like else None
    sizes = [text and parse_count(flag, text) for flag, text in (("--params", params), ("--flops", flops))]
    fitting = plan(family_of(base), *sizes, length, start, base, **fixed)
    start = start and cost_of(start, length)
    best = recommended(fitting)
    candidates, row = fitting, best[0] if best else 0
    if not as_json:
        candidates, row = few_of(fitting, row)
    config = candidates[row].config
    if write is not None:  # complete as the shapes of configuration/ are
        head = type(config).__name__.removesuffix("Config") + config.task_heads[0]
        write_json(write, {"model_type": config.model_type, "architectures": [head], **fields_of(config)})
    if as_json:
        document = {
            "family": family_of(config),
            "length": candidates[0].flops.length,
            "batch": BATCH,
            "start": start and start.document(),
            "candidates": [each.document() for each in candidates],
            "recommended": best and {"row": row + 1, "reason": best[1]},
            "sources": SOURCES,
        }
        print(json.dumps(document, indent=1))
        return
    print_plan(candidates, len(fitting), start, best and (row, best[1]))
    if write is None:
        print(f"\nNext: add --write shape.json to save row {row + 1}; --layers and --head-dim choose another")
    else:
        words = ["leaner", "train", FIRST_RECIPES[family_of(config)], "--shape", str(write), "--max_steps", "32"]
        print(f"\nSaved row {row + 1} as {write}. Next: {shlex.join(words)}")


def few_of(fitting: Sequence[Candidate], row: int) -> tuple[list[Candidate], int]:
    """`ROWS` of the shapes, evenly spread, the nearest replaced by that of `row`; and where it is now."""
    step = max(1, (len(fitting) - 1) / (ROWS - 1))
    shown = [round(index * step) for index in range(min(ROWS, len(fitting)))]
    place = min(range(len(shown)), key=lambda place: abs(shown[place] - row))
    shown[place] = row
    return [fitting[each] for each in shown], place


def recommended(candidates: Sequence[Candidate]) -> tuple[int, str] | None:
    """The row from 0 that is nearest to the published optimum of its kind, why, and how little that may mean.

    None for a single shape, and if all are refuted.
    """
    reads_images = modality_of(candidates[0].config) is IMAGES
    source = "sovit" if reads_images else "fit"
    numbers = {
        row: each.advice[source].number
        for row, each in enumerate(candidates)
        if "lean" not in each.advice or each.advice["lean"].fits  # else this project's own runs speak against it
    }
    if len(candidates) == 1 or not numbers:
        return None
    distances = {row: abs(log(number) if reads_images else number) for row, number in numbers.items()}
    best = min(distances, key=distances.get)
    if reads_images:
        optimum = "SoViT's curve for accuracy at equal compute"
    else:
        depth = candidates[best].config.num_hidden_layers - numbers[best]
        optimum = f"the Depth-Width paper's fit, which puts the best depth near {depth:.0f} layers"
    outside = "" if candidates[best].advice[source].measured else " (outside the sizes that it measured)"
    return best, f"nearest to {optimum}{outside}"


def cost_columns(shown: Sequence[Candidate]) -> dict[str, list[str]]:
    """The columns of costs with their cells; those that say nothing new for these shapes are left out."""
    unit = modality_of(shown[0].config)
    counts = [each.parameters for each in shown]
    heads = [(min(each.config.heads_per_layer), max(each.config.heads_per_layer)) for each in shown]
    columns = {
        "layers\n× width": [f"{each.config.num_hidden_layers} × {each.config.hidden_size}" for each in shown],
        "heads\n× size": [
            f"{most if fewest == most else f'{fewest}-{most}'} × {each.config.head_dim}"
            for each, (fewest, most) in zip(shown, heads)
        ],
        "MLP": [str(each.config.intermediate_size) for each in shown],
        "params": [human(each.total).replace("G", "B") for each in counts],  # counted in billions
    }
    by_total = sorted(counts, key=lambda each: each.total)
    if by_total != sorted(counts, key=lambda each: each.without_embeddings):
        columns["without\nembeddings"] = [human(each.without_embeddings).replace("G", "B") for each in counts]
    columns[f"FLOPs\n/{unit}"] = [human(each.flops_per_unit) for each in shown]
    columns["training\nmemory"] = [human(each.memory.peak) + "B" for each in shown]
    if shown[0].kv_bytes_per_token is not None:
        columns["KV cache\n/token"] = [human(each.kv_bytes_per_token) + "B" for each in shown]
    return columns


def print_plan(
    candidates: Sequence[Candidate], fitting: int, start: Candidate | None, best: tuple[int, str] | None
) -> None:
    """Costs and one recommendation; the starting point is the first row. `fitting` shapes there are in all."""
    rows = [(str(row + 1), "recommended" if best and row == best[0] else "") for row in range(len(candidates))]
    shown = list(candidates)
    if start is not None:
        rows.insert(0, ("start", ""))
        shown.insert(0, start)
    columns = cost_columns(shown)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("row", *columns):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("", no_wrap=True)
    for (label, note), cells in zip(rows, zip(*columns.values())):
        table.add_row(label, *cells, note)
    vocab_size = getattr(shown[0].config, "vocab_size", None)
    vocabulary = " of an image" if vocab_size is None else f", vocabulary {vocab_size:,}"
    inputs = f"{shown[0].flops.length:,} tokens{vocabulary}"
    count = f"{len(candidates)} of {fitting} shapes (--json lists all)" if len(candidates) < fitting else "Shapes"
    console = plain_console(width=WIDTH)
    console.print(f"{count}, shallow to deep. {inputs}; memory: batch {BATCH}, float32.\n")
    console.print(table)
    if best is not None:
        console.print(f"\nRecommended: row {best[0] + 1}, {best[1]}.")
    if not all(each.advice["lean"].fits for each in candidates if "lean" in each.advice):
        verdict = "Recommended: keep the start, for" if best is None else "Not recommended:"
        console.print(f"\n{verdict} {REFUTATION}.")
