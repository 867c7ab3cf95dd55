"""`leaner verify [FOLDER ...]`: recomputes what a published card says of its model, from the weights alone.

For each folder: its code is this package's, which is compared before any of it runs; the weights have the hash of
results.json; the card is the one that `leaner publish` writes; the data have the hash of results.json; and the metrics
come out again in a process that cannot import this package and sees neither results.json nor the card.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from modeling_leaner.terminal import quiet_libraries

from ..experiments.embedding_benchmark import SOURCES
from ..reading import read_yaml
from ..records import PublishedResults, RunResults
from ..records.results import RESULTS
from ..running.run_folder import RECIPE
from ..settings import copy_options
from .cards import render
from .encoders import is_encoder, verify_encoder
from .folders import CARDS, check_code, check_links, check_there, published_folders, results_in
from .recompute import check_metrics, metrics_of


Copies = dict[str, list[str]]


def names_of(results: RunResults) -> list[str]:
    """What `--data` may call the data of a folder of a grid."""
    return [name for name in (results.dataset_config, results.dataset.split("/")[-1], results.dataset) if name]


def local_files(results: RunResults, given: Copies) -> list[str]:
    """The local copy of the folder's dataset; empty if there is none."""
    return next((given[name] for name in names_of(results) if name in given), [])


def verify(folder: Path, given: Copies, short: bool = False) -> str:
    """Verifies a folder; returns one line that says what was compared.

    Args:
        given: local copies of datasets by name.
        short: only the first examples, whose metrics results.json holds as `subset`.

    Raises:
        ValueError: one line that names file and field of what does not hold.
    """
    check_there(folder)
    check_links(folder)
    if is_encoder(folder):
        return verify_encoder(folder, {name: paths[0] for name, paths in given.items()}, short)
    check_code(folder)  # before anything of the folder is loaded, let alone run
    files, results = render(folder)
    if not isinstance(results, PublishedResults):
        raise ValueError(f"{folder / RESULTS}: evidence is missing; leaner publish writes it")
    for name, text in files.items():
        path = folder / name
        if (path.read_text(encoding="utf-8") if path.is_file() else None) != text:
            raise ValueError(f"{path}: not what leaner publish writes from {folder / RESULTS}")
    if read_yaml(folder / RECIPE) != {**results.recipe, "shape": results.shape}:
        raise ValueError(f"{folder / RECIPE}: not the recipe of {folder / RESULTS}")
    return verify_metrics(folder, results, local_files(results, given), short)


def verify_metrics(folder: Path, results: PublishedResults, copy: list[str], short: bool) -> str:
    """The data and the metrics of a folder of a grid. Raises ValueError as `verify`."""
    file = folder / RESULTS
    expected = results.subset if short else results
    options = copy_options(results.recipe, copy)
    if short:
        options += ["--max_eval_rows", str(expected.max_eval_rows)]
    metrics, rows, data = metrics_of(folder, options)
    if (rows, data) != (expected.rows, expected.data_sha256):
        where = " ".join(copy) or results.dataset
        raise ValueError(
            f"{file}: data_sha256: {rows} rows of {where} with {data} differ from the card's data, "
            f"{expected.rows} rows with {expected.data_sha256}"
        )
    check_metrics(f"{file}: metrics", expected.metrics, metrics, rows)
    return f"{results.metric} {metrics[f'eval_{results.metric}']:.4f} on {rows:,} rows, {len(metrics)} metrics"


def local_copies(entries: Sequence[str], folders: Sequence[Path]) -> Copies:
    """The folders of `--data` by dataset. Raises ValueError for what is not NAME=FOLDER, and for an unknown name."""
    copies = {name: [where] for name, _, where in (entry.partition("=") for entry in entries) if where}
    if len(copies) < len(entries):
        raise ValueError("--data: expected NAME=FOLDER, each once, such as cifar10=data/cifar10")
    known = set()
    for folder in folders if copies else ():
        known.update([*SOURCES, "sentences"] if is_encoder(folder) else names_of(results_in(folder / RESULTS)))
    for name in sorted(copies.keys() - known):
        raise ValueError(f"--data: {name} is no dataset of these folders, expected one of {', '.join(sorted(known))}")
    return copies


def verify_all(folders: Sequence[Path], data_files: Sequence[str] = (), short: bool = False) -> None:
    """`verify` of each folder, by default of all published ones; prints a line for each.

    Args:
        data_files: local copies of datasets, each as NAME=FOLDER.

    Raises:
        ValueError: a folder does not hold what its card says, after all have been tried; or `data_files` are wrong.
    """
    quiet_libraries()
    folders = folders or published_folders(CARDS)
    if not folders:
        raise ValueError(f"no published folder in {CARDS}/")
    given = local_copies(data_files, folders)
    failed = 0
    for folder in folders:
        try:
            print(f"{folder}: {verify(folder, given, short)}", flush=True)
        except (ValueError, OSError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            failed += 1
            message = " ".join(str(error).split())
            print(f"FAILED {message if str(folder) in message else f'{folder}: {message}'}", file=sys.stderr)
    if failed:
        raise ValueError(f"{failed} of {len(folders)} failed")
    print(f"verified: {len(folders)}")
