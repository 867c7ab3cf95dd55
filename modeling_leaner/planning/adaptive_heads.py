"""How many heads each layer gets: shared out so that the effective rank per head is as equal as possible.

What a layer's heads say is measured elsewhere (`inspection.effective_rank`) and is here a list of numbers: the
effective rank of the outputs of its first heads, one, two and so on. The head size is the same in every layer, so that
parameters and FLOPs depend on the sum of the heads alone: each way to share them out costs the same.
"""

import random
from collections.abc import Sequence
from math import ceil

from ..configuration_leaner import LeanConfig
from .dials import fields_of, heads_by_layer


MOST_OVER_MEAN = 2  # no layer gets more heads than so many times the mean


def total_heads(config: LeanConfig) -> int:
    """The heads of all layers together."""
    return sum(config.heads_per_layer)


def head_step(config: LeanConfig) -> int:
    """What divides the heads of every layer: of LeanGPT its number of key-value heads; 1 of the other families.

    Also where each head has a key-value head of its own, in which `dials.head_multiple` is 1: layers that differ have
    one number of key-value heads, which stays.
    """
    return fields_of(config).get("num_key_value_heads", 1)


def check_total(config: LeanConfig, total: int) -> None:
    """Raises ValueError where the layers leave nothing of `total` heads to share out, or not in whole steps."""
    layers = config.num_hidden_layers
    step = head_step(config)
    if total <= layers * step:
        least = f"{total} heads, and each of {layers} layers has at least {step}"
        if step > 1:
            least += ", a multiple of its num_key_value_heads"
        raise ValueError(f"{least}: nothing to share out; expected more than {layers * step} heads")
    if total % step:
        raise ValueError(f"{total} heads: expected a multiple of the {step} key-value heads")


def most_heads(config: LeanConfig, total: int) -> int:
    """The most heads that a layer may get where `total` are shared out: twice the mean, rounded up to whole steps."""
    layers = config.num_hidden_layers
    step = head_step(config)
    return step * ceil(MOST_OVER_MEAN * total / (layers * step))


def share_out(ranks: Sequence[Sequence[float]], total: int, step: int = 1) -> list[int]:
    """Heads of each layer, `total` in all: the effective rank per head as equal as whole heads allow.

    Every layer begins with `step` heads. The next go, `step` at a time, to the layer whose heads would then have the
    most effective rank each. Greedy: the smallest rank per head is the largest possible where rank per head falls with
    every head added.

    Args:
        ranks: per layer, the effective rank of the outputs of its first 1, 2, ... heads; so many are the most it gets.

    Raises ValueError for more heads in all than the ranks have.
    """
    most = sum(len(layer) // step * step for layer in ranks)
    if total > most:
        raise ValueError(f"total is {total}, expected {most} or less, of which the ranks are known")
    heads = [step] * len(ranks)
    while sum(heads) < total:
        growing = [layer for layer, number in enumerate(heads) if number + step <= len(ranks[layer])]
        shares = {layer: rank_per_head(ranks[layer], heads[layer] + step) for layer in growing}
        heads[max(growing, key=shares.get)] += step
    return heads


def rank_per_head(ranks: Sequence[float], heads: int) -> float:
    """Effective rank of the outputs of a layer's first heads, over their number."""
    return ranks[heads - 1] / heads


def shuffled(heads: Sequence[int], seed: int) -> list[int]:
    """The same numbers of heads in another order of layers, as a control.

    Raises ValueError where all are equal, so that there is no other order.
    """
    if len(set(heads)) == 1:
        raise ValueError(f"every layer has {heads[0]} heads: there is no other order of them")
    draws = random.Random(seed)
    other = list(heads)
    while other == list(heads):
        draws.shuffle(other)
    return other


def with_heads(config: LeanConfig, heads: Sequence[int]) -> LeanConfig:
    """The shape with so many heads in each layer, all of the size that they have."""
    fields = fields_of(config)
    fields["num_attention_heads"] = heads[0]
    if len(set(heads)) > 1:
        fields["per_layer_config"] = heads_by_layer(heads)
    return type(config)(architectures=config.architectures, **fields)
