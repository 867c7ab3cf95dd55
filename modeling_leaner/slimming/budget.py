"""How many layers a budget allows: a share of the parameters, or of the time of a forward pass on this machine."""

import functools

import torch
from torch import nn

from ..configuration_leaner import ParameterCount
from ..layers_leaner import LeanPreTrainedModel
from ..support.turns import seconds_of, take_turns
from .measures import Batch, replaced_layers
from .operations import SlimError


ROUNDS = 5


def parse_share(flag: str, text: str) -> float:
    """`"0.6x"` → 0.6. Raises SlimError, naming the flag, for anything else than a share between 0 and 1."""
    try:
        share = float(text.removesuffix("x"))
    except ValueError:
        share = 0.0
    if not text.endswith("x") or not 0 < share < 1:
        raise SlimError(f"{flag}: expected a share of the source between 0 and 1, as 0.6x, got {text!r}")
    return share


def layers_for_params(model: LeanPreTrainedModel, share: float) -> int:
    """The most layers with which the model has at most `share` of its parameters, embeddings included.

    Raises SlimError, with the smallest share, where a single layer has more.
    """
    depth = model.config.num_hidden_layers
    of_layers = sorted(sum(weight.numel() for weight in layer.parameters()) for layer in model.base_model.layers)
    elsewhere = parameters_of(model).total - sum(of_layers)
    sizes = [elsewhere + sum(of_layers[-layers:]) for layers in range(1, depth + 1)]  # the largest may stay
    limit = share * sizes[-1]
    allowed = [layers for layers, size in enumerate(sizes, start=1) if size <= limit]
    if not allowed:
        reason = (
            f"no cut in depth has {share:g} of the source's {sizes[-1]:,} parameters; the smallest is "
            f"{sizes[0] / sizes[-1]:.2f}x, one layer of {depth}, {sizes[0]:,}"
        )
        raise SlimError(reason, settings=["params"])
    return allowed[-1]


def parameters_of(model: LeanPreTrainedModel) -> ParameterCount:
    """Parameters of a built model, and how many of them are embeddings."""
    embeddings = model.config.count_parameters().embeddings
    return ParameterCount(model.num_parameters(), embeddings)


@torch.no_grad()
def layers_for_latency(model: LeanPreTrainedModel, share: float, batch: Batch) -> int:
    """The most layers with which a forward pass takes at most `share` of the model's time.

    Measured in turns, with the model's first layers: which layers stay is not known yet.

    Raises SlimError, with the smallest share, where a single layer takes longer.
    """
    depth = model.config.num_hidden_layers
    depths = range(1, depth + 1)
    calls = [functools.partial(forward_seconds, model, batch, layers) for layers in depths]
    quickest = take_turns(calls, ROUNDS).min(axis=1)
    shares = dict(zip(depths, quickest / quickest[-1]))
    allowed = [layers for layers in shares if shares[layers] <= share]
    if not allowed:
        reason = (
            f"no cut in depth takes {share:g} of the source's time; the smallest, one layer, takes {shares[1]:.2f}x"
        )
        raise SlimError(reason, settings=["latency"])
    return max(allowed)


def forward_seconds(model: LeanPreTrainedModel, batch: Batch, layers: int) -> float:
    """Time of a forward pass of the model's first layers."""
    first = nn.ModuleList(list(model.base_model.layers)[:layers])
    with replaced_layers(model, first):
        return seconds_of(functools.partial(model, **batch))
