"""transformers' Trainer with what fair comparisons need: random numbers by row, whole checkpoints, finite weights.

Everything random in the data is drawn from the row's place in the run; dropout follows torch's own generator, which
the checkpoint holds.
"""

import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from accelerate.utils import reduce
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

from modeling_leaner.files import finite_or_none, write_bytes
from modeling_leaner.hub import hub_errors

from ..settings import RecipeArguments
from ..tasks.base import Task, row_generators
from .run_folder import COMPLETE, declare_whole, whole_checkpoints


METRICS_FILE = "metrics.jsonl"
AVERAGE = "ema.safetensors"  # of a checkpoint: the average of the weights
SECONDS = "seconds.json"  # and the run's age when it was written
WARM_UP = 2  # steps that are not timed, of every start
CORRELATIONS = ("eval_pearson", "eval_spearman", "eval_matthews_correlation")


# Around the steps


class CheckpointSteps(TrainerCallback):
    """Saves at the steps of the setting `checkpoint_steps`, too."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in args.checkpoint_steps:
            control.should_save = True


class Interruption(TrainerCallback):
    """Ctrl-C: the step is finished, a checkpoint saved, the training stopped. Pressed again, it stops at once."""

    pressed = False
    previous_handler = None

    def on_train_begin(self, args, state, control, **kwargs):
        if threading.current_thread() is threading.main_thread():
            self.previous_handler = signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: object) -> None:
        self.pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nSaving after this step; Ctrl-C again stops at once.", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        if args.world_size > 1:  # all agree whether it was pressed, or one would wait for the others for ever
            if state.global_step % max(1, int(state.logging_steps)):
                return  # asked together, now and then: it waits for every device
            flag = torch.tensor(float(self.pressed), device=args.device)
            self.pressed = bool(reduce(flag, reduction="sum") > 0)
        if self.pressed:  # an evaluation that is due comes first, as if nothing had been
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.pressed and state.epoch % 1:  # no epoch has ended
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(self, args, state, control, **kwargs):
        if self.previous_handler is not None:
            signal.signal(signal.SIGINT, self.previous_handler)


class Clock(TrainerCallback):
    """Counts the seconds of a run, without those between a kill and its continuation, and times its steps."""

    def __init__(self):
        self.started = time.perf_counter()
        self.seconds_before = 0.0  # of the run, until it was continued
        self.first_step = 0
        self.step_started = 0.0  # once its batches were there
        self.data_seconds, self.rows = 0.0, 0  # of the step: how long its batches took, how many rows they have
        self.timed = {"seconds": 0.0, "data_seconds": 0.0, "rows": 0}  # sums; rows of all processes

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()
        self.first_step = state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.step_started
        if state.global_step - self.first_step > WARM_UP:
            self.timed["seconds"] += seconds + self.data_seconds
            self.timed["data_seconds"] += self.data_seconds
            self.timed["rows"] += self.rows

    def seconds(self) -> float:
        """Seconds since the run began, without the time between a kill and its continuation."""
        return self.seconds_before + time.perf_counter() - self.started


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
    def swap(self, model: PreTrainedModel) -> None:
        """Puts the average, if any, into the model, and what was there in its place."""
        for parameter, average in zip(model.parameters(), self.weights or ()):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    def load(self, model: PreTrainedModel, checkpoint: Path, device: torch.device) -> None:
        """Reads the average that a checkpoint holds beside Trainer's own state."""
        if self.decay is not None and (checkpoint / AVERAGE).is_file():
            tensors = load_file(checkpoint / AVERAGE)
            self.weights = [tensors[name].to(device) for name, _ in model.named_parameters()]


# The trainer


class EpochLengthSampler(LengthGroupedSampler):
    """Rows of like length together, in an order that follows from the seed and the epoch alone."""

    trainer: Trainer  # which knows both

    def __iter__(self) -> Iterator[int]:
        args = self.trainer.args
        seed = args.seed if args.data_seed is None else args.data_seed
        epoch = int(self.trainer.state.epoch or 0)
        self.generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return super().__iter__()


def scores(metrics: dict[str, float]) -> dict[str, float | None]:
    """The scores of an evaluation, without its timings; None for a correlation that is undefined."""
    speeds = ("_runtime", "_per_second")
    found = {key: value for key, value in metrics.items() if key.startswith("eval_") and not key.endswith(speeds)}
    return {key: None if key in CORRELATIONS and math.isnan(value) else value for key, value in found.items()}


class LeanTrainer(Trainer):
    """See the module's docstring. `task` is what is learned; it collates, transforms and scores."""

    args: RecipeArguments

    def __init__(self, model: PreTrainedModel, args: RecipeArguments, task: Task, **kwargs):
        self.task = task
        self.folder = Path(args.output_dir)
        self.checkpoints_kept = args.save_total_limit
        args.save_total_limit = None  # Trainer's own deletions know neither checkpoint_steps nor what is whole
        self.clock = Clock()
        self.average = WeightAverage(args.ema_decay)
        self.interruption = Interruption()
        self.eval_batches_seen = 0  # of the evaluation under way
        self.rows_evaluated = 0  # by the latest evaluation
        self.entries_written = 0  # of the log, by this process
        if task.has_own_loss:
            args.label_names = ["labels"]  # Trainer would look for them in the model's own arguments
        super().__init__(
            model,
            args,
            data_collator=task.collate,
            compute_metrics=task.score,
            preprocess_logits_for_metrics=task.reduce,
            processing_class=task.processing,
            callbacks=[self.clock, self.average, CheckpointSteps(), self.interruption],
            **kwargs,
        )
        self.label_smoother = None  # compute_loss smooths, and only while training
        if task.has_own_loss:
            self.model_accepts_loss_kwargs = False  # it is a mean of a batch, and Trainer takes the mean of a step's

    # Data

    def _get_train_sampler(self, train_dataset):
        if self.args.train_sampling_strategy == "group_by_length" and "length" in (train_dataset.column_names or []):
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            sampler = EpochLengthSampler(batch_size=batch, lengths=list(train_dataset["length"]))
            sampler.trainer = self
            return sampler
        return super()._get_train_sampler(train_dataset)

    def _get_eval_sampler(self, eval_dataset):
        """In the dataset's order, whatever the training's: scores are joined to rows by their place."""
        return SequentialSampler(eval_dataset) if self.args.world_size == 1 and has_length(eval_dataset) else None

    def get_train_dataloader(self):
        """As Trainer's, without the last batch of an epoch where it is not full.

        Several processes would fill it up with repeated rows, one would take a step of fewer rows: neither is the same
        run. Every epoch leaves out other rows.
        """
        kept = self.args.dataloader_drop_last
        batch = self.args.train_batch_size * self.args.world_size
        self.args.dataloader_drop_last = has_length(self.train_dataset) and len(self.train_dataset) >= batch
        try:
            return super().get_train_dataloader()
        finally:
            self.args.dataloader_drop_last = kept

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Batches of one step, masked and cropped; the time they take is the input pipeline's."""
        start = time.perf_counter()
        self.clock.rows = 0
        batches = []
        first = self.state.global_step * self.args.gradient_accumulation_steps
        for number, batch in enumerate(islice(epoch_iterator, num_batches), start=first):
            place = (number * self.args.world_size + self.args.process_index) * self.args.train_batch_size
            rows = len(next(iter(batch.values())))
            self.clock.rows += rows * self.args.world_size
            generators = row_generators(range(place, place + rows), self.args.seed)
            batches.append(self.task.transform(batch, generators, training=True))
        samples, items = super().get_batch_samples(iter(batches), num_batches, device)
        self.clock.step_started = time.perf_counter()
        self.clock.data_seconds = self.clock.step_started - start
        return samples, items

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        number = self.eval_batches_seen * self.args.world_size + self.args.process_index
        place = number * self.args.eval_batch_size
        generators = row_generators(range(place, place + len(next(iter(inputs.values())))))
        self.eval_batches_seen += 1
        batch = self.task.transform(self._prepare_inputs(inputs), generators, training=False)
        return super().prediction_step(model, batch, prediction_loss_only, ignore_keys)

    def evaluation_loop(self, *args, **kwargs):
        """As Trainer's, on the averaged weights where there are any; training's random numbers are left alone."""
        self.eval_batches_seen = 0
        devices = [self.args.device] if self.args.device.type == "cuda" else []  # beside the CPU
        self.average.swap(self.model)
        try:
            with torch.random.fork_rng(devices=devices):
                output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.average.swap(self.model)
        output.metrics.pop("eval_model_preparation_time", None)
        self.rows_evaluated = output.num_samples
        return output

    # Loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The task's, or the model's own; labels are smoothed only while training."""
        if self.task.has_own_loss:
            loss, outputs = self.task.loss(model, inputs)
            return (loss, outputs) if return_outputs else loss
        smoothing = self.args.label_smoothing_factor if model.training else 0.0
        if self.task.regression or not smoothing:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits, labels = self.task.aligned(outputs.logits, inputs["labels"])
        labels = labels.flatten()
        loss = F.cross_entropy(logits.flatten(0, -2).float(), labels, label_smoothing=smoothing, reduction="sum")
        if num_items_in_batch is not None:  # of all processes, whose gradients are averaged
            loss = loss / num_items_in_batch * self.args.world_size
        else:
            loss = loss / (labels != -100).sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        self.check_finite(torch.tensor(logs.get("loss", 0.0)))
        logs.pop("train_loss", None)  # after a resume it would be a part of the steps over all of them
        logs["seconds"] = self.clock.seconds()
        super().log(logs, start_time)
        if self.is_world_process_zero():
            # The first time the whole log, so that a continued run repeats no line.
            with (self.folder / METRICS_FILE).open("a" if self.entries_written else "w") as file:
                for entry in self.state.log_history[self.entries_written :]:
                    file.write(json.dumps({name: finite_or_none(value) for name, value in entry.items()}) + "\n")
            self.entries_written = len(self.state.log_history)

    def _run_epoch(self, *args, **kwargs):
        if self.state.global_step >= self.state.max_steps:  # killed between the last checkpoint and the results
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    # Checkpoints

    def _save_checkpoint(self, model, trial):
        """As Trainer's; then writes the average, and last the list of files that declares the checkpoint whole."""
        self.check_finite(*self.model.parameters())
        folder = self.folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:  # a step may be saved twice, as one of checkpoint_steps that ends an epoch
            (folder / COMPLETE).unlink(missing_ok=True)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            if self.average.weights is not None:
                names = [name for name, _ in self.model.named_parameters()]
                save_file(dict(zip(names, self.average.weights)), folder / AVERAGE)
            write_bytes(folder / SECONDS, json.dumps(self.clock.seconds()).encode())
            declare_whole(folder)
            # The latest whole ones stay, as many as are asked for, and the best one, and those of checkpoint_steps.
            steps = {f"checkpoint-{step}" for step in self.args.checkpoint_steps}
            whole = [path for path in whole_checkpoints(self.folder) if path.name not in steps]
            best = Path(self.state.best_model_checkpoint or "").resolve()
            for path in whole[: -self.checkpoints_kept] if self.checkpoints_kept else []:
                if path.resolve() != best:
                    (path / COMPLETE).unlink()  # so that no half of it counts
                    shutil.rmtree(path)

    def finish_weights(self) -> None:
        """Puts the average, if any, in place of the weights; raises ValueError if one is NaN or infinite."""
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self.average.load(self.model, Path(self.state.best_model_checkpoint), self.args.device)
        self.average.swap(self.model)
        self.average.weights = None
        self.check_finite(*self.model.parameters())

    def check_finite(self, *tensors: torch.Tensor) -> None:
        """Raises ValueError, with the step and the last good checkpoint, for what is not finite."""
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            whole = whole_checkpoints(self.folder)
            kept = f"the last good checkpoint is {whole[-1]}" if whole else "no checkpoint had been written"
            step = self.state.global_step
            raise ValueError(f"loss or weights are not finite at step {step}; {kept}; try a lower learning_rate")

    def init_hf_repo(self, token=None, **options):
        """As Trainer's; raises ValueError, one line, if there is no token or the Hub does not make a repository."""
        with hub_errors(self.args.hub_model_id or self.folder.name):
            super().init_hf_repo(token or True, **options)
