"""`leaner bench`: a step of this family against the same shape in transformers, or models against each other.

What is compared runs in one process and takes turns, so that a slow minute of the machine is shared by all. Weights
are random and data made up: neither changes the time.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from modeling_leaner.conversion import RELATIVES, from_lean_config, to_lean_config
from modeling_leaner.files import write_bytes
from modeling_leaner.models import seconds_of, take_turns
from modeling_leaner.names import MODEL_TYPES
from modeling_leaner.planning.costs import MASKED_SHARE
from modeling_leaner.shapes import load_config

from .running.results import environment, processor_flags


@dataclass(eq=False)
class Step:
    """A step of a model on made-up inputs: inference, or, with an optimizer, training."""

    model: PreTrainedModel
    inputs: dict[str, Any]
    optimizer: torch.optim.Optimizer | None = None
    autocast: torch.dtype = torch.float32  # for none
    accumulate: int = 1  # batches of an update
    max_norm: float = 0.0  # of gradients; 0 for no clipping

    def __call__(self) -> None:
        """Forward, backward and update; gradients are dropped."""
        is_training = self.optimizer is not None
        if self.model.training != is_training:
            self.model.train(is_training)
        if not is_training:
            with torch.inference_mode():
                self.model(**self.inputs)
            return
        for _ in range(self.accumulate):
            with torch.autocast(self.model.device.type, self.autocast, enabled=self.autocast != torch.float32):
                loss = self.model(**self.inputs).loss
            loss.backward()
        if self.max_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()


def made_up(
    config: PreTrainedConfig, items: int, length: int | None, masked_share: float = MASKED_SHARE
) -> dict[str, Tensor]:
    """Random pixels or full rows of tokens, with the labels of the family's pretraining head."""
    if hasattr(config, "num_channels"):
        pixels = torch.randn(items, config.num_channels, *config.image_shape)
        return {"pixel_values": pixels, "labels": torch.zeros(items, dtype=torch.long)}
    ids = torch.randint(config.vocab_size, (items, length))
    labels = ids.clone()
    if "ForMaskedLM" in getattr(config, "task_heads", ())[:1]:
        labels.view(-1)[torch.randperm(labels.numel())[round(masked_share * labels.numel()) :]] = -100
    return {"input_ids": ids, "labels": labels}


# leaner bench

COLUMNS = (
    "phase shape library attention dtype batch length rounds milliseconds milliseconds_low "
    "milliseconds_high relative_time items_per_second parameters note"
).split()


class Case(NamedTuple):
    """A step to be timed: `batch` items of `length` tokens. In bfloat16, training is by autocast."""

    phase: str
    shape: str
    library: str
    attention: str
    dtype: str
    batch: int
    length: int
    config: PreTrainedConfig


def build(case: Case, device: torch.device) -> Step:
    """The step, which has run once, of a base model; or of the family's with its pretraining head, or its peer."""
    torch.manual_seed(0)
    config = case.config
    if case.library == "transformers":
        names = {ours: name for relative in RELATIVES for name, ours in relative.classes.items()}
        theirs = getattr(transformers, names[type(config).__name__.removesuffix("Config") + config.task_heads[0]])
        model = theirs._from_config(from_lean_config(config), attn_implementation=case.attention)
    else:
        head = "" if case.library == "base model" else config.task_heads[0]
        auto_class = getattr(transformers, f"AutoModel{head}")
        model = auto_class.from_config(copy.deepcopy(config), attn_implementation=case.attention)
    dtype = getattr(torch, case.dtype)
    is_training = case.phase == "training"
    model = model.to(device, torch.float32 if is_training else dtype)
    inputs: dict[str, Any] = {
        name: each.to(device, model.dtype if each.is_floating_point() else None)
        for name, each in made_up(config, case.batch, case.length).items()
        if is_training or name != "labels"
    }
    if hasattr(config, "use_cache"):
        inputs["use_cache"] = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) if is_training else None  # as the Trainer's
    step = Step(model, inputs, optimizer, dtype)
    step()
    return step


def groups(options: SimpleNamespace) -> Iterator[list[Case]]:
    """What takes turns: models without heads in inference, or a shape and the same in transformers, by attention."""
    if options.models:
        phases, compared = ["inference"], [[]]
        for model in options.models:
            try:
                config = load_config(model)
            except ValueError:  # no Lean model: a BERT, ViT or GPT-2 is timed as its Lean relative, another as it is
                config = AutoConfig.from_pretrained(model, trust_remote_code=False)
                config = to_lean_config(config) if config.model_type in MODEL_TYPES else config
            compared[0].append((model, "base model", config))
    else:
        phases = options.phases
        libraries = ("modeling_leaner", "transformers")
        compared = [[(shape, each, load_config(shape)) for each in libraries] for shape in options.shapes]
    for models, dtype, phase, batch in product(compared, options.dtypes, phases, options.batch):
        texts = [config for _, _, config in models if hasattr(config, "vocab_size")]
        longest = min([512, *(getattr(config, "max_position_embeddings", 512) for config in texts)])
        for length in (options.length or [longest]) if texts else [0]:
            yield [
                Case(phase, shape, library, attention, dtype, batch, length or config.default_length, config)
                for (shape, library, config), attention in product(models, options.attentions)
                if attention != "lean" or library != "transformers"
            ]


def time_in_turns(cases: Sequence[Case], device: torch.device, rounds: int, limit: float) -> list[dict[str, Any]]:
    """A row for each case. `relative_time`: over the first that runs, round by round, the median.

    One that cannot run, in any library, leaves a note; the others go on.
    """
    rows = [{**dict.fromkeys(COLUMNS), **case._asdict()} for case in cases]
    steps: dict[int, Step] = {}
    for place, case in enumerate(cases):
        try:
            steps[place] = build(case, device)
        except Exception as error:
            rows[place]["note"] = " ".join(str(error).split())[:200] or type(error).__name__
    if steps:
        times = take_turns([partial(seconds_of, step) for step in steps.values()], rounds, limit=limit)
        quartiles = np.percentile(times, (25, 50, 75), axis=1).T.tolist()
        for (place, step), own, (low, median, high) in zip(steps.items(), times, quartiles):
            rows[place] |= {
                "rounds": len(own),
                "milliseconds": 1e3 * median,
                "milliseconds_low": 1e3 * low,
                "milliseconds_high": 1e3 * high,
                "relative_time": float(np.median(own / times[0])),
                "items_per_second": cases[place].batch / median,
                "parameters": step.model.num_parameters(),
            }
    return rows


def bench(options: SimpleNamespace) -> pd.DataFrame:
    """Measures every combination of the options of `leaner bench`, prints a line for each and writes the CSV file."""
    device = torch.device("cuda" if options.device == "gpu" else "cpu")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for cases in groups(options):
        measured = time_in_turns(cases, device, options.rounds, options.seconds)
        for case, row in zip(cases, measured):
            if row["rounds"]:
                times = "{milliseconds:.1f} ms ({milliseconds_low:.1f}–{milliseconds_high:.1f})"
                text = (times + ", ratio {relative_time:.2f}").format(**row)
            else:
                text = f"cannot run: {row['note']}"
            what = f"{case.phase} {case.shape} in {case.dtype}, batch {case.batch} × {case.length} tokens"
            print(f"{what}: {case.library}, {case.attention}: {text}", flush=True)
        rows += measured
    table = pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(["rounds", "parameters"], "Int64"))
    if options.csv is not None:
        measured_on = {**environment(), "processor_flags": " ".join(processor_flags())}
        provenance = "".join(f"# {name}: {value}\n" for name, value in measured_on.items())
        write_bytes(options.csv, (provenance + table.to_csv(index=False)).encode())
    if table["milliseconds"].isna().all():
        raise ValueError(f"none of the {len(table)} cells can run: {rows[0]['note']}")
    return table
