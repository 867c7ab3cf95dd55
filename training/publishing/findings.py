"""What the rows of all grids say together, for the index: each number computed here, each sentence with its limits."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ..experiments.evidence import KINDS, baseline_of, kind
from ..experiments.grid_results import GridResults
from ..experiments.kappa import KappaCell, conclude, conclude_by_task, read_all_cells
from ..experiments.run_statistics import MAX_P, MIN_PAIRS, holm, paired_statistics
from ..records import Cell, Evidence, PairedStatistics
from .rendering import markdown
from .wording.amounts import excludes_zero, gain, label, short_label
from .wording.index_page import kappa_paragraph
from .wording.scoring import best_of, has_outliers, median_score, outliers


LATER_SEEDS = (4, 5, 6, 7)  # added to these grids after the first three had been seen: LOG.md has when
GRIDS_WITH_LATER_SEEDS = ("enwik8-text-causal", "listops-short")


@dataclass
class GatheredGrid:
    """A grid with its rows, and the evidence gathered from them."""

    results: GridResults
    evidence: Evidence


Grids = dict[str, GatheredGrid]


def interval_text(values: Iterable[float] | None) -> str:
    """`+0.001 to +0.024`; `one pair` without an interval."""
    if not values:
        return "one pair"
    return " to ".join(f"{value:+.3f}" for value in values)


def effect(values: list[float], baseline: list[float], evidence: Evidence) -> PairedStatistics:
    """`paired_statistics` with plus = better."""
    gains = [gain(value, evidence) for value in values]
    baseline_gains = [gain(value, evidence) for value in baseline]
    return paired_statistics(gains, baseline_gains)


def is_tested(cell: Cell, evidence: Evidence) -> bool:
    """Whether a cell has a p value, from all seeds of its grid and from enough of them."""
    seeds = len(evidence.seeds)
    return cell.p_non_inferiority is not None and seeds >= MIN_PAIRS and cell.pairs == seeds


def verdicts(grids: dict[str, Evidence]) -> str:
    """Non-inferiority of every cell over all grids, corrected together; or that none can be tested.

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
        return text + barred_note(barred, raw)
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
    text += (
        "[LOG.md](LOG.md) says where seeds were added after others had been seen, and where another contrast had been "
        "fixed as the primary one, which makes these secondary."
    )
    if sum(len(evidence.cells) - 1 for evidence in grids.values()) > len(lines):
        text += (
            f" Nothing is decided of the other cells: fewer than {MIN_PAIRS} seeds, a missing or failed one, no margin"
            ", or a baseline not known to have learned."
        )
    return text + barred_note(barred, raw)


def barred_note(barred: list[str], raw: dict[str, float]) -> str:
    """The comparisons that lack nothing but a baseline that has learned, with what the test alone would say."""
    if not barred:
        return ""
    lack = "comparisons lack"
    if len(barred) == 1:
        lack = "comparison lacks"
    text = f" {len(barred)} {lack} only the baseline that has learned"
    adjusted = holm(raw)
    passed = [f"{name} (corrected p {adjusted[name]:.2g})" for name in barred if adjusted[name] < MAX_P]
    if passed:
        text += f"; the test alone would pass {' and '.join(passed)}"
    return f"{text}."


def later_seeds(grids: Grids) -> str | None:
    """The same test on those seeds alone that were added after the first ones."""
    raw = {}
    for name, gathered in grids.items():
        if name not in GRIDS_WITH_LATER_SEEDS:
            continue
        evidence = gathered.evidence
        seeds = list(map(str, LATER_SEEDS))
        base = baseline_of(evidence).values
        for cell in evidence.cells:
            if cell.shape == evidence.baseline or not all(seed in cell.values and seed in base for seed in seeds):
                continue
            result = paired_statistics(
                [cell.values[seed] for seed in seeds],
                [base[seed] for seed in seeds],
                evidence.margin,
                evidence.higher_is_better,
            )
            raw[f"{short_label(cell, evidence)} on {name}"] = result.p_non_inferiority
    if not raw:
        return None
    adjusted = holm(raw)
    lowest = []
    for name in sorted(adjusted, key=adjusted.__getitem__)[:2]:
        text = f"{name} p {adjusted[name]:.3g}"
        if adjusted[name] >= MAX_P:
            text += f", which misses {MAX_P:g}"
        lowest.append(text)
    return (
        f"Seeds {LATER_SEEDS[0]} to {LATER_SEEDS[-1]} were added after the first ones had been seen. They alone, "
        f"corrected in the same way: {', '.join(lowest)}."
    )


def pretraining(grids: Grids) -> str | None:
    """SST-2 with and without the pretrained weights, the same tokenizer and seeds."""
    if not {"sst2", "sst2-from-scratch"} <= grids.keys():
        return None
    pretrained = grids["sst2"].evidence
    from_scratch = {cell.shape: cell for cell in grids["sst2-from-scratch"].evidence.cells}
    lines = []
    for cell in pretrained.cells:
        scratch = from_scratch.get(cell.shape)
        if scratch is None:
            continue
        seeds = [seed for seed in cell.values if seed in scratch.values]
        if len(seeds) < 2:
            continue
        result = effect(
            [cell.values[seed] for seed in seeds],
            [scratch.values[seed] for seed in seeds],
            pretrained,
        )
        limits = interval_text(result.interval)
        if not excludes_zero(result.interval):
            limits += ", includes 0"
        lines.append(
            f"- {cell.layers} × {cell.heads_text}: {cell.mean:.3f} against {scratch.mean:.3f}, "
            f"{result.difference:+.3f} ({limits})"
        )
    text = (
        "**What masked pretraining was worth on SST-2** (accuracy, same tokenizer, 3 seeds, 95 % intervals):\n\n"
        + "\n".join(lines)
        + "\n\nFrom scratch, 300 steps of tuning found no rate for 8 × 6."
    )
    best = best_of(pretrained)
    if best is None:
        return text
    return f"{text} A {best.name} without any transformer has {best.value:.3f}."


def conditioning(grids: Grids) -> str | None:
    """κ of runs that differ in twice the heads alone, of the grids whose weights start at random."""
    doubling = conclude(kappa_cells(grids)).doubling
    if not doubling.pairs:
        return None
    return (
        "**Conditioning.** Twice the heads of half the size lowered κ, the condition number of the head outputs, at "
        f"the start in {doubling.lower_start} of {doubling.pairs} pairs of runs and at the end in "
        f"{doubling.lower_end}; {doubling.better} of these {doubling.lower_end} were better with more heads (grids "
        "from random weights, all of whose runs have ended)"
    )


def main_effect(evidence: Evidence, few: tuple[str, str], many: tuple[str, str]) -> PairedStatistics | None:
    """The mean of the two cells `many` against that of the two cells `few`, seed by seed, plus = better.

    None without all four.
    """
    cells = {kind(cell, evidence): cell for cell in evidence.cells}
    if not cells.keys() >= {*few, *many}:
        return None
    values = {name: cells[name].values for name in (*few, *many)}
    seeds = [seed for seed in values[few[0]] if all(seed in cell_values for cell_values in values.values())]
    return effect(
        [statistics.fmean(values[name][seed] for name in many) for seed in seeds],
        [statistics.fmean(values[name][seed] for name in few) for seed in seeds],
        evidence,
    )


def equivalence(result: PairedStatistics, margin: float) -> float:
    """p of two one-sided paired t tests (TOST) that a difference lies within ± margin."""
    from scipy.stats import t  # takes seconds to import

    freedom = result.pairs - 1
    error = (result.interval[1] - result.difference) / float(t.ppf(0.975, freedom))
    return float(t.sf((margin - abs(result.difference)) / error, freedom))


def heads_on_loss(grids: Grids) -> str | None:
    """The main effects of heads and of layers on causal enwik8."""
    gathered = grids.get("enwik8-text-causal")
    if gathered is None:
        return None
    margin = gathered.evidence.margin
    heads = main_effect(gathered.evidence, ("baseline", "fewer layers"), ("more heads", "both"))
    layers = main_effect(gathered.evidence, ("baseline", "more heads"), ("fewer layers", "both"))
    if heads is None or heads.interval is None or margin is None:
        return None
    verdict = "not shown to be equivalent"
    if max(map(abs, heads.interval)) < margin:
        verdict = "equivalent"
    means = {kind(cell, gathered.evidence): cell.mean for cell in gathered.evidence.cells}
    scores = ", ".join(f"{means[name]:.3f}" for name in KINDS)
    changed = f"{heads.difference:+.3f} nats (95 % interval {interval_text(heads.interval)}; plus is better)"
    return (
        f"The loss hardly moved: on causal enwik8 (loss {scores} for 8 × 3, 8 × 6, 4 × 3, 4 × 6; lower is better) "
        f"twice the heads changed it by {changed}, {verdict} within ±{margin:g} (TOST p "
        f"{equivalence(heads, margin):.2g}); half the layers by "
        f"{layers.difference:+.3f} ({interval_text(layers.interval)}). Each is the mean over both values of the other."
    )


def medians(grids: Grids) -> str | None:
    """ListOps: medians, and how many runs are outliers."""
    gathered = grids.get("listops-short")
    if gathered is None or not has_outliers(gathered.evidence):
        return None
    evidence = gathered.evidence
    cells = "; ".join(f"{label(cell, evidence)}: {median_score(cell, evidence)}" for cell in evidence.cells)
    base = baseline_of(evidence)
    left_out = outliers(base, evidence)
    kept = [seed for seed in base.values if seed not in left_out]
    others = []
    for cell in evidence.cells:
        shared = [seed for seed in kept if seed in cell.values]
        if cell is not base and shared:
            result = effect(
                [cell.values[seed] for seed in shared],
                [base.values[seed] for seed in shared],
                evidence,
            )
            name = f"{cell.layers} × {cell.heads_text}"
            others.append(f"{name}: {result.difference:+.3f} ({interval_text(result.interval)})")
    direction = "accuracy, higher is better"
    best = best_of(evidence)
    if best is not None:
        direction += f"; best simple guess {best.value:.3f}"
    return (
        f"**ListOps: medians, because one run is an outlier** ({direction}). {cells}. "
        "Against 8 × 3 without the outlier's seed, a choice made after seeing it: "
        f"{'; '.join(others)}."
    )


def length_of_training(grids: Grids) -> str | None:
    """What longer training did to the order of the published pairs; one seed each."""
    lines = []
    for name in ("tinystories", "cifar10-long"):
        gathered = grids.get(name)
        if gathered is None:
            continue
        base = baseline_of(gathered.evidence)
        for cell in gathered.evidence.cells:
            if cell is not base and cell.difference is not None:
                ahead = gain(cell.difference, gathered.evidence)
                values = f"{cell.mean:.3f} against {base.mean:.3f}"
                lines.append(f"{name}, {gathered.evidence.metric} {values}: {ahead:+.3f} (plus is better)")
    if not lines:
        return None
    return (
        "**Longer training may turn the order.** 4 × 6 against 8 × 3, one seed each, which may be chance: "
        f"{'; '.join(lines)}."
    )


def findings(grids: Grids, kappa: str | None) -> list[str]:
    """Paragraphs for the index.

    Args:
        kappa: `kappa_and_quality` of the grids.
    """
    paragraphs = [
        verdicts_and_later_seeds(grids),
        conditioning_and_loss(grids),
        kappa,
        medians(grids),
        pretraining(grids),
        length_of_training(grids),
    ]
    return [paragraph for paragraph in paragraphs if paragraph]


def verdicts_and_later_seeds(grids: Grids) -> str:
    """What is kept without loss, and the same test on the seeds that were added later, one paragraph."""
    text = f"**Verdicts.** {verdicts({name: gathered.evidence for name, gathered in grids.items()})}"
    later = later_seeds(grids)
    if later is not None:
        text += f" {later}"
    return text


def conditioning_and_loss(grids: Grids) -> str | None:
    """What more heads do to κ and what to the loss, one paragraph; None unless both are known."""
    kappa = conditioning(grids)
    loss = heads_on_loss(grids)
    if kappa is None or loss is None:
        return None
    return f"{kappa}. {loss}"


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
