"""Running a model: in evaluation mode, without unpadding, timed in turns; images with the channels that it reads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL.Image import Image
from torch.utils.benchmark import timer
from transformers import PreTrainedModel


MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by the number of channels
LEAST_ROUNDS = 3  # however long they take


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
    unpads = getattr(model.config, "unpad_inputs", False)
    if unpads:
        model.config.unpad_inputs = False
    try:
        yield
    finally:
        if unpads:
            model.config.unpad_inputs = True


def block_inputs(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, tuple, dict]:
    """What block 0 reads of a batch: states (B, T, D), and what all blocks get beside them, without a cache.

    By the model itself, for the families embed and mask each in their own way.
    """
    read = []
    hook = model.base_model.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: read.append((args[0], args[1:], kwargs | {"past_key_values": None})), with_kwargs=True
    )
    with hook, without_unpadding(model):
        model.base_model(**batch)
    return read[0]


Pool = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]  # (B, D), of states (B, T, D) and a mask (B, T)


def mean_over_tokens(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(B, T, D) → (B, D); positions that `mask` (B, T) pads are left out, and a row of these alone gives 0."""
    if mask is None:
        return states.mean(dim=1)
    weights = mask.to(states.dtype)[..., None]
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def with_channels(image: Image, channels: int) -> Image:
    """Greyscale, palettes and transparency in the mode of `channels`; of a number without one the image as it is."""
    mode = MODES.get(channels, image.mode)
    return image if image.mode == mode else image.convert(mode)


def seconds_of(call: Callable[[], object]) -> float:
    """Time of a call; the queue of a GPU is emptied before and after."""
    start = timer()
    call()
    return timer() - start


def take_turns(
    timed: Sequence[Callable[[], float]], rounds: int, *, warm_up: int = 2, limit: float = float("inf")
) -> np.ndarray:
    """The seconds that the calls return, without those of the rounds that warm up: (calls, rounds).

    Every other round runs backwards. After `LEAST_ROUNDS` it ends once the slowest call has taken `limit` seconds.
    """
    for _ in range(warm_up):
        for call in timed:
            call()
    seconds: list[list[float]] = [[] for _ in timed]
    order = list(range(len(timed)))
    for done in range(rounds):
        if done >= LEAST_ROUNDS and max(map(sum, seconds), default=0.0) > limit:
            break
        for turn in order:
            seconds[turn].append(timed[turn]())
        order.reverse()
    return np.array(seconds)
