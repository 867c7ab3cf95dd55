"""Where rows come from: a Hub dataset, local files or a built-in set; every failure names file, split and column."""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import datasets
from datasets import Dataset, IterableDataset, Value, VerificationMode, load_dataset
from datasets.exceptions import DatasetGenerationError
from PIL import Image as PILImage

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
READ_OPTIONS = {".tsv": {"delimiter": "\t"}, ".txt": {"sample_by": "paragraph"}}


# A split


def is_dataset(name: str) -> bool:
    """Whether this names a built-in set, or may name a Hub dataset, since no such file is here."""
    if name in BUILT_IN:
        return True
    is_file = is_there(name) or Path(name).suffix.lower() in FORMATS
    return not is_file and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None


def whole_split(split: str) -> str:
    """The split that a slice such as train[:90%] is taken from."""
    return split.split("[")[0]


def describe(dataset: str | None, split: str, data_files: list[str]) -> str:
    """The split as messages name it."""
    files = split_files(data_files)
    return f"{', '.join(files.get(whole_split(split), files.get(None, []))) if files else dataset} ({split})"


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
    name = describe(dataset, split, data_files or [])
    if dataset in BUILT_IN and not data_files:
        splits = BUILT_IN[dataset](**({} if test_trees is None else {"test": test_trees}))  # of ListOps
        if split not in splits:
            raise ValueError(f"{dataset}: no split {split!r}, expected one of {', '.join(splits)}")
        rows = splits[split]
    else:
        if dataset is None and not data_files:
            raise ValueError("dataset: missing; give a Hub id, a built-in set, or data_files")
        builder, options = _local(data_files, split) if data_files else (dataset, {"name": dataset_config})
        try:
            rows = load_dataset(builder, split=split, streaming=streaming, **options)
        except (DatasetGenerationError, OSError, ValueError) as error:
            place, problem = name, " ".join(str(error.__cause__ or error).split())[:600]
            if not data_files:
                place = f"dataset {dataset}"
                hint = did_you_mean(dataset, BUILT_IN) or "; give the path of a local copy instead"
                if isinstance(error, ConnectionError):
                    problem = f"the Hub does not answer, and its cache has no copy{hint}"
                elif isinstance(error, FileNotFoundError):
                    problem = f"not found on the Hub{hint}"
            if "No columns to parse" in problem or "corresponds to no data" in problem:
                problem = "no rows in it"
            raise ValueError(f"{place}: {problem}") from error
    if isinstance(rows, Dataset) and len(rows) == 0:
        raise ValueError(f"{name}: the split is empty")
    return rows


def _local(data_files: list[str], split: str) -> tuple[str, dict[str, object]]:
    """How `load_dataset` reads a split of local files, or of a folder: by which builder, with which options."""
    whole = whole_split(split)
    files = split_files(data_files)
    chosen = files.get(whole, files.get(None))
    if chosen is None:
        raise ValueError(f"nothing for the split {whole!r}, expected {whole}=FILE or a folder as data")
    suffix = Path(chosen[0]).suffix.lower()
    is_folder = len(chosen) == 1 and Path(chosen[0]).is_dir()
    for file in chosen:
        if not is_there(file):
            raise ValueError(f"{file}: no such file or folder")
        if not (is_folder or suffix in FORMATS):
            raise ValueError(f"{file}: expected a folder, or files of one of {', '.join(FORMATS)}")
    if not is_folder:
        return FORMATS[suffix], {"data_files": {whole: chosen}, **READ_OPTIONS.get(suffix, {})}
    options = {"verification_mode": VerificationMode.NO_CHECKS}
    if whole in files:  # the folder is one split
        return "imagefolder", {"data_files": {whole: f"{chosen[0]}/**"}, **options}
    return chosen[0], options


# Its rows and columns


def text_columns(rows: Rows) -> list[str]:
    """The columns that hold text alone; of a stream that does not state its columns, by its first row."""
    if rows.features is None:
        return [name for name, value in next(iter(rows), {}).items() if isinstance(value, str)]
    return [name for name, kind in rows.features.items() if isinstance(kind, Value) and kind.dtype.endswith("string")]


def column_names(rows: Rows) -> list[str]:
    """The columns; a stream may not state them."""
    return list(rows.features or next(iter(rows), {}))


def require_columns(rows: Rows, names: list[str], source: str) -> None:
    """Raises ValueError for the first of `names` that the rows lack; names the columns that there are."""
    available = column_names(rows)
    for name in names:
        if name not in available:
            raise ValueError(f"{source}: no column {name!r} in the data, which has {', '.join(available)}")


def find_column(
    rows: Rows, named: str | None, key: str, candidates: list[str], fitting: list[str] | None = None
) -> str:
    """The column that the recipe names, one of `fitting` or if None any, or else the only candidate."""
    available = column_names(rows)
    if named in (available if fitting is None else fitting):
        return named
    if named is None and len(candidates) == 1:
        return candidates[0]
    if named is None and candidates:
        raise ValueError(f"{key}: several columns fit; name one of {', '.join(candidates)}")
    if named is None:
        problem = "no column fits"
    else:
        problem = f"the column {named!r} holds something else" if named in available else f"no column {named!r}"
    kinds = {name: f" ({getattr(kind, 'dtype', kind)})" for name, kind in (rows.features or {}).items()}
    raise ValueError(f"{key}: {problem}; name one of {', '.join(name + kinds.get(name, '') for name in available)}")


def find_text_column(rows: Rows, named: str | None, key: str) -> str:
    """The column of texts that the recipe names, or else the likely one; errors as of `find_column`."""
    texts = text_columns(rows)
    likely = [name for name in TEXT_COLUMNS if name in texts][:1] or texts
    return find_column(rows, named, key, likely, texts if rows.features else None)


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


def with_encoded_images(rows: Rows, column: str) -> Rows:
    """The rows with images as their files hold them, for `decoded_image`; as they are if the column has none."""
    if rows.features is None or not isinstance(rows.features.get(column), datasets.Image):
        return rows
    return rows.cast_column(column, datasets.Image(decode=False))


def decoded_image(value: object, where: str) -> object:
    """The image of a row of `with_encoded_images`, decoded alone, so that an error names its file.

    A value of another kind is returned as it is.

    Raises:
        ValueError: the file cannot be read as an image; names it after `where`.
    """
    if not isinstance(value, Mapping):
        return value
    try:
        return datasets.Image().decode_example(value)
    except (OSError, SyntaxError, ValueError, PILImage.DecompressionBombError) as error:
        file = f", {value['path']}" if value["path"] else ""
        raise ValueError(f"{where}{file}: no readable image: {error}") from error


# What is trained on, and what is held out


def load_training(arguments: RecipeArguments) -> tuple[Rows, Rows | None]:
    """Training and evaluation rows; with `holdout` the latter are taken out of the former, always the same ones.

    They are drawn at random; for language modelling they are the end of the text, of a stream its first rows.
    `tuning_holdout` takes other rows, which are neither trained on nor reported.
    """
    train = _load(arguments, "train_split")
    held_out = None
    for key in ("holdout", "tuning_holdout"):
        if getattr(arguments, key):
            count = getattr(arguments, key)
            if isinstance(train, IterableDataset):
                train, held_out = train.skip(count), train.take(count)
                continue
            rest = len(train) - count
            if rest <= 0:
                raise ValueError(f"{key}: {count} rows of a training split of {len(train)}")
            if arguments.task in LANGUAGE_MODELLING:
                # Not by train_test_split, which unshuffled has a new fingerprint each time.
                train, held_out = train.select(range(rest)), train.select(range(rest, len(train)))
            else:
                parts = train.train_test_split(test_size=count, seed=0)
                train, held_out = parts["train"], parts["test"]
    train = first_rows(train, arguments.max_train_rows)
    if held_out is not None:
        return train, first_rows(held_out, arguments.max_eval_rows)
    if arguments.eval_split == "none":
        return train, None
    check_splits(arguments)
    return train, load_held_out(arguments)


def load_held_out(arguments: RecipeArguments) -> Rows:
    """The rows to evaluate on."""
    return first_rows(_load(arguments, "eval_split"), arguments.max_eval_rows)


def _load(arguments: RecipeArguments, key: str) -> Rows:
    """The split that a setting names, train_split or eval_split."""
    names = ("dataset_config", "data_files", "streaming", "test_trees")
    options = {name: getattr(arguments, name) for name in names}
    return load_split(arguments.dataset, getattr(arguments, key), **options)


def check_splits(arguments: RecipeArguments) -> None:
    """Raises ValueError if the evaluation split would hold training rows: the same split, a part of it, its files.

    Two parts of a split, such as `train[:90%]` and `train[90%:]`, are taken as they are.
    """
    wanted, trained = arguments.eval_split, arguments.train_split
    files = split_files(arguments.data_files)
    unnamed = any(not Path(name).is_dir() for name in files.get(None, []))
    shared = wanted != trained and set(files.get(trained, [])) & set(files.get(wanted, []))
    whole = whole_split(trained)
    same = whole == whole_split(wanted) and (wanted == trained or whole in (wanted, trained))
    if unnamed or shared or same:
        raise ValueError(
            f"eval_split: {wanted!r} would be rows of train_split {trained!r}; expected other rows "
            f"(train=FILE {wanted}=FILE), or set holdout, or eval_split none"
        )


def sentences(text: str) -> list[str]:
    """The sentences of a text that have 20 to 220 characters."""
    parts = [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text)]
    return [part for part in parts if 20 <= len(part) <= 220]
