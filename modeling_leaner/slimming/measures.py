"""What a model can spare, measured on calibration rows: layers and heads by the output, neurons by what they add.

A *batch* is a dict of tensors that the model takes. The *output* is what the model is for, one vector per row or
token; its *change* is the share of its variance by which it moved: 0 where nothing moved, 1 where it is as far off as
the mean output for every row.
"""

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..layers_leaner import LeanPreTrainedModel
from ..models import Pool, block_inputs, mean_over_tokens, with_channels, without_unpadding


BATCH_SIZE = 32
EXHAUSTIVE_DEPTH = 12  # up to here every choice of layers is tried

Batch = dict[str, torch.Tensor]


def make_batches(model: LeanPreTrainedModel, processor: object, rows: Sequence, max_length: int) -> list[Batch]:
    """Texts (tokens up to `max_length`) or PIL images, as the model reads them, in batches of 32."""
    groups = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
    if model.main_input_name == "pixel_values":
        channels = model.config.num_channels
        images = [[with_channels(image, channels) for image in group] for group in groups]
        return [dict(processor(group, return_tensors="pt")) for group in images]
    tokenizer = padding_tokenizer(processor)
    options = {"max_length": min(max_length, model.config.max_position_embeddings), "return_tensors": "pt"}
    read = [tokenizer(list(group), padding=True, truncation=True, **options) for group in groups]
    return [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in read]


def padding_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy that pads at the right, for padding and truncation stay set in a tokenizer, which is saved with the cut.

    Without padding token it pads with its end token, which the mask leaves out.
    """
    padding = copy.deepcopy(tokenizer)
    if padding.pad_token is None:
        padding.pad_token = padding.eos_token
    padding.padding_side = "right"
    return padding


def model_output(model: LeanPreTrainedModel, batch: Batch, pool: Pool) -> torch.Tensor:
    """What a cut should leave as it is: (rows, features).

    A bare encoder's embeddings, of length 1; a language model's states before its vocabulary, one per token; of every
    other head the logits, one row per token where they are per token. Padding is left out.
    """
    mask = batch.get("attention_mask")
    if model.base_model is model:
        states = model(**batch).last_hidden_state
        return nn.functional.normalize(pool(states, mask), dim=-1)
    if hasattr(model, "lm_head"):
        states = model.base_model(**batch).last_hidden_state
    else:
        states = model(**batch).logits
    if states.dim() == 2:
        return states
    return states.flatten(0, 1) if mask is None else states[mask.bool()]


@dataclass(frozen=True)
class Reference:
    """A model's output on each of some batches, to which those of its cuts are compared."""

    pairs: list[tuple[Batch, torch.Tensor]]
    variance: float
    pool: Pool

    @classmethod
    @torch.no_grad()
    def of(cls, model: LeanPreTrainedModel, batches: list[Batch], pool: Pool = mean_over_tokens) -> "Reference":
        """Runs the model, whose output must differ from row to row: else nothing could be compared."""
        outputs = [model_output(model, batch, pool) for batch in batches]
        rows = torch.cat(outputs).double()
        variance = (rows - rows.mean(dim=0)).square().sum().item()
        if not 0 < variance < math.inf:
            raise ValueError(f"the output of {type(model).__name__} is not finite, or the same for all rows")
        return cls(list(zip(batches, outputs)), variance, pool)

    @torch.no_grad()
    def change(self, model: LeanPreTrainedModel) -> float:
        """The change of another model's output on the same batches."""
        outputs = ((model_output(model, batch, self.pool), output) for batch, output in self.pairs)
        return sum((own.double() - output.double()).square().sum().item() for own, output in outputs) / self.variance


class LayerRunner:
    """Runs any choice of a model's layers on one batch; what choices share at their beginning is computed once."""

    def __init__(self, model: LeanPreTrainedModel, batch: Batch, output: torch.Tensor, pool: Pool):
        self.model, self.batch, self.pool = model, batch, pool
        self.expected = output.double()
        self.layers = model.base_model.layers
        states, self.arguments, self.options = block_inputs(model, batch)
        self.states: dict[tuple[int, ...], torch.Tensor] = {(): states}  # by the layers that were run

    def after(self, chosen: tuple[int, ...]) -> torch.Tensor:
        """The states after these layers. Keeps those after their beginnings, and no others.

        Choices come in order, so what is kept is all that the next one can begin with.
        """
        if chosen not in self.states:
            before = self.after(chosen[:-1])
            beginnings = {chosen[:length] for length in range(len(chosen))}
            self.states = {was_run: states for was_run, states in self.states.items() if was_run in beginnings}
            self.states[chosen] = self.layers[chosen[-1]](before, *self.arguments, **self.options)
        return self.states[chosen]

    def squared_error(self, states: torch.Tensor) -> float:
        """Of the model's output where its last layer leaves these states: a sum, in float64."""
        own, replay = self.layers, nn.Module()
        replay.forward = lambda *args, **kwargs: states  # whatever it reads
        self.model.base_model.layers = nn.ModuleList([replay])
        try:
            with without_unpadding(self.model):
                output = model_output(self.model, self.batch, self.pool)
        finally:
            self.model.base_model.layers = own
        return (output.double() - self.expected).square().sum().item()


@torch.no_grad()
def rank_layers(model: LeanPreTrainedModel, reference: Reference, kept: int) -> dict[tuple[int, ...], float]:
    """Choices of `kept` layers, counted from 0, with the change of the output without the others; the least first.

    All choices up to a depth of 12. Beyond, one layer after the other is left out, always that which changes the
    output least (greedy); the choices are those of the last step.
    """
    depth = model.config.num_hidden_layers
    best = tuple(range(depth))
    changes = {best: 0.0}
    while len(best) > kept:
        size = kept if depth <= EXHAUSTIVE_DEPTH else len(best) - 1
        moved = dict.fromkeys(combinations(best, size), 0.0)
        for batch, output in tqdm(reference.pairs, "measuring layers", leave=False, disable=None):
            runner = LayerRunner(model, batch, output, reference.pool)
            for layers in moved:
                moved[layers] += runner.squared_error(runner.after(layers))
        changes = {layers: each / reference.variance for layers, each in moved.items()}
        best = min(changes, key=changes.get)
    return dict(sorted(changes.items(), key=lambda choice: choice[1]))


@torch.no_grad()
def input_moments(
    model: LeanPreTrainedModel, reference: Reference, module: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Means and variances per layer of what a linear layer reads, over all tokens; padding is left out.

    `module` is its name in every layer: "self_attn.o_proj", "mlp.fc2".
    """
    linears = [layer.get_submodule(module) for layer in model.base_model.layers]
    tokens = 0
    sums = [linear.weight.new_zeros(linear.in_features, dtype=torch.double) for linear in linears]
    squares = [torch.zeros_like(total) for total in sums]
    read: dict[nn.Module, torch.Tensor] = {}
    with ExitStack() as hooks:
        for linear in linears:
            hooks.enter_context(linear.register_forward_pre_hook(lambda linear, args: read.update({linear: args[0]})))
        for batch, _ in reference.pairs:
            with without_unpadding(model):
                model.base_model(**batch)
            mask = batch.get("attention_mask", torch.ones(read[linears[0]].shape[:2])).bool()
            tokens += int(mask.sum())
            for index, linear in enumerate(linears):
                rows = read[linear][mask].double()
                sums[index] += rows.sum(dim=0)
                squares[index] += rows.square().sum(dim=0)
    means = [total / tokens for total in sums]
    variances = [total / tokens - mean.square() for total, mean in zip(squares, means)]
    return means, variances


@torch.no_grad()
def changes_by_head(
    model: LeanPreTrainedModel, reference: Reference, means: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Per layer (H): the change of the output where one head alone is held at its mean (leave one out)."""
    moved = [torch.zeros(heads, dtype=torch.double) for heads in model.config.heads_per_layer]
    for batch, output in tqdm(reference.pairs, "measuring heads", leave=False, disable=None):
        runner = LayerRunner(model, batch, output, reference.pool)
        for index, layer in enumerate(runner.layers):
            before = runner.after(tuple(range(index)))
            mean = means[index].to(before)
            head_of = torch.arange(len(mean), device=mean.device) // model.config.head_dim  # each column
            for head in range(len(moved[index])):
                handle = layer.self_attn.o_proj.register_forward_pre_hook(
                    lambda _, args, held=head_of == head, mean=mean: (torch.where(held, mean, args[0]),)
                )
                with handle:
                    states = layer(before, *runner.arguments, **runner.options)
                for later in runner.layers[index + 1 :]:
                    states = later(states, *runner.arguments, **runner.options)
                moved[index][head] += runner.squared_error(states)
    return [of_heads / reference.variance for of_heads in moved]
