"""What happens around the steps of a run: lines of metrics.jsonl, a warning, checkpoints that are due, Ctrl-C."""

import json
import signal
import sys
import threading
from pathlib import Path

import torch
from accelerate.utils import reduce
from transformers import TrainerCallback, TrainerState, TrainingArguments

from modeling_leaner.support.files import write_bytes


class MetricsFile(TrainerCallback):
    """Writes every entry of the log as a line of `path`."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:  # a continued run repeats no line
            lines = [json.dumps(entry) + "\n" for entry in state.log_history]
            write_bytes(self.path, "".join(lines).encode())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(json.dumps(state.log_history[-1]) + "\n")


class WarmupNotice(TrainerCallback):
    """Warns on stderr of a warm-up, given in steps, that is as long as the run."""

    def on_train_begin(self, args, state, control, **kwargs):
        if not state.is_world_process_zero or args.warmup_steps < max(state.max_steps, 1):
            return
        rate = f"the learning rate never reaches {args.learning_rate:g}"
        message = f"warmup_steps: {args.warmup_steps:g}, and the run has {state.max_steps} steps: {rate}"
        print(f"warning: {message}", file=sys.stderr)


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
        if args.world_size == 1:
            return self.pressed
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
