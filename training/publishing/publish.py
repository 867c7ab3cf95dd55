"""`leaner publish [GRID.yaml]`: folders under model_cards/, exactly as they are pushed to the Hub, from a grid's runs.

For each shape that the grid's `publish` names, the run of the first seed is published, whatever its result: weights,
code, configuration, tokenizer or processor, the resolved recipe, and a results.json with the evidence of the whole
grid. If the folder exists, only the evidence, the card and the copies of the model code are renewed; `--replace` takes
everything from the run again. Without a grid, all published folders are renewed.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from modeling_leaner.files import read_json, read_object, sha256, whole_folder, write_bytes, write_json
from modeling_leaner.hub import RECORD, cut_of_layers
from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.terminal import quiet_libraries

from ..data.sources import load_held_out, load_training
from ..experiments.baselines import GUESSES, guesses
from ..experiments.branches import recipe_of
from ..experiments.evidence import dataset_name, gather
from ..experiments.grid import Grid, check_unchanged, is_cut, load_grid, reported, write_grid
from ..experiments.results import GridResults, finished_row, load_results
from ..reading import read_yaml
from ..records import Continuations, Evidence, PublishedResults, RunResults, SlimFile, checked
from ..records.results import LOCAL_FILES, OWN_GRIDS, PUBLISHED, RESULTS
from ..running.evaluation import prepare_evaluation
from ..running.results import is_clone
from ..running.run_folder import RECIPE
from ..settings import copy_options
from ..tasks import TASKS
from ..tasks.language import CausalLM
from .cards import write_card
from .continuations import continuations
from .encoders import is_encoder, renew_encoder
from .folders import CARDS, published_folders, renew_code, results_in
from .index import write_index
from .verify import UNVERIFIABLE, metrics_of, tolerances, verify


SUBSET = 200  # examples of the short verification
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
    folder = CARDS / published.get(shape, "")
    begun = Path(read_json(run / RESULTS)["shape"]) / WEIGHTS
    for weights in (begun, folder / WEIGHTS):
        if not weights.is_file():
            raise ValueError(f"start_from: {weights}: missing; the weights of {shape} have to be published first")
    if sha256(begun) != sha256(folder / WEIGHTS):
        raise ValueError(f"start_from: {folder} does not hold {begun}, which the run started from")
    return str(folder)


def grid_folder(grid: Grid) -> str | None:
    """Where the rows of a grid lie, in the project; None for a grid of this project, which has them by its name.

    Raises ValueError for a place outside of the project, which no card can name.
    """
    folder = Path(grid.output_dir).resolve()
    if not folder.is_relative_to(Path.cwd()):
        raise ValueError(f"output_dir: {grid.output_dir}: expected a folder in {Path.cwd()}, for the card names it")
    place = folder.relative_to(Path.cwd())
    return None if place.parent == Path(OWN_GRIDS) and is_clone(Path()) else place.as_posix()


def evidence_of(results: GridResults) -> Evidence:
    """The evidence of the rows. Raises GridError if they are of another grid."""
    check_unchanged(results.grid, results.rows.values())
    return gather(results)


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
    parent = checked(PublishedResults, read_json(folder / RESULTS), folder / RESULTS)
    if parent.data_sha256 != data_sha256:
        raise ValueError(f"cut_from: {folder} was evaluated on other rows than {shape}: data_sha256 differs")
    document = read_object(record)
    recorded = checked(SlimFile, document, record).parent_weights_sha256
    if recorded is not None and (folder / WEIGHTS).is_file() and sha256(folder / WEIGHTS) != recorded:
        raise ValueError(
            f"{record}: parent_weights_sha256 is {recorded}, but {folder / WEIGHTS} has another: the parent was "
            "replaced; cut it again"
        )
    return {
        "name": parent.name,
        "weights_sha256": recorded,
        "slim_options": slim_options(grid.cuts[shape], document),
        "parameters": parent.parameters,
        "steps": parent.train.steps,
        "metrics": parent.metrics,
    }


def continuations_of(folder: Path, options: list[str]) -> Continuations | None:
    """`continuations` of held-out rows, compared with the run's own training rows; None for other tasks."""
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = prepare_evaluation(str(folder), options, scratch)
        task = evaluation.task
        if not isinstance(task, CausalLM):
            return None
        train, held_out = load_training(evaluation.arguments)
        if held_out is None:
            held_out = load_held_out(evaluation.arguments)
        return continuations(folder, train[task.text_column], held_out[task.text_column])


def results_of_cell(
    folder: Path, grid: Grid, shape: str, evidence: Evidence, options: list[str], license: str | None
) -> PublishedResults:
    """The published results.json: the run's own, the evidence, and what a verification compares."""
    file = folder / RESULTS
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
        "partners": grid.partners(shape),
        "license": license,
        "recipe": without_data_files(results.recipe),
        "weights_sha256": sha256(folder / WEIGHTS),
        "tolerances": tolerances(results.metrics, results.rows),
        "subset": {
            "max_eval_rows": SUBSET,
            "rows": rows,
            "data_sha256": data,
            "metrics": metrics,
            "tolerances": tolerances(metrics, rows),
        },
        "evidence": evidence.document(),
        "continuations": continuations_of(folder, options),
        "cut_parent": parent,
        "grid_folder": grid_folder(grid),
    }
    return checked(PublishedResults, published, file)


# Folders


def read_target(target: Path, grid: Grid, shape: str) -> PublishedResults:
    """The results of a folder that exists.

    Raises:
        ValueError: the folder is another's, or its weights are not those that its results name.
    """
    path = target / RESULTS
    try:
        results = checked(PublishedResults, read_json(path), path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{target}: there already, and not published by this command ({error})") from error
    if results.evidence.grid != Path(grid.output_dir).name or results.cell != shape:
        there = f"{results.cell} in the grid {results.evidence.grid}"
        raise ValueError(f"{target}: there already, of {there}; choose another name")
    file = target / WEIGHTS
    if not file.is_file() or sha256(file) != results.weights_sha256:
        raise ValueError(f"{file}: missing, or weights_sha256 of its results.json differs")
    return results


def renew(loaded: GridResults, shape: str, license: str | None = None) -> Path:
    """Writes evidence, card and code of a folder that exists, all or nothing; the rest stays as it is.

    Args:
        license: of its weights; None leaves what it says.

    Raises:
        ValueError: the folder is another's, or does not hold together.
    """
    grid = loaded.grid
    target = CARDS / grid.publish[shape]
    results = read_target(target, grid, shape)
    fresh = {
        "partners": grid.partners(shape),
        "evidence": evidence_of(loaded),
        "grid_folder": grid_folder(grid),
        "license": license or results.license,
    }
    if results.cut_parent is not None:
        if read_object(target / RECORD) != read_object(Path(shape) / RECORD):
            raise ValueError(f"{target / RECORD}: not the cut of {Path(shape) / RECORD}")
        fields = cut_parent(grid, shape, results.data_sha256)
        fresh["cut_parent"] = results.cut_parent.model_copy(update=fields)
    with whole_folder(target, replace=True) as folder:
        shutil.copytree(target, folder)
        renew_code(folder)
        write_json(folder / RESULTS, results.model_copy(update=fresh).document())
        write_card(folder)
    write_grid(grid)  # what no run depends on may have changed
    return target


def publish(loaded: GridResults, shape: str, data_files: Sequence[str], license: str | None = None) -> Path:
    """Writes one folder from its run, whole or not at all, once it has been verified.

    The guesses beside the grid's rows are renewed before, and stay so.

    Args:
        data_files: the local copy of the rows; empty for those of the Hub.
        license: of the weights; None takes that of the folder that is replaced, or none.

    Raises:
        ValueError: a run is missing, or the folder does not hold what its card says.
    """
    grid = loaded.grid
    target = CARDS / grid.publish[shape]
    source = run_to_publish(loaded, shape)
    own = results_in(source / RESULTS)
    options = copy_options(own.recipe, data_files)
    if target.exists():
        license = license or read_target(target, grid, shape).license
    held_out = prepare_evaluation(str(source), options, str(target.parent / "unused")).held_out
    if held_out.sha256 != own.data_sha256:
        where = " ".join(data_files) or own.dataset
        found = f"{len(held_out.rows)} rows of {where} with {held_out.sha256}"
        raise ValueError(f"{source / RESULTS}: data_sha256: {found} differ from the run's")
    if grid.metric in (None, own.metric):  # else no guess is scored by it
        scored = guesses(source, options)
        if scored:
            write_json(grid.path(GUESSES), [guess.document() for guess in scored])
            loaded = GridResults(grid, loaded.rows)  # without the guesses that it has read before
    results = results_of_cell(source, grid, shape, evidence_of(loaded), options, license)
    with whole_folder(target, replace=True) as folder:
        folder.mkdir()
        for path in (path for pattern in RUN_FILES for path in source.glob(pattern)):
            shutil.copyfile(path, folder / path.name)  # not the mode, which safetensors narrows
        if results.cut_parent is not None:
            shutil.copyfile(Path(shape) / RECORD, folder / RECORD)
        renew_code(folder)
        recipe = without_data_files(read_yaml(source / RECIPE)) | {"shape": results.shape}
        text = "# Every setting of this run that is not a default.\n" + yaml.safe_dump(recipe)
        write_bytes(folder / RECIPE, text.encode())
        write_json(folder / RESULTS, results.document())
        write_card(folder)
        verify(folder, {dataset_name(results): list(data_files)} if data_files else {})
        write_grid(grid)
    return target


def publish_grid(file: Path, data_files: Sequence[str], replace: bool, license: str | None) -> None:
    """`publish`, or `renew` if the folder exists and is not to be replaced, for each shape that a grid publishes.

    Raises:
        ValueError: the grid publishes nothing, or something is missing; before anything is written.
    """
    grid = load_grid(file)
    if not grid.publish:
        raise ValueError(f"{file}: publish: missing, expected shapes and the names of their folders")
    task = recipe_of(grid, grid.baseline).task
    if task in UNVERIFIABLE:
        others = ", ".join(sorted(TASKS.keys() - set(UNVERIFIABLE)))
        raise ValueError(f"{file}: publish: the task {task} cannot be verified; expected one of {others}")
    there = {shape for shape, name in grid.publish.items() if (CARDS / name).exists()}
    for shape in there:
        read_target(CARDS / grid.publish[shape], grid, shape)
    loaded = load_results(grid)
    new = [shape for shape in grid.publish if replace or shape not in there]
    for run in [run_to_publish(loaded, shape) for shape in new]:
        if not data_files and results_in(run / RESULTS).dataset == LOCAL_FILES:
            raise ValueError(f"{run}: it was trained on local files; expected --data with their folder, or SPLIT=FILE")
    for shape in grid.publish:
        if shape in new:
            print(publish(loaded, shape, data_files, license))
        else:
            print(renew(loaded, shape, license))


def renew_all() -> None:
    """Renews every published folder. Raises ValueError for one that no grid publishes, nor is an encoder's."""
    loaded: dict[str, GridResults] = {}
    for folder in published_folders(CARDS):
        if is_encoder(folder):
            renew_encoder(folder)
        else:
            results = results_in(folder / RESULTS)
            if not isinstance(results, PublishedResults):
                raise ValueError(f"{folder}: a run, which no grid has published")
            file = results.grid_file
            if file not in loaded:
                loaded[file] = load_results(load_grid(Path(file)))
            if (loaded[file].grid.publish or {}).get(results.cell) != folder.name:
                raise ValueError(f"{folder}: {file} does not have it under publish")
            renew(loaded[file], results.cell)
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
