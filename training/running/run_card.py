"""README.md of a run's folder, with what the Hub reads of it, the code that loads the model, and training.png."""

import io
import re
import shlex
from pathlib import Path

import pandas as pd
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from transformers import AutoConfig, PreTrainedConfig

from modeling_leaner.family import TEXT
from modeling_leaner.files import read_object, write_bytes
from modeling_leaner.hub import HUB_OWNER

from ..records import LOCAL_FILES, RESULTS, PublishedResults, RunResults, checked
from ..settings import words_of
from ..tasks import TASKS


TRAINING_FIGURE = "training.png"
PROJECT = "modeling_leaner"  # in cards; a link once the project has an address
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,  # a name that a template lacks is an error
    keep_trailing_newline=True,
)


def write_run_card(folder: Path) -> None:
    """Writes README.md of a finished run's folder, whole: its own numbers, nothing to compare them with."""
    file = folder / RESULTS
    results = checked(RunResults, read_object(file), file)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    where = folder.name if folder.is_absolute() else folder.as_posix()
    words = words_of({"shape": results.shape, "seed": results.seed, **results.recipe})
    text = TEMPLATES.get_template("run_card.md").render(
        metadata=metadata(results, config.model_type),
        results=results,
        config=config,
        parent=base_model(results),
        snippet=snippet(results, config, where),
        metrics=named_metrics(results),
        figure=(folder / TRAINING_FIGURE).is_file(),
        command=shlex.join(["leaner", "train", *words]),
        folder=shlex.quote(f"{where}-again"),
    )
    write_bytes(folder / "README.md", str(ModelCard(text)).encode())


# What the Hub reads


HUB_METRICS = ("accuracy", "f1", "matthews_correlation", "perplexity")
NO_LANGUAGE = ("listops", "listops-short", "python-docs", LOCAL_FILES)  # built-in text that is not English, or unknown


def named_metrics(results: RunResults) -> dict[str, float]:
    """The metrics of the evaluation that are defined, without `eval_`, the main one first."""
    found = {key.removeprefix("eval_"): value for key, value in sorted(results.metrics.items()) if value is not None}
    return dict(sorted(found.items(), key=lambda each: each[0] != results.main_metric))


def base_model(results: RunResults) -> str | None:
    """The Hub id of the model that a run started from, if it has one; a published parent has the same owner."""
    if isinstance(results, PublishedResults) and results.parent is not None:
        return f"{HUB_OWNER}/{results.parent}"
    start = results.started_from
    return None if start is None or start.startswith("./") else start


def metadata(results: RunResults, model_type: str, hub: bool = True) -> str:
    """The YAML by which the Hub shows and finds the model; without `hub` the evaluation rows are not the dataset's."""
    # As the Hub accepts it: a card names no path on somebody's disk.
    is_id = re.fullmatch(r"([\w.-]+/)?[\w.-]+", results.dataset)
    of_path = re.sub(r"[^\w.]+", "-", Path(results.dataset).name).strip("-.") or "local"
    dataset = results.dataset if is_id else of_path
    if isinstance(results, PublishedResults):
        name = results.name
    elif results.started_from is not None:
        name = f"{Path(results.started_from).name}-finetuned-{Path(dataset).name}"
    else:
        name = "-".join(Path(results.shape.removesuffix(".json")).parts[-2:])
    metrics = named_metrics(results)
    parent = base_model(results)
    task = TASKS[results.task]
    evaluations = [
        EvalResult(
            task_type=task.hub_name,
            dataset_type=dataset,
            dataset_name=dataset if hub else f"{dataset}, local rows",
            metric_type=metric,
            metric_value=float(f"{value:.4g}"),  # a standard error, which the text states, is in the third at best
            dataset_config=results.dataset_config,
            dataset_split=results.split,
        )
        for metric, value in metrics.items()
    ]
    optional = {
        "license": getattr(results, "license", None),
        "datasets": [dataset] if "/" in dataset else None,
        "metrics": [name for name in metrics if name in HUB_METRICS],
    }
    if isinstance(results, PublishedResults) and task.modality is TEXT and dataset not in NO_LANGUAGE:
        optional["language"] = "en"
    if parent is not None:
        optional["base_model"] = parent
        optional["base_model_relation"] = "finetune"  # also of a cut, for which the Hub has no word
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=task.hub_name,
        model_name=name,
        eval_results=evaluations or None,
        tags=["modeling_leaner", model_type, "custom_code"],
        **{name: value for name, value in optional.items() if value},
    ).to_yaml()


# The code that loads a model


EXAMPLES = {  # dataset → an input of its kind
    "nyu-mll/glue": "a gripping and often funny film",
    "listops-short": "[MAX 2 9 [MIN 4 7 ] 0 ]",
    "roneneldan/TinyStories": "Once upon a time there was a little dog",
    "python-docs": "Return the",
}
A_CLASS = "model.config.id2label[logits.argmax().item()]"


def snippet(results: RunResults, config: PreTrainedConfig, where: str) -> str:
    """Python that ends by printing a prediction; `where` is the Hub id or folder of the model."""
    return TEMPLATES.get_template("snippet.jinja").render(
        task=results.task,
        # LeanBERTForMaskedLM → AutoModelForMaskedLM, LeanBERTModel → AutoModel
        auto="AutoModel" + "".join(results.architecture.partition("For")[1:]),
        repository=where,
        example=EXAMPLES.get(results.dataset, "The city is the capital of the country"),
        mode="L" if getattr(config, "num_channels", None) == 1 else "RGB",
        answer="logits.item()" if config.problem_type == "regression" else A_CLASS,
    )


# training.png


def plot(metrics_file: Path, output: Path, metric: str) -> None:
    """PNG of a run against its steps: the training and held-out loss; the held-out `metric` if it is another."""
    log = pd.read_json(metrics_file, lines=True)
    panels = [["loss", "eval_loss"], *([[f"eval_{metric}"]] if metric != "loss" else [])]
    log = log.reindex(columns=["step", *sum(panels, [])]).groupby("step").last()
    figure = Figure((4.3 * len(panels), 3.4), layout="constrained")
    for axis, names in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for name in names:
            points = log[name].dropna()
            axis.plot(points.index, points, ".-", label="training" if name == "loss" else "held-out")
        axis.set(xlabel="training step", ylabel=names[-1].removeprefix("eval_").replace("_", " "))
        axis.grid(alpha=0.3)
        axis.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    write_bytes(output, content.getvalue())
