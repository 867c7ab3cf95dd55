"""What the finished grids say of Lean: heads and κ, κ and quality, half the layers with twice the heads."""

from pathlib import Path

from modeling_leaner.configuration_leaner import LeanConfig

from ..experiments.evidence import PEERS
from ..experiments.grid_results import load_folder
from ..experiments.kappa import Conclusion, Correlation, KappaCell, conclude, read_cells
from ..records import Statement
from .grid_pairs import GridPair, grid_pairs, rows_in
from .kappa_at_start import PAPER
from .trials import rounded, verdict


def grid_cells(grids: Path) -> list[KappaCell]:
    """Of all grids but those of transformers' own models. Raises GridError."""
    folders = sorted(path.parent for path in grids.glob("*/results.csv"))
    own = [folder for folder in folders if not folder.name.endswith(PEERS)]
    return [cell for folder in own for cell in read_cells(folder.name, load_folder(folder))]


def is_twin(config: LeanConfig, baseline: LeanConfig) -> bool:
    """Whether a shape has half the layers and twice the heads of another, and is the same otherwise."""
    same = ("model_type", "hidden_size", "intermediate_size")
    if any(getattr(config, name) != getattr(baseline, name) for name in same):
        return False
    halved = 2 * config.num_hidden_layers == baseline.num_hidden_layers
    return halved and config.num_attention_heads == 2 * baseline.num_attention_heads


def share_of(pair: GridPair) -> float:
    """The parameters of the shape over those of the other."""
    return pair.shape.count_parameters().total / pair.other.count_parameters().total


def claim_statement(grids: Path) -> Statement:
    """The paper's claim itself, by the rows that are there."""
    common = {
        "paper": PAPER,
        "place": "abstract",
        "known": "the paper",
        "statement": "Half the layers with twice the heads keep the quality with 30 to 50 % fewer parameters.",
    }
    pairs = [pair for pair in grid_pairs(grids, is_twin) if pair.interval is not None]
    if not pairs:
        return Statement(**common, rule=None, verdict="not tested", finding="", numbers={}, missing=rows_in(grids))
    worse = [pair for pair in pairs if pair.is_worse]
    numbers = {}
    for pair in pairs:
        numbers |= pair.numbers(f"gain, {pair.metric}")
        numbers[f"{pair.grid}: share of the parameters"] = rounded(share_of(pair), 3)
    return Statement(
        **common,
        rule="worse in no grid, with a 95 % interval over the seeds that excludes 0: a lower bar than no loss",
        verdict=verdict(not worse),
        finding=f"Worse in {len(worse)} of {len(pairs)} grids; plus is better, and the share of the parameters: "
        + "; ".join(f"{pair.grid} {pair.metric} {pair.words} with {share_of(pair):.0%}" for pair in pairs)
        + ". Small models after short training, and where the interval is wide, not worse says little.",
        numbers=numbers,
    )


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
        "known": "asked here",
        "statement": "Twice the heads of half the size lower κ of trained models.",
    }
    quality = {
        "paper": PAPER,
        "place": "the finished grids: quality",
        "known": "asked here",
        "statement": "Runs with a lower κ, before or after training, are better: within a shape and between shapes.",
    }
    conclusion = conclude(grid_cells(grids))
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
        f"{doubling.pairs} pairs; {doubling.better} of these {doubling.lower_end} were better, too.",
        numbers=doubling._asdict(),
    )


def quality_statement(conclusion: Conclusion, common: dict) -> Statement:
    """Rank correlations: below 0, lower κ was better."""
    found = {
        f"{among}, κ at the {end}": correlations[end]
        for among, correlations in (("within a shape", conclusion.within), ("between shapes", conclusion.between))
        for end in correlations
    }
    found = {name: each for name, each in found.items() if each.value is not None}
    holds = [each.interval is not None and each.interval[1] < 0 for each in found.values()]
    numbers: dict[str, float | None] = {}
    for name, each in found.items():
        numbers[name] = rounded(each.value, 4)
        if each.interval is not None:
            numbers[f"{name}, low end"] = rounded(each.interval[0], 4)
            numbers[f"{name}, high end"] = rounded(each.interval[1], 4)
    return Statement(
        **common,
        rule="Spearman's correlation of κ and quality is below 0, its 95 % interval too, in all four",
        verdict=verdict(all(holds)),
        finding="; ".join(f"{name} {correlation_words(each)}" for name, each in found.items())
        + f"; {conclusion.runs} runs.",
        numbers=numbers,
    )
