"""What is kept of a teacher's logits for each row, and how far a student's are from them: `TeacherTargets` each.

The loss is Kullback and Leibler's divergence of the teacher's distribution to the student's, both at a temperature,
times the square of that (Hinton et al. 2015, arXiv 1503.02531). Shapes: B rows, T tokens, C classes, N predicted
tokens, V vocabulary, K kept tokens.
"""

from collections.abc import Callable

import numpy as np
import torch
from datasets import List, Value
from torch.nn import functional as F
from transformers.utils import ModelOutput

from .base import Batch, Task
from .teacher_targets import TeacherTargets


NOWHERE = -1e4  # logit of a token that is padding
LEAST = 1e-9  # probability of what is not among the kept tokens


def divergence(teacher: torch.Tensor, student: torch.Tensor, temperature: float) -> torch.Tensor:
    """Mean over all but the last dimension, from logits (..., C)."""
    expected = F.log_softmax(teacher.float() / temperature, dim=-1).flatten(0, -2)
    predicted = F.log_softmax(student.float() / temperature, dim=-1).flatten(0, -2)
    return F.kl_div(predicted, expected, reduction="batchmean", log_target=True) * temperature**2


class ClassLogits:
    """The logits (C) of a row; of a regression its number, whose squared error is the loss."""

    features = {"teacher_logits": List(Value("float32"))}
    bytes_per_token = 0
    cache_key = ("ClassLogits",)

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


class SpanLogits:
    """The logits of an answer's first and last token: (2, T) for a row."""

    features = {"teacher_logits": List(Value("float32"))}
    bytes_per_token = 8
    cache_key = ("SpanLogits",)

    def __init__(self, task: Task):
        self.temperature = task.arguments.distill_temperature

    @staticmethod
    def both(outputs: ModelOutput, mask: torch.Tensor) -> torch.Tensor:
        """(B, 2, T), without padding."""
        logits = torch.stack([outputs.start_logits, outputs.end_logits], dim=1).float()
        return logits.masked_fill(mask[:, None] == 0, NOWHERE)

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        logits = self.both(outputs, inputs["attention_mask"])
        return [{"teacher_logits": row[:, :length].flatten().numpy()} for row, length in zip(logits, lengths)]

    def collate(self, rows: list[dict]) -> Batch:
        kept = [torch.from_numpy(np.array(row["teacher_logits"])).view(2, -1) for row in rows]
        longest = max(row.shape[1] for row in kept)
        padded = [F.pad(row, (0, longest - row.shape[1]), value=NOWHERE) for row in kept]
        return {"teacher_logits": torch.stack(padded)}

    def loss(self, outputs: ModelOutput, batch: Batch) -> torch.Tensor:
        return divergence(batch["teacher_logits"], self.both(outputs, batch["attention_mask"]), self.temperature)


class TopTokens:
    """For each predicted token the K likeliest and their log-probabilities at the temperature; the rest is one more.

    All V logits of all positions would not fit on a disk.
    """

    features = {"teacher_tokens": List(Value("int32")), "teacher_log_probabilities": List(Value("float32"))}

    def __init__(self, task: Task):
        self.task = task
        self.temperature = task.arguments.distill_temperature
        self.kept = min(task.arguments.distill_top_k, task.config.vocab_size)
        self.bytes_per_token = 8 * self.kept

    @property
    def cache_key(self) -> tuple[str, int, float]:
        return ("TopTokens", self.kept, self.temperature)

    def predicted(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of the predicted tokens (N, V), and which those are: (B, T), or (B, T − 1)."""
        logits, labels = self.task.aligned(logits, labels)
        counted = labels != -100
        return logits[counted], counted

    def of_rows(self, outputs: ModelOutput, inputs: Batch, lengths: list[int]) -> list[dict[str, np.ndarray]]:
        logits, counted = self.predicted(outputs.logits, inputs["labels"])
        top = F.log_softmax(logits.float() / self.temperature, dim=-1).topk(self.kept)
        sizes = counted.sum(dim=1).tolist()
        rows = []
        for tokens, values in zip(top.indices.split(sizes), top.values.split(sizes)):
            columns = {"teacher_tokens": tokens.flatten().int(), "teacher_log_probabilities": values.flatten()}
            rows.append({name: column.numpy() for name, column in columns.items()})
        return rows

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


LOGITS: dict[str, Callable[[Task], TeacherTargets]] = {  # what is kept, by the name of the task
    "image-classification": ClassLogits,
    "sequence-classification": ClassLogits,
    "question-answering": SpanLogits,
    "causal-lm": TopTokens,
    "masked-lm": TopTokens,
}
