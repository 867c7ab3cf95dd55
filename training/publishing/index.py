"""model_cards/README.md and its figures: the published models, and every grid, most in a table of their own.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is renewed from the folders beside the page: the
models from their results.json, a grid from its results.csv and guesses.json. Everything else on the page is written by
people. A table that the page lacks gets a section at its end.
"""

import io
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_leaner.files import read_json, write_bytes
from modeling_leaner.shapes import load_config

from ..experiments.grid_results import gain, load_folder
from ..experiments.statistics import Summary, summarise
from ..records import RESULTS
from ..running.encoder_evaluation import mean_sts
from ..tasks import TASKS
from .cards import RIVALS
from .folders import README, is_encoder, published_folders, results_in


TABLE = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
SECTION = "\n### {name}\n\n<!-- table: {name} -->\n<!-- end -->\n"
NOT_LEARNED, SINGLE_SHAPES = "not learned", "single shapes"  # tables of several grids, a row each
COMPARED = ("stsb_test", "qnli", "same_index")  # scores of encoders in the table
OF_ENCODERS = (
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
OF_GRIDS = ("grid", "metric", "layers × heads × size: mean ± sd (seeds)", "best baseline")
OF_MINIATURES = ("model", "layers × heads × size", "parameters", "score", "best baseline", "compared in")
GREY, BLUE = "#808890", "#3b82c4"  # readable on a light and on a dark page
STYLE = {
    "svg.fonttype": "path",
    "svg.hashsalt": "leaner",  # equal content gives equal bytes
    "font.size": 8.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.figsize": (8.6, 3.8),  # a README's width
    "figure.constrained_layout.use": True,
}


def read_grids(cards: Path) -> dict[str, Summary]:
    """Every grid with a finished run, by name, summarised anew; with what the page needs beside that."""
    grids = {}
    for path in sorted(cards.glob("grids/*/results.csv")):
        results = load_folder(path.parent)
        if results.any_reported is None:
            continue
        guess, folder = results.best_guess, f"grids/{results.name}"
        grid = grids[results.name] = summarise(results) | {"name": results.name, "best_guess": guess}
        grid["best"] = f"{guess.value:.3f} ({guess.name})" if guess else "–"  # score without a transformer
        grid["files"] = f"[settings]({folder}/grid.yaml), [runs]({folder}/results.csv)"
        has_curves = len(grid["curves"]) > 1 and len(grid["shapes"]) > 1
        grid["figure"] = f"curves-{results.name}.svg" if has_curves else None
        baseline = next(cell for cell in grid["shapes"] if cell["shape"] == grid["baseline"])
        grid["has_learned"] = baseline["learned"] is not False
        own = results.name if grid["has_learned"] or has_curves else NOT_LEARNED
        grid["table"] = own if len(grid["shapes"]) > 1 else SINGLE_SHAPES
    return grids


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *lines])


def signed_interval(grid: Summary, compared: Summary) -> list[float]:
    """A difference and the ends of its interval, which without one are the difference, plus = better."""
    interval = compared["interval"] or [compared["difference"]] * 2
    low, high = sorted(gain(limit, grid["higher_is_better"]) for limit in interval)
    return [gain(compared["difference"], grid["higher_is_better"]), low, high]


def difference(grid: Summary, compared: Summary) -> str:
    """`+0.012 (+0.001 to +0.024)`, plus = better; a dash without a pair of runs."""
    if compared["difference"] is None:
        return "–"
    centre, low, high = signed_interval(grid, compared)
    return f"{centre:+.3f}" + (f" ({low:+.3f} to {high:+.3f})" if compared["interval"] else "")


def label(grid: Summary, shape: str) -> str:
    """`4 × 6 × 16`: layers, heads, head size; then what else differs from the baseline."""
    config, baseline = map(load_config, (shape, grid["baseline"]))
    heads = config.heads_per_layer
    heads = "/".join(map(str, heads if len({*heads}) > 1 else heads[:1]))
    text = f"{config.num_hidden_layers} × {heads} × {config.head_dim}"
    if config.hidden_size != baseline.hidden_size:
        text += f" of width {config.hidden_size}"
    if config.intermediate_size * baseline.hidden_size != baseline.intermediate_size * config.hidden_size:
        text += f" with MLP {config.intermediate_size}"
    if grid["cuts"]:
        _, _, variant = Path(shape.removesuffix("/config.json")).name.partition("-")
        text += f", {variant}" if variant else ""
        text += ", new weights" if shape.endswith(".json") else ", pruned"
    return text


def score_text(cell: Summary) -> str:
    """`4.258 ± 0.020 (7)`: mean, standard deviation over seeds, and their number."""
    if cell["mean"] is None:
        return "not run"
    decimals = 4 if abs(cell["mean"]) < 1 else 3
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:.{decimals}f}"
    return f"{cell['mean']:.{decimals}f}{spread} ({cell['n']})"


def grid_table(grid: Summary) -> str:
    """Every shape of a grid with its score, at each budget if there are several, and its difference."""
    way = "higher" if grid["higher_is_better"] else "lower"
    about = f"{grid['metric']}, {way} is better: mean ± sd (seeds); a difference with + is better"
    if grid["best_guess"] is not None:
        about += f"; best baseline without a transformer: {grid['best']}"
    if not grid["has_learned"]:
        about += f", which {label(grid, grid['baseline'])} does not clearly beat"
    if grid["unsound_tuning"] is not None:
        about += "; the learning rates may not be the best"
    about += f" ({grid['files']})."

    lines = []
    for place, cell in enumerate(grid["shapes"]):
        scores = [score_text(each) for each in [budget["shapes"][place] for budget in grid["curves"]] or [cell]]
        if {*scores} != {"not run"}:
            known = "–" if cell["parameters"] is None else f"{cell['parameters']:,}"
            lines.append((label(grid, cell["shape"]), known, *scores, difference(grid, cell)))
    counts = [budget["branch"] for budget in grid["curves"]]
    budgets = [f"{count / 1e6:.1f}M tokens" if count >= 1e6 else f"{count:,} tokens" for count in counts]
    header = ("layers × heads × size", "parameters", *(budgets or [grid["metric"]]), "difference (95 % interval)")

    parts = [about, markdown(header, lines)]
    if grid["readings"]:
        parts.append(contrasts_table(grid, budgets))
    if grid["figure"]:
        parts.append(f"![Quality over training tokens, {grid['name']}]({grid['figure']})")
    return "\n\n".join(parts)


def contrasts_table(grid: Summary, budgets: list[str]) -> str:
    """The comparisons that were fixed beforehand, at equal tokens and at equal FLOPs, at each budget."""
    seeds = grid["seeds_of"] or {}
    corrected = {}
    for each in grid["contrasts"]:
        planned = {*seeds.get(each["shape"], grid["seeds"])} & {*seeds.get(each["minus"], grid["seeds"])}
        if each["pairs"] == len(planned) and each["p_corrected"] is not None:  # all of its runs have finished
            corrected[each["shape"], each["minus"], "tokens"] = f"{each['p_corrected']:.2g}"
    rows: dict[tuple, list] = {}
    for each in grid["readings"]:
        if each["equal"] != "seconds":
            rows.setdefault((each["shape"], each["minus"], each["equal"]), []).append(each)
    lines = []
    for (shape, minus, equal), group in rows.items():
        if any(each["pairs"] for each in group):
            pair = f"{label(grid, shape)} against {label(grid, minus)}"
            read = [difference(grid, each) for each in group]
            lines.append((pair, equal, *read, corrected.get((shape, minus, equal), "")))
    return markdown(("first against second", "at equal", *budgets, "corrected p at the end"), lines)


def model_tables(cards: Path, grids: dict[str, Summary]) -> dict[str, str]:
    """The published sentence encoders, and the other models by task and grid."""
    folders = published_folders(cards)

    # An encoder and its int8 file, in percent of the original; speeds over its float32.
    encoders = []
    for results in (read_json(folder / RESULTS) for folder in folders if is_encoder(folder)):
        parent, own, parent_int8, own_int8 = results["benchmark"]["models"]
        name = f"[{results['name']}]({results['name']})"
        heads = results["heads_per_layer"]
        shape = f"{len(heads)} × {', '.join(map(str, heads if len({*heads}) > 1 else heads[:1]))}"
        for *names, model, rival in ((name, shape, own, parent), ("in int8", "", own_int8, parent_int8)):
            sts = mean_sts(model["scores"]) / mean_sts(parent["scores"])
            shares = [sts, *(model["scores"][each] / parent["scores"][each] for each in COMPARED)]
            speeds = [model["speed"]["64"], model["speed"]["64"] / rival["speed"]["64"]]
            numbers = [f"{100 * share:.1f}" for share in shares] + [f"{speed:.2f} ×" for speed in speeds]
            encoders.append((*names, *numbers, f"{model['megabytes']:.0f}"))

    models = [results_in(folder / RESULTS) for folder in folders if not is_encoder(folder)]
    miniatures = []
    for each in sorted(models, key=lambda each: ([*TASKS].index(each.task), each.evidence.grid, each.name)):
        grid = grids[each.evidence.grid]
        name, table = f"[{each.name}]({each.name})", f"[{grid['name']}](#{grid['table'].replace(' ', '-')})"
        value = f"{each.main_metric} {each.metrics[f'eval_{each.main_metric}']:.3f}"
        miniatures.append((name, label(grid, each.cell), f"{each.parameters:,}", value, grid["best"], table))
    return {"sentence encoders": markdown(OF_ENCODERS, encoders), "miniatures": markdown(OF_MINIATURES, miniatures)}


def render(cards: Path, grids: dict[str, Summary]) -> str:
    """The page's text: the one that is there, with its tables renewed."""
    page = cards / README
    text = page.read_text(encoding="utf-8") if page.is_file() else "# Results\n"
    tables = model_tables(cards, grids)
    shared: dict[str, list] = {}
    for grid in grids.values():
        table = grid["table"]
        if table in (NOT_LEARNED, SINGLE_SHAPES):
            cells = [cell for cell in grid["shapes"] if cell["n"]]
            scores = "<br>".join(f"{label(grid, cell['shape'])}: {score_text(cell)}" for cell in cells)
            lines = shared.setdefault(table, [])
            lines.append((f"{grid['name']}: {grid['files']}", grid["metric"], scores, grid["best"]))
            tables[table] = markdown(OF_GRIDS, lines)
        else:
            tables[table] = grid_table(grid)
    there = {name for _, name, _, _ in TABLE.findall(text)}
    text += "".join(SECTION.format(name=name) for name in tables if name not in there)
    for begin, name, old, end in TABLE.findall(text):
        if name in tables:
            text = text.replace(f"{begin}{old}{end}", f"{begin}{tables[name]}\n{end}")
    return text


def draw_band(axis: Axes, name: str, points: list[tuple[int, list[float]]]) -> None:
    """A line over millions of tokens, by the first of each point's values, and a band over them all."""
    millions = [tokens / 1e6 for tokens, _ in points]
    (line,) = axis.plot(millions, [values[0] for _, values in points], ".-", label=name, linewidth=1.2)
    ends = ([end(values) for _, values in points] for end in (min, max))
    axis.fill_between(millions, *ends, color=line.get_color(), alpha=0.15, linewidth=0)


def curves_figure(grid: Summary) -> Figure:
    """Quality of every shape over the tokens of its training, and the comparisons that were fixed beforehand.

    Lines are means over the seeds. A band is their range, or a difference's 95 % interval; a dotted line is the best
    baseline without a transformer.
    """
    names = {cell["shape"]: label(grid, cell["shape"]) for cell in grid["shapes"]}
    figure = Figure()
    quality, compared = figure.subplots(1, 2)
    for shape, name in names.items():
        cells = [(each["branch"], c) for each in grid["curves"] for c in each["shapes"] if c["shape"] == shape]
        runs = [(tokens, [*cell["values"].values()]) for tokens, cell in cells if cell["n"]]
        if runs:
            draw_band(quality, name, [(tokens, [statistics.fmean(values), *values]) for tokens, values in runs])
    if grid["best_guess"] is not None:
        quality.axhline(grid["best_guess"].value, color=GREY, linestyle=":")
    quality.set_ylabel(f"{grid['metric']}, {'higher' if grid['higher_is_better'] else 'lower'} is better")
    pairs: dict[str, list] = {}
    for each in grid["readings"] or []:
        if each["equal"] == "tokens" and each["pairs"]:
            name = f"{names[each['shape']]} − {names[each['minus']]}"
            pairs.setdefault(name, []).append((each["branch"], signed_interval(grid, each)))
    for name, points in pairs.items():
        draw_band(compared, name, points)
    compared.axhline(0, color=GREY, linewidth=1)
    compared.set_ylabel("difference at equal tokens, + is better")
    for axis in (quality, compared):
        axis.set(xscale="log", xlabel="training tokens, millions")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_xticks([round(budget["branch"] / 1e6, 1) for budget in grid["curves"]])
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
    return figure


def encoders_figure(cards: Path) -> Figure:
    """STS-B test over relative speed, of encoders by others (docs/encoders.csv) and of ours."""
    rivals = pd.read_csv(RIVALS, comment="#").dropna(subset=["relative_speed", "stsb_test"])
    points = [(each.model.split("/")[-1], each.relative_speed, each.stsb_test, GREY) for each in rivals.itertuples()]
    for folder in filter(is_encoder, published_folders(cards)):
        for model in read_json(folder / RESULTS)["benchmark"]["models"][1::2]:
            points.append((model["model"], model["speed"]["64"], 100 * model["scores"]["stsb_test"], BLUE))
    figure = Figure()
    axes = figure.subplots()
    for name, speed, score, color in points:
        axes.plot(speed, score, "o", color=color, markersize=4)
        axes.annotate(name, (speed, score), xytext=(5, 2), textcoords="offset points", color=color, fontsize=7)
    axes.set(xscale="log", xlabel="speed relative to all-MiniLM-L6-v2 in float32", ylabel="STS-B test")
    axes.set_xlim(0.4, 120)
    return figure


def write_index(cards: Path) -> Path:
    """Renews the tables and figures of the page, and returns its path."""
    grids = read_grids(cards)
    files = {cards / README: render(cards, grids).encode()}
    with matplotlib.rc_context(STYLE):
        figures = {grid["figure"]: curves_figure(grid) for grid in grids.values() if grid["figure"]}
        if RIVALS.is_file():
            figures["encoders.svg"] = encoders_figure(cards)
        for name, figure in figures.items():
            content = io.BytesIO()
            figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
            files[cards / name] = content.getvalue()
    for path, content in files.items():
        write_bytes(path, content)
    return cards / README
