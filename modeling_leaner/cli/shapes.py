"""`leaner shapes`: the named shapes with their counts, as rows and as a table."""

from rich.table import Table

from ..names import baseline_of, shape_names
from ..planning.costs import training_flops
from ..shapes import heads_of, load_shape


CAPTION = "parameters: with the pretraining head. FLOPs: forward, matrix products, at length. KV: bf16."
COLUMNS = (
    "layers\n× width",
    "heads\n× size",
    "MLP",
    "para-\nmeters",
    "of\nbase",
    "at\nlength",
    "FLOPs\n/token",
    "KV bytes\n/token",
)
NOTHING = "–"


def shape_rows(family: str | None) -> list[dict[str, object]]:
    """The rows of `leaner shapes`, of one family or of all."""
    return [shape_row(name) for name in shape_names() if family in (None, name.split("/")[0])]


def shape_row(name: str) -> dict[str, object]:
    """The counts of one named shape; FLOPs are forward, at the stated length. A baseline has no share of one."""
    config = load_shape(name)
    count = config.count_parameters()
    flops = config.count_flops()
    baseline = baseline_of(name)
    return {
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
            NOTHING if share is None else f"{100 * share:.0f}%",
            str(row["length"]),
            f"{row['flops_per_token'] / 1e6:.1f}M",
            NOTHING if cache is None else f"{cache:,}",
        )
    return table
