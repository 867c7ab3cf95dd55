"""Cells and comparisons of what was measured at one workload."""

from collections.abc import Iterable
from math import exp, log
from statistics import fmean

import numpy as np

from ..records.benchmark import BenchCell, Comparison
from .contestants import DEFAULT_ATTENTION, OUR_ATTENTION, OURS
from .measure import Measured
from .workload import Workload


QUARTILES = (25, 50, 75)


def quartiles(values: np.ndarray | None, prefix: str) -> dict[str, float | None]:
    """Median and quartiles under the names of a cell; all None where nothing was measured."""
    names = (f"{prefix}_low", prefix, f"{prefix}_high")
    if values is None:
        return dict.fromkeys(names)
    return dict(zip(names, np.percentile(values, QUARTILES).tolist()))


def default_of(measured: Iterable[Measured], library: str) -> Measured | None:
    """What a library gives a user who says nothing; None where it was not measured."""
    for each in measured:
        if each.contestant.library == library and each.contestant.is_default and each.seconds is not None:
            return each
    return None


def cell(
    workload: Workload, one: Measured, reference: Measured | None, rate: float | None, names: dict[str, str]
) -> BenchCell:
    """A contestant's cell; `reference` is this family's default, `rate` the matrix products' FLOP/s, `names` of the
    device and of the libraries' versions."""
    milliseconds = None
    ratio = None
    rounds = 0
    items_per_second = None
    share = None
    flops = None
    if one.seconds is not None:
        rounds = len(one.seconds)
        milliseconds = 1e3 * one.seconds
        median = float(np.median(one.seconds))
        items_per_second = workload.batch / median
        flops = workload.flops
        if rate is not None:
            share = flops / median / rate
        if reference is not None:
            ratio = one.seconds / reference.seconds
    return BenchCell(
        phase=workload.phase,
        shape=workload.shape,
        library=one.contestant.library,
        attention=one.contestant.attention,
        mode=one.contestant.mode,
        dtype=workload.dtype,
        precision=workload.precision,
        **names,
        batch=workload.batch,
        length=workload.length,
        rounds=rounds,
        **quartiles(milliseconds, "milliseconds"),
        **quartiles(ratio, "ratio"),
        items_per_second=items_per_second,
        peak_memory_bytes=one.peak_memory,
        parameters=one.parameters,
        flops=flops,
        matrix_product_share=share,
        note=one.note,
    )


def fastest(measured: Iterable[Measured]) -> Measured | None:
    """The one with the least median; None of none."""
    return min(measured, key=lambda each: np.median(each.seconds), default=None)


def pairs(measured: Iterable[Measured]) -> dict[str, tuple[Measured | None, Measured | None]]:
    """This family and the peer that it is compared with, by what the comparison is called.

    The family has the attention that picks its kernel, or else its default, whichever of its others was faster.
    """
    ran = [each for each in measured if each.seconds is not None]
    of_family = [each for each in ran if each.contestant.library == OURS]
    attention = DEFAULT_ATTENTION
    if any(each.contestant.attention == OUR_ATTENTION for each in of_family):
        attention = OUR_ATTENTION
    ours = [each for each in of_family if each.contestant.attention == attention]
    peers = [each for each in ran if each.contestant.library != OURS]

    def of_mode(group: list[Measured], mode: str) -> list[Measured]:
        return [each for each in group if each.contestant.mode == mode]

    uncompiled = fastest(of_mode(ours, "eager"))
    return {
        "best uncompiled peer": (uncompiled, fastest(of_mode(peers, "eager"))),
        "best compiled peer": (fastest(of_mode(ours, "compile")), fastest(of_mode(peers, "compile"))),
        "best peer": (fastest(ours), fastest(peers)),
        "transformers' default": (uncompiled, default_of(peers, "transformers")),
    }


def comparisons(workload: Workload, measured: list[Measured]) -> list[Comparison]:
    """Those of which both sides ran."""
    found = []
    for against, (ours, peer) in pairs(measured).items():
        if ours is None or peer is None:
            continue
        found.append(
            Comparison(
                phase=workload.phase,
                shape=workload.shape,
                dtype=workload.dtype,
                batch=workload.batch,
                length=workload.length,
                against=against,
                ours=f"{ours.contestant.attention} {ours.contestant.mode}",
                peer=str(peer.contestant),
                **quartiles(peer.seconds / ours.seconds, "ratio"),
            )
        )
    return found


def geometric_means(found: Iterable[Comparison]) -> dict[str, float]:
    """Of the ratios, by phase, dtype and what was compared with."""
    groups: dict[str, list[float]] = {}
    for each in found:
        groups.setdefault(f"{each.phase} {each.dtype}, {each.against}", []).append(log(each.ratio))
    return {name: exp(fmean(logarithms)) for name, logarithms in groups.items()}
