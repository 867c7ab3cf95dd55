"""The whole of `leaner bench`: all workloads, a line for each cell, the CSV file, and one JSON document at the end."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from modeling_leaner.support.files import free_path, write_new
from modeling_leaner.support.quiet import quiet_libraries

from ..records import BenchCell, BenchComparison, BenchFile, BenchWork, Environment
from ..running.environment import environment, processor_flags
from .cells import csv_text
from .comparison import cell, comparisons, geometric_means, reference_of, with_share
from .contestants import OURS, REFERENCE_ATTENTION, Contestant, check_attentions, contestants
from .machine import device_title, matrix_product_flops
from .measure import measure
from .suite import Suite


def timm_version() -> str | None:
    """The version of timm; None where it is not installed."""
    try:
        return version("timm")
    except PackageNotFoundError:
        return None


def keep_fastest_rate(rates: dict[str, float], device: torch.device, dtype: str) -> None:
    """Measures the matrix products of a dtype, and keeps their FLOP/s where they are the fastest so far.

    So a slow minute of the machine does not count as what it can do. A dtype that has no kernel gets no rate.
    """
    with suppress(RuntimeError, AssertionError):  # no kernel; torch without CUDA asserts
        rates[dtype] = max(rates.get(dtype, 0.0), matrix_product_flops(device, dtype))


def work_of(one: BenchWork) -> str:
    """What was done, as it is printed."""
    size = f"{one.layers} layers of {one.heads} heads of {one.head_dim}, batch {one.batch} × {one.length} tokens"
    if one.new_tokens:
        size += f" + {one.new_tokens} new"
    return f"{one.phase} {one.shape} in {one.dtype} ({size})"


def line_of(row: BenchCell) -> str:
    """A cell as it is printed."""
    name = f"{work_of(row)}: {Contestant(row.library, row.attention, row.mode)}"
    if row.milliseconds is None:
        return f"{name}: cannot run: {row.note}"
    return f"{name}: {row.milliseconds:.1f} ms ({row.milliseconds_low:.1f}–{row.milliseconds_high:.1f})"


def line_of_comparison(one: BenchComparison) -> str:
    """A comparison as it is printed."""
    speedup = f"{one.speedup:.2f} ({one.speedup_low:.2f}–{one.speedup_high:.2f})"
    return f"{work_of(one)}: {speedup} × as fast, round by round, as {one.against}, which is {one.peer}"


def bench(suite: Suite, csv_file: Path | None = None) -> BenchFile:
    """Measures all, prints a line for each cell and the document as the last one; writes the CSV file.

    Raises:
        ValueError: no such shape, attention, length or device; the CSV file cannot be written; nothing ran at all.
    """
    if csv_file is not None:
        free_path("--csv", csv_file)
    if suite.device == "gpu" and not torch.cuda.is_available():
        raise ValueError("--device gpu: this machine has no CUDA device; expected cpu")
    check_attentions(suite.attentions)
    workloads = suite.workloads()
    quiet_libraries()
    if suite.threads is not None:
        torch.set_num_threads(suite.threads)
    software = environment()
    names = {
        "device": device_title(suite.torch_device),
        "torch": software["torch"],
        "transformers": software["transformers"],
    }
    rates: dict[str, float] = {}
    cells = []
    compared = []
    for workload in workloads:
        keep_fastest_rate(rates, suite.torch_device, workload.dtype)
        measured = measure(workload, contestants(workload.config, suite.attentions, suite.modes), suite.limits)
        reference = reference_of(measured, OURS)
        for one in measured:
            cells.append(cell(workload, one, reference, names))
            print(line_of(cells[-1]), flush=True)
        compared += comparisons(workload, measured)
    cells = [with_share(row, rates.get(row.dtype)) for row in cells]
    document = BenchFile(
        cells=cells,
        comparisons=compared,
        geometric_means=geometric_means(compared),
        matrix_product_flops=rates,
        processor_flags=processor_flags(),
        timm=timm_version(),
        environment=Environment(**software),
    )
    for one in compared:
        print(line_of_comparison(one))
    if not compared:
        print(f"no comparison: no peer ran; --attentions {REFERENCE_ATTENTION} is what all libraries have")
    for name, mean in document.geometric_means.items():
        print(f"geometric mean of these, {name}: {mean:.2f} × as fast")
    if csv_file is not None:
        write_new("--csv", csv_file, csv_text(document).encode())
    print(document.model_dump_json())
    if all(row.milliseconds is None for row in cells):
        raise ValueError(f"none of the {len(cells)} cells can run: {cells[0].note}")
    return document
