"""Learning from a teacher: sentence vectors; or any task with its own loss, logits and hidden states, weighted.

In every step the teacher reads what the student reads. The loss on logits is Kullback and Leibler's divergence of the
teacher's distribution to the student's, both at a temperature, times the square of that (Hinton et al. 2015, arXiv
1503.02531).

Shapes: B rows, T tokens, C classes, N predicted tokens, V vocabulary, K kept tokens, D width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer, EvalPrediction, PreTrainedModel

from modeling_leaner.conversion import load_lean
from modeling_leaner.family import IMAGES
from modeling_leaner.files import naming, read_json
from modeling_leaner.hub import RECORD, load_processors, pooling_of
from modeling_leaner.models import mean_over_tokens
from modeling_leaner.names import require_source

from ..data.encoder_texts import sentences_of
from ..data.sources import Rows, checked_texts
from .base import Batch, Generators, Task, TextTask, prepared_rows, tokenizer_text


LEAST = 1e-9  # probability of what is not among the kept tokens
OF_TEACHER = "teacher_"  # begins the names of what only the teacher reads


# The teacher


def load_teacher(task: Task) -> PreTrainedModel:
    """The settings' teacher on the device of the run; ValueError if it does not fit the student."""
    arguments, source = task.arguments, task.arguments.teacher
    bare = not task.head
    if not bare and arguments.distill_logits and getattr(task.config, "loss_chunk_size", None) is not None:
        raise ValueError("loss_chunk_size: not with distill_logits, which needs all logits: null in recipe and shape")
    with naming("teacher", (ValueError, OSError)):
        require_source(source)
        model = load_lean(source).float().eval()
    if bare:
        model = model.base_model
        require_mean("teacher", source)

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
    if getattr(theirs, "loss_chunk_size", None) is not None:
        theirs.loss_chunk_size = None  # which puts out no logits
    model.training = not bare  # a head alone, which then scores the hidden tokens only, as the student's does
    return model.to(arguments.device)


def require_mean(key: str, source: str) -> None:
    """Raises ValueError, with the setting, for an encoder that does not pool by the mean, as a run does."""
    if pooling_of(source) is not mean_over_tokens:
        raise ValueError(f"{key}: {source} pools by the first token; leaner slim takes it, a run does not")


def parts(batch: Batch) -> tuple[Batch, Batch]:
    """What the student reads, and what the teacher reads: the same, if the batch has nothing for the teacher alone."""
    own = {name: tensor for name, tensor in batch.items() if not name.startswith(OF_TEACHER)}
    others = {name.removeprefix(OF_TEACHER): tensor for name, tensor in batch.items() if name not in own}
    return own, others or own


# How far a student is from it


def divergence(
    teacher: torch.Tensor, student: torch.Tensor, temperature: float, kept: int | None = None
) -> torch.Tensor:
    """Mean over all but the last dimension, from logits (..., C).

    With `kept`, from logits (N, V), all but the teacher's so many likeliest tokens count as one.
    """
    expected = F.log_softmax(teacher.float() / temperature, dim=-1).flatten(0, -2)
    predicted = F.log_softmax(student.float() / temperature, dim=-1).flatten(0, -2)
    if kept is not None:
        expected, tokens = expected.topk(min(kept, expected.shape[-1]))
        expected, predicted = (  # (N, K + 1)
            torch.cat([each, (1 - each.exp().sum(dim=1, keepdim=True)).clamp(min=LEAST).log()], dim=1)
            for each in (expected, predicted.gather(1, tokens))
        )
    return F.kl_div(predicted, expected, reduction="batchmean", log_target=True) * temperature**2


def states_distance(
    teacher: Sequence[torch.Tensor], student: Sequence[torch.Tensor], layers: Sequence[int], mask: torch.Tensor | None
) -> torch.Tensor:
    """Mean of 1 − cosine over tokens of hidden states (B, T, D), of the embeddings first, then after each layer.

    Args:
        layers: of the teacher, from 0, one for each of the student.
        mask: (B, T), not 0 for the tokens that count; None for all.
    """
    pairs = [(teacher[layer + 1].float(), own.float()) for layer, own in zip(layers, student[1:])]
    mean = torch.stack([1 - F.cosine_similarity(*pair, dim=-1) for pair in pairs]).mean(dim=0)  # (B, T)
    return (mean if mask is None else mean[mask.bool()]).mean()


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
    cuts = read_json(file).get("cuts", []) if file.is_file() else []
    cut = next((cut for cut in cuts if cut["part"] == "layers"), None)
    if cut is not None and (len(cut["before"]), len(cut["after"])) == (teacher_depth, depth):
        return cut["after"]
    return [max(0, (layer + 1) * teacher_depth // depth - 1) for layer in range(depth)]


# The task that learns from it


class Taught:
    """A task whose model learns from a teacher, too; what it does not define itself is the task's."""

    has_own_loss = True

    def __init__(self, task: Task):
        self.task = task
        self.teacher = task.teacher if isinstance(task, Embedding) else load_teacher(task)
        arguments = task.arguments
        self.learns_logits = bool(arguments.distill_logits) and bool(task.head)
        self.layers = []  # of the teacher, whose states are learned
        if arguments.distill_hidden:
            depths = (task.config.num_hidden_layers, self.teacher.config.num_hidden_layers)
            self.layers = mapped_layers(str(arguments.shape), arguments.distill_layers, *depths)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def loss(self, model: PreTrainedModel, inputs: Batch) -> tuple[torch.Tensor, object]:
        """Its own loss and the distances of logits and states, weighted; and the outputs.

        Of held-out rows the task's own loss, which compares with that of a run without a teacher.
        """
        if not model.training:
            return self.task.loss(model, inputs)
        arguments = self.task.arguments
        own, read = parts(inputs)
        states = {"output_hidden_states": True} if self.layers else {}
        bf16 = torch.autocast(arguments.device.type, torch.bfloat16, enabled=arguments.bf16)
        with torch.no_grad(), bf16, vocabulary_logits(self.teacher, self.learns_logits) as expected:
            theirs = self.teacher(**read, **states)
        if isinstance(self.task, Embedding):
            own["labels"] = mean_over_tokens(theirs.last_hidden_state.float(), read["attention_mask"])
        with vocabulary_logits(model, self.learns_logits) as predicted:
            own_loss, outputs = self.task.loss(model, {**own, **states})

        loss = arguments.distill_task * own_loss
        if self.learns_logits:
            pair = (expected or [theirs.logits])[-1], (predicted or [outputs.logits])[-1]
            loss = loss + arguments.distill_logits * self.logits_loss(*pair, own["labels"])
        if self.layers:
            of_labels = "attention_mask" not in own and own["labels"].dim() == 2  # padding has no label
            mask = own["labels"] != -100 if of_labels else own.get("attention_mask")
            pair = theirs["hidden_states"], outputs["hidden_states"]
            loss = loss + arguments.distill_hidden * states_distance(*pair, self.layers, mask)
        return loss, outputs

    def logits_loss(self, teacher: torch.Tensor, student: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Of logits (B, C), or those of a vocabulary: at every place, (B, T, V), or at the hidden ones, (N, V)."""
        arguments = self.task.arguments
        if self.task.regression:
            return F.mse_loss(student.float(), teacher.float())
        if labels.dim() == 1:
            return divergence(teacher, student, arguments.distill_temperature)
        pair = []
        for logits in (teacher, student):
            if logits.dim() == 3:
                logits, targets = self.task.aligned(logits, labels)
                logits = logits[targets != -100]
            pair.append(logits)
        return divergence(*pair, arguments.distill_temperature, arguments.distill_top_k)


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
    else:
        with head.register_forward_hook(lambda module, args, logits: computed.append(logits)):
            yield computed


# The task that learns nothing else


class Embedding(TextTask):
    """A vector per text, the mean over its tokens.

    They learn to point where the teacher's do (loss: 1 − cosine, or by `vector_loss` the squared error); the metric is
    their cosine. `leaner evaluate --task embedding` scores encoders on pairs of sentences.
    """

    name = "embedding"
    hub_name = "sentence-similarity"
    head = ""  # the bare model
    main_metrics = ("cosine",)
    does = "turns texts into vectors that are near where the texts are alike"
    has_own_loss = True

    @cached_property
    def teacher(self) -> PreTrainedModel:
        return load_teacher(self)

    def prepare(self, rows: Rows, source: str) -> Rows:
        """The token ids of each text and their number; the teacher's, too, if the student has another vocabulary."""
        tokenizers = {"": self.processing}
        theirs = AutoTokenizer.from_pretrained(self.arguments.teacher, trust_remote_code=False)
        if tokenizer_text(theirs) != tokenizer_text(self.processing):
            tokenizers[OF_TEACHER] = theirs
        # Not `self` within `read`: it would hand the teacher to every process.
        column, length, split = self.text_column, self.length, self.arguments.split_sentences

        def read(batch: dict[str, list], numbers: list[int]) -> dict:
            texts = list(checked_texts(batch[column], f"{source}: {column}", numbers))
            if split:
                texts = [sentence for text in texts for sentence in sentences_of(text)]
            columns = {}
            for start, tokenizer in tokenizers.items():
                options = {"truncation": True, "max_length": length, "return_attention_mask": False}
                columns[f"{start}input_ids"] = tokenizer(texts, **options)["input_ids"] if texts else []
            return {**columns, "length": list(map(len, columns["input_ids"]))}

        vocabularies = list(map(tokenizer_text, tokenizers.values()))
        key = (self.name, (column, length, split, self.reading_key, vocabularies))
        prepared = prepared_rows(rows, read, key, self.arguments.preprocessing_workers, f"tokens of {source}")
        if not isinstance(prepared, IterableDataset) and len(prepared) == 0:
            raise ValueError(f"{source}: {column} holds no sentence")
        return prepared

    def collate(self, rows: list[dict]) -> Batch:
        """Token ids and mask, (B, T) each, and if they differ those that the teacher reads."""
        batch = self.collate_text(rows)
        if f"{OF_TEACHER}input_ids" in rows[0]:
            theirs = self.collate_text([{"input_ids": row[f"{OF_TEACHER}input_ids"]} for row in rows])
            theirs["input_ids"] *= theirs["attention_mask"]  # the student's padding may be none of its tokens
            batch |= {f"{OF_TEACHER}{name}": tensor for name, tensor in theirs.items()}
        return batch

    @torch.no_grad()
    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """Of held-out rows `labels` are the teacher's vectors (B, D); of those to train on, `Taught` computes them."""
        if training:
            return batch
        own, read = parts(batch)
        read = {name: tensor.to(self.teacher.device) for name, tensor in read.items()}
        vectors = mean_over_tokens(self.teacher(**read).last_hidden_state.float(), read["attention_mask"])
        return {**own, "labels": vectors.to(own["input_ids"].device)}

    def loss(self, model: PreTrainedModel, inputs: Batch) -> tuple[torch.Tensor, Batch]:
        """Mean over rows of the distance to the teacher; and the vectors (B, D), and states if asked."""
        tokens = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**tokens)
        vectors = mean_over_tokens(outputs.last_hidden_state.float(), tokens["attention_mask"])
        if self.arguments.vector_loss == "squared_error":
            loss = F.mse_loss(vectors, inputs["labels"])
        else:
            loss = (1 - F.cosine_similarity(vectors, inputs["labels"], dim=-1)).mean()
        kept = {"loss": loss, "vectors": vectors}
        if outputs.hidden_states is not None:
            kept["hidden_states"] = outputs.hidden_states
        return loss, kept

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        vectors, teachers = unit_vectors(prediction.predictions), unit_vectors(prediction.label_ids)
        return {"cosine": float((vectors * teachers).sum(axis=1).mean())}


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """(N, D), each of length one, in float64."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
