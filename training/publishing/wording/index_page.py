"""The index of all grids: one line on each, and what has not been learned."""

from ...experiments.evidence import baseline_of, dataset_name
from ...experiments.guess_files import AS_MANY_ROWS
from ...records import Evidence, PublishedResults
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
    return (
        "**Not learned:** here the baseline is not clearly better than the best simple guess that reads the input, so "
        f"differences say how fast the shapes begin to learn, and nothing of kept quality: {'; '.join(lines)}."
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
