"""The Markdown tables of cards and index."""

from pathlib import Path

from ..experiments.evidence import baseline_of
from ..experiments.kappa import MOST_KAPPA
from ..experiments.run_statistics import NO_VERDICT, NON_INFERIOR, WORSE
from ..records import Cell, Evidence, FineTuned, PairedStatistics, PublishedResults, RunResults
from ..running.metadata import named_metrics
from .rendering import markdown
from .wording.amounts import direction, gain, interval_of, number, other_width, score, with_start
from .wording.scoring import best_of, has_outliers, median_score, score_error


NO_BREAK = "&nbsp;"


def kappa(value: float | None) -> str:
    """κ of a model in float32; of one that is rounding, only that it is beyond MOST_KAPPA."""
    if value is not None and value > MOST_KAPPA:
        return f"> {MOST_KAPPA:.0e}"
    return number(value, ".3g")


def in_bold(text: str) -> str:
    """The text in bold; an empty one stays empty."""
    if not text:
        return text
    return f"**{text}**"


def scores(results: RunResults) -> str:
    """The metrics of these very weights, with the standard error by the choice of rows where one is known."""
    lines = []
    for name, value in named_metrics(results).items():
        uncertainty = ""
        error = score_error(name, value, results)
        if error is not None:
            uncertainty = f"± {error:.3f}"
        lines.append((name, f"{value:.4g}", uncertainty))
    if not any(uncertainty for _, _, uncertainty in lines):
        return markdown(("metric", "value"), [line[:2] for line in lines])
    return markdown(("metric", "value", "standard error by the choice of rows"), lines)


def guesses(evidence: Evidence) -> str:
    """What can be had without a transformer, in the grid's metric."""
    fitted = evidence.guesses
    if fitted:
        names = [guess.name for guess in fitted]
        values = [f"{guess.value:.4f}" for guess in fitted]
        return markdown(["without a transformer", *names], [[evidence.metric, *values]])
    chance = baseline_of(evidence).chance
    if chance is None:
        return ""
    return f"A guess that reads nothing has {chance:.4f}."


def difference(cell: Cell, evidence: Evidence) -> str:
    """A cell's difference from the baseline, plus = better, with its interval."""
    if cell.shape == evidence.baseline:
        return "baseline"
    return paired_difference(cell, evidence)


def paired_difference(compared: PairedStatistics, evidence: Evidence) -> str:
    """A difference of pairs of runs, plus = better, with its interval where there is one; a dash without a pair."""
    if compared.difference is None:
        return "–"
    text = f"{gain(compared.difference, evidence):+.3f}"
    interval = interval_of(compared, evidence)
    if interval is None:
        return text
    low, high = interval
    return f"{text} ({low:+.3f} to {high:+.3f})"


def milliseconds_text(cell: Cell) -> str:
    """The time of inference of one input; a dash where it was not measured."""
    return number(cell.milliseconds, ".1f")


def throughput(cell: Cell) -> str:
    """Inputs a second in batches of 32."""
    if cell.latency is None:
        return "–"
    return number(cell.latency.many.items_per_second, ",.0f")


def size(cell: Cell) -> str:
    """Parameters, and their share of the baseline's."""
    return f"{number(cell.parameters, ',d')} ({number(cell.parameters_over_baseline, '.0%')})"


def shape_of(cell: Cell) -> str:
    """Layers × heads × head size."""
    return f"{cell.layers} × {cell.heads_text} × {cell.head_dim}"


def shape_and_start(cell: Cell) -> str:
    """`shape_of`, with the start."""
    return with_start(shape_of(cell), cell)


def comparison(evidence: Evidence, own: str) -> str:
    """The cells, a line each, this model's in bold: size, score, difference, speed."""
    comparison_name = "difference, + is better (95 % interval)"
    compared = difference
    if has_outliers(evidence):
        comparison_name = "median, outliers"
        compared = median_score
    header = (
        "layers × heads × head size",
        "parameters",
        f"{evidence.metric} ({direction(evidence)}), mean ± sd (seeds)",
        comparison_name,
        "inference, ms",
    )
    lines = []
    for cell in evidence.cells:
        line = [
            shape_and_start(cell) + other_width(cell, evidence),
            size(cell),
            score(cell, ".4f"),
            compared(cell, evidence),
            milliseconds_text(cell),
        ]
        if cell.shape == own:
            line = [in_bold(value) for value in line]
        lines.append(line)
    return markdown(header, lines)


def beside_parent(results: PublishedResults) -> str:
    """The parent, the cut before its training, and this model in bold: a column each."""
    parent = results.cut_parent
    main = f"eval_{results.metric}"
    values = [parent.metrics[main], parent.untrained_metrics[main], results.metrics[main]]
    parameters = [parent.parameters, results.parameters, results.parameters]
    steps = [parent.steps, 0, results.train.steps]
    lines = [
        ["parameters", *(f"{count:,}" for count in parameters)],
        [f"{results.metric} ({direction(results)})", *(f"{value:.4f}" for value in values)],
        ["share of the parent's", *(share_of(value, values[0]) for value in values)],
        ["training steps", *(f"{count:,}" for count in steps)],
    ]
    header = ["", f"parent, {parent.name}", "cut, untrained", in_bold("this model")]
    return markdown(header, [[*line[:-1], in_bold(line[-1])] for line in lines])


def share_of(value: float, whole: float) -> str:
    """A share in percent, a dash of nothing."""
    if whole == 0:
        return "–"
    return f"{value / whole:.1%}"


def details(evidence: Evidence, own: str) -> str:
    """The cells, a column each, this model's in bold."""
    columns = []
    for cell in evidence.cells:
        values = {"": heading(cell), **column(cell, evidence)}
        if cell.shape == own:
            values = {name: in_bold(value) for name, value in values.items()}
        columns.append(values)
    header, *lines = [[name, *(values[name] for values in columns)] for name in columns[0]]
    return markdown(header, lines)


def heading(cell: Cell) -> str:
    """The shape as the grid names it; of a cut, or of new weights in its shape, the name of its folder."""
    if cell.start is None:
        return cell.shape
    return f"{Path(cell.shape.removesuffix('/config.json')).name}, {cell.start}"


def against_baseline(cell: Cell, evidence: Evidence) -> str:
    """A cell's difference from the baseline, plus = better, to four places."""
    if cell.shape == evidence.baseline:
        return "baseline"
    value = cell.difference
    if not value:  # unknown, or a zero, which has no better side
        return number(value, "+.4f")
    return number(gain(value, evidence), "+.4f")


def bracketed_interval(cell: Cell, evidence: Evidence) -> str:
    """The interval of a cell's difference, plus = better, to four places."""
    interval = interval_of(cell, evidence)
    if interval is None:
        return "–"
    low, high = interval
    return f"[{low:+.4f}, {high:+.4f}]"


def runs_at_a_time(cell: Cell) -> str:
    """How many runs shared the machine while the cell was trained."""
    counts = " or ".join(map(str, cell.jobs))
    if counts == "":
        return "–"
    return counts


def gibibytes(count: int | None) -> str:
    """A number of bytes in GiB, a dash where it is unknown."""
    if count is None:
        return "–"
    return f"{count / 2**30:.2f}"


def column(cell: Cell, evidence: Evidence) -> dict[str, str]:
    """One cell's column: what the row is called → its value."""
    metric = "metric, not yet known"
    if evidence.metric:
        metric = f"{evidence.metric} ({direction(evidence)})"
    return {
        "layers × heads × head size": shape_of(cell) + other_width(cell, evidence),
        f"{metric}, mean ± sd (seeds)": score(cell, ".4f"),
        "against the baseline, same seeds, + is better": against_baseline(cell, evidence),
        "95 % interval of the difference": bracketed_interval(cell, evidence),
        "parameters": number(cell.parameters, ",d"),
        "parameters, share of the baseline's": number(cell.parameters_over_baseline, ".0%"),
        "FLOPs of a forward pass (its tokens)": f"{cell.flops_forward / 1e6:,.1f}M ({cell.length})",
        "KV cache, bytes a token (bf16)": number(cell.kv_bytes_per_token, ",d"),
        "κ before → after training": f"{kappa(cell.kappa_start)} → {kappa(cell.kappa_end)}",
        "learning rate": number(cell.learning_rate, "g"),
        "training, seconds (runs at a time)": f"{number(cell.seconds, ',.0f')} ({runs_at_a_time(cell)})",
        "training, largest memory, GiB": gibibytes(cell.peak_memory_bytes),
        "inference, batch 1, ms": milliseconds_text(cell),
        "inference, batch 32, inputs/s": throughput(cell),
    }


def verdict(cell: Cell, evidence: Evidence) -> str:
    """A cell's verdict in a word or two."""
    if cell.shape == evidence.baseline:
        if cell.learned is False:
            return "not learned"
        return ""
    if cell.verdict == NO_VERDICT:
        return NO_VERDICT
    if cell.verdict.startswith((NON_INFERIOR, WORSE)):
        return "see above"
    return "undecided"


def fine_tuned(evidence: Evidence) -> str | None:
    """The cells after fine-tuning, a line for each grid that started from their weights; None without any."""
    if not evidence.fine_tuned:
        return None
    shapes = [cell.shape for cell in evidence.cells]
    lines = [fine_tuned_line(tuned, shapes) for tuned in evidence.fine_tuned]
    about = (
        "Mean ± sd (seeds) on the validation split; the pretraining is each seed's own or one seed's for all. Not "
        "learned: not clearly better than the best simple guess. The numbers come from the results.csv of the grids "
        "named; where no weights are published, only the sweep gets them again."
    )
    return f"{about}\n\n{markdown(('task', 'pretraining', *shapes, 'best guess'), lines)}"


def fine_tuned_line(tuned: FineTuned, shapes: list[str]) -> tuple[str, ...]:
    """One grid of fine-tuning, as of the header of `fine_tuned`."""
    name = f"`{tuned.grid}`, {tuned.metric} ({direction(tuned)})"
    if tuned.published:
        name += ", weights published"
    start = "its own"
    if tuned.start_seed is not None:
        start = f"seed {tuned.start_seed}'s"
    score_of = {cell.shape: score(cell, ".4f") for cell in tuned.cells}
    guess = number(tuned.guess, ".4f")
    if tuned.learned is False:
        guess += ", not learned"
    return (name, start, *(score_of.get(shape, "not run") for shape in shapes), guess)


def all_cells(grids: dict[str, Evidence]) -> str:
    """Every cell of several grids, a line each; a grid's first line names its best simple guess."""
    header = (
        "grid, metric, best simple guess",
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
    for grid, evidence in grids.items():
        grid_name = f"`{grid}`, {evidence.metric} ({direction(evidence)})"
        best = best_of(evidence)
        if best is not None:
            grid_name += f"; best simple guess {best.value:.4f} ({best.name})"
        for cell in evidence.cells:
            lines.append((grid_name, *cell_line(cell, evidence)))
            grid_name = ""  # on the grid's first line alone
    return markdown(header, lines)


def unbroken(text: str) -> str:
    """The text with spaces at which no line ends."""
    return text.replace(" ", NO_BREAK)


def cell_line(cell: Cell, evidence: Evidence) -> tuple[str, ...]:
    """One cell of the index, as of the header of `all_cells`."""
    compared = difference(cell, evidence)
    if has_outliers(evidence):
        compared = f"median {median_score(cell, evidence)}"
    return (
        unbroken(shape_and_start(cell) + other_width(cell, evidence)),
        score(cell, ".4f").replace(" ± ", unbroken(" ± ")),
        compared,
        verdict(cell, evidence),
        number(cell.parameters, ",d"),
        f"{unbroken(kappa(cell.kappa_start))}{NO_BREAK}→ {unbroken(kappa(cell.kappa_end))}",
        number(cell.learning_rate, "g"),
        number(cell.seconds, ",.0f"),
        milliseconds_text(cell),
    )
