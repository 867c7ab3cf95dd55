"""The sentences of cards and index. Arguments are results.json and its `evidence`; nothing here reads a file."""

import shlex
import statistics
from typing import Any

from modeling_leaner.registry import FAMILIES

from ..experiments.continuations import LEAST
from ..experiments.evidence import baseline_of, dataset_name
from ..experiments.guesses import AS_MANY_ROWS, best_guess
from ..experiments.kappa import Conclusion, Correlation
from ..experiments.statistics import MAX_P, MIN_PAIRS, NOT_LEARNED, row_error
from ..records import (
    Cell,
    CellScore,
    Continuation,
    Environment,
    Evidence,
    FineTuned,
    Guess,
    PublishedResults,
    Reference,
    RunResults,
    TuningSettings,
)
from ..running.environment import PACKAGES, machine_name
from ..tasks.registry import TASKS
from .metadata import PROJECT_URL, named_metrics, repository


PAPERS = {
    "Leaner Transformers: More Heads, Less Depth": "https://arxiv.org/abs/2505.20802",
    "the objection that halving the MLP saves as much": "https://arxiv.org/abs/2512.01059",
    "Low-Rank Bottleneck in Multi-head Attention Models": "https://arxiv.org/abs/2002.07028",
}
BIBTEX = """@software{modeling_leaner,
  title = {modeling_leaner: LeanViT, LeanBERT and LeanGPT},
  author = {{The modeling_leaner authors}},
  url = {%s}
}
@article{saratchandran2025leaner,
  title = {Leaner Transformers: More Heads, Less Depth},
  author = {Saratchandran, Hemanth and Teney, Damien and Lucey, Simon},
  journal = {arXiv preprint arXiv:2505.20802},
  year = {2025}
}"""
PURPOSES = {  # dataset, or dataset and task → what a model does, and what it is not good for
    "cifar10": (
        "sorts photographs of 32 × 32 pixels into the ten classes of CIFAR-10",
        "other classes or larger photographs",
    ),
    "enwik8 causal-lm": ("continues English encyclopedia text", "anybody who wants to read what it writes"),
    "enwik8 masked-lm": (
        "fills in masked tokens of English encyclopedia text",
        "any use without fine-tuning",
    ),
    "TinyStories": ("writes short English stories in the words of small children", "readers of any age"),
    "sst2": (
        "says whether an English sentence of a film review is positive or negative",
        "judging other texts or their authors",
    ),
    "listops-short": (
        "computes nested expressions of MIN, MAX, MED and the sum modulo 10",
        "computing, at which it often fails",
    ),
}
BESIDE_TIMES = "Times of inference are to be compared within one table alone."
OTHER_RECIPE = "Another recipe: compare its numbers with each other, not with those above."


def number(value: float | None, form: str) -> str:
    """A formatted number, a dash where it is unknown."""
    if value is None:
        return "–"
    return format(value, form)


def plural(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}s"


def duration(hours: float) -> str:
    """Hours, or minutes where they are fewer than one hour."""
    if hours >= 1:
        return f"{hours:.1f} hours"
    return plural(round(60 * hours), "minute")


def millions(count: float) -> str:
    """`4.1M`; below a million with thousands separated."""
    if count >= 1e6:
        return f"{count / 1e6:.1f}M"
    return f"{count:,.0f}"


def direction(evidence: Evidence | FineTuned | RunResults) -> str:
    """`higher is better`, or lower."""
    if evidence.higher_is_better:
        return "higher is better"
    return "lower is better"


def score(cell: Cell | CellScore | Reference, form: str) -> str:
    """Mean ± sd (n) of a cell."""
    if cell.mean is None:
        return "not run"
    text = f"{cell.mean:{form}}"
    if cell.sd is not None:
        text += f" ± {cell.sd:{form}}"
    return f"{text} ({cell.n})"


def gain(value: float, evidence: Evidence) -> float:
    """A difference of the metric, plus = better."""
    if evidence.higher_is_better:
        return value
    return -value


def interval_of(cell: Cell, evidence: Evidence) -> list[float] | None:
    """The interval of a cell's difference, plus = better; None where there is none."""
    if cell.interval is None:
        return None
    return sorted(gain(limit, evidence) for limit in cell.interval)


def excludes_zero(interval: list[float]) -> bool:
    """Whether both limits of an interval lie on the same side of 0."""
    return interval[0] * interval[1] > 0


def label(cell: Cell) -> str:
    """A cell's layers and heads."""
    return f"{cell.layers} layers × {cell.heads} heads of {cell.head_dim}"


def guesses_of(evidence: Evidence) -> list[Guess]:
    """The simple guesses that read the input, an empty list where none was fitted."""
    return evidence.guesses or []


def best_of(evidence: Evidence) -> tuple[str, float] | None:
    """Name and value of the best simple guess that reads the input, else of the one that reads nothing.

    None where neither is known.
    """
    guesses = {guess.name: guess.value for guess in guesses_of(evidence)}
    chance = baseline_of(evidence).chance
    if chance is not None and not guesses:
        guesses["a guess that reads nothing"] = chance
    best = best_guess(guesses.values(), evidence.higher_is_better)
    for name, value in guesses.items():
        if value == best:
            return name, value
    return None


def stray_seeds(cell: Cell, evidence: Evidence) -> list[str]:
    """Seeds whose run failed without an error: worse than the cell's median by ten median absolute deviations, and
    no better than the best simple guess.

    Empty for fewer than five seeds, which are too few to tell.
    """
    values = cell.values
    if len(values) < 5:
        return []
    median = statistics.median(values.values())
    deviation = statistics.median(abs(value - median) for value in values.values())
    far_below = [seed for seed, value in values.items() if gain(value - median, evidence) < -10 * deviation]
    best = best_of(evidence)
    if best is None:
        return far_below
    return [seed for seed in far_below if gain(values[seed] - best[1], evidence) <= 0]


def has_strays(evidence: Evidence) -> bool:
    """Whether any cell has a stray seed; then medians say more than means."""
    return any(stray_seeds(cell, evidence) for cell in evidence.cells)


def median_score(cell: Cell, evidence: Evidence) -> str:
    """Median and failed runs of a cell."""
    failed = len(stray_seeds(cell, evidence))
    return f"{statistics.median(cell.values.values()):.4f}, {failed} of {cell.n} failed"


def score_error(metric: str, value: float, results: RunResults) -> float | None:
    """`row_error` of a score; None for language models, which are scored by tokens, not by rows."""
    if TASKS[results.task].is_scored_by_token:
        return None
    return row_error(metric, value, results.rows)


def purpose_of(dataset: str, task: str) -> tuple[str, str]:
    """The entry of `PURPOSES` that fits best, the dataset's or the one of dataset and task; else the task's own."""
    for key in (dataset, f"{dataset} {task}"):
        if key in PURPOSES:
            return PURPOSES[key]
    return TASKS[task].does, TASKS[task].not_for


def purpose(model_type: str, results: PublishedResults) -> str:
    """The first sentence: what the model does and what it is not good for."""
    family = FAMILIES[model_type.removeprefix("lean_")]
    does, not_for = purpose_of(dataset_name(results), results.task)
    size = millions(results.parameters)
    return (
        f"{family.title} with {size} parameters that {does}: a miniature for research on the shapes of "
        f"transformers, not for {not_for}."
    )


def standing(results: PublishedResults) -> str:
    """The main score with its uncertainty, beside the best simple guess."""
    evidence = results.evidence
    metric = results.main_metric.removeprefix("eval_")
    value = named_metrics(results)[metric]
    error = score_error(metric, value, results)
    text = f"Held-out {metric.replace('_', ' ')} ({direction(evidence)}): **{value:.3f}**"
    if error is not None:
        text += f" ± {error:.3f} (standard error by the choice of rows)"
    unit = TASKS[results.task].held_out_unit
    text += f" on {results.rows:,} {unit}."
    best = best_of(evidence)
    if best is None:
        return text
    name, guess = best
    verdict = guess_verdict(gain(value - guess, evidence), error)
    return f"{text} The best simple guess ({name}) has {guess:.3f}, {verdict}."


def guess_verdict(ahead: float, error: float | None) -> str:
    """How a model compares with the best simple guess that it is `ahead` of: clearly is by three standard errors."""
    if error is not None and abs(ahead) < 3 * error:
        return "which this model does not clearly beat"
    if ahead > 0:
        return "which this model beats"
    return "**which is better than this model**"


def links() -> str:
    """The project and the papers."""
    papers = ", ".join(f"[{title}]({url})" for title, url in PAPERS.items())
    return f"[modeling_leaner]({PROJECT_URL}); {papers}"


def hub_link(name: str) -> str:
    return f"[{name}](https://huggingface.co/{repository(name)})"


def seen(results: RunResults, settings: dict[str, Any]) -> str:
    """How much the training read: tokens and tokens a parameter of a language model, else rows and epochs."""
    train = results.train
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    rows = train.steps * batch * train.processes
    if TASKS[results.task].is_scored_by_token and settings["max_length"]:
        tokens = rows * settings["max_length"]
        ratio = tokens / results.parameters
        return f"{millions(tokens)} tokens, {ratio:.1f} a parameter ({plural(train.steps, 'step')})"
    unit = TASKS[results.task].trained_unit
    text = f"{millions(rows)} {unit}"
    epochs = train.epochs
    if epochs and epochs >= 0.995:
        text += f", {plural(round(epochs), 'epoch')}"
    return f"{text} ({plural(train.steps, 'step')})"


def facts(results: PublishedResults, settings: dict[str, Any], own: Cell) -> dict[str, str]:
    """What a visitor looks for first."""
    evidence = results.evidence
    share = number(own.parameters_over_baseline, ".0%")
    role = f"{share} of the baseline's parameters"
    if own.shape == evidence.baseline:
        role = "the baseline"
    among = "the only one"
    if len(evidence.seeds) > 1:
        among = f"one of {len(evidence.seeds)}"
    lines = {
        "Shape": f"{label(own)}, width {own.width}, MLP {own.mlp}; {results.parameters:,} parameters, {role}",
        "Training": f"{seen(results, settings)} of {dataset_name(results)}; seed {results.seed}, {among}",
    }
    if results.shape.startswith("model_cards/"):
        lines["Started from"] = hub_link(results.shape.removeprefix("model_cards/"))
    if results.partners:
        lines["Published with it"] = ", ".join(map(hub_link, results.partners))
    lines["Project and papers"] = links()
    lines["Licence"] = "Apache-2.0 for weights and code; the terms of the data are their owners'"
    return lines


def scores_note(results: PublishedResults, own: Cell) -> str:
    """What the scores are of, and where this seed stands among the others."""
    text = f"From these very weights, on {results.rows:,} held-out rows ({results.split})."
    if own.n > 1:
        text += f" The {own.n} seeds of this shape have {results.evidence.metric} {score(own, '.4f')}, mean "
        text += "± sd; the first seed is published, whatever its result."
    return text


def certainty(cell: Cell, evidence: Evidence) -> str:
    """What may be said of one cell's difference."""
    interval = cell.interval
    if interval is None:
        text = "one pair of runs, which may be chance"
    elif excludes_zero(interval):
        text = f"over {cell.pairs} seeds; the 95 % interval excludes 0"
    else:
        text = f"over {cell.pairs} seeds; the 95 % interval includes 0"
    if cell.verdict == NOT_LEARNED:
        return f"{text}; no verdict: the baseline is not clearly better than the best simple guess"
    if cell.pairs < MIN_PAIRS:
        return f"{text}; undecided, with fewer than the {MIN_PAIRS} seeds that a verdict needs"
    if evidence.margin is None:
        return f"{text}; undecided, without the margin that a verdict needs"
    if cell.p_non_inferiority is None:
        return text
    against = f"being worse by {evidence.margin:g} or more"
    return f"{text}; one-sided p against {against}, not corrected: {cell.p_non_inferiority:.3g}"


def claim(cell: Cell, evidence: Evidence) -> str:
    """One cell against the baseline, with both scores."""
    base = baseline_of(evidence)
    ahead = gain(cell.difference, evidence)
    if ahead == 0:
        compared = "equal to the baseline"
    elif ahead > 0:
        compared = f"{ahead:.4f} better than the baseline"
    else:
        compared = f"{-ahead:.4f} worse than the baseline"
    values = f"{evidence.metric} {cell.mean:.4f} against {base.mean:.4f}"
    return f"{label(cell)}: {compared} ({values}), {certainty(cell, evidence)}."


def claims(evidence: Evidence) -> str:
    """What the numbers say, cell by cell. Whether quality was lost is decided over all grids, in the index."""
    lines = []
    for cell in evidence.cells:
        notes = "".join(f" Note: {note}." for note in cell.notes)
        if cell.shape != evidence.baseline and cell.difference is not None:
            lines.append(f"- {claim(cell, evidence)}{notes}")
        elif notes:
            lines.append(f"- {label(cell)}:{notes}")
    if lines:
        return "\n".join(lines)
    if len(evidence.cells) == 1:
        return "- One cell, with nothing to compare in this grid."
    return "- No cell has been compared yet."


def learned_note(evidence: Evidence) -> str | None:
    """What the baseline fails to beat clearly; None where it has learned, or where that is not known."""
    best = best_of(evidence)
    base = baseline_of(evidence)
    if base.learned is not False or best is None or base.mean is None:
        return None
    name, value = best
    compared = "not clearly better than"
    if gain(base.mean - value, evidence) < 0:
        compared = "worse than"
    why = "What is compared is how fast the shapes begin to learn."
    if has_strays(evidence):
        why = "With the run that failed, its mean is that uncertain."
    return (
        f"**No cell can be said to keep quality here:** the baseline ({evidence.metric} {base.mean:.3f}) is "
        f"{compared} the best simple guess that reads the input ({name}, {value:.3f}). {why}"
    )


def not_learned_line(grid: str, evidence: Evidence) -> str:
    """The score of a baseline that has not learned, and those of the guesses that it should beat."""
    base = baseline_of(evidence)
    text = f"`{grid}` {evidence.metric} {base.mean:.3f}"
    failed = len(stray_seeds(base, evidence))
    if failed:
        text += f", the mean of {base.n} runs of which {failed} failed"
    name, value = best_of(evidence)
    text += f", against {value:.3f} ({name})"
    for guess in guesses_of(evidence):
        if guess.name == AS_MANY_ROWS:
            text += f", or {guess.value:.3f} from as many rows as the runs read"
    return text


def not_learned(grids: dict[str, Evidence]) -> str | None:
    """The grids of a task whose baseline has not learned, with its score and what it should beat; None without."""
    lines = []
    for grid, evidence in grids.items():
        if learned_note(evidence) is not None:
            lines.append(not_learned_line(grid, evidence))
    if not lines:
        return None
    listed = f" {lines[0]}."
    if len(lines) > 1:
        listed = "\n\n" + "\n".join(f"- {line}" for line in lines)
    return (
        "**Not learned:** here the baseline is not clearly better than the best simple guess that reads the input, so "
        f"differences say how fast the shapes begin to learn, and nothing of kept quality:{listed}"
    )


def row_errors_of(evidence: Evidence) -> list[str]:
    """Of each published shape: its difference, the error by the choice of rows, the sd over seeds."""
    base = baseline_of(evidence)
    cells = {cell.shape: cell for cell in evidence.cells}
    lines = []
    for published in evidence.row_errors or ():
        cell = cells[published.shape]
        shared = cell.values.keys() & base.values.keys()
        differences = [cell.values[seed] - base.values[seed] for seed in sorted(shared)]
        ahead = gain(published.difference, evidence)
        text = f"{cell.layers} × {cell.heads}: {ahead:+.3f}, {published.error:.3f} by rows"
        if len(differences) > 1:
            text += f", {statistics.stdev(differences):.3f} over seeds"
        lines.append(text)
    return lines


def rows_note(evidence: Evidence, rows: int | None) -> str | None:
    """What the intervals are conditional on, and how much the choice of rows adds where that is known."""
    notes = []
    if len(evidence.seeds) > 1:
        notes.append(
            "Intervals are over seeds, conditional on the same held-out rows, and not corrected for their number."
        )
    pairs = row_errors_of(evidence)
    if pairs and rows:
        notes.append(
            f"Another choice of {rows:,} rows would move a difference, too. Of the published pairs, one run each: "
            f"difference from the baseline (plus is better), its standard error by the choice of rows, and the sd of "
            f"such differences over the seeds: {'; '.join(pairs)}."
        )
    if not notes:
        return None
    return " ".join(notes)


def strays_note(evidence: Evidence) -> str | None:
    """Failed runs and medians, where a mean over a run that failed would mislead."""
    if not has_strays(evidence):
        return None
    cells = "; ".join(f"{label(cell)}: {median_score(cell, evidence)}" for cell in evidence.cells)
    return (
        f"A run that ended far below the others of its cell moves means and intervals, so read the medians: {cells}. "
        "Failed is a run worse than its cell's median by ten median absolute deviations."
    )


def reference_note(evidence: Evidence) -> str | None:
    """transformers' own model beside the baseline."""
    base = baseline_of(evidence)
    peer = evidence.reference
    if peer is not None:
        return (
            "transformers' own model of the baseline's shape, tuned and trained alike, at learning rate "
            f"{peer.learning_rate:g}: {score(peer, '.4f')}; the baseline here: {score(base, '.4f')}."
        )
    overrides = evidence.overrides
    if overrides and overrides.get("implementation") == "transformers":
        return None
    return "transformers' own model of the baseline's shape has not been trained this way."


def start_note(evidence: Evidence) -> str | None:
    """What the seeds do not vary."""
    if evidence.start_seed is None:
        return None
    return (
        f"All runs start from the weights of the same seed, {evidence.start_seed}: what differs between seeds "
        "is the fine-tuning alone, and intervals do not include the chance of the pretraining."
    )


def notes_on(evidence: Evidence, rows: int | None = None) -> str:
    """What a reader of the comparison should know, a paragraph each."""
    notes = (
        learned_note(evidence),
        strays_note(evidence),
        rows_note(evidence, rows),
        start_note(evidence),
        reference_note(evidence),
    )
    return "\n\n".join(note for note in notes if note)


def glossary(evidence: Evidence) -> str:
    """What the rows of the large table are; once on a page."""
    timed = "not timed yet."
    if evidence.latency_on:
        timed = f"measured in turns on {evidence.latency_on}: compare it within this table, not with another's."
    return (
        "κ is σ_max/σ_min of the concatenated head outputs: the median over 8 held-out rows and over the layers, the "
        "mean over the seeds, – where it was infinite. FLOPs are those of the matrix products, for one input of the "
        "stated length. Times of training are means over the seeds, of runs that shared the machine with other work; "
        "memory is the most that the process held, on a GPU what its tensors took there, the largest of the seeds. "
        f"Inference was {timed}"
    )


def overrides_listed(overrides: dict[str, Any] | None) -> str:
    """`max_steps 300, warmup_steps 30`; empty without overrides."""
    if not overrides:
        return ""
    return ", ".join(f"{key} {value}" for key, value in overrides.items())


def how_trained(evidence: Evidence) -> str:
    """A grid's recipe with its overrides, and where its weights start from."""
    text = f"Recipe `{evidence.recipe}`"
    overrides = overrides_listed(evidence.overrides)
    if overrides:
        text += f" with {overrides}"
    if evidence.start_from:
        start = f"`{evidence.start_from}`"
        if evidence.start_seed is not None:
            start = f"seed {evidence.start_seed} of {start}"
        text += f"; from the weights of {start}"
    return f"{text}."


def rows_of(results: RunResults) -> str:
    """What the training data is counted in: language models pack documents into rows of one length."""
    if TASKS[results.task].is_scored_by_token:
        return "documents"
    return "rows"


def tuning_seeds(tuning: TuningSettings) -> str:
    """`seed 101`, `seeds 101, 102`; cards from before there could be several hold `seed` alone."""
    seeds = tuning.seeds
    if not seeds:
        return f"seed {tuning.seed}"
    listed = ", ".join(map(str, seeds))
    if len(seeds) == 1:
        return f"seed {listed}"
    return f"seeds {listed}"


def chosen(evidence: Evidence, unit: str) -> str:
    """How the learning rates came about."""
    tuning = evidence.tuning
    if tuning is None:
        return "The learning rate was the same for every cell and was not tuned; nor was anything else."
    rates = ", ".join(f"{rate:g}" for rate in evidence.learning_rates)
    overrides = overrides_listed(tuning.overrides)
    text = (
        f"Only the learning rate was tuned for each cell, among {rates}, with {tuning_seeds(tuning)} on "
        f"{tuning.holdout:,} {unit} of the training split that are not reported"
    )
    if overrides:
        text += f", in runs of {overrides}, which may favour what learns quickly"
    return f"{text}."


def seeds_limit(evidence: Evidence) -> str:
    """How many seeds there are, and what a verdict would need."""
    seeds = len(evidence.seeds)
    margin = "a margin"
    if evidence.margin is not None:
        margin += f" of {evidence.margin:g}"
    rule = f"p < {MAX_P:g} against {margin} fixed before the first run, corrected over the tasks"
    if seeds < MIN_PAIRS:
        return f"Seeds a cell: {seeds}. “No loss of quality” would need {MIN_PAIRS} or more, and {rule}."
    return (
        f"Seeds a cell: {seeds}. “No loss of quality” needs {rule}: the project's index of all grids decides it, not "
        "this card; whether seeds were added after others had been seen is in the project's log."
    )


def limits(evidence: Evidence, results: PublishedResults) -> list[str]:
    """What a reader might take for granted and should not."""
    cell = evidence.cells[0]
    untested = [
        f"One width ({cell.width}), one MLP width ({cell.mlp}), one recipe and one length of training; larger "
        "models and longer training may order the cells otherwise.",
        seeds_limit(evidence),
        chosen(evidence, rows_of(results)),
        "Speed on accelerators, long inputs, and robustness to other data.",
    ]
    if TASKS[results.task].is_scored_by_token and not results.continuations:
        untested.append("What the model has learned by heart from its training text.")
    return untested


def limits_of_inputs(config: Any, results: PublishedResults) -> str:
    """Where the recipe cut the inputs, in tokens; nothing for images, which have one size."""
    length = results.recipe.get("max_length")
    positions = getattr(config, "max_position_embeddings", None)
    if length is None or positions is None:
        return ""
    if positions > length:
        return (
            f" Its training cut inputs at {length} tokens; of the {positions} positions those beyond its longest row "
            "have not been trained."
        )
    return f" Its training cut inputs at {length} tokens."


def training(config: Any, results: PublishedResults, settings: dict[str, Any]) -> str:
    """How long it was trained and where its losses ended."""
    smoothing = results.recipe.get("label_smoothing_factor")
    smoothing_note = ""
    if smoothing:
        smoothing_note = f" (with labels smoothed by {smoothing:g}, which raises it)"
    last_loss = number(results.train.loss, ".4f")
    held_out_loss = number(named_metrics(results).get("loss"), ".4f")
    return (
        f"It read {seen(results, settings)}. Loss at the end: {last_loss} over the last training steps"
        f"{smoothing_note}, {held_out_loss} held out.{limits_of_inputs(config, results)}"
    )


def is_local(results: PublishedResults) -> bool:
    """Whether its rows are neither generated nor those of a dataset of the Hub."""
    return "/" in results.dataset and not results.evidence.hub


def data(results: PublishedResults) -> str:
    """What it was trained and evaluated on."""
    source = results.evidence.data
    if not source:
        source = f"{results.dataset}, as its owners publish it."
    unit = rows_of(results)
    training_rows = f"an unknown number of {unit}"
    training_data = results.training_data
    if training_data is not None and training_data.rows:
        training_rows = f"{training_data.rows:,} {unit}"
    if training_data is not None and training_data.sha256:
        training_rows += f" (sha256 of what they hold: `{training_data.sha256[:16]}…`)"
    evaluated = f"{results.rows:,}"
    if unit == "documents":
        evaluated += " rows cut from held-out documents"
    text = f"{source} Trained on {training_rows}, evaluated on {evaluated} (`{results.data_sha256[:16]}…`)."
    if is_local(results):
        text += " From a local copy, which no command here makes."
    return text


def commands(results: PublishedResults, command: str) -> str:
    """What gets the card's numbers again, and where its rows come from."""
    folder = f"model_cards/{results.name}"
    dataset = dataset_name(results)
    evidence = results.evidence
    verified_files = ""
    evaluated_files = ""
    training_files = ""
    if is_local(results):
        verified_files = f" --data_files {dataset}=FOLDER"
        evaluated_files = " --data_files FOLDER"
        training_files = evaluated_files
        if evidence.data_files:
            training_files = f" --data_files {evidence.data_files}"
        rows = "FOLDER: the copy described above"
    elif "/" in results.dataset:
        rows = f"rows from the Hub, or --data_files {dataset}=…"
    else:
        rows = "rows are generated"
    grid = evidence.grid
    anew = "every cell, trained anew"
    if evidence.start_from:
        anew += f"; names the runs of {evidence.start_from} that it needs"
    return (
        f"leaner verify-cards {folder}{verified_files}   # {rows}\n"
        f"leaner evaluate {folder}{evaluated_files}\n{command}{training_files}\n"
        f"leaner sweep training/grids/{grid}.yaml --output_dir runs/{grid}{training_files}   # {anew}"
    )


def hardware(results: PublishedResults) -> str:
    """Hardware, hours and software, of this run and of all runs of the grid."""
    evidence = results.evidence
    train = results.train
    processor = machine_name(results.environment.processor, results.environment.threads)
    software = ", ".join(f"{name} {' and '.join(versions)}" for name, versions in evidence.software.items())
    commits = ", ".join(f"`{commit[:12]}`" for commit in evidence.commits) or "unknown"
    repeated = ""
    if evidence.failures:
        repeated = f", {evidence.failures} further attempts failed and were repeated"
    return (
        f"This run: {train.seconds:,.0f} s for {train.steps:,} steps, {processor}.\n\n"
        f"The grid: {evidence.runs} runs, {evidence.failed} of them failed{repeated}, "
        f"{duration(evidence.hours)} together without failed ones, on {'; '.join(evidence.processor)}; all of "
        f"them are in `model_cards/grids/{evidence.grid}/results.csv`. Their software: {software}; commits of this "
        f"project: {commits}."
    )


def quoted(text: Continuation) -> str:
    """A prompt in bold and what the model made of it."""
    passage = f"**{text.prompt}**{text.continuation}"
    return "> " + passage.replace("\n", "\n> ")


def continuations(results: PublishedResults) -> str | None:
    """What a language model writes, and how much of it is copied; None of other models."""
    drawn = results.continuations
    if drawn is None:
        return None
    first, second = (drawn.texts * 2)[:2]  # a single text is shown twice
    longest_copy = f"none of {LEAST} words or more"
    if drawn.longest_copy:
        longest_copy = f"“{drawn.longest_copy}”, {drawn.longest_copy_words} words"
    return (
        f"The first {drawn.prompt_words} words (bold) of a held-out document, continued by {drawn.new_tokens} "
        f"tokens at most, sampled at temperature {drawn.temperature:g} with seed {drawn.seed}:\n\n"
        f"{quoted(first)}\n\n<details>\n<summary>Another one, and what was copied</summary>\n\n"
        f"{quoted(second)}\n\nAll {len(drawn.texts)} are in results.json. The longest run of words that also "
        f"occurs in a training document: {longest_copy}. `leaner publish` drew and compared them; "
        "`leaner verify-cards` does not repeat that, since sampling differs from one machine to another.\n\n</details>"
    )


def beside_about(other: Evidence, evidence: Evidence) -> str:
    """How the cells of another grid were trained, and what they may be compared with."""
    if other.recipe == evidence.recipe:
        return f"{how_trained(other)} {BESIDE_TIMES}"
    return f"{how_trained(other)} {OTHER_RECIPE}"


COMPARISON_INTRO = (
    "Each line of the table is a *cell*: one shape, trained with several seeds. All cells were trained by the same "
    "file, with the same data in the same order for each seed. This model is in bold; a difference with a plus is "
    "better than the baseline, the first line."
)


def figure_text(evidence: Evidence) -> str:
    """What the figure shows, for those who cannot see it."""
    return f"{evidence.metric} of every seed, parameters and time of each cell"


def run_shape(config: Any, results: RunResults) -> str:
    """The sizes of a run's model."""
    heads = "/".join(map(str, dict.fromkeys(config.heads_per_layer)))
    return (
        f"{results.parameters:,} parameters: {config.num_hidden_layers} layers of width\n{config.hidden_size}, "
        f"{heads} heads of size {config.head_dim}, MLPs of width {config.intermediate_size}."
    )


def caution(settings: dict[str, Any]) -> str:
    """How little one run says."""
    text = "One seed, evaluated on one split: a difference from another model may be chance, and other data may give "
    text += "other numbers."
    if settings["load_best_model_at_end"] or settings["early_stopping_patience"] is not None:
        text += "\nThe split also chose the checkpoint, so its numbers flatter the model."
    return text


def run_training(results: RunResults, settings: dict[str, Any]) -> str:
    """Length, speed, memory and the settings that matter most."""
    train = results.train
    length = f"{train.steps:,} steps in {train.seconds:,.0f} s"
    rate = train.items_per_second
    waiting = train.input_pipeline_share
    if rate is not None and waiting is not None:
        length += f", {rate:,.1f} rows a second, {waiting:.1%} of the time waiting for data"
    if train.loss is not None:
        length += f", last training loss {train.loss:.4f}"
    return (
        f"{length}; peak memory\n"
        f"{train.peak_memory_bytes / 2**30:.2f} GiB ({train.peak_memory_kind}). Seed {results.seed}, "
        f"optimiser\n{settings['optim']}, highest learning rate {results.learning_rate:.4g}, "
        f"schedule {settings['lr_scheduler_type']}, warm-up {settings['warmup_steps']}, "
        f"weight decay {settings['weight_decay']},\n{settings['per_device_train_batch_size']} rows × "
        f"{settings['gradient_accumulation_steps']} a step."
    )


def run_commands(command: str, where: str) -> str:
    """What trains and evaluates a run again."""
    return f"{command}\nleaner evaluate {shlex.quote(where)}"


def run_hardware(machine: Environment) -> str:
    """Device and software of a run."""
    packages = [name for name in ("modeling_leaner", *PACKAGES) if getattr(machine, name) is not None]
    software = ", ".join(f"{name} {getattr(machine, name)}" for name in packages)
    commit = machine.git_commit or "unknown"
    processor = machine_name(machine.processor, machine.threads)
    return (
        f"Device: {machine.device}. Processor: {processor}. Python\n{machine.python} on "
        f"{machine.platform}; {software}; commit {commit}."
    )


FOREST_TEXT = "Differences of each shape from its baseline with their intervals, in accuracy and in loss"
INDEX_GLOSSARY = (
    "- *Grid:* one comparison, shapes × seeds trained by one recipe. *Cell:* one of its shapes, over all its seeds.\n"
    "- *Difference:* paired over the seeds and signed so that plus is better for every metric. Its 95 % interval is "
    "conditional on the same held-out rows, and not corrected for the number of comparisons.\n"
    "- *Not learned:* not clearly (by three standard errors) better than the best simple guess that reads the input, "
    "each in the grid's `guesses.json`, which `leaner guesses` fits. *No verdict:* the baseline has not learned.\n"
    "- *κ:* σ_max/σ_min of the concatenated head outputs before and after training: the median over 8 held-out rows "
    "and over the layers, the mean over the seeds, – where it was infinite.\n"
    "- *Times of inference* were measured in turns: compare them within one grid. FLOPs, memory and cache are on the "
    "cards."
)


def short_data(results: PublishedResults) -> str:
    """A dataset's name, and what a reader must know of its rows at once."""
    name = dataset_name(results)
    if name == "TinyStories":
        return "TinyStories; 32,957 of 36,181 training stories were sampled from a model"
    if is_local(results):
        return f"{name} (local copy)"
    return name


def grid_about(name: str, evidence: Evidence) -> str:
    """One line on a grid: how it was trained and how far it is."""
    planned = evidence.planned
    if not planned:
        planned = len(evidence.seeds) * len(evidence.cells)
    done = sum(cell.n for cell in evidence.cells)
    progress = f"{done} of {planned}"
    if done == planned:
        progress = "all"
    seeds = ", ".join(map(str, evidence.seeds))
    rates = ", ".join(f"{rate:g}" for rate in evidence.learning_rates)
    text = (
        f"**{name}:** {how_trained(evidence)} Seeds {seeds}; learning rates {rates}; {progress} reported runs "
        f"finished, {evidence.failed} failed, {duration(evidence.hours)}."
    )
    reference = reference_note(evidence)
    if reference is not None:
        text += f" {reference}"
    notes = [f"{label(cell)}: {note}" for cell in evidence.cells for note in cell.notes]
    if notes:
        text += f" Notes: {'; '.join(notes)}."
    return text


KAPPA_TEXT = "Quality of runs against the condition number of their head outputs, within and between cells"


def correlation_text(correlation: Correlation, groups: str, ranked: str) -> str:
    """`−0.06 (−0.24 to +0.14; 158 runs of 40 cells)`; that nothing could be ranked."""
    if correlation.value is None:
        return f"not known, too few {ranked}"
    count = f"{correlation.ranked} {ranked} of {plural(correlation.groups, groups)}"
    if correlation.interval is None:
        return f"{correlation.value:+.2f} ({count}, too few for an interval)"
    low, high = correlation.interval
    return f"{correlation.value:+.2f} ({low:+.2f} to {high:+.2f}; {count})"


def kappa_paragraph(all_runs: Conclusion, tasks: dict[str, Conclusion]) -> str:
    """What correlation κ has with quality, how much is unknown, and what it does not say."""
    within = {end: correlation_text(each, "cell", "runs") for end, each in all_runs.within.items()}
    between = {end: correlation_text(each, "grid", "cells") for end, each in all_runs.between.items()}
    by_task = []
    for task, conclusion in tasks.items():
        each = conclusion.within["end"]
        if each.value is not None:
            by_task.append(f"{task} {correlation_text(each, 'cell', 'runs')}")
    doubled = all_runs.doubling
    unknown = ", ".join(f"{count} at the {end}" for end, count in all_runs.unknown.items())
    text = (
        "**Does κ matter?** Spearman's rank correlation of κ with quality (below 0: lower κ was better; 95 % bootstrap"
        f" intervals, {len(tasks)} tasks pooled, nothing corrected). Among the runs of one cell, which differ by the "
        f"seed: κ at the start {within['start']}, at the end {within['end']}. Among the cells of one grid, by their "
        f"means, the interval over seeds and not over shapes: at the start {between['start']}, at the end "
        f"{between['end']}. Within cells at the end, by task: {'; '.join(by_task)}. Twice the heads lowered κ in "
        f"{doubled.lower_start} of {doubled.pairs} pairs at the start and in {doubled.lower_end} at the end; of the "
        f"latter, {doubled.better} were better with more heads. κ is unknown or infinite in so many of "
        f"{all_runs.runs} runs: {unknown}; {all_runs.failed} runs failed and have neither. Cells of a grid differ in "
        "size and depth, too, and a correlation is no cause."
    )
    if all_runs.waiting:
        names = ", ".join(all_runs.waiting)
        text += f" Nothing is read from {plural(len(all_runs.waiting), 'grid')} that has runs to come: {names}."
    return text
