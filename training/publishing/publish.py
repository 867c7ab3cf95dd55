"""`leaner publish [GRID.yaml]`: folders under model_cards/, exactly as they are pushed to the Hub, from a grid's runs.

For each shape that the grid's `publish` names, the run of the first seed is published, whatever its result: weights,
code, configuration, tokenizer or processor, the resolved recipe, results.json and a card. If the folder exists, only
what the grid's rows say, the card and the copies of the model code are renewed; `--replace` takes everything from the
run again. Without a grid, all published folders are renewed. `leaner publish RUN`, of an encoder, is in encoders.py.
"""

import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from modeling_leaner.files import naming, read_object, sha256, whole_folder, write_bytes
from modeling_leaner.hub import RECORD
from modeling_leaner.layers_leaner import WEIGHTS

from ..experiments.grid import Grid, check_unchanged, load_grid, reported, write_grid
from ..experiments.grid_results import GridResults, load_folder, load_results
from ..experiments.statistics import reported_rows, score
from ..records import RESULTS, Evidence, PublishedResults, checked
from ..running.run_folder import RECIPE
from ..settings import words_of
from .cards import write_published
from .folders import CARDS, is_encoder, published_folders, results_in
from .index import write_index
from .verify import metrics_of, verify


SUBSET = 200  # examples of the short verification
GRIDS = CARDS / "grids"
RUN_FILES = (  # what a published folder has of its run
    "config.json generation_config.json model.safetensors preprocessor_config.json tokenizer.json "
    "tokenizer_config.json special_tokens_map.json metrics.jsonl"
).split()


def evidence_of(results: GridResults, shape: str) -> Evidence:
    """What the rows say of a shape. Raises ValueError if they are of another grid."""
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


def cut_parent(grid: Grid, shape: str) -> dict[str, object]:
    """What the grid and the parent's folder say of a cut's parent, which has to be the published folder."""
    folder, record = Path(grid.cut_from), read_object(Path(shape) / RECORD)
    parent, recorded = results_in(folder / RESULTS), record.get("parent_weights_sha256")
    if parent.weights_sha256 != recorded:
        raise ValueError(f"{shape}: parent_weights_sha256 is {recorded}, but {folder} was replaced; cut it again")

    # The options of `leaner slim`; the layers by number, as slim.json records them.
    layers = next((cut for cut in record["cuts"] if cut["part"] == "layers"), None)
    words = []
    for name, value in grid.cuts[shape].items():
        if name not in ("layers", "keep"):
            words += [f"--{name.replace('_', '-')}", str(value)]
        elif layers is not None:  # else all were kept
            words += ["--keep-layers", ",".join(map(str, layers["after"]))]
    return {"name": parent.name, "weights_sha256": recorded, "slim_options": words, "metrics": parent.metrics}


def results_of_cell(loaded: GridResults, shape: str, folder: Path, options: list[str]) -> PublishedResults:
    """The published results.json of a run: its own, what the rows say, and what a verification compares."""
    grid, file = loaded.grid, folder / RESULTS
    results = results_in(file)
    metrics, rows, data = metrics_of(folder, [*options, "--max_eval_rows", str(SUBSET)])

    # `--shape` in the card's command: of a cut the folder that the card's `leaner slim` writes, else the published
    # folder of the weights that the run started from.
    parent, command_shape = None, shape
    if shape in (grid.cuts or {}):
        untrained, _, _ = metrics_of(folder, options, Path(shape) / WEIGHTS)
        parent = {**cut_parent(grid, shape), "untrained_metrics": untrained}
        command_shape = f"runs/{grid.publish[shape]}-cut"
    elif grid.start_from is not None:
        with naming(f"start_from: {grid.start_from} does not publish", (KeyError,)):
            command_shape = str(CARDS / (load_grid(Path(grid.start_from) / "grid.yaml").publish or {})[shape])

    document = {
        **results.document(),
        "name": grid.publish[shape],
        "cell": shape,
        "shape": command_shape,
        "recipe": {key: value for key, value in results.recipe.items() if key != "data_files"},
        "weights_sha256": sha256(folder / WEIGHTS),
        "subset": {"max_eval_rows": SUBSET, "rows": rows, "data_sha256": data, "metrics": metrics},
        "evidence": evidence_of(loaded, shape).document(),
        "cut_parent": parent,
    }
    return checked(PublishedResults, document, file)


def renew(loaded: GridResults, shape: str, license: str | None = None) -> Path:
    """Writes what the rows say, card and code of a folder that exists, all or nothing; the rest stays as it is.

    Raises ValueError if the folder is another's, or does not hold together. Without a license its own stays.
    """
    grid = loaded.grid
    target = CARDS / grid.publish[shape]
    results = results_in(target / RESULTS)
    if not isinstance(results, PublishedResults) or (results.evidence.grid, results.cell) != (loaded.name, shape):
        raise ValueError(f"{target} exists already, not of {shape} in the grid {loaded.name}; choose another name")
    fresh = {"evidence": evidence_of(loaded, shape), "license": license or results.license}
    renew_folder(target, results.model_copy(update=fresh).document())
    write_grid(grid)  # what no run depends on may have changed
    return target


def renew_folder(target: Path, results: Mapping[str, object]) -> None:
    """Writes results, card and code of a published folder anew, all or nothing."""
    with whole_folder(target, replace=True) as folder:
        shutil.copytree(target, folder)
        write_published(folder, results)


def publish(loaded: GridResults, shape: str, data_files: Sequence[str], license: str | None = None) -> Path:
    """Writes one folder from its run, whole or not at all, once it has been verified.

    `data_files` are the local copy of the rows; empty for those of the Hub. Without a license, that of the folder that
    is replaced stays.
    """
    grid = loaded.grid
    target = CARDS / grid.publish[shape]
    source = reported(grid, shape, grid.seeds[0], loaded.tuning.best[shape]).folder(grid)
    if target.exists():
        license = license or read_object(target / RESULTS).get("license")
    holdout = results_in(source / RESULTS).recipe.get("holdout")
    options = words_of({"data_files": list(data_files), "holdout": holdout})
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
        write_published(folder, results.document())
        verify(folder, {results.dataset_name: list(data_files)} if data_files else {})
    write_grid(grid)
    return target


def publish_all(file: Path | None, data_files: Sequence[str], replace: bool, license: str | None) -> None:
    """Publishes what a grid's file names, or renews every published folder if it is None; then the index.

    Of a grid, a folder that exists is renewed unless it is to be replaced.
    """
    if file is None:
        load = functools.cache(load_folder)
        for folder in published_folders(CARDS):
            results = read_object(folder / RESULTS)
            if is_encoder(folder):
                renew_folder(folder, results)
            else:
                renew(load(GRIDS / results["evidence"]["grid"]), results["cell"])
            print(folder)
    else:
        grid = load_grid(file)
        if not grid.publish or Path(grid.output_dir).resolve().parent != GRIDS.resolve():
            raise ValueError(f"{file}: expected publish, shapes and names of folders, and output_dir: {GRIDS}/NAME")
        loaded = load_results(grid)
        for shape, name in grid.publish.items():
            is_new = replace or not (CARDS / name).exists()
            print(publish(loaded, shape, data_files, license) if is_new else renew(loaded, shape, license))
    print(write_index(CARDS))
