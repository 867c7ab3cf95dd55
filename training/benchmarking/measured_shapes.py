"""Time and memory of shapes on this machine, beside what arithmetic says of them: `leaner plan --measure`.

Weights are random and data made up: neither changes the time. The shapes take turns, so that a slow minute of the
machine is shared by all; the first rounds warm up.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.models import quartiles, seconds_of, take_turns
from modeling_leaner.planning.memory import StepSetting, scored_rows


@contextmanager
def silenced() -> Iterator[None]:
    """Nothing is written to stderr, not even from C++: the profiler writes two lines there each time."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def device_of(setting: StepSetting) -> torch.device:
    """The device of the setting; raises ValueError where it is a GPU and the machine has none."""
    if setting.device != "gpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("--device gpu with --measure: this machine has no CUDA device; expected --device cpu")
    return torch.device("cuda")


def made_up_batch(
    config: LeanConfig, setting: StepSetting, items: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Inputs and labels of the pretraining head; of LeanBERT as many labels as `scored_rows` counts."""
    if config.task_heads[0] == "ForImageClassification":
        pixels = torch.randn(items, config.num_channels, *config.image_shape, dtype=getattr(torch, setting.dtype))
        return {"pixel_values": pixels.to(device), "labels": torch.zeros(items, dtype=torch.long, device=device)}
    ids = torch.randint(config.vocab_size, (items, setting.length_of(config)), device=device)
    labels = ids.clone()
    if config.task_heads[0] == "ForMaskedLM":
        rows = round(scored_rows(config, setting)[0] * items / setting.batch_size)
        labels.view(-1)[torch.randperm(labels.numel(), device=device)[rows:]] = -100
    return {"input_ids": ids, "labels": labels}


def without_labels(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs of a batch."""
    return {name: tensor for name, tensor in batch.items() if name != "labels"}


def peak_memory(
    step: Callable[[], None],
    held: Sequence[torch.Tensor],
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
) -> int:
    """Bytes of tensors at the peak of a step: those `held`, the optimizer's states, and what the step makes.

    An earlier step must have made the optimizer's states.
    """
    tensors = list(held)
    if optimizer is not None:
        for state in optimizer.state.values():
            tensors += [tensor for tensor in state.values() if tensor.numel() > 1]
    return sum(tensor.nbytes for tensor in tensors) + added_at_peak(step, device)


def added_at_peak(step: Callable[[], None], device: torch.device) -> int:
    """Bytes by which tensors exceed what is held already, at the peak of a step."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    with silenced(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(0, int(np.cumsum(changes).max()))


class Bench:
    """One shape, built, with its optimiser and two batches: the step's, and one item for latency.

    AdamW is PyTorch's, not fused, whose temporary tensors `planning/memory.py` counts.
    """

    def __init__(self, config: LeanConfig, setting: StepSetting):
        self.device = device_of(setting)
        auto_class = getattr(transformers, f"AutoModel{config.task_heads[0]}")
        options = {"attn_implementation": setting.attention, "dtype": getattr(torch, setting.dtype)}
        self.model = auto_class.from_config(config, **options).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = made_up_batch(config, setting, setting.batch_size, self.device)
        self.inputs = without_labels(self.batch)
        self.item = without_labels(made_up_batch(config, setting, 1, self.device))

    def train(self) -> None:
        """One step: forward, backward, update; gradients are dropped."""
        self.model.train()
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.inference_mode()
    def infer(self, inputs: dict[str, torch.Tensor]) -> None:
        self.model.eval()
        self.model(**inputs)

    def peak_memory(self) -> int:
        """Bytes of tensors at the peak of a training step; an earlier step must have made the optimiser's states."""
        held = [*self.model.parameters(), *self.batch.values()]
        return peak_memory(self.train, held, self.optimizer, self.device)


def time_each(benches: Sequence[Bench], call: Callable[[Bench], None], rounds: int) -> np.ndarray:
    """Seconds of a call on each bench: (benches, rounds)."""
    calls = [functools.partial(call, bench) for bench in benches]
    return take_turns([functools.partial(seconds_of, call) for call in calls], rounds)


def latencies(configs: Sequence[LeanConfig], setting: StepSetting, rounds: int = 7) -> list[float]:
    """Median seconds of one item's forward pass, per shape."""
    benches = [Bench(config, setting) for config in configs]
    return np.median(time_each(benches, lambda bench: bench.infer(bench.item), rounds), axis=1).tolist()


def measure(configs: Sequence[LeanConfig], setting: StepSetting, rounds: int = 7) -> list[dict[str, float]]:
    """Medians over the rounds, and half the interquartile range as `..._spread`, per shape.

    `training_step_s` and `inference_s` are of a batch, `latency_s` of one item, in seconds; `peak_memory_bytes` is of
    the tensors of a training step. All shapes are in memory at once. Raises ValueError without the device.
    """
    benches = [Bench(config, setting) for config in configs]
    calls = {
        "training_step_s": Bench.train,
        "inference_s": lambda bench: bench.infer(bench.inputs),
        "latency_s": lambda bench: bench.infer(bench.item),
    }
    rows: list[dict[str, float]] = [{} for _ in benches]
    for name, call in calls.items():
        for row, times in zip(rows, quartiles(time_each(benches, call, rounds))):
            row[name] = times.median
            row[f"{name}_spread"] = (times.high - times.low) / 2
    for row, bench in zip(rows, benches):
        row["training_items_per_second"] = setting.batch_size / row["training_step_s"]
        row["inference_items_per_second"] = setting.batch_size / row["inference_s"]
        row["peak_memory_bytes"] = bench.peak_memory()
    return rows
