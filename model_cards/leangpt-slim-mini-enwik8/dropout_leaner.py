# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""Dropout of layers and attention, faster than PyTorch's in eager training on a CPU; and whether a tensor is there."""

import numpy as np
import torch
from torch import nn


def is_eager_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether operations on a tensor run one by one on a CPU: not compiled, traced, or transformed by torch.func.

    False for subclasses of a tensor, such as FakeTensor and DTensor.
    """
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
        return False
    is_recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not is_recorded and not torch._C._are_functorch_transforms_active()


def dropped_of_65536(p: float) -> int:
    """A probability in the steps in which `draw_kept` drops."""
    return round(p * 2**16)


def draw_kept(shape: torch.Size, p: float) -> torch.Tensor:
    """1 for what dropout keeps and 0 for what it drops, as int8, which becomes floating point faster than bool does.

    One random number of 64 bits decides four elements, so `p` is rounded to a multiple of 1/65,536. PyTorch's
    generator of the CPU gives a seed, NumPy's SFC64 the numbers, in a third of the time.
    """
    elements = shape.numel()
    seed = int(torch.randint(2**63 - 1, (), device="cpu"))
    numbers = np.random.SFC64(seed).random_raw(-(-elements // 4)).view(np.int16)  # -32,768 to 32,767
    kept = torch.from_numpy(numbers)[:elements] >= dropped_of_65536(p) - 2**15
    return kept.view(torch.int8).view(shape)


def scale_of_kept(p: float) -> float:
    """What dropout multiplies by what it keeps, so that the mean stays."""
    return 2**16 / (2**16 - dropped_of_65536(p))


def drops_here(tensor: torch.Tensor, p: float) -> bool:
    """Whether dropout by `draw_kept` takes the place of PyTorch's: not where `p` rounds to 0 or 1."""
    return 0 < dropped_of_65536(p) < 2**16 and is_eager_on_cpu(tensor)


def drop(hidden_states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Dropout of a tensor of any shape. Raises ValueError for a `p` outside of 0 to 1, as PyTorch's does."""
    if not training or not drops_here(hidden_states, p):
        return nn.functional.dropout(hidden_states, p, training)
    return (hidden_states * draw_kept(hidden_states.shape, p)).mul_(scale_of_kept(p))


class Dropout(nn.Dropout):
    """`drop` as a module; never in place."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return drop(hidden_states, self.p, self.training)
