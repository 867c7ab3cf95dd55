"""`leaner bench`: a step of this family against the same shape in transformers and timm, or models against each other.

Also the measurements of `leaner plan --measure`. What is compared runs in one process and takes turns, so that a slow
minute of the machine is shared by all. Weights are random and data made up: neither changes the time.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import benchmark
from transformers import AutoConfig, AutoModel, CompileConfig, GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import RELATIVES, from_lean_config
from modeling_leaner.family import IMAGES
from modeling_leaner.files import write_bytes
from modeling_leaner.models import quartiles, seconds_of, take_turns
from modeling_leaner.planning.costs import StepSetting, scored_rows, training_flops
from modeling_leaner.shapes import load_config, modality_of
from modeling_leaner.terminal import quiet_libraries

from .running.results import environment, processor_flags


OURS = "modeling_leaner"
DECODING = "decoding"
WARM_UP = 3
SIDES = {"cpu": 2048, "cuda": 8192}  # of square matrices, large enough for the full rate of their product
RATE_SECONDS = 1.0  # that a measurement of this rate takes
BFLOAT16_UNITS = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of processors that multiply in it; others are far slower
COLUMNS = (
    "phase shape layers heads head_dim dtype batch length new_tokens library attention mode precision device torch "
    "transformers rounds milliseconds milliseconds_low milliseconds_high relative_time relative_time_low "
    "relative_time_high items_per_second peak_memory_bytes parameters flops matrix_product_share note"
).split()
Cell = dict[str, Any]  # one model at one step, by column; "times" are the seconds of each round


@dataclass(eq=False)
class Step:
    """A step of one model: `batch` items of `length` tokens, to which decoding adds `new_tokens`.

    One that fails, in any library or compiler, leaves a `note` and lets go of its model; the others go on.
    """

    phase: str
    shape: str
    config: PreTrainedConfig
    dtype: str
    batch: int
    length: int
    new_tokens: int
    on: torch.device
    library: str = OURS
    attention: str = "sdpa"
    mode: str = "eager"
    note: str | None = None
    parameters: int | None = None

    def __str__(self) -> str:
        new = f" + {self.new_tokens} new" if self.phase == DECODING else ""
        mode = "compiled" if self.mode == "compile" else "uncompiled"
        step = f"{self.phase} {self.shape} in {self.dtype}, batch {self.batch} × {self.length} tokens{new}"
        return f"{step}: {self.library}, {self.attention}, {mode}"

    @property
    def precision(self) -> str:
        """How a step computes in the dtype: float32, cast (weights too), or autocast (weights stay float32)."""
        if self.dtype == "float32":
            return "float32"
        return "autocast" if self.phase == "training" else "cast"

    def build(self) -> None:
        """Builds the model and warms it up."""
        torch.manual_seed(0)
        dtype = getattr(torch, self.dtype) if self.precision == "cast" else torch.float32
        model = BUILDERS[self.library](self.config, self.attention)
        model = model.to(self.on, dtype).train(self.phase == "training")
        self.weights = list(model.parameters())
        self.parameters = sum(weight.numel() for weight in self.weights)
        self.inputs = self.made_up_inputs(dtype)
        self.optimizer = None
        if self.phase == "training":
            self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, fused=True)  # Trainer's default
        self.call = torch.compile(model) if self.mode == "compile" and self.phase != DECODING else model
        if self.phase == DECODING:
            model.generation_config = generation(self.new_tokens, self.mode == "compile")
            self.call = model.generate
        for _ in range(WARM_UP):
            self.run()

    def made_up_inputs(self, dtype: torch.dtype) -> dict[str, Any]:
        """The same numbers in every call; labels only for training, keys and values only for decoding."""
        torch.manual_seed(0)
        if not isinstance(self.config, LeanConfig):
            return {"input_ids": torch.randint(self.config.vocab_size, (self.batch, self.length), device=self.on)}
        setting = StepSetting(self.batch, self.length, str(dtype).removeprefix("torch."))
        inputs: dict[str, Any] = made_up_batch(self.config, setting, self.batch, self.on)
        if self.phase != "training":
            del inputs["labels"]
        if hasattr(self.config, "use_cache") and self.phase != DECODING:
            inputs["use_cache"] = False
        return inputs

    def run(self) -> None:
        """One step."""
        if self.optimizer is None:
            with torch.inference_mode():
                self.call(**self.inputs)
            return
        with torch.autocast(self.on.type, getattr(torch, self.dtype), enabled=self.precision == "autocast"):
            loss = self.call(**self.inputs).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def guarded(self, action: Callable[[], Any]) -> Any:
        """What `action` gives; 0 once the step has failed."""
        if self.note is None:
            try:
                return action()
            except Exception as error:
                self.note = " ".join(str(error).split())[:200] or type(error).__name__
                self.release()
        return 0

    def release(self) -> None:
        """Lets go of the model."""
        self.call, self.weights, self.optimizer = None, [], None

    def seconds(self) -> float:
        return self.guarded(lambda: seconds_of(self.run))

    def peak_memory(self) -> int:
        held = [*self.weights, *(each for each in self.inputs.values() if isinstance(each, Tensor))]
        return peak_memory(self.run, held, self.optimizer, self.on)

    def flops(self) -> int | None:
        """FLOPs of a step's matrix products by arithmetic; None for decoding and models of other families.

        In uncompiled training this family's masked language model scores only masked tokens.
        """
        if self.phase == DECODING or not isinstance(self.config, LeanConfig) or self.library == "base model":
            return None
        if self.phase == "training" and self.library == OURS and self.mode == "eager":
            return self.batch * training_flops(self.config, self.length)
        counted = self.config.count_flops(self.length, class_name(self.config))
        return self.batch * (counted.training_step if self.phase == "training" else counted.forward)

    def cell(self, times: np.ndarray) -> Cell:
        """What is known of the step; `times` in seconds."""
        memory = self.guarded(self.peak_memory)
        heads = max(getattr(self.config, "heads_per_layer", [self.config.num_attention_heads]))
        known = dict.fromkeys([*COLUMNS, "times"]) | {
            **{name: getattr(self, name) for name in COLUMNS if hasattr(self, name)},
            "layers": self.config.num_hidden_layers,
            "heads": heads,
            "head_dim": getattr(self.config, "head_dim", None) or self.config.hidden_size // heads,
            "device": torch.cuda.get_device_name(self.on) if self.on.type == "cuda" else self.on.type,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        if self.note is not None:
            return known | {"rounds": 0, "parameters": None, "flops": None}
        low, median, high = np.percentile(1e3 * times, (25, 50, 75)).tolist()
        items = self.batch * (self.new_tokens if self.phase == DECODING else 1)
        return known | {
            "rounds": len(times),
            "times": times,
            "milliseconds": median,
            "milliseconds_low": low,
            "milliseconds_high": high,
            "items_per_second": items * 1e3 / median,
            "peak_memory_bytes": memory,
            "flops": self.flops(),
        }


def class_name(config: LeanConfig) -> str:
    """The family's class with its pretraining head, such as LeanBERTForMaskedLM."""
    return type(config).__name__.removesuffix("Config") + config.task_heads[0]


class TimmClassifier(nn.Module):
    """timm's vision transformer behind the interface of transformers' models."""

    def __init__(self, config: LeanConfig, attention: str):
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        from_lean_config(config)  # refuses what timm cannot have either: a free head size, heads per layer
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

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
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


BUILDERS: dict[str, Callable[[PreTrainedConfig, str], nn.Module]] = {
    OURS: build_ours,
    "transformers": build_relative,
    "timm": TimmClassifier,
    "base model": lambda config, attention: AutoModel.from_config(
        copy.deepcopy(config), attn_implementation=attention
    ),
}


def generation(new_tokens: int, compiled: bool) -> GenerationConfig:
    """Greedy, exactly `new_tokens`. Compiled, each token's forward pass is, with keys and values of a fixed size."""
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False)
    if compiled:
        settings.cache_implementation = "static"
        settings.compile_config = CompileConfig()
        settings.compile_config._compile_all_devices = True  # by itself transformers compiles on a GPU only
    return settings


def time_in_turns(steps: Sequence[Step], rounds: int, seconds: float) -> list[Cell]:
    """A cell for each, which took turns."""
    torch.compiler.reset()
    # The models share functions of transformers, each of which is compiled for every model; beyond the limit torch
    # would go on uncompiled without a word.
    with torch._dynamo.config.patch(recompile_limit=1000, fail_on_recompile_limit_hit=True):
        for step in steps:
            step.guarded(step.build)
        times = take_turns([step.seconds for step in steps], rounds, warm_up=0, limit=seconds)
        cells = [step.cell(own) for step, own in zip(steps, times)]
    for step in steps:
        step.release()
    return cells


def relate(cells: list[Cell], reference: Cell | None) -> None:
    """Writes the time over that of the reference, round by round: median and quartiles."""
    if reference is None or reference["times"] is None:
        return
    for one in cells:
        if one["times"] is not None:
            low, median, high = np.percentile(one["times"] / reference["times"], (25, 50, 75)).tolist()
            one |= {"relative_time": median, "relative_time_low": low, "relative_time_high": high}


def peers(cells: list[Cell]) -> dict[str, float]:
    """How many times as fast this family is as its best peer, and as transformers' default, round by round.

    This family uses the attention that picks its kernel if that was measured, else SDPA.
    """
    ran = [one for one in cells if one["times"] is not None]
    ours = [one for one in ran if one["library"] == OURS]
    ours = [one for one in ours if one["attention"] == "lean"] or [one for one in ours if one["attention"] == "sdpa"]
    theirs = [one for one in ran if one["library"] != OURS]
    default = ("transformers", "sdpa", "eager")
    defaults = [one for one in theirs if (one["library"], one["attention"], one["mode"]) == default]
    found = {}
    for name, group in {"best peer": theirs, "transformers' default": defaults}.items():
        if ours and group:
            fastest, peer = (min(each, key=lambda one: one["milliseconds"]) for each in (ours, group))
            found[name] = float(np.median(peer["times"] / fastest["times"]))
    return found


def sized(options: SimpleNamespace) -> Iterator[tuple[str, LeanConfig]]:
    """Every shape with every combination of sizes. Heads or head size alone keep heads × head size."""
    sizes = {"num_hidden_layers": options.layers, "num_attention_heads": options.heads, "head_dim": options.head_dim}
    sizes = {name: values for name, values in sizes.items() if values}
    for name in options.shapes:
        shape = load_config(name)
        together = shape.num_attention_heads * shape.head_dim
        for values in product(*sizes.values()):
            given = dict(zip(sizes, values))
            stated = {"num_attention_heads", "head_dim"} & set(given)
            if len(stated) == 1:
                (one,), (other,) = stated, {"num_attention_heads", "head_dim"} - stated
                given[other], rest = divmod(together, given[one])
                if rest:
                    raise ValueError(f"{name}: {one} {given[one]}: expected a divisor of {together}")
            if "num_attention_heads" in given and hasattr(shape, "num_key_value_heads"):
                given["num_key_value_heads"] = given["num_attention_heads"]
            try:
                yield name, type(shape).from_dict({**shape.to_dict(), **given})
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error


def lengths_of(
    config: PreTrainedConfig, options: SimpleNamespace, new_tokens: int
) -> list[tuple[PreTrainedConfig, int]]:
    """The configuration for each length; it has more positions than the shape if the text is longer."""
    if not hasattr(config, "max_position_embeddings"):
        return [(config, config.default_length)]
    found = []
    for length in options.length or [max(1, config.max_position_embeddings - new_tokens)]:
        longer = copy.deepcopy(config)
        longer.max_position_embeddings = max(config.max_position_embeddings, length + new_tokens)
        found.append((longer, length))
    return found


def groups_of_libraries(options: SimpleNamespace, device: torch.device) -> Iterator[list[Step]]:
    """What takes turns: the same step of every library, attention and mode."""
    for name, config in sized(options):
        phases = [phase for phase in options.phases if phase != DECODING or "ForCausalLM" in config.task_heads]
        timm = ["timm"] if modality_of(config) is IMAGES and find_spec("timm") else []
        ways = product(options.modes, [OURS, "transformers", *timm], options.attentions)
        ways = [(library, attention, mode) for mode, library, attention in ways]
        ways = [way for way in ways if way[0] == OURS or way[1] != "lean"]
        for dtype, phase, batch in product(options.dtypes, phases, options.batch):
            new_tokens = options.new_tokens if phase == DECODING else 0
            for longer, length in lengths_of(config, options, new_tokens):
                yield [Step(phase, name, longer, dtype, batch, length, new_tokens, device, *way) for way in ways]


def groups_of_models(options: SimpleNamespace, device: torch.device) -> Iterator[list[Step]]:
    """Models without heads against each other: the forward pass of every one, attention and mode."""
    configs = {model: config_of(model) for model in options.models}
    shortest = min(getattr(config, "max_position_embeddings", 128) for config in configs.values())
    for dtype, batch, length in product(options.dtypes, options.batch, options.length or [min(shortest, 128)]):
        steps = []
        for mode, attention, (model, config) in product(options.modes, options.attentions, configs.items()):
            known = length if hasattr(config, "vocab_size") else getattr(config, "default_length", length)
            of_all = ("inference", model, config, dtype, batch, known, 0, device)
            steps.append(Step(*of_all, "base model", attention, mode))
        yield steps


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


def matrix_product_flops(device: torch.device, dtype: str) -> float:
    """FLOP/s of the fastest of some products of square matrices; 0 if the dtype has no kernel."""
    side = SIDES[device.type]
    given = {name: torch.randn(side, side).to(device, getattr(torch, dtype)) for name in ("left", "right")}
    timer = benchmark.Timer("left @ right", globals=given, num_threads=torch.get_num_threads())
    with suppress(RuntimeError, AssertionError):
        return 2 * side**3 / min(timer.blocked_autorange(min_run_time=RATE_SECONDS).times)
    return 0.0


def bench(options: SimpleNamespace) -> pd.DataFrame:
    """Measures all and prints a line for each cell, then ratios; writes the CSV file.

    Args:
        options: those of `leaner bench`, by name; every combination of the lists is measured. Its `models` are timed
            against each other; without any, its `shapes` against other libraries.

    Raises:
        ValueError: no such shape or device; the CSV file is there already; nothing ran at all.
    """
    device = device_of(options.device, "--device gpu")
    has_units = options.device == "gpu" or not BFLOAT16_UNITS.isdisjoint(processor_flags())
    options.dtypes = options.dtypes or ["float32", "bfloat16"][: 1 + has_units]
    groups = list((groups_of_models if options.models else groups_of_libraries)(options, device))
    if not groups:
        raise ValueError("--phases decoding: none of --shapes generates text; expected one that does, as gpt/tiny")
    quiet_libraries()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    rates: dict[str, float] = {}
    cells: list[Cell] = []
    ratios: list[tuple[str, float]] = []
    for steps in groups:
        dtype = steps[0].dtype
        # The best of several, since a slow minute is not what the machine can do.
        rates[dtype] = max(rates.get(dtype, 0.0), matrix_product_flops(device, dtype))
        measured = time_in_turns(steps, options.rounds, options.seconds)
        own = [one for one in measured if (one["library"], one["attention"], one["mode"]) == (OURS, "sdpa", "eager")]
        relate(measured, measured[0] if options.models else next(iter(own), None))
        for step, one in zip(steps, measured):
            print(f"{step}: {line_of(one)}", flush=True)
        cells += measured
        if not options.models:
            ratios += [(f"{steps[0].phase} {dtype}, {peer}", ratio) for peer, ratio in peers(measured).items()]
    means = pd.DataFrame(ratios, columns=["name", "ratio"]).groupby("name", sort=False)["ratio"]
    means = means.agg(lambda values: float(np.exp(np.log(values).mean())))
    for name, mean in means.items():
        print(f"geometric mean, {name}: {mean:.2f} × as fast")
    print(f"processor flags: {' '.join(processor_flags()) or 'unknown'}")
    table = pd.DataFrame(cells, columns=COLUMNS)
    rate = table["dtype"].map(rates).astype(float).replace(0, np.nan)
    table["matrix_product_share"] = table["flops"].astype(float) / (table["milliseconds"].astype(float) / 1e3) / rate
    table = table.astype(dict.fromkeys(["rounds", "peak_memory_bytes", "parameters", "flops"], "Int64"))
    if options.csv is not None:
        write_bytes(options.csv, (provenance(rates, means) + table.to_csv(index=False)).encode())
    if table["milliseconds"].isna().all():
        raise ValueError(f"none of the {len(table)} cells can run: {cells[0]['note']}")
    return table


def line_of(one: Cell) -> str:
    if one["milliseconds"] is None:
        return f"cannot run: {one['note']}"
    text = f"{one['milliseconds']:.1f} ms ({one['milliseconds_low']:.1f}–{one['milliseconds_high']:.1f})"
    return text if one["relative_time"] is None else f"{text}, ratio {one['relative_time']:.2f}"


def provenance(rates: dict[str, float], means: pd.Series) -> str:
    """Software, processor and means, in lines that begin with #."""
    values = {
        **environment(),
        "timm": version("timm") if find_spec("timm") else None,
        "processor_flags": " ".join(processor_flags()),
        **{f"matrix_product_flops {dtype}": f"{rate:.4g}" for dtype, rate in rates.items() if rate},
        **{f"geometric mean of speedups, {name}": f"{mean:.3f}" for name, mean in means.items()},
    }
    return "".join(f"# {name}: {value}\n" for name, value in values.items())


def device_of(name: str, option: str) -> torch.device:
    """The device of a name, cpu or gpu. Raises ValueError, with the option, if it is a GPU and there is none."""
    if name == "gpu" and not torch.cuda.is_available():
        raise ValueError(f"{option}: this machine has no CUDA device; expected --device cpu")
    return torch.device("cuda" if name == "gpu" else "cpu")


def made_up_batch(config: LeanConfig, setting: StepSetting, items: int, device: torch.device) -> dict[str, Tensor]:
    """Inputs and labels of the pretraining head; for LeanBERT as many labels as `scored_rows` counts."""
    if config.task_heads[0] == "ForImageClassification":
        pixels = torch.randn(items, config.num_channels, *config.image_shape, dtype=getattr(torch, setting.dtype))
        return {"pixel_values": pixels.to(device), "labels": torch.zeros(items, dtype=torch.long, device=device)}
    ids = torch.randint(config.vocab_size, (items, setting.length_of(config)), device=device)
    labels = ids.clone()
    if config.task_heads[0] == "ForMaskedLM":
        rows = round(scored_rows(config, setting)[0] * items / setting.batch_size)
        labels.view(-1)[torch.randperm(labels.numel(), device=device)[rows:]] = -100
    return {"input_ids": ids, "labels": labels}


@contextmanager
def silenced() -> Iterator[None]:
    """Nothing is written to stderr, not even from C++: the profiler writes two lines there each time."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def peak_memory(
    step: Callable[[], None], held: Sequence[Tensor], optimizer: torch.optim.Optimizer | None, device: torch.device
) -> int:
    """Bytes of tensors at the peak of a step: those `held`, the optimizer's states, and what the step adds.

    An earlier step must have made the optimizer's states.
    """
    states = [] if optimizer is None else optimizer.state.values()
    states = [tensor for state in states for tensor in state.values() if tensor.numel() > 1]
    before = sum(tensor.nbytes for tensor in (*held, *states))
    if device.type == "cuda":
        allocated = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return before + torch.cuda.max_memory_allocated() - allocated
    with silenced(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return before + max(0, int(np.cumsum(changes).max()))


class Bench:
    """One shape for `leaner plan --measure`, with its optimizer and two batches: the step's, and one item for latency.

    AdamW is PyTorch's, not fused, whose temporary tensors `planning/memory.py` counts.
    """

    def __init__(self, config: LeanConfig, setting: StepSetting):
        self.device = device_of(setting.device, "--device gpu with --measure")
        auto_class = getattr(transformers, f"AutoModel{config.task_heads[0]}")
        options = {"attn_implementation": setting.attention, "dtype": getattr(torch, setting.dtype)}
        self.model = auto_class.from_config(config, **options).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = made_up_batch(config, setting, setting.batch_size, self.device)
        self.inputs = {name: tensor for name, tensor in self.batch.items() if name != "labels"}
        self.item = made_up_batch(config, setting, 1, self.device)
        del self.item["labels"]

    def train(self) -> None:
        """One step: forward, backward, update; gradients are dropped."""
        self.model.train()
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.inference_mode()
    def infer(self) -> None:
        self.model.eval()
        self.model(**self.inputs)

    @torch.inference_mode()
    def infer_one(self) -> None:
        self.model.eval()
        self.model(**self.item)

    def peak_memory(self) -> int:
        """Bytes of tensors at the peak of a training step; an earlier step must have made the optimizer's states."""
        held = [*self.model.parameters(), *self.batch.values()]
        return peak_memory(self.train, held, self.optimizer, self.device)


def time_each(benches: Sequence[Bench], call: Callable[[Bench], None], rounds: int) -> np.ndarray:
    """Seconds of a call on each bench: (benches, rounds)."""
    return take_turns([partial(seconds_of, partial(call, bench)) for bench in benches], rounds)


def measure(configs: Sequence[LeanConfig], setting: StepSetting, rounds: int = 7) -> list[dict[str, float]]:
    """Medians over the rounds, and half the interquartile range as `..._spread`, by shape.

    `training_step_s` and `inference_s` are for a batch, `latency_s` for one item, in seconds; `peak_memory_bytes` is
    for the tensors of a training step. All shapes are in memory at once. Raises ValueError without the device.
    """
    benches = [Bench(config, setting) for config in configs]
    calls = {"training_step_s": Bench.train, "inference_s": Bench.infer, "latency_s": Bench.infer_one}
    rows: list[dict[str, float]] = [{} for _ in benches]
    for name, call in calls.items():
        for row, times in zip(rows, quartiles(time_each(benches, call, rounds))):
            row |= {name: times.median, f"{name}_spread": (times.high - times.low) / 2}
    for row, bench in zip(rows, benches):
        row["training_items_per_second"] = setting.batch_size / row["training_step_s"]
        row["inference_items_per_second"] = setting.batch_size / row["inference_s"]
        row["peak_memory_bytes"] = bench.peak_memory()
    return rows
