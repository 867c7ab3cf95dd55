"""`leaner card`: README.md of published folders and of runs, from config.json and results.json, never by hand.

A published folder's results.json holds `evidence`, the cells of its grid; its card shows them all: a table, a figure,
what was not tested, the data and their terms.
"""

import argparse
import io
import itertools
import statistics
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, ModelCard, eval_result_entries_to_yaml
from matplotlib.figure import Figure

from . import report
from .card import auto_names, check_weights, metadata, read_run, run_card
from .comparison import MAX_P, MIN_PAIRS, NOT_LEARNED
from .continuations import LEAST
from .evidence import dataset_name


FIGURE = "evidence.png"
NO_COPY = f"none of {LEAST} words or more"
COLOURS = ("tab:blue", "tab:cyan", "tab:orange", "tab:red", "tab:green", "tab:purple", "tab:brown", "tab:pink")
NAMES = {"lean_vit": "LeanViT", "lean_bert": "LeanBERT", "lean_gpt": "LeanGPT"}
LIMITS = {
    "image-classification": "It sorts small photographs into the ten classes of its training set and knows no others.",
    "causal-lm": "It continues text, for experiments with shapes. What it says is not true and not for readers.",
    "masked-lm": "It is a starting point for fine-tuning small classifiers and for experiments with shapes.",
    "sequence-classification": "It is for experiments with shapes; no decision should rest on what it says of a text.",
}


def number(value: float | None, form: str) -> str:
    """A formatted number, a dash where it is unknown."""
    return "–" if value is None or value == {} else format(value, form)


def score(cell: dict[str, Any], form: str) -> str:
    """Mean ± sd (n) of a cell."""
    if cell["mean"] is None:
        return "not run"
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:{form}}"
    return f"{cell['mean']:{form}}{spread} ({cell['n']})"


def label(cell: dict[str, Any]) -> str:
    """A cell's layers and heads in words."""
    return f"{cell['layers']} layers × {cell['heads']} heads of {cell['head_dim']}"


def table(evidence: dict[str, Any], own: str) -> str:
    """The cells as a Markdown table, a column each, this model's in bold."""
    columns = [column(cell, evidence) for cell in evidence["cells"]]
    lines = []
    for name in columns[0]:
        values = [
            f"**{each[name]}**" if cell["shape"] == own else each[name]
            for each, cell in zip(columns, evidence["cells"])
        ]
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    return "\n".join([lines[0], "|---" * (1 + len(columns)) + "|", *lines[1:]])


def column(cell: dict[str, Any], evidence: dict[str, Any]) -> dict[str, str]:
    """One cell's column: what the row is called → what it says."""
    times, interval = cell["latency"] or {}, cell["interval"]
    one, many = (times.get(batch, {}) for batch in ("1", "32"))
    difference = "baseline" if cell["shape"] == evidence["baseline"] else number(cell["difference"], "+.4f")
    way = "higher" if evidence["higher_is_better"] else "lower"
    return {
        "": cell["shape"],
        "layers × heads × head size": f"{cell['layers']} × {cell['heads']} × {cell['head_dim']}",
        f"{evidence['metric']} ({way} is better), mean ± sd (seeds)": score(cell, ".4f"),
        "against the baseline, same seeds": difference,
        "95 % interval of it": "–" if interval is None else f"[{interval[0]:+.4f}, {interval[1]:+.4f}]",
        "parameters": number(cell["parameters"], ",d"),
        "of the baseline's": number(cell["parameters_over_baseline"], ".0%"),
        f"FLOPs of a forward pass, {cell['length']} tokens": f"{cell['flops_forward'] / 1e6:,.1f}M",
        "cache bytes a token (bf16)": number(cell["kv_bytes_per_token"], ",d"),
        "κ before → after training": f"{number(cell['kappa_start'], '.3g')} → {number(cell['kappa_end'], '.3g')}",
        "learning rate, chosen": number(cell["learning_rate"], "g"),
        "training, seconds": number(cell["seconds"], ",.0f"),
        "training, peak memory, GiB": number(cell["peak_memory_bytes"] and cell["peak_memory_bytes"] / 2**30, ".2f"),
        "inference, batch 1, ms": number(one and one["seconds"] * 1e3, ".1f"),
        "inference, batch 32, inputs/s": number(many and many["items_per_second"], ",.0f"),
    }


def figure(results: dict[str, Any]) -> bytes:
    """PNG: the metric against parameters, and against milliseconds where they were measured; every seed a dot."""
    evidence, content = results["evidence"], io.BytesIO()
    timed = any(cell["latency"] for cell in evidence["cells"])
    chart = Figure((11 if timed else 6, 4.2), layout="constrained")
    axes = chart.subplots(1, 1 + timed, squeeze=False, sharey=True)[0]
    for cell, colour in zip(evidence["cells"], itertools.cycle(COLOURS)):
        values = list(cell["values"].values())
        places = [cell["parameters"] / 1e6 if cell["parameters"] else None]
        if timed:
            places.append(cell["latency"]["1"]["seconds"] * 1e3 if cell["latency"] else None)
        for axis, place in zip(axes, places):
            if place is not None and values:
                axis.plot([place] * len(values), values, "o", color=colour, alpha=0.7, label=label(cell))
                axis.plot(place, statistics.fmean(values), "_", color=colour, markersize=18)
    chance = evidence["cells"][0].get("chance")
    way = "higher" if evidence["higher_is_better"] else "lower"
    for axis, unit in zip(axes, ("parameters, millions", "milliseconds for one input, batch 1")):
        if chance is not None and evidence["higher_is_better"]:
            axis.axhline(chance, color="grey", linestyle=":", label="always the commonest class")
        axis.set_xlim(0, axis.get_xlim()[1] * 1.05)
        axis.set(xlabel=unit, ylabel=f"{evidence['metric']}, {way} is better")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8, loc="best")
    seeds = len(evidence["seeds"])
    chart.suptitle(f"{dataset_name(results)}: {seeds} seeds a shape, each a dot, the bar their mean", fontsize=10)
    chart.savefig(content, format="png", dpi=110)
    return content.getvalue()


def eval_entries(results: dict[str, Any]) -> list[EvalResultEntry]:
    """The main metric in the Hub's newer form; none where the rows are not those of a dataset of the Hub."""
    if not results["evidence"]["hub"]:
        return []
    name = results["main_metric"].removeprefix("eval_")
    config = results.get("dataset_config") or "default"
    notes = f"{name} on {results['split']}, {results['rows']} rows, seed {results['seed']}"
    value = results["metrics"][f"eval_{name}"]
    return [EvalResultEntry(dataset_id=results["dataset"], task_id=config, value=value, notes=notes)]


def claims(evidence: dict[str, Any]) -> str:
    """What the numbers say, cell by cell. Whether quality was lost is decided over all grids, in the index."""
    lines = []
    for cell in evidence["cells"]:
        notes = "".join(f" Note: {note}." for note in cell["notes"])
        if cell["shape"] == evidence["baseline"] or cell["difference"] is None:
            lines += [f"- {cell['shape']}:{notes}"] if notes else []
            continue
        better = (cell["difference"] > 0) == evidence["higher_is_better"]
        said = f"{abs(cell['difference']):.4f} {'better' if better else 'worse'} than the baseline"
        said = said if cell["difference"] else "equal to the baseline"
        if cell["interval"] is None:
            certainty = "one pair of runs, which may be chance"
        else:
            sure = cell["interval"][0] * cell["interval"][1] > 0
            certainty = f"over {cell['pairs']} seeds; the 95 % interval {'excludes' if sure else 'includes'} 0"
        if cell["p_non_inferiority"] is not None:
            certainty += f"; p of a loss of {evidence['margin']:g} or more: {cell['p_non_inferiority']:.3g}"
        learned = " The baseline is not clearly better than guessing, so this says nothing."
        lines.append(
            f"- {cell['shape']}, {label(cell)}: {said}, {certainty}."
            + (learned if cell["verdict"] == NOT_LEARNED else "")
            + notes
        )
    return "\n".join(lines) or "- No cell has been compared yet."


def notes_on(evidence: dict[str, Any]) -> str:
    """The reference run, the guesses, and what the table's rows are."""
    lines = []
    base = next(cell for cell in evidence["cells"] if cell["shape"] == evidence["baseline"])
    if (peer := evidence["reference"]) is not None:
        lines.append(
            "transformers' own model of the baseline's shape, tuned and trained alike, at learning rate "
            f"{peer['learning_rate']:g}: {score(peer, '.4f')}; the baseline here: {score(base, '.4f')}."
        )
    else:
        lines.append("transformers' own model of the baseline's shape was not trained by this recipe yet.")
    if guesses := evidence.get("guesses"):
        said = ", ".join(f"{each['name']} {each['value']:.4f}" for each in guesses)
        lines.append(f"Without a transformer the same metric is: {said}.")
    elif base.get("chance") is not None:
        lines.append(f"A guess that reads nothing has {base['chance']:.4f}.")
    lines.append(
        "κ is σ_max/σ_min of the concatenated head outputs: the median over 8 held-out rows and over the layers, the "
        "mean over the seeds, – where it was infinite. FLOPs are those of the matrix products, for one input of the "
        "stated length. Times of training are of runs that shared the machine; inference was measured in turns"
        + (f" on {evidence['latency_on']}." if evidence["latency_on"] else ", but not here yet.")
    )
    return "\n\n".join(lines)


def beside(evidence: dict[str, Any]) -> str:
    """The cells of another grid, and of the one beside that; or nothing."""
    other = evidence["beside"]
    if other is None:
        return ""
    differs = ", ".join(f"{key} {value}" for key, value in (other["overrides"] or {}).items())
    return f"""
## Beside it: the grid `{other["grid"]}`

Recipe `{other["recipe"]}`{f" with {differs}" if differs else ""}.

{table(other, "")}

{claims(other)}
{beside(other)}"""


def fine_tuned(evidence: dict[str, Any]) -> str:
    """The cells after fine-tuning, a line for each grid that started from their weights; or nothing."""
    if not evidence["fine_tuned"]:
        return ""
    shapes = [cell["shape"] for cell in evidence["cells"]]
    lines = ["| task | " + " | ".join(shapes) + " | guess |", "|---" * (len(shapes) + 2) + "|"]
    for each in evidence["fine_tuned"]:
        cells = {cell["shape"]: cell for cell in each["cells"]}
        said = [score(cells[shape], ".4f") if shape in cells else "not run" for shape in shapes]
        way = "higher" if each["higher_is_better"] else "lower"
        guess = number(each["cells"][0]["chance"], ".4f")
        name = f"`{each['grid']}`" + (", weights published" if each["published"] else "")
        lines.append(f"| {name}, {each['metric']} ({way} is better) | {' | '.join(said)} | {guess} |")
    return f"""
## After fine-tuning

Mean ± sd (seeds) on the validation split, each seed from its own pretraining. The numbers come from the results.csv of
the grids named; where no weights are published, only the sweep gets them again.

{chr(10).join(lines)}
"""


def chosen(evidence: dict[str, Any]) -> str:
    """How the learning rates came about."""
    if evidence["tuning"] is None:
        return "The learning rate was the same for every cell and was not tuned; nor was anything else."
    tuning = evidence["tuning"]
    shorter = ", ".join(f"{key} {value}" for key, value in (tuning["overrides"] or {}).items())
    rates = ", ".join(f"{rate:g}" for rate in evidence["learning_rates"])
    return (
        f"Only the learning rate was tuned for each cell, among {rates}, with seed {tuning['seed']} on "
        f"{tuning['holdout']:,} rows of the training split that are not reported"
        + (f", in runs of {shorter}, which may favour what learns quickly." if shorter else ".")
    )


def untested(evidence: dict[str, Any], results: dict[str, Any]) -> str:
    """What a reader might take for granted and should not."""
    margin = "a margin" if evidence["margin"] is None else f"a margin of {evidence['margin']:g}"
    lines = [
        f"One width ({evidence['cells'][0]['width']}), one MLP width, one recipe and one length of training; larger "
        "models and longer training may order the cells otherwise.",
        f"Seeds a cell: {len(evidence['seeds'])}. “No loss of quality” would need {MIN_PAIRS} or more, and "
        f"p < {MAX_P:g} against {margin} fixed before the first run, corrected over the tasks.",
        chosen(evidence),
        "Speed on accelerators, long inputs, and robustness to other data.",
    ]
    if results["task"] in ("causal-lm", "masked-lm") and not results["continuations"]:
        lines.append("What the model has learned by heart from its training text.")
    return "\n".join(f"- {line}" for line in lines)


def written(results: dict[str, Any]) -> str:
    """What a language model writes, and how much of it is copied; or nothing."""
    said = results["continuations"]
    if said is None:
        return ""
    quotes = "\n\n".join(
        "> " + f"**{each['prompt']}**{each['continuation']}".replace("\n", "\n> ") for each in said["texts"][:2]
    )
    copy = f"“{said['longest_copy']}”, {said['longest_copy_words']} words" if said["longest_copy"] else NO_COPY
    return f"""
## What it writes

The first {said["prompt_words"]} words of {len(said["texts"])} held-out rows, continued by {said["new_tokens"]} tokens
at most, sampled at temperature {said["temperature"]:g} with seed {said["seed"]}; the first two are here, all
are in results.json. The longest run of words that also occurs in a training row: {copy}. `leaner publish` drew and
compared them; `leaner verify-cards` does not repeat that, since sampling differs from machine to machine.

{quotes}
"""


def data_section(results: dict[str, Any]) -> str:
    """What it was trained and evaluated on, and on what terms."""
    evidence, training = results["evidence"], results.get("training_data") or {}
    stated = evidence["data"] or f"{results['dataset']}, as its owners publish it."
    seen = f"{training['rows']:,} rows" if training.get("rows") else "an unknown number of rows"
    seen += f" (sha256 of what they hold: `{training['sha256'][:16]}…`)" if training.get("sha256") else ""
    copy = " From a local copy." if training.get("local") and not evidence["hub"] else ""
    return (
        f"{stated} Trained on {seen}, evaluated on {results['rows']:,} (`{results['data_sha256'][:16]}…`).{copy}\n\n"
        "The weights and the code are under Apache-2.0; the terms of the data are their owners'."
    )


def commands(results: dict[str, Any], command: str) -> str:
    """What gets the card's numbers again, and where its rows come from."""
    name, data = results["name"], dataset_name(results)
    if "/" not in results["dataset"]:
        source = "rows are generated"
    elif results["evidence"]["hub"]:
        source = f"rows from the Hub, or --data_files {data}=FOLDER"
    else:
        source = f"with --data_files {data}=FOLDER, the copy described above"
    grid = results["evidence"]["grid"]
    return (
        f"leaner verify-cards model_cards/{name}   # {source}\nleaner evaluate model_cards/{name}\n{command}\n"
        f"leaner sweep training/grids/{grid}.yaml   # every cell; leaner publish writes this folder from its runs"
    )


def own_cell(folder: Path, results: dict[str, Any]) -> dict[str, Any]:
    """The cell that the folder is of. Raises ValueError where its numbers are not the folder's."""
    evidence, file = results["evidence"], folder / "results.json"
    own = next((cell for cell in evidence["cells"] if cell["shape"] == results["cell"]), None)
    if own is None:
        raise ValueError(f"{file}: cell is {results['cell']!r}, expected a shape of evidence.cells")
    main = results["metrics"].get(f"eval_{evidence['metric']}")
    for field, here, there in (
        ("evidence.cells.parameters", own["parameters"], results["parameters"]),
        ("evidence.cells.values", own["values"].get(str(results["seed"])), main),
    ):
        if here != there:
            raise ValueError(f"{file}: {field} is {here} for {own['shape']}, expected {there} of this model")
    return own


def published_card(folder: Path, config: Any, results: dict[str, Any], command: str) -> str:
    """The text of a published folder's card. Raises ValueError as of `own_cell`."""
    evidence, name, own = results["evidence"], results["name"], own_cell(folder, results)
    train, machine = results["train"], results["environment"]
    auto, processing = auto_names(config, results["architecture"])
    seeds, software = ", ".join(map(str, evidence["seeds"])), evidence["software"] | {"commit": machine["git_commit"]}
    role = "the baseline" if own["shape"] == evidence["baseline"] else "a variant of the baseline"
    metrics = {key.removeprefix("eval_"): value for key, value in sorted(results["metrics"].items())}
    ended, held_out = number(train["loss"], ".4f"), number(metrics.get("loss"), ".4f")
    lines = "\n".join(f"| {key} | {value:.4f} |" for key, value in metrics.items())
    return f"""---
{metadata(results, metrics, hub=evidence["hub"])}
---

# {name}

{NAMES[config.model_type]} with {label(own)}, width {own["width"]}, {results["parameters"]:,} parameters: {role} of a
comparison of layers and heads on {dataset_name(results)}; seed {results["seed"]} of {seeds}. Published with it:
{", ".join(f"`{each}`" for each in results["partners"]) or "no other folder"}.

{auto.removeprefix("AutoModelFor")} on {results["rows"]:,} held-out rows ({results["split"]}), from these very weights:

| metric | value |
|---|---|
{lines}

## The comparison: layers × heads at one width

Every cell was trained by the same file, with the same data in the same order for each seed. This model is in bold.

{table(evidence, own["shape"])}

{claims(evidence)}

{notes_on(evidence)}

![{evidence["metric"]} against parameters and milliseconds, every seed a dot]({FIGURE})

It saw its training rows {train["epochs"]:.2g} times. Loss at the end: {ended} over the last training steps,
{held_out} held out.

![Loss and metric of this run against steps](training.png)
{written(results)}{fine_tuned(evidence)}{beside(evidence)}
## What was not tested

{untested(evidence, results)}

## Use

```python
from transformers import {", ".join(sorted((auto, processing)))}
model = {auto}.from_pretrained("model_cards/{name}", trust_remote_code=True)
processing = {processing}.from_pretrained("model_cards/{name}", trust_remote_code=True)
```

{LIMITS.get(results["task"], "It is for experiments with shapes.")}

## Data and licence

{data_section(results)}

## How to get the numbers again

```bash
{commands(results, command)}
```

This run: {train["seconds"]:,.0f} s for {train["steps"]:,} steps, {report.machine(machine)}.
The grid: {evidence["runs"]} runs, {evidence["failed"]} of them failed,
{evidence["hours"]:.1f} hours together, on {"; ".join(evidence["processor"])}; all of them are in
`model_cards/grids/{evidence["grid"]}/results.csv`.
Software: {", ".join(f"{name} {each}" for name, each in software.items())}.
"""


def render(folder: Path) -> tuple[str, dict[str, Any]]:
    """The card's text and the results. Raises ValueError where config, results and weights do not fit each other."""
    config, results, _, command = read_run(folder)
    check_weights(folder, results["architecture"], config)
    if "evidence" not in results:
        return run_card(folder), results
    return str(ModelCard(published_card(folder, config, results, command))), results


def eval_results(results: dict[str, Any]) -> str | None:
    """What `.eval_results/results.yaml` holds; None where there is nothing for the Hub to show."""
    entries = eval_result_entries_to_yaml(eval_entries(results))
    return yaml.safe_dump(entries, sort_keys=False) if entries else None


def write_card(folder: Path) -> None:
    """README.md, of a published folder also its figure and `.eval_results/`; each whole, and once all is known."""
    text, results = render(folder)
    if "evidence" in results:
        report.write_bytes(folder / FIGURE, figure(results))
        if entries := eval_results(results):
            (folder / ".eval_results").mkdir(exist_ok=True)
            report.write_bytes(folder / ".eval_results" / "results.yaml", entries.encode())
    report.write_bytes(folder / "README.md", text.encode())


def main(argv: list[str]) -> None:
    """The command; status 1 and one line for a folder that does not hold together."""
    from .index import write_index

    about = "Write README.md from config.json and results.json; without a folder, all published ones and the index."
    parser = argparse.ArgumentParser(prog="leaner card", description=about)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run folder or a published one")
    folders, cards = parser.parse_args(argv).folders, Path("model_cards")
    try:
        for folder in folders or sorted(path.parent for path in cards.glob("*/results.json")):
            write_card(folder)
            print(folder / "README.md")
        if not folders:
            print(write_index(cards))
    except (ValueError, OSError) as error:
        raise SystemExit(f"leaner card: {' '.join(str(error).split())}") from error
