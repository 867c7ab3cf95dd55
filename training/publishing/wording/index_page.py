"""The index of all grids: one line on each, what has not been learned, and the paragraph on κ."""

from modeling_leaner.support.terminal import plural

from ...experiments.evidence import baseline_of, dataset_name
from ...experiments.guesses import AS_MANY_ROWS
from ...experiments.kappa import Conclusion, Correlation
from ...records import Evidence, PublishedResults
from ..rendering import markdown
from .amounts import duration, label
from .comparison import learned_note, reference_note
from .provenance import how_trained, is_local
from .scoring import best_of, guesses_of, outliers


FOREST_TEXT = "Differences of each shape from its baseline with their intervals, in accuracy and in loss"
INDEX_GLOSSARY = (
    "- *Grid:* one comparison, shapes × seeds trained by one recipe. *Cell:* one of its shapes, over all its seeds.\n"
    "- *Difference:* paired over the seeds and signed so that plus is better for every metric. Its 95 % interval is "
    "conditional on the same held-out rows, and not corrected for the number of comparisons.\n"
    "- *Not learned:* not clearly (by three standard errors) better than the best simple guess that reads the input, "
    "each in the grid's `guesses.json`, which `leaner guesses` fits. *No verdict:* the baseline has not learned.\n"
    "- *κ:* σ_max/σ_min of the concatenated head outputs before and after training: the median over 8 held-out rows "
    "and over the layers, the geometric mean over the seeds, – where it was infinite, > 8e+06 where rank is lost in "
    "float32.\n"
    "- *Times of inference* were measured in turns: compare them within one grid. FLOPs, memory and cache are on the "
    "cards."
)
KAPPA_TEXT = "Quality of runs against the condition number of their head outputs, within and between cells"


def not_learned_line(grid: str, evidence: Evidence) -> str:
    """The score of a baseline that has not learned, and those of the guesses that it should beat."""
    base = baseline_of(evidence)
    text = f"`{grid}` {evidence.metric} {base.mean:.3f}"
    count = len(outliers(base, evidence))
    if count:
        text += f", the mean of {base.n} runs, outliers: {count}"
    best = best_of(evidence)
    text += f", against {best.value:.3f} ({best.name})"
    for guess in guesses_of(evidence):
        if guess.name == AS_MANY_ROWS:
            text += f", or {guess.value:.3f} from as many rows as the runs read"
    return text


def not_learned(grids: dict[str, Evidence]) -> str | None:
    """The grids of a task whose baseline has not learned, with its score and what it should beat; None without."""
    lines = []
    for grid, evidence in grids.items():
        if learned_note(evidence) is not None:
            lines.append(not_learned_line(grid, evidence))
    if not lines:
        return None
    listed = f" {lines[0]}."
    if len(lines) > 1:
        listed = "\n\n" + "\n".join(f"- {line}" for line in lines)
    return (
        "**Not learned:** here the baseline is not clearly better than the best simple guess that reads the input, so "
        f"differences say how fast the shapes begin to learn, and nothing of kept quality:{listed}"
    )


def short_data(results: PublishedResults) -> str:
    """A dataset's name, and what a reader must know of its rows at once."""
    name = dataset_name(results)
    if name == "TinyStories":
        return "TinyStories; 32,957 of 36,181 training stories were sampled from a model"
    if is_local(results):
        return f"{name} (local copy)"
    return name


def grid_about(name: str, evidence: Evidence) -> str:
    """One line on a grid, with its name in front."""
    return f"**{name}:** {grid_text(evidence)}"


def grid_text(evidence: Evidence) -> str:
    """How a grid was trained and how far it is, in one line."""
    planned = evidence.planned
    if not planned:
        planned = len(evidence.seeds) * len(evidence.cells)
    done = sum(cell.n for cell in evidence.cells)
    progress = f"{done} of {planned}"
    if done == planned:
        progress = "all"
    seeds = ", ".join(map(str, evidence.seeds))
    rates = ", ".join(f"{rate:g}" for rate in evidence.learning_rates)
    if evidence.curves is not None:
        progress = f"at the longest budget {progress}"
    text = (
        f"{how_trained(evidence)} Seeds {seeds}; learning rates {rates}; {progress} reported runs finished, "
        f"{evidence.failed} failed, {duration(evidence.hours)}."
    )
    if evidence.unsound_tuning is not None:
        text += f" The rates may not be the best: {evidence.unsound_tuning}."
    reference = reference_note(evidence)
    if reference is not None:
        text += f" {reference}"
    notes = notes_text(evidence)
    if notes:
        text += f" Notes: {notes}."
    return text


def notes_text(evidence: Evidence) -> str:
    """The notes of the cells, each note once: of which shapes, or of none where it is of all."""
    shapes_of: dict[str, list[str]] = {}
    for cell in evidence.cells:
        for note in cell.notes:
            shapes_of.setdefault(note, []).append(label(cell, evidence))
    parts = []
    for note, shapes in shapes_of.items():
        if len(shapes) == len(evidence.cells):
            parts.append(note)
        else:
            parts.append(f"{', '.join(shapes)}: {note}")
    return "; ".join(parts)


def correlation_text(correlation: Correlation, groups: str, ranked: str) -> str:
    """`−0.06 (−0.24 to +0.14; 158 runs of 40 cells)`, or that nothing could be ranked."""
    if correlation.value is None:
        return f"not known, too few {ranked}"
    count = f"{correlation.ranked} {ranked} of {plural(correlation.groups, groups)}"
    if correlation.interval is None:
        return f"{correlation.value:+.2f} ({count}, too few for an interval)"
    low, high = correlation.interval
    return f"{correlation.value:+.2f} ({low:+.2f} to {high:+.2f}; {count})"


def correlation_row(among: str, correlations: dict[str, Correlation], groups: str, ranked: str) -> list[str]:
    """What is correlated, and its correlation with κ before and after training."""
    return [among, *(correlation_text(correlations[end], groups, ranked) for end in ("start", "end"))]


def kappa_paragraph(all_runs: Conclusion, tasks: dict[str, Conclusion]) -> str:
    """What correlation κ has with quality, how much is unknown, and what it does not say."""
    rows = [
        correlation_row("runs of one cell, which differ by the seed", all_runs.within, "cell", "runs"),
        correlation_row("cells of one grid, by the means over their seeds", all_runs.between, "grid", "cells"),
    ]
    for task, conclusion in tasks.items():
        if conclusion.within["end"].value is not None:
            rows.append(correlation_row(f"runs of one cell, {task} alone", conclusion.within, "cell", "runs"))
    table = markdown(("among", "κ at the start", "κ at the end"), rows)
    unknown = " and ".join(f"{count} at the {end}" for end, count in all_runs.unknown.items())
    text = (
        "**Does κ matter?** Spearman's rank correlation of κ with quality: below 0, lower κ was better. In brackets "
        f"its 95 % bootstrap interval, {len(tasks)} tasks pooled, nothing corrected.\n\n{table}\n\n"
        "Cells of a grid differ in size and depth, too, and their interval is over seeds, not over shapes; a "
        f"correlation is no cause. Of {all_runs.runs} runs, κ is unknown or infinite for {unknown}; {all_runs.failed} "
        "more ended with an error."
    )
    if all_runs.waiting:
        names = ", ".join(all_runs.waiting)
        text += f" Grids with runs to come are not read: {names}."
    return text
