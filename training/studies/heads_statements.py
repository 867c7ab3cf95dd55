"""Verdicts on figures 2 to 5 of Heads-Opt, from the training runs of the study heads-optimization."""

import math

from ..records import Statement
from .heads_curves import (
    ADAM,
    CONSTANT,
    LOOKS,
    PAPER,
    ROOT,
    WITH_MOMENTUM,
    Curves,
    compare,
    compared_steps,
    speed_statement,
)
from .trials import most, rounded, slope, verdict


MIXTURE = "tokenized mixture"
PLANTED = "planted head"
STARTS = ("zero", "random")
FIGURES = {  # data and optimiser → place in the paper, and what it says of more heads
    (MIXTURE, CONSTANT): ("figure 2", "slower"),
    (MIXTURE, ROOT): ("figure 3", "faster"),
    (MIXTURE, ADAM): ("figure 3", "faster"),
    (PLANTED, WITH_MOMENTUM): ("figure 5", "faster"),
    (PLANTED, ADAM): ("figure 5", "faster"),
}
ONLY_DRAWN = ((PLANTED, ROOT),)  # figure 4, of which no outcome is known here
TREND = -0.9  # slope of ln loss over ln t, at most, that counts as O(1/t)
SMALL = 1 / 3  # of ln 2, the loss of a model that says nothing

Runs = dict[tuple[str, str, str], Curves]  # by data, optimiser and start


def speed_statements(runs: Runs) -> list[Statement]:
    """Figures 2, 3 and 5, from zero and then from random weights."""
    found = []
    for start in STARTS:
        for (data, optimiser), (place, expected) in FIGURES.items():
            found.append(speed_statement(runs[data, optimiser, start], expected, place))
    return found


def trend_statement(runs: Runs) -> Statement:
    """The O(1/t) trend of figure 2, as an upper bound."""
    curves = runs[MIXTURE, CONSTANT, "zero"]
    slopes = {}
    for heads, readings in curves.readings.items():
        late = [reading for reading in readings if reading.step >= readings[-1].step * LOOKS[1] - 1]
        losses = [reading.train_loss.mean().item() for reading in late]
        slopes[f"slope with H = {heads}"] = slope([reading.step for reading in late], losses)
    span = f"{min(slopes.values()):.2f} to {max(slopes.values()):.2f}"
    return Statement(
        paper=PAPER,
        place="figure 2",
        whose="second-hand",
        statement=f"The training loss falls as O(1/t): {MIXTURE}, {CONSTANT}, from zero weights.",
        rule=f"slope of ln loss over ln t in the last two thirds of the steps at most {TREND} for every H",
        verdict=verdict(max(slopes.values()) <= TREND),
        finding=f"Slopes of {span} over numbers of heads; 1/t has −1.",
        numbers=slopes,
    )


def realizable_statement(runs: Runs) -> Statement:
    """Training to a small loss, as the guarantees say without constants known here."""
    shares = {}
    for (data, optimiser, start), curves in runs.items():
        for heads, readings in curves.readings.items():
            share = readings[-1].train_loss / math.log(2)
            shares[f"{data}, {optimiser}, {start}, H = {heads}"] = rounded(share.max().item())
    return Statement(
        paper=PAPER,
        place="training guarantee",
        whose="asked here",
        statement="Every training of both data models comes below a third of ln 2, from both starts. (The guarantee "
        "has conditions that are not known here, so this is not its test.)",
        rule="in every trial the loss at the end is below a third of ln 2, that of a model which says nothing",
        verdict=verdict(max(shares.values()) < SMALL),
        finding=f"In {sum(share < SMALL for share in shares.values())} of {len(shares)} settings in every trial; the "
        f"largest loss is {max(shares.values()):.2g} ln 2 ({max(shares, key=shares.get)}).",
        numbers=shares,
    )


def alignment_statement(runs: Runs) -> Statement:
    """Figure 4, as a question."""
    rises = []
    numbers = {}
    for start in STARTS:
        curves = runs[PLANTED, ROOT, start]
        for heads, readings in curves.readings.items():
            first = next(reading for reading in readings if reading.step == compared_steps(readings[-1].step)[0])
            rises.append(bool((readings[-1].alignment > first.alignment).all()))
            end = readings[-1].alignment.mean().item()
            numbers[f"alignment with H = {heads} from {start} weights"] = rounded(end)
    heads = runs[PLANTED, ROOT, "zero"].readings
    few, many = min(heads), max(heads)
    ends = {
        (start, heads): runs[PLANTED, ROOT, start].at_end(heads, "alignment").mean().item()
        for start in STARTS
        for heads in (few, many)
    }
    words = "; ".join(
        f"from {start} weights {ends[start, few]:.2f} with H = {few}, {ends[start, many]:.2f} with H = {many}"
        for start in STARTS
    )
    return Statement(
        paper=PAPER,
        place="figure 4",
        whose="asked here",
        statement=f"The heads turn towards the planted one: {PLANTED}, {ROOT}. The paper plots it; its outcome is "
        "not known here.",
        rule="mean cosine higher at the end than after a tenth of the steps in every trial, for every H and both "
        "starts",
        verdict=verdict(all(rises)),
        finding=f"Mean cosine of W_h with W* at the end: {words}.",
        numbers=numbers,
    )


def attention_statement(runs: Runs) -> Statement:
    """Attention on the relevant tokens, plotted in figures 2 and 3, as a question."""
    numbers = {}
    fewer = []
    for (data, optimiser, start), curves in runs.items():
        if data == MIXTURE and start == "zero":
            ends = {heads: curves.at_end(heads, "relevant_mass").mean().item() for heads in curves.readings}
            fewer.append(ends[max(ends)] < ends[min(ends)])
            for heads, mass in ends.items():
                numbers[f"mass with H = {heads}, {optimiser}"] = rounded(mass)
    least = min(numbers.values())
    greatest = max(numbers.values())
    return Statement(
        paper=PAPER,
        place="figures 2, 3",
        whose="asked here",
        statement=f"More heads put more attention on the relevant tokens: {MIXTURE}, from zero weights. The paper "
        "plots it; its outcome is not known here.",
        rule="mean mass at the end higher with the most heads than with the fewest, for every optimiser",
        verdict=verdict(not any(fewer)),
        finding=f"Lower with the most heads in {sum(fewer)} of {len(fewer)} optimisers; {least:.2f} to "
        f"{greatest:.2f} in all.",
        numbers=numbers,
    )


def test_loss_statement(runs: Runs) -> Statement:
    """Whether what is faster in training is better on test examples, as a question."""
    better = {}
    for (data, optimiser), (_, expected) in FIGURES.items():
        if expected == "faster":
            found = compare(runs[data, optimiser, "zero"], "test_loss")
            better[f"{data}, {optimiser}: trials with lower test loss at the end"] = found.lower[-1]
    trials = found.trials
    agree = sum(count >= most(trials) for count in better.values())
    return Statement(
        paper=PAPER,
        place="figures 3, 5",
        whose="asked here",
        statement="Where more heads are said to be faster, their test loss at the end is lower, too (from zero "
        "weights).",
        rule=f"in {most(trials)} of {trials} trials, for every data model and optimiser of figures 3 and 5",
        verdict=verdict(agree == len(better)),
        finding=f"In {agree} of {len(better)}: "
        + "; ".join(f"{name.partition(':')[0]} {count} of {trials}" for name, count in better.items())
        + ".",
        numbers=better,
    )
