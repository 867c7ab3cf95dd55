"""Cells and comparisons of what was measured at one workload."""

from collections.abc import Iterable
from math import exp, log
from statistics import fmean

import numpy as np

from ..records import BenchCell, BenchComparison
from .contestants import OUR_ATTENTION, OURS, REFERENCE_ATTENTION
from .measure import Measured
from .workload import Workload


QUARTILES = (25, 50, 75)


def quartile_fields(values: np.ndarray | None, prefix: str) -> dict[str, float | None]:
    """Median and quartiles under the names of a cell; all None where nothing was measured."""
    names = (f"{prefix}_low", prefix, f"{prefix}_high")
    if values is None:
        return dict.fromkeys(names)
    return dict(zip(names, np.percentile(values, QUARTILES).tolist()))


def reference_of(measured: Iterable[Measured], library: str) -> Measured | None:
    """The measurement of a library's `is_reference`; None where it was not measured."""
    for result in measured:
        if result.contestant.library == library and result.contestant.is_reference and result.seconds is not None:
            return result
    return None


def cell(workload: Workload, one: Measured, reference: Measured | None, names: dict[str, str]) -> BenchCell:
    """A contestant's cell, without its share of the matrix products' rate.

    `reference` is this family with SDPA, `names` those of the device and of the libraries' versions.
    """
    milliseconds = None
    relative_time = None
    rounds = 0
    items_per_second = None
    flops = None
    if one.seconds is not None:
        rounds = len(one.seconds)
        milliseconds = 1e3 * one.seconds
        median = float(np.median(one.seconds))
        items_per_second = workload.items / median
        flops = workload.flops(one.contestant.scores_masked_tokens_only)
        if reference is not None:
            relative_time = one.seconds / reference.seconds
    return BenchCell(
        **workload.names,
        library=one.contestant.library,
        attention=one.contestant.attention,
        mode=one.contestant.mode,
        precision=workload.precision,
        **names,
        rounds=rounds,
        **quartile_fields(milliseconds, "milliseconds"),
        **quartile_fields(relative_time, "relative_time"),
        items_per_second=items_per_second,
        peak_memory_bytes=one.peak_memory,
        parameters=one.parameters,
        flops=flops,
        matrix_product_share=None,
        note=one.note,
    )


def with_share(row: BenchCell, rate: float | None) -> BenchCell:
    """The cell with its share of `rate`, FLOP/s of matrix products; as it is where either is missing."""
    if rate is None or row.milliseconds is None:
        return row
    return row.model_copy(update={"matrix_product_share": row.flops / (row.milliseconds / 1e3) / rate})


def fastest(measured: Iterable[Measured]) -> Measured | None:
    """The one with the least median; None of none."""
    return min(measured, key=lambda result: np.median(result.seconds), default=None)


def pairs(measured: Iterable[Measured]) -> dict[str, tuple[Measured | None, Measured | None]]:
    """This family and the peer that it is compared with, by what the comparison is called.

    The family has the attention that picks its kernel, or else SDPA, even where another of its attentions was faster.
    """
    ran = [result for result in measured if result.seconds is not None]
    of_family = [result for result in ran if result.contestant.library == OURS]
    attention = REFERENCE_ATTENTION
    if any(result.contestant.attention == OUR_ATTENTION for result in of_family):
        attention = OUR_ATTENTION
    ours = [result for result in of_family if result.contestant.attention == attention]
    peers = [result for result in ran if result.contestant.library != OURS]

    def of_mode(group: list[Measured], mode: str) -> list[Measured]:
        return [result for result in group if result.contestant.mode == mode]

    uncompiled = fastest(of_mode(ours, "eager"))
    found = {
        "best uncompiled peer": (uncompiled, fastest(of_mode(peers, "eager"))),
        "best compiled peer": (fastest(of_mode(ours, "compile")), fastest(of_mode(peers, "compile"))),
    }
    if any(one is None for pair in found.values() for one in pair):  # one mode alone
        found = {}
    return {
        **found,
        "best peer": (fastest(ours), fastest(peers)),
        "transformers' default": (uncompiled, reference_of(peers, "transformers")),
    }


def comparisons(workload: Workload, measured: list[Measured]) -> list[BenchComparison]:
    """The comparisons of which both sides ran."""
    compared = []
    for against, (ours, peer) in pairs(measured).items():
        if ours is None or peer is None:
            continue
        compared.append(
            BenchComparison(
                **workload.names,
                against=against,
                ours=ours.contestant.way,
                peer=str(peer.contestant),
                **quartile_fields(peer.seconds / ours.seconds, "speedup"),
            )
        )
    return compared


def geometric_means(compared: Iterable[BenchComparison]) -> dict[str, float]:
    """Geometric means of the speedups, by phase, dtype and what was compared with."""
    groups: dict[str, list[float]] = {}
    for comparison in compared:
        name = f"{comparison.phase} {comparison.dtype}, {comparison.against}"
        groups.setdefault(name, []).append(log(comparison.speedup))
    return {name: exp(fmean(logarithms)) for name, logarithms in groups.items()}
