"""model_cards/README.md: the published folders by task, what was found, and every cell of the grids of shapes.

Written from the folders and the rows of the grids, not by hand, with the forest plot in both of GitHub's themes.
"""

from dataclasses import dataclass
from pathlib import Path

from modeling_leaner.support.files import replace_files
from modeling_leaner.support.terminal import plural

from ..experiments.encoders import heads_in_words
from ..experiments.evidence import PEERS
from ..experiments.run_settings import run_arguments
from ..records import Evidence, PublishedEncoder, PublishedResults, RunResults
from ..records.results import RESULTS
from ..running.environment import is_clone
from ..running.finished_folder import published_folders, results_in
from ..tasks.registry import TASKS
from . import tables
from .curve_tables import contrasts_in_short
from .curves_page import PAGE, grids_with_branches, write_curves
from .differences import Comparison, comparisons
from .findings import findings, kappa_and_quality, kappa_cells
from .forest_figure import forest
from .gathered_grids import Grids, read_grids_of_shapes
from .kappa_figure import kappa_figure
from .rendering import fill, markdown, pages_beside
from .theme import THEMES
from .wording import index_page, scoring


@dataclass
class TaskSection:
    """One task of the index."""

    title: str
    note: str | None
    summary: str
    cells: str
    about: str


@dataclass
class IndexContext:
    """What `templates/index.md` names."""

    pages: list[str]
    verification: str
    figure_text: str | None
    kappa_text: str | None
    findings: list[str]
    curves: str | None
    encoders: str
    miniatures: str
    tasks: list[TaskSection]
    glossary: str


def read_folders(cards: Path) -> list[RunResults]:
    """results.json of each published folder, of whatever kind."""
    return [results_in(folder / RESULTS) for folder in published_folders(cards)]


def encoder_line(results: PublishedEncoder) -> tuple[str, ...]:
    """A published sentence encoder in a line of a table, beside its parent."""
    parent = results.parent_scores
    own = results.own_scores
    scores = [f"{own.scores[name]:.3f} ({parent.scores[name]:.3f})" for name in ("stsb_test", "qnli", "cosine")]
    many = max(own.times, key=int)
    shape = tables.unbroken(f"{len(own.heads_per_layer)} × {heads_in_words(own)}")
    faster = f"{own.times[many].speed:.2f} ×"
    return (f"[{results.name}]({results.name})", results.base_model, shape, f"{own.parameters:,}", *scores, faster)


def encoders_table(encoders: list[PublishedEncoder]) -> str:
    """The published sentence encoders; empty without any."""
    if not encoders:
        return ""
    header = ("folder", "cut from", "layers × heads", "parameters", "STS-B test", "QNLI MRR@10", "cosine", "speed")
    return markdown(header, map(encoder_line, encoders))


def held_out_score(results: PublishedResults) -> str:
    """The main metric of a published folder with its standard error by the choice of rows."""
    metric = results.metric
    value = results.metrics[f"eval_{metric}"]
    uncertainty = ""
    error = scoring.score_error(metric, value, results)
    if error is not None:
        uncertainty = f" ± {error:.3f}"
    return f"{metric} {value:.3f}{uncertainty}"


def guess_to_beat(evidence: Evidence) -> str:
    """Value and name of a grid's best simple guess, a dash without any."""
    best = scoring.best_of(evidence)
    if best is None:
        return "–"
    return f"{best.value:.3f} ({best.name})"


def place_in_table(results: PublishedResults) -> tuple[int, str, int, str]:
    """The sorting key of published folders: their task, their grid, then the grid's order of its cells."""
    evidence = results.evidence
    shapes = [cell.shape for cell in evidence.cells]
    return list(TASKS).index(results.task), evidence.grid, shapes.index(results.cell), results.name


def miniatures_table(folders: list[PublishedResults]) -> str:
    """The published folders but sentence encoders, one line each, those of one grid together; empty without any."""
    if not folders:
        return ""
    lines = []
    for results in sorted(folders, key=place_in_table):
        name = results.name
        evidence = results.evidence
        own = next(cell for cell in evidence.cells if cell.shape == results.cell)
        line = (
            f"[{name}]({name})",
            TASKS[results.task].title,
            tables.unbroken(tables.shape_and_start(own)),
            f"{results.parameters:,}",
            held_out_score(results),
            guess_to_beat(evidence),
            index_page.short_data(results),
        )
        lines.append(line)
    header = ("folder", "task", "layers × heads × size", "parameters", "held-out score", "best simple guess", "data")
    return markdown(header, lines)


def task_section(task: str, grids: Grids) -> TaskSection:
    """The cells of one task's grids."""
    evidence = {name: gathered.evidence for name, gathered in grids.items()}
    count = sum(len(gathered.evidence.cells) for gathered in grids.values())
    cells = ""
    if grids:
        cells = tables.all_cells(evidence)
    return TaskSection(
        title=TASKS[task].title,
        note=index_page.not_learned(evidence),
        summary=f"{plural(len(grids), 'grid')}, {count} cells",
        cells=cells,
        about="\n".join(f"- {index_page.grid_about(name, gathered.evidence)}" for name, gathered in grids.items()),
    )


def grids_by_task(grids: Grids) -> dict[str, Grids]:
    """The grids of each task, in the order of `TASKS`, without references and those with branches, on another page."""
    tasks: dict[str, Grids] = {task: {} for task in TASKS}
    for name, gathered in grids.items():
        if not name.endswith(PEERS) and gathered.evidence.curves is None:
            task = run_arguments(gathered.results.grid, gathered.results.grid.baseline).task
            tasks[task][name] = gathered
    return tasks


def forest_lines(grids: Grids) -> list[Comparison]:
    """The lines of the forest plot; none where there is nothing to compare."""
    return comparisons({name: gathered.evidence for name, gathered in grids.items()})


def render(cards: Path) -> str:
    """The index's text. Raises ValueError or GridError where a grid's files do not fit."""
    folders = read_folders(cards)
    grids = read_grids_of_shapes(cards)
    return render_index(cards, folders, grids, kappa_and_quality(grids))


def render_index(cards: Path, folders: list[RunResults], grids: Grids, kappa: str | None) -> str:
    """The index's text, in the folder of cards, of published folders and of grids of shapes.

    Args:
        kappa: `kappa_and_quality` of the grids.
    """
    published = [results for results in folders if isinstance(results, PublishedResults)]
    encoders = [results for results in folders if isinstance(results, PublishedEncoder)]
    sections = [task_section(task, task_grids) for task, task_grids in grids_by_task(grids).items()]
    figure_text = None
    if forest_lines(grids):
        figure_text = index_page.FOREST_TEXT
    kappa_text = None
    if kappa is not None:
        kappa_text = index_page.KAPPA_TEXT
    pages = pages_beside(cards)
    paragraphs = ["Nothing yet: no grid of shapes has its rows in `grids/`, beside this page."]
    if grids:
        paragraphs = findings(grids, kappa, pages)
    verification = "leaner verify-cards"
    if is_clone(cards.resolve().parent):
        verification = "make verify-cards"
    context = IndexContext(
        pages=pages,
        verification=verification,
        figure_text=figure_text,
        kappa_text=kappa_text,
        findings=paragraphs,
        curves=curves_paragraph(grids),
        encoders=encoders_table(encoders),
        miniatures=miniatures_table(published),
        tasks=[section for section in sections if section.cells],
        glossary=index_page.INDEX_GLOSSARY,
    )
    return fill("index.md", context).rstrip() + "\n"


def curves_paragraph(grids: Grids) -> str | None:
    """What the grids with branches say in short, and where they are; None without any."""
    shown = grids_with_branches(grids)
    if not shown:
        return None
    parts = [f"`{name}`{contrasts_in_short(gathered.evidence)}" for name, gathered in shown.items()]
    return f"**Over the length of training** (plus: the first is better; [all budgets]({PAGE})) {'; '.join(parts)}."


def figures(grids: Grids, kappa: str | None) -> dict[str, bytes]:
    """The figures of the index by their file's name, in both themes.

    The forest plot is left out where there is nothing to compare, κ against quality where nothing can be ranked.

    Args:
        kappa: `kappa_and_quality` of the grids.
    """
    lines = forest_lines(grids)
    cells = kappa_cells(grids)
    drawn = {}
    for theme in THEMES:
        if lines:
            drawn[f"forest-{theme}.svg"] = forest(lines, theme)
        if kappa is not None:
            drawn[f"kappa-{theme}.svg"] = kappa_figure(cells, theme)
    return drawn


def write_index(cards: Path) -> Path:
    """Writes README.md of the folder of cards, the page on the length of training, and their figures.

    Figures of an earlier time, of which there is nothing to draw any more, go.

    Returns:
        the path of README.md.
    """
    if not cards.is_dir():
        raise ValueError(f"{cards}: expected the folder of published models, found none")
    grids = read_grids_of_shapes(cards)
    kappa = kappa_and_quality(grids)
    files = {cards / name: figure for name, figure in figures(grids, kappa).items()}
    files[cards / "README.md"] = render_index(cards, read_folders(cards), grids, kappa).encode()
    write_curves(cards, grids)
    replace_files(files, [cards / f"{name}-{theme}.svg" for name in ("forest", "kappa") for theme in THEMES])
    return cards / "README.md"
