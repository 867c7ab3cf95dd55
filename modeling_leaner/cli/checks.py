"""What is checked of a command line before anything slow is imported. Each raises ValueError or OSError."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..names import check_shape, require_source, shape_names
from ..terminal import did_you_mean, did_you_mean_path
from .command import dashed
from .lazy import slow_imports


BENCH_CHOICES = {
    "phases": ("training", "inference", "decoding"),
    "dtypes": ("float32", "bfloat16", "float16"),
    "modes": ("eager", "compile"),
}
BENCH_LISTS = (
    "shapes",
    "attentions",
    *BENCH_CHOICES,
    "length",
    "batch",
    "layers",
    "heads",
    "head_dim",
)  # options of leaner bench with several values
STUDY_NAMES = ("conditioning", "depth-width", "heads-optimization", "low-rank")  # of training/studies/registry.py


def parse_layers(flag: str, text: str) -> list[int]:
    """`"0,4,5"` → [0, 4, 5]. Raises ValueError, naming the flag, for anything else."""
    try:
        return [int(layer) for layer in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag}: expected layers between commas, as 0,4,5, got {text!r}") from None


def check_grid_file(path: Path | None) -> Path | None:
    """The path itself, where a grid file is; else ValueError, with the nearest name of a file or key."""
    if path is None:
        return None
    if not path.exists():
        raise ValueError(f"{path}: no such grid file{did_you_mean_path(path)}")
    if path.is_dir():
        raise ValueError(f"{path}: expected a grid file, got a folder")
    from ..training.experiments.grid import load_grid  # takes a tenth of a second

    load_grid(path)
    return path


def check_folders(folders: list[Path] | None) -> list[Path] | None:
    """The folders themselves. Raises ValueError for the first that is none."""
    for folder in folders or []:
        if folder.is_file():
            raise ValueError(f"{folder}: a file, expected a folder")
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder{did_you_mean_path(folder)}")
    return folders


def check_study(name: str) -> str:
    """The name itself. Raises ValueError, with the nearest one, for a study that there is not."""
    if name not in STUDY_NAMES:
        raise ValueError(f"{name}: expected one of {', '.join(STUDY_NAMES)}{did_you_mean(name, STUDY_NAMES)}")
    return name


def check_new(output: Path) -> None:
    """Raises FileExistsError unless a new folder can have the name."""
    if output.exists() or output.is_symlink():
        raise FileExistsError(f"{output} exists already")


def check_source(source: str) -> None:
    """Raises ValueError for what is neither a file or folder nor a model of the Hub."""
    require_source(source)


def check_trained(model: str) -> None:
    """Raises ValueError for a shape, which has no weights, and for a model that is nowhere."""
    expected = "expected a run folder, a published folder or a Hub id"
    if model in shape_names():
        raise ValueError(f"{model}: a named shape, which has no weights; {expected}")
    if Path(model).is_file():
        raise ValueError(f"{model}: a file; {expected}")
    check_source(model)


def check_named(model: str | None) -> str | None:
    """The name itself. Raises ValueError for what is no named shape, file, folder or model of the Hub."""
    if model is not None and model not in shape_names():
        check_shape(model)
        require_source(model, shape_names())
    return model


def base_model_of(name: str | None, parent: str) -> str:
    """The Hub id that a card names as the parent. Raises ValueError if none is given and the parent is a folder."""
    with slow_imports():
        from ..hub import check_repository
    if name is None and not Path(parent).exists():
        name = parent
    if name is None:
        raise ValueError(f"--base-model: expected the Hub id of {parent}, for the card")
    check_repository(name)
    return name


def check_bench(options: Mapping[str, Any]) -> None:
    """Raises ValueError that names the option of `leaner bench`, or the shape, and what was expected."""
    for name, choices in BENCH_CHOICES.items():
        if options[name] is None:
            continue
        for value in options[name]:
            if value not in choices:
                hint = did_you_mean(value, choices)
                raise ValueError(f"--{name} {value}: expected {', '.join(choices)}{hint}")
    for name in BENCH_LISTS:
        values = options[name] or []
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"--{dashed(name)} {value}: given twice")
    for shape in options["shapes"]:
        check_shape(shape)
