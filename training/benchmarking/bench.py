"""`leaner bench`: a step of this family beside the same shape in transformers and timm, or models beside each other.

What is compared runs in one process and takes turns, so that a slow minute of the machine is shared by all.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, CompileConfig, GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import RELATIVES, from_lean_config
from modeling_leaner.family import IMAGES
from modeling_leaner.files import free_path, write_new
from modeling_leaner.models import seconds_of, take_turns
from modeling_leaner.planning.flops import training_flops
from modeling_leaner.planning.memory import StepSetting
from modeling_leaner.shapes import load_config, modality_of
from modeling_leaner.terminal import quiet_libraries

from ..running.environment import environment, processor_flags
from . import machine
from .measured_shapes import made_up_batch, peak_memory, without_labels


OURS = "modeling_leaner"
DECODING = "decoding"
WARM_UP = 3
COLUMNS = (
    "phase shape layers heads head_dim dtype batch length new_tokens library attention mode precision device torch "
    "transformers rounds milliseconds milliseconds_low milliseconds_high relative_time relative_time_low "
    "relative_time_high items_per_second peak_memory_bytes parameters flops matrix_product_share note"
).split()


@dataclass
class Options:
    """What `leaner bench` measures: every combination of the lists.

    Attributes:
        sizes: fields of a configuration (`num_hidden_layers`, `num_attention_heads`, `head_dim`) and the values that
            are measured instead of a shape's own.
        lengths: tokens of a text; None for the longest. An image has the length of its patches.
        seconds: a comparison ends once one of its models was timed for so long.
    """

    shapes: list[str]
    phases: list[str]
    modes: list[str]
    attentions: list[str]
    dtypes: list[str] | None = None
    sizes: dict[str, list[int]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=lambda: [8])
    lengths: list[int] | None = None
    new_tokens: int = 32
    device: str = "cpu"
    threads: int | None = None
    rounds: int = 20
    seconds: float = 30.0


@dataclass
class Work:
    """One model and its step: `batch` items of `length` tokens, to which decoding adds `new_tokens`."""

    phase: str
    shape: str
    config: PreTrainedConfig
    dtype: str
    batch: int
    length: int
    new_tokens: int
    device: torch.device
    library: str = OURS
    attention: str = "sdpa"
    mode: str = "eager"

    @property
    def precision(self) -> str:
        """How a step computes in the dtype: float32, cast (weights, too), or autocast (weights stay float32)."""
        if self.dtype == "float32":
            return "float32"
        return "autocast" if self.phase == "training" else "cast"

    @property
    def weights(self) -> torch.dtype:
        return getattr(torch, self.dtype) if self.precision == "cast" else torch.float32

    def make_up_batch(self) -> dict[str, Any]:
        """The same numbers in every call; labels for training alone, keys and values for decoding alone."""
        torch.manual_seed(0)
        if not isinstance(self.config, LeanConfig):
            ids = torch.randint(self.config.vocab_size, (self.batch, self.length), device=self.device)
            return {"input_ids": ids}
        kind = "gpu" if self.device.type == "cuda" else "cpu"
        dtype = str(self.weights).removeprefix("torch.")
        setting = StepSetting(self.batch, self.length, dtype, device=kind)
        batch: dict[str, Any] = made_up_batch(self.config, setting, self.batch, self.device)
        if self.phase != "training":
            batch = without_labels(batch)
        if hasattr(self.config, "use_cache") and self.phase != DECODING:
            batch["use_cache"] = False
        return batch

    def flops(self) -> int | None:
        """FLOPs of a step's matrix products by arithmetic; None for decoding and models of other families.

        This family's masked language model scores masked tokens alone in uncompiled training.
        """
        if self.phase == DECODING or not isinstance(self.config, LeanConfig) or self.library == "base model":
            return None
        if self.phase == "training" and self.library == OURS and self.mode == "eager":
            return self.batch * training_flops(self.config, self.length)
        counted = self.config.count_flops(self.length, class_name(self.config))
        return self.batch * (counted.training_step if self.phase == "training" else counted.forward)

    def __str__(self) -> str:
        size = f"batch {self.batch} × {self.length} tokens"
        if self.phase == DECODING:
            size += f" + {self.new_tokens} new"
        mode = "compiled" if self.mode == "compile" else "uncompiled"
        return f"{self.phase} {self.shape} in {self.dtype}, {size}: {self.library}, {self.attention}, {mode}"


def class_name(config: LeanConfig) -> str:
    """The family's class with its pretraining head, as LeanBERTForMaskedLM."""
    return type(config).__name__.removesuffix("Config") + config.task_heads[0]


class TimmClassifier(nn.Module):
    """timm's vision transformer behind the interface of transformers' models."""

    def __init__(self, config: LeanConfig, attention: str):
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        from_lean_config(config)  # refuses what timm, too, cannot have: a free head size, heads per layer
        self.model = VisionTransformer(
            img_size=config.image_shape,
            patch_size=config.patch_shape,
            in_chans=config.num_channels,
            num_classes=config.num_labels,
            embed_dim=config.hidden_size,
            depth=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            mlp_ratio=config.intermediate_size / config.hidden_size,
            qkv_bias=config.qkv_bias,
            pos_drop_rate=config.hidden_dropout_prob,
            proj_drop_rate=config.hidden_dropout_prob,
            attn_drop_rate=config.attention_probs_dropout_prob,
            act_layer=config.hidden_act,
        )
        for block in self.model.blocks:
            block.attn.fused_attn = attention == "sdpa"

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> ImageClassifierOutput:
        logits = self.model(pixel_values)
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


def build_ours(config: LeanConfig, attention: str) -> nn.Module:
    """The family's model with its pretraining head."""
    auto_class = getattr(transformers, f"AutoModel{config.task_heads[0]}")
    return auto_class.from_config(copy.deepcopy(config), attn_implementation=attention)


def build_relative(config: LeanConfig, attention: str) -> nn.Module:
    """The model of transformers that has the same shape; raises ConversionError if it cannot have it."""
    names = {ours: name for relative in RELATIVES for name, ours in relative.classes.items()}
    theirs = getattr(transformers, names[class_name(config)])
    return theirs._from_config(from_lean_config(config), attn_implementation=attention)


def build_base(config: PreTrainedConfig, attention: str) -> nn.Module:
    """Any model without a head."""
    return AutoModel.from_config(copy.deepcopy(config), attn_implementation=attention)


BUILDERS: dict[str, Callable[[PreTrainedConfig, str], nn.Module]] = {
    OURS: build_ours,
    "transformers": build_relative,
    "timm": TimmClassifier,
    "base model": build_base,
}


class Step:
    """A model that is built and warmed up. A later step that fails leaves `note` and lets go of the model."""

    def __init__(self, work: Work):
        self.work = work
        self.note: str | None = None
        torch.manual_seed(0)
        model = BUILDERS[work.library](work.config, work.attention)
        model = model.to(work.device, work.weights).train(work.phase == "training")
        self.weights = list(model.parameters())
        self.parameters = sum(weight.numel() for weight in self.weights)
        self.batch = work.make_up_batch()
        self.optimizer = None
        if work.phase == "training":
            self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, fused=True)  # Trainer's default
        self.call = model
        if work.phase == DECODING:
            model.generation_config = generation(work.new_tokens, work.mode == "compile")
            self.call = model.generate
        elif work.mode == "compile":
            self.call = torch.compile(model)
        for _ in range(WARM_UP):
            self.run()

    def run(self) -> None:
        """One step."""
        if self.optimizer is None:
            with torch.inference_mode():
                self.call(**self.batch)
            return
        enabled = self.work.precision == "autocast"
        with torch.autocast(self.work.device.type, getattr(torch, self.work.dtype), enabled=enabled):
            loss = self.call(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def guarded(self, measure: Callable[[], float]) -> float:
        """What `measure` gives; 0 once a step has failed, in any library or compiler: the others go on."""
        if self.note is not None:
            return 0
        try:
            return measure()
        except Exception as error:
            self.note = one_line(error)
            self.call, self.weights, self.optimizer = None, [], None
            return 0

    def seconds(self) -> float:
        return self.guarded(lambda: seconds_of(self.run))

    def peak_memory(self) -> int:
        held = [*self.weights, *(each for each in self.batch.values() if isinstance(each, torch.Tensor))]
        return int(self.guarded(lambda: peak_memory(self.run, held, self.optimizer, self.work.device)))


def generation(new_tokens: int, compiled: bool) -> GenerationConfig:
    """Greedy, exactly `new_tokens`. Compiled, each token's forward pass is, with keys and values of a fixed size."""
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False)
    if compiled:
        settings.cache_implementation = "static"
        settings.compile_config = CompileConfig()
        settings.compile_config._compile_all_devices = True  # by itself transformers compiles on a GPU only
    return settings


def one_line(error: Exception) -> str:
    """An error's message as a cell holds it."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def begin(work: Work) -> Step | str:
    """A model that is warmed up, or why it cannot run."""
    try:
        return Step(work)
    except Exception as error:  # of any library and its compiler
        return one_line(error)


def measure(works: Sequence[Work], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """A cell for each, which took turns; `seconds` of each round under "times". One that cannot run has a note."""
    torch.compiler.reset()
    # Contestants share functions of transformers, each of which is compiled for every one of them; beyond the limit
    # torch would go on uncompiled without a word.
    with torch._dynamo.config.patch(recompile_limit=1000, fail_on_recompile_limit_hit=True):
        begun = [begin(work) for work in works]
        steps = [step for step in begun if isinstance(step, Step)]
        taken = take_turns([step.seconds for step in steps], rounds, warm_up=0, limit=seconds)
        times = dict(zip(map(id, steps), taken))
        return [cell(work, step, times.get(id(step))) for work, step in zip(works, begun)]


def cell(work: Work, step: Step | str, times: np.ndarray | None) -> dict[str, Any]:
    """What is known of one model at one step."""
    heads = getattr(work.config, "heads_per_layer", [work.config.num_attention_heads])
    known: dict[str, Any] = dict.fromkeys(COLUMNS) | {
        **{name: getattr(work, name) for name in COLUMNS if hasattr(work, name)},
        "flops": None,
        "layers": work.config.num_hidden_layers,
        "heads": max(heads),
        "head_dim": getattr(work.config, "head_dim", None) or work.config.hidden_size // max(heads),
        "device": machine.device_title(work.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rounds": 0,
        "times": None,
    }
    memory = 0 if isinstance(step, str) else step.peak_memory()
    note = step if isinstance(step, str) else step.note
    if note is not None:
        return {**known, "note": note}
    low, median, high = np.percentile(1e3 * times, (25, 50, 75)).tolist()
    items = work.batch * (work.new_tokens if work.phase == DECODING else 1)
    return {
        **known,
        "rounds": len(times),
        "times": times,
        "milliseconds": median,
        "milliseconds_low": low,
        "milliseconds_high": high,
        "items_per_second": items * 1e3 / median,
        "peak_memory_bytes": memory,
        "parameters": step.parameters,
        "flops": work.flops(),
    }


def relate(cells: list[dict[str, Any]], reference: dict[str, Any] | None) -> None:
    """Writes the time over that of the reference, round by round: median and quartiles."""
    if reference is None or reference["times"] is None:
        return
    for one in cells:
        if one["times"] is not None:
            low, median, high = np.percentile(one["times"] / reference["times"], (25, 50, 75)).tolist()
            one |= {"relative_time": median, "relative_time_low": low, "relative_time_high": high}


def peers(cells: list[dict[str, Any]]) -> dict[str, float]:
    """How many times as fast this family is as its best peer, and as transformers' default, round by round.

    This family has the attention that picks its kernel if that was measured, else SDPA.
    """
    ran = [one for one in cells if one["times"] is not None]
    ours = [one for one in ran if one["library"] == OURS]
    ours = [one for one in ours if one["attention"] == "lean"] or [one for one in ours if one["attention"] == "sdpa"]
    theirs = [one for one in ran if one["library"] != OURS]
    default = [one for one in theirs if (one["library"], one["attention"]) == ("transformers", "sdpa")]
    default = [one for one in default if one["mode"] == "eager"]
    found = {}
    for name, group in (("best peer", theirs), ("transformers' default", default)):
        if ours and group:
            fastest, peer = (min(each, key=lambda one: one["milliseconds"]) for each in (ours, group))
            found[name] = float(np.median(peer["times"] / fastest["times"]))
    return found


def sized(options: Options) -> Iterator[tuple[str, LeanConfig]]:
    """Every shape with every combination of sizes. Heads or head size alone keep heads × head size."""
    for name in options.shapes:
        shape = load_config(name)
        for values in product(*options.sizes.values()):
            given = dict(zip(options.sizes, values))
            together = shape.num_attention_heads * shape.head_dim
            stated = [key for key in ("num_attention_heads", "head_dim") if key in given]
            if len(stated) == 1:
                (other,) = {"num_attention_heads", "head_dim"} - {*stated}
                given[other], rest = divmod(together, given[stated[0]])
                if rest:
                    raise ValueError(f"{name}: {stated[0]} {given[stated[0]]}: expected a divisor of {together}")
            if "num_attention_heads" in given and hasattr(shape, "num_key_value_heads"):
                given["num_key_value_heads"] = given["num_attention_heads"]
            try:
                yield name, type(shape).from_dict({**shape.to_dict(), **given})
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error


def lengths_of(config: PreTrainedConfig, options: Options, new_tokens: int) -> list[tuple[PreTrainedConfig, int]]:
    """The configuration for each length; it has more positions than the shape if the text is longer."""
    if not hasattr(config, "max_position_embeddings"):
        return [(config, config.default_length)]
    found = []
    for length in options.lengths or [max(1, config.max_position_embeddings - new_tokens)]:
        longer = copy.deepcopy(config)
        longer.max_position_embeddings = max(config.max_position_embeddings, length + new_tokens)
        found.append((longer, length))
    return found


def groups(options: Options) -> Iterator[list[Work]]:
    """What takes turns: the same step of every library, attention and mode."""
    device = torch.device("cuda" if options.device == "gpu" else "cpu")
    for name, config in sized(options):
        phases = [phase for phase in options.phases if phase != DECODING or "ForCausalLM" in config.task_heads]
        libraries = [OURS, "transformers"]
        if modality_of(config) is IMAGES and find_spec("timm"):
            libraries.append("timm")
        for dtype, phase, batch in product(options.dtypes, phases, options.batches):
            new_tokens = options.new_tokens if phase == DECODING else 0
            for longer, length in lengths_of(config, options, new_tokens):
                step = (phase, name, longer, dtype, batch, length, new_tokens, device)
                ways = product(options.modes, libraries, options.attentions)
                ways = [way for way in ways if way[1] == OURS or way[2] != "lean"]
                yield [Work(*step, library, attention, mode) for mode, library, attention in ways]


def group_of_models(models: Sequence[str], options: Options) -> Iterator[list[Work]]:
    """Models beside each other, without heads: the forward pass of every one, attention and mode."""
    device = torch.device("cuda" if options.device == "gpu" else "cpu")
    configs = {model: config_of(model) for model in models}
    for dtype, batch in product(options.dtypes, options.batches):
        shortest = min(getattr(config, "max_position_embeddings", 2**31) for config in configs.values())
        for length in options.lengths or [min(shortest, 128)]:
            works = []
            for mode, attention, (model, config) in product(options.modes, options.attentions, configs.items()):
                known = getattr(config, "default_length", length) if not hasattr(config, "vocab_size") else length
                step = ("inference", model, config, dtype, batch, known, 0, device)
                works.append(Work(*step, "base model", attention, mode))
            yield works


def config_of(model: str) -> PreTrainedConfig:
    """The configuration of a named shape, file, folder or Hub id, of this family or another text model."""
    try:
        return load_config(model)
    except ValueError:
        if not Path(model).is_dir() and "/" not in model:
            raise
        with suppress(OSError):
            return AutoConfig.from_pretrained(model, trust_remote_code=False)
        raise


def bench(options: Options, models: Sequence[str] = (), csv_file: Path | None = None) -> pd.DataFrame:
    """Measures all and prints a line for each cell, then ratios; writes the CSV file.

    Args:
        models: timed against each other; without any, `options.shapes` against other libraries.

    Raises:
        ValueError: no such shape or device; the CSV file is there already; nothing ran at all.
    """
    if csv_file is not None:
        free_path("--csv", csv_file)
    if options.device == "gpu" and not torch.cuda.is_available():
        raise ValueError("--device gpu: this machine has no CUDA device; expected cpu")
    if options.dtypes is None:
        options.dtypes = machine.usual_dtypes(options.device)
    planned = list(group_of_models(models, options) if models else groups(options))
    if not planned:
        raise ValueError("--phases decoding: none of --shapes generates text; expected one that does, as gpt/tiny")
    quiet_libraries()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rates: dict[str, float] = {}
    cells = []
    ratios = []
    for works in planned:
        first = works[0]
        with suppress(RuntimeError, AssertionError):  # the dtype has no kernel
            rate = machine.matrix_product_flops(first.device, first.dtype)
            rates[first.dtype] = max(rates.get(first.dtype, 0.0), rate)  # a slow minute is not what the machine can do
        measured = measure(works, options.rounds, options.seconds)
        own = [one for one in measured if (one["library"], one["attention"], one["mode"]) == (OURS, "sdpa", "eager")]
        relate(measured, measured[0] if models else next(iter(own), None))
        for work, one in zip(works, measured):
            print(f"{work}: {line_of(one)}", flush=True)
        cells += measured
        if not models:
            ratios += [(f"{first.phase} {first.dtype}, {peer}", ratio) for peer, ratio in peers(measured).items()]
    means = pd.DataFrame(ratios, columns=["name", "ratio"]).groupby("name", sort=False)["ratio"].agg(geometric_mean)
    for name, mean in means.items():
        print(f"geometric mean, {name}: {mean:.2f} × as fast")
    print(f"processor flags: {' '.join(processor_flags()) or 'unknown'}")
    table = as_table(cells, rates)
    if csv_file is not None:
        write_new("--csv", csv_file, (provenance(rates, means) + table.to_csv(index=False)).encode())
    if table["milliseconds"].isna().all():
        raise ValueError(f"none of the {len(table)} cells can run: {cells[0]['note']}")
    return table


def geometric_mean(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def line_of(one: dict[str, Any]) -> str:
    """A cell as it is printed."""
    if one["milliseconds"] is None:
        return f"cannot run: {one['note']}"
    text = f"{one['milliseconds']:.1f} ms ({one['milliseconds_low']:.1f}–{one['milliseconds_high']:.1f})"
    return text if one["relative_time"] is None else f"{text}, ratio {one['relative_time']:.2f}"


def as_table(cells: list[dict[str, Any]], rates: dict[str, float]) -> pd.DataFrame:
    """The cells, with the share of the matrix products' rate that each reached."""
    table = pd.DataFrame(cells, columns=COLUMNS)
    rate = table["dtype"].map(rates).astype(float)
    seconds = table["milliseconds"].astype(float) / 1e3
    table["matrix_product_share"] = table["flops"].astype(float) / seconds / rate
    whole = ["rounds", "peak_memory_bytes", "parameters", "flops"]
    return table.astype(dict.fromkeys(whole, "Int64"))


def provenance(rates: dict[str, float], means: pd.Series) -> str:
    """Software, processor and means, in lines that begin with #."""
    timm = None
    with suppress(PackageNotFoundError):
        timm = version("timm")
    values = {
        **environment(),
        "timm": timm,
        "processor_flags": " ".join(processor_flags()),
        **{f"matrix_product_flops {dtype}": f"{rate:.4g}" for dtype, rate in rates.items()},
        **{f"geometric mean of speedups, {name}": f"{mean:.3f}" for name, mean in means.items()},
    }
    return "".join(f"# {name}: {value}\n" for name, value in values.items())
