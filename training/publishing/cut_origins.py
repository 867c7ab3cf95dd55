"""What a published folder says of the model that it was cut from: the parent, the cut, and both scores beside its own.

The parent is a published folder, too. What a grid knows of it is gathered again when the folder is verified; the score
of the cut before its training is measured once, when the folder is published.
"""

from collections.abc import Mapping
from pathlib import Path

from modeling_leaner.slimming.slim import Cut, cut_of_layers
from modeling_leaner.support.documents import read_json, read_object

from ..experiments.grid import Grid
from ..records import PublishedResults, checked
from ..records.results import PUBLISHED


SLIM = "slim.json"  # what was cut, beside the weights


def cuts_in(folder: Path) -> list[Cut]:
    """What the slim.json of a folder records, cut by cut."""
    return [Cut(**cut) for cut in read_object(folder / SLIM)["cuts"]]


def is_cut(grid: Grid, shape: str) -> bool:
    """Whether a shape of a grid is a cut, with weights."""
    return grid.cuts is not None and shape in grid.cuts


def parent_results(grid: Grid) -> PublishedResults:
    """The results of the published folder that the grid cuts.

    Raises:
        ValueError: `cut_from` is no published folder of a grid.
    """
    file = Path(grid.cut_from) / "results.json"
    if not grid.cut_from.startswith(PUBLISHED):
        raise ValueError(f"cut_from: {grid.cut_from}: expected a published folder, {PUBLISHED}NAME, as the parent")
    try:
        return checked(PublishedResults, read_json(file), file)
    except OSError as error:
        raise ValueError(f"cut_from: {grid.cut_from}: no published folder ({error})") from error


def slim_options(target: Mapping[str, object], record: Mapping[str, object]) -> list[str]:
    """The options of `leaner slim` for a cut of a grid; the layers by number, as they came out."""
    layers = cut_of_layers(record)
    words = []
    for name, value in target.items():
        if name in ("layers", "keep"):
            name = "keep"
            value = ",".join(map(str, layers["after"]))
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def known_origin(grid: Grid, shape: str) -> dict[str, object]:
    """The fields of `CutFrom` that the grid and the parent's folder hold. Raises ValueError as `parent_results`."""
    parent = parent_results(grid)
    return {
        "parent": parent.name,
        "options": slim_options(grid.cuts[shape], read_object(Path(shape) / SLIM)),
        "parent_parameters": parent.parameters,
        "parent_steps": parent.train.steps,
        "parent_metrics": parent.metrics,
    }
