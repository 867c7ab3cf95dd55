"""`leaner publish [GRID.yaml]`: folders under model_cards/, exactly as they are pushed to the Hub, from a grid's runs.

Of each shape that the grid's `publish` names it takes the run of the first seed, whatever its result: weights, code,
configuration, tokenizer or processor, the resolved recipe, and a results.json with the evidence of the whole grid. Of
a folder that is there only the evidence, the card and the copies of the model code are written anew; `--replace` takes
all anew from the run. Without a grid, those of every folder that is there: a card also shows the rows of other grids.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.files import read_json, sha256, write_bytes, write_json
from modeling_leaner.slimming.slim import RECORD
from modeling_leaner.terminal import quiet_libraries

from ..data.sources import load_held_out, load_training
from ..experiments.branches import recipe_of
from ..experiments.continuations import continuations
from ..experiments.evidence import dataset_name, gather
from ..experiments.grid import Grid, check_unchanged, is_cut, load_grid, write_grid
from ..experiments.grid_results import GridResults, load_results
from ..experiments.guess_files import GUESSES
from ..experiments.rows import finished_row, reported
from ..experiments.simple_guesses import guesses
from ..records import Continuations, CutParent, Evidence, PublishedEncoder, PublishedResults, RunResults, checked
from ..records.published import OWN_GRIDS
from ..records.results import RESULTS
from ..running.environment import is_clone
from ..running.evaluation import prepare_evaluation
from ..running.run_folder import RECIPE
from ..settings.command_line import copy_options
from ..settings.recipes import parse
from ..settings.yaml_files import read_yaml
from ..tasks.language import CausalLM
from ..tasks.registry import TASKS
from .cards import write_card
from .code_copies import renew_code
from .cut_parents import check_same_record, parent_fields, parent_results
from .folders import CARDS, RUN_FILES, results_in, without_local_settings
from .index import write_index
from .verify import verify
from .verify_weights import UNVERIFIABLE, metrics_of, metrics_with, tolerances


SUBSET = 200  # rows of the short verification


def run_to_publish(results: GridResults, shape: str) -> Path:
    """The folder of the run to publish. Raises ValueError where it has not finished or is not on this machine."""
    grid = results.grid
    run = reported(grid, shape, grid.seeds[0], results.tuning.best[shape])
    if finished_row(results.rows, run) is None:
        raise ValueError(f"{grid.path('results.csv')}: no finished run of {shape} with seed {grid.seeds[0]}")
    folder = run.folder(grid)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder}: the run's weights are not there; a sweep with another output_dir trains them")
    return folder


def reproducible_shape(grid: Grid, shape: str, folder: Path) -> str:
    """`--shape` in the card's command: the shape, or the published folder of the weights that the run started from.

    Of a cut it is the folder that the card's `leaner slim` writes.

    Raises:
        ValueError: the weights it started from are not published, or others are.
    """
    if is_cut(grid, shape):
        return f"runs/{grid.publish[shape]}-cut"
    if grid.start_from is None:
        return shape
    earlier = load_grid(Path(grid.start_from) / "grid.yaml")
    name = None
    if earlier.publish is not None:
        name = earlier.publish.get(shape)
    if name is None or not (CARDS / name / WEIGHTS).is_file():
        raise ValueError(f"start_from: the weights of {shape} in {grid.start_from} are not published yet")
    begun = Path(read_json(folder / RESULTS)["shape"]) / WEIGHTS
    if not begun.is_file():
        raise ValueError(f"start_from: {begun}, which the run started from, is not there to compare")
    if sha256(begun) != sha256(CARDS / name / WEIGHTS):
        raise ValueError(f"start_from: {CARDS / name} does not hold {begun}, which the run started from")
    return str(CARDS / name)


def checked_evidence(results: GridResults) -> Evidence:
    """The evidence of the rows. Raises GridError where they are of another grid."""
    check_unchanged(results.grid, results.rows.values())
    return gather(results)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside `target` to make a folder at, which takes its place if all goes well; else `target` stays.

    Raises:
        ValueError: as raised within, of `target` in place of the path.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".publish-") as scratch:
        folder = Path(scratch) / target.name
        try:
            yield folder
        except ValueError as error:
            raise ValueError(str(error).replace(str(folder), str(target))) from error
        move_into_place(folder, target, Path(scratch))


def grid_folder(grid: Grid) -> str | None:
    """Where the rows of a grid lie, in the project; None of a grid of this project, which has them by its name.

    Raises ValueError for a place outside of the project, which no card can name.
    """
    folder = Path(grid.output_dir).resolve()
    if not folder.is_relative_to(Path.cwd()):
        raise ValueError(f"output_dir: {grid.output_dir}: expected a folder in {Path.cwd()}, for the card names it")
    place = folder.relative_to(Path.cwd())
    if place.parent == Path(OWN_GRIDS) and is_clone(Path()):
        return None
    return place.as_posix()


def results_of_cell(
    folder: Path, grid: Grid, shape: str, evidence: Evidence, options: list[str], license: str | None
) -> PublishedResults:
    """The published results.json: the run's own, the evidence, and what a verification compares."""
    file = folder / RESULTS
    results = checked(RunResults, read_json(file), file)
    metrics, rows, data = metrics_of(folder, [*options, "--max_eval_rows", str(SUBSET)])
    published = {
        **results.document(),
        "name": grid.publish[shape],
        "cell": shape,
        "shape": reproducible_shape(grid, shape, folder),
        "partners": grid.partners(shape),
        "license": license,
        "recipe": without_local_settings(results.recipe),
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
        "cut_parent": cut_parent(grid, shape, folder, results, options),
        "branches": branches(grid, shape, results.learning_rate, evidence),
        "grid_folder": grid_folder(grid),
    }
    return checked(PublishedResults, published, file)


def branches(grid: Grid, shape: str, rate: float, evidence: Evidence) -> list[dict[str, object]] | None:
    """Of each branch of the first seed its value and the hash of its weights; None of a grid without branches.

    The weights of a branch may be gone, but those of the longest: then it has no hash.

    Raises:
        ValueError: a branch has not finished.
    """
    if evidence.curves is None:
        return None
    seed = grid.seeds[0]
    described = []
    for budget in evidence.curves:
        folder = reported(grid, shape, seed, rate, budget.branch).folder(grid)
        value = budget.cell(shape).values.get(str(seed))
        if value is None:
            raise ValueError(f"{grid.path('results.csv')}: no finished run {folder.name}")
        weights_sha256 = None
        if (folder / WEIGHTS).is_file():
            weights_sha256 = sha256(folder / WEIGHTS)
        described.append({"tokens": budget.branch, "value": value, "weights_sha256": weights_sha256})
    return described


def cut_parent(grid: Grid, shape: str, run: Path, results: RunResults, options: list[str]) -> CutParent | None:
    """The parent of a cut, and the cut's score before its training; None of a cell that is no cut.

    Args:
        run: the folder of the cell's run, which says how a model is evaluated.
        options: `--data_files` and the like, where the evaluation rows lie here.

    Raises:
        ValueError: the parent was evaluated on other rows, or is no published folder.
    """
    if not is_cut(grid, shape):
        return None
    if parent_results(grid).data_sha256 != results.data_sha256:
        raise ValueError(f"cut_from: {grid.cut_from} was evaluated on other rows than {run}: data_sha256 differs")
    metrics = metrics_with(Path(shape) / WEIGHTS, run, options)
    return CutParent(**parent_fields(grid, shape), untrained_metrics=metrics)


def continuations_of(folder: Path, options: list[str]) -> Continuations | None:
    """`continuations` of held-out rows, compared with the run's own training rows; None for other tasks.

    Raises ValueError as that does.
    """
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = prepare_evaluation(str(folder), options, scratch)
        task = evaluation.task
        if not isinstance(task, CausalLM):
            return None
        train, held_out = load_training(evaluation.arguments)
        if held_out is None:
            held_out = load_held_out(evaluation.arguments)
        return continuations(folder, train[task.text_column], held_out[task.text_column])


def read_target(target: Path, grid: Grid, shape: str) -> PublishedResults:
    """The results of a folder that is there.

    Raises:
        ValueError: the folder is another's, or its weights are not those that its results name.
    """
    try:
        path = target / RESULTS
        results = checked(PublishedResults, read_json(path), path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{target}: there already, and not published by this command ({error})") from error
    if results.evidence.grid != Path(grid.output_dir).name or results.cell != shape:
        there = f"{results.cell} in the grid {results.evidence.grid}"
        raise ValueError(f"{target}: there already, of {there}; choose another name")
    file = target / WEIGHTS
    if not file.is_file():
        raise ValueError(f"{file}: missing")
    if sha256(file) != results.weights_sha256:
        raise ValueError(f"{file}: weights_sha256 of its results.json differs")
    return results


def move_into_place(folder: Path, target: Path, scratch: Path) -> None:
    """Moves a folder to the place of another, which stays where it was if that fails."""
    before = scratch / "before"
    if target.is_dir():
        target.rename(before)  # deleted with the scratch folder, once the new one is in place
    try:
        folder.rename(target)
    except BaseException:  # Ctrl-C, too
        if before.is_dir():
            before.rename(target)
        raise


def renew(loaded: GridResults, shape: str, cards: Path = CARDS, license: str | None = None) -> Path:
    """Writes evidence, card and code of a folder that is there, all or nothing; the rest stays as it is.

    Args:
        license: of its weights; None leaves what it says.

    Raises:
        ValueError: the folder is another's, or does not hold together.
    """
    grid = loaded.grid
    target = cards / grid.publish[shape]
    results = read_target(target, grid, shape)
    if grid.branches is not None and results.branches is None:
        raise ValueError(f"{target}: published without the budgets of its run; leaner publish GRID.yaml --replace")
    fresh = {
        "partners": grid.partners(shape),
        "evidence": checked_evidence(loaded),
        "grid_folder": grid_folder(grid),
    }
    if results.cut_parent is not None:
        check_same_record(target, Path(shape))
        fresh["cut_parent"] = results.cut_parent.model_copy(update=parent_fields(grid, shape))
    if license is not None:
        fresh["license"] = license
    results = results.model_copy(update=fresh)
    with replacing(target) as folder:
        shutil.copytree(target, folder)
        renew_code(folder)
        write_json(folder / RESULTS, results.document())
        write_card(folder)
        write_grid(grid)  # which a verification reads; what no run depends on may have changed
    return target


def write_published_recipe(folder: Path, recipe: Mapping[str, object]) -> None:
    """Writes the published recipe.yaml."""
    text = "# Every setting of this run that is not a default.\n" + yaml.safe_dump(dict(recipe))
    write_bytes(folder / RECIPE, text.encode())


def published_recipe(source: Path, shape: str) -> dict[str, object]:
    """The recipe of a run with the published shape, without paths of one machine."""
    return without_local_settings(read_yaml(source / RECIPE)) | {"shape": shape}


def publish(
    loaded: GridResults, shape: str, data_files: Sequence[str], cards: Path = CARDS, license: str | None = None
) -> Path:
    """Writes one folder from its run, whole or not at all, once it has been verified.

    The guesses beside the grid's rows are renewed before, and stay so.

    Args:
        data_files: the local copy of the rows; empty for those of the Hub.
        license: of the weights; None takes that of the folder that is replaced, or none.

    Raises:
        ValueError: a run is missing, or the folder does not hold what its card says.
    """
    grid = loaded.grid
    target = cards / grid.publish[shape]
    source = run_to_publish(loaded, shape)
    options = copy_options(results_in(source / RESULTS).recipe, data_files)
    if target.exists():
        replaced = read_target(target, grid, shape)
        license = license or replaced.license
    scored_guesses = None
    if grid.metric in (None, results_in(source / RESULTS).metric):  # else no guess is scored by it
        scored_guesses = guesses(source, options)
    if scored_guesses:
        write_json(grid.path(GUESSES), [guess.document() for guess in scored_guesses])
        loaded = GridResults(grid, loaded.rows)  # without the guesses that it has read before
    results = results_of_cell(source, grid, shape, checked_evidence(loaded), options, license)
    local_copies = {}
    if data_files:
        local_copies[dataset_name(results)] = list(data_files)
    cards.mkdir(exist_ok=True)
    with replacing(target) as folder:
        folder.mkdir()
        for pattern in RUN_FILES:
            for path in source.glob(pattern):
                shutil.copyfile(path, folder / path.name)  # not the mode, which safetensors narrows
        if results.cut_parent is not None:
            shutil.copyfile(Path(shape) / RECORD, folder / RECORD)
        renew_code(folder)  # the run may be older than the package
        write_published_recipe(folder, published_recipe(source, results.shape))
        write_json(folder / RESULTS, results.document())
        write_card(folder)
        verify(folder, local_copies)
        write_grid(grid)
    return target


def renew_encoder(folder: Path) -> Path:
    """Writes card and code of a sentence encoder's folder, all or nothing. Raises ValueError as `write_card`."""
    with replacing(folder) as renewed:
        shutil.copytree(folder, renewed)
        renew_code(renewed)
        write_card(renewed)
    return folder


def is_encoder(folder: Path) -> bool:
    """Whether a folder is that of a sentence encoder, which no grid publishes."""
    file = folder / RESULTS
    return file.is_file() and isinstance(results_in(file), PublishedEncoder)


def published_cell(folder: Path, loaded: dict[str, GridResults]) -> tuple[GridResults, str]:
    """The grid that a folder was published from, and the shape.

    Args:
        loaded: the grids that were read before, by their files; it grows.

    Raises:
        ValueError: no grid publishes the folder.
    """
    results = results_in(folder / RESULTS)
    if not isinstance(results, PublishedResults):
        raise ValueError(f"{folder}: a run, which no grid has published")
    file = results.grid_file
    if file not in loaded:
        loaded[file] = load_results(load_grid(Path(file)))
    grid = loaded[file].grid
    if grid.publish is None or grid.publish.get(results.cell) != folder.name:
        raise ValueError(f"{folder}: {file} does not have it under publish")
    read_target(folder, grid, results.cell)
    return loaded[file], results.cell


def renew_all() -> None:
    """`renew` for each folder that is there. Raises ValueError for one that no grid publishes, nor is an encoder's."""
    there = sorted({path.parent for name in ("config.json", RESULTS) for path in CARDS.glob(f"*/{name}")})
    encoders = [folder for folder in there if is_encoder(folder)]
    loaded: dict[str, GridResults] = {}
    cells = [published_cell(folder, loaded) for folder in there if folder not in encoders]
    for grid_results, shape in cells:
        print(renew(grid_results, shape))
    for folder in encoders:
        print(renew_encoder(folder))


def check_no_copy_needed(run: Path) -> None:
    """Raises ValueError where a run's rows, which a verification reads, can be had from a local copy alone."""
    arguments = parse(str(run / RECIPE), [])
    arguments.data_files = []  # no published recipe says where they lie on one machine
    if arguments.dataset is None:
        raise ValueError(f"{run}: it was trained on local files; expected --data with their folder, or SPLIT=FILE")
    try:
        load_training(arguments)
    except ValueError as error:
        raise ValueError(f"{run}: {error}; --data names a local copy") from error


def check_copy(run: Path, data_files: Sequence[str]) -> None:
    """Raises ValueError where a local copy does not hold the rows that a run was evaluated on, or cannot be read."""
    results = results_in(run / RESULTS)
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = prepare_evaluation(str(run), copy_options(results.recipe, data_files), scratch)
    found = evaluation.held_out.sha256
    if found != results.data_sha256:
        given = " ".join(data_files)
        rows = f"expected the rows that {run} was evaluated on, data_sha256 {results.data_sha256}, got {found}"
        raise ValueError(f"--data: {given}: {rows}")


def publish_grid(file: Path, data_files: Sequence[str], replace: bool, license: str | None) -> None:
    """`publish`, or `renew` where the folder is there and not to be replaced, for each shape that a grid publishes.

    Raises:
        ValueError: the grid publishes nothing, or as of `read_target`, `run_to_publish`, `check_copy` and
            `check_no_copy_needed`, before anything is written.
    """
    grid = load_grid(file)
    if not grid.publish:
        raise ValueError(f"{file}: publish: missing, expected shapes and the names of their folders")
    task = recipe_of(grid, grid.baseline).task
    if task in UNVERIFIABLE:
        others = ", ".join(sorted(TASKS.keys() - set(UNVERIFIABLE)))
        raise ValueError(f"{file}: publish: the task {task} cannot be verified; expected one of {others}")
    targets = {shape: CARDS / name for shape, name in grid.publish.items()}
    for shape, target in targets.items():
        if target.exists():
            read_target(target, grid, shape)
    loaded = load_results(grid)
    taken_anew = [shape for shape, target in targets.items() if replace or not target.exists()]
    runs = [run_to_publish(loaded, shape) for shape in taken_anew]
    if runs and data_files:
        check_copy(runs[0], data_files)  # all read the same
    elif runs:
        check_no_copy_needed(runs[0])
    for shape in targets:
        if shape in taken_anew:
            print(publish(loaded, shape, data_files, license=license))
        else:
            print(renew(loaded, shape, license=license))


def publish_all(
    file: Path | None, data_files: Sequence[str] = (), replace: bool = False, license: str | None = None
) -> None:
    """`publish_grid` of a grid's file, or `renew_all` where it is None; then the index. Prints what was written.

    Raises:
        ValueError, OSError: something is missing or does not hold.
    """
    quiet_libraries()
    if file is None:
        renew_all()
    else:
        publish_grid(file, data_files, replace, license)
    print(write_index(CARDS))
