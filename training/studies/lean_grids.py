"""What the finished grids say of Lean: heads and κ, κ and quality, half the layers with twice the heads."""

from pathlib import Path

from modeling_leaner.configuration_leaner import LeanConfig

from ..experiments.grid_results import load_folder
from ..experiments.kappa import Conclusion, Correlation, conclude, read_all_cells
from ..records import Outcome, Statement
from .grid_pairs import GridPair, grid_pairs, rows_in
from .kappa_at_start import PAPER
from .trials import by_interval, rounded, together, verdict


MARGINS = {"loss": 0.02, "matthews_correlation": 0.02}  # of no loss of quality, as the grids have them that fix one
MARGIN = 0.01  # of the other metrics, all shares or correlations


def is_twin(config: LeanConfig, baseline: LeanConfig) -> bool:
    """Whether a shape has half the layers and twice the heads of another, and is the same otherwise."""
    same = ("model_type", "hidden_size", "intermediate_size")
    if any(getattr(config, name) != getattr(baseline, name) for name in same):
        return False
    halved = 2 * config.num_hidden_layers == baseline.num_hidden_layers
    return halved and config.num_attention_heads == 2 * baseline.num_attention_heads


def kept_quality(pair: GridPair) -> Outcome:
    """agrees: worse by less than the margin of its metric, all of the interval; disagrees: worse; else undecided."""
    low, _ = pair.interval
    if pair.is_worse:
        return "disagrees"
    if low > -MARGINS.get(pair.metric, MARGIN):
        return "agrees"
    return "undecided"


def claim_statement(grids: Path) -> Statement:
    """The paper's claim itself, by the rows that are there."""
    common = {
        "paper": PAPER,
        "place": "abstract",
        "whose": "the paper",
        "statement": "Half the layers with twice the heads keep the quality with 30 to 50 % fewer parameters.",
    }
    pairs = list(grid_pairs(grids, is_twin))
    if not pairs:
        return Statement(**common, rule=None, verdict="not tested", finding="", numbers={}, missing=rows_in(grids))
    outcomes = [kept_quality(pair) for pair in pairs]
    numbers = {}
    for pair in pairs:
        numbers |= pair.numbers(f"gain, {pair.metric}")
        numbers[f"{pair.name}: share of the parameters"] = rounded(pair.share, 3)
    return Statement(
        **common,
        rule=f"in every grid the 95 % interval over the seeds lies above minus the margin, {MARGINS['loss']} of a "
        f"loss and of Matthews' correlation, {MARGIN} of the rest; disagrees where one is worse by an interval that "
        "excludes 0",
        verdict=together(outcomes),
        finding=f"Worse in {outcomes.count('disagrees')} of {len(pairs)} grids, kept within the margin in "
        f"{outcomes.count('agrees')}, undecided in {outcomes.count('undecided')}; plus is better, and the share of "
        "the parameters: "
        + "; ".join(f"{pair.grid} {pair.metric} {pair.words} with {pair.share:.0%}" for pair in pairs)
        + ". Small models after short training.",
        numbers=numbers,
    )


def all_grid_statements(grids: Path) -> list[Statement]:
    """What the finished grids say of heads, of κ and of the claim. Raises GridError where one of them does not fit."""
    return [*grid_statements(grids), claim_statement(grids)]


def correlation_words(found: Correlation) -> str:
    """Its value with its interval."""
    words = f"{found.value:+.2f}"
    if found.interval is not None:
        words += " ({:+.2f} to {:+.2f})".format(*found.interval)
    return words


def grid_statements(grids: Path) -> list[Statement]:
    """What the finished grids say of heads, κ and quality."""
    heads = {
        "paper": PAPER,
        "place": "the finished grids: heads",
        "whose": "asked here",
        "statement": "Twice the heads of half the size lower κ of trained models.",
    }
    quality = {
        "paper": PAPER,
        "place": "the finished grids: quality",
        "whose": "asked here",
        "statement": "Runs with a lower κ, before or after training, are better: within a shape and between shapes.",
    }
    folders = sorted(path.parent for path in grids.glob("*/results.csv"))
    conclusion = conclude(read_all_cells({folder.name: load_folder(folder) for folder in folders}))
    if not conclusion.doubling.pairs or conclusion.within["end"].value is None:
        return [
            Statement(**common, rule=None, verdict="not tested", finding="", numbers={}, missing=rows_in(grids))
            for common in (heads, quality)
        ]
    return [doubling_statement(conclusion, heads), quality_statement(conclusion, quality)]


def doubling_statement(conclusion: Conclusion, common: dict) -> Statement:
    """Pairs of runs of one seed."""
    doubling = conclusion.doubling
    return Statement(
        **common,
        rule="κ at the end is lower in nine of ten pairs of runs",
        verdict=verdict(doubling.lower_end >= 0.9 * doubling.pairs),
        finding=f"Lower at the start in {doubling.lower_start} and at the end in {doubling.lower_end} of "
        f"{doubling.pairs} pairs; {doubling.better} of these {doubling.lower_end} were better, too (pairs of one grid "
        "share shapes and data, so no test; the mean difference of each is in the grids).",
        numbers=doubling._asdict(),
    )


def negated(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval of the negative; None of none."""
    if interval is None:
        return None
    low, high = interval
    return -high, -low


def quality_statement(conclusion: Conclusion, common: dict) -> Statement:
    """Rank correlations: below 0, lower κ was better."""
    found = {
        f"{among}, κ at the {end}": correlations[end]
        for among, correlations in (("within a shape", conclusion.within), ("between shapes", conclusion.between))
        for end in correlations
    }
    outcomes = [by_interval(negated(each.interval)) for each in found.values()]
    known = {name: each for name, each in found.items() if each.value is not None}
    numbers: dict[str, float | None] = {}
    for name, each in known.items():
        numbers[name] = rounded(each.value, 4)
        if each.interval is not None:
            numbers[f"{name}, low end"] = rounded(each.interval[0], 4)
            numbers[f"{name}, high end"] = rounded(each.interval[1], 4)
    return Statement(
        **common,
        rule="Spearman's correlation of κ and quality is below 0, its 95 % interval too, in all four; disagrees where "
        "one is above 0, its interval too",
        verdict=together(outcomes),
        finding="; ".join(f"{name} {correlation_words(each)}" for name, each in known.items())
        + f"; {conclusion.runs} runs; between shapes the interval is over seeds, for these very shapes.",
        numbers=numbers,
    )
