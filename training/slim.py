"""`leaner slim MODEL OUT --speedup 2 --data TEXTS`: a faster model from a trained one.

It times the model on this machine, chooses how many layers reach the speed, removes those that matter least, trains
what is left to reproduce the original, compares both on rows that chose nothing, and writes an ordinary folder.

The kind of the model is read from its files, and the loss follows from it:

- sentence encoder: 1 − cosine to the original's embedding, the mean over tokens;
- classifier of sequences, tokens or images: Kullback-Leibler divergence to the original's classes at temperature 2
  (Hinton et al., 2015, arXiv 1503.02531), and cross-entropy if `--label-column` is given;
- masked or causal language model: the same divergence over the vocabulary, at masked places or at all.

All add 1 − cosine to the hidden states of the layers that were kept (as in DistilBERT, Sanh et al., 2019, arXiv
1910.01108).

Shapes: B rows, T tokens, D width, C classes or tokens of the vocabulary.
"""

import json
import math
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from jinja2 import Template
from rich.table import Table
from scipy import stats
from torch.nn import functional as F
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from modeling_leaner.conversion import ConversionError, convert, load_lean
from modeling_leaner.files import read_json, whole_folder, write_json
from modeling_leaner.hub import (
    check_vocabulary,
    copy_into,
    files_of,
    load_processors,
    read_source_json,
    sentence_transformers_files,
    weights_sha256,
)
from modeling_leaner.layers_leaner import LeanPreTrainedModel
from modeling_leaner.models import seconds_of, take_turns
from modeling_leaner.slimming import calibration, operations
from modeling_leaner.slimming.measures import Batch, mean_over_tokens
from modeling_leaner.slimming.slim import RECORD, Cut, Slimmed, Target, check_target, slim
from modeling_leaner.terminal import plain_console, progress_bar

from .data.sources import BUILT_IN, load_split


CALIBRATION_ROWS = 256
HELD_OUT_ROWS = 1_000
TEMPERATURE = 2.0
LEAST_ROWS = 32
POOLING = "1_Pooling/config.json"
MEAN = "pooling_mode_mean_tokens"
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers, which the family's vectors equal
RESAMPLES = 1_000
BELOW_KEEP = 3  # exit status if the model keeps less than `--keep`
TOLERANCE = 0.85  # of the speed-up that layers must reach; narrower MLPs make up the rest
CARD = Path(__file__).with_name("slim_card.md")


@dataclass(frozen=True)
class Settings:
    """What `leaner slim` was asked for."""

    source: str
    output: Path
    data: tuple[str, ...]
    speedup: float | None = None
    layers: int | None = None
    keep_layers: tuple[int, ...] | None = None
    heads: int | None = None
    total_heads: int | None = None
    intermediate_size: int | None = None
    column: str | None = None
    label_column: str | None = None
    keep: float | None = None
    minutes: float = 60
    max_length: int = 128
    training: bool = True
    lean: bool = False
    base_model: str | None = None
    license: str | None = None
    seed: int = 0

    @property
    def parent(self) -> str:
        """How the card names the original."""
        folder = Path(self.source)
        return self.base_model or (folder.resolve().name if folder.exists() else self.source)


@dataclass(frozen=True)
class Comparison:
    """Original and result on held-out rows, and their speed."""

    metric: str
    original: float
    result: float
    low: float
    """The 95 % interval of result/original, by a bootstrap over rows."""
    high: float
    speedup: float
    parameters: tuple[int, int]

    @property
    def kept(self) -> float:
        return self.result / self.original


# Kinds


@dataclass(frozen=True)
class Kind:
    """What a model is for: what is compared between it and the original."""

    name: str
    metric: str

    def places(self, batch: Batch) -> torch.Tensor | None:
        """Which outputs count: (B, T), or None if there is one for each row."""
        return None

    def rows(self, outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """What is compared: (rows, C)."""
        logits = outputs["logits"]
        places = self.places(batch)
        return logits if places is None else logits[places]

    def answers(self, outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """What is scored: the predicted classes or tokens, (rows)."""
        return self.rows(outputs, batch).argmax(dim=-1)

    def distance(self, own: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        """Mean Kullback-Leibler divergence at the temperature, times its square; (rows, C) twice → ()."""
        own, original = ((each.float() / TEMPERATURE).log_softmax(dim=-1) for each in (own, original))
        return F.kl_div(own, original, log_target=True, reduction="batchmean") * TEMPERATURE**2


class Encoder(Kind):
    def rows(self, outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        return mean_over_tokens(outputs["last_hidden_state"].float(), batch.get("attention_mask"))

    def answers(self, outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """The embeddings, (rows, D)."""
        return self.rows(outputs, batch)

    def distance(self, own: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        return (1 - F.cosine_similarity(own, original, dim=-1)).mean()


class TokenClassifier(Kind):
    def places(self, batch: Batch) -> torch.Tensor:
        return batch["attention_mask"].bool()


class MaskedLM(Kind):
    def places(self, batch: Batch) -> torch.Tensor:
        return batch["labels"] != -100


class CausalLM(Kind):
    def places(self, batch: Batch) -> torch.Tensor:
        following = batch["attention_mask"].bool().roll(-1, dims=1)
        following[:, -1] = False
        return following & batch["attention_mask"].bool()


ENCODER = Encoder("sentence encoder", "agreement of similarities (Spearman)")
KINDS = {
    "ForSequenceClassification": Kind("sequence classifier", "accuracy"),
    "ForImageClassification": Kind("image classifier", "accuracy"),
    "ForTokenClassification": TokenClassifier("token classifier", "accuracy"),
    "ForMaskedLM": MaskedLM("masked language model", "accuracy of masked tokens"),
    "ForCausalLM": CausalLM("causal language model", "accuracy of next tokens"),
}


def kind_of(model: LeanPreTrainedModel, source: str) -> Kind:
    """The kind of a model by its class. Raises ValueError for one that cannot be trained from its original."""
    name = type(model).__name__
    if model.base_model is model and model.main_input_name == "input_ids":
        return ENCODER
    for end, kind in KINDS.items():
        if name.endswith(end):
            if "Classification" in end and model.config.num_labels < 2:
                raise ValueError(f"{source}: a regression of one number cannot be distilled by its classes")
            return kind
    kinds = ", ".join([ENCODER.name, *(kind.name for kind in KINDS.values())])
    raise ValueError(f"{source}: {name} cannot be made faster by this command; expected a {kinds}")


# Rows


@dataclass(frozen=True)
class Rows:
    """Rows to train on and others to compare on, as a Trainer takes them; texts become tokens when they are read.

    `lengths` are those of the texts to train on, in characters; None for images.
    """

    train: Dataset
    held_out: Dataset
    collate: Callable[[list[dict]], Batch]
    has_labels: bool
    lengths: list[int] | None = None


def read_rows(settings: Settings, model: LeanPreTrainedModel, processor: object, kind: Kind) -> tuple[Rows, list]:
    """The rows of `--data`, and the contents of those by which is chosen what goes.

    Raises:
        ValueError: too few rows, or no such column; names it.
    """
    if len(settings.data) == 1 and settings.data[0] in BUILT_IN:
        rows = load_split(settings.data[0], "train")
    else:
        rows = load_split(None, "train", data_files=list(settings.data))
    column = settings.column or likely_column(rows, model)
    for name in filter(None, (column, settings.label_column)):
        if name not in rows.column_names:
            raise ValueError(f"column {name}: the rows have {', '.join(rows.column_names)}")
    if settings.label_column and type(kind) is not Kind:
        raise ValueError(f"--label-column: a {kind.name} learns from the original alone; leave it out")
    if settings.label_column:
        rows = rows.map(lambda row: {settings.label_column: class_of(row[settings.label_column], model)})
    rows = rows.filter(lambda row: row[column] not in (None, ""))
    if len(rows) < LEAST_ROWS:
        raise ValueError(f"--data: {len(rows)} rows with content in {column}; expected at least {LEAST_ROWS}")
    rows = rows.shuffle(seed=settings.seed)
    held_out = min(HELD_OUT_ROWS, len(rows) // 5)
    contents = rows.select(range(held_out, min(len(rows), held_out + CALIBRATION_ROWS)))[column][:]
    lengths = None
    if model.main_input_name == "pixel_values":
        prepared, collate = image_rows(rows, column, settings.label_column, model, processor)
    else:
        prepared, collate = text_rows(rows, column, settings, model, processor, kind)
        lengths = [len(text) for text in rows[column][held_out:]]
    return (
        Rows(
            prepared.select(range(held_out, len(prepared))),
            prepared.select(range(held_out)),
            collate,
            settings.label_column is not None or isinstance(kind, MaskedLM | CausalLM),
            lengths,
        ),
        contents,
    )


def likely_column(rows: Dataset, model: LeanPreTrainedModel) -> str:
    """The column that the model reads. Raises ValueError if there are several."""
    wanted = "Image" if model.main_input_name == "pixel_values" else "Value"
    found = [
        name
        for name, feature in rows.features.items()
        if type(feature).__name__ == wanted and (wanted == "Image" or feature.dtype in ("string", "large_string"))
    ]
    usual = [name for name in ("text", "sentence") if name in found]
    if len(found) != 1 and not usual:
        raise ValueError(f"--column: name the column to read; the rows have {', '.join(rows.column_names)}")
    return (usual or found)[0]


def class_of(label: object, model: LeanPreTrainedModel) -> int:
    """The number of a class by its name or number. Raises ValueError for one that the model does not have."""
    number = model.config.label2id.get(label) if isinstance(label, str) else label
    if not isinstance(number, int) or not 0 <= number < model.config.num_labels:
        known = ", ".join(map(str, model.config.label2id))
        raise ValueError(f"--label-column: {label!r} is no class of the model; expected 0.., or one of {known}")
    return number


def text_rows(
    rows: Dataset, column: str, settings: Settings, model: LeanPreTrainedModel, tokenizer: object, kind: Kind
) -> tuple[Dataset, Callable[[list[dict]], Batch]]:
    tokenizer = calibration.padding_tokenizer(tokenizer)
    length = min(settings.max_length, model.config.max_position_embeddings)
    labels = settings.label_column

    def tokenise(batch: dict) -> dict:
        tokens = tokenizer(batch[column], truncation=True, max_length=length, return_token_type_ids=False)
        return {**tokens, "labels": batch[labels]} if labels else dict(tokens)

    prepared = rows.with_transform(tokenise)
    if isinstance(kind, MaskedLM):
        return prepared, DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    return prepared, DataCollatorWithPadding(tokenizer)


def image_rows(
    rows: Dataset, column: str, labels: str | None, model: LeanPreTrainedModel, processor: object
) -> tuple[Dataset, Callable[[list[dict]], Batch]]:
    def collate(batch: list[dict]) -> Batch:
        found = calibration.read_images(processor, [row[column] for row in batch], model.config.num_channels)
        return found | ({"labels": torch.tensor([row[labels] for row in batch])} if labels else {})

    return rows.select_columns([name for name in (column, labels) if name]), collate


# Shape


def shape_for(model: LeanPreTrainedModel, settings: Settings, batch: Batch) -> Target:
    """The shape that reaches the speed-up on this machine, or the one that the settings name.

    Raises:
        ValueError: no number of layers is as fast.
    """
    target = Target(
        layers=settings.layers,
        keep=settings.keep_layers,
        heads=settings.heads,
        total_heads=settings.total_heads,
        intermediate_size=settings.intermediate_size,
    )
    if settings.speedup is None:
        return target
    depth = model.config.num_hidden_layers
    cuts = [model, *(operations.keep_layers(model, range(count)) for count in range(depth - 1, 0, -1))]
    speeds = dict(zip(range(depth, 0, -1), speeds_of(cuts, batch)))
    enough = [count for count, speed in speeds.items() if speed >= TOLERANCE * settings.speedup]
    if not enough:
        raise ValueError(f"--speedup {settings.speedup:g}: one layer of {depth} reaches {speeds[1]:.1f} × at most")
    layers = max(enough)
    if speeds[layers] >= settings.speedup:
        return replace(target, layers=layers)
    return replace(target, layers=layers, intermediate_size=narrower(cuts[depth - layers], model, settings, batch))


def narrower(cut: LeanPreTrainedModel, model: LeanPreTrainedModel, settings: Settings, batch: Batch) -> int:
    """The width of the MLPs with which a cut is as fast as asked for, by interpolation between all of it and half."""
    width = cut.config.intermediate_size
    half = operations.keep_neurons(cut, [list(range(width // 2))] * cut.config.num_hidden_layers)
    _, whole, narrow = (1 / speed for speed in speeds_of([model, cut, half], batch))
    missing = (whole - 1 / settings.speedup) / max(whole - narrow, 1e-9)  # in halves of the MLPs
    share = 1 - 0.5 * min(max(missing, 0), 1)
    return max(1, int(share * width) // 8 * 8)


@torch.inference_mode()
def speeds_of(models: Sequence[PreTrainedModel], batch: Batch, rounds: int = 7) -> list[float]:
    """How many times as fast as the first each model is, in turns: the median over rounds."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    seconds = take_turns([partial(seconds_of, partial(model, **inputs)) for model in models], rounds)
    return np.median(seconds[0] / seconds, axis=1).tolist()


# Training


class Distiller(Trainer):
    """Trains a model to reproduce another one that runs beside it.

    Args:
        original: the teacher.
        rows: what is trained on, texts of like length together.
        kept: for each layer of the model, the layer of the original that it came from.
    """

    def __init__(self, *args, original: PreTrainedModel, kind: Kind, kept: Sequence[int], rows: Rows, **kwargs):
        super().__init__(*args, data_collator=rows.collate, train_dataset=rows.train, **kwargs)
        self.lengths = rows.lengths
        self.original = original.to(self.args.device).eval().requires_grad_(False)
        self.kind = kind
        self.kept = kept
        self.has_labels = rows.has_labels
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset: Dataset | None = None):
        if self.lengths is None:
            return super()._get_train_sampler(train_dataset)
        return LengthGroupedSampler(self.args.train_batch_size, lengths=self.lengths)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.get("labels")
        given = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**given, output_hidden_states=True)
        with torch.no_grad():
            original = self.original(**given, output_hidden_states=True)
        loss = self.kind.distance(self.kind.rows(outputs, inputs), self.kind.rows(original, inputs))
        loss = loss + self.hidden_distance(outputs["hidden_states"], original["hidden_states"], given)
        if self.has_labels and labels is not None and type(self.kind) is Kind:
            loss = loss + F.cross_entropy(outputs["logits"].float(), labels)
        return (loss, outputs) if return_outputs else loss

    def hidden_distance(self, own: Sequence[torch.Tensor], original: Sequence[torch.Tensor], batch: Batch):
        """Mean over layers and tokens of 1 − cosine; hidden_states are those of the embeddings and of every layer."""
        distances = [
            1 - F.cosine_similarity(own[layer + 1].float(), original[kept + 1].float(), dim=-1)
            for layer, kept in enumerate(self.kept)
        ]
        distances = torch.stack(distances).mean(dim=0)  # (B, T)
        mask = batch.get("attention_mask")
        return distances.mean() if mask is None else distances[mask.bool()].mean()


class StopOnInterrupt(TrainerCallback):
    """Ctrl-C saves a checkpoint and ends the training after the step that is running."""

    def __init__(self):
        self.pressed = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.before = signal.signal(signal.SIGINT, self.press)

    def press(self, *_):
        self.pressed = True
        signal.signal(signal.SIGINT, self.before)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save |= self.pressed
        control.should_training_stop |= self.pressed

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGINT, self.before)


def train(
    student: LeanPreTrainedModel,
    original: LeanPreTrainedModel,
    rows: Rows,
    kind: Kind,
    settings: Settings,
    kept: list[int],
) -> bool:
    """Trains the student in place, as long as `minutes` allow; False if it was interrupted.

    What is done lies in OUT.unfinished, from which the same command continues.
    """
    folder = unfinished(settings.output)
    batch_size = 16 if isinstance(kind, MaskedLM | CausalLM) else 64
    plan_file = folder / "training.json"
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=batch_size,
        learning_rate=3e-4 * 384 / max(384, student.config.hidden_size),
        weight_decay=0.01,
        warmup_steps=0.05,
        lr_scheduler_type="linear",
        save_total_limit=1,
        logging_steps=50,
        report_to="none",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        seed=settings.seed,
    )
    if not plan_file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(plan_file, measured_plan(student, original, rows, kind, settings, kept, arguments))
    plan = read_json(plan_file)
    arguments.max_steps = plan["steps"]
    arguments.save_steps = max(10, plan["steps"] // 20)
    arguments.bf16 = plan["bf16"]
    interrupt = StopOnInterrupt()
    trainer = distiller(student, original, rows, kind, kept, arguments, callbacks=[interrupt])
    student.train()
    has_checkpoint = any(folder.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=True if has_checkpoint else None)
    student.eval()
    return not (interrupt.pressed and trainer.state.global_step < plan["steps"])


def distiller(student, original, rows: Rows, kind: Kind, kept: list[int], arguments: TrainingArguments, **options):
    return Distiller(student, arguments, original=original, kind=kind, kept=kept, rows=rows, **options)


def measured_plan(student, original, rows: Rows, kind: Kind, settings: Settings, kept: list[int], arguments) -> dict:
    """How many steps fit into the minutes, and whether bfloat16 is faster on this machine."""
    trainer = distiller(student, original, rows, kind, kept, arguments)
    size = min(arguments.per_device_train_batch_size, len(rows.train))
    batch = trainer._prepare_inputs(rows.collate([rows.train[row] for row in range(size)]))
    student.train()

    def step(bf16: bool) -> None:
        with torch.autocast(arguments.device.type, torch.bfloat16, enabled=bf16):
            loss = trainer.compute_loss(student, batch)
        loss.backward()

    seconds = take_turns([partial(seconds_of, partial(step, bf16)) for bf16 in (False, True)], 3, warm_up=1)
    student.zero_grad()
    in_float32, in_bfloat16 = np.median(seconds, axis=1)
    steps = int(60 * settings.minutes / (1.1 * min(in_float32, in_bfloat16)))
    epochs = 30
    most = math.ceil(epochs * len(rows.train) / arguments.per_device_train_batch_size)
    return {"steps": max(1, min(steps, most)), "bf16": bool(in_bfloat16 < in_float32)}


def unfinished(output: Path) -> Path:
    return output.with_name(output.name + ".unfinished")


# Comparison


@torch.inference_mode()
def compare(
    student: LeanPreTrainedModel, original: LeanPreTrainedModel, rows: Rows, kind: Kind, seed: int
) -> Comparison:
    """Both on the held-out rows, on the CPU."""
    student.cpu()
    original.cpu()
    torch.manual_seed(seed)  # of masked tokens
    batches = [
        rows.collate([rows.held_out[row] for row in range(start, min(start + 32, len(rows.held_out)))])
        for start in range(0, len(rows.held_out), 32)
    ]
    outputs = []
    for model in (original, student):
        model.eval()
        given = [{name: tensor for name, tensor in batch.items() if name != "labels"} for batch in batches]
        outputs.append([kind.answers(model(**inputs), batch) for inputs, batch in zip(given, batches)])
    scored = scored_rows(kind, outputs, batches, rows.has_labels)
    ratios = []
    generator = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        chosen = generator.integers(scored.shape[1], size=scored.shape[1])
        ratios.append(ratio_of(kind, scored[:, chosen]))
    speed = speeds_of([original, student], batches[0])[1]
    first, second = scores_of(kind, scored)
    low, high = np.nanpercentile(ratios, (2.5, 97.5))
    metric = kind.metric if rows.has_labels or kind is ENCODER else "agreement of predictions"
    parameters = (original.num_parameters(), student.num_parameters())
    return Comparison(metric, first, second, float(low), float(high), speed, parameters)


def scored_rows(kind: Kind, outputs: list[list[torch.Tensor]], batches: list[Batch], has_labels: bool) -> np.ndarray:
    """(2, N), of the original and the student: cosines of pairs of embeddings, or 1 if a prediction is right.

    Pairs are all neighbours at distances 1 to 8. Without labels the original's predictions count as right.
    """
    if kind is ENCODER:
        found = []
        for vectors in (F.normalize(torch.cat(own), dim=-1) for own in outputs):
            found.append(torch.cat([(vectors * vectors.roll(step, dims=0)).sum(dim=-1) for step in range(1, 9)]))
        return torch.stack(found).numpy()
    predicted = [torch.cat(own) for own in outputs]
    right = predicted[0]
    if isinstance(kind, CausalLM):
        right = torch.cat([batch["input_ids"].roll(-1, dims=1)[kind.places(batch)] for batch in batches])
    elif has_labels:
        places = [kind.places(batch) for batch in batches]
        right = torch.cat(
            [batch["labels"] if place is None else batch["labels"][place] for batch, place in zip(batches, places)]
        )
    if not (predicted[0] == right).any():  # nothing to keep: the original knows nothing of these rows
        right = predicted[0]
    return np.stack([(own == right).numpy() for own in predicted]).astype(float)


def scores_of(kind: Kind, scored: np.ndarray) -> tuple[float, float]:
    if kind is ENCODER:
        return 1.0, float(stats.spearmanr(scored[0], scored[1]).statistic)
    return float(scored[0].mean()), float(scored[1].mean())


def ratio_of(kind: Kind, scored: np.ndarray) -> float:
    original, own = scores_of(kind, scored)
    return own / original if original else float("nan")


# The command


def run(settings: Settings) -> int:
    """Makes the faster model. Returns the exit status: 0, 3 if it keeps less than `keep`, 130 if it was interrupted.

    Raises:
        ValueError, OSError: one line that names the option, file or model at fault; OUT is whole or absent.
    """
    check(settings)
    set_seed(settings.seed)
    original = load_lean(settings.source).eval()
    kind = kind_of(original, settings.source)
    depth = original.config.num_hidden_layers
    if settings.speedup is not None and settings.speedup > depth:
        raise ValueError(f"--speedup {settings.speedup:g}: a model of {depth} layers cannot be that much faster")
    dtype = original.dtype
    original = original.float()
    if kind is ENCODER:
        check_pooling(settings.source, files_of(settings.source))
    others = sentence_transformers_files(settings.source)
    processors = load_processors(settings.source)
    check_vocabulary(settings.source, processors, getattr(original.config, "vocab_size", None))
    if not processors:
        raise ValueError(f"{settings.source}: no tokenizer or image processor")
    rows, contents = read_rows(settings, original, processors[0], kind)
    slimmed = slimmed_again(settings, original) or choose(settings, original, processors[0], contents)
    student = slimmed.model
    kept = next((cut.after for cut in slimmed.cuts if cut.part == "layers"), range(student.config.num_hidden_layers))
    if settings.training and not train(student, original, rows, kind, settings, list(kept)):
        print(f"interrupted; the same command continues from {unfinished(settings.output)}", file=sys.stderr)
        return 130
    comparison = compare(student, original, rows, kind, settings.seed)
    write(settings, student.to(dtype), slimmed, comparison, processors, others)
    shutil.rmtree(unfinished(settings.output), ignore_errors=True)
    report(settings, kind, slimmed, comparison)
    if settings.keep is not None and comparison.kept < settings.keep:
        print(f"below --keep {settings.keep:g}: try a smaller --speedup, more --minutes or more rows", file=sys.stderr)
        return BELOW_KEEP
    return 0


def check_pooling(source: str, files: set[str]) -> None:
    """Raises ValueError where sentence-transformers' files, if there are any, ask for other pooling than the mean."""
    if "modules.json" not in files:
        return
    kinds = [module["type"].rpartition(".")[2] for module in read_source_json(source, "modules.json")]
    for kind in kinds:
        if kind not in MODULES:
            raise ValueError(f"{source}: modules.json: {kind}; expected no modules but {', '.join(MODULES)}")
    if POOLING not in files:
        return
    pooling = read_source_json(source, POOLING)
    modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
    mode = pooling.get("pooling_mode", "mean")
    if (modes and modes != [MEAN]) or mode not in ("mean", ["mean"]):
        raise ValueError(f"{source}: {POOLING}: {', '.join(modes) or mode}; expected {MEAN} alone")


def check(settings: Settings) -> None:
    """Raises ValueError for settings that cannot work, before anything slow."""
    shapes = ("speedup", "layers", "keep_layers", "heads", "total_heads", "intermediate_size")
    if all(getattr(settings, name) is None for name in shapes):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in shapes)
        raise ValueError(f"nothing to remove; give one of {options}")
    if settings.speedup is not None and settings.speedup <= 1:
        raise ValueError(f"--speedup {settings.speedup:g}: expected more than 1")
    if settings.speedup is not None and (settings.layers or settings.keep_layers):
        raise ValueError("--speedup chooses the layers; leave --layers and --keep-layers out")
    if not settings.data:
        raise ValueError("--data: missing; give files with texts or images like those that the model will read")
    if settings.output.exists():
        raise FileExistsError(f"{settings.output} exists already")


def choose(settings: Settings, original: LeanPreTrainedModel, processor: object, contents: list) -> Slimmed:
    """The cut that reaches the target and changes the output least."""
    choosing, measured = calibration.halves(contents)
    batches = [
        calibration.make_batches(original, processor, half, settings.max_length) for half in (choosing, measured)
    ]
    target = shape_for(original, settings, batches[0][0])
    check_target(original, target)
    slimmed = slim(original, target, *batches, progress_bar)
    if settings.training:
        unfinished(settings.output).mkdir(parents=True, exist_ok=True)
        record = {
            "settings": comparable(settings),
            "target": asdict(target),
            "cuts": [asdict(cut) for cut in slimmed.cuts],
        }
        slimmed.model.save_pretrained(unfinished(settings.output) / "start")
        write_json(unfinished(settings.output) / RECORD, record)
    return slimmed


def comparable(settings: Settings) -> dict:
    """The settings that an interrupted command and the one that continues it must share."""
    return json.loads(json.dumps(asdict(settings), default=str))


def slimmed_again(settings: Settings, original: LeanPreTrainedModel) -> Slimmed | None:
    """The cut of an interrupted command, if there is one.

    Raises:
        ValueError: it was started with other settings.
    """
    folder = unfinished(settings.output)
    if not (folder / RECORD).is_file():
        return None
    record = read_json(folder / RECORD)
    if record["settings"] != comparable(settings):
        raise ValueError(f"{folder} was started with other options; repeat those, or delete it")
    model = type(original).from_pretrained(folder / "start").eval()
    return Slimmed(model, [Cut(**cut) for cut in record["cuts"]])


def write(
    settings: Settings,
    student: LeanPreTrainedModel,
    slimmed: Slimmed,
    comparison: Comparison,
    processors: list,
    others: dict[str, Path],
) -> None:
    """The folder: transformers' own class if it can hold the shape, else this family's; tokenizer, card, numbers."""
    model = student
    if not settings.lean:
        try:
            model = convert(student)
        except ConversionError as error:
            print(f"written as {type(student).__name__}, which needs this package: {error}", file=sys.stderr)
    record = {
        "parent": settings.parent,
        "parent_weights_sha256": weights_sha256(settings.source),
        "command": shlex.join(["leaner", *sys.argv[1:]]),
        "comparison": asdict(comparison),
        "cuts": [asdict(cut) for cut in slimmed.cuts],
    }
    with whole_folder(settings.output) as folder:
        for part in (model, *processors):
            part.save_pretrained(folder)
        copy_into(folder, others)
        write_json(folder / RECORD, record)
        card = Template(CARD.read_text(), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        is_encoder = "modules.json" in others
        text = card.render(settings=settings, record=record, comparison=comparison, model=model, is_encoder=is_encoder)
        (folder / "README.md").write_text(text)


def report(settings: Settings, kind: Kind, slimmed: Slimmed, comparison: Comparison) -> None:
    """One table, and the next command."""
    table = Table(box=None)
    for name in ("", "original", "result", ""):
        table.add_column(name, justify="right" if name else "left")
    before, after = comparison.parameters
    table.add_row("parameters", f"{before / 1e6:.1f}M", f"{after / 1e6:.1f}M", f"{after / before:.0%}")
    for cut in slimmed.cuts:
        table.add_row(cut.part, str(cut.before), str(cut.after))
    table.add_row("speed", "1.00 ×", f"{comparison.speedup:.2f} ×")
    kept = f"{comparison.kept:.1%} ({comparison.low:.1%} to {comparison.high:.1%})"
    table.add_row(comparison.metric, f"{comparison.original:.4f}", f"{comparison.result:.4f}", kept)
    plain_console(width=110).print(table)
    print(f"{settings.output}: a {kind.name}. Next: leaner export onnx {settings.output} {settings.output}-onnx")
