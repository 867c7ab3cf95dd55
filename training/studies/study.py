"""What every study shares: its table of statements, its figure, statistics, and the rows of the finished grids.

A study is a module whose docstring says what the paper states, with Settings (those of the published results), QUICK
(those that only check the code) and `run(study, settings)`, which fills the table and the figure.
"""

import importlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.files import read_json, whole_folder, write_bytes, write_json
from modeling_leaner.shapes import load_config

from ..running.results import code_commit, environment, machine_name


GRIDS_FOLDER = Path("model_cards/grids")  # of the working folder
FACTOR = 2.0  # between learning rates that are tried
BYTES = 256  # the vocabulary of a text of bytes
SHOWN = 6  # numbers of a statement that the page has; results.json has all

Outcome = Literal["agrees", "disagrees", "undecided", "not tested"]
"""Undecided: tested, and the numbers show neither that it holds nor that it does not."""
Numbers = dict[str, Any]


class Study:
    """The table and the figure of a study, filled as it runs."""

    def __init__(self) -> None:
        self.statements: list[dict[str, Any]] = []
        self.panels: list[dict[str, Any]] = []

    def add(self, source: str, statement: str, rule: str, verdict: bool | Outcome, numbers: Numbers) -> None:
        """Adds a statement, and prints its verdict.

        Args:
            source: place in the paper; or that it is quoted second-hand, derived here or asked here.
            rule: when the numbers agree with it, fixed before they were read.
            numbers: behind the verdict, stored to six digits; None if a run did not get so far or rank is lost.
        """
        if isinstance(verdict, bool):
            verdict = "agrees" if verdict else "disagrees"
        numbers = {name: rounded(value) if isinstance(value, float) else value for name, value in numbers.items()}
        row = {"source": source, "statement": statement, "rule": rule, "verdict": verdict, "numbers": numbers}
        self.statements.append(row)
        print(f"{verdict}: {statement} {in_words(numbers)}", flush=True)

    def plot(self, title: str, x: str, y: str, lines: list[dict[str, Any]], log: str = "") -> None:
        """Adds a panel of `line`s to the figure; `log` names the axes with a logarithmic scale."""
        self.panels.append({"title": title, "x": x, "y": y, "log": log, "lines": lines})


def run_study(name: str, is_quick: bool, output: Path) -> None:
    """Runs a study, and writes its new folder: results.json, README.md and figure.png, whole or not at all."""
    module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
    settings = module.QUICK if is_quick else module.Settings()
    study = Study()
    torch.set_num_threads(1)  # on one thread products of small matrices are fastest
    with whole_folder(output) as folder:
        folder.mkdir(parents=True)
        start = sum(os.times()[:4])
        code_commit()  # files may change during the run
        module.run(study, settings)
        results = {
            "study": name,
            "command": f"leaner study {name}" + (" --quick" if is_quick else ""),
            "settings": asdict(settings),
            "statements": study.statements,
            "panels": study.panels,
            "seconds": round(sum(os.times()[:4]) - start, 1),  # of the processor
            "environment": environment(),
        }
        write_json(folder / "results.json", results)
        write_bytes(folder / "README.md", page(module.__doc__, results).encode())
        draw(study.panels, folder / "figure.png")
    print(f"{len(study.statements)} statements in {results['seconds']:.0f} s of processor time: {output}")
    if is_quick:
        print("--quick checks the code: its verdicts do not count.")


def in_words(numbers: Numbers) -> str:
    words = [f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in numbers.items()]
    return "; ".join(words[:SHOWN]) + ("; …" if len(words) > SHOWN else "")


def page(about: str, results: dict[str, Any]) -> str:
    """README.md: what the papers state, the figure, and the table."""
    title, _, text = about.partition("\n\n")
    rows = ["| statement | source | agrees if | verdict | numbers |", "| --- | --- | --- | --- | --- |"]
    for each in results["statements"]:
        cells = (each["statement"], each["source"], each["rule"], f"**{each['verdict']}**", in_words(each["numbers"]))
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    software = results["environment"]
    machine = machine_name(software["processor"], software["threads"])
    end = f"`{results['command']}`: {results['seconds']:.0f} s of processor; {machine}; torch {software['torch']}."
    parts = (f"# {title}", text.strip(), f"![{results['study']}](figure.png)", "\n".join(rows), end)
    return "\n\n".join(parts) + "\n"


def draw(panels: list[dict[str, Any]], path: Path) -> None:
    """All panels, two a row; a band from the least to the greatest of several trials."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / 2)
    figure = Figure((10, 3.2 * rows), layout="constrained")
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axis, panel in zip(axes, panels):
        for each in panel["lines"]:
            (drawn,) = axis.plot(each["x"], each["y"], ".-", label=each["label"], linewidth=1.2)
            axis.fill_between(each["x"], each["low"], each["high"], color=drawn.get_color(), alpha=0.15)
        axis.set(xlabel=panel["x"], ylabel=panel["y"], **{f"{name}scale": "log" for name in panel["log"]})
        axis.set_title(panel["title"], fontsize=9)
        axis.legend(fontsize=7)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.savefig(path, dpi=75)


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, new tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Numbers and verdicts.


def rounded(value: float) -> float:
    """To six significant digits: what is stored."""
    return float(f"{value:.6g}")


def line(label: str, x: Sequence[float], values: Sequence[Tensor | Sequence[float]]) -> dict[str, Any]:
    """Of a panel: at each x the mean over the trials (R,), with the least and the greatest."""
    y = [[float(one) for one in each] for each in values]
    return {
        "label": label,
        "x": list(x),
        "y": [rounded(sum(each) / len(each)) for each in y],
        "low": [rounded(min(each)) for each in y],
        "high": [rounded(max(each)) for each in y],
    }


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of ln y over ln x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def falls(values: Sequence[float]) -> bool:
    """Whether each is below the one before."""
    return all(later < earlier for earlier, later in zip(values, values[1:]))


def most(trials: int) -> int:
    """How many of the trials are most of them: four of five, and all of fewer than five."""
    return max(trials - trials // 5, 1)


def by_interval(interval: Sequence[float] | None) -> Outcome:
    """Of an effect that is stated to be above 0, by its 95 % interval; undecided if that includes 0, or is None."""
    if interval is None or interval[0] <= 0 <= interval[1]:
        return "undecided"
    return "agrees" if interval[0] > 0 else "disagrees"


def negated(interval: Sequence[float] | None) -> tuple[float, float] | None:
    """Of the opposite effect."""
    return None if interval is None else (-interval[1], -interval[0])


def together(outcomes: Collection[Outcome]) -> Outcome:
    """Of what is stated of all: agrees if all agree, disagrees if one disagrees, else undecided."""
    if not outcomes:
        return "not tested"
    if "disagrees" in outcomes:
        return "disagrees"
    return "agrees" if set(outcomes) == {"agrees"} else "undecided"


def by_majority(outcomes: Sequence[Outcome]) -> Outcome:
    """What more than half are; else undecided."""
    if not outcomes:
        return "not tested"
    above_half = [each for each in ("agrees", "disagrees") if outcomes.count(each) > len(outcomes) / 2]
    return above_half[0] if above_half else "undecided"


def paired(values: Sequence[float], others: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """The mean of values − others, pair by pair, and its 95 % t interval; None of one pair."""
    from scipy.stats import ttest_1samp  # takes seconds to import

    differences = np.subtract(values, others)
    if len(differences) < 2:
        return float(differences.mean()), None
    low, high = ttest_1samp(differences, 0).confidence_interval()
    return float(differences.mean()), (float(low), float(high))


# Small language models of bytes.


def byte_config(**sizes: Any) -> LeanGPTConfig:
    """Without dropout, which would hide small differences."""
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return LeanGPTConfig(vocab_size=BYTES, bos_token_id=None, eos_token_id=None, **drops, **sizes)


def tune(loss_at: Callable[[float], float], rates: Sequence[float], more: int) -> dict[float, float]:
    """Losses by learning rate: of all `rates`, and on while the best lies at an edge, at most so many more.

    A loss that is not finite counts as the worst.
    """
    losses: dict[float, float] = {}
    due = list(rates)
    while due and len(losses) < len(rates) + more:
        for rate in due:
            loss = loss_at(rate)
            losses[rate] = loss if math.isfinite(loss) else math.inf
        best = best_rate(losses)
        beyond = {min(losses): best / FACTOR, max(losses): best * FACTOR}
        due = [beyond[best]] if best in beyond else []
    return losses


def best_rate(losses: dict[float, float]) -> float:
    return min(losses, key=losses.__getitem__)


def bigram_nats(before: Tensor, after: Tensor) -> Tensor:
    """−ln of the share that each byte has after each other one, (256, 256), float64.

    Args:
        before, after: (N) int64, the bytes of a text and those that follow them.
    """
    counts = torch.bincount(before * BYTES + after, minlength=BYTES**2).view(BYTES, BYTES).double() + 0.1  # smoothed
    return -(counts / counts.sum(dim=1, keepdim=True)).log()


# Pairs of shapes in the finished grids.


@dataclass(frozen=True)
class GridPair:
    """A shape against another of one grid. `gain` and its interval are in the metric's units, plus if it is better.

    `interval` is the 95 % one over the seeds; `share` the parameters of the shape over those of the other, as trained.
    """

    grid: str
    metric: str
    other: LeanConfig
    shape: LeanConfig
    gain: float
    interval: tuple[float, float]
    share: float

    @property
    def name(self) -> str:
        """The grid with both shapes, layers × heads × head size: a grid may have several pairs."""
        shapes = (f"{c.num_hidden_layers}×{c.num_attention_heads}×{c.head_dim}" for c in (self.other, self.shape))
        return f"{self.grid} {' → '.join(shapes)}"

    def numbers(self, name: str) -> dict[str, float]:
        """The gain by a name, and the ends of its interval."""
        low, high = self.interval
        return {f"{self.name}: {name}": self.gain, f"{self.name}: low end": low, f"{self.name}: high end": high}


def grid_pairs(is_pair: Callable[[LeanConfig, LeanConfig], bool], more: str | None = None) -> Iterator[GridPair]:
    """The shapes of all grids for which `is_pair(shape, baseline)` holds, against the baseline, over several seeds.

    With `more` it is the one with more of that key against the one with less. Not of grids whose shapes are cuts of a
    trained model: what they compare did not begin alike.
    """
    for path in sorted(GRIDS_FOLDER.glob("*/summary.json")):
        summary = read_json(path)
        for cell in [] if summary["cuts"] else summary["shapes"]:
            shape, other = load_config(cell["shape"]), load_config(summary["baseline"])
            if cell["interval"] is None or not is_pair(shape, other):
                continue
            sign = 1 if summary["higher_is_better"] else -1
            share = cell["parameters_over_baseline"]
            if more is not None and getattr(shape, more) < getattr(other, more):
                shape, other, sign, share = other, shape, -sign, 1 / share
            low, high = sorted(sign * value for value in cell["interval"])
            yield GridPair(
                path.parent.name, summary["metric"], other, shape, sign * cell["difference"], (low, high), share
            )


def alike(one: LeanConfig, other: LeanConfig, *names: str) -> bool:
    """Whether two shapes of one family agree in width, MLP and these keys."""
    keys = ("model_type", "hidden_size", "intermediate_size", *names)
    return all(getattr(one, name) == getattr(other, name) for name in keys)
