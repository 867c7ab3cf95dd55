"""The head of a card: what the model is for, how good it is, and the facts that a visitor looks for first."""

from typing import Any

from modeling_leaner.registry import FAMILIES

from ...experiments.evidence import dataset_name
from ...records import Cell, PublishedResults
from ...running import metadata
from ...running.metadata import named_metrics, project_link, repository
from ...tasks.registry import TASKS
from .amounts import direction, gain, millions, number, score, sizes
from .provenance import licence, seen
from .scoring import best_of, score_error


PAPERS = {
    "Leaner Transformers: More Heads, Less Depth": "https://arxiv.org/abs/2505.20802",
    "the objection that halving the MLP saves as much": "https://arxiv.org/abs/2512.01059",
    "Low-Rank Bottleneck in Multi-head Attention Models": "https://arxiv.org/abs/2002.07028",
}
BIBTEX = """@software{modeling_leaner,
  title = {modeling_leaner: LeanViT, LeanBERT and LeanGPT},
  author = {{The modeling_leaner authors}}%s
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
    verdict = guess_verdict(gain(value - best.value, evidence), error)
    return f"{text} The best simple guess ({best.name}) has {best.value:.3f}, {verdict}."


def guess_verdict(ahead: float, error: float | None) -> str:
    """How a model compares with the best simple guess that it is `ahead` of: clearly is by three standard errors."""
    if error is not None and abs(ahead) < 3 * error:
        return "which this model does not clearly beat"
    if ahead > 0:
        return "which this model beats"
    return "**which is better than this model**"


def links() -> str:
    """Links to the project and to the papers."""
    papers = ", ".join(f"[{title}]({url})" for title, url in PAPERS.items())
    return f"{project_link()}; {papers}"


def bibtex() -> str:
    """How to cite this project, and the paper whose hypothesis it tests."""
    url = ""
    if metadata.PROJECT_URL is not None:
        url = f",\n  url = {{{metadata.PROJECT_URL}}}"
    return BIBTEX % url


def hub_link(name: str) -> str:
    return f"[{name}](https://huggingface.co/{repository(name)})"


def facts(results: PublishedResults, settings: dict[str, Any], own: Cell) -> dict[str, str]:
    """The facts below a card's first sentences: name of the line → its text."""
    evidence = results.evidence
    if results.cut_parent is not None:
        role = f"{results.parameters / results.cut_parent.parameters:.0%} of its parent's"
    elif own.shape == evidence.baseline:
        role = "the baseline"
    else:
        role = f"{number(own.parameters_over_baseline, '.0%')} of the baseline's parameters"
    among = "the only one"
    if len(evidence.seeds) > 1:
        among = f"one of {len(evidence.seeds)}"
    lines = {
        "Shape": f"{sizes(own)}, width {own.width}, MLP {own.mlp}; {results.parameters:,} parameters, {role}",
        "Training": f"{seen(results, settings)} of {dataset_name(results)}; seed {results.seed}, {among}",
    }
    if results.cut_parent is not None:
        lines["Cut from"] = f"{hub_link(results.parent)}, see [below](#beside-its-parent)"
    elif results.parent is not None:
        lines["Started from"] = hub_link(results.parent)
    if results.partners:
        lines["Published with it"] = ", ".join(map(hub_link, results.partners))
    lines["Project and papers"] = links()
    lines["Licence"] = licence(results.license)
    return lines


def scores_note(results: PublishedResults, own: Cell) -> str:
    """What the scores are of, and where this seed stands among the others."""
    text = f"From these very weights, on {results.rows:,} held-out rows ({results.split})."
    if own.n > 1:
        text += f" The {own.n} seeds of this shape have {results.evidence.metric} {score(own, '.4f')}, mean "
        text += "± sd; the first seed is published, whatever its result."
    return text
