"""Text as bytes, for small language models: a vocabulary that needs no training, and the guess to be beaten."""

import torch
from torch import Tensor


BYTES = 256  # the vocabulary


def bigram_nats(before: Tensor, after: Tensor, smoothing: float) -> Tensor:
    """−ln of the share that each byte has after each other one, (256, 256), float64.

    Args:
        before, after: (N) int64, the bytes of a text and those that follow them.
        smoothing: added to every count.
    """
    counts = torch.bincount(before * BYTES + after, minlength=BYTES**2).view(BYTES, BYTES).double() + smoothing
    return -(counts / counts.sum(dim=1, keepdim=True)).log()
