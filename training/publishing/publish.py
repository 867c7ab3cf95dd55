"""`leaner publish [GRID.yaml]`: folders under model_cards/, exactly as they are pushed to the Hub, from a grid's runs.

For each shape that the grid's `publish` names, the run of the first seed is published, whatever its result: weights,
code, configuration, tokenizer or processor, the resolved recipe, results.json and a card. If the folder exists, only
what the grid's rows say, the card and the copies of the model code are renewed; `--replace` takes everything from the
run again. Without a grid, all published folders are renewed.
"""

import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from modeling_leaner.files import read_json, read_object, sha256, whole_folder, write_bytes
from modeling_leaner.hub import RECORD, cut_of_layers
from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.terminal import quiet_libraries

from ..experiments.branches import recipe_of
from ..experiments.grid import Grid, check_unchanged, is_cut, load_grid, reported, write_grid
from ..experiments.results import GridResults, finished_row, load_folder, load_results
from ..experiments.statistics import reported_rows, score
from ..records import PUBLISHED, RESULTS, Evidence, PublishedResults, RunResults, checked
from ..running.run_folder import RECIPE
from ..settings import copy_options
from .cards import finish
from .folders import CARDS, is_encoder, published_folders, results_in
from .index import write_index
from .verify import UNVERIFIABLE, metrics_of, verify


SUBSET = 200  # examples of the short verification
GRIDS = CARDS / "grids"
RUN_FILES = (  # what a published folder has of its run
    "config.json generation_config.json model.safetensors preprocessor_config.json tokenizer.json "
    "tokenizer_config.json special_tokens_map.json training.png metrics.jsonl"
).split()


def without_data_files(recipe: Mapping[str, object]) -> dict[str, object]:
    """The recipe of a run as it is published: without where data lie on one machine."""
    return {key: value for key, value in recipe.items() if key != "data_files"}


# What a published results.json says


def run_to_publish(results: GridResults, shape: str) -> Path:
    """The folder of the run to publish. Raises ValueError if it has not finished or is not on this machine."""
    grid = results.grid
    run = reported(grid, shape, grid.seeds[0], results.tuning.best[shape])
    if finished_row(results.rows, run) is None:
        raise ValueError(f"{grid.path('results.csv')}: no finished run of {shape} with seed {grid.seeds[0]}")
    folder = run.folder(grid)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder}: the run's weights are not there; a sweep with another output_dir trains them")
    return folder


def reproducible_shape(grid: Grid, shape: str, run: Path) -> str:
    """`--shape` in the card's command: the shape, or the published folder of the weights that the run started from.

    For a cut it is the folder that the card's `leaner slim` writes.

    Raises:
        ValueError: the weights it started from are not published.
    """
    if is_cut(grid, shape):
        return f"runs/{grid.publish[shape]}-cut"
    if grid.start_from is None:
        return shape
    published = load_grid(Path(grid.start_from) / "grid.yaml").publish or {}
    folder, begun = CARDS / published.get(shape, ""), Path(read_json(run / RESULTS)["shape"])
    if not (folder / WEIGHTS).is_file() or sha256(begun / WEIGHTS) != sha256(folder / WEIGHTS):
        raise ValueError(f"start_from: {folder} does not hold the weights of {begun}; publish these first")
    return str(folder)


def evidence_of(results: GridResults, shape: str) -> Evidence:
    """What the rows say of a shape. Raises GridError if they are of another grid."""
    grid, run = results.grid, results.any_reported
    check_unchanged(grid, results.rows.values())
    scored = score(reported_rows(results), shape)
    return Evidence(
        grid=results.name,
        **{name: getattr(grid, name) for name in ("baseline", "unsound_tuning", "data", "data_files", "hub")},
        metric=run.metric,
        higher_is_better=run.higher_is_better,
        shapes=len(grid.shapes),
        **{name: scored[name] for name in ("n", "mean", "sd")},
        best_guess=results.best_guess,
    )


def slim_options(target: Mapping[str, object], record: Mapping[str, object]) -> list[str]:
    """The options of `leaner slim` for a cut of a grid; the layers by number, as its slim.json records them."""
    layers = cut_of_layers(record)
    words = []
    for name, value in target.items():
        if name not in ("layers", "keep"):
            words += [f"--{name.replace('_', '-')}", str(value)]
        elif layers is not None:  # else all were kept
            words += ["--keep-layers", ",".join(map(str, layers["after"]))]
    return words


def cut_parent(grid: Grid, shape: str, data_sha256: str) -> dict[str, object]:
    """The fields of `CutParent` that the grid and the parent's folder hold.

    Raises:
        ValueError: `cut_from` is no published folder with the cut weights, evaluated on the same examples.
    """
    folder, record = Path(grid.cut_from), Path(shape) / RECORD
    if not grid.cut_from.startswith(PUBLISHED) or not (folder / RESULTS).is_file():
        raise ValueError(f"cut_from: {folder}: expected a published folder, {PUBLISHED}NAME, as the parent")
    parent, document = results_in(folder / RESULTS), read_object(record)
    if parent.data_sha256 != data_sha256:
        raise ValueError(f"cut_from: {folder} was evaluated on other rows than {shape}: data_sha256 differs")
    recorded = document.get("parent_weights_sha256")
    if recorded is not None and parent.weights_sha256 != recorded:
        raise ValueError(f"{record}: parent_weights_sha256 is {recorded}, but {folder} was replaced; cut it again")
    return {
        "name": parent.name,
        "weights_sha256": recorded,
        "slim_options": slim_options(grid.cuts[shape], document),
        "metrics": parent.metrics,
    }


def results_of_cell(loaded: GridResults, shape: str, folder: Path, options: list[str]) -> PublishedResults:
    """The published results.json of a run: its own, what the rows say, and what a verification compares."""
    grid, file = loaded.grid, folder / RESULTS
    results = checked(RunResults, read_json(file), file)
    metrics, rows, data = metrics_of(folder, [*options, "--max_eval_rows", str(SUBSET)])
    parent = None
    if is_cut(grid, shape):
        untrained, _, _ = metrics_of(folder, options, Path(shape) / WEIGHTS)
        parent = {**cut_parent(grid, shape, results.data_sha256), "untrained_metrics": untrained}
    published = {
        **results.document(),
        "name": grid.publish[shape],
        "cell": shape,
        "shape": reproducible_shape(grid, shape, folder),
        "recipe": without_data_files(results.recipe),
        "weights_sha256": sha256(folder / WEIGHTS),
        "subset": {"max_eval_rows": SUBSET, "rows": rows, "data_sha256": data, "metrics": metrics},
        "evidence": evidence_of(loaded, shape).document(),
        "cut_parent": parent,
    }
    return checked(PublishedResults, published, file)


# Folders


def read_target(target: Path, grid: Grid, shape: str) -> PublishedResults:
    """The results of a folder that exists. Raises ValueError if it is another's, or its weights are others."""
    path = target / RESULTS
    try:
        results = checked(PublishedResults, read_json(path), path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{target} exists already ({error}); choose another name, or delete it") from error
    if results.evidence.grid != Path(grid.output_dir).name or results.cell != shape:
        there = f"{results.cell} in the grid {results.evidence.grid}"
        raise ValueError(f"{target} exists already, of {there}; choose another name, or delete it")
    return results


def renew(loaded: GridResults, shape: str, license: str | None = None) -> Path:
    """Writes what the rows say, card and code of a folder that exists, all or nothing; the rest stays as it is.

    Args:
        license: of its weights; None leaves what it says.

    Raises:
        ValueError: the folder is another's, or does not hold together.
    """
    grid = loaded.grid
    target = CARDS / grid.publish[shape]
    results = read_target(target, grid, shape)
    fresh = {"evidence": evidence_of(loaded, shape), "license": license or results.license}
    if results.cut_parent is not None:
        fresh["cut_parent"] = results.cut_parent.model_copy(update=cut_parent(grid, shape, results.data_sha256))
    renew_folder(target, results.model_copy(update=fresh).document())
    write_grid(grid)  # what no run depends on may have changed
    return target


def renew_folder(target: Path, results: Mapping[str, object]) -> None:
    """Writes results, card and code of a published folder anew, all or nothing."""
    with whole_folder(target, replace=True) as folder:
        shutil.copytree(target, folder)
        finish(folder, results)


def publish(loaded: GridResults, shape: str, data_files: Sequence[str], license: str | None = None) -> Path:
    """Writes one folder from its run, whole or not at all, once it has been verified.

    Args:
        data_files: the local copy of the rows; empty for those of the Hub.
        license: of the weights; None takes that of the folder that is replaced, or none.

    Raises:
        ValueError: a run is missing, or the folder does not hold what its card says.
    """
    grid = loaded.grid
    target = CARDS / grid.publish[shape]
    source = run_to_publish(loaded, shape)
    if target.exists():
        license = license or read_target(target, grid, shape).license
    options = copy_options(results_in(source / RESULTS).recipe, data_files)
    results = results_of_cell(loaded, shape, source, options).model_copy(update={"license": license})
    with whole_folder(target, replace=True) as folder:
        folder.mkdir()
        for path in (path for pattern in RUN_FILES for path in source.glob(pattern)):
            shutil.copyfile(path, folder / path.name)  # not the mode, which safetensors narrows
        if results.cut_parent is not None:
            shutil.copyfile(Path(shape) / RECORD, folder / RECORD)
        recipe = {**results.recipe, "shape": results.shape}
        text = "# Every setting of this run that is not a default.\n" + yaml.safe_dump(recipe)
        write_bytes(folder / RECIPE, text.encode())
        finish(folder, results.document())
        verify(folder, {results.dataset_name: list(data_files)} if data_files else {})
    write_grid(grid)
    return target


def publish_grid(file: Path, data_files: Sequence[str], replace: bool, license: str | None) -> None:
    """`publish`, or `renew` if the folder exists and is not to be replaced, for each shape that a grid publishes.

    Raises:
        ValueError: the grid publishes nothing, or something is missing; before anything is written.
    """
    grid = load_grid(file)
    if not grid.publish or Path(grid.output_dir).resolve().parent != GRIDS.resolve():
        raise ValueError(f"{file}: expected publish, shapes and names of folders, and output_dir: {GRIDS}/NAME")
    if recipe_of(grid, grid.baseline).task in UNVERIFIABLE:
        raise ValueError(f"{file}: publish: the tasks {', '.join(UNVERIFIABLE)} cannot be verified")
    loaded = load_results(grid)
    new = [shape for shape, name in grid.publish.items() if replace or not (CARDS / name).exists()]
    for shape in grid.publish:
        if shape in new:
            run_to_publish(loaded, shape)
        else:
            read_target(CARDS / grid.publish[shape], grid, shape)
    for shape in grid.publish:
        print(publish(loaded, shape, data_files, license) if shape in new else renew(loaded, shape, license))


def renew_all() -> None:
    """Renews every published folder. Raises ValueError for one that no grid publishes, nor is an encoder's."""
    load = functools.cache(load_folder)
    for folder in published_folders(CARDS):
        results = read_object(folder / RESULTS)
        if is_encoder(folder):
            renew_folder(folder, results)
        else:
            loaded = load(GRIDS / results["evidence"]["grid"])
            if (loaded.grid.publish or {}).get(results["cell"]) != folder.name:
                raise ValueError(f"{folder}: {loaded.grid.path('grid.yaml')} does not have it under publish")
            renew(loaded, results["cell"])
        print(folder)


def publish_all(
    file: Path | None, data_files: Sequence[str] = (), replace: bool = False, license: str | None = None
) -> None:
    """`publish_grid` of a grid's file, or `renew_all` if it is None; then the index. Prints what was written.

    Raises:
        ValueError, OSError: something is missing or does not hold.
    """
    quiet_libraries()
    if file is None:
        renew_all()
    else:
        publish_grid(file, data_files, replace, license)
    print(write_index(CARDS))
