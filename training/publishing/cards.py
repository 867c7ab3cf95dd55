"""`leaner card`: README.md of published folders and of runs, from config.json and results.json.

A published folder's results.json holds `evidence`, the cells of its grid; its card shows them all: a table, a figure,
what was not tested, the data and their terms. The text is that of `templates/`, the sentences those of `wording/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.shapes import heads_of
from modeling_leaner.support.documents import require, write_json
from modeling_leaner.support.files import sha256, write_bytes

from ..experiments.evidence import with_runs
from ..experiments.grid import is_folder_name
from ..records import Cell, CutStep, Evidence, PublishedEncoder, PublishedResults, RunResults
from ..records.results import RESULTS
from ..running.card import TRAINING_FIGURE, run_card
from ..running.figure import plot
from ..running.finished_folder import CARDS, Run, check_tensor_shapes, read_run, results_in
from ..running.metadata import eval_results, metadata, repository
from ..running.snippets import snippet
from ..running.trainer import METRICS_FILE
from ..tasks.distillation import loss_unit_of
from ..tasks.registry import TASKS
from . import tables
from .curve_tables import own_branches, scores_by_budget
from .cut_parents import cuts_in
from .encoder_card import encoder_card
from .evidence_figure import evidence_figure
from .rendering import fill_card
from .wording import comparison, limits, opening, provenance, samples, scoring


FIGURE = "evidence.png"


@dataclass
class Beside:
    """Another grid's cells on a card."""

    summary: str
    about: str
    table: str
    claims: str


@dataclass
class BesideParent:
    """What a card says of the model that this one was cut from."""

    table: str
    training: str


@dataclass
class CardCurves:
    """What a card says of the budgets of its grid."""

    cells: str
    own: str | None


@dataclass
class ModelCardContext:
    """What `templates/model_card.md` names: Markdown, ready to be put in its place."""

    metadata: str
    name: str
    purpose: str
    standing: str
    snippet: str
    facts: dict[str, str]
    scores: str
    scores_note: str
    guesses: str
    parent: BesideParent | None
    cuts: list[CutStep]
    comparison_intro: str
    comparison: str
    claims: str
    comparison_notes: str
    figure_text: str
    details: str
    glossary: str
    curves: CardCurves | None
    beside: list[Beside]
    fine_tuned: str | None
    continuations: str | None
    limits: list[str]
    training: str
    metric: str
    data: str
    place: str
    commands: str
    hardware: str
    bibtex: str


def beside(evidence: Evidence) -> list[Beside]:
    """What a card says of the grid beside its own, of the grid beside that one, and so on."""
    other = evidence.beside
    if other is None:
        return []
    nearest = Beside(
        summary=f"the grid <code>{other.grid}</code>",
        about=comparison.beside_about(other, evidence),
        table=tables.comparison(other, own=""),
        claims=comparison.claims(other),
    )
    return [nearest, *beside(other)]


def beside_parent(results: PublishedResults, settings: dict[str, Any]) -> BesideParent | None:
    """What a card says of the model that this one was cut from; None of one that was not."""
    if results.cut_parent is None:
        return None
    return BesideParent(tables.beside_parent(results), provenance.cut_training(results, settings))


def curves(results: PublishedResults) -> CardCurves | None:
    """What a card says of the budgets of its grid; None of a grid without branches."""
    if results.evidence.curves is None:
        return None
    return CardCurves(scores_by_budget(results.evidence, results.cell), own_branches(results))


def published_card(folder: Path, run: Run) -> str:
    """The text of a published folder's card. Raises ValueError as of `own_cell`."""
    results = run.results
    config = run.config
    name = results.name
    evidence = with_runs(results.evidence)
    waiting = len(results.evidence.cells) - len(evidence.cells)
    own = own_cell(folder, config, results)
    context = ModelCardContext(
        metadata=metadata(results, config.model_type, hub=evidence.hub),
        name=name,
        purpose=opening.purpose(config.model_type, results),
        standing=opening.standing(results),
        snippet=snippet(results, config, repository(name)),
        facts=opening.facts(results, run.settings, own),
        scores=tables.scores(results),
        scores_note=opening.scores_note(results, own),
        guesses=tables.guesses(evidence),
        parent=beside_parent(results, run.settings),
        cuts=cuts_in(folder) if results.cut_parent else [],
        comparison_intro=comparison.comparison_intro(evidence, waiting),
        comparison=tables.comparison(evidence, own.shape),
        claims=comparison.claims(evidence),
        comparison_notes=comparison.notes_on(evidence, results.rows),
        figure_text=comparison.figure_text(evidence),
        details=tables.details(evidence, own.shape),
        glossary=comparison.glossary(evidence),
        curves=curves(results),
        beside=beside(evidence),
        fine_tuned=tables.fine_tuned(evidence),
        continuations=samples.continuations(results),
        limits=limits.untested(evidence, results),
        training=provenance.training(config, results, run.settings),
        metric=evidence.metric,
        data=provenance.data(results),
        place=provenance.place(results),
        commands=provenance.commands(results, run.command),
        hardware=provenance.hardware(results),
        bibtex=opening.bibtex(),
    )
    return fill_card("model_card.md", context)


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
        return run_card(folder, run), results
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
    plot(log, folder / TRAINING_FIGURE, results.main_metric, loss_unit, scoring.best_of(results.evidence))


def write_card(folder: Path) -> None:
    """Writes README.md, and for a published folder its figures and `.eval_results/`, once everything is checked."""
    text, results = render(folder)
    if isinstance(results, PublishedResults):
        write_bytes(folder / FIGURE, evidence_figure(results))
        draw_training(folder)
        write_eval_results(folder / ".eval_results" / "results.yaml", eval_results(results))
    write_bytes(folder / "README.md", text.encode())


def check_is_own_card(folder: Path) -> None:
    """Raises ValueError where a folder's README.md is not what `write_card` makes of the other files there."""
    file = folder / "README.md"
    text, _ = render(folder)
    if file.exists() and file.read_bytes() != text.encode():
        raise ValueError(f"{file}: not the card that leaner card would write; --replace writes over it")


def check_unpublished(folder: Path) -> None:
    """Raises ValueError for a published folder: the command that publishes it states its licence."""
    results = read_run(folder).results
    if isinstance(results, PublishedResults | PublishedEncoder):
        command = "leaner publish GRID.yaml"
        if isinstance(results, PublishedEncoder):
            command = "leaner publish-encoder"
        raise ValueError(f"--license: {folder} is published; {command} --license states that of its weights")


def state_license(folder: Path, license: str) -> None:
    """Writes the licence of a run's weights into its results.json, from which its card has it."""
    file = folder / RESULTS
    write_json(file, results_in(file).model_copy(update={"license": license}).document())


def write_cards(folders: Sequence[Path], replace: bool = False, license: str | None = None) -> None:
    """`write_card` of each folder, or where none is given of all published ones, and their index; prints the files.

    Args:
        replace: also over cards that are not what `write_card` makes of the folder.
        license: of the weights of these runs; None leaves what their results say.

    Raises:
        ValueError, OSError: a folder does not hold together, or as of `check_is_own_card` and
            `check_unpublished`; then no card is written.
    """
    from .index import write_index

    written = folders
    if not folders:
        written = sorted(path.parent for path in CARDS.glob("*/results.json"))
    for folder in written:
        if license is not None:
            check_unpublished(folder)
        if not replace:
            check_is_own_card(folder)
    for folder in written:
        if license is not None:
            state_license(folder, license)
        write_card(folder)
        print(folder / "README.md")
    if not folders:
        print(write_index(CARDS))
