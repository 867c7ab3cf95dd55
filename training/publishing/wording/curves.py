"""What the page on the length of training says of a grid with branches."""

from modeling_leaner.support.terminal import plural

from ...experiments.run_statistics import MIN_PAIRS
from ...records import Contrast, Evidence
from .amounts import direction, millions
from .comparison import learned_note
from .scoring import best_of


FIGURE_TEXT = "Quality of every shape over the cost of its training, and the comparisons that were fixed beforehand"


def scores_note(evidence: Evidence) -> str:
    """How to read the scores and the figure, what a guess has, and whether the baseline has learned."""
    text = (
        f"Mean ± sd (seeds) of the held-out {evidence.metric}, {direction(evidence)}. In the figure a band is the "
        "range over the seeds, of a difference its 95 % interval."
    )
    best = best_of(evidence)
    if best is not None:
        text += f" Best simple guess {best.value:.4f} ({best.name}): the dotted line where the axis is "
        text += f"{evidence.metric}."
    not_learned = learned_note(evidence)
    if not_learned is not None:
        text += f"\n\n{not_learned}"
    return text


def interpolation_text(evidence: Evidence) -> str:
    """How far off a reading at equal FLOPs or seconds may be; empty where there is none."""
    read = [reading for reading in evidence.readings if reading.equal != "tokens" and reading.pairs]
    errors = [reading.interpolation_error for reading in read]
    if not errors:
        return ""
    if None in errors:
        return ", off by what so few branches cannot tell"
    if max(errors) < 0.0005:
        return ""  # shapes of the same FLOPs: nothing is interpolated
    return f", off by about {max(errors):.3f} at most"


def contrast_text(contrast: Contrast, pair: str, planned: int) -> str:
    """A contrast with its p values once all its runs have finished."""
    if contrast.pairs < planned:
        return f"{pair}: {contrast.pairs} of {planned} pairs of runs so far, not tested"
    return f"{pair}: p {contrast.p:.3g}, corrected {contrast.p_corrected:.3g}"


def contrasts_note(evidence: Evidence, planned: list[tuple[str, int]]) -> str:
    """How to read the contrasts, how far interpolation may be off, and the tests.

    Args:
        planned: of each contrast its name, and how many pairs of runs it is to have.
    """
    last = evidence.longest
    tests = "; ".join(contrast_text(contrast, *names) for contrast, names in zip(last.contrasts, planned))
    text = (
        "Paired by seed; in parentheses the 95 % interval over the seeds. At equal tokens both end at the budget. At "
        "equal FLOPs or seconds the second is read where it has spent what the first has at that budget, between its "
        f"own branches{interpolation_text(evidence)}; the seconds are those of a step on a CPU, timed apart with the "
        "shapes in turns, times the steps. A dash: it lies outside of those branches, or a run is missing or "
        "failed.\n\n"
        f"Two-sided paired t tests at {millions(last.branch)} tokens, corrected by Holm for "
        f"{plural(len(planned), 'comparison')}: {tests}. Nothing else is corrected."
    )
    if evidence.margin is not None:
        text += (
            f" Whether quality is kept within the margin of {evidence.margin:g} is said [in the index]"
            f"(README.md#what-was-found), of pairs with {MIN_PAIRS} seeds."
        )
    return text
