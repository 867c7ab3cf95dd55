"""Learning from a teacher: sentence vectors; or any task with its own loss, logits and hidden states, weighted.

The teacher runs once over the training rows, over no more of them than `max_steps` read; what it puts out lies in the
cache of `datasets`, memory-mapped, and is that of these rows, these weights, this tokenizer and these settings. So a
row must be the same in every epoch: a masked language model hides the same tokens of a row each time, and the teacher
sees an image as it is evaluated. The loss on logits is Kullback and Leibler's divergence of the teacher's distribution
to the student's, both at a temperature, times the square of that (Hinton et al. 2015, arXiv 1503.02531).

Shapes: B rows, T tokens, C classes, N predicted tokens, V vocabulary, K kept tokens, L layers of the student, D width.
"""

import copy
import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, List, Value, concatenate_datasets
from datasets.fingerprint import Hasher
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map_only
from transformers import AutoTokenizer, EvalPrediction, PreTrainedModel
from transformers.utils import ModelOutput

from modeling_leaner import __version__
from modeling_leaner.conversion import load_lean
from modeling_leaner.family import IMAGES
from modeling_leaner.files import naming, read_json
from modeling_leaner.hub import RECORD, cut_of_layers, load_processors
from modeling_leaner.models import mean_over_tokens
from modeling_leaner.names import require_source

from ..data.sources import Rows, evenly, find_text_column, require_columns, sentences
from ..settings import RecipeArguments
from .base import (
    ROWS_AT_ONCE,
    Batch,
    Generators,
    Task,
    TextTask,
    check_text,
    evaluation_generators,
    prepared_rows,
    tokenizer_text,
)


ROW = "teacher_row"  # column of the index of a row in the split
ROWS_SORTED = 2048  # by length, so that rows of like length are padded together
LOGITS_AT_ONCE = 2**27  # half a GiB
LEAST = 1e-9  # probability of what is not among the kept tokens


# The teacher


def load_teacher(source: str, task: Task) -> PreTrainedModel:
    """The model of a checkpoint, to be learned from, on the device of the run; ValueError if it does not fit."""
    arguments = task.arguments
    learns_logits = task.name in LOGITS and arguments.distill_logits
    bare = task.trains_bare_model()
    refused = {
        "streaming": (arguments.streaming, "a teacher, which reads the whole split once"),
        "loss_chunk_size": (
            learns_logits and getattr(task.config, "loss_chunk_size", None) is not None,
            "distill_logits, which needs all logits: null in recipe and shape",
        ),
        "crop_padding, horizontal_flip": (
            arguments.distill_hidden and (arguments.crop_padding or arguments.horizontal_flip),
            "distill_hidden, since a teacher sees whole images",
        ),
    }
    for key, (is_set, why) in refused.items():
        if is_set:
            raise ValueError(f"{key}: not with {why}")
    with naming("teacher", (ValueError, OSError)):
        require_source(source)
        model = load_lean(source).eval()
    model = model.base_model if bare else model

    theirs, ours = model.config, task.config
    shared = {"model_type": (theirs.model_type, ours.model_type)}
    if theirs.model_type == ours.model_type:
        head = "".join(type(model).__name__.partition("For")[1:])
        shared["head"] = (head or "none", task.head or "none")
        if bare or arguments.distill_hidden:
            shared["hidden_size"] = (theirs.hidden_size, ours.hidden_size)
        if task.regression:
            shared["num_labels"] = (theirs.num_labels, 1)
        elif task.classes is not None:
            names = [theirs.id2label[index] for index in range(theirs.num_labels)], task.classes
            shared["classes"] = tuple(", ".join(name.removeprefix("LABEL_") for name in each) for each in names)
        if task.modality is IMAGES:
            shared["image_size"] = (theirs.image_shape, ours.image_shape)
            shared["num_channels"] = (theirs.num_channels, ours.num_channels)
            for processor in load_processors(source):
                for key in ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"):
                    shared[key] = (getattr(processor, key), getattr(task.processing, key))
        else:
            shared["max_length"] = (min(theirs.max_position_embeddings, task.length), task.length)
            if not bare or arguments.distill_hidden:  # token by token; of a whole text it may read other tokens
                tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
                shared["tokenizer"] = (tokenizer_text(tokenizer), tokenizer_text(task.processing))
    for name, (one, other) in shared.items():
        if one != other:
            values = f": {one}, not {other}" if name != "tokenizer" else ""
            raise ValueError(f"teacher: {source} has another {name} than the student{values}")
    return model.to(arguments.device)


def rows_of_run(rows: Dataset, arguments: RecipeArguments) -> Dataset:
    """As many rows as `max_steps` reads, evenly over all, the same for every seed: the teacher runs over no others.

    All rows where the steps read as many, or the run is one of epochs.
    """
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    count = arguments.max_steps * batch
    return rows.select(evenly(len(rows), count)) if 0 < count < len(rows) else rows


# What is kept of its outputs


class Target:
    """What is kept of a teacher's outputs, as columns of the prepared rows, and how far a student's are from it.

    `of_rows` makes the columns of each row from the teacher's outputs on the CPU, what it read, and the rows' lengths
    without padding; `collate` makes tensors of them; `loss` is a mean over the rows or over their tokens.
    """

    features: dict[str, object]  # the type of each column, by name
    key: tuple = ()  # every setting that decides which values are stored, part of the name of the cached outputs


def divergence(teacher: torch.Tensor, student: torch.Tensor, temperature: float) -> torch.Tensor:
    """Mean over all but the last dimension, from logits (..., C)."""
    expected = F.log_softmax(teacher.float() / temperature, dim=-1).flatten(0, -2)
    predicted = F.log_softmax(student.float() / temperature, dim=-1).flatten(0, -2)
    return F.kl_div(predicted, expected, reduction="batchmean", log_target=True) * temperature**2


def cosine_distance(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """1 − cosine of vectors (..., D)."""
    return 1 - F.cosine_similarity(teacher.float(), student.float(), dim=-1)


class ClassLogits(Target):
    """The logits (C) of a row; of a regression its number, whose squared error is the loss."""

    features = {"teacher_logits": List(Value("float32"))}

    def __init__(self, task: Task):
        self.temperature = task.arguments.distill_temperature
        self.regression = task.regression

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        return [{"teacher_logits": row.numpy()} for row in outputs.logits.float()]

    def collate(self, rows: list[dict]) -> Batch:
        return {"teacher_logits": torch.from_numpy(np.stack([row["teacher_logits"] for row in rows]))}

    def loss(self, outputs: ModelOutput, batch: Batch) -> torch.Tensor:
        if self.regression:
            return F.mse_loss(outputs.logits.float(), batch["teacher_logits"])
        return divergence(batch["teacher_logits"], outputs.logits, self.temperature)


class TopTokens(Target):
    """For each predicted token the K likeliest and their log-probabilities at the temperature; the rest is one more.

    All V logits of all positions would not fit on a disk.
    """

    features = {"teacher_tokens": List(Value("int32")), "teacher_log_probabilities": List(Value("float32"))}

    def __init__(self, task: Task):
        self.task = task
        self.temperature = task.arguments.distill_temperature
        self.kept = min(task.arguments.distill_top_k, task.config.vocab_size)
        self.key = (self.kept, self.temperature)

    def predicted(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of the predicted tokens (N, V), and which those are: (B, T), or (B, T − 1)."""
        logits, labels = self.task.aligned(logits, labels)
        counted = labels != -100
        return logits[counted], counted

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        logits, counted = self.predicted(outputs.logits, inputs["labels"])
        top = F.log_softmax(logits.float() / self.temperature, dim=-1).topk(self.kept)
        sizes = counted.sum(dim=1).tolist()
        return [
            {"teacher_tokens": tokens.flatten().int().numpy(), "teacher_log_probabilities": values.flatten().numpy()}
            for tokens, values in zip(top.indices.split(sizes), top.values.split(sizes))
        ]

    def collate(self, rows: list[dict]) -> Batch:
        """(N, K) each, for the predicted tokens of all rows, one row after the other."""
        joined = {name: np.concatenate([row[name] for row in rows]) for name in self.features}
        return {name: torch.from_numpy(values).view(-1, self.kept) for name, values in joined.items()}

    def loss(self, outputs: ModelOutput, batch: Batch) -> torch.Tensor:
        logits = outputs.logits
        if logits.dim() == 3:  # of every position
            logits, _ = self.predicted(logits, batch["labels"])
        log_probabilities = F.log_softmax(logits.float() / self.temperature, dim=-1)
        predicted = with_the_rest(log_probabilities.gather(1, batch["teacher_tokens"].long()))
        expected = with_the_rest(batch["teacher_log_probabilities"])
        return F.kl_div(predicted, expected, reduction="batchmean", log_target=True) * self.temperature**2


def with_the_rest(log_probabilities: torch.Tensor) -> torch.Tensor:
    """(N, K) → (N, K + 1): the last is of all other tokens together."""
    rest = 1 - log_probabilities.exp().sum(dim=1, keepdim=True)
    return torch.cat([log_probabilities, rest.clamp(min=LEAST).log()], dim=1)


LOGITS: dict[str, type[Target]] = {  # what is kept, by the name of the task
    "image-classification": ClassLogits,
    "sequence-classification": ClassLogits,
    "causal-lm": TopTokens,
    "masked-lm": TopTokens,
}


class States(Target):
    """The states after some layers of the teacher: (L, T, D) for a row, in 16 bits."""

    features = {"teacher_states": List(Value("float16"))}

    def __init__(self, layers: list[int], width: int):
        self.layers = layers
        self.width = width
        self.key = (*layers, width)

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        states = torch.stack([outputs.hidden_states[layer + 1] for layer in self.layers], dim=1)  # (B, L, T, D)
        return [{"teacher_states": row[:, :length].half().flatten().numpy()} for row, length in zip(states, lengths)]

    def collate(self, rows: list[dict]) -> Batch:
        """The states (B, L, T, D), and which tokens are no padding: (B, T)."""
        kept = [torch.tensor(row["teacher_states"], dtype=torch.float16) for row in rows]
        kept = [row.view(len(self.layers), -1, self.width).transpose(0, 1) for row in kept]  # (T, L, D) each
        states = pad_sequence(kept, batch_first=True).transpose(1, 2)
        lengths = torch.tensor([len(row) for row in kept])
        return {"teacher_states": states, "teacher_mask": torch.arange(states.shape[2]) < lengths[:, None]}

    def loss(self, outputs: ModelOutput, batch: Batch) -> torch.Tensor:
        """Mean over layers and tokens of 1 − cosine."""
        states = torch.stack(list(outputs["hidden_states"][1:]), dim=1)  # (B, L, T, D)
        distances = cosine_distance(states, batch["teacher_states"])  # (B, L, T)
        return distances.transpose(1, 2)[batch["teacher_mask"]].mean()


def mapped_layers(shape: str, named: list[int], depth: int, teacher_depth: int) -> list[int]:
    """For each layer of the student, the layer of the teacher that it learns from, from 0.

    Those that are named; else those that `leaner slim` kept, if the student's folder says so; else evenly, the last
    from the last. Raises ValueError for another number of them, or one that the teacher does not have.
    """
    if named:
        if len(named) != depth or not all(0 <= layer < teacher_depth for layer in named):
            raise ValueError(
                f"distill_layers: expected a layer of 0..{teacher_depth - 1} for each of {depth}, got {named}"
            )
        return named
    file = Path(shape) / RECORD
    cut = cut_of_layers(read_json(file)) if file.is_file() else None
    if cut is not None and (len(cut["before"]), len(cut["after"])) == (teacher_depth, depth):
        return cut["after"]
    return [max(0, (layer + 1) * teacher_depth // depth - 1) for layer in range(depth)]


# The task that learns from it


class Taught:
    """A task whose model learns from a teacher, too; what it does not define itself is the task's.

    Rows without the teacher's columns, as held-out ones, are the task's alone: their loss is comparable with that of a
    run without a teacher.
    """

    has_own_loss = True

    def __init__(self, task: Task, teacher: PreTrainedModel):
        self.task = task
        arguments = task.arguments
        learns_logits = task.name in LOGITS and arguments.distill_logits
        self.logits = LOGITS[task.name](task) if learns_logits else None
        self.states = None
        if arguments.distill_hidden:
            depths = (task.config.num_hidden_layers, teacher.config.num_hidden_layers)
            layers = mapped_layers(str(arguments.shape), arguments.distill_layers, *depths)
            self.states = States(layers, teacher.config.hidden_size)
        self.targets = [target for target in (self.logits, self.states) if target is not None]

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # not there yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.task, name)

    def collate(self, rows: list[dict]) -> Batch:
        batch = self.task.collate(rows)
        if ROW in rows[0]:
            for target in self.targets:
                batch |= target.collate(rows)
            batch[ROW] = torch.tensor([int(row[ROW]) for row in rows])
        return batch

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """As the task's; where tokens are hidden, those of a row are always the same ones."""
        own = {name: tensor for name, tensor in batch.items() if not name.startswith("teacher_")}
        if ROW in batch and self.task.modality is not IMAGES:
            generators = evaluation_generators(batch[ROW].tolist())
        taught = {name: tensor for name, tensor in batch.items() if name not in own and name != ROW}
        return {**self.task.transform(own, generators, training), **taught}

    def loss(
        self, model: PreTrainedModel, inputs: Batch, items: torch.Tensor | None, batches: int = 1
    ) -> tuple[torch.Tensor, object]:
        """The weighted sum of the three, each a mean of this batch; of rows without targets the task's own loss."""
        own = {name: tensor for name, tensor in inputs.items() if not name.startswith("teacher_")}
        if len(own) == len(inputs):
            return self.own_loss(model, own)
        arguments = self.task.arguments
        if self.states is not None:
            own["output_hidden_states"] = True
        with vocabulary_logits(model, are_learned=self.logits is not None) as computed:
            own_loss, outputs = self.own_loss(model, own)
        if computed and outputs.logits is None:
            outputs = dataclasses.replace(outputs, logits=computed[-1])
        loss = arguments.distill_task * own_loss
        if self.logits is not None:
            loss = loss + arguments.distill_logits * self.logits.loss(outputs, inputs)
        if self.states is not None:
            loss = loss + arguments.distill_hidden * self.states.loss(outputs, inputs)
        return (loss if items is None else loss / batches), outputs  # Trainer leaves this division to the task

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


def with_teacher(task: Task, rows: Rows) -> tuple[Task, Rows]:
    """The task that learns from the settings' teacher, and the training rows with what the teacher puts out.

    The task itself and its rows where there is no teacher, or the task reads all of it already.
    """
    arguments = task.arguments
    is_taught = task.name in LOGITS and arguments.distill_logits or arguments.distill_hidden
    if arguments.teacher is not None and not is_taught and not task.trains_bare_model():
        raise ValueError("distill_logits, distill_hidden: both are 0, so that nothing is learned from the teacher")
    if arguments.teacher is None or not is_taught:
        return task, rows
    teacher = load_teacher(arguments.teacher, task)
    rows = rows_of_run(rows, arguments)
    taught = Taught(task, teacher)
    # What decides which values are stored: texts, numbers and tuples of them, which hash alike in every process.
    settings = (task.name, arguments.mask_fraction, arguments.bf16, task.reading_key())
    rows = read_by_teacher(rows, task, teacher, taught.targets, settings, arguments.bf16)
    return taught, rows.with_format("numpy")


def read_by_teacher(
    rows: Dataset, task: Task, teacher: PreTrainedModel, targets: list[Target], settings: tuple, bf16: bool
) -> Dataset:
    """The prepared rows with the columns of the targets and ROW, memory-mapped from the cache.

    The cache is that of these rows, these weights and these settings, and of no others. With `bf16` the teacher
    multiplies in bfloat16, as a student does that trains so.
    """
    features = Features({**rows.features, ROW: Value("int64")})
    for target in targets:
        features |= target.features

    def read(batch: dict[str, Any], indices: list[int]) -> dict[str, list]:
        with torch.autocast(teacher.device.type, torch.bfloat16, enabled=bf16):
            return teacher_columns(batch, indices, task, teacher, targets)

    digest = hashlib.sha256()
    for name, tensor in sorted(teacher.state_dict().items()):  # buffers, too
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    stored = tuple((type(target).__name__, *target.key) for target in targets)
    key = (stored, settings, bf16, digest.hexdigest(), __version__)
    return rows.map(
        read,
        batched=True,
        with_indices=True,
        batch_size=ROWS_SORTED,
        features=features,
        new_fingerprint=Hasher.hash((rows._fingerprint, key)),
        desc="the teacher's outputs",
    )


@torch.no_grad()
def teacher_columns(
    batch: dict[str, list], indices: list[int], task: Task, teacher: PreTrainedModel, targets: list[Target]
) -> dict[str, list]:
    """The teacher's columns for some rows, in their order; rows of like length are read together.

    `indices` are those of the rows in the split: a row's decides what is hidden of it.
    """
    rows = [dict(zip(batch, values)) for values in zip(*batch.values())]
    lengths = [len(row["input_ids"]) if "input_ids" in row else teacher.config.default_length for row in rows]
    has_vocabulary = getattr(teacher, "lm_head", None) is not None  # whose logits are large
    row_logits = max(lengths) * teacher.config.vocab_size if has_vocabulary else 1
    at_once = max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // row_logits))
    has_states = any(isinstance(target, States) for target in targets)
    columns: list[dict[str, Any]] = [{ROW: index} for index in indices]
    by_length = sorted(range(len(lengths)), key=lambda place: lengths[place])  # so that little of a batch is padding
    for start in range(0, len(by_length), at_once):
        places = by_length[start : start + at_once]
        collated = task.collate([rows[place] for place in places])
        generators = evaluation_generators([indices[place] for place in places])
        inputs = task.transform(collated, generators, training=False)
        read = {name: tensor.to(teacher.device) for name, tensor in inputs.items() if name != "labels"}
        outputs = tree_map_only(torch.Tensor, torch.Tensor.cpu, teacher(**read, output_hidden_states=has_states))
        for target in targets:
            kept = target.of_rows(outputs, inputs, [lengths[place] for place in places])
            for place, values in zip(places, kept):
                columns[place] |= values
    return {name: [row[name] for row in columns] for name in columns[0]}


# The task that learns nothing else


class Embedding(TextTask):
    """A vector per text, the mean over its tokens.

    They learn to point where the teacher's do (loss: 1 − cosine, or by `vector_loss` the squared error); the metric is
    their cosine. `leaner evaluate --task embedding` scores encoders on pairs of sentences.
    """

    name = "embedding"
    hub_name = "sentence-similarity"
    title = "Sentence vectors"
    head = ""  # the bare model
    does = "turns texts into vectors that are near where the texts are alike"
    has_own_loss = True

    def configure(self, train: Rows) -> dict[str, object]:
        if self.arguments.teacher is None:
            raise ValueError("teacher: missing; a folder or Hub id whose vectors are learned")
        self.text_column = find_text_column(train, self.arguments.text_column, "text_column")
        self.columns = [self.text_column]
        return {}

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        teacher = load_teacher(self.arguments.teacher, self)
        prepared = read = self.tokenised(rows, source, training)
        reader = self
        tokenizer = AutoTokenizer.from_pretrained(self.arguments.teacher, trust_remote_code=False)
        if tokenizer_text(tokenizer) != tokenizer_text(self.processing):  # a student may have a smaller vocabulary
            reader = copy.copy(self)
            reader.processing = tokenizer
            read = reader.tokenised(rows, source, training)
        bf16 = training and self.arguments.bf16
        read = read_by_teacher(read, reader, teacher, [Vectors(teacher)], (), bf16).remove_columns(ROW)
        return read if reader is self else concatenate_datasets([prepared, read.select_columns("labels")], axis=1)

    def tokenised(self, rows: Rows, source: str, training: bool) -> Rows:
        """Rows of the token ids of each text and their number; to train on no more rows than the run reads."""
        require_columns(rows, self.columns, source)
        settings = (self.text_column, self.length, self.arguments.split_sentences, self.reading_key())
        function = partial(self._read, source=source)
        workers = self.arguments.preprocessing_workers
        prepared = prepared_rows(rows, function, (self.name, settings), workers, f"tokens of {source}")
        if len(prepared) == 0:
            raise ValueError(f"{source}: {self.text_column} holds no sentence")
        return rows_of_run(prepared, self.arguments) if training else prepared

    def _read(self, batch: dict[str, list], indices: list[int], source: str) -> dict:
        check_text(batch, self.text_column, indices, source)
        texts = batch[self.text_column]
        texts = [part for text in texts for part in sentences(text)] if self.arguments.split_sentences else texts
        if not texts:
            return {"input_ids": [], "length": []}
        tokens = self.processing(texts, truncation=True, max_length=self.length, return_attention_mask=False)
        return {"input_ids": tokens["input_ids"], "length": list(map(len, tokens["input_ids"]))}

    def collate(self, rows: list[dict]) -> Batch:
        """Token ids and mask (B, T), and `labels`: the teacher's vectors (B, D), once it has read the rows."""
        if "labels" not in rows[0]:
            return self.collate_text(rows)
        labels = torch.tensor(np.array([row["labels"] for row in rows]), dtype=torch.float32)
        return {**self.collate_text(rows), "labels": labels}

    def loss(
        self, model: PreTrainedModel, inputs: Batch, items: torch.Tensor | None, batches: int = 1
    ) -> tuple[torch.Tensor, Batch]:
        """Mean over rows of the distance to the teacher; and the vectors (B, D), and states if asked."""
        tokens = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**tokens)
        vectors = mean_over_tokens(outputs.last_hidden_state.float(), inputs["attention_mask"])
        if self.arguments.vector_loss == "squared_error":
            distances = (vectors - inputs["labels"]).square().mean(dim=-1)  # (B)
        else:
            distances = cosine_distance(vectors, inputs["labels"])
        # the items are the numbers of all vectors, of all processes, whose gradients are averaged
        rows = None if items is None else items / inputs["labels"].shape[1] / self.arguments.world_size
        loss = distances.mean() if rows is None else distances.sum() / rows
        kept = {"loss": loss, "vectors": vectors}
        if outputs.hidden_states is not None:
            kept["hidden_states"] = outputs.hidden_states
        return loss, kept

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        vectors, teachers = unit_vectors(prediction.predictions), unit_vectors(prediction.label_ids)
        return {"cosine": float((vectors * teachers).sum(axis=1).mean())}


class Vectors(Target):
    """The mean over tokens of the last states, as the labels of a row: (D), in float32."""

    def __init__(self, teacher: PreTrainedModel):
        self.features = {"labels": List(Value("float32"), length=teacher.config.hidden_size)}

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        means = mean_over_tokens(outputs.last_hidden_state.float(), inputs["attention_mask"])
        return [{"labels": vector.numpy()} for vector in means]


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """(N, D), each of length one, in float64."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
