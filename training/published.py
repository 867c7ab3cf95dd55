"""`leaner card`: README.md of published folders and of runs, from config.json and results.json, never by hand.

A published folder's results.json holds `evidence`, the cells of its grid; its card shows them all: a table, a figure,
what was not tested, the data and their terms.
"""

import argparse
import contextlib
import io
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, ModelCard, eval_result_entries_to_yaml
from matplotlib.figure import Figure

from . import report
from .card import auto_names, check_fields, check_weights, metadata, read_run, run_card
from .comparison import MAX_P, MIN_PAIRS, NOT_LEARNED
from .continuations import LEAST
from .evidence import KINDS, baseline_of, check_evidence_fields, dataset_name, kind
from .grid import is_folder_name


FIGURE = "evidence.png"
PUBLISHED = {  # of results.json beside `card.FIELDS`, of a published folder; what ends in ? may be missing or null
    str: "name cell weights_sha256 data_sha256 training_data.sha256?",
    list: "partners",
    dict: "evidence continuations? training_data?",
    int: "training_data.rows?",
    float: "train.epochs",
    bool: "training_data.local?",
}
NO_COPY = f"none of {LEAST} words or more"
COLOURS = dict(zip(KINDS, ("tab:blue", "tab:cyan", "tab:orange", "tab:red")))
FURTHER = ("tab:green", "tab:purple", "tab:brown", "tab:pink")  # of cells that differ otherwise
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
    way, at_a_time = "higher" if evidence["higher_is_better"] else "lower", " or ".join(map(str, cell["jobs"]))
    metric = f"{evidence['metric']} ({way} is better)" if evidence["metric"] else "metric, not yet known"
    return {
        "": cell["shape"],
        "layers × heads × head size": f"{cell['layers']} × {cell['heads']} × {cell['head_dim']}",
        f"{metric}, mean ± sd (seeds)": score(cell, ".4f"),
        "against the baseline, same seeds": difference,
        "95 % interval of it": "–" if interval is None else f"[{interval[0]:+.4f}, {interval[1]:+.4f}]",
        "parameters": number(cell["parameters"], ",d"),
        "of the baseline's": number(cell["parameters_over_baseline"], ".0%"),
        f"FLOPs of a forward pass, {cell['length']} tokens": f"{cell['flops_forward'] / 1e6:,.1f}M",
        "cache bytes a token (bf16)": number(cell["kv_bytes_per_token"], ",d"),
        "κ before → after training": f"{number(cell['kappa_start'], '.3g')} → {number(cell['kappa_end'], '.3g')}",
        "learning rate": number(cell["learning_rate"], "g"),
        "training, seconds (runs at a time)": f"{number(cell['seconds'], ',.0f')} ({at_a_time or '–'})",
        "training, largest memory, GiB": number(
            cell["peak_memory_bytes"] and cell["peak_memory_bytes"] / 2**30, ".2f"
        ),
        "inference, batch 1, ms": number(one and one["seconds"] * 1e3, ".1f"),
        "inference, batch 32, inputs/s": number(many and many["items_per_second"], ",.0f"),
    }


def is_timed(evidence: dict[str, Any]) -> bool:
    """Whether milliseconds of inference are known of any cell."""
    return any(cell["latency"] for cell in evidence["cells"])


def figure(results: dict[str, Any]) -> bytes:
    """PNG: the metric against parameters, and against milliseconds where they were measured; every seed a dot."""
    evidence, content = results["evidence"], io.BytesIO()
    timed = is_timed(evidence)
    chart = Figure((11 if timed else 6, 4.6), layout="constrained")
    axes = chart.subplots(1, 1 + timed, squeeze=False, sharey=True)[0]
    further = itertools.cycle(FURTHER)
    for cell in evidence["cells"]:
        colour = COLOURS.get(kind(cell, evidence)) or next(further)
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
    chart.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    seeds = len(evidence["seeds"])
    dots = f"{seeds} seeds a shape, each a dot, the bar their mean" if seeds > 1 else "one seed a shape"
    chart.suptitle(f"{dataset_name(results)}: {dots}", fontsize=10)
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
        if cell["verdict"] == NOT_LEARNED:
            certainty += "; not learned: the baseline is not clearly better than guessing, so this says nothing"
        elif evidence["margin"] is None or cell["pairs"] < MIN_PAIRS:
            few = f" fewer than the {MIN_PAIRS} seeds" if cell["pairs"] < MIN_PAIRS else "out the margin"
            certainty += f"; undecided, with{few} that a verdict needs"
        elif cell["p_non_inferiority"] is not None:
            against = f"being worse by {evidence['margin']:g} or more"
            certainty += f"; one-sided p against {against}, not corrected: {cell['p_non_inferiority']:.3g}"
        lines.append(f"- {cell['shape']}, {label(cell)}: {said}, {certainty}.{notes}")
    alone = "One cell, with nothing to compare in this grid." if len(evidence["cells"]) == 1 else ""
    return "\n".join(lines) or f"- {alone or 'No cell has been compared yet.'}"


def notes_on(evidence: dict[str, Any]) -> str:
    """The reference run, the guesses, and what the table's rows are."""
    lines, base = [], baseline_of(evidence)
    if (peer := evidence["reference"]) is not None:
        lines.append(
            "transformers' own model of the baseline's shape, tuned and trained alike, at learning rate "
            f"{peer['learning_rate']:g}: {score(peer, '.4f')}; the baseline here: {score(base, '.4f')}."
        )
    elif (evidence["overrides"] or {}).get("implementation") != "transformers":
        lines.append("transformers' own model of the baseline's shape has not been trained this way.")
    if evidence.get("start_seed") is not None:
        lines.append(
            f"All runs start from the weights of the same seed, {evidence['start_seed']}: what differs between seeds "
            "is the fine-tuning alone, and intervals do not include the chance of the pretraining."
        )
    if guesses := evidence.get("guesses"):
        names, values = (" | ".join(each) for each in zip(*((one["name"], f"{one['value']:.4f}") for one in guesses)))
        lines.append(
            f"| without a transformer | {names} |\n{'|---' * (1 + len(guesses))}|\n| {evidence['metric']} | {values} |"
        )
    elif base.get("chance") is not None:
        lines.append(f"A guess that reads nothing has {base['chance']:.4f}.")
    lines.append(
        "κ is σ_max/σ_min of the concatenated head outputs: the median over 8 held-out rows and over the layers, the "
        "mean over the seeds, – where it was infinite. FLOPs are those of the matrix products, for one input of the "
        "stated length. Intervals are not corrected for the number of comparisons. Times of training are means over "
        "the seeds, of runs that shared the machine with other work; memory is the most that the process "
        "held, on a GPU what its tensors took there, the largest of the seeds. Inference was "
        + (
            f"measured in turns on {evidence['latency_on']}: compare it within this table, not with another's."
            if evidence["latency_on"]
            else "not timed yet."
        )
    )
    return "\n\n".join(lines)


def how_trained(evidence: dict[str, Any]) -> str:
    """A grid's recipe with its overrides, and where its weights start from."""
    differs = ", ".join(f"{key} {value}" for key, value in (evidence["overrides"] or {}).items())
    start = "" if evidence.get("start_seed") is None else f"seed {evidence['start_seed']} of "
    start = f"; from the weights of {start}`{evidence['start_from']}`" if evidence.get("start_from") else ""
    return f"Recipe `{evidence['recipe']}`{f' with {differs}' if differs else ''}{start}."


def beside(evidence: dict[str, Any]) -> str:
    """The cells of another grid, and of the one beside that; or nothing."""
    other = evidence["beside"]
    if other is None:
        return ""
    apart = "Times of inference are to be compared within one table alone."
    if other["recipe"] != evidence["recipe"]:
        apart = "Another recipe: compare its numbers with each other, not with those above."
    return f"""
## Beside it: the grid `{other["grid"]}`

{how_trained(other)} {apart}

{table(other, "")}

{claims(other)}
{beside(other)}"""


def fine_tuned(evidence: dict[str, Any]) -> str:
    """The cells after fine-tuning, a line for each grid that started from their weights; or nothing."""
    if not evidence["fine_tuned"]:
        return ""
    shapes = [cell["shape"] for cell in evidence["cells"]]
    lines = ["| task | pretraining | " + " | ".join(shapes) + " | guess |", "|---" * (len(shapes) + 3) + "|"]
    for each in evidence["fine_tuned"]:
        cells = {cell["shape"]: cell for cell in each["cells"]}
        said = [score(cells[shape], ".4f") if shape in cells else "not run" for shape in shapes]
        way = "higher" if each["higher_is_better"] else "lower"
        guess = number(each["cells"][0]["chance"], ".4f") + (", not learned" if each.get("learned") is False else "")
        name = f"`{each['grid']}`" + (", weights published" if each["published"] else "")
        start = "its own" if each["start_seed"] is None else f"seed {each['start_seed']}'s"
        lines.append(f"| {name}, {each['metric']} ({way} is better) | {start} | {' | '.join(said)} | {guess} |")
    return f"""
## After fine-tuning

Mean ± sd (seeds) on the validation split; the pretraining is each seed's own or one seed's for all. The numbers come
from the results.csv of the grids named; where no weights are published, only the sweep gets them again.

{chr(10).join(lines)}
"""


def duration(hours: float) -> str:
    """Hours in words, minutes where they are fewer than one."""
    minutes = f"{60 * hours:.0f}"
    return f"{hours:.1f} hours" if hours >= 1 else f"{minutes} minute{'' if minutes == '1' else 's'}"


def rows_of(results: dict[str, Any]) -> str:
    """What the training data is counted in: language models pack documents into rows of one length."""
    return "documents" if results["task"] in ("causal-lm", "masked-lm") else "rows"


def chosen(evidence: dict[str, Any], unit: str) -> str:
    """How the learning rates came about."""
    if evidence["tuning"] is None:
        return "The learning rate was the same for every cell and was not tuned; nor was anything else."
    tuning = evidence["tuning"]
    shorter = ", ".join(f"{key} {value}" for key, value in (tuning["overrides"] or {}).items())
    rates = ", ".join(f"{rate:g}" for rate in evidence["learning_rates"])
    seeds = tuning.get("seeds") or [tuning["seed"]]  # of cards that were written before there could be several
    with_seeds = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return (
        f"Only the learning rate was tuned for each cell, among {rates}, with {with_seeds} on "
        f"{tuning['holdout']:,} {unit} of the training split that are not reported"
        + (f", in runs of {shorter}, which may favour what learns quickly." if shorter else ".")
    )


def untested(evidence: dict[str, Any], results: dict[str, Any]) -> str:
    """What a reader might take for granted and should not."""
    cell, seeds = evidence["cells"][0], len(evidence["seeds"])
    margin = "a margin" + ("" if evidence["margin"] is None else f" of {evidence['margin']:g}")
    rule = f"p < {MAX_P:g} against {margin} fixed before the first run, corrected over the tasks"
    if seeds < MIN_PAIRS:
        verdict = f"“No loss of quality” would need {MIN_PAIRS} or more, and {rule}."
    else:
        verdict = (
            f"“No loss of quality” needs {rule}: the project's index of all grids decides it, not this card; whether "
            "seeds were added after others had been seen is in the project's log."
        )
    lines = [
        f"One width ({cell['width']}), one MLP width ({cell['mlp']}), one recipe and one length of training; larger "
        "models and longer training may order the cells otherwise.",
        f"Seeds a cell: {seeds}. {verdict}",
        chosen(evidence, rows_of(results)),
        "Speed on accelerators, long inputs, and robustness to other data.",
    ]
    if results["task"] in ("causal-lm", "masked-lm") and not results.get("continuations"):
        lines.append("What the model has learned by heart from its training text.")
    return "\n".join(f"- {line}" for line in lines)


def written(results: dict[str, Any]) -> str:
    """What a language model writes, and how much of it is copied; or nothing."""
    said = results.get("continuations")
    if said is None:
        return ""
    quotes = "\n\n".join(
        "> " + f"**{each['prompt']}**{each['continuation']}".replace("\n", "\n> ") for each in said["texts"][:2]
    )
    copy = f"“{said['longest_copy']}”, {said['longest_copy_words']} words" if said["longest_copy"] else NO_COPY
    return f"""
## What it writes

The first {said["prompt_words"]} words of {len(said["texts"])} held-out documents, continued by {said["new_tokens"]}
tokens at most, sampled at temperature {said["temperature"]:g} with seed {said["seed"]}; the first two are here, all
are in results.json. The longest run of words that also occurs in a training document: {copy}.
`leaner publish` drew and compared them; `leaner verify-cards` does not repeat that, since sampling differs from one
machine to another.

{quotes}
"""


def limits_of_inputs(config: Any, results: dict[str, Any]) -> str:
    """Where the recipe cut the inputs, in tokens; nothing for images, which have one size."""
    length, positions = results["recipe"].get("max_length"), getattr(config, "max_position_embeddings", None)
    if length is None or positions is None:
        return ""
    rest = f"; of the {positions} positions those beyond its longest row have not been trained"
    rest = rest if positions > length else ""
    return f" Its training cut inputs at {length} tokens{rest}."


def data_section(results: dict[str, Any]) -> str:
    """What it was trained and evaluated on, and on what terms."""
    evidence, training = results["evidence"], results.get("training_data") or {}
    stated = evidence["data"] or f"{results['dataset']}, as its owners publish it."
    unit = rows_of(results)
    seen = f"{training['rows']:,} {unit}" if training.get("rows") else f"an unknown number of {unit}"
    seen += f" (sha256 of what they hold: `{training['sha256'][:16]}…`)" if training.get("sha256") else ""
    evaluated = f"{results['rows']:,}" + (" rows cut from held-out documents" if unit == "documents" else "")
    copy = " From a local copy, which no command here makes." if is_local(results) else ""
    return (
        f"{stated} Trained on {seen}, evaluated on {evaluated} (`{results['data_sha256'][:16]}…`).{copy}\n\n"
        "The weights and the code are under Apache-2.0; the terms of the data are their owners'."
    )


def is_local(results: dict[str, Any]) -> bool:
    """Whether its rows are neither generated nor those of a dataset of the Hub."""
    return "/" in results["dataset"] and not results["evidence"]["hub"]


def commands(results: dict[str, Any], command: str) -> str:
    """What gets the card's numbers again, and where its rows come from."""
    name, data, evidence = results["name"], dataset_name(results), results["evidence"]
    grid, start = evidence["grid"], evidence.get("start_from")
    named, files = (f" --data_files {data}=FOLDER", " --data_files FOLDER") if is_local(results) else ("", "")
    source = "rows are generated" if "/" not in results["dataset"] else f"rows from the Hub, or --data_files {data}=…"
    source = "FOLDER: the copy described below “Data”" if files else source
    training = f" --data_files {evidence['data_files']}" if files and evidence.get("data_files") else files
    anew = "every cell, trained anew" + (f"; names the runs of {start} that it needs" if start else "")
    return (
        f"leaner verify-cards model_cards/{name}{named}   # {source}\n"
        f"leaner evaluate model_cards/{name}{files}\n{command}{training}\n"
        f"leaner sweep training/grids/{grid}.yaml --output_dir runs/{grid}{training}   # {anew}"
    )


def own_cell(folder: Path, config: Any, results: dict[str, Any]) -> dict[str, Any]:
    """The cell that the folder is of. Raises ValueError where its numbers are not the folder's."""
    evidence, file = results["evidence"], folder / "results.json"
    own = next((cell for cell in evidence["cells"] if cell["shape"] == results["cell"]), None)
    if own is None:
        raise ValueError(f"{file}: cell is {results['cell']!r}, expected a shape of evidence.cells")
    main = results["metrics"].get(f"eval_{evidence['metric']}")
    sizes = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "head_dim": "head_dim"}
    sizes |= {"width": "hidden_size", "mlp": "intermediate_size"}
    for field, here, there in (
        *((f"evidence.cells.{name}", own[name], getattr(config, key)) for name, key in sizes.items()),
        ("evidence.cells.parameters", own["parameters"], results["parameters"]),
        ("evidence.cells.values", own["values"].get(str(results["seed"])), main),
    ):
        if here != there:
            raise ValueError(f"{file}: {field} is {here} for {own['shape']}, expected {there} of this model")
    return own


def introduction(config: Any, results: dict[str, Any], own: dict[str, Any]) -> str:
    """What it is, its partners, and the numbers that its own weights give."""
    evidence = results["evidence"]
    role = "the baseline" if own["shape"] == evidence["baseline"] else "a variant of the baseline"
    seeds, partners = ", ".join(map(str, evidence["seeds"])), ", ".join(f"`{each}`" for each in results["partners"])
    seeds = f"{results['seed']} of {seeds}" if len(evidence["seeds"]) > 1 else f"{results['seed']}, the only one"
    start = evidence.get("start_from")
    seed = "the same seed" if evidence.get("start_seed") is None else f"seed {evidence['start_seed']}"
    start = f" It started from the weights that the grid `{start}` trained with {seed}." if start else ""
    metrics = "\n".join(f"| {name} | {value:.4f} |" for name, value in named_metrics(results).items())
    shape = f"{label(own)}, width {own['width']}, {results['parameters']:,} parameters"
    return f"""{NAMES[config.model_type]} with {shape}: {role} of a
comparison of layers and heads on {dataset_name(results)}; seed {seeds}.{start} Published with it:
{partners or "no other folder"}.

{results["architecture"].split("For")[-1]} on {results["rows"]:,} held-out rows ({results["split"]}),
from these very weights:

| metric | value |
|---|---|
{metrics}
"""


def named_metrics(results: dict[str, Any]) -> dict[str, float]:
    """The metrics of the evaluation without `eval_`, by name."""
    return {key.removeprefix("eval_"): value for key, value in sorted(results["metrics"].items())}


def run_and_grid(results: dict[str, Any]) -> str:
    """Hardware, hours and software, of this run and of all runs of the grid."""
    evidence, train, machine = results["evidence"], results["train"], results["environment"]
    software = ", ".join(f"{name} {' and '.join(each)}" for name, each in evidence["software"].items())
    commits = ", ".join(f"`{each[:12]}`" for each in evidence["commits"]) or "unknown"
    repeated = f", {evidence['failures']} further attempts failed and were repeated" if evidence["failures"] else ""
    return f"""This run: {train["seconds"]:,.0f} s for {train["steps"]:,} steps, {report.machine(machine)}.
The grid: {evidence["runs"]} runs, {evidence["failed"]} of them failed{repeated},
{duration(evidence["hours"])} together without failed ones, on {"; ".join(evidence["processor"])}; all of them are in
`model_cards/grids/{evidence["grid"]}/results.csv`. Their software: {software}; commits of this project: {commits}.
"""


def published_card(folder: Path, config: Any, results: dict[str, Any], command: str) -> str:
    """The text of a published folder's card. Raises ValueError as of `own_cell`."""
    evidence, name, own = results["evidence"], results["name"], own_cell(folder, config, results)
    auto, processing = auto_names(config, results["architecture"])
    metrics, train = named_metrics(results), results["train"]
    epochs = "1 epoch" if f"{train['epochs']:.2g}" == "1" else f"{train['epochs']:.2g} epochs"
    ended, held_out = number(train.get("loss"), ".4f"), number(metrics.get("loss"), ".4f")
    smoothing = results["recipe"].get("label_smoothing_factor")
    smoothed = f" (with labels smoothed by {smoothing:g}, which raises it)" if smoothing else ""
    against = "parameters and milliseconds" if is_timed(evidence) else "parameters"
    return f"""---
{metadata(results, metrics, hub=evidence["hub"])}
---

# {name}

{introduction(config, results, own)}
## The comparison: layers × heads at one width

Every cell was trained by the same file, with the same data in the same order for each seed. This model is in bold.

{table(evidence, own["shape"])}

{claims(evidence)}

{notes_on(evidence)}

![{evidence["metric"]} against {against}, every seed a dot]({FIGURE})

This model was trained for {epochs}. Loss at the end: {ended} over the last training steps{smoothed},
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

{LIMITS.get(results["task"], "It is for experiments with shapes.")}{limits_of_inputs(config, results)}
The paths above and below are those in a clone of the project; elsewhere, put this folder's own.

## Data and licence

{data_section(results)}

## How to get the numbers again

```bash
{commands(results, command)}
```

{run_and_grid(results)}"""


def check_published(folder: Path, results: dict[str, Any]) -> None:
    """Raises ValueError, naming file and field, where something that the card says is missing or of another type."""
    file, values = folder / "results.json", report.flat(folder / "results.json", results)
    check_fields(file, values, PUBLISHED)
    with complete(file):
        check_evidence_fields(file, values, "evidence.")
    for name in (results["name"], *results["partners"]):
        report.require(
            is_folder_name(name), file, "name, partners", name, "a folder's name of a-z, 0-9, dots and hyphens"
        )
    weights = folder / "model.safetensors"
    there = report.sha256(weights) if weights.is_file() else None
    if there != results["weights_sha256"]:
        said = "missing" if there is None else f"weights_sha256 differs, {there} in place of {file}'s"
        raise ValueError(f"{weights}: {said}")


@contextlib.contextmanager
def complete(file: Path) -> Iterator[None]:
    """Raises ValueError where a field is missing or wrong that lies so deep that no list of fields has it."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        if str(file) in str(error):
            raise
        raise ValueError(f"{file}: {type(error).__name__} {error}; leaner publish writes it") from error


def render(folder: Path) -> tuple[str, dict[str, Any]]:
    """The card's text and the results. Raises ValueError where config, results and weights do not fit each other."""
    config, results, _, command = read_run(folder)
    check_weights(folder, results["architecture"], config)
    if "evidence" not in results and "weights_sha256" not in results:
        return run_card(folder), results
    check_published(folder, results)
    with complete(folder / "results.json"):
        return str(ModelCard(published_card(folder, config, results, command))), results


def eval_results(results: dict[str, Any]) -> str | None:
    """What `.eval_results/results.yaml` holds; None where there is nothing for the Hub to show."""
    entries = eval_result_entries_to_yaml(eval_entries(results))
    return yaml.safe_dump(entries, sort_keys=False) if entries else None


def write_card(folder: Path) -> None:
    """README.md, of a published folder also its figure and `.eval_results/`; each whole, and once all is known."""
    text, results = render(folder)
    if "evidence" in results:
        with complete(folder / "results.json"):
            chart = figure(results)
        report.write_bytes(folder / FIGURE, chart)
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
