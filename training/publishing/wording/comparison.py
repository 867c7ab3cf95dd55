"""What a card says of the cells of its grid: differences, what they prove, and what a reader should know of them."""

from modeling_leaner.support.terminal import plural

from ...experiments.evidence import baseline_of
from ...experiments.run_statistics import MIN_PAIRS, NO_VERDICT
from ...records import Cell, Evidence
from ..rendering import markdown
from .amounts import excludes_zero, gain, is_under_way, label, score, seed_counts
from .provenance import how_trained
from .scoring import PAIR_ERROR_HEADER, best_of, has_outliers, median_score, pair_errors


BESIDE_TIMES = "Times of inference are to be compared within one table alone."
OTHER_RECIPE = "Another recipe: compare its numbers with each other, not with those above."


def comparison_intro(evidence: Evidence, waiting: int = 0) -> str:
    """How to read the table of cells; `waiting` shapes of the grid are not in it, for they have no run yet."""
    often = "once"
    if len(evidence.seeds) > 1:
        often = f"with {seed_counts(evidence)} seeds"
        if is_under_way(evidence):
            often = f"with up to {len(evidence.seeds)} seeds, not all of which have finished"
    start = ""
    if any(cell.start for cell in evidence.cells):
        start = " A *cut* starts with the weights that were left of its parent."
    planned = ""
    if waiting:
        planned = f" Of {plural(waiting, 'more shape')} that the grid plans no run has finished yet."
    return (
        f"Each line of the table is a *cell*: one shape, trained {often}.{start} All cells were trained by the same "
        "file, with the same data in the same order for each seed. This model is in bold; a difference with a plus is "
        f"better than the line marked baseline.{planned}"
    )


def certainty(cell: Cell, evidence: Evidence) -> str:
    """How certain a cell's difference is: its interval, and why there is no verdict."""
    interval = cell.interval
    if interval is None:
        text = "one pair of runs, which may be chance"
    elif excludes_zero(interval):
        text = f"over {cell.pairs} seeds; the 95 % interval excludes 0"
    else:
        text = f"over {cell.pairs} seeds; the 95 % interval includes 0"
    if cell.verdict == NO_VERDICT:
        return f"{text}; no verdict: the baseline is not clearly better than the best simple guess"
    if cell.pairs < MIN_PAIRS:
        return f"{text}; no verdict on quality below {MIN_PAIRS} seeds"
    if evidence.margin is None:
        return f"{text}; undecided, without the margin that a verdict needs"
    if cell.p_non_inferiority is None:
        return text
    against = f"being worse by {evidence.margin:g} or more"
    return f"{text}; one-sided p against {against}, not corrected: {cell.p_non_inferiority:.3g}"


def claim(cell: Cell, evidence: Evidence) -> str:
    """One cell against the baseline, with both scores."""
    base = baseline_of(evidence)
    ahead = gain(cell.difference, evidence)
    if ahead == 0:
        compared = "equal to the baseline"
    elif ahead > 0:
        compared = f"{ahead:.4f} better than the baseline"
    else:
        compared = f"{-ahead:.4f} worse than the baseline"
    values = f"{evidence.metric} {cell.mean:.4f} against {base.mean:.4f}"
    if cell.n != base.n:
        values += f" over all seeds of each, the difference over the {cell.pairs} of both"
    return f"{label(cell, evidence)}: {compared} ({values}), {certainty(cell, evidence)}."


def claims(evidence: Evidence) -> str:
    """What the numbers say, cell by cell. Whether quality was lost is decided over all grids, in the index."""
    lines = []
    for cell in evidence.cells:
        notes = "".join(f" Note: {note}." for note in cell.notes)
        if cell.shape != evidence.baseline and cell.difference is not None:
            lines.append(f"- {claim(cell, evidence)}{notes}")
        elif notes:
            lines.append(f"- {label(cell, evidence)}:{notes}")
    if lines:
        return "\n".join(lines)
    if len(evidence.cells) == 1:
        return "- One cell, with nothing to compare in this grid."
    return "- No cell has been compared yet."


def learned_note(evidence: Evidence) -> str | None:
    """What the baseline fails to beat clearly; None where it has learned, or where that is not known."""
    best = best_of(evidence)
    base = baseline_of(evidence)
    if base.learned is not False or best is None or base.mean is None:
        return None
    compared = "is not clearly better than"
    if gain(base.mean - best.value, evidence) < 0:
        compared = "loses to"
    why = "What is compared is how fast the shapes begin to learn."
    if has_outliers(evidence):
        why = "One of its runs is an outlier, which makes that mean uncertain."
    return (
        f"**No verdict on quality:** the baseline's mean ({evidence.metric} {base.mean:.3f}) {compared} the best "
        f"simple guess that reads the input ({best.name}, {best.value:.3f}). {why}"
    )


def rows_note(evidence: Evidence, rows: int | None) -> str | None:
    """What the intervals are conditional on, and how much the choice of rows adds where that is known."""
    notes = []
    if len(evidence.seeds) > 1:
        notes.append(
            "Intervals are over seeds, conditional on the same held-out rows, and not corrected for their number."
        )
    pairs = pair_errors(evidence)
    if pairs and rows:
        notes.append(
            f"Another choice of {rows:,} rows would move a difference, too. Of the published pairs, one run each:"
        )
    if not notes:
        return None
    text = " ".join(notes)
    if pairs and rows:
        text += f"\n\n{markdown(PAIR_ERROR_HEADER, [pair.columns() for pair in pairs])}"
    return text


def outliers_note(evidence: Evidence) -> str | None:
    """Medians, where a mean over an outlier would mislead."""
    if not has_outliers(evidence):
        return None
    cells = "; ".join(f"{label(cell, evidence)}: {median_score(cell, evidence)}" for cell in evidence.cells)
    return (
        f"An outlier moves means and intervals, so read the medians: {cells}. An outlier is a run that is worse than "
        "its cell's median by ten median absolute deviations and no better than the best simple guess that the median "
        "beats."
    )


def reference_note(evidence: Evidence) -> str | None:
    """The score of transformers' own model of the baseline's shape; None where the grid trains that model."""
    base = baseline_of(evidence)
    peer = evidence.reference
    if peer is not None:
        return (
            "transformers' own model of the baseline's shape, tuned and trained alike, at learning rate "
            f"{peer.learning_rate:g}: {score(peer, '.4f')}; the baseline here: {score(base, '.4f')}."
        )
    overrides = evidence.overrides
    if overrides and overrides.get("implementation") == "transformers":
        return None
    return "transformers' own model of the baseline's shape has not been trained this way."


def start_note(evidence: Evidence) -> str | None:
    """That all seeds start from the same weights; None where they do not."""
    if evidence.start_seed is None:
        return None
    return (
        f"All runs start from the weights of the same seed, {evidence.start_seed}: what differs between seeds "
        "is the fine-tuning alone, and intervals do not include the chance of the pretraining."
    )


def notes_on(evidence: Evidence, rows: int | None = None) -> str:
    """What a reader of the comparison should know, a paragraph each."""
    notes = (
        learned_note(evidence),
        outliers_note(evidence),
        rows_note(evidence, rows),
        start_note(evidence),
        reference_note(evidence),
    )
    return "\n\n".join(note for note in notes if note)


def glossary(evidence: Evidence) -> str:
    """What the rows of the large table are; once on a page."""
    timed = "not timed yet."
    if evidence.latency_on:
        timed = f"measured in turns on {evidence.latency_on}: compare it within this table, not with another's."
    return (
        "κ is σ_max/σ_min of the concatenated head outputs: the median over 8 held-out rows and over the layers, "
        "the geometric mean over the seeds, – where it was infinite, > 8e+06 where rank is lost in float32. FLOPs "
        "are those of the matrix products, for one input of the stated length. Times of training are means over the "
        "seeds, of runs that shared the machine with other work; memory is the most that the process held, on a GPU "
        "what its tensors took there, the largest of the seeds. "
        f"Inference was {timed}"
    )


def beside_about(other: Evidence, evidence: Evidence) -> str:
    """How the cells of another grid were trained, and what they may be compared with."""
    if other.recipe == evidence.recipe:
        return f"{how_trained(other)} {BESIDE_TIMES}"
    return f"{how_trained(other)} {OTHER_RECIPE}"


def figure_text(evidence: Evidence) -> str:
    """What the figure shows, for those who cannot see it."""
    return f"{evidence.metric} of every seed, parameters and time of each cell"
