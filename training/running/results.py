"""results.json of a finished run: its numbers, the machine, and what is needed to get them again."""

import platform
import re
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output

import psutil
import torch
from datasets import IterableDataset

import modeling_leaner
from modeling_leaner.conversion import convert
from modeling_leaner.files import finite_or_none
from modeling_leaner.inspection import head_condition_numbers

from ..records import LOCAL_FILES, RESULTS, RunResults, checked
from ..settings import RecipeArguments
from ..tasks.base import first_inputs
from .loading import PreparedRun, build_model, has_weights, recorded_settings
from .trainer import LeanTrainer, scores


CONDITION_ROWS = 8  # on which the conditioning is measured
PACKAGES = "torch transformers accelerate datasets tokenizers safetensors huggingface_hub numpy".split()
CPU_INFO = Path("/proc/cpuinfo")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "bf16")
PROCESS_STATUS = Path("/proc/self/status")


def results_of_run(trainer: LeanTrainer, run: PreparedRun, metrics: dict[str, float]) -> RunResults:
    """What results.json says of a finished run. Raises ValueError if a number is not finite."""
    arguments = run.arguments
    task = run.task
    state = trainer.state
    model = trainer.accelerator.unwrap_model(trainer.model)
    architecture = type(trainer.model).__name__
    seconds = [entry["seconds"] for entry in state.log_history if "loss" in entry or "train_runtime" in entry]
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    timed = trainer.clock.timed
    start = str(arguments.shape) if has_weights(str(arguments.shape)) else None
    memory, kind = peak_memory_bytes()  # before a second model is built for the conditioning
    can_be_counted = run.held_out is not None and not isinstance(trainer.train_dataset, IterableDataset)
    guess = task.chance(trainer.train_dataset, run.held_out.rows) if can_be_counted else None
    document = {
        "task": task.name,
        "dataset": arguments.dataset or LOCAL_FILES,
        "dataset_config": arguments.dataset_config,
        "split": run.held_out.split if run.held_out else arguments.eval_split,
        "rows": trainer.rows_evaluated if run.held_out else 0,
        "data_sha256": run.held_out and run.held_out.sha256,
        "shape": arguments.shape,
        "started_from": f"./{Path(start).resolve().name}" if start and Path(start).exists() else start,
        "architecture": architecture,
        "seed": arguments.seed,
        "learning_rate": arguments.learning_rate,
        "main_metric": task.metric,
        "higher_is_better": task.metric not in task.lower_is_better,
        "metrics": scores(metrics),
        "chance": guess and {"name": guess[0], "value": guess[1]},
        # A bare model may have a pooling layer or not:
        "parameters": model.config.count_parameters(architecture).total if task.head else model.num_parameters(),
        "training_data": run.training_data,
        "condition": condition(trainer, arguments) if can_be_counted else None,
        "recipe": recorded_settings(arguments),
        "train": {
            "steps": state.global_step,
            "epochs": state.epoch,
            "learning_rate": arguments.learning_rate,
            "seconds": max(seconds, default=0.0),
            "loss": losses[-1] if losses else None,
            "peak_memory_bytes": memory,
            "peak_memory_kind": kind,
            "processes": arguments.world_size,
            "items_per_second": timed["rows"] / timed["seconds"] if timed["rows"] else None,
            "input_pipeline_share": timed["data_seconds"] / timed["seconds"] if timed["rows"] else None,
            "process_seconds": time.time() - psutil.Process().create_time(),  # imports and all
        },
        "environment": environment(),
    }
    return checked(RunResults, document, Path(arguments.output_dir) / RESULTS)


def condition(trainer: LeanTrainer, arguments: RecipeArguments) -> dict[str, object] | None:
    """κ of each layer's concatenated head outputs on the first held-out rows, before and after the training.

    None if it cannot be measured: of sharded weights, if memory does not suffice for a second model, or if the weights
    that it started from have gone.
    """
    if trainer.is_fsdp_enabled:
        return None
    inputs = first_inputs(trainer.task, trainer.eval_dataset, CONDITION_ROWS)
    inputs = {name: value.to(arguments.device) for name, value in inputs.items()}
    try:
        built = build_model(arguments, trainer.task, quietly=True).to(arguments.device)
        start = convert(built) if arguments.implementation == "transformers" else built
        # Without the autocast that accelerate puts around forward: κ beyond 100 would be of bfloat16's rounding.
        end = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        measured = {"start": head_condition_numbers(start, **inputs), "end": head_condition_numbers(end, **inputs)}
    except (RuntimeError, ValueError, OSError):  # a finished run is not lost for a diagnosis
        return None
    return {name: [finite_or_none(value) for value in values] for name, values in measured.items()}


# The machine


def environment() -> dict[str, str | int | bool | None]:
    """Software and hardware of this process; `device` names what was used so far, so ask after the training."""
    library = " ".join(platform.libc_ver()).strip()
    used = [gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(gpu) > 0]
    used_mps = torch.backends.mps.is_available() and torch.mps.driver_allocated_memory() > 0
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}{library and f', {library}'}",  # without its release
        "processor": first_match(r"model name\s*:(.+)", CPU_INFO) or platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "device": ", ".join(map(torch.cuda.get_device_name, used)) or ("mps" if used_mps else "cpu"),
        "modeling_leaner": modeling_leaner.__version__,
        **{name: version(name) for name in PACKAGES},
        "git_commit": code_commit(),
    }


def first_match(pattern: str, path: Path) -> str | None:
    """What the pattern's group matches in the first line of the file that fits; None without such a line or file."""
    if not path.is_file():
        return None
    match = re.search(f"^{pattern}$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match and match[1].strip()


@cache
def code_commit(package: Path = Path(modeling_leaner.__file__).parent) -> str | None:
    """Commit of the clone that `package` is the package folder of; None for a copy elsewhere, as in site-packages.

    Ask before the work begins: files may change. "-dirty" follows if the work tree differs from it, but for
    model_cards/, which a sweep writes to.
    """
    clone = package.resolve().parent
    if not (clone / ".git").exists() or first_match("name = (modeling_leaner)", clone / "setup.cfg") is None:
        return None
    git = ("git", "--no-optional-locks", "-C", clone)
    try:
        commit = check_output((*git, "rev-parse", "HEAD"), stderr=DEVNULL, text=True).strip()
        changes = check_output((*git, "status", "--porcelain", "--", ".", ":!model_cards"), stderr=DEVNULL)
    except (OSError, CalledProcessError):  # no git
        return None
    return f"{commit}-dirty" if changes else commit


def processor_flags() -> list[str]:
    """The flags, of those in `FLAGS`, that the system reports; none if it reports no flags."""
    flags = first_match(r"(?:flags|Features)\s*:(.+)", CPU_INFO) or ""
    return [flag for flag in FLAGS if flag in flags.split()]


def peak_memory_bytes() -> tuple[int, str]:
    """The most memory that this process has held, in bytes, and what that measures."""
    on_gpu = max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())), default=0)
    if on_gpu > 0:
        return on_gpu, "allocated by tensors, on the fullest GPU"
    kilobytes = first_match(r"VmHWM:\s*(\d+) kB", PROCESS_STATUS)  # getrusage counts what the parent held, too
    if kilobytes is None:
        return psutil.Process().memory_info().rss, "resident memory of the process at the end"
    return int(kilobytes) * 1024, "resident memory of the process"
