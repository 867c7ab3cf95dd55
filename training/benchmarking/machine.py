"""What the machine can do: its matrix products, its free memory."""

import torch
from torch.utils import benchmark

from ..running.environment import processor_flags


SIDES = {"cpu": 2048, "cuda": 8192}  # of the square matrices: large enough for the full rate
SECONDS = 1.0
BFLOAT16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")  # flags of processors that multiply in it


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
