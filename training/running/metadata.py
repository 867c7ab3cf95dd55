"""What the Hub reads of a card: its YAML metadata, and `.eval_results/results.yaml`."""

import re
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml

from modeling_leaner.family import TEXT
from modeling_leaner.hub import HUB_OWNER

from ..records import PublishedResults, RunResults
from ..records.results import LOCAL_FILES
from ..tasks.registry import TASKS


PROJECT_URL: str | None = None  # of the code of this project: `url` of setup.cfg; None where that states none
HUB_METRICS = ("accuracy", "f1", "matthews_correlation", "perplexity", "exact_match")
DATASET_NAMES = {  # of rows that are not the Hub dataset's own
    "LTCB/enwik8": "articles of enwik8, without markup",
    "roneneldan/TinyStories": "955 stories of TinyStories",
    "listops-short": "ListOps of 10-30 tokens, generated",
}
NO_LANGUAGE = ("listops", "listops-short", "python-docs")  # built-in text that is not English


def project_link() -> str:
    """This project by its name, linked where its address is known."""
    if PROJECT_URL is None:
        return "modeling_leaner"
    return f"[modeling_leaner]({PROJECT_URL})"


def repository(name: str) -> str:
    """The Hub id of a published folder."""
    return f"{HUB_OWNER}/{name}"


def rounded(value: float) -> float:
    """Four digits; a standard error, which the text states, is in the third at best."""
    return float(f"{value:.4g}")


def named_metrics(results: RunResults) -> dict[str, float]:
    """The metrics of the evaluation that are defined, without `eval_`, the main one first."""
    found = {key.removeprefix("eval_"): value for key, value in sorted(results.metrics.items()) if value is not None}
    return dict(sorted(found.items(), key=lambda each: each[0] != results.metric))


def dataset_id(dataset: str) -> str:
    """The name of a dataset as the Hub accepts it; a card names no path on somebody's disk."""
    if re.fullmatch(r"([\w.-]+/)?[\w.-]+", dataset):
        return dataset
    return re.sub(r"[^\w.]+", "-", Path(dataset).name).strip("-.") or "local"


def hub_task(task: str) -> str:
    """The Hub's name of a task."""
    return TASKS[task].hub_name


def evaluations(results: RunResults, hub: bool) -> list[EvalResult] | None:
    """The card's model-index, None without metrics.

    Args:
        hub: the rows are those of the Hub dataset; otherwise the dataset's name says that they are not.
    """
    dataset = dataset_id(results.dataset)
    name = dataset
    if not hub:
        name = DATASET_NAMES.get(dataset, f"{dataset}, local rows")
    metrics = named_metrics(results)
    if not metrics:
        return None
    return [
        EvalResult(
            task_type=hub_task(results.task),
            dataset_type=dataset,
            dataset_name=name,
            metric_type=metric,
            metric_value=rounded(value),
            dataset_config=results.dataset_config,
            dataset_split=results.split,
        )
        for metric, value in metrics.items()
    ]


def model_name(results: RunResults) -> str:
    """The published name; without one, that of the parent and of the data, or folder and name of the shape."""
    if isinstance(results, PublishedResults):
        return results.name
    if results.started_from is not None:
        return f"{Path(results.started_from).name}-finetuned-{Path(dataset_id(results.dataset)).name}"
    return "-".join(Path(results.shape.removesuffix(".json")).parts[-2:])


def base_model(results: RunResults) -> str | None:
    """The Hub id of the model that a run started from, if it has one; a published parent has the same owner."""
    if isinstance(results, PublishedResults) and results.parent is not None:
        return repository(results.parent)
    if results.started_from is None or results.started_from.startswith("./"):
        return None
    return results.started_from


def is_english(task: str, dataset: str) -> bool:
    """Whether a dataset holds English text; of local files nobody has said."""
    return TASKS[task].modality is TEXT and dataset not in (*NO_LANGUAGE, LOCAL_FILES)


def metadata(results: RunResults, model_type: str, hub: bool = True) -> str:
    """The YAML by which the Hub shows and finds the model.

    Args:
        hub: the evaluation rows are those of the Hub dataset.
    """
    optional = {}
    dataset = dataset_id(results.dataset)
    if isinstance(results, PublishedResults) and is_english(results.task, dataset):
        optional["language"] = "en"
    licence = getattr(results, "license", None)
    if licence is not None:
        optional["license"] = licence
    if "/" in dataset:
        optional["datasets"] = [dataset]
    metrics = [name for name in named_metrics(results) if name in HUB_METRICS]
    if metrics:
        optional["metrics"] = metrics
    parent = base_model(results)
    if parent is not None:
        optional["base_model"] = parent
        optional["base_model_relation"] = "finetune"  # also of a cut, for which the Hub has no word
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=hub_task(results.task),
        model_name=model_name(results),
        eval_results=evaluations(results, hub),
        tags=["modeling_leaner", model_type, "custom_code"],
        **optional,
    ).to_yaml()


def eval_entries(results: PublishedResults) -> list[EvalResultEntry]:
    """The main metric in the Hub's newer form; none where the rows are not those of a dataset of the Hub."""
    if not results.evidence.hub:
        return []
    name = results.metric
    config = results.dataset_config or "default"
    notes = f"{name} on {results.split}, {results.rows} rows, seed {results.seed}"
    value = rounded(results.metrics[f"eval_{name}"])
    return [EvalResultEntry(dataset_id=results.dataset, task_id=config, value=value, notes=notes)]


def eval_results(results: PublishedResults) -> str | None:
    """What `.eval_results/results.yaml` holds; None where there is nothing for the Hub to show."""
    entries = eval_result_entries_to_yaml(eval_entries(results))
    if not entries:
        return None
    return yaml.safe_dump(entries, sort_keys=False)
