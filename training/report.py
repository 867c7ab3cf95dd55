"""What a run says of itself: environment, memory, its figure; and files that are written whole or not at all."""

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
CPU_INFO, PROCESS_STATUS = Path("/proc/cpuinfo"), Path("/proc/self/status")


def found(pattern: str, path: Path) -> str | None:
    """What the pattern's group matches in a line of the file; None without match or file."""
    match = re.search(f"^{pattern}$", path.read_text(encoding="utf-8") if path.is_file() else "", re.MULTILINE)
    return match[1].strip() if match else None


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
    ours = (clone / ".git").exists() and found("name = (modeling_leaner)", clone / "setup.cfg")
    commit = git(clone, "rev-parse", "HEAD") if ours else None
    changes = git(clone, "status", "--porcelain", "--", ".", ":!model_cards")
    return commit and commit + ("" if changes == "" else "-dirty")


def used_gpus() -> list[int]:
    """Indices of the CUDA devices on which this process has allocated memory."""
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(index) > 0]


def machine(environment: dict[str, Any]) -> str:
    """Processor and threads in words, of an `environment` or a row of results.csv."""
    threads = environment["threads"]
    return f"{environment['processor']}, {threads} thread{'' if threads == 1 else 's'}"


def environment() -> dict[str, str | int | None]:
    """Software and hardware of this process; `device` names what was used so far, so ask after the training."""
    metal = torch.backends.mps.is_available() and torch.mps.driver_allocated_memory() > 0
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": found(r"model name\s*:(.+)", CPU_INFO) or platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "device": ", ".join(map(torch.cuda.get_device_name, used_gpus())) or ("mps" if metal else "cpu"),
        "modeling_leaner": modeling_leaner.__version__,
        **{name: version(name) for name in PACKAGES},
        "git_commit": git_commit(Path(modeling_leaner.__file__).parent),
    }


def peak_memory_bytes() -> tuple[int, str]:
    """The most memory that this process has held, in bytes, and what that measures; 0 where nothing can be asked."""
    if used := used_gpus():
        return max(map(torch.cuda.max_memory_allocated, used)), "allocated by tensors, on the fullest GPU"
    kind = "resident memory of the process"
    if peak := found(r"VmHWM:\s*(\d+) kB", PROCESS_STATUS):  # on Linux getrusage counts what the parent held, too
        return int(peak) * 1024, kind
    try:
        import resource
    except ImportError:  # Windows
        return 0, "not measured on this platform"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024), kind


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
    if not condition:
        raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")


def flat(path: Path, value: object, name: str = "") -> dict[str, Any]:
    """The values in nested dicts and lists by name, `train.loss`; ValueError, with file and name, for NaN and inf."""
    require(not isinstance(value, float) or math.isfinite(value), path, name, value, "a finite number")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    parts = [flat(path, each, f"{name}.{key}" if name else str(key)) for key, each in items]
    return {name: value} | {key: each for part in parts for key, each in part.items()}


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file whole or not at all; ValueError as of `flat`."""
    flat(path, document)
    write_bytes(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def plot(metrics_file: Path, output: Path, metric: str, guess: tuple[str, float] | None = None) -> None:
    """PNG of two panels against steps: the training and the held-out loss, and the held-out `metric`.

    Args:
        guess: name and value of what the metric should be better than; drawn with the metric.
    """
    metric = metric.removeprefix("eval_")
    rows = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    unit = "squared error" if metric in ("pearson", "spearman", "squared_error") else "nats"
    figure, content = Figure((10, 3.8), layout="constrained"), io.BytesIO()
    left, right = figure.subplots(1, 2)
    draw_curve(left, rows, "loss", "training", "tab:blue")
    draw_curve(left, rows, "eval_loss", "held-out", "tab:orange")
    draw_curve(right, rows, f"eval_{metric}", "held-out", "tab:orange")
    for axis, label in ((left, f"loss, {unit}"), (right, metric.replace("_", " "))):
        label = f"loss, {unit}" if label == "loss" else label
        axis.set(xlabel="training step (updates of the weights)", ylabel=label)
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
    if guess is not None:
        right.axhline(guess[1], color="grey", linestyle=":", label=f"best guess: {guess[0]}")
    widen(left, right, metric)
    for axis in (left, right):
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=9)
    figure.savefig(content, format="png", dpi=120)
    write_bytes(output, content.getvalue())


def draw_curve(axis: Axes, rows: list[dict[str, Any]], name: str, label: str, colour: str) -> None:
    """The values of `name` against steps; a single one with its number."""
    points = {row["step"]: row[name] for row in rows if row.get(name) is not None}  # the last, where repeated
    label = label if points else f"{label}: none"
    steps = sorted(points)
    size = 14 if len(points) == 1 else 6
    axis.plot(steps, [points[step] for step in steps], ".-", color=colour, label=label, markersize=size)
    if len(points) == 1:
        ((step, value),) = points.items()
        axis.annotate(f"{value:.3f}", (step, value), (-6, 8), textcoords="offset points", ha="right")


def widen(left: Axes, right: Axes, metric: str) -> None:
    """Axes on which a single point is no speck: steps from 0; a share from 0 to 1, a loss as far as the training's."""
    steps = max(axis.get_xlim()[1] for axis in (left, right))
    for axis in (left, right):
        axis.set_xlim(-0.02 * steps, 1.02 * steps)
    if metric == "loss":
        lows, highs = zip(left.get_ylim(), right.get_ylim())
        right.set_ylim(min(lows), max(highs))
    elif metric in SHARES:
        right.set_ylim(0, 1)
