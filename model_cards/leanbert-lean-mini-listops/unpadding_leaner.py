# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""Unpadding: the tokens of a padded batch laid side by side in fewer rows, through the layers of an encoder, and back.

Shapes: B rows of T places with padding, R rows of S places without, but for what is left over at their ends.
"""

import torch
from transformers import PreTrainedModel

from .configuration_leaner import LeanConfig


MOST_IN_A_ROW = 3  # times the longest sequence: longer rows gained nothing on GLUE's batches
STEPS = 8  # rows grow by an eighth of the longest sequence, by a place at least


def rows_for(lengths: list[int], size: int) -> list[list[int]]:
    """Which sequences share a row of `size` places: each, the longest first, in the first row that has room."""
    rows: list[list[int]] = []
    free: list[int] = []
    for sequence in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        row = next((index for index, room in enumerate(free) if room >= lengths[sequence]), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(size)
        rows[row].append(sequence)
        free[row] -= lengths[sequence]
    return rows


def cheapest_rows(lengths: list[int], config: LeanConfig) -> tuple[list[list[int]], int]:
    """Which sequences share a row, and how many places a row has: longer rows fill better, attention looks further.

    A place costs 4·D·I + 2·D·M multiplications in a layer's linear maps and 2·S·I in its attention; I is the layer's
    heads × head_dim, M the width of its MLP.
    """
    longest = max(1, *lengths)
    inner = config.head_dim * sum(config.heads_per_layer)  # of all layers
    linear = config.hidden_size * (4 * inner + 2 * config.intermediate_size * config.num_hidden_layers)
    sizes = range(longest, MOST_IN_A_ROW * longest + 1, max(1, longest // STEPS))
    packings = {size: rows_for(lengths, size) for size in sizes}
    costs = {size: len(rows) * size * (linear + 2 * size * inner) for size, rows in packings.items()}
    size = min(costs, key=costs.get)  # of equal costs the shortest rows
    return packings[size], size


class Unpadding:
    """Where each token of a padded batch lies in the rows without padding.

    Args:
        attention_mask: (B, T), 1 for a token and 0 for padding, which may be on either side.
        config: of the model, for what a place costs.

    Attributes:
        sequences: (R, S), the row of the batch that each place is from; -1 for a place that is left over.
    """

    def __init__(self, attention_mask: torch.Tensor, config: LeanConfig):
        seen = attention_mask.bool().cpu()
        width = seen.shape[1]
        tokens = [row.nonzero()[:, 0] for row in seen]
        rows, size = cheapest_rows([len(row) for row in tokens], config)
        source = torch.zeros(len(rows), size, dtype=torch.long)  # places of the batch, flat
        sequences = torch.full((len(rows), size), -1)
        for row, members in enumerate(rows):
            end = 0
            for sequence in members:
                start, end = end, end + len(tokens[sequence])
                source[row, start:end] = sequence * width + tokens[sequence]
                sequences[row, start:end] = sequence
        device = attention_mask.device
        self.shape = seen.shape
        self.sequences = sequences.to(device)
        self._source = source.to(device)
        self._used = self.sequences >= 0

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) → (R, S, ...)."""
        return states.flatten(0, 1)[self._source]

    def unpack(self, states: torch.Tensor) -> torch.Tensor:
        """(R, S, D) → (B, T, D), 0 at padding."""
        padded = states.new_zeros(self.shape.numel(), states.shape[-1])
        padded = padded.index_copy(0, self._source[self._used], states[self._used])
        return padded.unflatten(0, self.shape)


def unpadding_of(model: PreTrainedModel, attention_mask: object, **kwargs) -> Unpadding | None:
    """How a batch is unpadded; None where it stays as it is.

    It stays if `config.unpad_inputs` is not set or there is no padding, if a graph is being recorded, which needs one
    shape, if hidden states or attentions are asked for, layer by layer, and if a pooler would read the state of
    padding, which is on the left.
    """
    config = model.config
    if not config.unpad_inputs or not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim != 2:
        return None
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or attention_mask.all():
        return None
    if getattr(model, "pooler", None) is not None and not attention_mask[:, 0].all():
        return None
    if any(kwargs.get(name, getattr(config, name)) for name in ("output_hidden_states", "output_attentions")):
        return None
    return Unpadding(attention_mask, config)
