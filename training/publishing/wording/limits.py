"""The limits of what a card shows."""

from ...experiments.run_statistics import MAX_P, MIN_PAIRS
from ...records import Evidence, PublishedResults, TuningSettings
from ...tasks.registry import TASKS
from .amounts import is_under_way, millions, seed_counts
from .provenance import overrides_listed, rows_of


def tuning_seeds(tuning: TuningSettings) -> str:
    """`seed 101`, `seeds 101, 102`; cards from before there could be several hold `seed` alone."""
    seeds = tuning.seeds
    if not seeds:
        return f"seed {tuning.seed}"
    listed = ", ".join(map(str, seeds))
    if len(seeds) == 1:
        return f"seed {listed}"
    return f"seeds {listed}"


def unsound(reason: str) -> str:
    """Why the rates may not be the best, as a sentence."""
    return f"It may not be the best: {reason}."


def chosen(evidence: Evidence, unit: str) -> str:
    """How the learning rates were chosen."""
    tuning = evidence.tuning
    if tuning is None:
        text = "The learning rate was the same for every cell and was not tuned"
        if evidence.unsound_tuning is not None:
            return f"{text} by the grid. {unsound(evidence.unsound_tuning)}"
        return f"{text}; nor was anything else."
    rates = ", ".join(f"{rate:g}" for rate in evidence.learning_rates)
    overrides = overrides_listed(tuning.overrides)
    text = (
        f"Only the learning rate was tuned for each cell, among {rates}, with {tuning_seeds(tuning)} on "
        f"{tuning.holdout:,} {unit} of the training split that are not reported"
    )
    if overrides:
        text += f", in runs of {overrides}, which may favour what learns quickly"
    text += "."
    if evidence.unsound_tuning is not None:
        text += f" {unsound(evidence.unsound_tuning)}"
    return text


def seeds_limit(evidence: Evidence, has_log: bool) -> str:
    """How many seeds there are, and what a verdict would need; `has_log`: the project has one of its grids."""
    seeds = len(evidence.seeds)
    count = seed_counts(evidence)
    if is_under_way(evidence):
        count += f" planned, {min(cell.n for cell in evidence.cells)} or more finished"
    margin = "a margin"
    if evidence.margin is not None:
        margin += f" of {evidence.margin:g}"
    rule = f"p < {MAX_P:g} against {margin} fixed before the first run, corrected over the tasks"
    if seeds < MIN_PAIRS:
        return f"Seeds a cell: {count}. “No loss of quality” would need {MIN_PAIRS} or more, and {rule}."
    text = (
        f"Seeds a cell: {count}. “No loss of quality” needs {rule}: the project's index of all grids decides it, not "
        "this card"
    )
    if has_log:
        text += "; whether seeds were added after others had been seen is in the project's log"
    return f"{text}."


def sizes_tested(evidence: Evidence) -> str:
    """`One width (96), one MLP width (384)`, or the several that there are."""
    widths = sorted({cell.width for cell in evidence.cells})
    mlps = sorted({cell.mlp for cell in evidence.cells})
    text = f"Widths {', '.join(map(str, widths))}"
    if len(widths) == 1:
        text = f"One width ({widths[0]})"
    if len(mlps) == 1:
        return f"{text}, one MLP width ({mlps[0]})"
    return f"{text}, MLP widths {', '.join(map(str, mlps))}"


def length_tested(evidence: Evidence) -> str:
    """How long the training was, at most."""
    if evidence.curves is None:
        return "one length of training"
    return f"at most {millions(evidence.longest.branch)} tokens of training"


def untested(evidence: Evidence, results: PublishedResults) -> list[str]:
    """What a card's numbers do not show, a sentence each."""
    sentences = [
        f"{sizes_tested(evidence)}, one recipe and {length_tested(evidence)}; larger "
        "models and longer training may order the cells otherwise.",
        seeds_limit(evidence, results.is_own),
        chosen(evidence, rows_of(results)),
        "Speed on accelerators, long inputs, and robustness to other data.",
    ]
    if TASKS[results.task].is_scored_by_token and not results.continuations:
        sentences.append("What the model has learned by heart from its training text.")
    return sentences
