"""Any task with a teacher: the task's own loss, the teacher's logits and its hidden states, weighted.

The teacher runs once over the training rows, over no more of them than `max_steps` read; what it puts out lies in the
cache of `datasets`, memory-mapped, and is that of these rows, these weights, this tokenizer and these settings. So a
row must be the same in every epoch: a masked language model hides the same tokens of a row each time, and the teacher
sees an image as it is evaluated.
"""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import Dataset, Features
from datasets.fingerprint import Hasher
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.registry import IMAGES

from ..data.sources import Rows
from ..settings.arguments import RecipeArguments
from .base import ROWS_AT_ONCE, Batch, Generators, Task, batches_by_length, evaluation_generators
from .states import States, mapped_layers
from .teacher import ROWS_SORTED, load_teacher, precision, rows_of_run, state_sha256
from .teacher_logits import LOGITS
from .teacher_targets import TeacherTargets


TEACHER_TENSORS = ("teacher_logits", "teacher_tokens", "teacher_log_probabilities", "teacher_states", "teacher_mask")
ROW = "teacher_row"  # column of the index of a row in the split
LOGITS_AT_ONCE = 2**27  # half a GiB
DISK_SHARE = 0.8  # of the free bytes that the cache may take


class Taught:
    """A task whose model learns from a teacher, too; what it does not define itself is the task's.

    Rows without the teacher's columns, as held-out ones, are the task's alone: their loss is comparable with that of a
    run without a teacher.
    """

    has_own_loss = True

    def __init__(self, task: Task, teacher: PreTrainedModel):
        self.task = task
        arguments = task.arguments
        self.logits = None
        if arguments.distill_logits and task.name in LOGITS:
            self.logits = LOGITS[task.name](task)
        self.states = None
        if arguments.distill_hidden:
            depth = task.config.num_hidden_layers
            teacher_depth = teacher.config.num_hidden_layers
            layers = mapped_layers(str(arguments.shape), arguments.distill_layers, depth, teacher_depth)
            self.states = States(layers, teacher.config.hidden_size)

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # not there yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.task, name)

    @property
    def loss_unit(self) -> str:
        return loss_unit_of(type(self.task), vars(self.task.arguments), self.task.config)

    @property
    def parts(self) -> list[TeacherTargets]:
        """The kinds of targets that are kept of the teacher's outputs."""
        return [part for part in (self.logits, self.states) if part is not None]

    def collate(self, rows: list[dict]) -> Batch:
        batch = self.task.collate(rows)
        if ROW not in rows[0]:
            return batch
        for part in self.parts:
            batch |= part.collate(rows)
        return {**batch, ROW: torch.tensor([int(row[ROW]) for row in rows])}

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """As the task's; where tokens are hidden, those of a row are always the same ones."""
        plain, targets = self.split(batch)
        indices = plain.pop(ROW, None)
        if indices is not None and self.task.modality is not IMAGES:
            generators = evaluation_generators(indices.tolist())
        return {**self.task.transform(plain, generators, training), **targets}

    @staticmethod
    def split(batch: Batch) -> tuple[Batch, Batch]:
        """What the task itself reads, and the targets that the teacher gave; none of these for held-out rows."""
        plain = {name: tensor for name, tensor in batch.items() if name not in TEACHER_TENSORS}
        targets = {name: tensor for name, tensor in batch.items() if name in TEACHER_TENSORS}
        return plain, targets

    def loss(
        self, model: PreTrainedModel, inputs: Batch, items: torch.Tensor | None, batches: int = 1
    ) -> tuple[torch.Tensor, object]:
        """The weighted sum of the three, each a mean of this batch; of rows without targets the task's own loss."""
        plain, targets = self.split(inputs)
        if not targets:
            return self.own_loss(model, plain)
        arguments = self.task.arguments
        if self.states is not None:
            plain["output_hidden_states"] = True
        with vocabulary_logits(model, are_learned=self.logits is not None) as computed:
            own, outputs = self.own_loss(model, plain)
        if computed and outputs.logits is None:
            outputs = dataclasses.replace(outputs, logits=computed[-1])
        loss = arguments.distill_task * own
        if self.logits is not None:
            loss = loss + arguments.distill_logits * self.logits.loss(outputs, inputs)
        if self.states is not None:
            loss = loss + arguments.distill_hidden * self.states.loss(outputs, inputs)
        if items is not None:  # Trainer leaves the division by the batches of a step to this
            loss = loss / batches
        return loss, outputs

    def own_loss(self, model: PreTrainedModel, inputs: Batch) -> tuple[torch.Tensor, object]:
        """The task's loss without a teacher, and the outputs."""
        if self.task.has_own_loss:
            return self.task.loss(model, inputs, None)
        outputs = model(**inputs)
        return outputs.loss, outputs


@contextmanager
def vocabulary_logits(model: nn.Module, are_learned: bool) -> Iterator[list[torch.Tensor]]:
    """A list that gets the logits of a vocabulary, (..., V), each time that the model computes some inside the block.

    A masked language model computes those of the hidden tokens alone, and puts none out. The list stays empty for a
    model without `lm_head`, and where the logits are not learned: of a loss in chunks it would hold every chunk.
    """
    computed: list[torch.Tensor] = []
    head = getattr(getattr(model, "module", model), "lm_head", None)
    if head is None or not are_learned:
        yield computed
        return
    handle = head.register_forward_hook(lambda module, args, logits: computed.append(logits))
    try:
        yield computed
    finally:
        handle.remove()


def is_taught(task_name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a run of these settings learns from a teacher what its task alone does not read of it."""
    learns_logits = task_name in LOGITS and bool(settings["distill_logits"])
    return settings["teacher"] is not None and (learns_logits or bool(settings["distill_hidden"]))


def loss_unit_of(task_class: type[Task], settings: Mapping[str, Any], config: LeanConfig) -> str:
    """What the losses of a run are measured in, by all its settings and the configuration of its model."""
    own = task_class.loss_unit_of(settings, config)
    if is_taught(task_class.name, settings):
        return f"weighted sum (held-out: {own})"
    return own


def with_teacher(task: Task, rows: Rows) -> tuple[Task, Rows]:
    """The task that learns from the settings' teacher, and the training rows with what the teacher puts out.

    The task itself and its rows where there is no teacher, or the task reads all of it already.

    Raises:
        ValueError: the teacher does not fit, or what it puts out does not fit on the disk.
    """
    arguments = task.arguments
    if arguments.teacher is None:
        return task, rows
    check_distillation(arguments, task)
    if not is_taught(task.name, vars(arguments)):
        return task, rows
    if not isinstance(rows, Dataset):
        raise ValueError("teacher: streaming: the teacher reads the whole split once")
    teacher = load_teacher(arguments.teacher, task)
    rows = rows_of_run(rows, arguments)
    taught = Taught(task, teacher)
    columns = {name: feature for part in taught.parts for name, feature in part.features.items()}
    features = Features({**rows.features, **columns, ROW: datasets.Value("int64")})
    read = partial(teacher_columns, taught=taught, teacher=teacher)

    def read_where_there_is_room(batch: dict[str, Any], indices: list[int]) -> dict[str, list]:
        if indices[0] == 0:  # not called at all where the outputs are cached
            check_disk(taught, rows)
        return read(batch, indices)

    kept = rows.map(
        read_where_there_is_room,
        batched=True,
        with_indices=True,
        batch_size=ROWS_SORTED,
        features=features,
        new_fingerprint=Hasher.hash((rows._fingerprint, outputs_key(taught, teacher))),
        desc="the teacher's outputs",
    )
    return taught, kept.with_format("numpy")


def outputs_key(taught: Taught, teacher: PreTrainedModel) -> tuple:
    """What decides which values are stored of the teacher's outputs on given rows: their name in the cache."""
    task = taught.task
    parts = tuple(part.cache_key for part in taught.parts)
    settings = (task.arguments.mask_fraction, task.arguments.bf16)
    return (task.name, parts, settings, reading_key(task), state_sha256(teacher), __version__)


def reading_key(task: Task) -> str:
    """What decides how rows are read: the tokenizer, or the image processor."""
    if task.modality is IMAGES:
        return task.processing.to_json_string()
    return task.tokenizer_key()


def check_distillation(arguments: RecipeArguments, task: Task) -> None:
    """Raises ValueError for settings that a teacher's cached outputs do not fit, or that leave nothing to learn."""
    if not (arguments.distill_task or arguments.distill_hidden or (arguments.distill_logits and task.name in LOGITS)):
        raise ValueError("distill_task, distill_logits, distill_hidden: all are 0, so there is nothing to learn")
    if task.name in LOGITS and not is_taught(task.name, vars(arguments)):
        raise ValueError("distill_logits, distill_hidden: both are 0, so nothing is learned from the teacher")
    if arguments.label_smoothing_factor:
        raise ValueError("label_smoothing_factor: not with a teacher, whose logits are smooth already")
    if arguments.distill_logits and getattr(task.config, "loss_chunk_size", None) is not None:
        raise ValueError("loss_chunk_size: not with distill_logits, which needs all logits: null in recipe and shape")
    if task.modality is not IMAGES:
        return
    for key in ("mixup_alpha", "train_resize"):
        if getattr(arguments, key):
            raise ValueError(f"{key}: not with a teacher, which sees each image once, as it is evaluated")
    for key in ("crop_padding", "horizontal_flip"):
        if arguments.distill_hidden and getattr(arguments, key):
            raise ValueError(f"{key}: not with distill_hidden: the teacher's states are those of the whole image")


def check_disk(taught: Taught, rows: Dataset) -> None:
    """Raises ValueError where the cache would take more than most of what is free on its disk."""
    if "input_ids" in rows.column_names:
        tokens = sum(map(len, rows["input_ids"]))
    else:
        tokens = len(rows) * taught.task.config.default_length
    needed = tokens * sum(part.bytes_per_token for part in taught.parts)
    folder = Path(datasets.config.HF_DATASETS_CACHE)
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    if needed > DISK_SHARE * free:
        raise ValueError(
            f"teacher: what it puts out on {len(rows):,} rows takes {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} "
            f"GiB are free in {folder}; fewer rows by max_train_rows, or without distill_hidden"
        )


def teacher_columns(
    batch: dict[str, list], indices: list[int], taught: Taught, teacher: PreTrainedModel
) -> dict[str, list]:
    """The teacher's columns for some rows, in their order; rows of like length are read together.

    Args:
        batch: the columns of the prepared rows.
        indices: of each row in the split; a row's decides what is hidden of it.
    """
    rows = [dict(zip(batch, values)) for values in zip(*batch.values())]
    lengths = row_lengths(batch, len(rows), teacher)
    columns: list[dict[str, Any]] = [{ROW: index} for index in indices]
    for places in batches_by_length(lengths, rows_at_once(teacher, max(lengths))):
        rows_read = [rows[place] for place in places]
        indices_read = [indices[place] for place in places]
        lengths_read = [lengths[place] for place in places]
        inputs, outputs = read_by_teacher(rows_read, indices_read, taught, teacher)
        for part in taught.parts:
            for place, values in zip(places, part.of_rows(outputs, inputs, lengths_read)):
                columns[place] |= values
    return {name: [row[name] for row in columns] for name in columns[0]}


def row_lengths(batch: dict[str, list], count: int, teacher: PreTrainedModel) -> list[int]:
    """How many tokens each of `count` rows has for the teacher: all images as many, texts those of `input_ids`."""
    if "input_ids" not in batch:
        return [teacher.config.default_length] * count
    return [len(ids) for ids in batch["input_ids"]]


@torch.no_grad()
def read_by_teacher(
    rows: list[dict[str, Any]], indices: list[int], taught: Taught, teacher: PreTrainedModel
) -> tuple[Batch, ModelOutput]:
    """Some rows as a batch, and the teacher's outputs on it, both on the CPU; `indices` are those in the split."""
    collated = taught.task.collate(rows)
    inputs = taught.task.transform(collated, evaluation_generators(indices), training=False)
    read = {name: tensor.to(teacher.device) for name, tensor in inputs.items() if name not in taught.label_names}
    with precision(teacher, taught.arguments.bf16):
        outputs = teacher(**read, output_hidden_states=taught.states is not None)
    return inputs, type(outputs)({name: on_cpu(value) for name, value in outputs.items()})


def rows_at_once(teacher: PreTrainedModel, tokens: int) -> int:
    """How many rows of that many tokens the teacher reads together: all logits of a vocabulary are large."""
    if getattr(teacher, "lm_head", None) is None:
        return ROWS_AT_ONCE
    return max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // (tokens * teacher.config.vocab_size)))


def on_cpu(value: object) -> object:
    """A tensor, or each of several, on the CPU."""
    if isinstance(value, tuple):
        return tuple(map(on_cpu, value))
    if isinstance(value, torch.Tensor):
        return value.cpu()
    return value
