"""What the index says of all grids together: the verdicts, and κ beside quality."""

from collections.abc import Sequence

from modeling_leaner.support.terminal import plural

from ...experiments.kappa import Conclusion, Correlation, Doubling
from ...experiments.non_inferiority import NonInferiority
from ...experiments.run_statistics import MAX_P, MIN_PAIRS
from ...records import Evidence
from ..rendering import markdown
from .amounts import short_label


def verdicts(grids: dict[str, Evidence], tests: list[NonInferiority], pages: Sequence[str] = ()) -> str:
    """Non-inferiority of every cell over all grids; or that none can be decided. `pages` may be linked."""
    decidable = [test for test in tests if test.baseline_learned]
    others = [test for test in tests if not test.baseline_learned]
    cells = [cell for evidence in grids.values() for cell in evidence.cells]
    if not decidable:
        most = max((cell.n for cell in cells), default=0)
        text = (
            f"“No loss of quality” needs {MIN_PAIRS} seeds (the most here is {most}), a margin fixed before the first "
            "run, and a baseline that has learned: one clearly better than the best simple guess that reads the "
            "input. No cell has all of it: none is decided."
        )
        return joined([text, baselines_note(others)])
    text = (
        "Is a shape worse than its baseline by less than the margin? One-sided paired t tests, corrected by Holm over "
        f"{len(tests)} comparisons and decided at a corrected p < {MAX_P:g}; the same tests of the other side say "
        f"where it is worse by more:\n\n{verdicts_table(decidable)}"
    )
    notes = []
    if "LOG.md" in pages:
        notes.append(
            "[LOG.md](LOG.md) says where seeds were added after others had been seen, and where another contrast had "
            "been fixed as the primary one, which makes these secondary."
        )
    if len(cells) - len(grids) > len(decidable):  # each grid has one baseline
        notes.append(
            f"Nothing is decided of the other cells: fewer than {MIN_PAIRS} seeds, a missing or failed one, no "
            "margin, or a baseline not known to have learned."
        )
    return "\n\n".join(filter(None, [text, joined([*notes, baselines_note(others)])]))


def joined(sentences: Sequence[str]) -> str:
    """Those that are not empty, in one paragraph."""
    return " ".join(sentence for sentence in sentences if sentence)


def name_of(test: NonInferiority) -> str:
    """`4 × 6 on GRID`."""
    return f"{short_label(test.cell, test.evidence)} on {test.grid}"


def verdicts_table(tests: list[NonInferiority]) -> str:
    """The tests, the lowest p value first."""
    lines = []
    for test in sorted(tests, key=lambda test: test.cell.p_non_inferiority):
        verdict = "undecided"
        if test.passes:
            verdict = "no loss of quality within the margin"
        elif test.is_worse:
            verdict = f"worse by more than the margin (p {test.corrected_opposite:.2g}, corrected)"
        lines.append((name_of(test), f"{test.cell.p_non_inferiority:.3g}", f"{test.corrected:.3g}", verdict))
    return markdown(("against the baseline", "p", "corrected", "verdict"), lines)


def baselines_note(tests: list[NonInferiority]) -> str:
    """The comparisons that lack nothing but a baseline that has learned, with what the test alone would say."""
    if not tests:
        return ""
    lack = "comparisons lack"
    if len(tests) == 1:
        lack = "comparison lacks"
    text = f"{len(tests)} {lack} only the baseline that has learned"
    passed = [f"{name_of(test)} (corrected p {test.corrected:.2g})" for test in tests if test.passes]
    if passed:
        text += f"; the test alone would pass {' and '.join(passed)}"
    return f"{text}."


def doubling_paragraph(doubling: Doubling) -> str | None:
    """What twice the heads did to κ; None without a pair of runs."""
    if not doubling.pairs:
        return None
    return (
        "**Conditioning.** Twice the heads of half the size lowered κ, the condition number of the head outputs, at "
        f"the start in {doubling.lower_start} of {doubling.pairs} pairs of runs and at the end in "
        f"{doubling.lower_end}; {doubling.better} of these {doubling.lower_end} were better with more heads (grids "
        "from random weights, all of whose runs have ended)."
    )


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
