"""A model in evaluation mode, or without unpadding, for a block of code; a module's class; the mean over tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

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


def mean_over_tokens(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(B, T, D) → (B, D); positions that `mask` (B, T) pads are left out, and a row of these alone gives 0."""
    if mask is None:
        return states.mean(dim=1)
    weights = mask.to(states.dtype)[..., None]
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
