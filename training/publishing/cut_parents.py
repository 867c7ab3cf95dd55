"""The published model that a cut was made of: what its grid and its folder say, for the card and its verification."""

from collections.abc import Mapping
from pathlib import Path

from modeling_leaner.slimming.slim import RECORD, cut_of_layers
from modeling_leaner.support.documents import read_json, read_object

from ..experiments.grid import Grid
from ..records import CutStep, PublishedResults, SlimFile, checked
from ..records.results import PUBLISHED, RESULTS


def cuts_in(folder: Path) -> list[CutStep]:
    """What the slim.json of a folder records, cut by cut. Raises ValueError that names file and key."""
    file = folder / RECORD
    if not file.is_file():
        raise ValueError(f"{file}: missing; it records what was cut")
    return checked(SlimFile, read_object(file), file).cuts


def parent_results(grid: Grid) -> PublishedResults:
    """The results of the published folder that the grid cuts.

    Raises:
        ValueError: `cut_from` is no published folder of a grid.
    """
    if not grid.cut_from.startswith(PUBLISHED):
        raise ValueError(f"cut_from: {grid.cut_from}: expected a published folder, {PUBLISHED}NAME, as the parent")
    file = Path(grid.cut_from) / RESULTS
    try:
        return checked(PublishedResults, read_json(file), file)
    except OSError as error:
        raise ValueError(f"cut_from: {grid.cut_from}: no published folder ({error})") from error


def slim_options(target: Mapping[str, object], record: Mapping[str, object]) -> list[str]:
    """The options of `leaner slim` for a cut of a grid; the layers by number, as its slim.json records them."""
    layers = cut_of_layers(record)
    words = []
    for name, value in target.items():
        if name in ("layers", "keep"):
            if layers is None:  # all were kept
                continue
            name = "keep"
            value = ",".join(map(str, layers["after"]))
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def parent_fields(grid: Grid, shape: str) -> dict[str, object]:
    """The fields of `CutParent` that the grid and the parent's folder hold. Raises ValueError as `parent_results`."""
    parent = parent_results(grid)
    return {
        "name": parent.name,
        "slim_options": slim_options(grid.cuts[shape], read_object(Path(shape) / RECORD)),
        "parameters": parent.parameters,
        "steps": parent.train.steps,
        "metrics": parent.metrics,
    }
