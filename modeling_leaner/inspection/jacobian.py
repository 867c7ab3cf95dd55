"""The Jacobian of a function (N, D) → (N, D): its norms from products with it, or the matrix itself where it is small.

Golub-Kahan bidiagonalisation gives σ_max and the directions in which the Jacobian is large; random probes estimate
what is left of the Frobenius norm beside them (Hutchinson's estimator with deflation: Meyer et al. 2021, arXiv
2010.09649).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

import torch

from ..conditioning import Spectrum


TOLERANCE = 0.01  # of both norms, as a share of them
FEWEST_STEPS = 12  # of the bidiagonalisation
MOST_STEPS = 40
FEWEST_PROBES = 16
MOST_PROBES = 200
STANDARD_ERRORS = 3  # in the error that an estimate states
MOST_ROWS = 4096  # of the matrix, N·D, up to which it is built: 128 MiB in float64
ROWS_AT_ONCE = 64  # of the matrix, while it is built
ROUNDING = 10  # in units of the last place: what is smaller, relative to the matrix, is taken as 0

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Norms:
    """Of a square matrix J.

    Attributes:
        size: its rows, N·D.
        largest: σ_max.
        largest_error: a singular value lies within this of `largest`; 0 where the matrix was built.
        frobenius: ‖J‖_F.
        frobenius_error: three standard errors of the estimate; 0 where the matrix was built.
        spectrum: all singular values, where the matrix was built.
    """

    size: int
    largest: float
    largest_error: float
    frobenius: float
    frobenius_error: float
    spectrum: Spectrum | None = None

    @property
    def stable_rank(self) -> float:
        """‖J‖_F² / σ_max², at most the rank; 0 of a matrix of zeros."""
        if self.largest == 0:
            return 0.0
        return (self.frobenius / self.largest) ** 2


class Jacobian:
    """The derivative J of `function` at `point` (N, D), as products with it: backward passes through one graph."""

    def __init__(self, function: Function, point: torch.Tensor):
        self.point = point.detach().clone().requires_grad_()
        with torch.enable_grad():
            self.value = function(self.point)
            self.covector = torch.zeros_like(self.value, requires_grad=True)
            # Jᵀ u is linear in u: its own backward pass is the product with J.
            (self.pulled_back,) = torch.autograd.grad(self.value, self.point, self.covector, create_graph=True)

    def jvp(self, vector: torch.Tensor) -> torch.Tensor:
        """J v, (N, D) → (N, D)."""
        (product,) = torch.autograd.grad(self.pulled_back, self.covector, vector, retain_graph=True)
        return product

    def vjp(self, vector: torch.Tensor) -> torch.Tensor:
        """Jᵀ u, (N, D) → (N, D)."""
        (product,) = torch.autograd.grad(self.value, self.point, vector, retain_graph=True)
        return product


class WithResidual:
    """I + J, the derivative of x + f(x)."""

    def __init__(self, jacobian: Jacobian):
        self.jacobian = jacobian
        self.point = jacobian.point

    def jvp(self, vector: torch.Tensor) -> torch.Tensor:
        return vector + self.jacobian.jvp(vector)

    def vjp(self, vector: torch.Tensor) -> torch.Tensor:
        return vector + self.jacobian.vjp(vector)


Products = Jacobian | WithResidual


class Bidiagonalisation:
    """J V = U B: B (k, k) upper bidiagonal after k steps, the k vectors in V and those in U orthonormal.

    Jᵀ U is V Bᵀ but for its last column, which has `rest` more, along the vector that the next step takes. Where
    `rest` is 0, the steps have found all that can be reached from the first vector.
    """

    def __init__(self, jacobian: Products, first: torch.Tensor):
        self.jacobian = jacobian
        self.following = first / first.norm()
        self.right: list[torch.Tensor] = []  # V
        self.left: list[torch.Tensor] = []  # U
        self.diagonal: list[float] = []
        self.above_diagonal: list[float] = []
        self.rest = 0.0

    def step(self) -> None:
        """Adds a column to B, V and U: two products. Where nothing is left but rounding, `rest` becomes 0."""
        if self.right:
            self.above_diagonal.append(self.rest)
        self.right.append(self.following)
        self.rest = 0.0
        column = reorthogonalise(self.jacobian.jvp(self.following), self.left)
        length = column.norm().item()
        self.diagonal.append(length)
        if self.is_rounding(length):
            return
        self.left.append(column / length)
        row = reorthogonalise(self.jacobian.vjp(self.left[-1]), self.right)
        length = row.norm().item()
        if self.is_rounding(length):
            return
        self.rest = length
        self.following = row / length

    def is_rounding(self, length: float) -> bool:
        """Whether a length is 0 but for rounding, beside the largest entry of B."""
        largest = max(*self.diagonal, *self.above_diagonal, 0.0)
        return length <= ROUNDING * torch.finfo(self.following.dtype).eps * largest

    def matrix(self) -> torch.Tensor:
        """B."""
        diagonal = torch.tensor(self.diagonal, dtype=torch.double)
        above = torch.tensor(self.above_diagonal, dtype=torch.double)
        return torch.diag(diagonal) + torch.diag(above, 1)

    def pulled_back(self) -> torch.Tensor:
        """Jᵀ U, a row of N·D for each vector in U."""
        rows = self.matrix()[: len(self.left)]  # U lacks the last vector where nothing but rounding was left of it
        products = rows.to(self.following) @ stacked(self.right)
        if self.rest > 0:
            products[-1] += self.rest * self.following.flatten()
        return products

    def largest(self) -> tuple[float, float]:
        """The largest singular value of B, and how far one of J is from it at most."""
        left, values, _ = torch.linalg.svd(self.matrix())
        return values[0].item(), self.rest * left[-1, 0].abs().item()


def without(vector: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """A vector (N, D) without its parts along orthonormal directions (k, N·D)."""
    parts = directions @ vector.flatten()
    return vector - (parts @ directions).view_as(vector)


def reorthogonalise(vector: torch.Tensor, directions: list[torch.Tensor]) -> torch.Tensor:
    """The same to rounding: what is left of a vector may be so small that the first time leaves parts in it."""
    if not directions:
        return vector
    together = stacked(directions)
    return without(without(vector, together), together)


def stacked(vectors: list[torch.Tensor]) -> torch.Tensor:
    """k vectors (N, D) as rows, (k, N·D)."""
    return torch.stack(vectors).flatten(1)


def random_direction(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers: a direction drawn evenly."""
    return torch.randn(like.shape, generator=generator).to(like)


def estimate_norms(jacobian: Jacobian, seed: int = 0) -> tuple[Norms, Norms]:
    """σ_max and ‖·‖_F of J and of I + J from products with J, to 1 % where 40 steps and 200 probes are enough for it.

    Time: two backward passes of the function a step and matrix, one a probe. Memory: its graph, and four vectors
    (N, D) a step.
    """
    generator = torch.Generator().manual_seed(seed)
    first = random_direction(jacobian.point, generator)
    largest_with_residual = bidiagonalise(WithResidual(jacobian), first).largest()
    found = bidiagonalise(jacobian, first)
    square, square_with_residual = squared_norms(jacobian, found, generator)
    size = jacobian.point.numel()
    alone = Norms(size, *found.largest(), *square.root())
    with_residual = Norms(size, *largest_with_residual, *square_with_residual.root())
    return alone, with_residual


def bidiagonalise(jacobian: Products, first: torch.Tensor) -> Bidiagonalisation:
    """As many steps as σ_max takes to be known within the tolerance, from a first vector (N, D)."""
    found = Bidiagonalisation(jacobian, first)
    for number in range(1, MOST_STEPS + 1):
        found.step()
        largest, error = found.largest()
        is_known = number >= FEWEST_STEPS and error <= TOLERANCE * largest
        if is_known or found.rest == 0:
            break
    return found


class SquaredNorm:
    """‖A‖_F² of a matrix: of Aᵀ `along` some orthonormal directions exactly, along the `others` from random probes."""

    def __init__(self, products: torch.Tensor, others: int):
        """`products`: of Aᵀ with the directions, a row each."""
        self.along = products.double().square().sum().item()
        self.others = others
        self.squares: list[float] = []

    def add(self, product: torch.Tensor) -> None:
        """A probe more: the product of Aᵀ with a random vector of length 1 among the others."""
        self.squares.append(self.others * product.double().square().sum().item())

    def estimate(self) -> tuple[float, float]:
        """‖A‖_F², and three standard errors of it."""
        if not self.squares:
            return self.along, 0.0
        return self.along + mean(self.squares), STANDARD_ERRORS * stdev(self.squares) / sqrt(len(self.squares))

    def root(self) -> tuple[float, float]:
        """‖A‖_F, and three standard errors of it."""
        square, error = self.estimate()
        if square == 0:
            return 0.0, 0.0
        return sqrt(square), error / (2 * sqrt(square))

    def is_known(self) -> bool:
        """Whether ‖A‖_F is known within the tolerance."""
        norm, error = self.root()
        return error <= TOLERANCE * norm


def squared_norms(
    jacobian: Jacobian, found: Bidiagonalisation, generator: torch.Generator
) -> tuple[SquaredNorm, SquaredNorm]:
    """Of J and of I + J, from the same products with Jᵀ, which are cheaper than those with J."""
    products = found.pulled_back()
    directions = torch.zeros_like(products)
    if found.left:
        directions = stacked(found.left)
    others = jacobian.point.numel() - len(directions)
    alone = SquaredNorm(products, others)
    with_residual = SquaredNorm(directions + products, others)
    if others == 0:
        return alone, with_residual
    for number in range(MOST_PROBES):
        if number >= FEWEST_PROBES and alone.is_known() and with_residual.is_known():
            break
        probe = without(random_direction(jacobian.point, generator), directions)
        probe = probe / probe.norm()
        product = jacobian.vjp(probe)
        alone.add(product)
        with_residual.add(probe + product)
    return alone, with_residual


def matrix_at(function: Function, point: torch.Tensor) -> torch.Tensor:
    """The Jacobian itself, (N·D, N·D), in the dtype of the point (N, D).

    Raises:
        ValueError: it has more than 4,096 rows; says how large it would be.
    """
    tokens, width = point.shape
    size = tokens * width
    if size > MOST_ROWS:
        gibibytes = 8 * size**2 / 2**30
        raise ValueError(
            f"jacobian exact: {tokens} tokens of width {width} give {size:,} × {size:,} numbers, {gibibytes:,.1f} GiB "
            f"in float64, and at most {MOST_ROWS:,} rows are built; matrix-free needs no matrix"
        )
    return torch.func.jacrev(function, chunk_size=ROWS_AT_ONCE)(point).reshape(size, size)


def exact_norms(matrix: torch.Tensor) -> Norms:
    """The norms of a matrix and its singular values."""
    spectrum = Spectrum.of(matrix)
    return Norms(len(matrix), spectrum.largest, 0.0, matrix.norm().item(), 0.0, spectrum)
