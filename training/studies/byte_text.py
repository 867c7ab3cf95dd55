"""Text as bytes, for small language models: a vocabulary that needs no training, and the guess to be beaten."""

import torch
from torch import Tensor


BYTES = 256  # the vocabulary
SMOOTHING = 0.1  # added to every count of a bigram


def bigram_nats(before: Tensor, after: Tensor) -> Tensor:
    """−ln of the share that each byte has after each other one, (256, 256), float64.

    Args:
        before, after: (N) int64, the bytes of a text and those that follow them.
    """
    counts = torch.bincount(before * BYTES + after, minlength=BYTES**2).view(BYTES, BYTES).double() + SMOOTHING
    return -(counts / counts.sum(dim=1, keepdim=True)).log()
