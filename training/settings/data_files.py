"""The files of `data_files`: of which split each is, and whether it is there."""

from collections.abc import Iterable
from pathlib import Path

from modeling_leaner.terminal import did_you_mean_path


def split_files(data_files: list[str]) -> dict[str | None, list[str]]:
    """`["train=a.parquet", "train=b.parquet", "folder"]` → files of each split; None for what names no split.

    Raises ValueError for a split without a file.
    """
    files: dict[str | None, list[str]] = {}
    for entry in data_files:
        split, equals, path = entry.partition("=")
        if equals and not Path(entry).exists() and split.isidentifier():
            if not path:
                raise ValueError(f"data_files: {entry}: expected a file or a folder after =")
            files.setdefault(split, []).append(path)
        else:
            files.setdefault(None, []).append(entry)
    return files


def check_data_files(files: Iterable[str]) -> None:
    """Raises ValueError for a path that is not there, with the nearest; patterns and addresses are not looked up."""
    for name in files:
        if not Path(name).exists() and not any(character in name for character in "*?[") and "://" not in name:
            raise ValueError(f"data_files: {name}: no such file or folder{did_you_mean_path(Path(name))}")
