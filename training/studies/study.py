"""What every study shares: statements with their verdicts, rows of finished grids, and the folder that is written.

A study is a module with STUDY; results.json has everything, README.md and the figure are made of it alone.
"""

import importlib
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.files import read_json, whole_folder, write_bytes, write_json
from modeling_leaner.shapes import load_config

from ..running.environment import code_commit, environment, machine_name


STUDIES = ("conditioning", "depth-width", "heads-optimization", "low-rank")
GRIDS_FOLDER = Path("model_cards/grids")  # of the working folder
OF_QUICK = "`--quick` checks the code, not the statements: its verdicts do not count."
FACTOR = 2.0  # between learning rates that are tried
BYTES = 256  # the vocabulary of a text of bytes
SMOOTHING = 0.1  # added to every count of a bigram

Whose = Literal["the paper", "second-hand", "derived here", "asked here"]
"""Whose a statement is: read in the paper; in what others quote of it; derived here; a question of this project."""
Outcome = Literal["agrees", "disagrees", "undecided", "not tested"]
"""Undecided: tested, and the numbers show neither that it holds nor that it does not."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Statement:
    """One statement and what was found.

    Attributes:
        paper: short name and arXiv number.
        place: section, figure, table or theorem.
        rule: when the numbers agree with it, fixed before they were read; None if it is not tested.
        finding: in words; for what is not tested, what is known instead.
        numbers: behind the verdict; None if a run did not get so far, or a matrix has lost rank.
        missing: for what is not tested, the data or the core-hours that a test needs.
    """

    paper: str
    place: str
    whose: Whose
    statement: str
    rule: str | None
    verdict: Outcome
    finding: str
    numbers: dict[str, int | float | None]
    missing: str | None = None

    @property
    def found(self) -> str:
        """What was found, or what the test needs."""
        return self.finding if self.missing is None else f"{self.finding} Needs: {self.missing}."


@dataclass(frozen=True)
class Line:
    """y over x, with a band from `low` to `high` for several trials."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


@dataclass(frozen=True)
class FigurePanel:
    """One panel of a study's figure; `level` is a y to compare with."""

    title: str
    x: str
    y: str
    lines: list[Line]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    level: float | None = None


@dataclass(frozen=True)
class Findings:
    """What a study found."""

    statements: list[Statement]
    panels: list[FigurePanel]
    seeds: list[int]


@dataclass(frozen=True)
class Study:
    """A study: `about` tells what the papers state; `run` takes the settings of a size."""

    name: str
    title: str
    about: str
    quick: Any
    default: Any
    run: Callable[[Any, Progress], Findings]


def load_study(name: str) -> Study:
    """A study of STUDIES."""
    return importlib.import_module(f".{name.replace('-', '_')}", __package__).STUDY


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, PyTorch has one thread, on which products of small matrices are fastest."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, new tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def conduct(study: Study, size: str, settings: Any, progress: Progress) -> dict[str, Any]:
    """Runs a study: the content of results.json."""
    start = processor_seconds()
    code_commit()  # files may change during the run
    with one_thread():
        findings = study.run(settings, progress)
        machine = environment()
    return {
        "study": study.name,
        "title": study.title,
        "size": size,
        "command": f"leaner study {study.name}" + (" --quick" if size == "quick" else ""),
        "settings": asdict(settings),
        "seeds": findings.seeds,
        "statements": [document(each) for each in findings.statements],
        "panels": [document(each) for each in findings.panels],
        "seconds": round(processor_seconds() - start, 1),
        "environment": machine,
        "tested": sum(each.verdict != "not tested" for each in findings.statements),
    }


def document(record: Statement | FigurePanel) -> dict[str, Any]:
    """For JSON, without what is left out."""
    left_out = {"missing": None, "low": None, "high": None, "level": None, "x_scale": "linear", "y_scale": "linear"}
    known = asdict(
        record, dict_factory=lambda items: {k: v for k, v in items if k not in left_out or v != left_out[k]}
    )
    return known


def run_study(name: str, is_quick: bool, output: Path) -> None:
    """Runs a study and writes its new folder, whole or not at all; prints each statement with its verdict.

    Raises:
        OSError: the folder cannot be written, which is tried before the study runs.
        ValueError: what the study reads does not fit.
    """
    study = load_study(name)
    with whole_folder(output) as folder:
        folder.mkdir(parents=True)
        size, settings = ("quick", study.quick) if is_quick else ("default", study.default)
        results = conduct(study, size, settings, lambda line: print(line, flush=True))
        for each in results["statements"]:
            print(f"{each['verdict']}: {each['statement']} {Statement(**each).found}")
        write_json(folder / "results.json", results)
        write_pages(study, folder)
    if is_quick:
        print(OF_QUICK)
    count = len(results["statements"])
    print(
        f"{results['tested']} of {count} statements tested in {results['seconds']:.0f} s of processor time: {output}"
    )


def write_pages(study: Study, folder: Path) -> None:
    """README.md and figure.png of a folder with results.json."""
    results = read_json(folder / "results.json")
    write_bytes(folder / "README.md", study_page(study, results).encode())
    draw(results["panels"], folder / "figure.png")


def study_page(study: Study, results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    lines = ["| statement | whose | verdict | what was found |", "| --- | --- | --- | --- |"]
    for each in results["statements"]:
        cells = (each["statement"], each["whose"], f"**{each['verdict']}**", Statement(**each).found)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    software = results["environment"]
    machine = machine_name(software["processor"], software["threads"])
    summary = f"{results['title']}. {results['tested']} of {len(results['statements'])} statements are tested."
    parts = [
        f"# Study: {study.name}",
        summary + (f" {OF_QUICK}" if results["size"] == "quick" else ""),
        f"**What is stated.** {study.about}",
        f"![{results['title']}](figure.png)",
        "*Second-hand* is what others quote of a paper whose own text was not seen.",
        "\n".join(lines),
        f"Run it again with `{results['command']}`, in a clone: the finished grids are read from `model_cards/grids`. "
        f"`leaner study {study.name} --quick` takes less than two minutes and checks the code. These results took "
        f"{results['seconds']:.0f} s of processor time; {machine}; torch {software['torch']}. `results.json` has "
        "the rule and the numbers behind each verdict, the seeds and all settings. What was expected, what changed "
        "and why: "
        "[the log](../../LOG.md).",
    ]
    return "\n\n".join(parts) + "\n"


def draw(panels: list[dict[str, Any]], path: Path) -> None:
    """All panels, two a row."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / 2)
    figure = Figure((10, 3.2 * rows), layout="constrained")
    axes = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axis, panel in zip(axes, panels):
        for line in panel["lines"]:
            (drawn,) = axis.plot(line["x"], line["y"], ".-", label=line["label"], linewidth=1.2)
            if line.get("low") is not None:
                axis.fill_between(line["x"], line["low"], line["high"], color=drawn.get_color(), alpha=0.15)
        if panel.get("level") is not None:
            axis.axhline(panel["level"], color="grey", linestyle=":")
        axis.set(xlabel=panel["x"], ylabel=panel["y"])
        axis.set(xscale=panel.get("x_scale", "linear"), yscale=panel.get("y_scale", "linear"))
        axis.set_title(panel["title"], fontsize=9)
        axis.legend(fontsize=7)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.savefig(path, dpi=75)


# Numbers and verdicts.


def rounded(value: float, digits: int = 6) -> float:
    """To so many significant digits: what is stored and printed."""
    return float(f"{value:.{digits}g}")


def line(label: str, x: Sequence[float], values: Sequence[Tensor]) -> Line:
    """The mean over the trials (R,) at each x, with the least and the greatest."""
    each = [value.tolist() for value in values]
    return Line(
        label=label,
        x=list(x),
        y=[rounded(sum(trials) / len(trials)) for trials in each],
        low=[rounded(min(trials)) for trials in each],
        high=[rounded(max(trials)) for trials in each],
    )


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of ln y over ln x, by least squares."""
    return rounded(float(np.polyfit(np.log(x), np.log(y), 1)[0]))


def most(trials: int) -> int:
    """How many of the trials are most of them: four of five, and all of fewer than five."""
    return max(trials - trials // 5, 1)


def verdict(agrees: bool) -> Outcome:
    """The word for what is one or the other."""
    return "agrees" if agrees else "disagrees"


def by_interval(interval: Sequence[float] | None) -> Outcome:
    """Of an effect that is stated to be above 0, by its 95 % interval; undecided if that includes 0, or is None."""
    if interval is not None and interval[0] > 0:
        return "agrees"
    if interval is not None and interval[1] < 0:
        return "disagrees"
    return "undecided"


def together(outcomes: Collection[Outcome]) -> Outcome:
    """Of what is stated of all: agrees if all agree, disagrees if one disagrees, else undecided, as of none."""
    if "disagrees" in outcomes:
        return "disagrees"
    if outcomes and all(outcome == "agrees" for outcome in outcomes):
        return "agrees"
    return "undecided"


def by_majority(outcomes: Collection[Outcome]) -> Outcome:
    """What more than half are; else undecided."""
    counts = Counter(outcomes)
    for outcome in ("agrees", "disagrees"):
        if counts[outcome] > len(outcomes) / 2:
            return outcome
    return "undecided"


def untested(paper: str, whose: Whose, place: str, statement: str, missing: str) -> Statement:
    """A statement with the paper's own numbers, and what its test would need."""
    return Statement(paper, place, whose, statement, None, "not tested", "The numbers are the paper's.", {}, missing)


class Paired(NamedTuple):
    """Differences of several pairs of runs: their mean, its 95 % t interval and two-sided p; None of one pair."""

    pairs: int
    difference: float
    interval: tuple[float, float] | None
    p: float | None


def paired(values: Sequence[float], others: Sequence[float]) -> Paired:
    """values − others, pair by pair."""
    from scipy.stats import ttest_1samp  # takes seconds to import

    differences = np.subtract(values, others)
    if len(differences) < 2:
        return Paired(len(differences), float(differences.mean()), None, None)
    test = ttest_1samp(differences, 0)
    low, high = test.confidence_interval()
    return Paired(len(differences), float(differences.mean()), (float(low), float(high)), float(test.pvalue))


def beyond(best: float, tried: Collection[float]) -> float | None:
    """The next rate if the best is the least or the greatest of those tried; None if it lies between others."""
    if best == min(tried):
        return best / FACTOR
    if best == max(tried):
        return best * FACTOR
    return None


def bigram_nats(before: Tensor, after: Tensor) -> Tensor:
    """−ln of the share that each byte has after each other one, (256, 256), float64.

    Args:
        before, after: (N) int64, the bytes of a text and those that follow them.
    """
    counts = torch.bincount(before * BYTES + after, minlength=BYTES**2).view(BYTES, BYTES).double() + SMOOTHING
    return -(counts / counts.sum(dim=1, keepdim=True)).log()


# Pairs of shapes in the finished grids.


@dataclass(frozen=True)
class GridPair:
    """A shape against another of one grid. `gain` and its interval are in the metric's units, plus where it is better.

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
    def reversed(self) -> "GridPair":
        """The other against the shape."""
        low, high = self.interval
        return GridPair(self.grid, self.metric, self.shape, self.other, -self.gain, (-high, -low), 1 / self.share)

    @property
    def outcome(self) -> Outcome:
        """Of the statement that the shape is better."""
        return by_interval(self.interval)

    @property
    def is_worse(self) -> bool:
        """Whether the shape is worse, beyond the seeds."""
        return self.outcome == "disagrees"

    @property
    def words(self) -> str:
        """The gain with its interval."""
        return "{:+.4f} ({:+.4f} to {:+.4f})".format(self.gain, *self.interval)

    @property
    def name(self) -> str:
        """The grid with both shapes, layers × heads × head size: a grid may have several pairs."""
        shapes = " → ".join(
            f"{shape.num_hidden_layers}×{shape.num_attention_heads}×{shape.head_dim}"
            for shape in (self.other, self.shape)
        )
        return f"{self.grid} {shapes}"

    def numbers(self, name: str) -> dict[str, float]:
        """The gain by a name, and the ends of its interval."""
        low, high = self.interval
        return {
            f"{self.name}: {name}": rounded(self.gain),
            f"{self.name}: low end": rounded(low),
            f"{self.name}: high end": rounded(high),
        }


def grid_pairs(grids: Path, is_pair: Callable[[LeanConfig, LeanConfig], bool]) -> Iterator[GridPair]:
    """The shapes of all grids for which `is_pair(shape, baseline)` holds, against the baseline, over several seeds.

    Not of grids whose shapes are cuts of a trained model: what they compare did not begin alike.
    """
    for path in sorted(grids.glob("*/summary.json")):
        summary = read_json(path)
        if summary["cuts"]:
            continue
        sign = 1 if summary["higher_is_better"] else -1
        baseline = load_config(summary["baseline"])
        for cell in summary["shapes"]:
            shape = load_config(cell["shape"])
            if cell["interval"] is None or not is_pair(shape, baseline):
                continue
            low, high = sorted(sign * value for value in cell["interval"])
            gain, share = sign * cell["difference"], cell["parameters_over_baseline"]
            yield GridPair(path.parent.name, summary["metric"], baseline, shape, gain, (low, high), share)


def rows_in(grids: Path) -> str:
    """What a statement about the grids would need where there are none."""
    return f"finished rows in {grids}, as in a clone of the repository; leaner sweep GRID.yaml writes them in hours"
