"""The card of a published sentence encoder: what it does, how to use it, and parent, cut and model side by side."""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.slimming.slim import RECORD
from modeling_leaner.support.documents import require
from modeling_leaner.support.files import sha256

from ..experiments.encoder_scores import TITLES
from ..experiments.encoders import table_lines
from ..records import CutStep, PublishedEncoder, TextRows
from ..records.results import RESULTS
from ..running.finished_folder import Run
from ..running.metadata import project_link, repository, rounded
from ..running.snippets import ENCODE_TEXT
from .cut_parents import cuts_in
from .rendering import fill_card, markdown
from .wording import encoders, opening


LIBRARY = "sentence-transformers"
SENTENCE_TRANSFORMERS = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{repository}", trust_remote_code=True)
vectors = model.encode(["A dog runs.", "A puppy is running.", "The bank is closed."])
print(model.similarity(vectors[:1], vectors[1:]))"""
METRICS = {"stsb": "cosine_spearman", "stsb_test": "cosine_spearman", "qnli": "mrr_at_10", "sst2": "accuracy"}
TASKS = {"qnli": "text-retrieval", "sst2": "text-classification"}


@dataclass
class EncoderCardContext:
    """What `templates/encoder_card.md` names: Markdown, ready to be put in its place."""

    metadata: str
    name: str
    purpose: str
    standing: str
    sentence_transformers: str
    snippet: str
    table: str
    scores_about: str
    time_about: str
    cuts: list[CutStep]
    recovery: str
    stored: str
    lengths: str
    limits: list[str]
    licence: str
    commands: str
    hardware: str
    project: str
    bibtex: str


def encoder_card(folder: Path, run: Run) -> str:
    """The text of a published encoder's card. Raises ValueError where its files do not fit each other."""
    results = run.results
    check_encoder(folder, run)
    comparison = results.comparison
    context = EncoderCardContext(
        metadata=encoder_metadata(results, run.config.model_type),
        name=results.name,
        purpose=encoders.purpose(results),
        standing=encoders.standing(results),
        sentence_transformers=SENTENCE_TRANSFORMERS.format(repository=repository(results.name)),
        snippet=ENCODE_TEXT.format(repository=repository(results.name)),
        table=encoder_table(results),
        scores_about=encoders.scores_about(comparison),
        time_about=encoders.time_about(comparison),
        cuts=cuts_in(folder),
        recovery=encoders.recovery(results, run.settings),
        stored=encoders.stored(results.stored),
        lengths=encoders.lengths(results.lengths),
        limits=encoders.untested(),
        licence=encoders.licence(results),
        commands="\n".join([*results.commands, f"leaner verify model_cards/{results.name}"]),
        hardware=encoders.hardware(results),
        project=project_link(),
        bibtex=opening.bibtex(),
    )
    return fill_card("encoder_card.md", context)


def encoder_table(results: PublishedEncoder) -> str:
    """Parent, cut and recovered model, a line for each number."""
    lines = [[cell.replace(" (", "<br>(", 1) for cell in line] for line in table_lines(results.comparison.models)]
    trained = [
        ["steps of recovery", "–", "0", f"{results.train.steps:,}"],
        ["tokens read in the recovery", "–", "0", f"{results.tokens:,}"],
        ["core-hours of the recovery", "–", "0", f"{results.core_hours:.2f}"],
    ]
    header = ["", f"parent, {results.parent_scores.model}", "cut, untrained", "**recovered: this model**"]
    return markdown(header, lines + trained)


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
