"""README.md of a published folder, from its config.json and results.json; the text is that of `templates/`."""

import shlex
from pathlib import Path
from typing import Any
from unicodedata import category

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.family import FAMILIES
from modeling_leaner.files import require, sha256, write_bytes
from modeling_leaner.shapes import heads_of

from ..experiments.evidence import baseline_of, dataset_name
from ..experiments.grid import is_folder_name
from ..experiments.run_statistics import gain, row_error
from ..records import Cell, Evidence, Guess, PublishedEncoder, PublishedResults, RunResults
from ..records.results import LOCAL_FILES, RESULTS
from ..running.card import TRAINING_FIGURE, run_card
from ..running.figure import plot
from ..running.metadata import eval_results, metadata, named_metrics, project_link, repository
from ..running.snippets import snippet
from ..running.trainer import METRICS_FILE
from ..tasks.distillation import loss_unit_of
from ..tasks.registry import TASKS
from .encoder_card import encoder_card
from .folders import Run, check_tensor_shapes, read_run
from .rendering import fill_card


def slim_words(options: list[str]) -> str:
    """The options of `leaner slim`; published records call --keep-layers by its old name, --keep."""
    return shlex.join("--keep-layers" if word == "--keep" else word for word in options)


def best_of(evidence: Evidence) -> Guess | None:
    """The best simple baseline that reads the input, else the one that reads nothing; None if neither is known."""
    chance = baseline_of(evidence).chance
    known = evidence.guesses or []
    if not known and chance is not None:
        known = [Guess(name="a guess that reads nothing", value=chance)]
    choose = max if evidence.higher_is_better else min
    return choose(known, key=lambda guess: guess.value, default=None)


def score_error(metric: str, value: float, results: RunResults) -> float | None:
    """`row_error` of a score; None for language models, which are scored by tokens, not by rows."""
    return None if TASKS[results.task].is_scored_by_token else row_error(metric, value, results.rows)


def printed(text: str) -> str:
    """A model's text within a quotation: its lines stay in it, control characters become �."""
    shown = "".join("�" if category(letter) == "Cc" and letter != "\n" else letter for letter in text)
    return shown.replace("\n", "\n> ")


def role(results: PublishedResults) -> str:
    """What the model is in its comparison."""
    if results.cut_parent is not None:
        return "pruned model"
    return "baseline" if results.cell == results.evidence.baseline else "variant"


def published_card(folder: Path, run: Run) -> str:
    """The text of a published folder's card. Raises ValueError as of `own_cell`."""
    results = run.results
    evidence = results.evidence
    scores = [(name, value, score_error(name, value, results)) for name, value in named_metrics(results).items()]
    best = best_of(evidence)
    is_local = results.dataset == LOCAL_FILES or ("/" in results.dataset and not evidence.hub)
    dataset = dataset_name(results)
    return fill_card(
        "model_card.md",
        metadata=metadata(results, run.config.model_type, hub=evidence.hub),
        results=results,
        evidence=evidence,
        own=own_cell(folder, run.config, results),
        role=role(results),
        dataset=dataset,
        task=TASKS[results.task],
        family=FAMILIES[run.config.model_type.removeprefix("lean_")].title,
        parent=repository(results.parent) if results.parent else None,
        snippet=snippet(results, run.config, repository(results.name)),
        scores=scores,
        best=best,
        ahead=gain(scores[0][1] - best.value, evidence.higher_is_better) if best else None,
        least=3 * (scores[0][2] or 0),
        printed=printed,
        data=evidence.data or f"The training data are {results.dataset}.",
        project=project_link(),
        slim_options=slim_words(results.cut_parent.slim_options) if results.cut_parent else "",
        files=f" --data_files {evidence.data_files or 'FOLDER'}" if is_local else "",
        copies=f" --data_files {dataset}=FOLDER" if is_local else "",
    )


def own_cell(folder: Path, config: Any, results: PublishedResults) -> Cell:
    """The cell of this folder's shape. Raises ValueError where it is missing or its numbers are not the folder's."""
    file = folder / RESULTS
    evidence = results.evidence
    own = next((cell for cell in evidence.cells if cell.shape == results.cell), None)
    if own is None:
        raise ValueError(f"{file}: cell is {results.cell!r}, expected a shape of evidence.cells")
    main = results.metrics.get(f"eval_{evidence.metric}")
    fields = [
        ("layers", own.layers, config.num_hidden_layers),
        ("heads", own.heads, heads_of(config)),
        ("head_dim", own.head_dim, config.head_dim),
        ("width", own.width, config.hidden_size),
        ("mlp", own.mlp, config.intermediate_size),
        ("parameters", own.parameters, results.parameters),
        ("values", own.values.get(str(results.seed)), main),
    ]
    for field, stated, expected in fields:
        if stated != expected:
            place = f"evidence.cells.{field}"
            raise ValueError(f"{file}: {place} is {stated} for {own.shape}, expected {expected} of this model")
    return own


def check_published(folder: Path, results: PublishedResults) -> None:
    """Raises ValueError, naming file and field, where something that the card says is missing or of another type."""
    file = folder / RESULTS
    for name in (results.name, *results.partners):
        require(is_folder_name(name), file, "name, partners", name, "a folder's name of a-z, 0-9, dots and hyphens")
    parent = results.cut_parent
    if parent is not None:
        main = f"eval_{results.metric}"
        for name, metrics in (("metrics", parent.metrics), ("untrained_metrics", parent.untrained_metrics)):
            require(main in metrics, file, f"cut_parent.{name}", list(metrics), f"{main} among them")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{weights}: missing")
    held = sha256(weights)
    if held != results.weights_sha256:
        raise ValueError(f"{weights}: weights_sha256 differs, {held} in place of {file}'s")


def render(folder: Path) -> tuple[str, RunResults]:
    """The card's text and the results. Raises ValueError where config, results and weights do not fit each other."""
    run = read_run(folder)
    results = run.results
    check_tensor_shapes(folder, results.architecture, run.config)
    if isinstance(results, PublishedEncoder):
        return encoder_card(folder, run), results
    if not isinstance(results, PublishedResults):
        return run_card(folder, run.config, results), results
    check_published(folder, results)
    return published_card(folder, run), results


def write_eval_results(file: Path, entries: str | None) -> None:
    """Writes the entries; without any, removes those of an earlier card."""
    if entries is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(exist_ok=True)
    write_bytes(file, entries.encode())


def draw_training(folder: Path) -> None:
    """Draws the run of a published folder of a grid, where its log is there. Raises ValueError as `read_run`."""
    log = folder / METRICS_FILE
    if not log.is_file():
        return
    run = read_run(folder)
    results = run.results
    loss_unit = loss_unit_of(TASKS[results.task], run.settings, run.config)
    plot(log, folder / TRAINING_FIGURE, results.main_metric, loss_unit, best_of(results.evidence))


def write_card(folder: Path) -> None:
    """Writes README.md, and for a published folder its figures and `.eval_results/`, once everything is checked."""
    text, results = render(folder)
    if isinstance(results, PublishedResults):
        draw_training(folder)
        write_eval_results(folder / ".eval_results" / "results.yaml", eval_results(results))
    write_bytes(folder / "README.md", text.encode())
