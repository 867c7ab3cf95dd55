"""What every contestant has to do: a step of one shape, with the same made-up batch, dtype and loss."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.planning.flops import training_flops
from modeling_leaner.planning.memory import StepSetting, training_memory
from modeling_leaner.registry import TEXT
from modeling_leaner.shapes import modality_of

from .decoding import decoding_flops
from .measured_shapes import made_up_batch, without_labels


TRAINING = "training"
DECODING = "decoding"
EAGER = "eager"  # attention that keeps its weights
COUNTED = (EAGER, "sdpa", "lean")  # whose memory is counted; any other is taken for SDPA


def class_name(config: LeanConfig) -> str:
    """The family's class with its pretraining head, as LeanBERTForMaskedLM."""
    return type(config).__name__.removesuffix("Config") + config.task_heads[0]


@dataclass(frozen=True)
class Workload:
    """A step of `batch` items of `length` tokens each, to which decoding adds `new_tokens`.

    `phase` is training, inference or decoding, `dtype` torch's name.
    """

    phase: str
    shape: str
    config: LeanConfig
    dtype: str
    batch: int
    length: int
    device: torch.device
    new_tokens: int = 0

    @property
    def trains(self) -> bool:
        return self.phase == TRAINING

    @property
    def decodes(self) -> bool:
        return self.phase == DECODING

    @property
    def items(self) -> int:
        """What a step gets done: items of the batch, of decoding new tokens."""
        if self.decodes:
            return self.batch * self.new_tokens
        return self.batch

    @property
    def names(self) -> dict[str, Any]:
        """The workload as `BenchWork` names it."""
        return {
            "phase": self.phase,
            "shape": self.shape,
            "layers": self.config.num_hidden_layers,
            "heads": max(self.config.heads_per_layer),
            "head_dim": self.config.head_dim,
            "dtype": self.dtype,
            "batch": self.batch,
            "length": self.length,
            "new_tokens": self.new_tokens,
        }

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

    def flops(self, scores_masked_tokens_only: bool = False) -> int:
        """FLOPs of a step's matrix products; raises ValueError for a length that the shape cannot have.

        `scores_masked_tokens_only`: a masked language model computes its vocabulary's scores for masked tokens alone.
        """
        if self.decodes:
            return self.batch * decoding_flops(self.config, self.length, self.new_tokens)
        if self.trains and scores_masked_tokens_only:
            return self.batch * training_flops(self.config, self.length)
        of_an_item = self.config.count_flops(self.length, class_name(self.config))
        if self.trains:
            return self.batch * of_an_item.training_step
        return self.batch * of_an_item.forward

    def needed_memory(self, attention: str) -> int:
        """Bytes of one contestant's tensors, by arithmetic.

        Without training they are those of its weights, of what is kept or scored for each token, and of eager
        attention's weights in one layer, before and after their softmax.
        """
        if attention not in COUNTED:
            attention = "sdpa"
        setting = replace(self.setting, attention=attention)
        estimate = training_memory(self.config, setting)
        if self.trains:
            return estimate.peak
        size = setting.value_bytes
        needed = estimate.parameters
        if self.decodes:
            needed += self.batch * (self.length + self.new_tokens) * self.config.kv_bytes_per_token(size)
        elif modality_of(self.config) is TEXT:
            needed += self.batch * self.length * self.config.vocab_size * size
        if attention == EAGER:
            needed += 2 * self.batch * max(self.config.heads_per_layer) * self.length**2 * size
        return needed

    def make_up_batch(self) -> dict[str, torch.Tensor | bool]:
        """The same numbers in every call; labels for training alone. Decoding alone keeps keys and values."""
        torch.manual_seed(0)
        batch = made_up_batch(self.config, self.setting, self.batch, self.device)
        if not self.trains:
            batch = without_labels(batch)
        if hasattr(self.config, "use_cache") and not self.decodes:
            batch["use_cache"] = False
        return batch

    def autocast(self) -> AbstractContextManager:
        """The context of a forward pass; it changes nothing where `precision` is not autocast."""
        return torch.autocast(self.device.type, getattr(torch, self.dtype), enabled=self.precision == "autocast")
