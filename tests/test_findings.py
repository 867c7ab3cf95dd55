"""docs/findings.md and README's findings: the numbers again from the rows of the grids, by scipy alone."""

import csv
import json
import math
import re
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import pytest
from scipy import stats


CLONE = Path(__file__).parent.parent
FINDINGS = " ".join((CLONE / "docs/findings.md").read_text(encoding="utf-8").split())
README = " ".join((CLONE / "README.md").read_text(encoding="utf-8").split())
CURVES = "enwik8-text-causal-curves"
BUDGETS = ("1228800", "3072000", "6144000", "12288000")
Values = dict[str, float]  # of a shape, by seed


class Difference(NamedTuple):
    """Of two shapes over the seeds that both have, with its 95 % interval."""

    mean: float
    low: float
    high: float
    p: float


def reported(grid: str) -> dict[tuple[str, str], Values]:
    """(shape, tokens of its branch or "") → the values of the reported runs that finished."""
    found: dict[tuple[str, str], Values] = defaultdict(dict)
    with (CLONE / "model_cards/grids" / grid / "results.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["phase"] == "report" and row["status"] == "finished":
                assert row["seed"] not in found[row["shape"], row.get("branch", "")]
                found[row["shape"], row.get("branch", "")][row["seed"]] = float(row["value"])
    return found


def difference(own: Values, other: Values) -> Difference:
    """The first less the second."""
    seeds = sorted(own.keys() & other.keys())
    result = stats.ttest_rel([own[seed] for seed in seeds], [other[seed] for seed in seeds])
    low, high = result.confidence_interval()
    return Difference(mean(own[seed] - other[seed] for seed in seeds), low, high, result.pvalue)


def unsigned(value: Difference, digits: int = 3) -> str:
    """`0.060 (0.021 to 0.099)`, of a difference whose interval lies on one side of 0."""
    assert value.low * value.high > 0
    low, high = sorted((abs(value.low), abs(value.high)))
    return f"{abs(value.mean):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def signed(value: Difference) -> str:
    """`0.003 (−0.021 to +0.026)`: what the first has more, and its interval with signs."""
    return f"{value.mean:.3f} ({value.low:+.3f} to {value.high:+.3f})".replace("-", "−")


def minus(value: Difference) -> Difference:
    """The second less the first: how much better the first is where less is better."""
    return Difference(-value.mean, -value.high, -value.low, value.p)


SHAPES = {
    "8 × 3": ("gpt/mini", "1,337,280"),
    "8 × 6": ("gpt/many-heads-mini", "1,337,280"),
    "4 × 3": ("gpt/shallow-mini", "889,920"),
    "4 × 6": ("gpt/lean-mini", "889,920"),
    "8 × 3 with MLP 96": ("gpt/quarter-mlp-mini", "892,608"),
    "8 × 3 with MLP 192": ("gpt/half-mlp-mini", "1,040,832"),
    "12 × 4 of width 64": ("gpt/deep-narrow-mini", "894,848"),
    "9 × 4 of width 64": ("gpt/narrow-mini", "744,896"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_table_of_budgets(name):
    shape, parameters = SHAPES[name]
    values = [reported(CURVES)[shape, budget] for budget in BUDGETS]
    (seeds,) = {len(of_budget) for of_budget in values}
    losses = " | ".join(f"{mean(of_budget.values()):.3f}" for of_budget in values)
    assert f"| {name} | {parameters} | {losses} | {seeds} |" in FINDINGS


def test_all_planned_runs_have_run():
    runs = reported(CURVES)
    finished = sum(len(values) for (_, budget), values in runs.items() if budget == BUDGETS[-1])
    assert f"all {finished} planned runs, on one GPU" in FINDINGS
    with (CLONE / "model_cards/grids" / CURVES / "results.csv").open(newline="") as file:
        devices = {row["device"] for row in csv.DictReader(file) if row["phase"] != "tune"}
    assert devices == {"NVIDIA H200"}


def corrected(chances: list[float]) -> list[float]:
    """By Holm."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    scaled = [min(1.0, chances[place] * (len(chances) - rank)) for rank, place in enumerate(order)]
    return [accumulated for _, accumulated in sorted(zip(order, accumulate(scaled, max)))]


def chance_text(p: float) -> str:
    """`p 1.1e-4`, `p 0.55`."""
    if p < 0.001:
        return f"p {p:.1e}".replace("e-0", "e-")
    return f"p {p:.2g}"


def test_the_comparisons_over_the_length_of_training():
    runs = reported(CURVES)
    first, last = BUDGETS[0], BUDGETS[-1]

    def less(other: str, budget: str) -> Difference:
        return difference(runs["gpt/lean-mini", budget], runs[f"gpt/{other}", budget])

    others = ("mini", "shallow-mini", "quarter-mlp-mini", "deep-narrow-mini")
    claim, heads, control, deep = map(chance_text, corrected([less(other, last).p for other in others]))
    assert less("mini", first).mean < 0 < less("mini", last).mean
    behind, ahead = unsigned(less("mini", first)), unsigned(less("mini", last))
    told = f"8 × 3 is behind by {behind} after 1.2M and ahead by {ahead[:-1]}, {claim}) after 12.3M"
    assert told in FINDINGS and less("mini", last).mean > 4 * 0.02
    assert f"(seven seeds, corrected {claim}; a bigram" in README
    assert less("mini", BUDGETS[1]).mean < 0 < less("mini", BUDGETS[2]).mean  # it turns between these
    alone = less("shallow-mini", last)
    assert f"4 × 6 is worse by {signed(alone)[:-1]}, {heads}) after 12.3M" in FINDINGS
    assert alone.low > -0.02 and alone.high < 0.02 and "which is within ±0.02" in FINDINGS
    small, large = unsigned(less("quarter-mlp-mini", first)), signed(less("quarter-mlp-mini", last))
    assert less("quarter-mlp-mini", first).mean < 0
    assert f"4 × 6 is better by {small} after 1.2M and worse by {large[:-1]}, {control}) after 12.3M" in FINDINGS
    early, late = unsigned(less("deep-narrow-mini", first)), unsigned(less("deep-narrow-mini", last))
    assert f"4 × 6 is better by {early} after 1.2M and by {late[:-1]}, {deep}) after 12.3M" in FINDINGS
    assert less("deep-narrow-mini", last).high < 0 and f"narrower one is worse than it by {late[:5]}" in README
    many = unsigned(difference(runs["gpt/many-heads-mini", last], runs["gpt/mini", last]))
    assert f"6 heads are better than 3 by {many} after 12.3M" in FINDINGS


def test_27_million_tokens():
    """One seed, of another machine than the shorter runs."""
    longer, before = reported("enwik8-text-causal-27m"), reported(CURVES)
    deep, shallow, lean = (longer[f"gpt/{shape}", "27033600"]["11"] for shape in ("mini", "shallow-mini", "lean-mini"))
    assert all(len(longer[shape, "27033600"]) == 1 for shape in ("gpt/mini", "gpt/shallow-mini", "gpt/lean-mini"))
    assert f"8 × 3 has {deep:.3f}, 4 × 3 {shallow:.3f} and 4 × 6 {lean:.3f}; 4 × 6 is behind" in FINDINGS
    assert f"{lean:.3f}; 4 × 6 is behind 8 × 3 by {lean - deep:.3f}" in FINDINGS
    earlier = before["gpt/lean-mini", BUDGETS[-1]]["11"] - before["gpt/mini", BUDGETS[-1]]["11"]
    assert f"After 12.3M tokens 4 × 6 is behind by {earlier:.3f} in that seed" in FINDINGS
    assert f"After 27M tokens 4 × 6 has {lean:.3f} and 8 × 3 {deep:.3f} (one seed, on a CPU)" in README
    with (CLONE / "model_cards/grids/enwik8-text-causal-27m/results.csv").open(newline="") as file:
        spent = {row["shape"]: float(row["tokens_per_parameter"]) for row in csv.DictReader(file) if row["branch"]}
    told = "27M tokens, the text 1.3 times over, {:.0f} a parameter of 8 × 3 and {:.0f} of 4 × 6"
    assert told.format(spent["gpt/mini"], spent["gpt/lean-mini"]) in FINDINGS


def test_images_over_the_length_of_training():
    """Two seeds of each shape."""
    runs = reported("cifar10-curves")
    budgets = ("6489600", "19510400", "52000000")
    cells = {
        "mini": ("8 × 3", "906,922", 2),
        "many-heads-mini": ("8 × 6", "906,922", 2),
        "shallow-mini": ("4 × 3", "459,562", 2),
        "lean-mini": ("4 × 6", "459,562", 2),
    }
    for cell, (name, parameters, seeds) in cells.items():
        scores = [runs[f"vit/{cell}", budget] for budget in budgets]
        assert {len(of_seeds) for of_seeds in scores} == {seeds}
        line = " | ".join(f"{mean(of_seeds.values()):.3f}" for of_seeds in scores)
        assert f"| {name} | {parameters} | {line} | {seeds} |" in FINDINGS
    assert not runs["vit/half-mlp-mini", budgets[0]]

    def lead(other, budget, one="lean-mini"):
        """How much more a cell scores than another in each seed."""
        own = runs[f"vit/{one}", budget]
        return [own[seed] - runs[f"vit/{other}", budget][seed] for seed in ("11", "12")]

    early, late = (lead("mini", budget) for budget in (budgets[0], budgets[-1]))
    ahead, behind = ([f"{abs(each):.3f}" for each in leads] for leads in (early, late))
    assert min(early) > 0 > max(late)
    told = f"ahead of 8 × 3 by {' and '.join(ahead)} after 2 epochs and behind by {' and '.join(behind)} after 16"
    assert told in FINDINGS
    of_four, of_eight = (
        " and ".join(f"{each:+.3f}" for each in lead(few, budgets[-1], many))
        for few, many in (("shallow-mini", "lean-mini"), ("mini", "many-heads-mini"))
    )
    told = f"4 × 6 less 4 × 3 is {of_four} after 16 epochs, 8 × 6 less 8 × 3 {of_eight}:"
    assert told.replace("-", "−") in " ".join(FINDINGS.split())
    means = {cell: mean(runs[f"vit/{cell}", budgets[-1]].values()) for cell in ("lean-mini", "mini")}
    of_rows = math.sqrt(sum(score * (1 - score) for score in means.values()) / 10_000)
    assert f"two standard errors by the choice of test images being {2 * of_rows:.3f} at most" in FINDINGS
    scores = {
        cell: [f"{mean(runs[f'vit/{cell}', budget].values()):.3f}" for budget in (budgets[0], budgets[-1])]
        for cell in ("lean-mini", "mini")
    }
    first, last = zip(*scores.values())
    told = f"after 2 epochs 4 × 6 has accuracy {first[0]} and 8 × 3 {first[1]}, after 16 {last[0]} and {last[1]}"
    assert f"Two seeds on CIFAR-10 go the same way: {told}." in README


def test_the_tokens_a_parameter():
    with (CLONE / "model_cards/grids" / CURVES / "results.csv").open(newline="") as file:
        most = max(float(row["tokens_per_parameter"]) for row in csv.DictReader(file) if row["phase"] == "report")
    for page in (FINDINGS, README):
        assert f"at most {math.ceil(most)} tokens a parameter" in page


def test_gpt2_beside_the_baseline():
    ours, gpt2 = reported(CURVES), reported(f"{CURVES}-transformers")
    behind = {budget: difference(ours["gpt/mini", budget], gpt2["gpt/mini", budget]) for budget in BUDGETS}
    of_gpt2 = gpt2["gpt/mini", BUDGETS[-1]]
    assert list(of_gpt2) == ["11", "12", "13"] and f"LeanGPT is worse by {unsigned(behind[BUDGETS[-1]])}" in FINDINGS
    assert f"after 6.1M it was worse by {signed(behind[BUDGETS[2]])}" in FINDINGS
    claim = difference(ours["gpt/lean-mini", BUDGETS[-1]], ours["gpt/mini", BUDGETS[-1]])
    assert behind[BUDGETS[-1]].mean > claim.mean / 2 and "more than half of what 4 × 6 is behind 8 × 3" in FINDINGS
    assert f"end {behind[BUDGETS[-1]].mean:.3f} below LeanGPT's" in README
    own, theirs = ours["gpt/mini", BUDGETS[-1]].values(), of_gpt2.values()
    assert f"Against all seven seeds the difference is {mean(own) - mean(theirs):.3f}." in FINDINGS
    chance = stats.ttest_ind(list(own), list(theirs), equal_var=False).pvalue
    told = f"have {mean(theirs):.3f} after 12.3M tokens, less than any of the seven of LeanGPT (Welch's t test, p"
    assert f"{told} {chance:.4f})" in FINDINGS and max(theirs) < min(own) and len(own) == 7


@pytest.mark.parametrize(
    "grid, metric, pages",
    [
        (CURVES, min, {FINDINGS: ["A bigram has {}."], README: ["a bigram has {})"]}),
        ("listops-short-heads", max, {FINDINGS: ["the best simple guess has {}:"]}),
        ("sst2", max, {FINDINGS: ["A bag of tokens has {}."]}),
        ("sst2-curves", max, {FINDINGS: ["accuracy; a bag of tokens has {}:"]}),
        ("sst2-own-tokenizer", max, {FINDINGS: ["a bag of its tokens {}:"], README: ["has {} with a tokenizer of"]}),
    ],
)
def test_the_best_simple_guesses(grid, metric, pages):
    guesses = json.loads((CLONE / "model_cards/grids" / grid / "guesses.json").read_text())
    best = f"{metric(guess['value'] for guess in guesses):.3f}"
    for page, sentences in pages.items():
        for sentence in sentences:
            assert sentence.format(best) in page


def test_the_readme_has_the_longest_runs():
    losses = {key: f"{mean(values.values()):.3f}" for key, values in reported(CURVES).items()}
    lean, deep, shallow = (
        [losses[shape, budget] for budget in (BUDGETS[0], BUDGETS[-1])]
        for shape in ("gpt/lean-mini", "gpt/mini", "gpt/shallow-mini")
    )
    assert f"after 1.2M tokens is {lean[0]} for 4 × 6 and {deep[0]} for 8 × 3" in README
    assert f"after 12.3M {lean[1]} and {deep[1]} (seven seeds" in README
    runs = reported(CURVES)
    behind = signed(difference(runs["gpt/lean-mini", BUDGETS[-1]], runs["gpt/quarter-mlp-mini", BUDGETS[-1]]))
    has = f"8 × 3 with a smaller MLP has {losses['gpt/quarter-mlp-mini', BUDGETS[-1]]}"
    assert f"{has}: lower by {behind}, not significant after correction (p 0.083)" in README
    assert f"4 × 6 has {lean[1]}, 4 × 3 {shallow[1]}" in README


def test_the_earlier_grid_of_text():
    runs = {shape: values for (shape, _), values in reported("enwik8-text-causal").items()}
    deep, shallow = runs["gpt/mini"], runs["gpt/shallow-mini"]
    early = unsigned(difference(shallow, deep)).split(" ", 1)[1]
    told = f"is {mean(shallow.values()):.3f} for 4 × 3 and {mean(deep.values()):.3f} for 8 × 3 (difference {early[1:]}"
    assert told in FINDINGS and len(deep) == 7
    heads = signed(minus(difference(runs["gpt/lean-mini"], shallow)))
    assert f"4 × 6 is better than 4 × 3 by {heads}" in FINDINGS
    assert f"8 × 6 worse than 8 × 3 by {signed(difference(runs['gpt/many-heads-mini'], deep))}" in FINDINGS
    few = mean_by_seed(deep, shallow)
    many = mean_by_seed(runs["gpt/many-heads-mini"], runs["gpt/lean-mini"])
    assert f"worse with twice the heads by {signed(difference(many, few))}, which is within ±0.02" in FINDINGS
    more = [many[seed] - few[seed] for seed in few]
    above = stats.ttest_1samp(more, -0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(more, 0.02, alternative="less").pvalue
    assert f"(two one-sided tests, p {max(above, below):.4f})" in FINDINGS


def mean_by_seed(own: Values, other: Values) -> Values:
    """The mean of two shapes, seed by seed."""
    return {seed: (own[seed] + other[seed]) / 2 for seed in sorted(own)}


def test_the_seeds_that_were_added_to_the_earlier_grids():
    """The test of non-inferiority on them alone, corrected by Holm over both grids that they were added to."""
    chances = {}
    for grid, margin, sign in (("enwik8-text-causal", 0.02, -1), ("listops-short", 0.01, 1)):
        runs = {shape.split("/")[1]: values for (shape, _), values in reported(grid).items()}
        for shape in ("many-heads-mini", "shallow-mini", "lean-mini"):
            gained = [sign * (runs[shape][seed] - runs["mini"][seed]) for seed in "4567"]
            chances[grid, shape] = stats.ttest_1samp(gained, -margin, alternative="greater").pvalue
    ordered = sorted(chances, key=chances.__getitem__)
    scaled = [min(1, chances[name] * (len(chances) - place)) for place, name in enumerate(ordered)]
    corrected = dict(zip(ordered, accumulate(scaled, max)))
    assert f"p {corrected['enwik8-text-causal', 'shallow-mini']:.4f} (Holm)" in FINDINGS
    assert f"4 × 6 has p {corrected['enwik8-text-causal', 'lean-mini']:.4f}." in FINDINGS
    deep, shallow = (reported("enwik8-text-causal")[f"gpt/{name}", ""] for name in ("mini", "shallow-mini"))
    later = [{seed: values[seed] for seed in "4567"} for values in (shallow, deep)]
    assert f"4 × 3 ahead of 8 × 3 by {unsigned(difference(*later))}" in FINDINGS


def test_the_shorter_grid_of_listops():
    runs = {shape.removeprefix("bert/"): values for (shape, _), values in reported("listops-short").items()}
    deep, many, shallow, lean = (
        f"{median(runs[name].values()):.3f}" for name in ("mini", "many-heads-mini", "shallow-mini", "lean-mini")
    )
    text = f"the medians are {deep} for 8 × 3, {many} for 8 × 6, {shallow} for 4 × 3 and {lean} for 4 × 6"
    assert text in FINDINGS and f"did not train ({min(runs['mini'].values()):.3f})" in FINDINGS


def test_what_pretraining_was_worth():
    with_weights, without = reported("sst2"), reported("sst2-from-scratch")
    names = {"mini": "8 × 3", "many-heads-mini": "8 × 6", "shallow-mini": "4 × 3", "lean-mini": "4 × 6"}
    for shape, name in names.items():
        own, other = (grid[f"bert/{shape}", ""] for grid in (with_weights, without))
        means = f"{mean(own.values()):.3f} | {mean(other.values()):.3f}"
        assert f"| {name} | {means} | +{signed(difference(own, other))} |" in FINDINGS


def test_the_heads_of_listops():
    runs = {shape.removeprefix("bert/"): values for (shape, _), values in reported("listops-short-heads").items()}
    scores = {shape: f"{mean(values.values()):.3f}" for shape, values in runs.items()}
    assert all(len(values) == 10 for values in runs.values())
    four = [scores[shape] for shape in ("one-head-mini", "shallow-mini", "lean-mini", "twelve-heads-mini")]
    assert f"| 4 layers | {' | '.join(four)} |" in FINDINGS and f"have accuracy {', '.join(four)}, 8 layers" in README
    assert f"| 8 layers | – | {scores['mini']} | {scores['many-heads-mini']} | – |" in FINDINGS
    deep = f"8 layers with 3 and 6 {scores['mini']} and {scores['many-heads-mini']}"
    assert f"{deep} (ten seeds, 3,600 steps; " in README
    primary = difference(runs["lean-mini"], runs["shallow-mini"])
    assert f"better by {signed(primary)[:-1]}, p {primary.p:.2f})" in FINDINGS and f"(p {primary.p:.2f})" in README
    for own, other, told in (
        ("twelve-heads-mini", "shallow-mini", "4 × 12 scores {} higher than 4 × 3 ({})"),
        ("many-heads-mini", "lean-mini", "8 × 6 {} higher than 4 × 6 ({})"),
        ("twelve-heads-mini", "mini", "of the parameters of 8 × 3, scores {} higher ({})"),
    ):
        value, interval = signed(difference(runs[own], runs[other])).split(" ", 1)
        assert told.format(value, interval.strip("()")) in FINDINGS


def test_twelve_heads_have_half_the_parameters():
    sizes = {}
    with (CLONE / "model_cards/grids/listops-short-heads/results.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            sizes[row["shape"]] = int(row["parameters"])
    share = sizes["bert/twelve-heads-mini"] / sizes["bert/mini"]
    assert f"with {share:.0%} of the parameters of 8 × 3".replace("%", " %") in FINDINGS


def test_the_heads_and_layers_of_minilm():
    runs = {shape.split("/cells/")[1]: values for (shape, _), values in reported("minilm").items()}
    means = {cell: f"{mean(values.values()):.4f}" for cell, values in runs.items()}
    heads, layer = (difference(runs[cell], runs["3x12"]) for cell in ("3x24", "4x12"))
    told = [f"{gain.low:+.4f} to {gain.high:+.4f}" for gain in (heads, layer)]
    with_heads = f"with 24 heads each in place of 12 {means['3x24']} ({told[0]})"
    assert f"a cosine of {means['3x12']} to these; {with_heads}" in FINDINGS
    assert f"a fourth layer of the same parameters {means['4x12']} ({told[1]})" in FINDINGS
    assert f"A wider MLP of as many has {means['3x12-wide']}." in FINDINGS
    assert f"by {heads.mean:.4f}, a fourth layer" in README and f"trained weights, by {layer.mean:.4f} (" in README


def test_the_intervention_is_told_as_it_came_out():
    results = json.loads((CLONE / "model_cards/studies/conditioning/results.json").read_text())
    numbers = next(each["numbers"] for each in results["statements"] if "W + 1·O, which" in each["statement"])
    told = (
        r"an (\d+) times lower κ at the start, at equal norm, ended ([\d.]+) nats \[worse\]\([^)]*\) "
        r"\(([\d.]+) to ([\d.]+);"
    )
    times, *nats = re.search(told, FINDINGS).groups()
    assert times == f"{numbers['κ moved by']:.0f}"
    assert nats == [f"{numbers[name]:.3f}" for name in ("difference of loss", "low end", "high end")]
    assert numbers["W + 1·I: κ at the end"] > numbers["W + 1·O: κ at the end"]  # "by then with the higher κ"


def test_a_tokenizer_of_its_own():
    runs = reported("sst2-own-tokenizer")
    deep, lean = (f"{mean(runs[f'bert/{shape}', ''].values()):.3f}" for shape in ("mini", "lean-mini"))
    assert f"new weights have {deep} (8 × 3) and {lean} (4 × 6)" in FINDINGS


def test_images_after_two_epochs():
    runs = reported("cifar10")
    names = {"mini": "8 × 3", "many-heads-mini": "8 × 6", "shallow-mini": "4 × 3", "lean-mini": "4 × 6"}
    told = [f"{name} {mean(runs[f'vit/{shape}', ''].values()):.3f}" for shape, name in names.items()]
    assert f"accuracy: {', '.join(told)}." in FINDINGS


MASKED = "enwik8-text-masked-curves"
MASKED_BUDGETS = ("1536000", "3072000", "6144000")


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [("8 × 3", "mini", "1,351,072"), ("4 × 3", "shallow-mini", "903,712"), ("4 × 6", "lean-mini", "903,712")],
)
def test_the_budgets_of_masked_text(name, shape, parameters):
    values = [reported(MASKED)[f"bert/{shape}", budget].values() for budget in MASKED_BUDGETS]
    losses = " | ".join(f"{mean(of_budget):.3f}" for of_budget in values)
    assert f"| {name} | {parameters} | {losses} |" in FINDINGS and {len(of_budget) for of_budget in values} == {3}


def test_the_comparisons_of_masked_text():
    runs = reported(MASKED)
    first, _, last = MASKED_BUDGETS

    def less(other: str, budget: str) -> Difference:
        return difference(runs["bert/lean-mini", budget], runs[f"bert/{other}", budget])

    claim, heads = corrected([less("mini", last).p, less("shallow-mini", last).p])
    early, late, alone = less("mini", first), less("mini", last), minus(less("shallow-mini", last))
    told = f"4 × 6 is better than 8 × 3 by {unsigned(early)} after 1.5M tokens and worse by {signed(late)[:-1]}, "
    assert early.high < 0 and told + f"{chance_text(claim)}, corrected for two) after 6.1M" in FINDINGS
    assert f"it is better than 4 × 3 by {signed(alone)[:-1]}, {chance_text(heads)}) there" in FINDINGS


def test_masked_text_is_behind_a_bigram():
    guesses = json.loads((CLONE / "model_cards/grids" / MASKED / "guesses.json").read_text())
    by_name = {guess["name"]: guess["value"] for guess in guesses}
    bigram = by_name["bigram, all training rows"]
    assert f"A bigram has {bigram:.3f}, the frequencies of the tokens alone {by_name['frequencies']:.3f}" in FINDINGS
    last = [mean(values.values()) for (_, budget), values in reported(MASKED).items() if budget == MASKED_BUDGETS[-1]]
    (behind,) = {f"{loss - bigram:.1f}" for loss in last}
    assert f"is {behind} worse than a bigram" in README


def test_what_masked_text_was_worth_by_two_rates():
    tuned, lower = reported("sst2-curves"), reported("sst2-curves-lower-rate")
    for name, shape in (("8 × 3", "mini"), ("4 × 3", "shallow-mini"), ("4 × 6", "lean-mini")):
        means = (f"{mean(grid[f'bert/{shape}', ''].values()):.3f}" for grid in (tuned, lower))
        assert f"| {name} | {' | '.join(means)} |" in FINDINGS
    failed = tuned["bert/mini", ""].values()
    assert f"their seeds have {min(failed):.3f} to {max(failed):.3f}." in FINDINGS and len(failed) == 3
    deep, heads = (
        difference(lower["bert/lean-mini", ""], lower[f"bert/{other}", ""]) for other in ("mini", "shallow-mini")
    )
    _, chance = corrected([deep.p, heads.p])
    told = f"is better than 8 × 3 by {signed(deep)} and than 4 × 3 by {signed(heads)[:-1]}; {chance_text(chance)}, "
    assert told + "corrected for two)" in FINDINGS


def test_single_seeds():
    stories, images = (reported(grid) for grid in ("tinystories", "cifar10-long"))
    behind = mean(stories["gpt/lean-mini", ""].values()) - mean(stories["gpt/mini", ""].values())
    less = mean(images["vit/mini", ""].values()) - mean(images["vit/lean-mini", ""].values())
    assert f"8 × 3 leads 4 × 6 by {less:.3f}, on TinyStories by {behind:.3f} in loss" in FINDINGS


def test_what_a_short_warm_up_cost():
    found = [mean(reported(f"enwik8-text-masked{kind}")["bert/mini", ""].values()) for kind in ("", "-warmup-100")]
    assert "cost eight layers {:.3f} ({:.3f}, not {:.3f})".format(found[0] - found[1], *found) in FINDINGS
