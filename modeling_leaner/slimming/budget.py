"""How many layers a share of the time of a forward pass on this machine allows; the parameters of a model."""

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
