"""A model in evaluation mode, or without unpadding, for a block of code; what its first block reads; token means."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from transformers import PreTrainedModel


def is_named_as(module: torch.nn.Module | None, kind: type[torch.nn.Module]) -> bool:
    """Whether a module's class has the name of `kind`.

    By name, for a model that was loaded with `trust_remote_code=True` has classes of its own: copies of this
    package's, of which its modules are no instances.
    """
    return type(module).__name__ == kind.__name__


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards each of its modules is in the mode that it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def without_unpadding(model: PreTrainedModel) -> Iterator[None]:
    """Inside, batches go through the layers as they are: for hooks that read states row by row."""
    config = model.config
    unpads = getattr(config, "unpad_inputs", False)
    if not unpads:
        yield
        return
    config.unpad_inputs = False
    try:
        yield
    finally:
        config.unpad_inputs = True


class AtFirstBlock(Exception):
    """A forward pass has come to block 0: the rest of it is not needed."""


def block_inputs(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, tuple, dict]:
    """What block 0 reads of a batch: states (B, T, D), and what all blocks get beside them, without a cache.

    By the model itself, for the families embed and mask each in their own way.
    """
    read = []

    def stop(block: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        read.append((args[0], args[1:], kwargs | {"past_key_values": None}))
        raise AtFirstBlock

    handle = model.base_model.layers[0].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with without_unpadding(model), suppress(AtFirstBlock):
            model.base_model(**batch)
    finally:
        handle.remove()
    return read[0]


def mean_over_tokens(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(B, T, D) → (B, D); positions that `mask` (B, T) pads are left out, and a row of these alone gives 0."""
    if mask is None:
        return states.mean(dim=1)
    weights = mask.to(states.dtype)[..., None]
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
