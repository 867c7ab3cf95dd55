"""transformers' Trainer with what a pair needs: random numbers by row, whole checkpoints, finite losses and weights.

Everything random in the data is drawn from the row's place in the run; dropout follows torch's own generator, which
the checkpoint holds.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

from modeling_leaner.hub import check_token, hub_errors

from ..settings import RecipeArguments
from ..tasks.base import Batch, Task, evaluation_generators, training_generators
from .callbacks import CheckpointSteps, Clock, Interruption, MetricsFile, WeightAverage
from .run_folder import declare_whole, rotate, whole_checkpoints


METRICS_FILE = "metrics.jsonl"
CORRELATIONS = ("eval_pearson", "eval_spearman", "eval_matthews_correlation")


class EpochLengthSampler(LengthGroupedSampler):
    """Rows of like length together, in an order that follows from the seed and the epoch alone."""

    def __init__(self, trainer: Trainer, **kwargs):
        super().__init__(**kwargs)
        self.trainer = trainer

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


def row_count(batch: Batch) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch.values())))


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
        metrics_file = MetricsFile(self.folder / METRICS_FILE)
        for callback in (self.clock, self.average, metrics_file, CheckpointSteps(), self.interruption):
            self.add_callback(callback)

    # Data

    def _get_train_sampler(self, train_dataset=None):
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy == "group_by_length" and "length" in (dataset.column_names or []):
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            return EpochLengthSampler(self, batch_size=batch, lengths=list(dataset["length"]))
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
        samples, items = super().get_batch_samples(self._transformed(epoch_iterator), num_batches, device)
        self.clock.rows = sum(map(row_count, samples)) * self.args.world_size
        self.clock.data_seconds = time.perf_counter() - start
        return samples, items

    def _transformed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of one step as the model reads them."""
        first = self.state.global_step * self.args.gradient_accumulation_steps
        for number, batch in enumerate(batches, start=first):
            place = (number * self.args.world_size + self.args.process_index) * self.args.train_batch_size
            places = range(place, place + row_count(batch))
            generators = training_generators(self.args.seed, places)
            yield self.task.transform(batch, generators, training=True)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        number = self.eval_batches_seen * self.args.world_size + self.args.process_index
        place = number * self.args.eval_batch_size
        generators = evaluation_generators(range(place, place + row_count(inputs)))
        self.eval_batches_seen += 1
        batch = self.task.transform(self._prepare_inputs(inputs), generators, training=False)
        return super().prediction_step(model, batch, prediction_loss_only, ignore_keys)

    def evaluation_loop(self, *args, **kwargs):
        """As Trainer's, on the averaged weights where there are any; training's random numbers are left alone."""
        self.eval_batches_seen = 0
        devices = [self.args.device] if self.args.device.type == "cuda" else []  # beside the CPU
        with self.average.in_place_of_weights(self.model), torch.random.fork_rng(devices=devices):
            output = super().evaluation_loop(*args, **kwargs)
        output.metrics.pop("eval_model_preparation_time", None)
        self.rows_evaluated = output.num_samples
        return output

    # Loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The task's, or the model's own; labels are smoothed only while training."""
        if self.task.has_own_loss:
            batches = getattr(self, "current_gradient_accumulation_steps", 1)  # fewer at the end of an epoch
            loss, outputs = self.task.loss(model, inputs, num_items_in_batch, batches)
            return (loss, outputs) if return_outputs else loss
        labels = inputs.get("labels")
        smoothing = self.args.label_smoothing_factor if model.training else 0.0
        if labels is None or self.task.regression or not smoothing:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits, labels = self.task.aligned(outputs.logits, labels)
        labels = labels.flatten()
        loss = F.cross_entropy(logits.flatten(0, -2).float(), labels, label_smoothing=smoothing, reduction="sum")
        if num_items_in_batch is not None:  # of all processes, whose gradients are averaged
            loss = loss / num_items_in_batch * self.args.world_size
        else:
            loss = loss / (labels != -100).sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        self.check_finite(math.isfinite(logs.get("loss", 0.0)))
        logs.pop("train_loss", None)  # after a resume it would be a part of the steps over all of them
        logs["seconds"] = self.clock.seconds()
        super().log(logs, start_time)

    def _run_epoch(self, *args, **kwargs):
        if self.state.global_step >= self.state.max_steps:  # killed between the last checkpoint and the results
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    # Checkpoints

    def _save_checkpoint(self, model, trial):
        """As Trainer's; then writes the average, and last the list of files that declares the checkpoint whole."""
        self.check_finite_weights()
        super()._save_checkpoint(model, trial)
        if self.args.world_size > 1:
            self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = self.folder / f"checkpoint-{self.state.global_step}"
            (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            self.average.save(self.model, folder)
            self.clock.save(folder)
            declare_whole(folder)
            rotate(self.folder, self.checkpoints_kept, self.args.checkpoint_steps, self.state.best_model_checkpoint)

    def continue_from(self, checkpoint: Path) -> None:
        """Reads what a checkpoint holds beside Trainer's own state; call it before `train`."""
        self.average.load(self.model, checkpoint, self.args.device)
        self.clock.load(checkpoint)

    def finish_weights(self) -> None:
        """Puts the average, if any, in place of the weights; raises ValueError if one is NaN or infinite."""
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self.average.load(self.model, Path(self.state.best_model_checkpoint), self.args.device)
        self.average.replace_weights(self.model)
        self.check_finite_weights()

    def check_finite_weights(self) -> None:
        self.check_finite(all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()))

    def check_finite(self, is_finite: bool) -> None:
        """Raises ValueError, with the step and the last good checkpoint, if what was looked at is not finite."""
        if not is_finite:
            whole = whole_checkpoints(self.folder)
            kept = f"the last good checkpoint is {whole[-1]}" if whole else "no checkpoint had been written"
            step = self.state.global_step
            raise ValueError(f"loss or weights are not finite at step {step}; {kept}; try a lower learning_rate")

    def init_hf_repo(self, token=None, **options):
        """As Trainer's; raises ValueError, one line, if there is no token or the Hub does not make a repository."""
        check_token()
        with hub_errors(self.args.hub_model_id or self.folder.name):
            super().init_hf_repo(token, **options)
