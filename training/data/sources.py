"""Where rows come from: a Hub dataset, local files, or a built-in set; every failure names file, split and column."""

import functools
import hashlib
import json
import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import datasets
import pyarrow.parquet
from datasets import (
    Dataset,
    DatasetDict,
    IterableDataset,
    Value,
    VerificationMode,
    get_dataset_split_names,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from PIL import Image as PILImage

from modeling_leaner.hub import dataset_hub_answers
from modeling_leaner.terminal import did_you_mean

from ..settings.arguments import LANGUAGE_MODELLING, RecipeArguments
from ..settings.data_files import check_data_files, split_files
from . import builtin as data


Rows = Dataset | IterableDataset

BUILT_IN = {
    "digits": data.digits,
    "python-docs": data.python_docs,
    "listops": data.listops,
    "listops-short": functools.partial(data.listops, data.SHORT_LISTOPS),
}
TEXT_COLUMNS = ("text", "sentence", "sentence1", "question", "premise")  # of which the first that is there is read
LISTOPS = ("listops", "listops-short")  # with as many test expressions as asked for
FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".txt": "text"}
ROW_OF_NULL = re.compile(rb"^null[\s,]*$|\A\s*\[\s*null\b", re.MULTILINE)
READ_OPTIONS = {".tsv": {"delimiter": "\t"}, ".txt": {"sample_by": "paragraph"}}


def check_cache(folder: Path, *variables: str) -> None:
    """Raises ValueError where a cache cannot be written to; names its folder and the variable that it comes from."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        given = (f"{name} is {os.environ[name]}" for name in variables if name in os.environ)
        where = next(given, f"{variables[0]} is not set")
        raise ValueError(
            f"{folder}: this cache cannot be written to ({error.strerror}); {where}, expected a folder that can be"
        ) from error


def check_datasets_cache() -> None:
    """Raises ValueError where the folder in which `datasets` keeps what it prepared cannot be written to."""
    check_cache(Path(datasets.config.HF_DATASETS_CACHE), "HF_DATASETS_CACHE", "HF_HOME", "XDG_CACHE_HOME")


def whole_split(split: str) -> str:
    """The split that a slice such as train[:90%] is taken from."""
    return split.split("[")[0]


def describe(dataset: str | None, split: str, data_files: list[str]) -> str:
    """The split as messages name it."""
    if not data_files:
        return f"{dataset} ({split})"
    files = split_files(data_files)
    chosen = files.get(whole_split(split), files.get(None, []))
    return f"{', '.join(chosen)} ({split})"


def _read_folder(folder: Path, split: str, streaming: bool, has_splits: bool) -> Rows:
    """A split of a folder that has several, or images of a folder that is one split, by `datasets`."""
    source = str(folder)
    data_files = None
    if not has_splits:
        source = "imagefolder"
        data_files = {whole_split(split): f"{folder}/**"}
    checks = VerificationMode.NO_CHECKS
    try:
        return load_dataset(source, data_files=data_files, split=split, verification_mode=checks, streaming=streaming)
    except (DatasetNotFoundError, FileNotFoundError) as error:
        raise ValueError(f"{folder}: no data files of a known format in this folder") from error


def check_rows(path: Path) -> None:
    """Raises ValueError for a row of a JSON file that is null, at which pyarrow would end the process."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        row = ROW_OF_NULL.search(content)
        if row is not None:
            line = content[: row.end()].count(b"\n") + 1
            raise ValueError(f"{path}: line {line}: null, expected an object")


def _read_files(files: list[str], split: str, streaming: bool) -> Rows:
    """Local files of one format, by the builder that `datasets` has for it."""
    check_data_files(files)
    paths = [Path(name) for name in files]
    suffixes = {path.suffix.lower() for path in paths}
    if len(suffixes) != 1 or not suffixes <= set(FORMATS):
        raise ValueError(
            f"data_files: {', '.join(files)}: expected one folder, or files of one of {', '.join(FORMATS)}"
        )
    if all(path.is_file() and path.stat().st_size == 0 for path in paths):
        raise ValueError("the split is empty")
    (suffix,) = suffixes
    if FORMATS[suffix] == "json":
        for path in paths:
            if path.is_file() and path.stat().st_size > 0:
                check_rows(path)
    data_files = {whole_split(split): files}
    options = READ_OPTIONS.get(suffix, {})
    return load_dataset(FORMATS[suffix], data_files=data_files, split=split, streaming=streaming, **options)


def _unreadable(files: list[str], error: Exception) -> str:
    """Which of the files cannot be read, and why."""
    for name in files:
        if name.endswith(".parquet") and Path(name).is_file():
            try:
                pyarrow.parquet.ParquetFile(name).read()
            except Exception as cause:  # whatever the reader says of a broken file
                return f"{name}: unreadable parquet: {' '.join(str(cause).split())[:300]}"
    cause = error.__cause__ or error
    return f"{', '.join(files)}: unreadable: {' '.join(str(cause).split())[:300]}"


def _read_local(data_files: list[str], split: str, name: str, key: str | None, streaming: bool) -> Rows:
    """A split of local files, or of a folder; in messages `name` is the split's, `key` the setting that chose it.

    Raises:
        ValueError: names the file, or the split that no file is given for.
    """
    whole = whole_split(split)
    files = split_files(data_files)
    chosen = files.get(whole, files.get(None))
    if chosen is None:
        ways = "; or set holdout, or eval_split none" if key == "eval_split" else ""
        raise ValueError(f"data_files: nothing for the split {whole!r}, expected {whole}=FILE or a folder{ways}")
    try:
        if len(chosen) == 1 and Path(chosen[0]).is_dir():
            return _read_folder(Path(chosen[0]), split, streaming, has_splits=whole not in files)
        return _read_files(chosen, split, streaming)
    except (DatasetGenerationError, OSError) as error:
        raise ValueError(_unreadable(chosen, error)) from error
    except ValueError as error:
        if "corresponds to no data" in str(error):
            raise ValueError(f"{name}: no rows, or a folder without images; tables as FOLDER/*.csv") from error
        if str(error).startswith("Unknown split") and key is not None:
            others = " or to none, or holdout" if key == "eval_split" else ""
            raise ValueError(f"{name}: {error} Set {key} to one of them{others}") from error
        if "data_files" in str(error) or chosen[0] in str(error):
            raise
        raise ValueError(f"{name}: {error}") from error


def _read_built_in(dataset: str, split: str, test_trees: int | None) -> Rows:
    """A split of a built-in set; ValueError where it has no such split."""
    options = {} if test_trees is None else {"test": test_trees}
    splits: DatasetDict = BUILT_IN[dataset](**options)
    if split not in splits:
        raise ValueError(f"{dataset}: no split {split!r}, expected one of {', '.join(splits)}")
    return splits[split]


def load_split(
    dataset: str | None,
    split: str,
    *,
    dataset_config: str | None = None,
    data_files: list[str] | None = None,
    streaming: bool = False,
    test_trees: int | None = None,
    key: str | None = None,
) -> Rows:
    """One split of a Hub dataset, of local `data_files` (`split=FILE` or a folder), or of a built-in set.

    With `test_trees` ListOps has so many test expressions; those to train on and the first to test on stay the same.
    `key` is the setting that chose the split, for messages.

    Raises:
        ValueError: names the file, the dataset or the split, and what there is in its place.
    """
    data_files = data_files or []
    name = describe(dataset, split, data_files)
    if test_trees is not None and (data_files or dataset not in LISTOPS):
        raise ValueError(f"test_trees: only of {' and '.join(LISTOPS)}, which are generated, not of {name}")
    if not streaming and (data_files or dataset not in BUILT_IN):
        check_datasets_cache()
    if streaming and not data_files and dataset in BUILT_IN:
        raise ValueError(f"streaming: {dataset} is built in and made as a whole; leave it out")
    if data_files:
        rows = _read_local(data_files, split, name, key, streaming)
    elif dataset in BUILT_IN:
        rows = _read_built_in(dataset, split, test_trees)
    else:
        rows = _read_hub(dataset, dataset_config, split, streaming)
    if isinstance(rows, Dataset) and len(rows) == 0:
        raise ValueError(f"{name}: the split is empty")
    return rows


@contextmanager
def cache_alone() -> Iterator[None]:
    """Keeps `datasets` from the Hub while the block runs: it would wait half a minute for one that is silent."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _read_hub(dataset: str | None, config: str | None, split: str, streaming: bool) -> Rows:
    if dataset is None:
        raise ValueError("dataset: missing; give a Hub id, a built-in set, or data_files")
    reached = dataset_hub_answers(dataset)
    try:
        with nullcontext() if reached else cache_alone():
            return load_dataset(dataset, config, split=split, streaming=streaming)
    except (DatasetNotFoundError, FileNotFoundError, ConnectionError) as error:
        place = "on the Hub or in its cache" if reached else "in the cache of the Hub, which did not answer"
        hint = did_you_mean(dataset, BUILT_IN) or "; a local copy is given by its path"
        raise ValueError(f"dataset {dataset}: not found {place}{hint}") from error
    except ValueError as error:
        if "split" in str(error).lower():
            splits = ", ".join(get_dataset_split_names(dataset, config))
            raise ValueError(f"dataset {dataset}: no split {split!r}, expected one of {splits}") from error
        raise ValueError(f"dataset {dataset}: {' '.join(str(error).split())}") from error


def likely_texts(columns: list[str]) -> list[str]:
    """Of columns with text those that may be meant where none is named: the first of TEXT_COLUMNS, or else all."""
    return [name for name in TEXT_COLUMNS if name in columns][:1] or columns


def text_columns(rows: Rows) -> list[str]:
    """The columns that hold text alone; empty for a stream that does not state its columns."""
    columns = (rows.features or {}).items()
    return [name for name, kind in columns if isinstance(kind, Value) and kind.dtype.endswith("string")]


def first_rows(rows: Rows, count: int | None) -> Rows:
    """The first `count` rows, all where it is None."""
    if count is None:
        return rows
    if isinstance(rows, IterableDataset):
        return rows.take(count)
    return rows.select(range(min(count, len(rows))))


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the row numbers below `count`, evenly spaced."""
    taken = min(count, most)
    return [place * count // taken for place in range(taken)]


def content_sha256(rows: Rows, columns: list[str]) -> str | None:
    """Hash of what the rows hold in `columns`, whatever file they came from: images by pixels. None of a stream."""
    if isinstance(rows, IterableDataset):
        return None
    digest = hashlib.sha256()
    for row in rows.select_columns(columns):
        for column in columns:
            value = row[column]
            if isinstance(value, PILImage.Image):
                digest.update(f"{value.mode} {value.size} ".encode() + value.tobytes())
            else:
                digest.update(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
    return digest.hexdigest()


def load_training(arguments: RecipeArguments) -> tuple[Rows, Rows | None]:
    """Training and evaluation rows; with `holdout` the latter are taken out of the former, always the same ones.

    They are drawn at random; for language modelling they are the end of the text, of a stream its first rows.
    `tuning_holdout` takes other rows, which are neither trained on nor reported.

    Raises:
        ValueError: as `load_split`; or one file would be both.
    """
    train = _load(arguments, "train_split")
    held_out = None
    for key, count in (("holdout", arguments.holdout), ("tuning_holdout", arguments.tuning_holdout)):
        if count:
            train, held_out = _take_out(train, count, key, draw=arguments.task not in LANGUAGE_MODELLING)
    train = first_rows(train, arguments.max_train_rows)
    if held_out is not None:
        return train, first_rows(held_out, arguments.max_eval_rows)
    if arguments.eval_split == "none":
        return train, None
    check_splits(arguments)
    return train, load_held_out(arguments)


def check_splits(arguments: RecipeArguments) -> None:
    """Raises ValueError where the evaluation split would hold training rows: the same split, a part of it, its files.

    Two parts of a split, such as `train[:90%]` and `train[90%:]`, are taken as they are.
    """
    wanted = arguments.eval_split
    trained = arguments.train_split
    files = split_files(arguments.data_files)
    if any(not Path(name).is_dir() for name in files.get(None, [])):
        raise ValueError(
            f"data_files: the split {wanted!r} would be the training rows; say train=FILE and {wanted}=FILE, or set "
            "holdout, or eval_split none"
        )
    shared = set(files.get(trained, [])) & set(files.get(wanted, []))
    if shared and wanted != trained:
        raise ValueError(f"data_files: {min(shared)} is of {trained} and of {wanted}; expected other rows")
    whole = whole_split(trained)
    if whole == whole_split(wanted) and (wanted == trained or whole in (wanted, trained)):
        raise ValueError(
            f"eval_split: {wanted!r} would be rows of train_split {trained!r}; expected other rows, or set holdout, "
            "or eval_split none"
        )


def _take_out(rows: Rows, count: int, key: str, draw: bool) -> tuple[Rows, Rows]:
    """The rows without `count` of them, and these `count` rows."""
    if isinstance(rows, IterableDataset):
        return rows.skip(count), rows.take(count)
    if count >= len(rows):
        raise ValueError(f"{key}: {count} rows of a training split of {len(rows)}")
    if not draw:  # by select: an unshuffled train_test_split has another fingerprint every time, and no cache is found
        rest = len(rows) - count
        return rows.select(range(rest)), rows.select(range(rest, len(rows)))
    parts = rows.train_test_split(test_size=count, seed=0)
    return parts["train"], parts["test"]


def load_held_out(arguments: RecipeArguments) -> Rows:
    """The rows to evaluate on."""
    return first_rows(_load(arguments, "eval_split"), arguments.max_eval_rows)


def _load(arguments: RecipeArguments, key: str) -> Rows:
    """The split that a setting names, train_split or eval_split."""
    return load_split(
        arguments.dataset,
        getattr(arguments, key),
        dataset_config=arguments.dataset_config,
        data_files=arguments.data_files,
        streaming=arguments.streaming,
        test_trees=arguments.test_trees,
        key=key,
    )
