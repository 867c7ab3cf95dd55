"""What happens around the steps of a run: its log, time and average of weights, checkpoints that are due, Ctrl-C."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from accelerate.utils import reduce
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import PreTrainedModel, TrainerCallback, TrainerState, TrainingArguments

from modeling_leaner.files import finite_or_none, read_json, write_bytes


AVERAGE = "ema.safetensors"  # of a checkpoint: the average of the weights
SECONDS = "seconds.json"  # and the run's age when it was written
WARM_UP = 2  # steps that are not timed, of every start


class MetricsFile(TrainerCallback):
    """Writes every entry of the log as a line of `path`."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:  # a continued run repeats no line
            write_bytes(self.path, "".join(map(self.line, state.log_history)).encode())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(self.line(state.log_history[-1]))

    @staticmethod
    def line(entry: dict[str, float]) -> str:
        return json.dumps({name: finite_or_none(value) for name, value in entry.items()}) + "\n"


class CheckpointSteps(TrainerCallback):
    """Saves at the steps of the setting `checkpoint_steps`, too."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in args.checkpoint_steps:
            control.should_save = True


class Interruption(TrainerCallback):
    """Ctrl-C: the step is finished, a checkpoint saved, the training stopped. Pressed again, it stops at once."""

    def __init__(self):
        self.pressed = False
        self.previous_handler = None

    def on_train_begin(self, args, state, control, **kwargs):
        if threading.current_thread() is threading.main_thread():
            self.previous_handler = signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: object) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
        print("\nSaving after this step; Ctrl-C again stops at once.", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        if self.was_pressed_anywhere(args, state):  # an evaluation that is due comes first, as if nothing had been
            control.should_save = True
            control.should_training_stop = True

    def was_pressed_anywhere(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Whether Ctrl-C was pressed; all processes agree, or one would wait for the others for ever."""
        if args.world_size > 1:
            if state.global_step % max(1, int(state.logging_steps)):
                return False  # asked together, now and then: it waits for every device
            flag = torch.tensor(float(self.pressed), device=args.device)
            self.pressed = bool(reduce(flag, reduction="sum") > 0)
        return self.pressed

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.pressed and state.epoch % 1:  # no epoch has ended
            control.should_log = False
            control.should_evaluate = False
            control.should_save = False

    def on_train_end(self, args, state, control, **kwargs):
        if self.previous_handler is not None:
            signal.signal(signal.SIGINT, self.previous_handler)


class Clock(TrainerCallback):
    """Counts the seconds of a run, without those between a kill and its continuation, and times its steps."""

    def __init__(self):
        self.started = time.perf_counter()
        self.seconds_before = 0.0  # of the run, until it was continued
        self.first_step = 0
        self.step_started = 0.0
        self.data_seconds, self.rows = 0.0, 0  # of the next step: how long its batches took, how many rows they have
        self.timed = {"seconds": 0.0, "data_seconds": 0.0, "rows": 0}  # sums; rows of all processes

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()
        self.first_step = state.global_step

    def on_step_begin(self, args, state, control, **kwargs):
        self.step_started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.step_started
        if state.global_step - self.first_step > WARM_UP:
            self.timed["seconds"] += seconds + self.data_seconds
            self.timed["data_seconds"] += self.data_seconds
            self.timed["rows"] += self.rows

    def seconds(self) -> float:
        """Seconds since the run began, without the time between a kill and its continuation."""
        return self.seconds_before + time.perf_counter() - self.started

    def speed(self) -> dict[str, float | None]:
        """As results.json has it."""
        timed = self.timed if self.timed["rows"] else None
        return {
            "items_per_second": timed and timed["rows"] / timed["seconds"],
            "input_pipeline_share": timed and timed["data_seconds"] / timed["seconds"],
            "process_seconds": time.time() - psutil.Process().create_time(),  # imports and all
        }

    def save(self, checkpoint: Path) -> None:
        write_bytes(checkpoint / SECONDS, json.dumps(self.seconds()).encode())

    def load(self, checkpoint: Path) -> None:
        self.seconds_before = read_json(checkpoint / SECONDS)


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
        for parameter, average in zip(model.parameters(), self.weights or ()):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    @contextmanager
    def in_place_of_weights(self, model: PreTrainedModel) -> Iterator[None]:
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    def replace_weights(self, model: PreTrainedModel) -> None:
        self._swap(model)
        self.weights = None

    def save(self, model: PreTrainedModel, checkpoint: Path) -> None:
        """Writes the average into a checkpoint, under the names of the model's parameters."""
        if self.weights is not None:
            names = [name for name, _ in model.named_parameters()]
            save_file(dict(zip(names, self.weights)), checkpoint / AVERAGE)

    def load(self, model: PreTrainedModel, checkpoint: Path, device: torch.device) -> None:
        if self.decay is not None and (checkpoint / AVERAGE).is_file():
            tensors = load_file(checkpoint / AVERAGE)
            self.weights = [tensors[name].to(device) for name, _ in model.named_parameters()]
