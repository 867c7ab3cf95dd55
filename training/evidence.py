"""What a grid says of its cells, as results.json holds it, and how a published card shows it: table, figure, words."""

import io
import statistics
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResultEntry
from matplotlib.figure import Figure

from modeling_leaner.shapes import load_config

from . import latency
from .sweep import Grid, Row, Run, read_rows, summarise, tune


FIGURE = "evidence.png"
PEERS = "-transformers"  # the output_dir of the grid that trains transformers' own model as the reference
DATASETS = {  # name → what it is, where it comes from, and its terms
    "cifar10": "CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 10 classes. No explicit "
    "licence; customary for research",
    "enwik8": "Articles of enwik8, the first 10^8 bytes of the English Wikipedia of 2006-03-03, wiki markup stripped. "
    "Text: CC BY-SA 3.0 and GFDL",
    "TinyStories": "TinyStories (Eldan and Li 2023, arXiv 2305.07759), CDLA-Sharing-1.0",
    "sst2": "SST-2 (Socher et al. 2013, by way of GLUE): 67,349 training phrases and 872 validation sentences. No "
    "explicit licence",
    "cola": "CoLA (Warstadt et al. 2019, by way of GLUE): 8,551 training and 1,043 validation sentences from "
    "published works, for research",
    "listops-short": "ListOps expressions of 25-100 tokens, generated here by the rules of Long Range Arena (Tay et "
    "al. 2020, arXiv 2011.04006) but for their lengths, which are 500-2,000 there. Free of terms",
}


def dataset_name(results: dict[str, Any]) -> str:
    """The short name of a run's dataset."""
    return results.get("dataset_config") or results["dataset"].split("/")[-1]


def cells(grid: Grid, rows: dict[Run, Row]) -> list[dict[str, object]]:
    """Of each shape: sizes, counts, every seed's value, the paired comparison, conditioning, time and memory."""
    timing = latency.read(grid)
    found = []
    for said in summarise(grid, rows)["shapes"]:
        config = load_config(said["shape"])
        runs = [rows.get(Run("report", said["shape"], seed, said["learning_rate"]), {}) for seed in grid.seeds]
        done = [row for row in runs if row.get("status") == "finished"]
        flops = config.count_flops(length=timing["length"]) if timing and timing["length"] else config.count_flops()
        found.append(
            {key: value for key, value in said.items() if key not in ("pairs",)}
            | {"layers": config.num_hidden_layers, "width": config.hidden_size, "heads": config.heads_per_layer[0]}
            | {"head_dim": config.head_dim, "mlp": config.intermediate_size, "length": flops.length}
            | {"flops_forward": flops.forward, "flops_training": flops.training_step}
            | {"kv_bytes_per_token": config.kv_bytes_per_token()}
            | {"values": {str(row["seed"]): row["value"] for row in done}}
            | {"failed": len([row for row in runs if row.get("status") == "failed"])}
            | {"peak_memory_bytes": max((row["peak_memory_bytes"] or 0 for row in done), default=None)}
            | {"latency": timing["shapes"].get(said["shape"]) if timing else None}
        )
    return found


def reference(grid: Grid) -> dict[str, object] | None:
    """transformers' own model of the baseline's shape by the same recipe, from the neighbouring grid; None without."""
    rows = read_rows(Path(grid.output_dir.rstrip("/") + PEERS) / "results.csv")
    done = [row for run, row in rows.items() if run.phase == "report" and row["status"] == "finished"]
    if not done:
        return None
    values = {str(row["seed"]): row["value"] for row in done}
    spread = statistics.stdev(values.values()) if len(values) > 1 else None
    mean = statistics.fmean(values.values())
    return {"learning_rate": done[0]["learning_rate"], "n": len(values), "mean": mean, "sd": spread, "values": values}


def gather(grid: Grid) -> dict[str, object]:
    """The evidence of a grid. Raises GridError, or ValueError where its runs are not there."""
    rows = read_rows(grid.path("results.csv"))
    if not rows:
        raise ValueError(f"{grid.path('results.csv')}: no run has ended yet")
    done = [row for row in rows.values() if row["status"] == "finished"]
    timing = latency.read(grid)
    summary = summarise(grid, rows)
    return {
        "grid": Path(grid.output_dir).name,
        "recipe": grid.recipe,
        "baseline": grid.baseline,
        "seeds": grid.seeds,
        "learning_rates": tune(grid, rows).learning_rates,
        "tuning": None if grid.tuning is None else {"seed": grid.tuning.seed, "holdout": grid.tuning.holdout},
        "start_from": None if grid.start_from is None else Path(grid.start_from).name,
        "margin": grid.margin,
        "metric": summary["metric"],
        "higher_is_better": summary["higher_is_better"],
        "cells": cells(grid, rows),
        "reference": reference(grid),
        "runs": len(rows),
        "failed": len(rows) - len(done),
        "hours": sum(row["seconds"] or 0 for row in done) / 3600,
        "processor": sorted({f"{row['processor']}, {row['threads']} threads a run" for row in done}),
        "latency_on": timing and f"{timing['environment']['processor']}, {timing['environment']['threads']} threads",
        "software": {name: done[-1][name] for name in ("python", "torch", "transformers")},
    }


def number(value: float | None, form: str) -> str:
    return "–" if value is None or value == {} else format(value, form)


def score(cell: dict[str, Any], form: str) -> str:
    """Mean ± sd (n) of a cell."""
    if cell["mean"] is None:
        return "not run"
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:{form}}"
    return f"{cell['mean']:{form}}{spread} ({cell['n']})"


def label(cell: dict[str, Any]) -> str:
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
        "training, peak memory, GiB": number((cell["peak_memory_bytes"] or 0) / 2**30, ".2f"),
        "inference, batch 1, ms": number(one and one["seconds"] * 1e3, ".1f"),
        "inference, batch 32, inputs/s": number(many and many["items_per_second"], ",.0f"),
    }


def figure(results: dict[str, Any]) -> bytes:
    """PNG: the metric against parameters, and against milliseconds where they were measured; every seed a dot."""
    evidence, content = results["evidence"], io.BytesIO()
    timed = any(cell["latency"] for cell in evidence["cells"])
    chart = Figure((11 if timed else 6, 4.2), layout="constrained")
    axes = chart.subplots(1, 1 + timed, squeeze=False, sharey=True)[0]
    colours = ("tab:blue", "tab:cyan", "tab:orange", "tab:red")
    for cell, colour in zip(evidence["cells"], colours):
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
        axis.set_xlim(left=0)
        axis.set(xlabel=unit, ylabel=f"{evidence['metric']}, {way} is better")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8, loc="best")
    seeds = len(evidence["seeds"])
    chart.suptitle(f"{dataset_name(results)}: {seeds} seeds a shape, each a dot, the bar their mean", fontsize=10)
    chart.savefig(content, format="png", dpi=110)
    return content.getvalue()


def eval_entries(results: dict[str, Any]) -> list[EvalResultEntry]:
    """The main metric in the Hub's newer form; none where the data are not a dataset of the Hub."""
    if "/" not in results["dataset"]:
        return []
    name = results["main_metric"].removeprefix("eval_")
    config = results.get("dataset_config") or "default"
    notes = f"{name} on {results['split']}, {results['rows']} rows, seed {results['seed']}"
    value = results["metrics"][f"eval_{name}"]
    return [EvalResultEntry(dataset_id=results["dataset"], task_id=config, value=value, notes=notes)]


def claims(evidence: dict[str, Any]) -> str:
    """What the numbers allow to be said, cell by cell; nothing more."""
    lines = []
    for cell in evidence["cells"]:
        if cell["shape"] == evidence["baseline"] or cell["difference"] is None:
            continue
        better = (cell["difference"] > 0) == evidence["higher_is_better"]
        sure = cell["interval"] is not None and cell["interval"][0] * cell["interval"][1] > 0
        said = f"{abs(cell['difference']):.4f} {'better' if better else 'worse'} than the baseline"
        said = said if cell["difference"] else "equal to the baseline"
        certainty = "the 95 % interval excludes 0" if sure else "the 95 % interval includes 0"
        lines.append(
            f"- {cell['shape']}, {label(cell)}: {said} over {cell['n']} seeds; {certainty}. "
            f"Verdict: {cell['verdict']}."
        )
    return "\n".join(lines) or "- No cell has been compared yet."


NAMES = {"lean_vit": "LeanViT", "lean_bert": "LeanBERT", "lean_gpt": "LeanGPT"}
LIMITS = {
    "image-classification": "It sorts small photographs into the ten classes of its training set and knows no others.",
    "causal-lm": "It continues text, for experiments with shapes. What it says is not true and not for readers.",
    "masked-lm": "It is a starting point for fine-tuning small classifiers and for experiments with shapes.",
    "sequence-classification": "It is for experiments with shapes; no decision should rest on what it says of a text.",
}


def notes_on(evidence: dict[str, Any]) -> str:
    """The reference run, the guesses, and what the table's columns are."""
    lines = []
    base = next(cell for cell in evidence["cells"] if cell["shape"] == evidence["baseline"])
    if (peer := evidence["reference"]) is not None:
        spread = number(peer["sd"], ".4f")
        lines.append(
            f"transformers' own model of the baseline's shape, by the same recipe at learning rate "
            f"{peer['learning_rate']:g}: {peer['mean']:.4f} ± {spread} ({peer['n']}); the baseline here: "
            f"{score(base, '.4f')}."
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
        "mean over the seeds. FLOPs are those of the matrix products, for one input of the stated length. Times of "
        "training are of runs that shared the machine; times of inference were measured in turns"
        + (f" on {evidence['latency_on']}." if evidence["latency_on"] else ", but not here yet.")
    )
    return "\n\n".join(lines)


def untested(evidence: dict[str, Any], results: dict[str, Any]) -> str:
    """What a reader might take for granted and should not."""
    seeds = len(evidence["seeds"])
    lines = [
        f"One width ({evidence['cells'][0]['width']}), one MLP width, one recipe and one length of training; larger "
        "models and longer training may order the cells otherwise.",
        f"{seeds} seeds a cell. “No loss of quality” would need seven or more and p < 0.01 against a margin of "
        f"{number(evidence['margin'], 'g')} that was fixed before the first run, corrected over the tasks.",
        "Only the learning rate was tuned for each cell, with rows and a seed that are not reported; nothing else.",
        "Speed on accelerators, long inputs, and robustness to other data.",
    ]
    if results["task"] in ("causal-lm", "masked-lm"):
        lines.append("What the model has learned by heart from its training text, unless it is stated above.")
    return "\n".join(f"- {line}" for line in lines)


def published_card(folder: Path, config: Any, results: dict[str, Any], command: str, metadata: str) -> str:
    """The text of a published folder's card. Raises ValueError where the folder's own cell is not what it says."""
    evidence, name = results["evidence"], results["name"]
    own = next((cell for cell in evidence["cells"] if cell["shape"] == results["cell"]), None)
    main = "eval_" + evidence["metric"]
    file = folder / "results.json"
    if own is None:
        raise ValueError(f"{file}: cell is {results['cell']!r}, expected a shape of evidence.cells")
    for field, here, there in (
        ("evidence.cells.parameters", own["parameters"], results["parameters"]),
        ("evidence.cells.values", own["values"].get(str(results["seed"])), results["metrics"].get(main)),
    ):
        if here != there:
            raise ValueError(f"{file}: {field} is {here} for {own['shape']}, expected {there} of this model")
    train, machine = results["train"], results["environment"]
    auto = "AutoModelFor" + results["architecture"].split("For")[1]
    processing = "AutoImageProcessor" if config.model_type == "lean_vit" else "AutoTokenizer"
    data = DATASETS.get(dataset_name(results), results["dataset"])
    role = "the baseline" if own["shape"] == evidence["baseline"] else "a variant of the baseline"
    seeds, software = ", ".join(map(str, evidence["seeds"])), evidence["software"] | {"commit": machine["git_commit"]}
    partners = ", ".join(f"`{each}`" for each in results["partners"]) or "no other folder"
    metrics = "\n".join(
        f"| {key.removeprefix('eval_')} | {value:.4f} |" for key, value in sorted(results["metrics"].items())
    )
    extra = "".join(f"\n{line}\n" for line in results.get("notes", []))
    local = f" --data_files {dataset_name(results)}=FOLDER"
    return f"""---
{metadata}
---

# {name}

{NAMES[config.model_type]} with {label(own)}, width {own["width"]}, {results["parameters"]:,} parameters: {role} of a
comparison of layers and heads on {dataset_name(results)}; seed {results["seed"]} of {seeds}.
Published with it: {partners}.

{auto.removeprefix("AutoModelFor")} on {results["rows"]:,} held-out rows ({results["split"]}), from these very weights:

| metric | value |
|---|---|
{metrics}
{extra}
## The comparison: layers × heads at one width

Every cell was trained by the same file with the same data in the same order for each seed; only the learning rate was
chosen for each cell. This model's row is bold.

{table(evidence, own["shape"])}

{claims(evidence)}

{notes_on(evidence)}

![{evidence["metric"]} against parameters and milliseconds, every seed a dot]({FIGURE})

![Loss and metric of this run against steps](training.png)

## What was not tested

{untested(evidence, results)}

## Use

```python
from transformers import {", ".join(sorted((auto, processing)))}
model = {auto}.from_pretrained("model_cards/{name}", trust_remote_code=True)
processing = {processing}.from_pretrained("model_cards/{name}", trust_remote_code=True)
```

{LIMITS[results["task"]]}

## Data and licence

{data}. The weights and the code are under Apache-2.0; the terms of the data are their owners'.

## How to get the numbers again

```bash
leaner verify-cards model_cards/{name}   # rows from the Hub; a local copy:{local}
leaner evaluate model_cards/{name}
{command}
leaner sweep training/grids/{evidence["grid"]}.yaml
```

This run: {train["seconds"]:,.0f} s for {train["steps"]:,} steps, {machine["threads"]} threads, {machine["processor"]}.
The grid: {evidence["runs"]} runs, {evidence["failed"]} of them failed, {evidence["hours"]:.1f} hours together, on
{"; ".join(evidence["processor"])}; all of them are in `model_cards/grids/{evidence["grid"]}/results.csv`.
Software: {", ".join(f"{name} {each}" for name, each in software.items())}.
"""
