"""What the page on the length of training says of a grid with branches."""

from ...records import Contrast, Evidence, LawFile
from .amounts import millions
from .scoring import best_of


FIGURE_TEXT = "Quality of every shape over tokens, FLOPs and seconds of training, and the differences fixed beforehand"


def scores_note(evidence: Evidence) -> str:
    """How to read the scores, and what a guess has."""
    text = (
        f"Mean ± sd (seeds) of the held-out {evidence.metric}. In the figure a band is the range over the seeds, of a "
        "difference its 95 % interval."
    )
    best = best_of(evidence)
    if best is not None:
        name, value = best
        text += f" Best simple guess, dotted there: {value:.4f} ({name})."
    return text


def corrected_text(contrast: Contrast, pair: str) -> str:
    """A contrast with its corrected p, at the longest budget."""
    if contrast.p_corrected is None:
        return f"{pair} not tested, {contrast.pairs or 0} of its pairs of runs are there"
    return f"{pair} p {contrast.p:.3g}, corrected {contrast.p_corrected:.3g}"


def contrasts_note(evidence: Evidence, pairs: list[str]) -> str:
    """How to read the contrasts, what is corrected, and how far interpolation may be off.

    Args:
        pairs: the contrasts by name, in their order.
    """
    last = evidence.curves[-1]
    tests = "; ".join(corrected_text(contrast, pair) for contrast, pair in zip(last.contrasts, pairs))
    text = (
        "Paired by seed, in parentheses the 95 % interval over the seeds. At equal tokens both end at the budget; at "
        "equal FLOPs and equal seconds the second is read where it has spent what the first has at that budget, "
        "between its own branches"
    )
    errors = [reading.interpolation_error for reading in evidence.readings if reading.interpolation_error is not None]
    if errors:
        text += f", which may be off by up to {max(errors):.3f}"
    return (
        f"{text}. A dash: it lies outside of them, or has not run. Two-sided at {millions(last.branch)} equal tokens, "
        f"corrected by Holm for {len(pairs)} comparisons: {tests}. Nothing else is corrected."
    )


def law_note(law: LawFile) -> str:
    """What the law fitted to the cells says, and where the shapes cross."""
    text = f"**A law over shape and tokens** (`leaner law`): {law.sentence}."
    if law.found:
        text += "".join(f" {crossing.sentence}." for crossing in law.crossings)
    return text
