"""What every contestant has to do: a step of one shape, with the same made-up batch, dtype and loss."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.planning.memory import StepSetting, training_memory

from ..running.timing import made_up_batch, without_labels


TRAINING = "training"
INFERENCE = "inference"


def class_name(config: LeanConfig) -> str:
    """The family's class with its pretraining head, as LeanBERTForMaskedLM."""
    return type(config).__name__.removesuffix("Config") + config.task_heads[0]


@dataclass(frozen=True)
class Workload:
    """A step of `batch` items of `length` tokens each; `phase` is training or inference, `dtype` torch's name."""

    phase: str
    shape: str
    config: LeanConfig
    dtype: str
    batch: int
    length: int
    device: torch.device

    @property
    def trains(self) -> bool:
        return self.phase == TRAINING

    @property
    def precision(self) -> str:
        """How a step computes in the dtype: float32, cast (weights, too), or autocast (weights stay float32)."""
        if self.dtype == "float32":
            return "float32"
        if self.trains:
            return "autocast"
        return "cast"

    @property
    def setting(self) -> StepSetting:
        """The step as `planning.memory` describes it, in the dtype of the weights."""
        dtype = self.dtype
        if self.precision == "autocast":
            dtype = "float32"
        kind = "cpu"
        if self.device.type == "cuda":
            kind = "gpu"
        return StepSetting(self.batch, self.length, dtype, device=kind)

    @property
    def weights(self) -> torch.dtype:
        """The dtype of the weights."""
        return getattr(torch, self.setting.dtype)

    @property
    def flops(self) -> int:
        """FLOPs of a step's matrix products; raises ValueError for a length that the shape cannot have."""
        of_an_item = self.config.count_flops(self.length, class_name(self.config))
        if self.trains:
            return self.batch * of_an_item.training_step
        return self.batch * of_an_item.forward

    def needed_memory(self) -> int:
        """Bytes of one contestant's tensors, by arithmetic; of inference those of its weights."""
        estimate = training_memory(self.config, self.setting)
        if self.trains:
            return estimate.peak
        return estimate.parameters

    def make_up_batch(self) -> dict[str, torch.Tensor | bool]:
        """The same numbers in every call; labels for training alone. No key-value cache is asked for."""
        torch.manual_seed(0)
        batch = made_up_batch(self.config, self.setting, self.batch, self.device)
        if not self.trains:
            batch = without_labels(batch)
        if hasattr(self.config, "use_cache"):
            batch["use_cache"] = False
        return batch

    def autocast(self) -> AbstractContextManager:
        """The context of a forward pass; it changes nothing where `precision` is not autocast."""
        return torch.autocast(self.device.type, getattr(torch, self.dtype), enabled=self.precision == "autocast")
