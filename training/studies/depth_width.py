"""When more layers pay: Depth-Width.

Levine et al. ([arXiv 2006.12467](https://arxiv.org/abs/2006.12467)): below log3(d) layers depth is
doubly-exponentially efficient, above it depth and width contribute alike. This study trains small models of equal
parameters on bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from modeling_leaner.configuration_lean_gpt import LeanGPTConfig

from ..data.builtin import python_docs
from .study import Outcome, Study, best_rate, bigram_nats, byte_config, line, paired, tune


@dataclass(frozen=True)
class Settings:
    """`shapes` are (layers, width), of which the first sets the size of all. Lengths in bytes.

    `holdout`: every how many-th module is tested on. Half of `rate` and its double are tried, too.
    """

    seeds: tuple[int, ...] = (11, 12, 13)
    shapes: tuple[tuple[int, int], ...] = ((1, 96), (2, 64), (4, 48), (16, 24))
    text_bytes: int = 800_000
    holdout: int = 10
    length: int = 64
    batch: int = 16
    steps: int = 400
    tuning_steps: int = 100
    rate: float = 1.6e-2


QUICK = Settings(seeds=(11, 12), shapes=((1, 96), (4, 48), (16, 24)), text_bytes=300_000, steps=40, tuning_steps=15)
HEAD_SIZE = 8
TUNING_ROWS = 8  # one of so many batches of training text is kept for the choice of rates


def run(study: Study, settings: Settings) -> None:
    data = python_docs(settings.text_bytes, settings.holdout)
    rows, test = (consecutive_rows(data[split]["text"], settings.length) for split in ("train", "test"))
    is_tuning = torch.arange(len(rows)) // settings.batch % TUNING_ROWS == TUNING_ROWS - 1
    rows, tuning = rows[~is_tuning], rows[is_tuning]
    counted = rows[: settings.steps * settings.batch]
    nats = bigram_nats(counted[:, :-1].flatten(), counted[:, 1:].flatten())
    configs = shapes_of_equal_size(settings)
    losses, rates = {}, []
    for name, config in configs.items():

        def tuning_loss(rate: float, config: LeanGPTConfig = config) -> float:
            return held_out_loss(train(config, rate, 0, settings.tuning_steps, settings.batch, rows), tuning)

        tried = tune(tuning_loss, (settings.rate / 2, settings.rate, settings.rate * 2), more=3)
        rates.append(line(name, sorted(tried), [[tried[rate]] for rate in sorted(tried)]))
        losses[name] = [
            held_out_loss(train(config, best_rate(tried), seed, settings.steps, settings.batch, rows), test)
            for seed in settings.seeds
        ]
        print(f"{name} at rate {best_rate(tried):g}: {fmean(losses[name]):.4f} nats per byte", flush=True)
    conclude(study, configs, losses, settings.seeds, nats[test[:, :-1], test[:, 1:]].mean().item())
    depths = [config.num_hidden_layers for config in configs.values()]
    losses_by_depth = [line("each at its best rate", depths, [*losses.values()])]
    study.plot("equal parameters", "layers", "nats per byte", losses_by_depth, log="x")
    study.plot("the choice of rates", "learning rate", "nats per byte", rates, log="x")


# Small language models of many depths and widths, trained on prose that every Python has.


def shapes_of_equal_size(settings: Settings) -> dict[str, LeanGPTConfig]:
    """By name, from the shallowest. The MLP, about four widths, brings each nearest to the first's parameters.

    Parameters are those without embeddings; weights start from N(0, 1/width).
    """
    configs: dict[str, LeanGPTConfig] = {}
    size = 0
    for layers, width in settings.shapes:
        shape = partial(
            byte_config, layers, width, width // HEAD_SIZE, HEAD_SIZE, settings.length, initializer_range=width**-0.5
        )
        usual = size_of(shape(4 * width))
        size = size or usual
        configs[f"{layers}×{width}"] = shape(4 * width + round((size - usual) / (layers * (2 * width + 1))))
    return configs


def size_of(config: LeanGPTConfig) -> int:
    return config.count_parameters().without_embeddings


def consecutive_rows(texts: list[str], length: int) -> Tensor:
    """Texts end to end, a zero byte after each, cut into rows (R, length + 1) that share a byte with the next.

    Each byte but the first of a row is predicted from those before it in the row.
    """
    data = ("\0".join(texts) + "\0").encode()
    ids = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))
    return ids.unfold(0, length + 1, length)


def loss_of(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """Nats per byte of rows (B, length + 1), a mean."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def rate_at(step: int, steps: int) -> float:
    """Share of the learning rate: a warm-up over a tenth of the steps, then half a cosine to zero."""
    warmup = max(steps // 10, 1)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(config: LeanGPTConfig, rate: float, seed: int, steps: int, batch: int, rows: Tensor) -> PreTrainedModel:
    """A model trained by AdamW on rows in an order of the seed, the same for every shape; anew when all were read."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").train()
    groups = [
        {"params": [weight for weight in model.parameters() if weight.ndim > 1], "weight_decay": 0.1},
        {"params": [weight for weight in model.parameters() if weight.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    source = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(len(rows), generator=source)])
        loss_of(model, rows[order[:batch]]).backward()
        order = order[batch:]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def held_out_loss(model: PreTrainedModel, rows: Tensor) -> float:
    """Nats per byte over all rows."""
    model.eval()
    with torch.inference_mode():
        return sum(loss_of(model, part).item() * len(part) for part in rows.split(256)) / len(rows)


# What they say.


def is_worse(losses: Sequence[float], others: Sequence[float]) -> Outcome:
    """The verdict on the statement that losses are greater, seed by seed."""
    low, high = paired(losses, others)[1]
    if low <= 0 <= high:
        return "undecided"
    return "agrees" if low > 0 else "disagrees"


def conclude(
    study: Study,
    configs: dict[str, LeanGPTConfig],
    losses: dict[str, list[float]],
    seeds: Sequence[int],
    bigram: float,
) -> None:
    """Below the floor and from it on. `losses` are by name, one of each seed."""
    means = {name: fmean(each) for name, each in losses.items()}
    above = [name for name, each in configs.items() if each.num_hidden_layers >= math.log(each.hidden_size, 3)]
    best = min(above, key=means.__getitem__)
    worse = [is_worse(losses[name], losses[best]) for name in losses if name not in above]

    def numbers(names: Sequence[str]) -> dict[str, float]:
        return {f"{name}: loss, seed {seed}": loss for name in names for seed, loss in zip(seeds, losses[name])}

    study.add(
        "asked here, floor in training",
        f"At N = {size_of(next(iter(configs.values()))):,} shapes below their floor are worse than the best from the "
        "floor on.",
        "the loss of each is greater by a 95 % interval over the seeds that excludes 0; disagrees if that of one is "
        "less by such an interval",
        next(outcome for outcome in ("disagrees", "undecided", "agrees") if outcome in worse),
        {"bigram": bigram, **numbers([*losses])},
    )
    study.add(
        "asked here, floor in training",
        "From the floor on depth and width can be traded at equal parameters without loss.",
        "the mean losses of these shapes lie within 1% of the best of them",
        max(means[name] for name in above) / means[best] - 1 <= 0.01,
        numbers(above),
    )
