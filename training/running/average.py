"""The exponential average of the weights that a run may keep, evaluate and save in their place."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import PreTrainedModel, TrainerCallback


FILE = "ema.safetensors"


class WeightAverage(TrainerCallback):
    """Follows the weights of a model after every step; without a `decay` there is no average, and nothing happens."""

    def __init__(self, decay: float | None):
        self.decay = decay
        self.weights: list[torch.Tensor] | None = None  # in the order of the model's parameters; none before a step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.decay is None:
            return
        weights = list(model.parameters())
        if self.weights is None:
            self.weights = [weight.detach().clone() for weight in weights]
        # Early on, the average forgets faster, as TensorFlow's ExponentialMovingAverage with num_updates.
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        get_ema_multi_avg_fn(decay)(self.weights, weights, None)

    @torch.no_grad()
    def _swap(self, model: PreTrainedModel) -> None:
        if self.weights is None:
            return
        for parameter, average in zip(model.parameters(), self.weights):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    @contextmanager
    def in_place_of_weights(self, model: PreTrainedModel) -> Iterator[None]:
        """Puts the averaged weights into the model while the block runs."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    def replace_weights(self, model: PreTrainedModel) -> None:
        """Puts the averaged weights into the model for good."""
        self._swap(model)
        self.weights = None

    def save(self, model: PreTrainedModel, checkpoint: Path) -> None:
        """Writes the average into a checkpoint, under the names of the model's parameters."""
        if self.weights is not None:
            names = [name for name, _ in model.named_parameters()]
            save_file(dict(zip(names, self.weights)), checkpoint / FILE)

    def load(self, model: PreTrainedModel, checkpoint: Path, device: torch.device) -> None:
        """Reads the average of a checkpoint that has one."""
        if self.decay is not None and (checkpoint / FILE).is_file():
            tensors = load_file(checkpoint / FILE)
            self.weights = [tensors[name].to(device) for name, _ in model.named_parameters()]
