"""model_cards/README.md: the published models, and a section for every grid.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is renewed from the folders beside the page: the
models from their results.json, a grid from its results.csv and guesses.json. Everything else on the page is written by
people. A grid that the page lacks gets a section at its end.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from modeling_leaner.files import read_json, write_bytes
from modeling_leaner.shapes import load_config

from ..experiments.results import load_folder
from ..experiments.statistics import summarise
from ..records import RESULTS, PublishedResults
from ..tasks import TASKS
from .cards import RIVALS, TEMPLATES, kept
from .figures import curves_figure, encoders_figure
from .folders import README, is_encoder, published_folders, results_in


COMPARED = ("stsb_test", "qnli", "same_index")  # scores of encoders in the table
TABLE = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
SECTION = "\n### {name}\n\n<!-- table: {name} -->\n<!-- end -->\n"


Summary = dict[str, Any]  # a grid's, under the keys of summary.json; with what `read_grids` adds


def gain(grid: Summary, value: float) -> float:
    """A value of the metric, or a difference of two, such that more is better."""
    return value if grid["higher_is_better"] else -value


def difference(grid: Summary, compared: dict[str, Any]) -> str:
    """`+0.012 (+0.001 to +0.024)`, plus = better; a dash without a pair of runs."""
    if compared["difference"] is None:
        return "–"
    text = f"{gain(grid, compared['difference']):+.3f}"
    if compared["interval"] is None:
        return text
    low, high = sorted(gain(grid, limit) for limit in compared["interval"])
    return f"{text} ({low:+.3f} to {high:+.3f})"


def label(grid: Summary, shape: str) -> str:
    """`4 × 6 × 16`: layers, heads, head size; then what else differs from the baseline."""
    config, baseline = map(load_config, (shape, grid["baseline"]))
    text = f"{config.num_hidden_layers} × {heads_text(config.heads_per_layer, '/')} × {config.head_dim}"
    if config.hidden_size != baseline.hidden_size:
        text += f" of width {config.hidden_size}"
    if config.intermediate_size * baseline.hidden_size != baseline.intermediate_size * config.hidden_size:
        text += f" with MLP {config.intermediate_size}"
    if grid["cuts"]:
        _, _, variant = Path(shape.removesuffix("/config.json")).name.partition("-")
        text += f", {variant}" if variant else ""
        text += ", new weights" if shape.endswith(".json") else ", pruned"
    return text


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a | within a cell is escaped, for it would end the cell."""
    rows = [header, ["---"] * len(header), *lines]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def heads_text(heads_per_layer: list[int], separator: str) -> str:
    """The heads of a layer, of each layer if they differ."""
    different = len({*heads_per_layer}) > 1
    return separator.join(map(str, heads_per_layer)) if different else str(heads_per_layer[0])


def read_grids(cards: Path) -> dict[str, Summary]:
    """Every grid that has rows, by name, summarised anew. Raises ValueError if its files do not fit."""
    grids = {}
    for path in sorted(cards.glob("grids/*/results.csv")):
        name, results = path.parent.name, load_folder(path.parent)
        summary = summarise(results)
        has_figure = len(summary["curves"]) > 1 and len(summary["shapes"]) > 1
        figure = f"curves-{name}.svg" if has_figure else None
        learned = next(cell["learned"] for cell in summary["shapes"] if cell["shape"] == summary["baseline"])
        known = {"name": name, "best_guess": results.best_guess, "learned": learned, "figure": figure}
        grids[name] = summary | known
    return grids


def budget_names(grid: Summary) -> list[str]:
    """`12.3M tokens` for each budget."""
    counts = [budget["branch"] for budget in grid["curves"]]
    return [f"{count / 1e6:.1f}M tokens" if count >= 1e6 else f"{count:,} tokens" for count in counts]


def about_grid(grid: Summary) -> str:
    """Metric, recipe, seeds and the best baseline without a transformer, in a line."""
    way = "higher" if grid["higher_is_better"] else "lower"
    seeds = ", ".join(map(str, grid["seeds"]))
    text = f"{grid['metric'] or 'no finished run'} ({way} is better); recipe `{grid['recipe']}`; seeds {seeds}"
    best = grid["best_guess"]
    if best is not None:
        text += f"; best baseline without a transformer: {best.value:.4f} ({best.name})"
    if grid["unsound_tuning"] is not None:
        text += f"; the learning rates may not be the best: {grid['unsound_tuning']}"
    return f"{text}. [Settings](grids/{grid['name']}/grid.yaml), [every run](grids/{grid['name']}/results.csv)."


def grid_table(grid: Summary) -> str:
    """Every shape of a grid with its score, at each budget if there are several, and its difference."""
    names = budget_names(grid) or [f"{grid['metric']}, mean ± sd (seeds)"]
    lines = []
    for place, cell in enumerate(grid["shapes"]):
        scores = []
        for each in [budget["shapes"][place] for budget in grid["curves"]] or [cell]:
            spread = "" if each["sd"] is None else f" ± {each['sd']:.4f}"
            scores.append("not run" if each["mean"] is None else f"{each['mean']:.4f}{spread} ({each['n']})")
        if {*scores} == {"not run"}:
            continue
        verdict = cell["verdict"]
        if cell["shape"] == grid["baseline"]:
            verdict = "baseline, not learned" if cell["learned"] is False else "baseline"
        known = "–" if cell["parameters"] is None else f"{cell['parameters']:,}"
        lines.append((label(grid, cell["shape"]), known, *scores, difference(grid, cell), verdict))
    header = ("layers × heads × size", "parameters", *names, "difference, + is better (95 % interval)", "verdict")
    parts = [about_grid(grid), markdown(header, lines)]
    if grid["readings"]:
        parts.append(contrasts_table(grid))
    if grid["figure"]:
        parts.append(f"![Quality over training tokens, {grid['name']}]({grid['figure']})")
    return "\n\n".join(parts)


def contrasts_table(grid: Summary) -> str:
    """The comparisons that were fixed beforehand, at equal tokens, FLOPs and seconds, at each budget."""
    readings = pd.DataFrame(grid["readings"]).astype({"difference": object, "interval": object})
    readings = readings.where(readings.notna(), None)
    seeds = grid["seeds_of"] or {}
    corrected = {}
    for each in grid["contrasts"]:
        planned = {*seeds.get(each["shape"], grid["seeds"])} & {*seeds.get(each["minus"], grid["seeds"])}
        if each["pairs"] == len(planned) and each["p_corrected"] is not None:  # all of its runs have finished
            corrected[each["shape"], each["minus"], "tokens"] = f"{each['p_corrected']:.2g}"
    lines = []
    for key, group in readings.groupby(["shape", "minus", "equal"], sort=False):
        if group["pairs"].any():
            shape, minus, equal = key
            pair = f"{label(grid, shape)} against {label(grid, minus)}"
            lines.append(
                (pair, equal, *(difference(grid, each) for each in group.to_dict("records")), corrected.get(key, ""))
            )
    return markdown(("first against second", "at equal", *budget_names(grid), "corrected p at the end"), lines)


def encoder_lines(results: dict) -> list[tuple[str, ...]]:
    """A published sentence encoder and its 8-bit file, in percent of the original; speeds over its float32."""
    parent, own, parent_int8, own_int8 = results["benchmark"]["models"]
    heads = f"{len(results['heads_per_layer'])} × {heads_text(results['heads_per_layer'], ', ')}".replace(
        " ", "&nbsp;"
    )
    lines = []
    for model, name, rival in ((own, f"[{results['name']}]({results['name']})", parent), (own_int8, "", parent_int8)):
        shares = [kept(model, parent), *(model["scores"][each] / parent["scores"][each] for each in COMPARED)]
        speeds = [model["speed"]["64"], model["speed"]["64"] / rival["speed"]["64"]]
        lines.append(
            (
                name or "in 8 bits",
                heads if name else "",
                *(f"{100 * share:.1f}" for share in shares),
                *(f"{speed:.2f} ×" for speed in speeds),
                f"{model['megabytes']:.0f}",
            )
        )
    return lines


def model_tables(cards: Path, grids: dict[str, Summary]) -> dict[str, str]:
    """The published sentence encoders, and the other models by task and grid."""
    encoders, miniatures = [], []
    for folder in published_folders(cards):
        if is_encoder(folder):
            encoders += encoder_lines(read_json(folder / RESULTS))
            continue
        results = results_in(folder / RESULTS)
        if isinstance(results, PublishedResults):
            grid = results.evidence.grid
            guess = grids[grid]["best_guess"]
            line = (
                f"[{results.name}]({results.name})",
                TASKS[results.task].title,
                label(grids[grid], results.cell),
                f"{results.parameters:,}",
                f"{results.metric} {results.metrics[f'eval_{results.metric}']:.3f}",
                "–" if guess is None else f"{guess.value:.3f} ({guess.name})",
                f"[{grid}](#{grid})",
            )
            miniatures.append(((list(TASKS).index(results.task), grid, results.name), line))
    of_encoders = (
        "model",
        "layers × heads",
        "STS, 4 sets",
        "STS-B test",
        "QNLI",
        "same index",
        "speed",
        "at equal bits",
        "MB",
    )
    of_miniatures = ("model", "task", "layers × heads × size", "parameters", "score", "best baseline", "compared in")
    return {
        "sentence encoders": markdown(of_encoders, encoders),
        "miniatures": markdown(of_miniatures, [line for _, line in sorted(miniatures)]),
    }


def render(cards: Path, grids: dict[str, Summary]) -> str:
    """The page's text: the one that is there, or the template, with its tables renewed."""
    page = cards / README
    text = (page if page.is_file() else TEMPLATES / "index.md").read_text(encoding="utf-8")
    there = {name for _, name, _, _ in TABLE.findall(text)}
    text += "".join(SECTION.format(name=name) for name in grids if name not in there)
    tables = model_tables(cards, grids)
    tables |= {name: grid_table(grid) for name, grid in grids.items()}

    def renewed(match: re.Match[str]) -> str:
        begin, name, _, end = match.groups()
        return f"{begin}{tables[name]}\n{end}" if name in tables else match.group()

    return TABLE.sub(renewed, text)


def figures(cards: Path, grids: dict[str, Summary]) -> dict[Path, bytes]:
    """The curves of every grid with several budgets, and the encoders beside rivals."""
    drawn = {}
    for grid in grids.values():
        if grid["figure"]:
            labels = {cell["shape"]: label(grid, cell["shape"]) for cell in grid["shapes"]}
            drawn[cards / grid["figure"]] = curves_figure(grid, labels, grid["best_guess"])
    own = {}
    for folder in filter(is_encoder, published_folders(cards)):
        for model in read_json(folder / RESULTS)["benchmark"]["models"][1::2]:
            own[model["model"]] = model["speed"]["64"], 100 * model["scores"]["stsb_test"]
    if own and RIVALS.is_file():
        drawn[cards / "encoders.svg"] = encoders_figure(pd.read_csv(RIVALS, comment="#"), own)
    return drawn


def write_index(cards: Path) -> Path:
    """Renews the tables and figures of the page; figures of grids that are gone go.

    Returns:
        the path of the page.
    """
    if not cards.is_dir():
        raise ValueError(f"{cards}: expected the folder of published models, found none")
    grids = read_grids(cards)
    files = {**figures(cards, grids), cards / README: render(cards, grids).encode()}
    for path in {*cards.glob("curves-*.svg")} - files.keys():
        path.unlink()
    for path, content in files.items():
        write_bytes(path, content)
    return cards / README
