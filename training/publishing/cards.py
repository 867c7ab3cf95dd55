"""README.md of a published folder, from its config.json and results.json; the text is that of `templates/`."""

import shlex
from pathlib import Path
from typing import Any
from unicodedata import category

from huggingface_hub import ModelCard

from modeling_leaner.family import FAMILIES
from modeling_leaner.files import require, sha256, write_bytes
from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.shapes import heads_of

from ..experiments.evidence import baseline_of, dataset_name
from ..experiments.grid import is_folder_name
from ..experiments.statistics import gain, row_error
from ..records import Cell, Evidence, Guess, PublishedResults
from ..records.results import LOCAL_FILES, RESULTS
from ..running.card import (
    TRAINING_FIGURE,
    eval_results,
    metadata,
    named_metrics,
    plot,
    project_link,
    repository,
    snippet,
    templates_in,
)
from ..running.trainer import METRICS_FILE
from ..tasks import TASKS
from ..tasks.distillation import loss_unit_of
from .folders import check_tensor_shapes, read_run


README = "README.md"
EVAL_RESULTS = ".eval_results/results.yaml"  # which the Hub reads
TEMPLATES = Path(__file__).parent / "templates"


def fill_card(template: str, **values: object) -> str:
    """The text of a template that begins with metadata. Raises ValueError if these are no YAML for the Hub."""
    return str(ModelCard(templates_in(TEMPLATES).get_template(template).render(values)))


def best_of(evidence: Evidence) -> Guess | None:
    """The best simple baseline that reads the input, else the one that reads nothing; None if neither is known."""
    chance = baseline_of(evidence).chance
    known = evidence.guesses or []
    if not known and chance is not None:
        known = [Guess(name="a guess that reads nothing", value=chance)]
    choose = max if evidence.higher_is_better else min
    return choose(known, key=lambda guess: guess.value, default=None)


def printed(text: str) -> str:
    """A model's text within a quotation: its lines stay in it, control characters become �."""
    shown = "".join("�" if category(letter) == "Cc" and letter != "\n" else letter for letter in text)
    return shown.replace("\n", "\n> ")


def own_cell(folder: Path, config: Any, results: PublishedResults) -> Cell:
    """The cell of this folder's shape. Raises ValueError if it is missing or its numbers are not the folder's."""
    file = folder / RESULTS
    evidence = results.evidence
    own = next((cell for cell in evidence.cells if cell.shape == results.cell), None)
    if own is None:
        raise ValueError(f"{file}: cell is {results.cell!r}, expected a shape of evidence.cells")
    expected = {
        "layers": config.num_hidden_layers,
        "heads": heads_of(config),
        "head_dim": config.head_dim,
        "width": config.hidden_size,
        "mlp": config.intermediate_size,
        "parameters": results.parameters,
    }
    for field, value in expected.items():
        require(getattr(own, field) == value, file, f"evidence.cells.{field}", getattr(own, field), f"{value}")
    stated, main = own.values.get(str(results.seed)), results.metrics.get(f"eval_{evidence.metric}")
    require(stated == main, file, "evidence.cells.values", stated, f"{main} of this model")
    return own


def published_card(folder: Path, config: Any, results: PublishedResults) -> str:
    """The text of a published folder's card. Raises ValueError as `own_cell`, and if the weights are others."""
    file, weights = folder / RESULTS, folder / WEIGHTS
    evidence = results.evidence
    for name in (results.name, *results.partners):
        require(is_folder_name(name), file, "name, partners", name, "a folder's name of a-z, 0-9, dots and hyphens")
    if not weights.is_file() or sha256(weights) != results.weights_sha256:
        raise ValueError(f"{weights}: missing, or not of weights_sha256 in {file}")
    task = TASKS[results.task]
    scores = [
        (name, value, None if task.is_scored_by_token else row_error(name, value, results.rows))
        for name, value in named_metrics(results).items()
    ]
    best = best_of(evidence)
    is_local = results.dataset == LOCAL_FILES or ("/" in results.dataset and not evidence.hub)
    dataset = dataset_name(results)
    role = "baseline" if results.cell == evidence.baseline else "variant"
    return fill_card(
        "model_card.md",
        metadata=metadata(results, config.model_type, hub=evidence.hub),
        results=results,
        evidence=evidence,
        own=own_cell(folder, config, results),
        role="pruned model" if results.cut_parent else role,
        dataset=dataset,
        task=task,
        family=FAMILIES[config.model_type.removeprefix("lean_")].title,
        parent=repository(results.parent) if results.parent else None,
        snippet=snippet(results, config, repository(results.name)),
        scores=scores,
        best=best,
        ahead=gain(scores[0][1] - best.value, evidence.higher_is_better) if best else None,
        least=3 * (scores[0][2] or 0),
        printed=printed,
        data=evidence.data or f"The training data are {results.dataset}.",
        project=project_link(),
        slim_options=shlex.join(results.cut_parent.slim_options) if results.cut_parent else "",
        files=f" --data_files {evidence.data_files or 'FOLDER'}" if is_local else "",
        copies=f" --data_files {dataset}=FOLDER" if is_local else "",
    )


def render(folder: Path) -> tuple[dict[str, str | None], PublishedResults]:
    """The texts that are made of a published folder's results, by file, None for no file; and the results.

    Raises:
        ValueError: config, results and weights do not fit each other.
    """
    config, results, _ = read_run(folder)
    if not isinstance(results, PublishedResults):
        raise ValueError(f"{folder / RESULTS}: evidence is missing; leaner publish writes it")
    check_tensor_shapes(folder, results.architecture, config)
    return {README: published_card(folder, config, results), EVAL_RESULTS: eval_results(results)}, results


def write_card(folder: Path) -> None:
    """Writes what `render` makes of a published folder, and draws its run if its log is there."""
    files, results = render(folder)
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, text.encode())
    log = folder / METRICS_FILE
    if log.is_file():
        config, _, settings = read_run(folder)
        loss_unit = loss_unit_of(TASKS[results.task], settings, config)
        plot(log, folder / TRAINING_FIGURE, results.main_metric, loss_unit, best_of(results.evidence))
