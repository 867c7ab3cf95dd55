"""The conditioning of attention, measured: how near its matrices are to losing rank, and what its heads do.

Behind `leaner inspect`: a model looked at layer by layer, its rows going through one block at a time.
Shapes: N tokens of a row without padding, D hidden_size, H heads, d head_dim.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf, log
from statistics import mean

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from .layers_leaner import LeanAttention, LeanPostNormBlock
from .models import block_inputs, evaluating, without_unpadding


Row = dict[str, torch.Tensor]  # what the model reads, B = 1, without padding


# Matrices


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a matrix (M, N)."""

    condition_number: float  # κ = σ_max / σ_min, infinite where rank is lost
    size: int  # how many there are, min(M, N)
    rank: int  # how many are above max(M, N) · ε · σ_max, ε of the matrix's dtype

    @classmethod
    def of(cls, matrix: torch.Tensor) -> "Spectrum":
        values = torch.linalg.svdvals(matrix)
        counted = values[values > max(matrix.shape) * torch.finfo(matrix.dtype).eps * values[0]]
        condition_number = (values[0] / values[-1]).item() if len(counted) == len(values) else inf
        return cls(condition_number, len(values), len(counted))


def head_similarity(heads: torch.Tensor) -> torch.Tensor:
    """Linear CKA of each pair of heads (Kornblith et al. 2019, arXiv 1905.00414): outputs (T, H, d) → (H, H).

    1 where one head's outputs are the other's, turned and scaled. Of a head whose output is the same for every token
    it is NaN. With few tokens beside the head size it is too high.
    """
    tokens, count, size = heads.shape
    centred = (heads - heads.mean(dim=0)).reshape(tokens, count * size)
    products = (centred.mT @ centred).reshape(count, size, count, size)
    squares = products.square().sum(dim=(1, 3))  # ‖A_iᵀ A_j‖_F²
    own = squares.diagonal().sqrt()
    return squares / torch.outer(own, own)


@torch.no_grad()
def head_condition_numbers(model: PreTrainedModel, **inputs: torch.Tensor) -> list[float]:
    """κ of the concatenated head outputs A of each attention, the median over the rows of a batch.

    A is what `o_proj` reads, (T, H·d) for one row, without its bias or any norm; κ(A) = σ_max / σ_min over the
    min(T, H·d) singular values, the matrix of theorem 3.2 of Saratchandran et al. 2025, arXiv 2505.20802. Where
    `attention_mask` (B, T) is given, padded positions are left out.

    Returns:
        one number ≥ 1 per layer, from the first; infinite only where σ_min is exactly 0, NaN of zeros alone. Above
        1/ε of the model's dtype, 8e6 in float32, it is rounding; `Spectrum` says there that rank is lost. The median
        is the lower of the middle two.

    Raises RuntimeError if a row has no tokens.
    """
    # By name: a model that was loaded with `trust_remote_code=True` has classes of its own, copies of this package's.
    attentions = [module for module in model.modules() if type(module).__name__ == LeanAttention.__name__]
    mask = inputs.get("attention_mask")
    medians: dict[nn.Module, float] = {}

    def measure(projection: nn.Module, arguments: tuple[torch.Tensor]) -> None:
        rows = arguments[0].double().cpu()  # (B, T, H·d)
        # The mask of multiple choice is (B / C, C, T).
        seen = [slice(None)] * len(rows) if mask is None else mask.flatten(0, -2).bool().cpu()
        values = [torch.linalg.svdvals(row[tokens]) for row, tokens in zip(rows, seen)]
        medians[projection] = torch.stack([each.max() / each.min() for each in values]).median().item()

    with evaluating(model), without_unpadding(model), ExitStack() as hooks:
        for attention in attentions:
            hooks.enter_context(attention.o_proj.register_forward_pre_hook(measure))
        model(**inputs)
    return [medians[attention.o_proj] for attention in attentions]


# Layers


@dataclass(frozen=True)
class LayerReport:
    """What was measured of a layer."""

    layer: int
    head_dim: int
    tokens: list[int]  # of each row
    head_outputs: list[Spectrum]  # of the concatenated head outputs (N, H·d), a row each
    query_key: list[Spectrum]  # of W_Q W_Kᵀ, a head each
    value: Spectrum  # of W_V
    output: Spectrum  # of W_O
    entropy: list[float]  # of the weights, in nats, mean over queries, a head each
    entropy_share: list[float]  # the same as a share of the entropy of even weights
    similarity: list[list[float]]  # CKA of head outputs over all tokens, (H, H); NaN of a head that is always the same
    # By how much the attention's output (N, D) changes without a head: the sum of squares, as a share of the output's
    # variance over the tokens of all rows.
    removal: list[float]
    heads: int


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
    model: PreTrainedModel, rows: Sequence[Row], layers: Sequence[int] | None = None
) -> list[LayerReport]:
    """Measures the attention of a model of this family on some rows, in `layers` from 0; None for all."""
    blocks = model.base_model.layers
    layers = range(len(blocks)) if layers is None else layers
    for layer in layers:
        if not 0 <= layer < len(blocks):
            raise ValueError(f"--layers: there is no layer {layer}, expected 0 to {len(blocks) - 1}")
    reports = []
    with evaluating(model):
        rows = [block_inputs(model, row) for row in rows]  # only the states between two blocks are kept
        for layer in tqdm(range(max(layers) + 1), "measuring layers", leave=False, disable=None):
            block = blocks[layer]
            if layer in layers:
                reports.append(inspect_block(block, layer, [states[0] for states, _, _ in rows]))
            rows = [(block(states, *args, **kwargs), args, kwargs) for states, args, kwargs in rows]
    return reports


def inspect_block(block: nn.Module, layer: int, states: Sequence[torch.Tensor]) -> LayerReport:
    """Measures a block on the states (N, D) that it reads, a row each."""
    norms_after = type(block).__name__ == LeanPostNormBlock.__name__
    norm = nn.Identity() if norms_after else copy.deepcopy(block.norm1).double()
    attention = copy.deepcopy(block.self_attn).double()

    fewest = max(attention.num_heads, 2)  # two for a variance; fewer tokens than heads are too few to compare them
    outputs = []  # (N, H, d), a row each
    entropies = []
    even = []  # the most that is possible: the entropy of even weights, a row each
    for number, row in enumerate(states, 1):
        if len(row) < fewest:
            expected = f"layer {layer} with num_heads={attention.num_heads} needs at least {fewest}"
            raise ValueError(f"row {number} has too few tokens ({len(row)}): {expected}")
        weights, heads = attend(attention, norm(row.double()))
        outputs.append(heads)
        entropies.append(torch.special.entr(weights).sum(dim=-1).mean(dim=-1))  # (H), of (H, N, N)
        even.append(mean(map(log, range(1, len(row) + 1))) if attention.is_causal else log(len(row)))

    entropy = torch.stack(entropies).mean(dim=0)  # (H)
    pooled = torch.cat(outputs)  # (tokens of all rows, H, d)
    output = attention.o_proj(pooled.flatten(1))
    variance = (output - output.mean(dim=0)).square().sum()
    columns = attention.o_proj.weight.split(attention.head_dim, dim=1)  # (D, d) each
    # ‖Y Wᵀ‖² of a head's outputs Y (N, d) is the product of two (d, d) matrices, Yᵀ Y and Wᵀ W, entry by entry.
    moved = [((each.mT @ each) * (weight.mT @ weight)).sum() for each, weight in zip(pooled.unbind(1), columns)]

    # W_Q W_Kᵀ, without biases, has at most rank d: with W = Q R it is Q_Q (R_Q R_Kᵀ) Q_Kᵀ, of which the middle (d, d)
    # has the non-zero singular values.
    queries, keys = (
        [torch.linalg.qr(weight.mT, mode="r").R for weight in linear.weight.split(attention.head_dim)]
        for linear in (attention.q_proj, attention.k_proj)
    )
    pairs = [(query, keys[head // attention.num_key_value_groups]) for head, query in enumerate(queries)]
    return LayerReport(
        layer=layer,
        head_dim=attention.head_dim,
        tokens=[len(row) for row in states],
        head_outputs=[Spectrum.of(heads.flatten(1)) for heads in outputs],
        query_key=[Spectrum.of(query @ key.mT) for query, key in pairs],
        value=Spectrum.of(attention.v_proj.weight),
        output=Spectrum.of(attention.o_proj.weight),
        entropy=entropy.tolist(),
        entropy_share=(entropy / mean(even)).tolist(),
        similarity=head_similarity(pooled).tolist(),
        removal=[(each / variance).item() for each in moved],
        heads=attention.num_heads,
    )


def attend(attention: nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, D) → weights (H, N, N) and head outputs (N, H, d)."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    split = [linear(states).unflatten(-1, (-1, attention.head_dim)).transpose(0, 1) for linear in projections]
    query, key, value = (each.repeat_interleave(attention.num_heads // len(each), dim=0) for each in split)
    scores = query @ key.mT * attention.scaling  # (H, N, N)
    if attention.is_causal:
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -inf)
    weights = scores.softmax(dim=-1)
    return weights, (weights @ value).transpose(0, 1)
