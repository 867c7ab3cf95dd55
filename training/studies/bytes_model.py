"""A small LeanGPT on the bytes of the standard library's prose, which every installation has.

Runs differ in their start. Each is decided by its settings and its seed, on one thread, and measured as it goes: loss
on held-out text, κ of the head outputs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import geometric_mean

import torch
from torch import Generator, Tensor
from torch.optim import AdamW
from transformers import get_cosine_schedule_with_warmup

from modeling_leaner.conditioning import head_condition_numbers
from modeling_leaner.configuration_lean_gpt import LeanGPTConfig
from modeling_leaner.modeling_lean_gpt import LeanGPTForCausalLM

from ..data.builtin import python_docs
from .byte_text import BYTES, bigram_nats


ROWS_OF_KAPPA = 8  # held-out rows over which κ is a median
WARMUP = 0.1  # of the steps
DECAY = 0.1  # weight decay


@dataclass(frozen=True)
class Shape:
    """Of the model, and how long its rows are."""

    layers: int
    width: int
    heads: int
    head_size: int
    length: int

    def config(self) -> LeanGPTConfig:
        """Without dropout, as a comparison of one pass over the text wants it."""
        return LeanGPTConfig(
            vocab_size=BYTES,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            head_dim=self.head_size,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )


@dataclass(frozen=True)
class TrainingPlan:
    """How a run is trained and how often it is looked at."""

    rate: float
    steps: int
    batch: int
    looks: int
    held_out: int
    """Rows of held-out text that a loss is the mean over."""


@dataclass(frozen=True)
class Look:
    """A run at one step: held-out loss in nats a byte, and κ of each layer from the first, a median over rows."""

    step: int
    loss: float
    kappas: list[float]

    @property
    def kappa(self) -> float:
        """The geometric mean over the layers."""
        return geometric_mean(self.kappas)


@lru_cache
def text_of(split: str) -> Tensor:
    """All bytes of a split, (N), int64."""
    joined = "\n\n".join(python_docs()[split]["text"]).encode()
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()


def rows_at(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """The rows (B, length) of the text that begin at `starts` (B)."""
    return text[starts[:, None] + torch.arange(length)]


def held_out_rows(count: int, length: int) -> Tensor:
    """Rows (count, length) spread evenly over the test split, the same for every run."""
    text = text_of("test")
    return rows_at(text, torch.linspace(0, len(text) - length, count).long(), length)


@torch.no_grad()
def look_at(model: LeanGPTForCausalLM, rows: Tensor, step: int) -> Look:
    """What a run is at one step."""
    model.eval()
    loss = sum(model(input_ids=some, labels=some).loss.item() * len(some) for some in rows.split(32)) / len(rows)
    kappas = head_condition_numbers(model, input_ids=rows[:ROWS_OF_KAPPA])
    model.train()
    return Look(step, loss, kappas)


def look_steps(steps: int, looks: int) -> set[int]:
    """When a run is looked at: before the first step, and evenly up to the last."""
    return {round(steps * place / looks) for place in range(looks + 1)}


def train_bytes(
    shape: Shape, plan: TrainingPlan, seed: int, change: Callable[[LeanGPTForCausalLM, Generator], None]
) -> list[Look]:
    """One run; `change` is done to the weights before the first step, with a source of random numbers of its own.

    Runs of one seed have the same weights before the change, and the same rows at every step.
    """
    torch.manual_seed(seed)
    model = LeanGPTForCausalLM(shape.config())
    change(model, Generator().manual_seed(1_000_000 + seed))
    model.train()
    optimizer = AdamW(model.parameters(), lr=plan.rate, weight_decay=DECAY)
    schedule = get_cosine_schedule_with_warmup(optimizer, math.ceil(WARMUP * plan.steps), plan.steps)
    text = text_of("train")
    source = Generator().manual_seed(seed)
    held_out = held_out_rows(plan.held_out, shape.length)
    when = look_steps(plan.steps, plan.looks)
    looks = [look_at(model, held_out, 0)]
    for step in range(1, plan.steps + 1):
        starts = torch.randint(len(text) - shape.length, (plan.batch,), generator=source)
        rows = rows_at(text, starts, shape.length)
        model(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step in when:
            looks.append(look_at(model, held_out, step))
    return looks


def steps_to(looks: Sequence[Look], loss: float) -> float | None:
    """The step at which a run first has a loss, by linear interpolation between looks; None where it never has."""
    for before, after in zip(looks, looks[1:]):
        if before.loss <= loss:
            return before.step
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return before.step + share * (after.step - before.step)
    return None


def bigram_loss(length: int, held_out: int) -> float:
    """Held-out loss in nats of a guess that reads one byte: how often the training text has each byte after it."""
    text = text_of("train")
    nats = bigram_nats(text[:-1], text[1:])
    rows = held_out_rows(held_out, length)
    return nats[rows[:, :-1], rows[:, 1:]].mean().item()
