"""Small language models of many depths and widths, trained on prose that every Python has."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig

from ..data.builtin import python_docs
from .byte_text import BYTES, bigram_nats
from .rates import FACTOR, beyond


HEAD_SIZE = 8
BETAS = (0.9, 0.95)
DECAY = 0.1
CLIP = 1.0
WARMUP = 10  # a part of the steps
MOST_RATES = 6
TUNING_ROWS = 8  # one of so many batches of training text is kept for the choice of rates


@dataclass(frozen=True)
class Training:
    """How every model is trained. Lengths in bytes; `holdout`: every how many-th module is tested on."""

    text_bytes: int
    holdout: int
    length: int
    batch: int
    steps: int
    tuning_steps: int
    rate: float  # the first that is tried


@dataclass(frozen=True)
class Cell:
    """A shape. `shared`: one layer stands in all places; `input_rank`: to what rank the token embedding is cut."""

    layers: int
    width: int
    mlp: int
    shared: bool = False
    input_rank: int | None = None

    @property
    def name(self) -> str:
        words = f"{self.layers}×{self.width}"
        if self.shared:
            words += ", one layer shared"
        if self.input_rank is not None:
            words += f", input of rank {self.input_rank}"
        return words

    @property
    def aspect(self) -> float:
        """Width over layers."""
        return self.width / self.layers

    @property
    def plain(self) -> "Cell":
        """The same shape without what is done to it."""
        return replace(self, shared=False, input_rank=None)


@dataclass(frozen=True)
class Text:
    """Rows (R, length + 1) of bytes: each but the first of a row is predicted from those before it in the row."""

    train: Tensor
    tuning: Tensor
    test: Tensor


def consecutive_rows(texts: list[str], length: int) -> Tensor:
    """Texts end to end, a zero byte after each, cut into rows that share a byte with the next."""
    data = ("\0".join(texts) + "\0").encode()
    ids = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))
    return ids.unfold(0, length + 1, length)


def read_text(training: Training) -> Text:
    """The text of the Python that runs. Raises ValueError where it is too little."""
    data = python_docs(training.text_bytes, training.holdout)
    too_little = ValueError(f"text_bytes: {training.text_bytes} of python-docs leave no row to test or to tune on")
    if not len(data["test"]):
        raise too_little
    rows = consecutive_rows(data["train"]["text"], training.length)
    is_tuning = torch.arange(len(rows)) // training.batch % TUNING_ROWS == TUNING_ROWS - 1
    if not is_tuning.any():
        raise too_little
    return Text(rows[~is_tuning], rows[is_tuning], consecutive_rows(data["test"]["text"], training.length))


def bigram_loss(text: Text, rows: int) -> float:
    """Nats per byte of a guess by the byte before, counted in so many rows of the training text."""
    left, right = text.train[:rows, :-1].flatten(), text.train[:rows, 1:].flatten()
    nats = bigram_nats(left, right)
    return nats[text.test[:, :-1], text.test[:, 1:]].mean().item()


def config_of(cell: Cell, length: int) -> LeanGPTConfig:
    """Weights start from N(0, 1/width), heads have 8 numbers, whatever the shape."""
    heads = cell.width // HEAD_SIZE
    return LeanGPTConfig(
        hidden_size=cell.width,
        num_hidden_layers=cell.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_SIZE,
        intermediate_size=cell.mlp,
        vocab_size=BYTES,
        max_position_embeddings=length,
        initializer_range=cell.width**-0.5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


def body_parameters(cell: Cell) -> int:
    """N, without embeddings, of layers that are not shared."""
    return config_of(cell, 1).count_parameters().without_embeddings


def cell_at(layers: int, width: int, parameters: int) -> Cell:
    """The shape whose MLP, about four widths, brings it nearest to so many parameters without embeddings."""
    usual = Cell(layers, width, 4 * width)
    per_unit = layers * (2 * width + 1)
    return replace(usual, mlp=usual.mlp + round((parameters - body_parameters(usual)) / per_unit))


def cut_input(model: PreTrainedModel, rank: int) -> None:
    """Lets only `rank` random directions of the token embedding into the model, as large as all of them were."""
    width = model.config.hidden_size
    source = torch.Generator().manual_seed(rank)
    directions, _ = torch.linalg.qr(torch.randn(width, rank, generator=source, dtype=torch.float32))
    kept = math.sqrt(width / rank) * directions @ directions.T
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output @ kept)


def model_of(cell: Cell, length: int, seed: int) -> PreTrainedModel:
    """A new model in float32; a seed gives the same one whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config_of(cell, length), dtype=torch.float32, attn_implementation="sdpa"
        )
    if cell.shared:
        model.model.layers = nn.ModuleList([model.model.layers[0]] * cell.layers)
    if cell.input_rank is not None:
        cut_input(model, cell.input_rank)
    return model


def loss_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Nats per byte of rows (B, length + 1), a mean."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def rate_at(step: int, steps: int) -> float:
    """Share of the learning rate: a warm-up over a tenth of the steps, then half a cosine to zero."""
    warmup = max(steps // WARMUP, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(
    cell: Cell, rate: float, seed: int, steps: int, batch: int, rows: Tensor
) -> tuple[PreTrainedModel, list[float]]:
    """A model trained by AdamW on rows in an order of the seed, the same for every cell; anew when all were read.

    With it the loss of each step, in nats per byte.
    """
    model = model_of(cell, rows.shape[1] - 1, seed)
    model.train()
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    source = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    losses = []
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(len(rows), generator=source)])
        loss = loss_of(model, rows[order[:batch]])
        loss.backward()
        losses.append(loss.item())
        order = order[batch:]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model, losses


def held_out_loss(model: PreTrainedModel, rows: Tensor) -> float:
    """Nats per byte over all rows."""
    model.eval()
    with torch.inference_mode():
        return sum(loss_of(model, part).item() * len(part) for part in rows.split(256)) / len(rows)


def tune(loss_at: Callable[[float], float], first: float) -> dict[float, float]:
    """Losses by rate: the first, its half and its double, and on while the best lies at an edge, six at most.

    A loss that is not finite counts as the worst.
    """
    losses = {}

    def attempt(rate: float) -> None:
        loss = loss_at(rate)
        if not math.isfinite(loss):
            loss = math.inf
        losses[rate] = loss

    for rate in (first / FACTOR, first, first * FACTOR):
        attempt(rate)
    following = beyond(best_rate(losses), losses)
    while following is not None and len(losses) < MOST_RATES:
        attempt(following)
        following = beyond(best_rate(losses), losses)
    return losses


def best_rate(losses: dict[float, float]) -> float:
    """The rate of the least loss."""
    return min(losses, key=losses.__getitem__)
