"""The time of a run: seconds since it began, what its steps take, and what is left of the process's."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from transformers import TrainerCallback

from modeling_leaner.support.documents import read_json
from modeling_leaner.support.files import write_bytes


SECONDS = "seconds.json"  # of a checkpoint: the run's age when it was written
WARM_UP = 2  # steps that are not timed, of every start


@dataclass
class TimedSteps:
    """Sums over steps: their number and seconds, the input pipeline's part of these, and rows of all processes."""

    steps: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    rows: int = 0


class Clock(TrainerCallback):
    """Counts the seconds of a run, without those between a kill and its continuation, and times its steps."""

    def __init__(self):
        self.started = time.perf_counter()
        self.seconds_before = 0.0  # of the run, until it was continued
        self.first_step = 0
        self.step_started = 0.0
        self.data_seconds = 0.0  # of the present step, as are the rows
        self.rows = 0
        self.timed = TimedSteps()
        self.model_seconds = 0.0  # of this process: steps and evaluation

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()
        self.first_step = state.global_step

    def batches_are_ready(self, seconds: float, rows: int) -> None:
        """Notes how many seconds the batches of the next step took, and how many rows they have."""
        self.data_seconds = seconds
        self.rows = rows

    def on_step_begin(self, args, state, control, **kwargs):
        self.step_started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.step_started
        self.model_seconds += seconds
        if state.global_step - self.first_step <= WARM_UP:
            return
        self.timed.steps += 1
        self.timed.seconds += seconds + self.data_seconds
        self.timed.data_seconds += self.data_seconds
        self.timed.rows += self.rows

    def seconds(self) -> float:
        """Seconds since the run began, without the time between a kill and its continuation."""
        return self.seconds_before + time.perf_counter() - self.started

    def throughput(self) -> dict[str, float | None]:
        """Rows per second over the steps of this process, and the input pipeline's share of their time."""
        if not self.timed.steps:
            return {"items_per_second": None, "seconds_per_step": None, "input_pipeline_share": None}
        return {
            "items_per_second": self.timed.rows / self.timed.seconds,
            "seconds_per_step": self.timed.seconds / self.timed.steps,
            "input_pipeline_share": self.timed.data_seconds / self.timed.seconds,
        }

    def process(self) -> dict[str, float]:
        """Seconds of this process so far, imports and all, and those that it spent on, or waiting for, the model."""
        seconds = time.time() - psutil.Process().create_time()
        return {"process_seconds": seconds, "model_seconds": self.model_seconds}

    def save(self, checkpoint: Path) -> None:
        """Writes the run's age into a checkpoint."""
        write_bytes(checkpoint / SECONDS, json.dumps(self.seconds()).encode())

    def load(self, checkpoint: Path) -> None:
        """Goes on from the age that a checkpoint was written at."""
        self.seconds_before = read_json(checkpoint / SECONDS)
