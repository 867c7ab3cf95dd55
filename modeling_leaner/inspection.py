"""`leaner inspect`: a model looked at layer by layer, its rows going through one block at a time.

Shapes: N tokens of a row without padding, D hidden_size, H heads, d head_dim.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, log, sqrt
from statistics import mean, median

import numpy as np
import torch
from rich.table import Table
from torch import nn
from transformers import PreTrainedModel

from .conditioning import Spectrum, attention_entropy, head_similarity, query_key_spectrum
from .files import finite_or_none
from .layers_leaner import LeanAttention, LeanPostNormBlock
from .models import block_inputs, evaluating, is_named_as
from .terminal import Progress, no_progress, plural


MOST_ROWS = 4096  # of a Jacobian, N·D, up to which the matrix is built: 128 MiB in float64
ROWS_AT_ONCE = 64  # of the matrix, while it is built
DIRECTIONS = 12  # singular vectors that the probes leave out
TOLERANCE = 0.01  # of estimated norms, as a share of them
FEWEST_PROBES = 16
MOST_PROBES = 200
STANDARD_ERRORS = 3  # in the error of an estimate

Row = dict[str, torch.Tensor]  # what the model reads, B = 1, without padding
Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Norms:
    """Of a square matrix J.

    Attributes:
        size: its rows, N·D.
        largest: σ_max.
        frobenius: ‖J‖_F.
        frobenius_error: three standard errors of the estimate; 0 if the matrix was built.
        spectrum: all singular values, if the matrix was built.
    """

    size: int
    largest: float
    frobenius: float
    frobenius_error: float = 0.0
    spectrum: Spectrum | None = None

    @classmethod
    def of(cls, matrix: torch.Tensor) -> "Norms":
        """Exact."""
        spectrum = Spectrum.of(matrix)
        return cls(len(matrix), spectrum.largest, matrix.norm().item(), spectrum=spectrum)

    @property
    def stable_rank(self) -> float:
        """‖J‖_F² / σ_max², at most the rank; 0 of a matrix of zeros."""
        return (self.frobenius / self.largest) ** 2 if self.largest else 0.0


@dataclass(frozen=True)
class LayerReport:
    """What was measured of a layer.

    Attributes:
        tokens: how many each row has.
        head_outputs: of the concatenated head outputs (N, H·d), a row each.
        query_key: of W_Q W_Kᵀ, a head each.
        value: of W_V.
        output: of W_O.
        entropy: mean over queries of the entropy of the weights, in nats, a head each.
        entropy_share: the same as a share of the entropy of even weights.
        similarity: CKA of head outputs over the tokens of all rows, (H, H); NaN of a head that is the same everywhere.
        removal: by how much the attention's output (N, D) changes without the head, a head each: the sum of squares,
            as a share of the output's variance over the tokens of all rows.
        jacobian: of the attention branch with respect to the block's input, on the first row.
        jacobian_with_residual: of the block's input plus the branch.
    """

    layer: int
    head_dim: int
    tokens: list[int]
    head_outputs: list[Spectrum]
    query_key: list[Spectrum]
    value: Spectrum
    output: Spectrum
    entropy: list[float]
    entropy_share: list[float]
    similarity: list[list[float]]
    removal: list[float]
    jacobian: Norms | None
    jacobian_with_residual: Norms | None

    @property
    def heads(self) -> int:
        return len(self.query_key)


class AttentionBranch(nn.Module):
    """What a block adds to its input before its MLP, on a copy of its weights: attention, behind the norm in pre-LN.

    In plain products, which have derivatives of every order in every dtype.
    """

    def __init__(self, block: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.norm = nn.Identity()
        if not is_named_as(block, LeanPostNormBlock):
            self.norm = copy.deepcopy(block.norm1)
        self.attention = copy.deepcopy(block.self_attn)
        self.to(dtype).requires_grad_(False)

    def heads(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, D) → weights (H, N, N) and head outputs (N, H, d)."""
        attention = self.attention
        states = self.norm(states)
        query = self.split(attention.q_proj(states))  # (H, N, d)
        key = self.split(attention.k_proj(states)).repeat_interleave(attention.num_key_value_groups, dim=0)
        value = self.split(attention.v_proj(states)).repeat_interleave(attention.num_key_value_groups, dim=0)
        scores = query @ key.mT * attention.scaling  # (H, N, N)
        if attention.is_causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(dim=-1)
        return weights, (weights @ value).transpose(0, 1)

    def split(self, states: torch.Tensor) -> torch.Tensor:
        """(N, K·d) → (K, N, d)."""
        return states.unflatten(-1, (-1, self.attention.head_dim)).transpose(0, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(N, D) → (N, D)."""
        _, heads = self.heads(states)
        return self.attention.o_proj(heads.flatten(1))


def blocks_of(model: PreTrainedModel) -> nn.ModuleList:
    """The blocks of a model of this family. Raises ValueError for a model without attention layers."""
    blocks = getattr(getattr(model, "base_model", None), "layers", [])
    attentions = [getattr(block, "self_attn", None) for block in blocks]
    if not attentions or not all(is_named_as(attention, LeanAttention) for attention in attentions):
        raise ValueError(f"{type(model).__name__}: no layers with a LeanAttention in it")
    return blocks


def rows_of(inputs: dict[str, torch.Tensor]) -> list[Row]:
    """A batch as rows of one, each without the positions that its `attention_mask` (B, T) pads."""
    mask = inputs.get("attention_mask")
    rows = []
    for index in range(len(next(iter(inputs.values())))):
        row = {name: tensor[index : index + 1] for name, tensor in inputs.items() if name != "attention_mask"}
        rows.append(row if mask is None else {name: tensor[:, mask[index].bool()] for name, tensor in row.items()})
    return rows


@torch.no_grad()
def inspect_layers(
    model: PreTrainedModel,
    rows: Sequence[Row],
    layers: Sequence[int] | None = None,
    jacobian: str = "auto",
    progress: Progress = no_progress,
) -> list[LayerReport]:
    """Measures the attention of a model on some rows.

    Args:
        layers: which of them, from 0; None for all.
        jacobian: exact (at most 4,096 numbers in a row's states), matrix-free, auto for exact where it fits, or none.

    Raises:
        ValueError: the model has no such layer, or no attention of this family; weights or states are not finite; a
            row has fewer tokens than a layer has heads; the exact Jacobian would be too large.
    """
    blocks = blocks_of(model)
    if layers is None:
        layers = range(len(blocks))
    check_layers("layers", layers, len(blocks))
    reports = []
    with evaluating(model):
        rows = [block_inputs(model, row) for row in rows]  # only the states between two blocks are kept
        for layer in progress(list(range(max(layers) + 1)), "layers"):
            block = blocks[layer]
            if layer in layers:
                reports.append(inspect_block(block, layer, [states[0] for states, _, _ in rows], jacobian))
            rows = [(block(states, *args, **kwargs), args, kwargs) for states, args, kwargs in rows]
    return reports


def check_layers(name: str, layers: Sequence[int], depth: int) -> None:
    """Raises ValueError, naming the setting, for a layer that a model of so many does not have."""
    for layer in layers:
        if not 0 <= layer < depth:
            raise ValueError(f"{name}: there is no layer {layer}, expected 0 to {depth - 1}")


def inspect_block(block: nn.Module, layer: int, states: Sequence[torch.Tensor], jacobian: str) -> LayerReport:
    """Measures a block on the states (N, D) that it reads, a row each; raises ValueError as `inspect_layers`."""
    branch = AttentionBranch(block, torch.double)
    attention = branch.attention
    for name, weight in branch.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"layer {layer}: NaN or infinite weights in {name}")
    fewest = max(attention.num_heads, 2)  # two for a variance; fewer tokens than heads are too few to compare them
    outputs = []  # (N, H, d), a row each
    entropies = []
    even = []  # the most that is possible: the entropy of even weights, a row each
    for number, row in enumerate(states, 1):
        if len(row) < fewest:
            found = f"row {number} has {plural(len(row), 'token')}, and layer {layer} has "
            raise ValueError(f"{found}{plural(attention.num_heads, 'head')}; expected at least {fewest} tokens")
        weights, heads = branch.heads(row.double())
        outputs.append(heads)
        entropies.append(attention_entropy(weights))
        even.append(mean(map(log, range(1, len(row) + 1))) if attention.is_causal else log(len(row)))
    entropy = torch.stack(entropies).mean(dim=0)  # (H)
    pooled = torch.cat(outputs)  # (tokens of all rows, H, d)
    queries = attention.q_proj.weight.split(attention.head_dim)  # (d, D) each; biases are left out
    keys = attention.k_proj.weight.split(attention.head_dim)
    pairs = [(query, keys[head // attention.num_key_value_groups]) for head, query in enumerate(queries)]
    alone, together = branch_norms(block, branch, states[0], jacobian)
    return LayerReport(
        layer=layer,
        head_dim=attention.head_dim,
        tokens=[len(row) for row in states],
        head_outputs=[Spectrum.of(heads.flatten(1)) for heads in outputs],
        query_key=[query_key_spectrum(query.mT, key.mT) for query, key in pairs],
        value=Spectrum.of(attention.v_proj.weight),
        output=Spectrum.of(attention.o_proj.weight),
        entropy=entropy.tolist(),
        entropy_share=(entropy / mean(even)).tolist(),
        similarity=head_similarity(pooled).tolist(),
        removal=changes_without(attention, pooled),
        jacobian=alone,
        jacobian_with_residual=together,
    )


def changes_without(attention: nn.Module, heads: torch.Tensor) -> list[float]:
    """By how much the output of an attention changes without each of its heads (N, H, d): `LayerReport.removal`."""
    output = attention.o_proj(heads.flatten(1))
    variance = (output - output.mean(dim=0)).square().sum()
    columns = attention.o_proj.weight.split(attention.head_dim, dim=1)  # (D, d) each
    # ‖Y Wᵀ‖² of a head's outputs Y (N, d) is the product of two (d, d) matrices, Yᵀ Y and Wᵀ W, entry by entry.
    moved = [((each.mT @ each) * (weight.mT @ weight)).sum() for each, weight in zip(heads.unbind(1), columns)]
    return [(each / variance).item() for each in moved]


def branch_norms(
    block: nn.Module, branch: AttentionBranch, point: torch.Tensor, jacobian: str
) -> tuple[Norms | None, Norms | None]:
    """Of the branch's Jacobian at a point (N, D), without and with the residual; None if it is not asked for.

    Exact in float64, matrix-free in float32.
    """
    if jacobian == "none":
        return None, None
    if jacobian == "exact" or (jacobian == "auto" and point.numel() <= MOST_ROWS):
        matrix = matrix_at(branch, point.double())
        return Norms.of(matrix), Norms.of(matrix + torch.eye(len(matrix)).to(matrix))
    return estimate_norms(AttentionBranch(block, torch.float32), point.float())


def matrix_at(function: Function, point: torch.Tensor) -> torch.Tensor:
    """The Jacobian of a function (N, D) → (N, D) itself, (N·D, N·D). Raises ValueError above 4,096 rows."""
    tokens, width = point.shape
    size = tokens * width
    if size > MOST_ROWS:
        raise ValueError(
            f"jacobian exact: {tokens} tokens of width {width} give {size:,} × {size:,} numbers, "
            f"{8 * size**2 / 2**30:,.1f} GiB in float64, and at most {MOST_ROWS:,} rows are built; "
            "matrix-free needs no matrix"
        )
    return torch.func.jacrev(function, chunk_size=ROWS_AT_ONCE)(point).reshape(size, size)


@torch.enable_grad()
def estimate_norms(function: Function, point: torch.Tensor, seed: int = 0) -> tuple[Norms, Norms]:
    """σ_max and ‖·‖_F of the Jacobian J at `point` (N, D) and of I + J, from products with J and Jᵀ alone.

    The largest singular values are exact to rounding. What is left of ‖·‖_F beside their vectors is estimated by
    random probes, to 1 % if 200 are enough for it (Hutchinson's estimator with deflation: Meyer et al. 2021, arXiv
    2010.09649).
    """
    from scipy.sparse.linalg import LinearOperator, svds  # half a second, which few need

    point = point.detach().clone().requires_grad_()
    value = function(point)
    covector = torch.zeros_like(value, requires_grad=True)
    # Jᵀ u is linear in u: its own backward pass is the product with J.
    (pulled_back,) = torch.autograd.grad(value, point, covector, create_graph=True)

    def product(output: torch.Tensor, source: torch.Tensor, vector: np.ndarray) -> np.ndarray:
        vector = torch.as_tensor(vector, dtype=point.dtype, device=point.device).view_as(point)
        return torch.autograd.grad(output, source, vector, retain_graph=True)[0].flatten().cpu().numpy()

    def jvp(vector: np.ndarray) -> np.ndarray:
        return product(pulled_back, covector, vector)

    def vjp(vector: np.ndarray) -> np.ndarray:
        return product(value, point, vector)

    size = point.numel()
    random = np.random.default_rng(seed)
    first = random.standard_normal(size, dtype=np.float32)
    shape = {"shape": (size, size), "dtype": np.float32}
    residual = LinearOperator(matvec=lambda v: v.ravel() + jvp(v), rmatvec=lambda v: v.ravel() + vjp(v), **shape)
    if not jvp(first).any():  # a matrix of zeros, which ARPACK refuses
        return Norms(size, 0.0, 0.0), Norms(size, 1.0, sqrt(size))
    left, values, right = svds(LinearOperator(matvec=jvp, rmatvec=vjp, **shape), min(DIRECTIONS, size - 1), v0=first)
    (largest_with_residual,) = svds(residual, 1, v0=first, return_singular_vectors=False)
    pulled = values[:, None] * right  # Jᵀ of each left vector
    along = np.array([np.square(pulled).sum(), np.square(left.T + pulled).sum()], dtype=float)
    squares: list[np.ndarray] = []
    norms = errors = np.zeros(2)
    for number in range(MOST_PROBES):
        if number >= FEWEST_PROBES and (errors <= TOLERANCE * norms).all():
            break
        probe = random.standard_normal(size, dtype=np.float32)
        probe -= left @ (left.T @ probe)
        probe /= np.linalg.norm(probe)
        found = vjp(probe)
        squares.append((size - len(values)) * np.array([np.square(found).sum(), np.square(probe + found).sum()]))
        norms = np.sqrt(along + np.mean(squares, axis=0))
        if number:
            errors = STANDARD_ERRORS * np.std(squares, axis=0, ddof=1) / sqrt(len(squares)) / (2 * norms)
    (alone, together), (error, error_together) = norms.tolist(), errors.tolist()
    return (
        Norms(size, float(values.max()), alone, error),
        Norms(size, float(largest_with_residual), together, error_together),
    )


def document_of(model: str, data: str, seconds: float, reports: Sequence[LayerReport]) -> dict[str, object]:
    """One JSON document, in which None stands for infinity and for what is not defined."""
    layers = [{**plain(vars(report)), "heads": report.heads} for report in reports]
    for layer in layers:
        del layer["tokens"]
    return {"model": model, "data": data, "tokens": reports[0].tokens, "seconds": seconds, "layers": layers}


def plain(value: object) -> object:
    """The same for JSON."""
    match value:
        case float():
            return finite_or_none(value)
        case list():
            return [plain(each) for each in value]
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case Spectrum():
            return plain({"condition_number": value.condition_number, **asdict(value)})
        case Norms():
            return plain({**vars(value), "stable_rank": value.stable_rank})
    return value


def layer_tables(reports: Sequence[LayerReport]) -> list[Table]:
    """κ of the matrices of each layer, what its heads do, and, if it was measured, the Jacobian."""
    matrices, heads, jacobians = [], [], []
    for report in reports:
        layer = str(report.layer)
        spectra = (report.head_outputs, report.query_key, [report.value], [report.output])
        matrices.append([layer, f"{report.heads}×{report.head_dim}", *map(conditions, spectra)])
        measured = (report.entropy, report.entropy_share, similarities(report), report.removal)
        heads.append([layer, *(extent(values, "{:.2f}") for values in measured)])
        for residual, norms in (("without", report.jacobian), ("with", report.jacobian_with_residual)):
            if norms is not None:
                error = f" ± {norms.frobenius_error:.2g}" if norms.frobenius_error else ""
                kappa = conditions([norms.spectrum]) if norms.spectrum else "matrix-free"
                sizes = (f"{norms.largest:.4g}", f"{norms.frobenius:.4g}{error}", f"{norms.stable_rank:.1f}")
                jacobians.append([layer, residual, *sizes, kappa])
    tables = [
        table_of(
            "condition number κ: median (least to most)",
            ("layer", "heads", "head outputs (rows)", "W_Q W_Kᵀ (heads)", "W_V", "W_O"),
            matrices,
        ),
        table_of(
            "heads: median (least to most)",
            ("layer", "entropy, nats", "of the most", "similarity to another", "change without one"),
            heads,
        ),
    ]
    if jacobians:
        title = "Jacobian of the attention branch, on the first row"
        tables.append(table_of(title, ("layer", "residual", "σ_max", "‖J‖_F", "stable rank", "κ"), jacobians))
    return tables


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def conditions(spectra: Sequence[Spectrum]) -> str:
    """κ of matrices, or, of those that have lost rank, the lowest rank."""
    deficient = [spectrum for spectrum in spectra if not spectrum.has_full_rank]
    if not deficient:
        return extent([spectrum.condition_number for spectrum in spectra], "{:.4g}")
    lowest = min(deficient, key=lambda spectrum: spectrum.rank)
    several = f" ({len(deficient)} of {len(spectra)})" if len(spectra) > 1 else ""
    return f"rank {lowest.rank} of {lowest.size}{several}"


def extent(values: Sequence[float], form: str) -> str:
    """The median and, of several, in parentheses the least and the most; those that are not defined are left out."""
    defined = [value for value in values if isfinite(value)]
    if not defined:
        return "–"
    spread = f" ({form.format(min(defined))} to {form.format(max(defined))})" if len(defined) > 1 else ""
    return form.format(median(defined)) + spread


def similarities(report: LayerReport) -> list[float]:
    """CKA of each pair of two heads."""
    return [value for head, row in enumerate(report.similarity) for value in row[:head]]
