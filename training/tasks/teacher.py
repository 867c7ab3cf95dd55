"""A trained model that another one learns from: whether it fits, and its sentence vectors, computed once."""

import hashlib
from functools import partial

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer, PreTrainedModel

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import load_lean
from modeling_leaner.hub_lookup import require_source
from modeling_leaner.registry import IMAGES
from modeling_leaner.source_files import load_processors

from ..data.sources import evenly
from ..settings.arguments import RecipeArguments
from .base import Task
from .text import tokenizer_text
from .vectors import mean_vectors


ROWS_SORTED = 2048  # by length, so that rows of like length are padded together


def rows_of_run(rows: Dataset, arguments: RecipeArguments) -> Dataset:
    """As many rows as `max_steps` reads, evenly over all, the same for every seed: the teacher runs over no others.

    All rows where the steps read as many, or the run is one of epochs.
    """
    if arguments.max_steps <= 0:
        return rows
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    count = arguments.max_steps * batch
    if count >= len(rows):
        return rows
    return rows.select(evenly(len(rows), count))


def load_teacher(source: str, task: Task) -> PreTrainedModel:
    """The model of a checkpoint with the head of the task, to be learned from, on the device of the run.

    Raises:
        ValueError: it cannot be loaded, has another head or other classes, reads other tokens or images than the
            student, or is too narrow or too wide for what is learned.
    """
    ignore = []
    if task.trains_bare_model():
        ignore.append("pooler.*")
    try:
        require_source(source)
        model = load_lean(source, ignore=ignore).eval()
    except (ValueError, OSError) as error:
        raise ValueError(f"teacher: {error}") from error
    if task.trains_bare_model():
        model = model.base_model
    config = task.config
    if model.config.model_type != config.model_type:
        raise ValueError(f"teacher: {source} is a {model.config.model_type}, expected a {config.model_type}")
    name = type(model).__name__
    if not task.fits_class(name):
        raise ValueError(f"teacher: {source} is a {name}, expected one {task.head} for {task.name}")
    same_width = model.config.hidden_size == config.hidden_size
    if not same_width and (task.trains_bare_model() or task.arguments.distill_hidden):
        width = model.config.hidden_size
        raise ValueError(f"teacher: {source} has vectors of {width} numbers, the student of {config.hidden_size}")
    check_classes(source, model.config, task)
    if task.modality is IMAGES:
        check_images(source, model.config, task)
    else:
        check_tokens(source, model.config, task)
    return model.to(task.arguments.device)


def check_classes(source: str, config: LeanConfig, task: Task) -> None:
    """Raises ValueError for a teacher of other classes than the rows have, or in another order."""
    if task.regression and config.num_labels != 1:
        raise ValueError(f"teacher: {source} has {config.num_labels} classes, but the labels are numbers")
    if task.classes is None:
        return
    names = list(task.classes)
    theirs = [config.id2label[index] for index in range(config.num_labels)]
    unnamed = [f"LABEL_{index}" for index in range(len(names))]
    numbered = [str(index) for index in range(len(names))]
    if theirs != names and not (theirs == unnamed and names == numbered):
        raise ValueError(f"teacher: {source} has the classes {first_names(theirs)}, the rows {first_names(names)}")


def first_names(names: list[str]) -> str:
    """The names as messages show them: the first five, and how many there are."""
    if len(names) > 5:
        return f"{', '.join(names[:5])}, ... ({len(names)})"
    return ", ".join(names)


def check_images(source: str, config: LeanConfig, task: Task) -> None:
    """Raises ValueError for a teacher that reads images of another size, or scaled otherwise."""
    if (config.image_shape, config.num_channels) != (task.config.image_shape, task.config.num_channels):
        raise ValueError(f"teacher: {source} has image_size {config.image_size}, the student {task.config.image_size}")
    for processor in load_processors(source):
        for key in ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"):
            theirs = getattr(processor, key)
            ours = getattr(task.processing, key)
            if theirs != ours:
                raise ValueError(f"teacher: {source} reads images with {key} {theirs}, the student with {ours}")


def check_tokens(source: str, config: LeanConfig, task: Task) -> None:
    """Raises ValueError for a teacher with another tokenizer, or fewer positions than rows have tokens."""
    if tokenizer_text(AutoTokenizer.from_pretrained(source, trust_remote_code=False)) != tokenizer_text(
        task.processing
    ):
        raise ValueError(f"teacher: the tokenizer of {source} is not the student's")
    if task.length > config.max_position_embeddings:
        positions = config.max_position_embeddings
        raise ValueError(f"teacher: {source} reads {positions} tokens, rows have up to {task.length}; see max_length")


def state_sha256(model: PreTrainedModel) -> str:
    """A hash of the state dict: names and values, buffers too."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def precision(teacher: PreTrainedModel, bf16: bool) -> torch.autocast:
    """A context in which the teacher multiplies in bfloat16, as a student does that trains with `bf16`."""
    return torch.autocast(teacher.device.type, torch.bfloat16, enabled=bf16)


def with_vectors(rows: Dataset, teacher: PreTrainedModel, description: str, bf16: bool) -> Dataset:
    """The prepared rows with the teacher's vector of each as `labels`, memory-mapped from the cache.

    The cache is that of these rows, these weights and this precision, and of no others.
    """
    size = teacher.config.hidden_size
    features = Features({**rows.features, "labels": List(Value("float32"), length=size)})
    key = ("means", state_sha256(teacher), bf16, __version__)
    return rows.map(
        partial(teacher_vectors, teacher=teacher, bf16=bf16),
        batched=True,
        batch_size=ROWS_SORTED,
        features=features,
        new_fingerprint=Hasher.hash((rows._fingerprint, key)),
        desc=f"teacher's vectors of {description}",
    )


def teacher_vectors(batch: dict[str, list], teacher: PreTrainedModel, bf16: bool) -> dict[str, list[np.ndarray]]:
    """`mean_vectors` of prepared rows, as their labels."""
    with precision(teacher, bf16):
        return {"labels": mean_vectors(batch["input_ids"], teacher)}
