"""`leaner publish [GRID.yaml]`: folders under model_cards/, exactly as they are pushed to the Hub, from a grid's runs.

Of each shape that the grid's `publish` names it takes the run of the first seed, whatever its result: weights, code,
configuration, tokenizer or processor, the resolved recipe, and a results.json with the evidence of the whole grid. Of
a folder that is there only the evidence, the card and the copies of the model code are written anew; `--replace` takes
all anew from the run. Without a grid, those of every folder that is there: a card also shows the rows of other grids.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from modeling_leaner.support.quiet import quiet_libraries

from . import report
from .baselines import guesses
from .cards import write_card
from .code_copies import renew_code
from .continuations import continuations
from .evaluate import load
from .evidence import dataset_name, gather
from .grid import Grid, check_unchanged, load_grid, write_grid
from .guesses import GUESSES
from .index import write_index
from .repeated import CommandParser
from .runs import read_rows, reported, tune
from .sources import load_evaluation, load_training
from .tasks import CausalLM
from .verify import CARDS, KEPT, LICENSE, LOCAL, metrics_of, tolerances, verify


GRIDS = Path("training/grids")
SUBSET = 200  # rows of the short verification


def run_of(grid: Grid, shape: str) -> Path:
    """The folder of the run to publish. Raises ValueError where it has not finished or is not on this machine."""
    rows = read_rows(grid.path("results.csv"))
    rate = tune(grid, rows).best[shape]
    run = reported(grid, shape, grid.seeds[0], rate)
    if rows.get(run, {}).get("status") != "finished":
        raise ValueError(f"{grid.path('results.csv')}: no finished run of {shape} with seed {grid.seeds[0]}")
    folder = run.folder(grid)
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"{folder}: the run's weights are not there; a sweep with another output_dir trains them")
    return folder


def started_from(grid: Grid, shape: str, folder: Path) -> str:
    """What `--shape` was: the shape, or the published folder of the weights that the run started from.

    Raises:
        ValueError: the weights it started from are not published, or others are.
    """
    if grid.start_from is None:
        return shape
    earlier = load_grid(GRIDS / f"{Path(grid.start_from).name}.yaml")
    name = (earlier.publish or {}).get(shape)
    if name is None or not (CARDS / name / "model.safetensors").is_file():
        raise ValueError(f"start_from: the weights of {shape} in {grid.start_from} are not published yet")
    begun = Path(json.loads((folder / "results.json").read_text(encoding="utf-8"))["shape"]) / "model.safetensors"
    if not begun.is_file():
        raise ValueError(f"start_from: {begun}, which the run started from, is not there to compare")
    if report.sha256(begun) != report.sha256(CARDS / name / "model.safetensors"):
        raise ValueError(f"start_from: {CARDS / name} does not hold {begun}, which the run started from")
    return str(CARDS / name)


def gathered(grid: Grid) -> dict[str, Any]:
    """The evidence of the rows. Raises GridError where they are of another grid."""
    check_unchanged(grid, read_rows(grid.path("results.csv")).values())
    return gather(grid)


@contextlib.contextmanager
def in_place_of(folder: Path, target: Path) -> Iterator[None]:
    """Errors of a folder that is written aside name the folder that it is for."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace(str(folder), str(target))) from error


def results_of(folder: Path, grid: Grid, shape: str, evidence: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The published results.json: the run's own, the evidence, and what a verification compares."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    recipe = {key: value for key, value in results["recipe"].items() if key not in LOCAL}
    short, rows, data = metrics_of(folder, [*words, "--max_eval_rows", str(SUBSET)])
    return {
        **results,
        "name": grid.publish[shape],
        "cell": shape,
        "shape": started_from(grid, shape, folder),
        "partners": grid.partners(shape),
        "license": LICENSE,
        "recipe": recipe,
        "weights_sha256": report.sha256(folder / "model.safetensors"),
        "tolerances": tolerances(results["metrics"], results["rows"]),
        "subset": {
            "max_eval_rows": SUBSET,
            "rows": rows,
            "data_sha256": data,
            "metrics": short,
            "tolerances": tolerances(short, rows),
        },
        "evidence": evidence,
        "continuations": writing(folder, words),
    }


def writing(folder: Path, words: list[str]) -> dict[str, object] | None:
    """`continuations` of held-out rows, compared with the run's own training rows; None for other tasks."""
    with tempfile.TemporaryDirectory() as scratch:
        evaluation = load(str(folder), words, scratch)
        task, arguments = evaluation.task, evaluation.arguments
        if not isinstance(task, CausalLM):
            return None
        train, held_out = load_training(arguments)
        held_out = load_evaluation(arguments) if held_out is None else held_out
        return continuations(folder, train[task.text_column], held_out[task.text_column])


def check_target(target: Path, grid: Grid, shape: str) -> dict[str, Any]:
    """The results of a folder that is there.

    Raises:
        ValueError: the folder is another's, or its weights are not those that its results name.
    """
    try:
        results = json.loads((target / "results.json").read_text(encoding="utf-8"))
        theirs = results["evidence"]["grid"], results["cell"]
        weights = results["weights_sha256"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{target}: there already, and not published by this command ({error})") from error
    ours = Path(grid.output_dir).name, shape
    if theirs != ours:
        raise ValueError(f"{target}: there already, of {theirs[1]} in the grid {theirs[0]}; choose another name")
    file = target / "model.safetensors"
    if not file.is_file() or report.sha256(file) != weights:
        raise ValueError(f"{file}: {'weights_sha256 of its results.json differs' if file.is_file() else 'missing'}")
    return results


def moved(folder: Path, target: Path, scratch: Path) -> None:
    """Puts a folder in the place of another, which stays where it was if that fails."""
    before = scratch / "before"
    if target.is_dir():
        target.rename(before)  # deleted with the scratch folder, once the new one is in place
    try:
        folder.rename(target)
    except BaseException:  # Ctrl-C, too
        if before.is_dir():
            before.rename(target)
        raise


def renew(grid: Grid, shape: str, cards: Path = CARDS) -> Path:
    """Writes evidence, card and code of a folder that is there, all or nothing; the rest stays as it is.

    Raises:
        ValueError: the folder is another's, or does not hold together.
    """
    target = cards / grid.publish[shape]
    results = check_target(target, grid, shape)
    results |= {"partners": grid.partners(shape), "evidence": gathered(grid)}
    with tempfile.TemporaryDirectory(dir=cards, prefix=".publish-") as scratch:
        folder = Path(scratch) / target.name
        shutil.copytree(target, folder)
        renew_code(folder)
        report.write_json(folder / "results.json", results)
        with in_place_of(folder, target):
            write_card(folder)
        write_grid(grid)  # which a verification reads; what no run depends on may have changed
        moved(folder, target, Path(scratch))
    return target


def publish(grid: Grid, shape: str, words: list[str], cards: Path = CARDS) -> Path:
    """Writes one folder from its run, whole or not at all, once it has been verified.

    Args:
        words: `--data_files` and the like, where the evaluation rows lie here.

    Raises:
        ValueError: a run is missing, or the folder does not hold what its card says.
    """
    target, source = cards / grid.publish[shape], run_of(grid, shape)
    if target.exists():
        check_target(target, grid, shape)
    if guessed := guesses(source, words):
        report.write_json(grid.path(GUESSES), guessed)
    results = results_of(source, grid, shape, gathered(grid), words)
    cards.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cards, prefix=".publish-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        for pattern in KEPT:
            for path in source.glob(pattern):
                shutil.copyfile(path, folder / path.name)  # not the mode, which safetensors narrows
        renew_code(folder)  # the run may be older than the package
        recipe = yaml.safe_load((source / "recipe.yaml").read_text(encoding="utf-8"))
        recipe = {key: value for key, value in recipe.items() if key not in LOCAL} | {"shape": results["shape"]}
        text = "# Every setting of this run that is not a default.\n" + yaml.safe_dump(recipe)
        report.write_bytes(folder / "recipe.yaml", text.encode())
        report.write_json(folder / "results.json", results)
        with in_place_of(folder, target):
            write_card(folder)
            verify(folder, {dataset_name(results): words[1:]} if words else {})
        write_grid(grid)
        moved(folder, target, Path(scratch))
    return target


def renew_all() -> None:
    """`renew` for each folder that is there. Raises ValueError for one that no grid publishes."""
    grids = map(load_grid, sorted(GRIDS.glob("*.yaml")))
    known = {name: (grid, shape) for grid in grids for shape, name in (grid.publish or {}).items()}
    there = sorted({path.parent.name for name in ("config.json", "results.json") for path in CARDS.glob(f"*/{name}")})
    if unknown := [name for name in there if name not in known]:
        raise ValueError(f"{CARDS / unknown[0]}: no grid in {GRIDS} has it under publish")
    for name in there:
        check_target(CARDS / name, *known[name])
    for name in there:
        print(renew(*known[name]))


def main(argv: list[str]) -> None:
    """The command; status 1 and one line where something is missing or does not hold."""
    parser = CommandParser(prog="leaner publish", description=__doc__.split("\n")[0])
    parser.add_argument("grid", nargs="?", type=Path, help="YAML, with publish; left out, renew the folders there are")
    parser.add_argument("--data_files", nargs="+", default=[], help="a local copy of the recipe's dataset")
    parser.add_argument("--replace", action="store_true", help="take folders that are there anew, weights too")
    options = parser.parse_args(argv)
    if options.grid is None and (options.data_files or options.replace):
        parser.error("--data_files and --replace: expected with the grid file whose runs are meant")
    quiet_libraries()
    words = ["--data_files", *options.data_files] if options.data_files else []
    try:
        if options.grid is None:
            renew_all()
        else:
            grid = load_grid(options.grid)
            if not grid.publish:
                raise ValueError(f"{options.grid}: publish: missing, expected shapes and the names of their folders")
            targets = {shape: CARDS / name for shape, name in grid.publish.items()}
            for shape, target in targets.items():
                if target.exists():
                    check_target(target, grid, shape)
            for shape, target in targets.items():
                there = target.exists() and not options.replace
                print(renew(grid, shape) if there else publish(grid, shape, words))
        print(write_index(CARDS))
    except (ValueError, OSError) as error:
        raise SystemExit(f"leaner publish: {' '.join(str(error).split())}") from error
