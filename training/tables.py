"""The Markdown tables of cards and index."""

from collections.abc import Iterable, Sequence
from typing import Any

from .comparison import NON_INFERIOR, NOT_LEARNED
from .metadata import named_metrics
from .wording import (
    Evidence,
    Results,
    best_of,
    direction,
    gain,
    has_strays,
    interval_of,
    median_score,
    number,
    score,
    score_error,
)


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def in_bold(values: Iterable[str], bold: bool) -> list[str]:
    """The cells of a line, in bold where asked for."""
    return [f"**{value}**" if bold and value else value for value in values]


def scores(results: Results) -> str:
    """The metrics of these very weights, with the standard error by the choice of rows where one is known."""
    lines = []
    for name, value in named_metrics(results).items():
        error = score_error(name, value, results)
        lines.append((name, f"{value:.4g}", "–" if error is None else f"± {error:.3f}"))
    return markdown(("metric", "value", "standard error by the choice of rows"), lines)


def guesses(evidence: Evidence) -> str:
    """What can be had without a transformer, in the grid's metric."""
    if found := evidence.get("guesses"):
        header = ["without a transformer", *(each["name"] for each in found)]
        return markdown(header, [[evidence["metric"], *(f"{each['value']:.4f}" for each in found)]])
    chance = evidence["cells"][0].get("chance")
    return "" if chance is None else f"A guess that reads nothing has {chance:.4f}."


def difference(cell: dict[str, Any], evidence: Evidence) -> str:
    """A cell's difference from the baseline, plus = better, with its interval."""
    if cell["shape"] == evidence["baseline"]:
        return "baseline"
    if cell["difference"] is None:
        return "–"
    text = f"{gain(cell['difference'], evidence):+.3f}"
    interval = interval_of(cell, evidence)
    return text if interval is None else f"{text} ({interval[0]:+.3f} to {interval[1]:+.3f})"


def milliseconds(cell: dict[str, Any]) -> str:
    """Inference of one input."""
    times = (cell["latency"] or {}).get("1", {})
    return number(times and times["seconds"] * 1e3, ".1f")


def size(cell: dict[str, Any]) -> str:
    """Parameters, and their share of the baseline's."""
    return f"{number(cell['parameters'], ',d')} ({number(cell['parameters_over_baseline'], '.0%')})"


def comparison(evidence: Evidence, own: str) -> str:
    """The cells, a line each, this model's in bold: size, score, difference, speed."""
    medians = has_strays(evidence)
    header = [
        "layers × heads × head size",
        "parameters",
        f"{evidence['metric']} ({direction(evidence)}), mean ± sd (seeds)",
        "difference, + is better (95 % interval)",
        "inference, ms",
    ]
    if medians:
        header[3] = "median, failed runs"
    lines = []
    for cell in evidence["cells"]:
        compared = median_score(cell, evidence) if medians else difference(cell, evidence)
        name = f"{cell['layers']} × {cell['heads']} × {cell['head_dim']}"
        values = (name, size(cell), score(cell, ".4f"), compared, milliseconds(cell))
        lines.append(in_bold(values, cell["shape"] == own))
    return markdown(header, lines)


def details(evidence: Evidence, own: str) -> str:
    """The cells, a column each, this model's in bold."""
    columns = [column(cell, evidence) for cell in evidence["cells"]]
    bold = [cell["shape"] == own for cell in evidence["cells"]]
    shapes = [cell["shape"] for cell in evidence["cells"]]
    header = ["", *(in_bold([shape], chosen)[0] for shape, chosen in zip(shapes, bold))]
    lines = [
        [name, *(in_bold([values[name]], chosen)[0] for values, chosen in zip(columns, bold))] for name in columns[0]
    ]
    return markdown(header, lines)


def column(cell: dict[str, Any], evidence: Evidence) -> dict[str, str]:
    """One cell's column: what the row is called → its value."""
    times, interval = cell["latency"] or {}, interval_of(cell, evidence)
    one, many = (times.get(batch, {}) for batch in ("1", "32"))
    at_a_time = " or ".join(map(str, cell["jobs"])) or "–"
    memory = cell["peak_memory_bytes"]
    metric = f"{evidence['metric']} ({direction(evidence)})" if evidence["metric"] else "metric, not yet known"
    apart = "baseline"
    if cell["shape"] != evidence["baseline"]:
        apart = number(cell["difference"] and gain(cell["difference"], evidence), "+.4f")
    return {
        "layers × heads × head size": f"{cell['layers']} × {cell['heads']} × {cell['head_dim']}",
        f"{metric}, mean ± sd (seeds)": score(cell, ".4f"),
        "against the baseline, same seeds, + is better": apart,
        "95 % interval of it": "–" if interval is None else f"[{interval[0]:+.4f}, {interval[1]:+.4f}]",
        "parameters": number(cell["parameters"], ",d"),
        "of the baseline's": number(cell["parameters_over_baseline"], ".0%"),
        f"FLOPs of a forward pass, {cell['length']} tokens": f"{cell['flops_forward'] / 1e6:,.1f}M",
        "cache bytes a token (bf16)": number(cell["kv_bytes_per_token"], ",d"),
        "κ before → after training": f"{number(cell['kappa_start'], '.3g')} → {number(cell['kappa_end'], '.3g')}",
        "learning rate": number(cell["learning_rate"], "g"),
        "training, seconds (runs at a time)": f"{number(cell['seconds'], ',.0f')} ({at_a_time})",
        "training, largest memory, GiB": number(memory and memory / 2**30, ".2f"),
        "inference, batch 1, ms": milliseconds(cell),
        "inference, batch 32, inputs/s": number(many and many["items_per_second"], ",.0f"),
    }


def verdict(cell: dict[str, Any], evidence: Evidence) -> str:
    """A cell's verdict in a word or two."""
    if cell["shape"] == evidence["baseline"]:
        return "not learned" if cell["learned"] is False else ""
    if cell["verdict"] == NOT_LEARNED:
        return "no verdict"
    return "see above" if cell["verdict"].startswith(NON_INFERIOR) else "undecided"


def fine_tuned(evidence: Evidence) -> str | None:
    """The cells after fine-tuning, a line for each grid that started from their weights; None without any."""
    if not evidence["fine_tuned"]:
        return None
    shapes = [cell["shape"] for cell in evidence["cells"]]
    lines = []
    for each in evidence["fine_tuned"]:
        cells = {cell["shape"]: cell for cell in each["cells"]}
        values = [score(cells[shape], ".4f") if shape in cells else "not run" for shape in shapes]
        guess = number(each.get("guess"), ".4f")
        if each.get("learned") is False:
            guess += ", not learned"
        name = f"`{each['grid']}`, {each['metric']} ({direction(each)})"
        name += ", weights published" if each["published"] else ""
        start = "its own" if each["start_seed"] is None else f"seed {each['start_seed']}'s"
        lines.append((name, start, *values, guess))
    about = (
        "Mean ± sd (seeds) on the validation split; the pretraining is each seed's own or one seed's for all. Not "
        "learned: not clearly better than the best simple guess. The numbers come from the results.csv of the grids "
        "named; where no weights are published, only the sweep gets them again."
    )
    return f"{about}\n\n{markdown(('task', 'pretraining', *shapes, 'best guess'), lines)}"


def run_scores(results: Results) -> str:
    """The lines of a run's metrics, the main one first, and of the guess that reads nothing."""
    way = "higher" if results["higher_is_better"] else "lower"
    main = results["main_metric"].removeprefix("eval_")
    values = {
        f"**{name}** ({way} is better)" if name == main else name: value
        for name, value in named_metrics(results).items()
    }
    if chance := results.get("chance"):
        values[f"{chance['name']}, for comparison"] = chance["value"]
    about = f"{results['rows']:,} | {results['split']}"
    lines = [f"| {name} | {value:.4f} | {about} |" for name, value in values.items()]
    return "\n".join(lines) or "| not evaluated | | | |"


def all_cells(found: dict[str, Evidence]) -> str:
    """Every cell of several grids, a line each, after each grid the best simple guess."""
    header = (
        "grid, metric",
        "layers × heads × size",
        "mean ± sd (seeds)",
        "difference, + is better (95 % interval)",
        "verdict",
        "parameters",
        "κ before → after",
        "rate",
        "training, s",
        "inference, ms",
    )
    lines = []
    for name, evidence in found.items():
        for place, cell in enumerate(evidence["cells"]):
            way = "higher" if evidence["higher_is_better"] else "lower"
            first = f"`{name}`, {evidence['metric']} ({way} is better)"
            lines.append((first if place == 0 else "", *cell_line(cell, evidence)))
        if best := best_of(evidence):
            lines.append(("", f"best guess: {best[0]}", f"{best[1]:.4f}", *[""] * (len(header) - 3)))
    return markdown(header, lines)


def cell_line(cell: dict[str, Any], evidence: Evidence) -> tuple[str, ...]:
    """One cell of the index, as of the header of `all_cells`."""
    compared = difference(cell, evidence)
    if has_strays(evidence):
        compared = f"median {median_score(cell, evidence)}"
    return (
        f"{cell['layers']} × {cell['heads']} × {cell['head_dim']}",
        score(cell, ".4f"),
        compared,
        verdict(cell, evidence),
        number(cell["parameters"], ",d"),
        f"{number(cell['kappa_start'], '.3g')} → {number(cell['kappa_end'], '.3g')}",
        number(cell["learning_rate"], "g"),
        number(cell["seconds"], ",.0f"),
        milliseconds(cell),
    )
