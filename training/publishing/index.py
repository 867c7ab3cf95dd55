"""model_cards/README.md: the published models, and a section for every grid.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is renewed from the folders beside the page: the
models from their results.json, a grid from its results.csv and guesses.json. Everything else on the page is written by
people. A grid that the page lacks gets a section at its end.
"""

import json
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from modeling_leaner.files import replace_files
from modeling_leaner.shapes import load_config

from ..experiments.evidence import PEERS
from ..experiments.grid_results import load_folder
from ..experiments.run_statistics import MAX_P, MIN_PAIRS
from ..experiments.summary import summarise
from ..records import PublishedEncoder, PublishedResults
from ..records.results import RESULTS
from ..tasks.registry import TASKS
from .figures import curves_figure, forest_figure
from .folders import published_folders, results_in
from .rendering import TEMPLATES, markdown


PAGE = "README.md"
TABLE = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
SECTION = "\n### {name}\n\n<!-- table: {name} -->\n<!-- end -->\n"


class GridSummary(NamedTuple):
    """What a grid's rows say, under the keys of summary.json, and its baselines without a transformer."""

    name: str
    values: dict[str, Any]
    guesses: list[dict[str, Any]]

    @property
    def cells(self) -> list[dict[str, Any]]:
        """Statistics of the shapes, the baseline's first."""
        return self.values["shapes"]

    @property
    def learned(self) -> bool | None:
        """Whether the baseline is clearly better than the best one without a transformer."""
        return next(cell["learned"] for cell in self.cells if cell["shape"] == self.values["baseline"])

    @property
    def best_guess(self) -> dict[str, Any] | None:
        """The best baseline without a transformer, else the one that reads nothing; None if neither is known."""
        known = self.guesses
        chance = self.cells[0]["chance"]
        if not known and chance is not None:
            known = [{"name": "reads nothing", "value": chance}]
        return max(known, key=lambda guess: self.gain(guess["value"]), default=None)

    def gain(self, value: float) -> float:
        """A value of the metric, or a difference of two, such that more is better."""
        return value if self.values["higher_is_better"] else -value

    def difference(self, compared: dict[str, Any], digits: int = 3) -> str:
        """`+0.012 (+0.001 to +0.024)`, plus = better; a dash without a pair of runs."""
        if compared["difference"] is None:
            return "–"
        text = f"{self.gain(compared['difference']):+.{digits}f}"
        if compared["interval"] is None:
            return text
        low, high = sorted(map(self.gain, compared["interval"]))
        return f"{text} ({low:+.{digits}f} to {high:+.{digits}f})"

    def corrected_p(self, contrast: dict[str, Any]) -> float | None:
        """The p of a comparison at the longest budget; None while any of its runs has not finished."""
        seeds = self.values["seeds_of"] or {}
        planned = [{*seeds.get(contrast[side], self.values["seeds"])} for side in ("shape", "minus")]
        return contrast["p_corrected"] if contrast["pairs"] == len(set.intersection(*planned)) else None

    def label(self, shape: str) -> str:
        """`4 × 6 × 16`: layers, heads, head size; then what else differs from the baseline."""
        config, baseline = map(load_config, (shape, self.values["baseline"]))
        text = f"{config.num_hidden_layers} × {heads_text(config.heads_per_layer, '/')} × {config.head_dim}"
        if config.hidden_size != baseline.hidden_size:
            text += f" of width {config.hidden_size}"
        if config.intermediate_size * baseline.hidden_size != baseline.intermediate_size * config.hidden_size:
            text += f" with MLP {config.intermediate_size}"
        if self.values["cuts"]:
            _, _, variant = Path(shape.removesuffix("/config.json")).name.partition("-")
            text += f", {variant}" if variant else ""
            text += ", new weights" if shape.endswith(".json") else ", pruned"
        return text


def heads_text(heads_per_layer: list[int], separator: str) -> str:
    """The heads of a layer, of each layer if they differ."""
    different = len({*heads_per_layer}) > 1
    return separator.join(map(str, heads_per_layer)) if different else str(heads_per_layer[0])


def read_grids(cards: Path) -> dict[str, GridSummary]:
    """Every grid that has rows, by name, summarised anew. Raises ValueError or GridError if its files do not fit."""
    grids = {}
    for path in sorted(cards.glob("grids/*/results.csv")):
        guesses = path.with_name("guesses.json")
        known = json.loads(guesses.read_text(encoding="utf-8")) if guesses.is_file() else []
        summary = json.dumps(summarise(load_folder(path.parent)).document())  # as summary.json has it
        grids[path.parent.name] = GridSummary(path.parent.name, json.loads(summary), known)
    return grids


def score(cell: dict[str, Any]) -> str:
    """Mean ± sd (seeds) of a shape."""
    if cell["mean"] is None:
        return "not run"
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:.4f}"
    return f"{cell['mean']:.4f}{spread} ({cell['n']})"


def tokens_text(count: int) -> str:
    """`12.3M tokens`."""
    return f"{count / 1e6:.1f}M tokens" if count >= 1e6 else f"{count:,} tokens"


def verdict(cell: dict[str, Any], grid: GridSummary) -> str:
    """What the grid alone says of a shape; the tests over all grids stand in a table of their own."""
    if cell["shape"] == grid.values["baseline"]:
        return "baseline, not learned" if cell["learned"] is False else "baseline"
    return cell["verdict"]


def about_grid(grid: GridSummary) -> str:
    """Metric, recipe, seeds and the best baseline without a transformer, in a line."""
    values = grid.values
    way = "higher" if values["higher_is_better"] else "lower"
    seeds = ", ".join(map(str, values["seeds"]))
    text = f"{values['metric'] or 'no finished run'} ({way} is better); recipe `{values['recipe']}`; seeds {seeds}"
    best = grid.best_guess
    if best is not None:
        text += f"; best baseline without a transformer: {best['value']:.4f} ({best['name']})"
    if values["unsound_tuning"] is not None:
        text += f"; the learning rates may not be the best: {values['unsound_tuning']}"
    return f"{text}. [Settings](grids/{grid.name}/grid.yaml), [every run](grids/{grid.name}/results.csv)."


def grid_table(grid: GridSummary) -> str:
    """Every shape of a grid with its score, at each budget if there are several, and its difference."""
    budgets = grid.values.get("curves") or []
    names = [tokens_text(budget["branch"]) for budget in budgets] or [f"{grid.values['metric']}, mean ± sd (seeds)"]
    lines = []
    for place, cell in enumerate(grid.cells):
        scores = [score(budget["shapes"][place]) for budget in budgets] or [score(cell)]
        if any(text != "not run" for text in scores):
            known = "–" if cell["parameters"] is None else f"{cell['parameters']:,}"
            lines.append((grid.label(cell["shape"]), known, *scores, grid.difference(cell), verdict(cell, grid)))
    header = ("layers × heads × size", "parameters", *names, "difference, + is better (95 % interval)", "verdict")
    parts = [about_grid(grid), markdown(header, lines)]
    if grid.values.get("readings"):
        parts.append(contrasts_table(grid))
    if has_curves(grid):
        parts.append(f"![Quality over training tokens, {grid.name}]({curves_name(grid)})")
    return "\n\n".join(parts)


def contrasts_table(grid: GridSummary) -> str:
    """The comparisons that were fixed beforehand, at equal tokens, FLOPs and seconds, at each budget."""
    readings = pd.DataFrame(grid.values["readings"]).astype({"difference": object, "interval": object})
    readings = readings.where(readings.notna(), None)
    corrected = {(each["shape"], each["minus"]): grid.corrected_p(each) for each in grid.values["contrasts"]}
    lines = []
    for (shape, minus, equal), group in readings.groupby(["shape", "minus", "equal"], sort=False):
        if group["pairs"].any():
            p = corrected[shape, minus]
            shown = f"{p:.2g}" if equal == "tokens" and p is not None else ""
            pair = f"{grid.label(shape)} against {grid.label(minus)}"
            lines.append((pair, equal, *map(grid.difference, group.to_dict("records")), shown))
    budgets = [tokens_text(budget["branch"]) for budget in grid.values["curves"]]
    return markdown(("first against second", "at equal", *budgets, "corrected p at the end"), lines)


def has_curves(grid: GridSummary) -> bool:
    """Whether there are shapes to compare over several budgets."""
    return len(grid.values.get("curves") or []) > 1 and len(grid.cells) > 1


def curves_name(grid: GridSummary) -> str:
    """The file of a grid's figure."""
    return f"curves-{grid.name}.svg"


def compares_shapes(grid: GridSummary) -> bool:
    """Whether a grid compares shapes of new models: no pruned ones, no reference of transformers."""
    return not grid.values["cuts"] and not grid.name.endswith(PEERS)


def tests(grids: Iterable[GridSummary]) -> pd.DataFrame:
    """Non-inferiority of every shape with a margin and enough seeds, corrected by Holm over all grids.

    Shapes whose baseline has not learned count in the correction, so that knowing it makes no test easier.
    """
    found = [
        (grid.name, grid.label(cell["shape"]), grid.learned, cell["p_non_inferiority"])
        for grid in filter(compares_shapes, grids)
        for cell in grid.cells
        if cell["p_non_inferiority"] is not None and cell["pairs"] == len(grid.values["seeds"]) >= MIN_PAIRS
    ]
    frame = pd.DataFrame(found, columns=["grid", "shape", "learned", "p"])
    frame["corrected"] = holm(frame["p"])
    frame["opposite"] = holm(1 - frame["p"])
    return frame.sort_values("p")


def holm(p: pd.Series) -> pd.Series:
    """Holm's correction: the k-th smallest of n times n - k + 1, never below the one before, at most 1."""
    ordered = p.sort_values()
    return (ordered * range(len(p), 0, -1)).cummax().clip(upper=1)


def tests_table(grids: Iterable[GridSummary]) -> str:
    """The tests whose baseline has learned, the lowest p first, and the forest of all differences."""
    lines = []
    for test in tests(grids).query("learned == True").itertuples():
        decided = "undecided"
        if test.corrected < MAX_P:
            decided = "no loss of quality within the margin"
        elif test.opposite < MAX_P:
            decided = f"worse by more than the margin (corrected p {test.opposite:.2g})"
        lines.append((f"[{test.grid}](#{test.grid})", test.shape, f"{test.p:.3g}", f"{test.corrected:.3g}", decided))
    return markdown(("grid", "shape", "p", "corrected p", "verdict"), lines)


def differences(grids: Iterable[GridSummary]) -> pd.DataFrame:
    """The differences that have an interval from three seeds or more, plus = better, for the forest."""
    found = [
        (grid.values["metric"], grid.name, grid.label(cell["shape"]), grid.gain(cell["difference"]))
        + tuple(sorted(map(grid.gain, cell["interval"])))
        for grid in filter(compares_shapes, grids)
        if grid.values["metric"] in ("accuracy", "loss")
        for cell in grid.cells
        if cell["interval"] is not None and cell["pairs"] >= 3
    ]
    return pd.DataFrame(found, columns=["metric", "grid", "shape", "difference", "low", "high"])


def encoder_line(results: PublishedEncoder) -> tuple[str, ...]:
    """A published sentence encoder in a line of a table; the original's scores in parentheses."""
    parent, own = results.parent_scores, results.own_scores
    scores = [f"{own.scores[name]:.3f} ({parent.scores[name]:.3f})" for name in ("stsb_test", "qnli", "cosine")]
    shape = f"{len(own.heads_per_layer)} × {heads_text(own.heads_per_layer, ', ')}".replace(" ", "&nbsp;")
    faster = own.times[max(own.times, key=int)].speed
    base = results.base_model
    return (f"[{results.name}]({results.name})", base, shape, f"{own.parameters:,}", *scores, f"{faster:.2f} ×")


def encoders_table(cards: Path) -> str:
    """The published sentence encoders."""
    published = [results_in(folder / RESULTS) for folder in published_folders(cards)]
    header = ("model", "pruned from", "layers × heads", "parameters", "STS-B test", "QNLI MRR@10", "cosine", "speed")
    return markdown(header, [encoder_line(each) for each in published if isinstance(each, PublishedEncoder)])


def miniatures_table(cards: Path, grids: dict[str, GridSummary]) -> str:
    """The other published models, by task and grid."""
    lines = []
    for folder in published_folders(cards):
        results = results_in(folder / RESULTS)
        if not isinstance(results, PublishedResults):
            continue
        grid = results.evidence.grid
        guess = grids[grid].best_guess
        line = (
            f"[{results.name}]({results.name})",
            TASKS[results.task].title,
            grids[grid].label(results.cell),
            f"{results.parameters:,}",
            f"{results.metric} {results.metrics[f'eval_{results.metric}']:.3f}",
            "–" if guess is None else f"{guess['value']:.3f} ({guess['name']})",
            f"[{grid}](#{grid})",
        )
        lines.append(((list(TASKS).index(results.task), grid, results.name), line))
    header = ("model", "task", "layers × heads × size", "parameters", "score", "best baseline", "compared in")
    return markdown(header, [line for _, line in sorted(lines)])


def render(cards: Path) -> str:
    """The page's text: the one that is there, or the template, with its tables renewed."""
    grids = read_grids(cards)
    page = cards / PAGE
    text = (page if page.is_file() else TEMPLATES / "index.md").read_text(encoding="utf-8")
    tables = {
        "sentence encoders": partial(encoders_table, cards),
        "miniatures": partial(miniatures_table, cards, grids),
        "tests over all grids": partial(tests_table, [*grids.values()]),
        **{name: partial(grid_table, grid) for name, grid in grids.items()},
    }
    there = {name for _, name, _, _ in TABLE.findall(text)}
    text += "".join(SECTION.format(name=name) for name in grids if name not in there)

    def renewed(match: re.Match[str]) -> str:
        begin, name, _, end = match.groups()
        return f"{begin}{tables[name]()}\n{end}" if name in tables else match.group()

    return TABLE.sub(renewed, text)


def figures(cards: Path) -> dict[Path, bytes]:
    """The curves of every grid that has several budgets, and the forest of all differences."""
    grids = read_grids(cards)
    drawn = {}
    for grid in grids.values():
        if has_curves(grid):
            labels = {cell["shape"]: grid.label(cell["shape"]) for cell in grid.cells}
            drawn[cards / curves_name(grid)] = curves_figure(grid.values, labels, grid.best_guess)
    compared = differences(grids.values())
    if len(compared):
        drawn[cards / "forest.svg"] = forest_figure(compared)
    return drawn


def write_index(cards: Path) -> Path:
    """Renews the tables and figures of the page; figures of grids that are gone go.

    Returns:
        the path of the page.
    """
    if not cards.is_dir():
        raise ValueError(f"{cards}: expected the folder of published models, found none")
    files = {**figures(cards), cards / PAGE: render(cards).encode()}
    replace_files(files, [*cards.glob("curves-*.svg"), cards / "forest.svg"])
    return cards / PAGE
