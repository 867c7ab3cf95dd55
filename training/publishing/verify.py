"""`leaner verify [FOLDER ...]`: what a published card says of its model, from the weights alone.

Of each folder: its code is this package's, file by file, which is compared before any of it runs; the weights are the
ones that results.json names; the card is what `leaner publish` writes from it; the metrics come out again, within the
tolerances of results.json, in a fresh process that cannot import this package and sees neither results.json nor the
card (`reevaluate.py`). ONNX graphs beside the weights give what the weights give. Rows come from the Hub, from a local
copy by `--data_files cifar10=FOLDER`, or are generated; what they hold must have the hash of the card's. Guesses
without a transformer are fitted again where the training rows are there. Where model_cards/grids/ is beside the
folder, all that the card says of other runs is gathered again from the rows there, and name, partners, settings, steps
and data are compared with the grid and the run's row; to get the rows again takes the sweep. What only the run itself
knew is not checked: its seconds, its last training loss, the rows that it was trained on.
"""

import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.slimming.slim import RECORD
from modeling_leaner.terminal import quiet_libraries

from ..experiments.encoder_rows import NAMES
from ..records import PublishedEncoder, PublishedResults, RunResults, Subset
from ..records.results import RESULTS
from ..running.card import TRAINING_FIGURE
from ..running.metadata import eval_results
from ..running.run_folder import RECIPE
from ..settings.command_line import copy_options
from ..settings.yaml_files import read_yaml
from .cards import render
from .code_copies import MODULES, check_code
from .cut_parents import check_parent
from .folders import CARDS, RUN_FILES, check_there, published_folders, results_in
from .verify_encoder import PARENT, verify_encoder
from .verify_grid import check_evidence, check_run, has_rows_beside
from .verify_onnx import ONNX_FOLDER, check_onnx
from .verify_weights import check_guesses, check_untrained, compare, metrics_of, training_options


OF_SENTENCE_TRANSFORMERS = ("*sentence_*.json", "[0-9]_*")  # settings, and a folder a module


def names_of(dataset: str, dataset_config: str | None) -> list[str]:
    """What `--data_files` may call a folder's dataset."""
    return [name for name in (dataset_config, dataset.split("/")[-1], dataset) if name]


def names_in(file: Path) -> list[str]:
    """What `--data_files` may call a folder's rows; none where it cannot be read, which the verification reports."""
    try:
        results = results_in(file)
    except (OSError, ValueError):
        return []
    if isinstance(results, PublishedEncoder):
        return [*NAMES, PARENT]
    return names_of(results.dataset, results.dataset_config)


def local_files(results: RunResults, given: dict[str, list[str]]) -> list[str]:
    """The local copy of the folder's dataset, by its configuration's or its own name; none where none is given."""
    for name in names_of(results.dataset, results.dataset_config):
        if name in given:
            return given[name]
    return []


def check_files(folder: Path, results: PublishedResults | PublishedEncoder) -> None:
    """Raises ValueError for a file that publishing does not write, one that is missing, and another recipe."""
    written = {"README.md", RESULTS, RECIPE}
    patterns = [*RUN_FILES, ONNX_FOLDER]
    if isinstance(results, PublishedEncoder):
        written |= {RECORD, MODULES, "tokenizer.json"}
        patterns += OF_SENTENCE_TRANSFORMERS
    else:
        written.add(TRAINING_FIGURE)
        if results.cut_parent is not None:
            written.add(RECORD)
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    for name in sorted(there - written):
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            raise ValueError(f"{folder / name}: not a file of a published folder")
    for name in sorted({"config.json", WEIGHTS, *written} - there):
        raise ValueError(f"{folder / name}: missing")
    recipe = read_yaml(folder / RECIPE)
    if recipe != {**results.recipe, "shape": results.shape}:
        raise ValueError(f"{folder / RECIPE}: not the recipe of {folder / RESULTS}")


def as_written(folder: Path) -> RunResults:
    """The results of a folder, once its card is shown to be the one that `leaner publish` writes from them.

    Raises:
        ValueError: the results lack a field, or the card or `.eval_results/` is not what `leaner publish` writes.
    """
    file = folder / RESULTS
    text, results = render(folder)
    if not isinstance(results, PublishedResults | PublishedEncoder):
        raise ValueError(f"{file}: evidence is missing; leaner publish writes it")
    if isinstance(results, PublishedResults) and results.subset is None:
        raise ValueError(f"{file}: subset is missing; leaner publish writes it")
    readme = folder / "README.md"
    if not readme.is_file() or readme.read_text(encoding="utf-8") != text:
        raise ValueError(f"{readme}: not what leaner publish writes from {file}")
    shown = None
    path = folder / ".eval_results" / "results.yaml"
    if path.is_file():
        shown = path.read_text(encoding="utf-8")
    expected = None
    if isinstance(results, PublishedResults):
        expected = eval_results(results)
    if shown != expected:
        raise ValueError(f"{path}: not what leaner publish writes from {file}")
    return results


def verify(folder: Path, given: dict[str, list[str]], short: bool = False) -> str:
    """Verifies a folder; returns one line that says what was compared.

    Args:
        given: local copies of datasets by name.
        short: on the first rows only, whose metrics results.json holds as `subset`.

    Raises:
        ValueError: one line that names file and field of what does not hold.
    """
    check_there(folder)
    check_code(folder)  # before anything of the folder is loaded, let alone run
    results = as_written(folder)
    check_files(folder, results)
    graphs = check_onnx(folder)
    if isinstance(results, PublishedEncoder):
        copies = {name: paths[0] for name, paths in given.items()}
        return verify_encoder(folder, results, copies, short) + graphs
    return verify_cell(folder, results, given, short) + graphs


def verify_cell(folder: Path, results: PublishedResults, given: dict[str, list[str]], short: bool) -> str:
    """`verify` of a folder of a grid: what its grid says of it, and its metrics."""
    compares_cells = has_rows_beside(folder, results)
    if compares_cells:
        check_evidence(folder, results.evidence)
        check_run(folder, results)
    file = folder / RESULTS
    expected: PublishedResults | Subset = results
    files = local_files(results, given)
    options = copy_options(results.recipe, files)
    if short:
        expected = results.subset
        options += ["--max_eval_rows", str(expected.max_eval_rows)]
    metrics, rows, data = metrics_of(folder, options)
    if (rows, data) != (expected.rows, expected.data_sha256):
        where = results.dataset
        if files:
            where = " ".join(files)
        message = f"{rows} rows of {where} with {data} differ from the card's data, {expected.rows} rows with"
        raise ValueError(f"{file}: data_sha256: {message} {expected.data_sha256}")
    main = f"eval_{results.metric}"
    compare(file, expected, metrics, main)
    verified = f"{results.metric} {metrics[main]:.4f} on {rows:,} rows, {len(expected.metrics)} metrics"
    held = results.evidence.guesses
    if short:
        verified += " of results.json's subset, guesses not fitted again"
    elif held:
        verified += check_guesses(folder, held, rows, training_options(results, files))
    if results.cut_parent is not None:
        verified += check_parent(folder, results)
        if not short:
            verified += check_untrained(folder, results, options)
    if not compares_cells:
        verified += f"; other cells not compared, no grids/{results.evidence.grid} beside it"
    return verified


def local_copies(entries: Sequence[str]) -> dict[str, list[str]]:
    """The folders of `--data_files` by dataset. ValueError for what is not NAME=FOLDER, and for a name given twice."""
    copies = {}
    for entry in entries:
        name, _, where = entry.partition("=")
        if where:
            copies[name] = [where]
    if len(copies) < len(entries):
        raise ValueError("--data_files: expected NAME=FOLDER, each once, as cifar10=data/cifar10")
    return copies


def check_names(given: dict[str, list[str]], folders: Sequence[Path]) -> None:
    """ValueError for a name that is no dataset of the folders, unless one cannot be read, which is reported later."""
    names = [names_in(folder / RESULTS) for folder in folders]
    known = set().union(*names)
    unknown = sorted(given.keys() - known)
    if unknown and all(names):
        message = f"{unknown[0]} is no dataset of these folders, expected one of {', '.join(sorted(known))}"
        raise ValueError(f"--data_files: {message}")


def verify_all(folders: Sequence[Path], data_files: Sequence[str] = (), short: bool = False) -> None:
    """`verify` of each folder, or where none is given of all published ones; prints a line for each.

    Args:
        data_files: local copies of datasets, each as NAME=FOLDER.

    Raises:
        ValueError: a folder does not hold what its card says, after all have been tried; or `data_files` are refused.
    """
    quiet_libraries()
    given = local_copies(data_files)
    if not folders:
        folders = published_folders(CARDS)
    if not folders:
        raise ValueError(f"no published folder in {CARDS}/")
    check_names(given, folders)
    failed = 0
    for folder in folders:
        try:
            print(f"{folder}: {verify(folder, given, short)}", flush=True)
        except (ValueError, OSError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            failed += 1
            message = str(error)
            if str(folder) not in message:
                message = f"{folder}: {message}"
            print(f"FAILED {' '.join(message.split())}", file=sys.stderr, flush=True)
    if failed:
        raise ValueError(f"{failed} of {len(folders)} failed")
    compared = "cards"
    if short:
        compared = "subsets"
    holding = "1 folder holds what its"
    if len(folders) > 1:
        holding = f"{len(folders)} folders hold what their"
    print(f"{holding} {compared} say")
