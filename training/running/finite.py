"""Stops a run whose loss or weights have become NaN or infinite."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from .checkpoints import whole_checkpoints


class NotFinite(ValueError):
    """The loss, or the weights, became NaN or infinite."""


class FiniteGuard:
    """Remembers the first step that was not finite; on the device, so that no step has to wait for it.

    Args:
        folder: of the run, whose last whole checkpoint the error names.
    """

    def __init__(self, device: torch.device, folder: Path):
        self.folder = folder
        self.first_bad_step = torch.tensor(-1, device=device)

    def watch(self, loss: torch.Tensor, step: int) -> None:
        """Takes note of the loss of a step; on a CPU raises NotFinite at once."""
        bad = ~torch.isfinite(loss) & (self.first_bad_step < 0)
        self.first_bad_step = torch.where(bad, step, self.first_bad_step)
        if loss.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Raises NotFinite, with the step, once a loss was not; on a GPU this waits for the device."""
        step = int(self.first_bad_step)
        if step < 0:
            return
        kept = "no checkpoint had been written"
        whole = whole_checkpoints(self.folder)
        if whole:
            kept = f"the last good checkpoint is {whole[-1]}"
        raise NotFinite(f"loss or weights are not finite at step {step}; {kept}; try a lower learning_rate")

    def check_finite(self, model: PreTrainedModel, step: int) -> None:
        """Raises NotFinite as well where the loss was finite, but a gradient was not; `step` is the last one."""
        finite = all(torch.isfinite(parameter).all() for parameter in model.parameters())
        if not finite and int(self.first_bad_step) < 0:
            self.first_bad_step = torch.tensor(step, device=self.first_bad_step.device)
        self.check()
