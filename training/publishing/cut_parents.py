"""The published model that a cut was made of: what its grid and its folder say, for the card and its verification."""

from collections.abc import Mapping
from pathlib import Path

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.files import read_json, read_object, sha256
from modeling_leaner.slimming.slim import RECORD, cut_of_layers

from ..experiments.grid import Grid
from ..records import CutStep, PublishedResults, SlimFile, checked
from ..records.results import PUBLISHED, RESULTS


def slim_file_in(folder: Path) -> SlimFile:
    """What the slim.json of a folder records. Raises ValueError that names file and key."""
    file = folder / RECORD
    if not file.is_file():
        raise ValueError(f"{file}: missing; it records what was cut")
    return checked(SlimFile, read_object(file), file)


def cuts_in(folder: Path) -> list[CutStep]:
    """What the slim.json of a folder records, cut by cut. Raises ValueError as `slim_file_in`."""
    return slim_file_in(folder).cuts


def check_same_record(folder: Path, cell: Path) -> None:
    """Raises ValueError where the slim.json of a published folder is not that of the cut in its grid's cell."""
    if read_object(folder / RECORD) != read_object(cell / RECORD):
        raise ValueError(f"{folder / RECORD}: not the cut of {cell / RECORD}")


def check_parent_weights(place: str, recorded: str | None, parent: Path) -> None:
    """Raises ValueError, naming the place of the record, where the parent's folder holds other weights than were cut.

    Where no hash was recorded, or the weights are not there, nothing is compared.
    """
    weights = parent / WEIGHTS
    if recorded is None or not weights.is_file():
        return
    found = sha256(weights)
    if found != recorded:
        raise ValueError(f"{place} is {recorded}, but {weights} has {found}: the parent was replaced; cut it again")


def check_parent(folder: Path, results: PublishedResults) -> str:
    """Compares the hash of the parent's weights with those beside the folder; returns how it went.

    Raises:
        ValueError: as of `check_parent_weights`.
    """
    parent = results.cut_parent
    if parent.weights_sha256 is None:
        return ", the hash of its parent's weights not recorded"
    beside = folder.resolve().parent / parent.name
    if not (beside / WEIGHTS).is_file():
        return ", its parent not beside it"
    check_parent_weights(f"{folder / RESULTS}: cut_parent.weights_sha256", parent.weights_sha256, beside)
    return ", the hash of its parent's weights"


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
    """The fields of `CutParent` that the grid and the parent's folder hold.

    Raises:
        ValueError: as of `parent_results`, `slim_file_in` and `check_parent_weights`.
    """
    parent = parent_results(grid)
    recorded = slim_file_in(Path(shape)).parent_weights_sha256
    check_parent_weights(f"{Path(shape) / RECORD}: parent_weights_sha256", recorded, Path(grid.cut_from))
    return {
        "name": parent.name,
        "weights_sha256": recorded,
        "slim_options": slim_options(grid.cuts[shape], read_object(Path(shape) / RECORD)),
        "parameters": parent.parameters,
        "steps": parent.train.steps,
        "metrics": parent.metrics,
    }
