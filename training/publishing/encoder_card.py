"""The card of a published sentence encoder: what it does, how to use it, and parent, cut and model side by side."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.files import require, sha256
from modeling_leaner.slimming.slim import RECORD

from ..experiments.encoder_scores import TITLES
from ..records import PublishedEncoder, TextRows
from ..records.results import RESULTS
from ..running.environment import machine_name
from ..running.metadata import project_link, repository, rounded
from ..running.snippets import ENCODE_TEXT
from .cut_parents import cuts_in
from .folders import Run
from .rendering import fill_card


LIBRARY = "sentence-transformers"
METRICS = {"stsb": "cosine_spearman", "stsb_test": "cosine_spearman", "qnli": "mrr_at_10", "sst2": "accuracy"}
TASKS = {"qnli": "text-retrieval", "sst2": "text-classification"}


def encoder_card(folder: Path, run: Run) -> str:
    """The text of a published encoder's card. Raises ValueError if its files do not fit each other."""
    results = run.results
    check_encoder(folder, run)
    timed = results.comparison.environment
    trained = results.environment
    return fill_card(
        "encoder_card.md",
        metadata=encoder_metadata(results, run.config.model_type),
        results=results,
        settings=run.settings,
        steps=cuts_in(folder),
        titles=TITLES,
        width=run.config.hidden_size,
        repository=repository(results.name),
        snippet=ENCODE_TEXT.format(repository=repository(results.name)),
        project=project_link(),
        timed_on=machine_name(timed.processor, timed.threads),
        trained_on=machine_name(trained.processor, trained.threads),
    )


def check_encoder(folder: Path, run: Run) -> None:
    """Raises ValueError, naming file and field, where folder and results differ."""
    results = run.results
    file = folder / RESULTS
    weights = folder / WEIGHTS
    require(weights.is_file(), weights, "the file", None, "weights")
    found = sha256(weights)
    require(found == results.weights_sha256, weights, "sha256", found, f"weights_sha256 of {file}")
    require((folder / RECORD).is_file(), folder / RECORD, "the file", None, "what was cut")
    models = results.comparison.models
    require(len(models) == 3, file, "comparison.models", len(models), "the parent, the cut and this model")
    own = results.own_scores
    heads = list(run.config.heads_per_layer)
    place = "comparison.models.2"
    require(own.model == results.name, file, f"{place}.model", own.model, results.name)
    require(own.heads_per_layer == heads, file, f"{place}.heads_per_layer", own.heads_per_layer, f"{heads}")
    require(own.parameters == results.parameters, file, f"{place}.parameters", own.parameters, f"{results.parameters}")


def dataset_of(rows: TextRows) -> dict[str, str | None]:
    """A dataset as the Hub's metadata name it."""
    return {
        "dataset_type": rows.dataset,
        "dataset_name": rows.dataset,
        "dataset_config": rows.dataset_config,
        "dataset_split": rows.split,
    }


def evaluations(results: PublishedEncoder) -> list[EvalResult]:
    """The card's model-index: every score but the cosine to the parent."""
    comparison = results.comparison
    return [
        EvalResult(
            task_type=TASKS.get(name, "sentence-similarity"),
            metric_type=METRICS[name],
            metric_name=TITLES[name],
            metric_value=rounded(value),
            **dataset_of(comparison.data[name]),
        )
        for name, value in results.own_scores.scores.items()
        if name in METRICS
    ]


def encoder_metadata(results: PublishedEncoder, model_type: str) -> str:
    """The YAML by which the Hub shows and finds the model."""
    return ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="sentence-similarity",
        language="en",
        license=results.license,
        base_model=results.base_model,
        base_model_relation="finetune",  # the Hub knows no cut
        datasets=[results.dataset],
        model_name=results.name,
        eval_results=evaluations(results),
        tags=[LIBRARY, "feature-extraction", "transformers", "modeling_leaner", model_type, "custom_code", "pruned"],
    ).to_yaml()
