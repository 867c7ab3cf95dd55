"""What the rows of all grids say together, for the index: verdicts corrected over all, and κ beside quality."""

from collections.abc import Sequence

from ..experiments.evidence import baseline_of
from ..experiments.kappa import KappaCell, conclude, conclude_by_task, read_all_cells
from ..experiments.run_statistics import MAX_P, MIN_PAIRS, holm
from ..records import Cell, Evidence
from .gathered_grids import Grids
from .rendering import markdown
from .wording.amounts import short_label
from .wording.index_page import kappa_paragraph


def is_tested(cell: Cell, evidence: Evidence) -> bool:
    """Whether a cell has a p value, from all seeds of its grid and from enough of them."""
    seeds = len(evidence.seeds)
    return cell.p_non_inferiority is not None and seeds >= MIN_PAIRS and cell.pairs == seeds


def verdicts(grids: dict[str, Evidence], pages: Sequence[str] = ()) -> str:
    """Non-inferiority of every cell over all grids, corrected together; or that none can be tested.

    `pages` are those that may be linked.

    The correction counts every comparison with enough seeds and a margin, also those whose baseline has not learned:
    what becomes known after the margins were fixed makes no test easier.
    """
    raw = {}
    barred = []
    for grid, evidence in grids.items():
        for cell in evidence.cells:
            if not is_tested(cell, evidence):
                continue
            name = f"{short_label(cell, evidence)} on {grid}"
            raw[name] = cell.p_non_inferiority
            if not baseline_of(evidence).learned:
                barred.append(name)
    if len(barred) == len(raw):
        most = max((cell.n for evidence in grids.values() for cell in evidence.cells), default=0)
        text = (
            f"“No loss of quality” needs {MIN_PAIRS} seeds (the most here is {most}), a margin fixed before the first "
            "run, and a baseline that has learned: one clearly better than the best simple guess that reads the "
            "input. No cell has all of it: none is decided."
        )
        return joined([text, barred_note(barred, raw)])
    lines = []
    for name, corrected in holm(raw).items():
        if name in barred:
            continue
        verdict = "undecided"
        if corrected < MAX_P:
            verdict = "no loss of quality within the margin"
        lines.append((name, f"{raw[name]:.3g}", f"{corrected:.3g}", verdict))
    table = markdown(("against the baseline", "p", "corrected", "verdict"), lines)
    text = (
        "Is a shape worse than its baseline by less than the margin? One-sided paired t tests, corrected by Holm over "
        f"{len(raw)} comparisons:\n\n{table}\n\n"
    )
    notes = []
    if "LOG.md" in pages:
        notes.append(
            "[LOG.md](LOG.md) says where seeds were added after others had been seen, and where another contrast had "
            "been fixed as the primary one, which makes these secondary."
        )
    if sum(len(evidence.cells) - 1 for evidence in grids.values()) > len(lines):
        notes.append(
            f"Nothing is decided of the other cells: fewer than {MIN_PAIRS} seeds, a missing or failed one, no "
            "margin, or a baseline not known to have learned."
        )
    return text + joined([*notes, barred_note(barred, raw)])


def joined(sentences: Sequence[str]) -> str:
    """Those that are not empty, in one paragraph."""
    return " ".join(sentence for sentence in sentences if sentence)


def barred_note(barred: list[str], raw: dict[str, float]) -> str:
    """The comparisons that lack nothing but a baseline that has learned, with what the test alone would say."""
    if not barred:
        return ""
    lack = "comparisons lack"
    if len(barred) == 1:
        lack = "comparison lacks"
    text = f"{len(barred)} {lack} only the baseline that has learned"
    adjusted = holm(raw)
    passed = [f"{name} (corrected p {adjusted[name]:.2g})" for name in barred if adjusted[name] < MAX_P]
    if passed:
        text += f"; the test alone would pass {' and '.join(passed)}"
    return f"{text}."


def conditioning(grids: Grids) -> str | None:
    """κ of runs that differ in twice the heads alone, of the grids whose weights start at random."""
    doubling = conclude(kappa_cells(grids)).doubling
    if not doubling.pairs:
        return None
    return (
        "**Conditioning.** Twice the heads of half the size lowered κ, the condition number of the head outputs, at "
        f"the start in {doubling.lower_start} of {doubling.pairs} pairs of runs and at the end in "
        f"{doubling.lower_end}; {doubling.better} of these {doubling.lower_end} were better with more heads (grids "
        "from random weights, all of whose runs have ended)."
    )


def findings(grids: Grids, kappa: str | None, pages: Sequence[str]) -> list[str]:
    """Paragraphs for the index.

    Args:
        kappa: `kappa_and_quality` of the grids.
        pages: those that may be linked.
    """
    decided = verdicts({name: gathered.evidence for name, gathered in grids.items()}, pages)
    paragraphs = [f"**Verdicts.** {decided}", conditioning(grids), kappa]
    return [paragraph for paragraph in paragraphs if paragraph]


def kappa_cells(grids: Grids) -> list[KappaCell]:
    """The cells of which κ is compared with quality."""
    return read_all_cells({name: gathered.results for name, gathered in grids.items()})


def kappa_and_quality(grids: Grids) -> str | None:
    """Whether κ went along with quality; None where nothing can be ranked."""
    cells = kappa_cells(grids)
    conclusion = conclude(cells)
    if conclusion.within["end"].value is None and conclusion.between["end"].value is None:
        return None
    return kappa_paragraph(conclusion, conclude_by_task(cells))
