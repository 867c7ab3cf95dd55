"""What a run reports of itself: environment, memory, its figure; and files that are written whole or not at all."""

import hashlib
import io
import json
import math
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import modeling_leaner


PACKAGES = "torch transformers accelerate datasets tokenizers safetensors huggingface_hub numpy".split()
SHARES = ("accuracy", "f1", "exact_match")  # metrics from 0 to 1
SQUARED_ERRORS = ("pearson", "spearman", "squared_error")  # metrics of tasks whose loss is the squared error
CPU_INFO = Path("/proc/cpuinfo")
PROCESS_STATUS = Path("/proc/self/status")


def first_match(pattern: str, path: Path) -> str | None:
    """What the pattern's group matches in the first line of the file that fits; None without such a line or file."""
    if not path.is_file():
        return None
    match = re.search(f"^{pattern}$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        return None
    return match[1].strip()


def git(folder: Path, *words: str) -> str | None:
    """What a git command prints; None where git is missing or fails."""
    try:
        return check_output(("git", "--no-optional-locks", "-C", folder, *words), stderr=DEVNULL, text=True).strip()
    except (OSError, CalledProcessError):
        return None


def git_commit(package: Path) -> str | None:
    """Commit of the clone that `package` is the package folder of; None for a copy elsewhere, as in site-packages.

    "-dirty" follows where the work tree differs from it, by a change or by a new file that git does not ignore, but
    for model_cards/, which a sweep writes to.
    """
    clone = package.resolve().parent
    if not (clone / ".git").exists() or first_match("name = (modeling_leaner)", clone / "setup.cfg") is None:
        return None
    commit = git(clone, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = git(clone, "status", "--porcelain", "--", ".", ":!model_cards")
    if changes == "":
        return commit
    return f"{commit}-dirty"


def used_gpus() -> list[int]:
    """Indices of the CUDA devices on which this process has allocated memory."""
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(index) > 0]


def machine(environment: dict[str, Any]) -> str:
    """Processor and threads in words, of an `environment` or a row of results.csv."""
    threads = environment["threads"]
    unit = "threads"
    if threads == 1:
        unit = "thread"
    return f"{environment['processor']}, {threads} {unit}"


def processor_name() -> str:
    """The processor as the system names it."""
    return first_match(r"model name\s*:(.+)", CPU_INFO) or platform.processor() or platform.machine()


def device_name() -> str:
    """The GPUs that this process has used; mps or cpu where there are none."""
    gpus = used_gpus()
    if gpus:
        return ", ".join(map(torch.cuda.get_device_name, gpus))
    if torch.backends.mps.is_available() and torch.mps.driver_allocated_memory() > 0:
        return "mps"
    return "cpu"


def environment() -> dict[str, str | int | None]:
    """Software and hardware of this process; `device` names what was used so far, so ask after the training."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "device": device_name(),
        "modeling_leaner": modeling_leaner.__version__,
        **{name: version(name) for name in PACKAGES},
        "git_commit": git_commit(Path(modeling_leaner.__file__).parent),
    }


def peak_memory_bytes() -> tuple[int, str]:
    """The most memory that this process has held, in bytes, and what that measures; 0 where it cannot be measured."""
    gpus = used_gpus()
    if gpus:
        return max(map(torch.cuda.max_memory_allocated, gpus)), "allocated by tensors, on the fullest GPU"
    kind = "resident memory of the process"
    kilobytes = first_match(r"VmHWM:\s*(\d+) kB", PROCESS_STATUS)
    if kilobytes is not None:  # on Linux getrusage counts what the parent held, too
        return int(kilobytes) * 1024, kind
    try:
        import resource
    except ImportError:  # Windows
        return 0, "not measured on this platform"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if platform.system() != "Darwin":  # which counts bytes, others kilobytes
        peak *= 1024
    return peak, kind


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def require(condition: bool, path: Path, name: str, value: object, expected: str) -> None:
    """Raises ValueError, with the file and what was expected of the value, unless the condition holds."""
    if not condition:
        raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")


def flat(path: Path, value: object, name: str = "") -> dict[str, Any]:
    """The values in nested dicts and lists by name, such as `train.loss`.

    Raises:
        ValueError: a number is NaN or infinite; names it and the file.
    """
    require(not isinstance(value, float) or math.isfinite(value), path, name, value, "a finite number")
    match value:
        case dict():
            items = value.items()
        case list() | tuple():
            items = enumerate(value)
        case _:
            return {name: value}
    values = {name: value}
    for key, item in items:
        place = str(key)
        if name:
            place = f"{name}.{key}"
        values |= flat(path, item, place)
    return values


def check_fields(file: Path, values: dict[str, Any], fields: dict[type, str], prefix: str = "") -> None:
    """Raises ValueError for the first of `fields` that is missing or of another type; `values` are `flat`."""
    for kind, names in fields.items():
        allowed = [kind]
        if kind is float:
            allowed.append(int)
        for name in names.split():
            place = prefix + name.rstrip("?")
            value = values.get(place)
            good = type(value) in allowed or (value is None and "?" in name)
            require(good, file, place, value, kind.__name__)
            if kind is int or name.rpartition(".")[2].startswith(("seconds", "epochs", "hours")):
                require(value is None or value >= 0, file, place, value, "a number from 0")


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file whole or not at all; raises ValueError as `flat` does."""
    flat(path, document)
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def plot(metrics_file: Path, output: Path, metric: str, guess: tuple[str, float] | None = None) -> None:
    """PNG of two panels against steps: the training and the held-out loss, and the held-out `metric`.

    Args:
        guess: name and value of a guess that the metric should be better than; drawn with the metric.
    """
    metric = metric.removeprefix("eval_")
    rows = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    loss_label = "loss, nats"
    if metric in SQUARED_ERRORS:
        loss_label = "loss, squared error"
    metric_label = metric.replace("_", " ")
    if metric == "loss":
        metric_label = loss_label
    figure = Figure((10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_curve(left, rows, "loss", "training", "tab:blue")
    draw_curve(left, rows, "eval_loss", "held-out", "tab:orange")
    draw_curve(right, rows, f"eval_{metric}", "held-out", "tab:orange")
    for axis, label in ((left, loss_label), (right, metric_label)):
        axis.set(xlabel="training step (updates of the weights)", ylabel=label)
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
    if guess is not None:
        right.axhline(guess[1], color="grey", linestyle=":", label=f"best guess: {guess[0]}")
    widen(left, right, metric)
    for axis in (left, right):
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_bytes(output, content.getvalue())


def draw_curve(axis: Axes, rows: list[dict[str, Any]], name: str, label: str, colour: str) -> None:
    """The values of `name` against steps; a single one with its number."""
    points = {row["step"]: row[name] for row in rows if row.get(name) is not None}  # the last, where repeated
    if not points:
        label += ": none"
    size = 6
    if len(points) == 1:
        size = 14
    steps = sorted(points)
    axis.plot(steps, [points[step] for step in steps], ".-", color=colour, label=label, markersize=size)
    if len(points) == 1:
        ((step, value),) = points.items()
        axis.annotate(f"{value:.3f}", (step, value), (-6, 8), textcoords="offset points", ha="right")


def widen(left: Axes, right: Axes, metric: str) -> None:
    """Sets limits between which a single point is well seen: steps from 0, a share from 0 to 1, both losses alike."""
    steps = max(axis.get_xlim()[1] for axis in (left, right))
    for axis in (left, right):
        axis.set_xlim(-0.02 * steps, 1.02 * steps)
    if metric == "loss":
        lows, highs = zip(left.get_ylim(), right.get_ylim())
        right.set_ylim(min(lows), max(highs))
    elif metric in SHARES:
        right.set_ylim(0, 1)
