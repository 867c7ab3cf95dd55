"""The effective rank of head outputs, layer by layer, as heads are added: what the next head of a layer is worth."""

from collections.abc import Sequence
from statistics import mean

import torch
from transformers import PreTrainedModel

from ..conditioning import effective_rank
from ..support.models import evaluating
from ..support.progress import Progress, no_progress
from .layers import AttentionBranch, Row, Walk, check_block


@torch.no_grad()
def effective_ranks(
    model: PreTrainedModel, rows: Sequence[Row], progress: Progress = no_progress
) -> list[list[float]]:
    """Per layer, the effective rank of the concatenated outputs of its first 1, 2, ... heads, the mean over the rows.

    The matrix is that of `conditioning.head_condition_numbers`, (N, H·d), a row each, but for heads left out. Query
    heads that share a key-value head are taken in turns with those of the others, so that H heads are as a layer of H
    would have them.

    Raises:
        ValueError: as `layers.inspect_layers`.
    """
    with evaluating(model):
        walk = Walk(model, rows)
        ranks = []
        for layer in progress(list(range(len(walk.blocks))), "layers"):
            branch = AttentionBranch(walk.blocks[layer], torch.double)
            states = [each[0] for each in walk.states]
            check_block(branch, layer, states)
            of_rows = [ranks_of_row(branch, row) for row in states]
            ranks.append([mean(of_heads) for of_heads in zip(*of_rows)])
            walk.pass_block(layer)
        return ranks


def ranks_of_row(branch: AttentionBranch, row: torch.Tensor) -> list[float]:
    """The effective rank of the outputs of the first 1, 2, ... heads on the states (N, D) of one row."""
    _, outputs = branch.heads(row.double())  # (N, H, d)
    groups = branch.attention.num_key_value_groups
    outputs = outputs.unflatten(1, (-1, groups)).transpose(1, 2).flatten(1, 2)
    return [effective_rank(outputs[:, :heads].flatten(1)) for heads in range(1, outputs.shape[1] + 1)]
