"""What every study shares: its table of statements and its figure.

A study is a module whose docstring says what the paper states, with Settings (those of the published results), QUICK
(those that only check the code) and `run(study, settings)`, which fills the table and the figure.
"""

import importlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure

from modeling_leaner.files import whole_folder, write_json

from ..running.results import code_commit, environment


SHOWN = 6  # numbers of a statement that are printed; results.json has all

Outcome = Literal["agrees", "disagrees", "undecided", "not tested"]
"""Undecided: tested, and the numbers show neither that it holds nor that it does not."""


@dataclass
class Study:
    """The table and the figure of a study, filled as it runs."""

    statements: list[dict[str, Any]] = field(default_factory=list)
    panels: list[dict[str, Any]] = field(default_factory=list)

    def add(self, source: str, statement: str, rule: str, verdict: bool | Outcome, numbers: dict[str, Any]) -> None:
        """Adds a statement, and prints its verdict.

        Args:
            source: place in the paper; or that it is quoted second-hand, derived here or asked here.
            rule: when the numbers agree with it, fixed before they were read.
            numbers: behind the verdict, stored to six digits; None if rank is lost.
        """
        if isinstance(verdict, bool):
            verdict = "agrees" if verdict else "disagrees"
        numbers = {name: rounded(value) if isinstance(value, float) else value for name, value in numbers.items()}
        row = {"source": source, "statement": statement, "rule": rule, "verdict": verdict, "numbers": numbers}
        self.statements.append(row)
        shown = [f"{name} {value}" for name, value in numbers.items()]
        print(f"{verdict}: {statement} {'; '.join(shown[:SHOWN])}", flush=True)

    def plot(
        self, title: str, x: str, y: str, curves: Mapping[str, Mapping[float, Iterable[float]]], log: str = ""
    ) -> None:
        """Adds a panel to the figure: of each curve the mean, the least and the greatest at each x.

        Args:
            curves: by label, at each x the values of the trials (R,).
            log: the axes with a logarithmic scale.
        """
        lines = []
        for label, curve in curves.items():
            values = [[float(one) for one in trials] for trials in curve.values()]
            ends = {"low": [rounded(min(each)) for each in values], "high": [rounded(max(each)) for each in values]}
            mean = [rounded(sum(each) / len(each)) for each in values]
            lines.append({"label": label, "x": list(curve), "y": mean, **ends})
        self.panels.append({"title": title, "x": x, "y": y, "log": log, "lines": lines})


def run_study(name: str, is_quick: bool, output: Path) -> None:
    """Runs a study, and writes its new folder: results.json and figure.png, whole or not at all."""
    module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
    settings = module.QUICK if is_quick else module.Settings()
    study = Study()
    torch.set_num_threads(1)  # on one thread products of small matrices are fastest
    with whole_folder(output) as folder:
        folder.mkdir(parents=True)
        start = time.process_time()
        code_commit()  # files may change during the run
        module.run(study, settings)
        results = {
            "study": name,
            "command": f"leaner study {name}" + (" --quick" if is_quick else ""),
            "settings": asdict(settings),
            "statements": study.statements,
            "seconds": round(time.process_time() - start, 1),
            "environment": environment(),
        }
        write_json(folder / "results.json", results)

        # All panels, two a row; a band from the least to the greatest of several trials.
        columns = min(len(study.panels), 2)
        rows = math.ceil(len(study.panels) / columns)
        figure = Figure((5 * columns, 3.2 * rows), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axis, panel in zip(axes, study.panels):
            for each in panel["lines"]:
                (drawn,) = axis.plot(each["x"], each["y"], ".-", label=each["label"], linewidth=1.2)
                axis.fill_between(each["x"], each["low"], each["high"], color=drawn.get_color(), alpha=0.15)
            axis.set(xlabel=panel["x"], ylabel=panel["y"], **{f"{name}scale": "log" for name in panel["log"]})
            axis.set_title(panel["title"], fontsize=9)
            axis.legend(fontsize=7)
        for axis in axes[len(study.panels) :]:
            axis.remove()
        figure.savefig(folder / "figure.png", dpi=75)
    print(f"{len(study.statements)} statements in {results['seconds']:.0f} s of processor time: {output}")
    if is_quick:
        print("--quick checks the code: its verdicts do not count.")


def rounded(value: float) -> float:
    """To six significant digits: what is stored."""
    return float(f"{value:.6g}")


def most(trials: int) -> int:
    """How many of the trials are most of them: four of five, and all of fewer than five."""
    return trials - trials // 5
