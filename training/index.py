"""model_cards/README.md: what was found, the published folders and every cell of every grid, grouped by task.

Written from the folders and the rows of the grids, not by hand, with the forest plot in both of GitHub's themes.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import report, tables, wording
from .evidence import gather
from .figures import THEMES, comparisons, forest
from .findings import Grids, Known, findings
from .grid import load_grid
from .rendering import fill
from .runs import read_rows, settings
from .tables import markdown


REFERENCE = "-transformers"  # grids of transformers' own models, which stand beside their baseline
TASKS = {
    "image-classification": "Image classification",
    "causal-lm": "Causal language modelling",
    "masked-lm": "Masked language modelling",
    "sequence-classification": "Text classification",
    "question-answering": "Question answering",
}


@dataclass
class TaskSection:
    """One task of the index."""

    title: str
    published: str
    note: str | None
    summary: str
    cells: str
    about: str


@dataclass
class IndexContext:
    """What `templates/index.md` names."""

    figure_text: str | None
    findings: list[str]
    tasks: list[TaskSection]
    glossary: str


def read_published(cards: Path) -> list[dict[str, Any]]:
    """results.json of each published folder."""
    files = sorted(config.with_name("results.json") for config in cards.glob("*/config.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [results for results in found if "evidence" in results]


def read_grids(cards: Path) -> Grids:
    """Each grid that has rows, with its evidence. Raises ValueError or GridError where its files do not fit."""
    found = {}
    for path in sorted(cards.glob("grids/*/results.csv")):
        grid = load_grid(path.parent / "grid.yaml")
        evidence = gather(replace(grid, beside=None))  # which has lines of its own
        found[path.parent.name] = Known(grid, read_rows(path), evidence)
    return found


def published_table(folders: list[dict[str, Any]]) -> str:
    """The published folders of a task, one line each."""
    lines = []
    for results in folders:
        evidence, name = results["evidence"], results["name"]
        metric = results["main_metric"].removeprefix("eval_")
        value = results["metrics"][f"eval_{metric}"]
        error = wording.score_error(metric, value, results)
        uncertain = "" if error is None else f" ± {error:.3f}"
        best = wording.best_of(evidence)
        guess = "–" if best is None else f"{best[1]:.3f} ({best[0]})"
        score = f"{metric} {value:.3f}{uncertain} ({wording.direction(evidence)})"
        own = next(cell for cell in evidence["cells"] if cell["shape"] == results["cell"])
        shape = f"{own['layers']} × {own['heads']} × {own['head_dim']}"
        size, data = f"{results['parameters']:,}", wording.short_data(results)
        lines.append((f"[{name}]({name})", shape, size, score, guess, data))
    header = ("folder", "layers × heads × head size", "parameters", "held-out score", "best simple guess", "data")
    return markdown(header, lines) if lines else ""


def task_section(task: str, folders: list[dict[str, Any]], grids: Grids) -> TaskSection:
    """The folders and cells of one task."""
    own = [results for results in folders if results["task"] == task]
    evidence = {name: known.evidence for name, known in grids.items()}
    note = wording.not_learned(evidence)
    cells = sum(len(each["cells"]) for each in evidence.values())
    return TaskSection(
        title=TASKS[task],
        published=published_table(own),
        note=note,
        summary=f"All {cells} cells of {wording.plural(len(evidence), 'grid')}",
        cells=tables.all_cells(evidence) if evidence else "",
        about="\n".join(f"- {wording.grid_about(name, each)}" for name, each in evidence.items()),
    )


def by_task(grids: Grids) -> dict[str, Grids]:
    """The grids of each task, in the order of `TASKS`, without those of references."""
    found: dict[str, Grids] = {task: {} for task in TASKS}
    for name, known in grids.items():
        if not name.endswith(REFERENCE):
            found[settings(known.grid, known.grid.baseline).task][name] = known
    return found


def render(cards: Path) -> str:
    """The index's text. Raises ValueError or GridError where a grid's files do not fit."""
    folders, grids = read_published(cards), read_grids(cards)
    tasks = by_task(grids)
    sections = [task_section(task, folders, tasks[task]) for task in TASKS]
    drawn = comparisons({name: known.evidence for name, known in grids.items()})
    context = IndexContext(
        figure_text=wording.FOREST_TEXT if drawn else None,
        findings=findings(grids) if grids else ["Nothing yet."],
        tasks=[section for section in sections if section.published or section.cells],
        glossary=wording.INDEX_GLOSSARY,
    )
    return fill("index.md", context).rstrip() + "\n"


def write_forest(cards: Path) -> None:
    """The forest plot of the grids, forest-light.svg and forest-dark.svg, where there is anything to compare."""
    lines = comparisons({name: known.evidence for name, known in read_grids(cards).items()})
    for theme in THEMES if lines else ():
        report.write_bytes(cards / f"forest-{theme}.svg", forest(lines, theme))


def write_index(cards: Path) -> Path:
    """Writes README.md of the folder of cards and its figure."""
    if not cards.is_dir():
        raise ValueError(f"{cards}: expected the folder of published models, found none")
    text = render(cards)
    write_forest(cards)
    report.write_bytes(cards / "README.md", text.encode())
    return cards / "README.md"
