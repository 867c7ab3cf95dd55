"""The software and hardware of this process, its commit and its memory, as results.json states them."""

import os
import platform
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output

import torch

import modeling_leaner
from modeling_leaner import process


PACKAGES = "torch transformers accelerate datasets tokenizers safetensors huggingface_hub numpy".split()
CPU_INFO = Path("/proc/cpuinfo")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "bf16")
PROCESS_STATUS = Path("/proc/self/status")


def first_match(pattern: str, path: Path) -> str | None:
    """What the pattern's group matches in the first line of the file that fits; None without such a line or file."""
    if not path.is_file():
        return None
    match = re.search(f"^{pattern}$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match and match[1].strip()


def git(folder: Path, *arguments: str) -> str | None:
    """What a git command prints; None where git is missing or fails."""
    try:
        return check_output(
            ("git", "--no-optional-locks", "-C", folder, *arguments), stderr=DEVNULL, text=True
        ).strip()
    except (OSError, CalledProcessError):
        return None


def is_clone(folder: Path) -> bool:
    """Whether a folder is a clone of this project, or its source archive."""
    return first_match("name = (modeling_leaner)", folder / "setup.cfg") is not None


def git_commit(package: Path) -> str | None:
    """Commit of the clone that `package` is the package folder of; None for a copy elsewhere, as in site-packages.

    "-dirty" follows where the work tree differs from it, by a change or by a new file that git does not ignore, but
    for model_cards/, which a sweep writes to.
    """
    clone = package.resolve().parent
    if not (clone / ".git").exists() or not is_clone(clone):
        return None
    commit = git(clone, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = git(clone, "status", "--porcelain", "--", ".", ":!model_cards")
    return commit if changes == "" else f"{commit}-dirty"


@cache
def code_commit() -> str | None:
    """The commit of the code that this process runs, as it was when first asked: ask before the work begins."""
    return git_commit(Path(modeling_leaner.__file__).parent)


def used_gpus() -> list[int]:
    """Indices of the CUDA devices on which this process has allocated memory."""
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(index) > 0]


def machine_name(processor: str | None, threads: int | None) -> str:
    """Processor and threads in words."""
    return f"{processor}, {threads} thread{'' if threads == 1 else 's'}"


def computed_on(device: str | None, processor: str | None, threads: int | None) -> str:
    """The device that computed, in words: the GPU, or the processor and its threads."""
    return machine_name(processor, threads) if device in (None, "cpu") else device


def processor_flags() -> list[str]:
    """The flags, of those in `FLAGS`, that the system reports; none where it reports no flags."""
    flags = first_match(r"(?:flags|Features)\s*:(.+)", CPU_INFO) or ""
    return [flag for flag in FLAGS if flag in flags.split()]


def device_name() -> str:
    """The GPUs that this process has used; mps or cpu where there are none."""
    gpus = used_gpus()
    if gpus:
        return ", ".join(map(torch.cuda.get_device_name, gpus))
    if torch.backends.mps.is_available() and torch.mps.driver_allocated_memory() > 0:
        return "mps"
    return "cpu"


def environment() -> dict[str, str | int | bool | None]:
    """Software and hardware of this process; `device` names what was used so far, so ask after the training."""
    library = " ".join(platform.libc_ver()).strip()
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}{library and f', {library}'}",  # without its release
        "processor": first_match(r"model name\s*:(.+)", CPU_INFO) or platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "device": device_name(),
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "keeps_freed_memory": process.keeps_freed_memory,
        "modeling_leaner": modeling_leaner.__version__,
        **{name: version(name) for name in PACKAGES},
        "git_commit": code_commit(),
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
