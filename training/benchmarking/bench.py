"""The whole of `leaner bench`: all workloads, a line for each cell, the CSV file, and one JSON document at the end."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from modeling_leaner.support.files import free_path, write_new
from modeling_leaner.support.quiet import quiet_libraries

from ..records import BenchCell, BenchFile, Environment
from ..running.environment import environment, processor_flags
from .cells import csv_text
from .comparison import cell, comparisons, geometric_means, reference_of
from .contestants import OURS, contestants
from .machine import device_title, matrix_product_flops
from .measure import measure
from .suite import Suite


def timm_version() -> str | None:
    """The version of timm; None where it is not installed."""
    try:
        return version("timm")
    except PackageNotFoundError:
        return None


def matrix_product_rates(suite: Suite) -> dict[str, float]:
    """FLOP/s by dtype; without those that the device has no kernel for."""
    rates = {}
    for dtype in suite.dtypes:
        try:
            rates[dtype] = matrix_product_flops(suite.torch_device, dtype)
        except (RuntimeError, AssertionError):  # no kernel; torch without CUDA asserts
            continue
    return rates


def line_of(row: BenchCell) -> str:
    """A cell as it is printed: layers × heads × head size, items × tokens + new tokens."""
    size = f"{row.layers} × {row.heads} × {row.head_dim}, {row.batch} × {row.length}"
    if row.new_tokens:
        size += f" + {row.new_tokens}"
    name = f"{row.phase} {row.shape} ({size}) {row.dtype} {row.library} {row.attention} {row.mode}"
    if row.milliseconds is None:
        return f"{name}: cannot run: {row.note}"
    relative = ""
    if row.relative_time is not None:
        relative = f" × {row.relative_time:.2f} ({row.relative_time_low:.2f}–{row.relative_time_high:.2f})"
    return f"{name}: {row.milliseconds:.1f} ms{relative}"


def bench(suite: Suite, csv_file: Path | None = None) -> BenchFile:
    """Measures all, prints a line for each cell and the document as the last one; writes the CSV file.

    Raises:
        ValueError: no such shape, length or device, or the CSV file cannot be written; or, at the end, nothing ran.
    """
    if csv_file is not None:
        free_path("--csv", csv_file)
    if suite.device == "gpu" and not torch.cuda.is_available():
        raise ValueError("--device gpu: this machine has no CUDA device; expected cpu")
    workloads = suite.workloads()
    quiet_libraries()
    if suite.threads is not None:
        torch.set_num_threads(suite.threads)
    rates = matrix_product_rates(suite)
    software = environment()
    names = {
        "device": device_title(suite.torch_device),
        "torch": software["torch"],
        "transformers": software["transformers"],
    }
    cells = []
    compared = []
    for workload in workloads:
        measured = measure(workload, contestants(workload.config, suite.attentions, suite.modes), suite.limits)
        reference = reference_of(measured, OURS)
        for one in measured:
            cells.append(cell(workload, one, reference, rates.get(workload.dtype), names))
            print(line_of(cells[-1]), flush=True)
        compared += comparisons(workload, measured)
    document = BenchFile(
        cells=cells,
        comparisons=compared,
        geometric_means=geometric_means(compared),
        matrix_product_flops=rates,
        processor_flags=processor_flags(),
        timm=timm_version(),
        environment=Environment(**environment()),
    )
    for name, mean in document.geometric_means.items():
        print(f"{name}: {mean:.2f}")
    if csv_file is not None:
        write_new("--csv", csv_file, csv_text(document).encode())
    print(document.model_dump_json())
    if all(row.milliseconds is None for row in cells):
        raise ValueError(f"none of the {len(cells)} cells can run: {cells[0].note}")
    return document
