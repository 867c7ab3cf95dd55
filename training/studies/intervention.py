"""κ is changed without touching heads, to tell cause from correlation: starts of one model that differ in W alone.

Each of W_Q, W_K and W_V of every layer is changed before the first step. W is (heads · head size, width). Where it is
not square, I is the matrix with ones on its main diagonal, and a random orthogonal matrix is one with orthonormal rows
or columns, whichever are fewer: the Frobenius norm of both is √min(heads · head size, width).
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from statistics import fmean

import torch
from torch import Generator, Tensor

from modeling_leaner.layers_leaner import LeanAttention
from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM

from .bytes_model import Look, Shape, TrainingPlan, train_bytes
from .study import Progress


def random_orthogonal(like: Tensor, source: Generator) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer, uniform among all."""
    rows, columns = like.shape
    drawn = torch.randn(max(rows, columns), min(rows, columns), generator=source, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(drawn)
    basis = basis * triangle.diagonal().sign()
    if rows < columns:
        basis = basis.mT
    return basis.to(like.dtype)


def unchanged(weight: Tensor, source: Generator) -> Tensor:
    """W."""
    return weight


def plus_identity(amount: float) -> Callable[[Tensor, Generator], Tensor]:
    """W + λ·I."""
    return lambda weight, source: weight + amount * torch.eye(*weight.shape)


def plus_orthogonal(amount: float) -> Callable[[Tensor, Generator], Tensor]:
    """W + λ·O of a random orthogonal O: the norm of λ·I without its direction."""
    return lambda weight, source: weight + amount * random_orthogonal(weight, source)


def as_large(amount: float) -> Callable[[Tensor, Generator], Tensor]:
    """W times the number that gives it the Frobenius norm of W + λ·I: κ of W stays what it was."""
    return lambda weight, source: weight * (plus_identity(amount)(weight, source).norm() / weight.norm())


def made_orthogonal(weight: Tensor, source: Generator) -> Tensor:
    """A random orthogonal matrix of the Frobenius norm of W: κ of W becomes 1."""
    return random_orthogonal(weight, source) * weight.norm() / math.sqrt(min(weight.shape))


AMOUNT = 1.0  # λ
IDENTITY = f"W + {AMOUNT:g}·I"
RANDOM = f"W + {AMOUNT:g}·O"
LARGER = f"W as large as {IDENTITY}"
NONE = "W"
ORTHOGONAL = "O as large as W"
ARMS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    NONE: unchanged,
    IDENTITY: plus_identity(AMOUNT),
    RANDOM: plus_orthogonal(AMOUNT),
    LARGER: as_large(AMOUNT),
    ORTHOGONAL: made_orthogonal,
}


@torch.no_grad()
def change_start(model: LeanGPTForCausalLM, source: Generator, arm: str) -> None:
    """Changes W_Q, W_K and W_V of every layer as an arm of ARMS says."""
    for attention in model.modules():
        if isinstance(attention, LeanAttention):
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight.copy_(ARMS[arm](projection.weight, source))


@dataclass(frozen=True)
class Run:
    """One run: a shape, an arm of ARMS, how it is trained, a seed."""

    shape: Shape
    arm: str
    plan: TrainingPlan
    seed: int


def execute(run: Run) -> list[Look]:
    """On one thread."""
    torch.set_num_threads(1)
    return train_bytes(run.shape, run.plan, run.seed, lambda model, source: change_start(model, source, run.arm))


Looks = dict[Run, list[Look]]


def run_all(runs: list[Run], processes: int, progress: Progress) -> Looks:
    """Every run, so many at a time, each in a process that starts anew; one process is this one.

    Raises OSError where a process ends before its runs do.
    """
    if processes == 1:
        return dict(told(runs, map(execute, runs), progress))
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            try:
                return dict(told(runs, pool.map(execute, runs), progress))
            except KeyboardInterrupt:  # by SIGTERM, which only this process got
                for process in active_children():
                    process.terminate()
                raise
    except BrokenProcessPool as error:
        raise OSError("a process of the study ended before its runs did; too little memory?") from error


def told(runs: list[Run], found: Iterator[list[Look]], progress: Progress) -> Iterator[tuple[Run, list[Look]]]:
    """The runs with what was seen of them, each told as it ends."""
    for number, (run, looks) in enumerate(zip(runs, found), 1):
        progress(
            f"{number} of {len(runs)}: {run.shape.heads} heads of {run.shape.head_size}, {run.arm}, rate "
            f"{run.plan.rate:g}, seed {run.seed}: loss {looks[-1].loss:.4f}"
        )
        yield run, looks


def best_rates(tuning: Looks) -> dict[str, float]:
    """Of each arm the rate with the least mean loss at the end; one whose loss is not finite is the last choice."""
    losses: dict[str, dict[float, list[float]]] = {}
    for run, looks in tuning.items():
        loss = looks[-1].loss
        if not math.isfinite(loss):
            loss = math.inf
        losses.setdefault(run.arm, {}).setdefault(run.plan.rate, []).append(loss)
    return {arm: min(by_rate, key=lambda rate: fmean(by_rate[rate])) for arm, by_rate in losses.items()}
