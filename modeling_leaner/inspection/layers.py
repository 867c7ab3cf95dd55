"""A model looked at layer by layer: its rows go through one block at a time, and what is kept of a block is numbers.

Shapes: N tokens of a row without padding, D hidden_size, H heads, d head_dim.
"""

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from statistics import mean

import torch
from torch import nn
from transformers import PreTrainedModel

from ..conditioning import (
    Spectrum,
    attention_entropy,
    head_similarity,
    query_key_spectrum,
)
from ..layers_leaner import LeanAttention, LeanPostNormBlock
from ..support.models import evaluating, is_named_as, without_unpadding
from ..support.progress import Progress, no_progress
from ..support.terminal import plural
from .jacobian import MOST_ROWS, Jacobian, Norms, estimate_norms, exact_norms, matrix_at


Row = dict[str, torch.Tensor]  # what the model reads, B = 1, without padding


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


class AtFirstBlock(Exception):
    """A forward pass has come to block 0: the rest of it is not needed."""


class Walk:
    """Some rows on their way through the blocks of a model: only the states between two blocks are kept."""

    def __init__(self, model: PreTrainedModel, rows: Sequence[Row]):
        self.blocks = blocks_of(model)
        self.states: list[torch.Tensor] = []  # (1, N, D) each
        self.arguments: list[tuple[tuple, dict]] = []  # what blocks get beside the states
        handle = self.blocks[0].register_forward_pre_hook(self._begin, with_kwargs=True)
        try:
            with without_unpadding(model):
                # By the model itself, for the families embed and mask each in their own way; up to block 0.
                for row in rows:
                    with suppress(AtFirstBlock):
                        model.base_model(**row)
        finally:
            handle.remove()

    def _begin(self, block: nn.Module, args: tuple, kwargs: dict) -> None:
        self.states.append(args[0])
        self.arguments.append((args[1:], kwargs | {"past_key_values": None}))
        raise AtFirstBlock

    def pass_block(self, layer: int) -> None:
        """The states before the block become those after it."""
        block = self.blocks[layer]
        for place, (args, kwargs) in enumerate(self.arguments):
            self.states[place] = block(self.states[place], *args, **kwargs)


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
        if mask is not None:
            kept = mask[index].bool()
            row = {name: tensor[:, kept] for name, tensor in row.items()}
        rows.append(row)
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
        ValueError: the model has no such layer, or no attention of this family; no layer or no row is given; weights
            or states are not finite; a row has fewer tokens than a layer has heads; the exact Jacobian would be too
            large.
    """
    depth = len(blocks_of(model))
    if layers is None:
        layers = range(depth)
    check_layers("layers", layers, depth)
    if not layers:
        raise ValueError("layers: expected at least one")
    if not rows:
        raise ValueError("rows: expected at least one")
    with evaluating(model):
        walk = Walk(model, rows)
        reports = []
        for layer in progress(list(range(max(layers) + 1)), "layers"):
            if layer in layers:
                states = [each[0] for each in walk.states]
                reports.append(inspect_block(walk.blocks[layer], layer, states, jacobian))
            walk.pass_block(layer)
        return reports


def check_layers(name: str, layers: Sequence[int], depth: int) -> None:
    """Raises ValueError, naming the setting, for a layer that a model of so many does not have."""
    for layer in layers:
        if not 0 <= layer < depth:
            raise ValueError(f"{name}: there is no layer {layer}, expected 0 to {depth - 1}")


def inspect_block(block: nn.Module, layer: int, states: Sequence[torch.Tensor], jacobian: str) -> LayerReport:
    """Measures a block on the states (N, D) that it reads, a row each; raises ValueError as `inspect_layers`."""
    branch = AttentionBranch(block, torch.double)
    check_block(branch, layer, states)
    outputs = []  # (N, H, d), a row each
    spectra = []
    entropies = []
    even = []
    for row in states:
        weights, heads = branch.heads(row.double())
        outputs.append(heads)
        spectra.append(Spectrum.of(heads.flatten(1)))
        entropies.append(attention_entropy(weights))
        even.append(even_entropy(len(row), branch.attention.is_causal))
    entropy = torch.stack(entropies).mean(dim=0)  # (H)
    pooled = torch.cat(outputs)  # (tokens of all rows, H, d)
    alone, together = branch_norms(block, branch, states[0], jacobian)
    return LayerReport(
        layer=layer,
        head_dim=branch.attention.head_dim,
        tokens=[len(row) for row in states],
        head_outputs=spectra,
        query_key=query_key_spectra(branch.attention),
        value=Spectrum.of(branch.attention.v_proj.weight),
        output=Spectrum.of(branch.attention.o_proj.weight),
        entropy=entropy.tolist(),
        entropy_share=(entropy / mean(even)).tolist(),
        similarity=head_similarity(pooled).tolist(),
        removal=changes_without(branch.attention, pooled),
        jacobian=alone,
        jacobian_with_residual=together,
    )


def check_block(branch: AttentionBranch, layer: int, states: Sequence[torch.Tensor]) -> None:
    """Raises ValueError for weights and states that are not finite, and for a row with fewer tokens than heads."""
    for name, weight in branch.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"layer {layer}: NaN or infinite weights in {name}")
    heads = branch.attention.num_heads
    least = max(heads, 2)  # two for a variance; fewer tokens than heads are too few to compare heads over
    for number, row in enumerate(states, 1):
        if len(row) < least:
            found = f"row {number} has {plural(len(row), 'token')}, and layer {layer} has {plural(heads, 'head')}"
            raise ValueError(f"{found}; expected at least {least} tokens")
        if not row.isfinite().all():
            raise ValueError(f"layer {layer}: the states of row {number} before it are not finite")


def query_key_spectra(attention: nn.Module) -> list[Spectrum]:
    """Of W_Q W_Kᵀ, a head each; heads that share a key have the same W_K. Biases are left out."""
    size = attention.head_dim
    queries = attention.q_proj.weight.split(size)  # (d, D) each
    keys = attention.k_proj.weight.split(size)
    groups = attention.num_key_value_groups
    return [query_key_spectrum(query.mT, keys[head // groups].mT) for head, query in enumerate(queries)]


def even_entropy(tokens: int, is_causal: bool) -> float:
    """Mean over queries of the entropy of even weights, in nats: the most that is possible."""
    if is_causal:
        return mean(log(seen) for seen in range(1, tokens + 1))
    return log(tokens)


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
    """Of the branch's Jacobian at a point (N, D), without and with the residual; None where it is not asked for.

    Exact in float64, matrix-free in float32.
    """
    if jacobian == "none":
        return None, None
    if jacobian == "exact" or (jacobian == "auto" and point.numel() <= MOST_ROWS):
        matrix = matrix_at(branch, point.double())
        identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        return exact_norms(matrix), exact_norms(matrix + identity)
    return estimate_norms(Jacobian(AttentionBranch(block, torch.float32), point.float()))
