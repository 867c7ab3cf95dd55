"""Where rows come from: a Hub dataset, local files or a built-in set; every failure names file, split and column."""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import datasets
from datasets import Dataset, IterableDataset, Value, VerificationMode, load_dataset
from datasets.exceptions import DatasetGenerationError
from PIL import Image as PILImage

from modeling_leaner.files import naming
from modeling_leaner.terminal import did_you_mean

from ..reading import FORMATS, is_there
from ..settings import LANGUAGE_MODELLING, RecipeArguments, split_files
from . import builtin


Rows = Dataset | IterableDataset

BUILT_IN = {
    "digits": builtin.digits,
    "python-docs": builtin.python_docs,
    "listops": builtin.listops,
    "listops-short": functools.partial(builtin.listops, builtin.SHORT_LISTOPS),
}
TEXT_COLUMNS = ("text", "sentence", "sentence1", "question", "premise")  # of which the first that is there is read
EMPTY = "an empty cell (in a csv also NA, nan, null or None, which are read as missing)"
# What datasets says of an empty file:
NO_ROWS = ("No columns to parse", "corresponds to no data", "at least one example")
READ_OPTIONS = {".tsv": {"delimiter": "\t"}, ".txt": {"sample_by": "paragraph"}}


# A split


def is_dataset(name: str) -> bool:
    """Whether this names a built-in set, or may name a Hub dataset, since no such file is here."""
    if name in BUILT_IN:
        return True
    is_file = is_there(name) or Path(name).suffix.lower() in FORMATS
    return not is_file and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None


def describe(dataset: str | None, split: str, data_files: list[str]) -> str:
    """The split as messages name it."""
    files = split_files(data_files)
    return f"{', '.join(files.get(split.split('[')[0], files.get(None, []))) if files else dataset} ({split})"


def load_split(
    dataset: str | None,
    split: str,
    *,
    dataset_config: str | None = None,
    data_files: list[str] | None = None,
    streaming: bool = False,
    test_trees: int | None = None,
) -> Rows:
    """One split of a Hub dataset, of local `data_files` (`split=FILE` or a folder), or of a built-in set.

    With `test_trees` ListOps has so many test expressions; those to train on and the first to test on stay the same.

    Raises:
        ValueError: names the file, the dataset or the split, and what there is in its place.
    """
    if dataset in BUILT_IN and not data_files:
        splits = BUILT_IN[dataset](**({} if test_trees is None else {"test": test_trees}))  # of ListOps
        if split not in splits:
            raise ValueError(f"{dataset}: no split {split!r}, expected one of {', '.join(splits)}")
        return splits[split]

    if data_files or dataset is None:
        place = describe(None, split, data_files or [])
        builder, options = _local(data_files or [], split)
    else:
        place, builder, options = f"dataset {dataset}", dataset, {"name": dataset_config}
    try:
        return load_dataset(builder, split=split, streaming=streaming, **options)
    except (DatasetGenerationError, OSError, StopIteration, ValueError) as error:
        problem = " ".join(str(error.__cause__ or error).split())[:600]
        if isinstance(error, StopIteration) or any(text in problem for text in NO_ROWS):
            problem = "no rows in it"
        elif not data_files and isinstance(error, ConnectionError | FileNotFoundError):
            is_cut_off = isinstance(error, ConnectionError)
            problem = "the Hub does not answer, and its cache has no copy" if is_cut_off else "not found on the Hub"
            problem += did_you_mean(dataset, BUILT_IN) or "; give the path of a local copy (PATH or NAME=PATH)"
        raise ValueError(f"{place}: {problem}") from error


def _local(data_files: list[str], split: str) -> tuple[str, dict[str, object]]:
    """How `load_dataset` reads a split of local files, or of a folder: by which builder, with which options."""
    whole = split.split("[")[0]
    files = split_files(data_files)
    chosen = files.get(whole, files.get(None, []))
    suffixes = [Path(file).suffix.lower() for file in chosen]
    is_folder = len(chosen) == 1 and Path(chosen[0]).is_dir()
    if not chosen or not (is_folder or set(suffixes) <= FORMATS.keys()):
        expected = f"expected a dataset, a folder, or {whole}=FILE with FILE of one of {', '.join(FORMATS)}"
        is_missing = chosen and not is_there(chosen[0])
        problem = "no such file or folder" if is_missing else f"split {whole!r}: {expected}"
        raise ValueError(f"{', '.join(chosen) or 'no data'}: {problem}")
    if not is_folder:
        return FORMATS[suffixes[0]], {"data_files": {whole: chosen}, **READ_OPTIONS.get(suffixes[0], {})}
    options = {"verification_mode": VerificationMode.NO_CHECKS}
    if whole in files:  # the folder is one split
        return "imagefolder", {"data_files": {whole: f"{chosen[0]}/**"}, **options}
    return chosen[0], options


# Its rows and columns


def column_names(rows: Rows) -> list[str]:
    """The columns; a stream may not state them."""
    return list(rows.features or next(iter(rows), {}))


def find_column(
    rows: Rows, named: str | None, key: str, candidates: list[str], fitting: list[str] | None = None
) -> str:
    """The column that the recipe names, one of `fitting` or if None any, or else the only candidate."""
    available = column_names(rows)
    if named in (available if fitting is None else fitting):
        return named
    if named is None and len(candidates) == 1:
        return candidates[0]
    if named is None:
        problem = "several columns fit" if candidates else "no column fits"
    else:
        problem = f"the column {named!r} holds something else" if named in available else f"no column {named!r}"
    choices = candidates if named is None and candidates else available
    kinds = {name: f" ({getattr(kind, 'dtype', kind)})" for name, kind in (rows.features or {}).items()}
    raise ValueError(f"{key}: {problem}; name one of {', '.join(name + kinds.get(name, '') for name in choices)}")


def find_text_column(rows: Rows, named: str | None, key: str) -> str:
    """The column of texts that the recipe names, or else the likely one; errors as of `find_column`."""
    kinds = rows.features
    if kinds:
        texts = [name for name, kind in kinds.items() if isinstance(kind, Value) and kind.dtype.endswith("string")]
    else:  # a stream that does not state its columns
        texts = [name for name, value in next(iter(rows), {}).items() if isinstance(value, str)]
    likely = [name for name in TEXT_COLUMNS if name in texts][:1] or texts
    return find_column(rows, named, key, likely, texts if kinds else None)


def checked_texts(texts: Iterable[object], where: str, rows: Iterable[int]) -> Iterator[str]:
    """The texts, unchanged. Raises ValueError, with the number of its row, for one that is something else."""
    for row, text in zip(rows, texts):
        if not isinstance(text, str):
            got = EMPTY if text is None else f"{type(text).__name__} {text!r:.40}"
            raise ValueError(f"{where}, row {row + 1}: expected text, got {got}")
        yield text


def first_rows(rows: Rows, count: int | None) -> Rows:
    """The first `count` rows, all if it is None."""
    if count is None:
        return rows
    return rows.take(count if isinstance(rows, IterableDataset) else min(count, len(rows)))


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


def decoded_image(value: object, where: str) -> object:
    """The image of a row as its file holds it (`Image(decode=False)`), decoded alone, so that an error names its file.

    A value of another kind is returned as it is.

    Raises:
        ValueError: the file cannot be read as an image; names it after `where`.
    """
    if not isinstance(value, Mapping):
        return value
    file = f", {value['path']}" if value["path"] else ""
    kinds = (OSError, SyntaxError, ValueError, PILImage.DecompressionBombError)
    with naming(f"{where}{file}: no readable image", kinds):
        return datasets.Image().decode_example(value)


# What is trained on, and what is held out


def load_training(arguments: RecipeArguments) -> tuple[Rows, Rows | None]:
    """Training and evaluation rows; with `holdout` the latter are taken out of the former, always the same ones.

    They are drawn at random; for language modelling they are the end of the text, of a stream its first rows.
    `tuning_holdout` takes other rows, which are neither trained on nor reported.
    """
    train = load_rows(arguments, arguments.train_split)
    held_out = None
    for key in ("holdout", "tuning_holdout"):
        count = getattr(arguments, key)
        if not count:
            continue
        if isinstance(train, IterableDataset):
            train, held_out = train.skip(count), train.take(count)
        elif count >= len(train):
            raise ValueError(f"{key}: {count} rows of a training split of {len(train)}")
        elif arguments.task in LANGUAGE_MODELLING:
            # Not by train_test_split, which unshuffled has a new fingerprint each time.
            rest = len(train) - count
            train, held_out = train.select(range(rest)), train.select(range(rest, len(train)))
        else:
            parts = train.train_test_split(test_size=count, seed=0)
            train, held_out = parts["train"], parts["test"]
    if held_out is None and arguments.eval_split != "none":
        check_splits(arguments)
        held_out = load_rows(arguments, arguments.eval_split)
    train = first_rows(train, arguments.max_train_rows)
    return train, None if held_out is None else first_rows(held_out, arguments.max_eval_rows)


def load_rows(arguments: RecipeArguments, split: str) -> Rows:
    """A split of the settings' data."""
    names = ("dataset_config", "data_files", "streaming", "test_trees")
    return load_split(arguments.dataset, split, **{name: getattr(arguments, name) for name in names})


def check_splits(arguments: RecipeArguments) -> None:
    """Raises ValueError if the evaluation split would hold training rows: the same split, a part of it, its files.

    Two parts of a split, such as `train[:90%]` and `train[90%:]`, are taken as they are.
    """
    wanted, trained = arguments.eval_split, arguments.train_split
    files = split_files(arguments.data_files)
    unnamed = any(not Path(name).is_dir() for name in files.get(None, []))
    shared = wanted != trained and set(files.get(trained, [])) & set(files.get(wanted, []))
    whole = trained.split("[")[0]
    same = whole == wanted.split("[")[0] and (wanted == trained or whole in (wanted, trained))
    if unnamed or shared or same:
        raise ValueError(
            f"eval_split: {wanted!r} would be rows of train_split {trained!r}; expected other rows "
            f"(train=FILE {wanted}=FILE), or set holdout, or eval_split none"
        )
