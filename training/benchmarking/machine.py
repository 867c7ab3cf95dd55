"""What the machine can do: its matrix products, its free memory."""

from pathlib import Path

import torch
from torch.utils import benchmark

from ..running.environment import first_match, processor_flags


MEMORY_INFO = Path("/proc/meminfo")
SIDES = {"cpu": 2048, "cuda": 8192}  # of the square matrices: large enough for the full rate
SECONDS = 1.0
BFLOAT16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")  # flags of processors that multiply in it


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    kilobytes = first_match(r"MemAvailable:\s*(\d+) kB", MEMORY_INFO)
    if kilobytes is None:
        return None
    return int(kilobytes) * 1024


def usual_dtypes(device: str) -> list[str]:
    """float32, and bfloat16 on a GPU and on a processor with units for it; without them it is far slower."""
    if device == "gpu" or not set(BFLOAT16_UNITS).isdisjoint(processor_flags()):
        return ["float32", "bfloat16"]
    return ["float32"]


def device_title(device: torch.device) -> str:
    """cpu, or the GPU's name."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return device.type


def matrix_product_flops(device: torch.device, dtype: str, side: int | None = None) -> float:
    """FLOP/s of the fastest of some products of square matrices; raises RuntimeError where the dtype has no kernel."""
    if side is None:
        side = SIDES[device.type]
    left = torch.randn(side, side).to(device, getattr(torch, dtype))
    right = torch.randn(side, side).to(device, getattr(torch, dtype))
    timer = benchmark.Timer(
        "left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads()
    )
    return 2 * side**3 / min(timer.blocked_autorange(min_run_time=SECONDS).times)
