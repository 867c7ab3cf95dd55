"""What `leaner report` shows: every cell of every grid, at each length of training, beside what it cost.

A *mark* is one cell at one length; of a grid with branches each branch is one. A *panel* holds the marks that may be
compared: one task, one recipe, one metric.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from modeling_leaner.support.terminal import plural

from ..experiments.branches import Step, step_of
from ..experiments.evidence import kind
from ..experiments.rows import finished_row, reported
from ..experiments.run_settings import run_arguments
from ..experiments.run_statistics import NO_VERDICT, mean_of_known
from ..experiments.summary import summaries_by_budget
from ..records import Cell, Evidence, Guess, ResultRow
from ..tasks.registry import TASKS
from . import tables
from .differences import compared
from .evidence_figure import centre_of
from .gathered_grids import GatheredGrid, Grids
from .wording.amounts import direction, number, score
from .wording.scoring import best_of, has_outliers, median_score


AXES = {  # what a mark is drawn over → its name and unit
    "parameters": "parameters",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "training seconds, as the runs took",
    "step_seconds": "training seconds, by step times measured apart",
    "milliseconds": "inference of one input, ms",
    "memory": "peak memory of a training, GiB",
}
MEASURES = {"score": "score", "difference": "difference from the baseline"}
BEFORE_THE_END = "no verdict before the longest branch"
COLUMNS = (
    "grid",
    "layers × heads × size",
    "width",
    "MLP",
    "metric",
    "mean ± sd (seeds)",
    "difference, + is better (95 % interval)",
    "verdict",
    "best simple guess",
    "parameters",
    "training tokens",
    "training FLOPs",
    "training, s",
    "inference, ms",
    "memory, GiB",
)


@dataclass
class Span:
    """A value and the ends of its error bar, in the metric's units; None of a bar that is not known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass
class Mark:
    """One cell at one length of training."""

    grid: str
    shape: str
    label: str
    kind: str | None
    """How it differs from the baseline, one of KINDS."""
    costs: dict[str, float | None]
    """By the names of AXES; None of what is unknown."""
    measures: dict[str, Span | None]
    """By the names of MEASURES."""
    tooltip: list[str]
    """What a reader who points at it is told, line by line."""
    columns: list[str]
    """Its line of the table, as of COLUMNS."""


@dataclass
class GuessLine:
    """The best simple guess of some grids."""

    text: str
    value: float
    grids: list[str]


@dataclass
class Panel:
    """The marks of one task, one recipe and one metric."""

    task: str
    title: str
    metric: str
    """With its direction, as the axis is labelled."""
    grids: list[str]
    guesses: list[GuessLine]
    notes: list[str]
    marks: list[Mark]


def metric_text(evidence: Evidence) -> str:
    """The metric and which way is better."""
    if evidence.metric is None:
        return "metric, not yet known"
    return f"{evidence.metric}, {direction(evidence)}"


def rows_at(gathered: GatheredGrid, cell: Cell, branch: int | None) -> list[ResultRow]:
    """The finished rows of a cell at a branch; None is the longest, or a grid without branches."""
    grid = gathered.results.grid
    if cell.learning_rate is None:
        return []
    runs = [reported(grid, cell.shape, seed, cell.learning_rate, branch) for seed in grid.seeds_for(cell.shape)]
    rows = [finished_row(gathered.results.rows, run) for run in runs]
    return [row for row in rows if row is not None]


def tokens_of(row: ResultRow, step: Step | None) -> float | None:
    """Tokens of a run: the column, or, in rows from before there was one, its steps times those of a step."""
    if row.tokens is not None or step is None or row.steps is None:
        return row.tokens
    return row.steps * step.tokens


def flops_of(row: ResultRow, step: Step | None) -> float | None:
    """Training FLOPs of a run: the column, or, in rows from before there was one, its steps times those of a step."""
    if row.training_flops is not None or step is None or row.steps is None:
        return row.training_flops
    return row.steps * step.flops


def apart(gathered: GatheredGrid, rows: list[ResultRow]) -> float | None:
    """Seconds of a cell's training by the step time that was measured apart; None where none was."""
    seconds = gathered.results.step_seconds
    if seconds is None:
        return None
    return mean_of_known(row.steps * seconds[row.shape] for row in rows if row.steps is not None)


def costs_of(gathered: GatheredGrid, cell: Cell, branch: int | None) -> dict[str, float | None]:
    """What a cell cost up to a branch, in the units of AXES, the mean over its seeds; of memory the largest."""
    rows = rows_at(gathered, cell, branch)
    step = step_of(gathered.results.grid, cell.shape)
    memory = max((row.peak_memory_bytes for row in rows if row.peak_memory_bytes), default=None)
    if memory is not None:
        memory /= 2**30
    return {
        "parameters": cell.parameters,
        "tokens": mean_of_known(tokens_of(row, step) for row in rows),
        "flops": mean_of_known(flops_of(row, step) for row in rows),
        "seconds": mean_of_known(row.seconds for row in rows),
        "step_seconds": apart(gathered, rows),
        "milliseconds": cell.milliseconds,
        "memory": memory,
    }


def score_of(cell: Cell, evidence: Evidence) -> Span | None:
    """The mean over the seeds ± their sd; where a run of the grid is an outlier, the median alone."""
    if not cell.values:
        return None
    centre = centre_of(cell, evidence)
    if cell.sd is None or has_outliers(evidence):
        return Span(centre)
    return Span(centre, centre - cell.sd, centre + cell.sd)


def difference_of(cell: Cell, evidence: Evidence) -> Span | None:
    """The difference from the baseline, plus = better, with its interval; the median alone beside an outlier."""
    if cell.shape == evidence.baseline:
        if not cell.values:
            return None
        return Span(0.0)
    if cell.difference is None:
        return None
    line = compared(evidence.grid, cell.shape, cell, evidence)
    if line.interval is None:
        return Span(line.difference)
    return Span(line.difference, *line.interval)


def score_text(cell: Cell, evidence: Evidence) -> str:
    """A cell's score in words: mean ± sd (seeds), or the median where a run is an outlier."""
    if has_outliers(evidence) and cell.values:
        return f"median {median_score(cell, evidence)}"
    return score(cell, ".4f")


def score_in_full(cell: Cell, evidence: Evidence) -> str:
    """A cell's score as one line to be read alone."""
    if cell.mean is None or has_outliers(evidence):
        return score_text(cell, evidence)
    text = f"{cell.mean:.4f}"
    if cell.sd is not None:
        text += f" ± {cell.sd:.4f} (sd)"
    return f"{text} over {plural(cell.n, 'seed')}"


def difference_text(cell: Cell, evidence: Evidence) -> str:
    """A cell's difference in words, as it is drawn."""
    drawn = difference_of(cell, evidence)
    if has_outliers(evidence) and drawn is not None and cell.shape != evidence.baseline:
        return f"median {drawn.value:+.3f}"
    return tables.difference(cell, evidence)


def verdict_of(cell: Cell, evidence: Evidence) -> str:
    """What the grid alone says of a cell, before any correction for the number of comparisons."""
    if cell.shape == evidence.baseline and cell.learned is False:
        return "baseline, not learned"
    if cell.verdict == NO_VERDICT:
        return "no verdict: the baseline has not learned"
    return cell.verdict


def guess_of(evidence: Evidence) -> Guess | None:
    """A grid's best simple guess; None where none is known."""
    if evidence.metric is None:
        return None
    return best_of(evidence)


def guess_text(evidence: Evidence) -> str:
    """A grid's best simple guess, a dash without any."""
    best = guess_of(evidence)
    if best is None:
        return "–"
    return f"{best.value:.4f} ({best.name})"


def tooltip_of(cell: Cell, evidence: Evidence, branch: int | None) -> list[str]:
    """What a reader who points at a mark is told, line by line."""
    lines = [f"{tables.shape_and_start(cell)}, width {cell.width}, MLP {cell.mlp}", f"grid {evidence.grid}"]
    if branch is not None:
        lines.append(f"after {branch:,} tokens")
    lines += [
        f"{metric_text(evidence)}: {score_in_full(cell, evidence)}",
        f"difference, plus is better: {difference_text(cell, evidence)}",
        f"{number(cell.parameters, ',d')} parameters",
        f"verdict: {verdict_of(cell, evidence)}",
    ]
    return lines + [f"note: {note}" for note in cell.notes]


def columns_of(cell: Cell, evidence: Evidence, costs: dict[str, float | None]) -> list[str]:
    """The line of a mark in the table, as of COLUMNS."""
    return [
        evidence.grid,
        tables.shape_and_start(cell),
        f"{cell.width:,}",
        f"{cell.mlp:,}",
        metric_text(evidence),
        score_text(cell, evidence),
        difference_text(cell, evidence),
        verdict_of(cell, evidence),
        guess_text(evidence),
        number(costs["parameters"], ",d"),
        number(costs["tokens"], ",.0f"),
        number(costs["flops"], ".3g"),
        number(costs["seconds"], ",.0f"),
        number(costs["milliseconds"], ".1f"),
        number(costs["memory"], ".2f"),
    ]


def mark_of(gathered: GatheredGrid, evidence: Evidence, cell: Cell, branch: int | None) -> Mark:
    """A cell at a branch, of which `evidence` is."""
    costs = costs_of(gathered, cell, branch)
    measures = {"score": score_of(cell, evidence), "difference": difference_of(cell, evidence)}
    return Mark(
        grid=evidence.grid,
        shape=cell.shape,
        label=tables.shape_and_start(cell),
        kind=kind(cell, evidence),
        costs=costs,
        measures=measures,
        tooltip=tooltip_of(cell, evidence, branch),
        columns=columns_of(cell, evidence, costs),
    )


def by_branch(gathered: GatheredGrid) -> Iterator[tuple[int | None, Evidence]]:
    """The evidence of a grid at each of its branches, the longest last; of a grid without branches that of its end."""
    for budget in summaries_by_budget(gathered.results)[:-1]:
        cells = []
        for cell, then in zip(gathered.evidence.cells, budget.shapes, strict=True):
            of_branch = ("n", "mean", "sd", "values", "pairs", "difference", "interval")
            values = {name: getattr(then, name) for name in of_branch}
            values |= {"verdict": BEFORE_THE_END, "notes": []}
            cells.append(cell.model_copy(update=values))
        yield budget.branch, gathered.evidence.model_copy(update={"cells": cells})
    yield gathered.results.grid.longest, gathered.evidence


def marks_of(gathered: GatheredGrid) -> list[Mark]:
    """Every cell of a grid, at each of its branches, the cells in the grid's order."""
    evidences = list(by_branch(gathered))
    marks = []
    for place in range(len(gathered.evidence.cells)):
        for branch, evidence in evidences:
            marks.append(mark_of(gathered, evidence, evidence.cells[place], branch))
    return marks


def guess_lines(grids: Grids) -> list[GuessLine]:
    """The best simple guess of each grid, those that are the same together."""
    lines: dict[tuple[str, float], GuessLine] = {}
    for name, gathered in grids.items():
        best = guess_of(gathered.evidence)
        if best is None:
            continue
        text = f"best simple guess: {best.name}, {best.value:.3f}"
        line = lines.setdefault((best.name, best.value), GuessLine(text, best.value, []))
        line.grids.append(name)
    return list(lines.values())


def held_out(gathered: GatheredGrid) -> set[tuple[int, str]]:
    """How many rows the finished runs of a grid were evaluated on, and the hash of what these hold."""
    rows = [row for row in gathered.results.rows.values() if row.has_finished and row.phase == "report"]
    return {(row.rows, row.data_sha256) for row in rows if row.rows is not None}


def notes_of(grids: Grids) -> list[str]:
    """What a reader of a panel has to know of its grids."""
    notes = []
    evaluated = {name: held_out(gathered) for name, gathered in grids.items()}
    if len(set().union(*evaluated.values())) > 1:
        counts = [f"{name} {count:,}" for name, rows in evaluated.items() for count, _ in rows]
        notes.append(f"Not all on the same held-out rows, so many: {', '.join(counts)}.")
    for name, gathered in grids.items():
        grid = gathered.results.grid
        overrides = grid.overrides
        if overrides is not None and overrides.get("implementation") == "transformers":
            notes.append(f"{name}: transformers' own model of the baseline's shape.")
        if grid.unsound_tuning is not None:
            notes.append(f"{name}: the tuning is unsound, {grid.unsound_tuning}.")
    return notes


def panels_of(grids: Grids) -> list[Panel]:
    """Every grid, those of one task, recipe and metric together, in the order of `TASKS`.

    Raises:
        GridError: the settings of a grid are refused, or its step times are of other steps.
    """
    together: dict[tuple[str, str, str], Grids] = {}
    for name, gathered in grids.items():
        task = run_arguments(gathered.results.grid, gathered.results.grid.baseline).task
        key = (task, gathered.evidence.recipe, metric_text(gathered.evidence))
        together.setdefault(key, {})[name] = gathered
    places = {task: place for place, task in enumerate(TASKS)}
    panels = []
    for key in sorted(together, key=lambda key: (places[key[0]], key)):
        task, recipe, metric = key
        own = together[key]
        marks = [mark for gathered in own.values() for mark in marks_of(gathered)]
        title = f"{TASKS[task].title}: {recipe}"
        panels.append(Panel(task, title, metric, list(own), guess_lines(own), notes_of(own), marks))
    return panels


def count_of(panels: list[Panel]) -> str:
    """How many cells the panels hold, and of how many grids."""
    marks = [mark for panel in panels for mark in panel.marks]
    cells = {(mark.grid, mark.shape) for mark in marks}
    grids = {mark.grid for mark in marks}
    text = f"{plural(len(cells), 'cell')} of {plural(len(grids), 'grid')}"
    if len(marks) > len(cells):
        text += f", {len(marks):,} marks with their branches"
    return text
