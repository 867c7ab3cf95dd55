"""transformers' Trainer with what a pair needs: random numbers by row, whole checkpoints, finite losses and weights.

A checkpoint counts only once its `complete.json` lists every file with its size, so that a half-written one is never
continued from. Everything random in the data is drawn from the row's place in the run; dropout follows torch's own
generator, which the checkpoint holds.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import SequentialSampler
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

from ..settings.arguments import RecipeArguments
from ..tasks.tasks import Batch, Task


COMPLETE = "complete.json"
EMA = "ema.safetensors"
SECONDS = "seconds.json"


class NotFinite(ValueError):
    """The loss, or the weights, became NaN or infinite."""


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, the oldest first."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    numbered = [path for path, step in steps.items() if step.isdecimal()]
    return sorted(numbered, key=lambda path: int(steps[path]))


def damage(checkpoint: Path) -> str | None:
    """The first file of a checkpoint that is not there in full, and why; None of a whole one."""
    try:
        listed = json.loads((checkpoint / COMPLETE).read_text())
    except FileNotFoundError:
        return f"{COMPLETE} is missing"
    except (OSError, ValueError):
        return f"{COMPLETE} is unreadable"
    for name, size in listed.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} of {size:,} bytes"
    return None


def is_intact(path: Path) -> bool:
    """Whether a file holds what its name promises; raises an error where it cannot be read at all."""
    if path.suffix in (".pt", ".pth"):  # torch writes an archive with the sum of each tensor
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as tensors:
            return len(tensors.keys()) > 0
    if path.suffix == ".json":
        return json.loads(path.read_text()) is not None
    return True


def unreadable(checkpoint: Path) -> str | None:
    """The first file of a checkpoint that cannot be read: a damaged disk changes bytes, and no size."""
    for path in sorted(checkpoint.iterdir()):
        try:
            intact = is_intact(path)
        except (OSError, ValueError, zipfile.BadZipFile, SafetensorError):
            intact = False
        if not intact:
            return f"{path.name} cannot be read"
    return None


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints whose every file is there in full, the oldest first."""
    return [path for path in checkpoints(folder) if damage(path) is None]


def remove_partial_checkpoints(folder: Path) -> list[Path]:
    """Deletes checkpoints that are not whole, so that nothing mistakes them for one; returns them."""
    partial = sorted(set(folder.glob("checkpoint-*")) - set(whole_checkpoints(folder)))
    for path in partial:
        shutil.rmtree(path)
    return partial


class EpochLengthSampler(LengthGroupedSampler):
    """Rows of like length together, in an order that follows from the seed and the epoch alone."""

    def __init__(self, trainer: Trainer, **kwargs):
        super().__init__(**kwargs)
        self.trainer = trainer

    def __iter__(self) -> Iterator[int]:
        seed = self.trainer.args.data_seed
        if seed is None:
            seed = self.trainer.args.seed
        epoch = int(self.trainer.state.epoch or 0)
        self.generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return super().__iter__()


class RunCallback(TrainerCallback):
    """metrics.jsonl, Ctrl-C, and the end of every step."""

    def __init__(self, trainer: "LeanTrainer"):
        self.trainer = trainer
        self.previous_handler = None

    def on_train_begin(self, args, state, control, **kwargs):
        trainer = self.trainer
        trainer.started = time.perf_counter()
        trainer.first_step = state.global_step
        if state.is_world_process_zero:  # a continued run repeats no line
            lines = [json.dumps(entry) + "\n" for entry in state.log_history]
            self.trainer.metrics_file.write_text("".join(lines))
            self.warn_of_warmup(args, state.max_steps)
        if threading.current_thread() is threading.main_thread():
            self.previous_handler = signal.signal(signal.SIGINT, self._interrupt)

    def warn_of_warmup(self, arguments: RecipeArguments, steps: int) -> None:
        """Warns on stderr of a warm-up, given in steps, that is as long as the run."""
        warmup = arguments.warmup_steps
        if warmup >= max(steps, 1):
            rate = f"the learning rate never reaches {arguments.learning_rate:g}"
            print(f"warning: warmup_steps: {warmup:g}, and the run has {steps} steps: {rate}", file=sys.stderr)

    def _interrupt(self, number: int, frame: object) -> None:
        if self.trainer.interrupted:
            raise KeyboardInterrupt
        self.trainer.interrupted = True
        print("\nSaving after this step; Ctrl-C again stops at once.", flush=True)

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.step_started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.after_step()
        if state.global_step in args.checkpoint_steps:
            control.should_save = True
        if self.trainer.anyone_interrupted():  # an evaluation that is due still comes first, as if nothing had been
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.trainer.interrupted and state.epoch % 1:  # no epoch has ended
            control.should_log = False
            control.should_evaluate = False
            control.should_save = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            with self.trainer.metrics_file.open("a") as file:
                file.write(json.dumps(state.log_history[-1]) + "\n")

    def on_train_end(self, args, state, control, **kwargs):
        if self.previous_handler is not None:
            signal.signal(signal.SIGINT, self.previous_handler)


def scores(metrics: dict[str, float]) -> dict[str, float]:
    """The scores of an evaluation, without its timings."""
    speeds = ("_runtime", "_per_second")
    return {key: value for key, value in metrics.items() if key.startswith("eval_") and not key.endswith(speeds)}


def row_count(batch: Batch) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch.values())))


class LeanTrainer(Trainer):
    """See the module's docstring.

    Args:
        task: what is learned; it collates, transforms and scores.
    """

    args: RecipeArguments

    def __init__(self, model: PreTrainedModel, args: RecipeArguments, task: Task, **kwargs):
        self.task = task
        self.metrics_file = Path(args.output_dir) / "metrics.jsonl"
        self.interrupted = False
        self.eval_batches_seen = 0
        self.rows_evaluated = 0
        self.started = time.perf_counter()
        self.seconds_before = 0.0  # of the run, until it was continued
        self.step_started = 0.0
        self.step_data_seconds = 0.0  # of the present step
        self.step_items = 0
        self.steps_timed = 0
        self.seconds_timed = 0.0  # of all steps timed
        self.data_seconds_timed = 0.0
        self.items_timed = 0
        self.first_bad_step = torch.tensor(-1, device=args.device)
        self.average: list[torch.Tensor] | None = None
        if task.has_own_loss:
            args.label_names = ["labels"]  # Trainer would look for them in the model's own arguments
        super().__init__(
            model,
            args,
            data_collator=task.collate,
            compute_metrics=task.score,
            preprocess_logits_for_metrics=task.reduce,
            processing_class=task.processing,
            **kwargs,
        )
        self.label_smoother = None  # compute_loss smooths, and only while training
        self.add_callback(RunCallback(self))
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(args.early_stopping_patience))

    # Data

    def _get_train_sampler(self, train_dataset=None):
        dataset = train_dataset
        if dataset is None:
            dataset = self.train_dataset
        if self.args.train_sampling_strategy == "group_by_length" and "length" in (dataset.column_names or []):
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            return EpochLengthSampler(self, batch_size=batch, lengths=list(dataset["length"]))
        return super()._get_train_sampler(train_dataset)

    def _get_eval_sampler(self, eval_dataset):
        """In the dataset's order, whatever the training's: scores are joined to rows by their place."""
        if self.args.world_size > 1 or not has_length(eval_dataset):
            return None
        return SequentialSampler(eval_dataset)

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

    def _generators(self, first: int, rows: int, stream: int) -> list[np.random.Generator]:
        """One generator per row from its place in the run; `stream` keeps training and evaluation apart."""
        seed = 0  # of evaluation, whatever the run's
        if stream:
            seed = self.args.seed
        return [np.random.default_rng((seed, stream, first + row)) for row in range(rows)]

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Batches of one step, masked and cropped; the time they take is the input pipeline's."""
        start = time.perf_counter()
        samples, items = super().get_batch_samples(self._transformed(epoch_iterator), num_batches, device)
        self.step_data_seconds = time.perf_counter() - start
        self.step_items = sum(map(row_count, samples)) * self.args.world_size
        return samples, items

    def _transformed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of one step as the model reads them."""
        first = self.state.global_step * self.args.gradient_accumulation_steps
        for number, batch in enumerate(batches, start=first):
            place = (number * self.args.world_size + self.args.process_index) * self.args.train_batch_size
            generators = self._generators(place, row_count(batch), stream=1)
            yield self.task.transform(batch, generators, training=True)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        number = self.eval_batches_seen * self.args.world_size + self.args.process_index
        generators = self._generators(number * self.args.eval_batch_size, row_count(inputs), stream=0)
        self.eval_batches_seen += 1
        batch = self.task.transform(self._prepare_inputs(inputs), generators, training=False)
        return super().prediction_step(model, batch, prediction_loss_only, ignore_keys)

    def evaluation_loop(self, *args, **kwargs):
        """As Trainer's, on the averaged weights where there are any; training's random numbers are left alone."""
        self.eval_batches_seen = 0
        devices = []  # beside the CPU
        if self.args.device.type == "cuda":
            devices.append(self.args.device)
        self._swap_average()
        try:
            with torch.random.fork_rng(devices=devices):
                output = super().evaluation_loop(*args, **kwargs)
        finally:
            self._swap_average()
        output.metrics.pop("eval_model_preparation_time", None)
        if self.task.is_scored_only:
            output.metrics.pop("eval_loss", None)
        self.rows_evaluated = output.num_samples
        return output

    # Loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The task's, or the model's own; label smoothing and mixup here, since they need every logit."""
        if self.task.has_own_loss:
            loss, outputs = self.task.loss(model, inputs, num_items_in_batch)
            return (loss, outputs) if return_outputs else loss
        labels = inputs.get("labels")
        smoothing = 0.0
        if model.training:
            smoothing = self.args.label_smoothing_factor
        soft = labels is not None and labels.is_floating_point() and labels.ndim == 2  # of mixup
        if labels is None or self.task.regression or not (smoothing or soft):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits, labels = self.task.aligned(outputs.logits, labels)
        if not soft:
            logits = logits.flatten(0, -2)
            labels = labels.flatten()
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing, reduction="sum")
        if num_items_in_batch is not None:
            loss = loss / num_items_in_batch
            if self.args.world_size > 1:
                loss = loss * self.accelerator.num_processes
        elif soft:
            loss = loss / len(labels)
        else:
            loss = loss / (labels != -100).sum().clamp(min=1)
        if return_outputs:
            return loss, outputs
        return loss

    def _get_num_items_in_batch(self, batch_samples, device):
        if batch_samples and "labels" in batch_samples[0] and batch_samples[0]["labels"].is_floating_point():
            rows = torch.tensor(sum(len(batch["labels"]) for batch in batch_samples), device=device)
            if self.args.world_size > 1:
                return self.accelerator.gather(rows).sum()
            return rows
        return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        bad = ~torch.isfinite(loss) & (self.first_bad_step < 0)
        self.first_bad_step = torch.where(bad, self.state.global_step + 1, self.first_bad_step)
        if loss.device.type == "cpu":
            self.check_finite()
        return loss

    def check_finite(self) -> None:
        """Raises NotFinite, with the step, once a loss was not; on a GPU this waits for the device."""
        step = int(self.first_bad_step)
        if step < 0:
            return
        kept = "no checkpoint had been written"
        whole = whole_checkpoints(Path(self.args.output_dir))
        if whole:
            kept = f"the last good checkpoint is {whole[-1]}"
        raise NotFinite(f"loss or weights are not finite at step {step}; {kept}; try a lower learning_rate")

    def check_weights(self) -> None:
        """Raises NotFinite as well where the loss was finite, but a gradient was not."""
        finite = all(torch.isfinite(parameter).all() for parameter in self.model.parameters())
        if not finite and int(self.first_bad_step) < 0:
            self.first_bad_step = torch.tensor(self.state.global_step, device=self.args.device)
        self.check_finite()

    def log(self, logs, start_time=None):
        if "loss" in logs:
            self.check_finite()
        logs["seconds"] = self.seconds()
        super().log(logs, start_time)

    def seconds(self) -> float:
        """Since the run began, without the time between a kill and its continuation."""
        return self.seconds_before + time.perf_counter() - self.started

    # Steps

    def _run_epoch(self, *args, **kwargs):
        if self.state.global_step >= self.state.max_steps:  # killed between the last checkpoint and the results
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def after_step(self) -> None:
        """Counts the step's time, first steps apart, and follows the weights with their average."""
        if self.state.global_step - self.first_step > 2:
            self.steps_timed += 1
            self.seconds_timed += time.perf_counter() - self.step_started + self.step_data_seconds
            self.data_seconds_timed += self.step_data_seconds
            self.items_timed += self.step_items
        if self.args.ema_decay is not None:
            weights = list(self.model.parameters())
            if self.average is None:
                self.average = [weight.detach().clone() for weight in weights]
            # Early on, the average forgets faster: the first weights are no one's goal.
            decay = min(self.args.ema_decay, (1 + self.state.global_step) / (10 + self.state.global_step))
            get_ema_multi_avg_fn(decay)(self.average, weights, None)

    @torch.no_grad()
    def _swap_average(self) -> None:
        if self.average is not None:
            for parameter, average in zip(self.model.parameters(), self.average):
                kept = parameter.detach().clone()
                parameter.copy_(average)
                average.copy_(kept)

    def anyone_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed; all processes agree, or one would wait for the others for ever."""
        if self.args.world_size == 1:
            return self.interrupted
        if self.state.global_step % max(1, int(self.state.logging_steps)):
            return False  # asked together, now and then: it waits for every device
        flag = torch.tensor(float(self.interrupted), device=self.args.device)
        self.interrupted = bool(self.accelerator.reduce(flag, reduction="sum") > 0)
        return self.interrupted

    def throughput(self) -> dict[str, float | None]:
        """Rows per second over the steps of this process, and the input pipeline's share of their time."""
        if not self.steps_timed:
            return {"items_per_second": None, "seconds_per_step": None, "input_pipeline_share": None}
        return {
            "items_per_second": self.items_timed / self.seconds_timed,
            "seconds_per_step": self.seconds_timed / self.steps_timed,
            "input_pipeline_share": self.data_seconds_timed / self.seconds_timed,
        }

    # Checkpoints

    def _save_checkpoint(self, model, trial):
        """As Trainer's, then the average, then the list that makes the checkpoint count."""
        self.check_weights()
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        limit = self.args.save_total_limit
        self.args.save_total_limit = None  # old ones are deleted below, once the new one counts
        try:
            if folder.exists() and self.args.should_save:
                (folder / COMPLETE).unlink(missing_ok=True)
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        if self.args.world_size > 1:
            self.accelerator.wait_for_everyone()
        if not self.args.should_save:
            return
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
        if self.average is not None:
            names = [name for name, _ in self.model.named_parameters()]
            save_file(dict(zip(names, self.average)), folder / EMA)
        (folder / SECONDS).write_text(json.dumps(self.seconds()))
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        pending = folder / (COMPLETE + ".tmp")
        pending.write_text(json.dumps(sizes))
        os.replace(pending, folder / COMPLETE)
        self._rotate(limit)

    def _rotate(self, limit: int | None) -> None:
        """Keeps the latest `limit` checkpoints, the best one and those of `checkpoint_steps`; deletes the others."""
        if not limit:
            return
        kept = {f"checkpoint-{step}" for step in self.args.checkpoint_steps}
        whole = [path for path in whole_checkpoints(Path(self.args.output_dir)) if path.name not in kept]
        best = self.state.best_model_checkpoint
        for path in whole[:-limit]:
            if best is None or Path(best).resolve() != path.resolve():
                (path / COMPLETE).unlink()
                shutil.rmtree(path)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_average(Path(resume_from_checkpoint))
        self.seconds_before = json.loads((Path(resume_from_checkpoint) / SECONDS).read_text())

    def _load_best_model(self):
        super()._load_best_model()
        self._load_average(Path(self.state.best_model_checkpoint))

    def _load_average(self, checkpoint: Path) -> None:
        if self.args.ema_decay is not None and (checkpoint / EMA).is_file():
            tensors = load_file(checkpoint / EMA)
            self.average = [tensors[name].to(self.args.device) for name, _ in self.model.named_parameters()]

    def save_average(self) -> None:
        """The averaged weights become the model's, for good."""
        if self.average is not None:
            self._swap_average()
            self.average = None
