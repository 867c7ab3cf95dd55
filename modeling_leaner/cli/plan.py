"""`leaner shapes` and `leaner plan`: what they compute, write and print."""

import json
import shlex
from pathlib import Path

from rich.table import Table

from ..configuration_leaner import LeanConfig
from ..family import FAMILIES
from ..files import write_json
from ..names import baseline_of, shape_names
from ..planning.costs import StepSetting, parse_count, training_flops
from ..planning.solver import cost_of, fields_of, heads_by_layer, plan, spread, with_inputs
from ..planning.tables import plan_document, plan_text, recommended
from ..shapes import family_of, heads_of, load_config, load_shape


ROWS = 6
MOST_FIRST_STEPS = 100
FIRST_FLOPS = 1.2e13  # two minutes of 100 GFLOP a second, as a laptop's processor does
CAPTION = "params: with the pretraining head. FLOPs: forward, matrix products, at length. KV: bf16."
COLUMNS = ("layers\n× width", "heads\n× size", "MLP", "params", "of\nbase", "at\nlength", "FLOPs\n/token")


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
    for column in (*COLUMNS, "KV bytes\n/token"):
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
    measure: bool,
    write: Path | None,
    as_json: bool,
    **dials: int | None,
) -> None:
    """Solves, measures, writes and prints. Raises ValueError that names the option, or the nearest shape."""
    if like is None and family is None:
        raise ValueError(f"--family: expected one of {', '.join(FAMILIES)}, or --like SHAPE")
    if params is not None and flops is not None:
        raise ValueError("--params and --flops: give one of them")
    base = load_config(like or f"{family}/base")
    if family not in (None, family_of(base)):
        raise ValueError(f"--like {like}: a {family_of(base)} shape, but --family is {family}")
    base = with_inputs(base, length, vocab_size)
    start = base if like else None
    sizes = [text and parse_count(flag, text) for flag, text in (("--params", params), ("--flops", flops))]
    fixed = {name: value for name, value in dials.items() if value is not None}
    fitting = plan(family_of(base), *sizes, length, start, base, **fixed)
    candidates = fitting if as_json and not measure else spread(fitting, ROWS)
    start = start and cost_of(start, length)
    measurements = None
    if measure:
        from ..training.benchmarking import measure as measure_shapes

        configs = [each.config for each in (start, *candidates) if each]
        measurements = measure_shapes(configs, StepSetting(length=length))
    row = recommended(candidates) or 0
    config = candidates[row].config
    if write is not None:
        write_shape(config, write)
    if as_json:
        print(json.dumps(plan_document(candidates, start, measurements), indent=1))
        return
    print(plan_text(candidates, len(fitting), start, measurements))
    if write is None:
        print(f"\nNext: the same with --write shape.json saves row {row + 1}; --layers and --head-dim choose another")
    else:
        print(f"\nSaved row {row + 1} as {write}. Next, in a few minutes: {training_command(config, write)}")


def write_shape(config: LeanConfig, path: Path) -> None:
    """Writes a shape file, complete as those of configuration/ are."""
    head = type(config).__name__.removesuffix("Config") + config.task_heads[0]
    document = {"model_type": config.model_type, "architectures": [head], **fields_of(config)}
    write_json(path, document | heads_by_layer(config))


def training_command(config: LeanConfig, path: Path) -> str:
    """A command that trains a shape file for a few minutes, on data that every installation has."""
    recipe = FAMILIES[family_of(config)].first_recipe
    length = min(recipe.tokens or config.default_length, config.default_length)
    steps = int(min(max(FIRST_FLOPS / (recipe.rows * training_flops(config, length)), 1), MOST_FIRST_STEPS))
    return shlex.join(["leaner", "train", recipe.name, "--shape", str(path), "--max_steps", str(steps)])
