"""`leaner slim MODEL OUT --speedup 2 --data TEXTS`: a faster model from a trained one.

It times the model on this machine, chooses how many layers reach the speed, removes those that matter least, trains
what is left to reproduce the original, compares both on rows that chose nothing, and writes an ordinary folder.

The kind of the model is read from its files, and the loss follows from it:

- sentence encoder: 1 − cosine to the original's embedding;
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
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset, Features, Image, Value
from jinja2 import Template
from rich.table import Table
from scipy import stats
from torch.nn import functional as F
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from modeling_leaner.conversion import ConversionError, convert, load_lean, save_converted
from modeling_leaner.files import read_json, whole_folder, write_json
from modeling_leaner.hub import (
    RECORD,
    copy_into,
    license_of,
    load_processors,
    local_folder,
    pooling_of,
    sentence_transformers_files,
    weights_sha256,
)
from modeling_leaner.layers_leaner import LeanPreTrainedModel
from modeling_leaner.models import Pool, mean_over_tokens, seconds_of, take_turns, with_channels
from modeling_leaner.slimming import measures, operations
from modeling_leaner.slimming.measures import Batch
from modeling_leaner.slimming.slim import Cut, Slimmed, Target, check_target, slim
from modeling_leaner.slimming.vocabulary import keep_tokens
from modeling_leaner.terminal import plain_console

from .data.sources import decoded_image, find_column, find_text_column, is_dataset, load_split
from .publishing.folders import is_encoder
from .records import RESULTS
from .running.trainer import Interruption
from .tasks.distillation import divergence, states_distance


CALIBRATION_ROWS = 256
HELD_OUT_ROWS = 1_000
LEAST_ROWS = 32
TEMPERATURE = 2.0
SEED = 0
EPOCHS = 30  # at most, however many minutes there are
RESAMPLES = 1_000
TOLERANCE = 0.85  # of the speed-up that layers must reach; narrower MLPs make up the rest
REACHED = (0.9, 1.2)  # of the speed-up that counts as reached
BELOW_KEEP = 3  # exit status if the model keeps less than `--keep`
CARD = Path(__file__).with_name("slim_card.md")


class Settings(SimpleNamespace):
    """The options of `leaner slim`, as the command declares them; `base_model` is the Hub id of the original."""

    @property
    def unfinished(self) -> Path:
        """What is done so far, from which the same command continues."""
        return self.output.with_name(f"{self.output.name}.unfinished")


# Kinds


@dataclass(frozen=True)
class Kind:
    """What a model is for.

    Attributes:
        places: which of its outputs count, (B, T); without it there is one for each row.
        takes_labels: whether it may learn from classes of whole rows, too.
        pool: of a sentence encoder: embeddings (B, D) from states (B, T, D) and mask.
    """

    name: str
    metric: str
    places: Callable[[Batch], torch.Tensor] | None = None
    is_language_model: bool = False
    takes_labels: bool = False
    pool: Pool | None = None

    def compared(self, outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """What is compared: embeddings, (rows, D), or logits, (rows, C)."""
        if self.pool:
            return self.pool(outputs["last_hidden_state"].float(), batch.get("attention_mask"))
        return outputs["logits"] if self.places is None else outputs["logits"][self.places(batch)]


ENCODER = Kind("sentence encoder", "agreement with the original's similarities (Spearman)", pool=mean_over_tokens)
MASKED = Kind("masked language model", "accuracy of masked tokens", lambda batch: batch["labels"] != -100, True)
CAUSAL = Kind(
    "causal language model",
    "accuracy of next tokens",
    lambda batch: (batch["attention_mask"] & F.pad(batch["attention_mask"][:, 1:], (0, 1))).bool(),  # not the last
    is_language_model=True,
)
KINDS = {
    "ForSequenceClassification": Kind("sequence classifier", "accuracy", takes_labels=True),
    "ForImageClassification": Kind("image classifier", "accuracy", takes_labels=True),
    "ForTokenClassification": Kind("token classifier", "accuracy", lambda batch: batch["attention_mask"].bool()),
    "ForMaskedLM": MASKED,
    "ForCausalLM": CAUSAL,
}


def kind_of(model: LeanPreTrainedModel, source: str) -> Kind:
    """The kind of a model by its class. Raises ValueError for one that cannot be trained from its original."""
    if model.base_model is model and model.main_input_name == "input_ids":
        return replace(ENCODER, pool=pooling_of(source))
    name = type(model).__name__
    for end, kind in KINDS.items():
        if name.endswith(end) and (kind.is_language_model or model.config.num_labels > 1):  # one label: a regression
            return kind
    kinds = ", ".join([ENCODER.name, *(kind.name for kind in KINDS.values())])
    raise ValueError(f"{source}: {name} cannot be made faster; expected a {kinds}, of two classes or more")


# Rows


@dataclass(frozen=True)
class Rows:
    """Rows to train on and others to compare on, as a Trainer takes them; texts become tokens when they are read.

    `lengths` are those of the texts to train on, in characters; None for images. `contents` are texts or images
    used to choose what to remove.
    """

    train: Dataset
    held_out: Dataset
    collate: Callable[[list[dict]], Batch]
    has_labels: bool
    contents: list
    lengths: list[int] | None


def rows_with_content(
    data: Sequence[str], column: str | None, model: LeanPreTrainedModel, by_line: bool = False, least: int = 1
) -> tuple[Dataset, str]:
    """The rows of files or of a dataset that have a text or an undecoded image, and the column that holds it.

    Raises ValueError if there are fewer than `least`, no such column, or several that may be meant.
    """
    is_one = len(data) == 1 and is_dataset(data[0])
    rows = load_split(data[0], "train") if is_one else load_split(None, "train", data_files=list(data))
    if model.main_input_name == "pixel_values":
        images = [name for name, kind in rows.features.items() if isinstance(kind, Image)]
        column = find_column(rows, column, "--column", images)
        if column in images:
            rows = rows.cast_column(column, Image(decode=False))  # as files hold them, for `decoded_image`
    else:
        column = find_text_column(rows, column, "--column")
    if by_line:
        rows = rows.select_columns(column).map(
            lambda batch: {
                column: [line for text in batch[column] for line in (text or "").splitlines() if line.strip()]
            },
            batched=True,
        )
    else:
        before = len(rows)
        rows = rows.filter(lambda row: row[column] not in (None, ""))
        if len(rows) < before:
            print(f"{before - len(rows):,} rows without content are left out", file=sys.stderr)
    if len(rows) < least:
        hint = "" if by_line or not data[0].endswith(".txt") else " (blank lines part them)"
        raise ValueError(f"--data: {len(rows)} rows with content in {column}; expected at least {least}{hint}")
    return rows, column


def read_rows(settings: Settings, model: LeanPreTrainedModel, processor: object, kind: Kind) -> Rows:
    """The rows of `--data`. Raises ValueError for too few rows, no such column, or a label that is no class."""
    label = settings.label_column
    if label is not None and not kind.takes_labels:
        raise ValueError(f"--label-column: a {kind.name} takes no labels")
    # By line, for an encoder would read only the beginning of an article.
    by_line = bool(kind.pool) or not kind.is_language_model and all(file.endswith(".txt") for file in settings.data)
    rows, column = rows_with_content(settings.data, settings.column, model, by_line, LEAST_ROWS)
    if label is not None:
        find_column(rows, label, "--label-column", [])
        names = model.config.id2label
        numbers = {name: number for number, name in names.items()} | {number: number for number in names}
        found = rows.select_columns(label).unique(label)
        unknown = [value for value in found if isinstance(value, float) or value not in numbers]
        if unknown:
            known = f"0.., or one of {', '.join(map(str, names.values()))}"
            raise ValueError(f"--label-column: expected {known}; got {unknown[0]!r:.40}")
        features = Features(rows.features | {label: Value("int64")})  # which a column of texts would not become
        rows = rows.map(lambda row: {label: numbers[row[label]]}, features=features)

    rows = rows.shuffle(seed=SEED)
    held_out = min(HELD_OUT_ROWS, len(rows) // 5)
    values = rows.select(range(held_out, len(rows)))[column]
    contents = [decoded_image(value, f"--data: {column}") for value in values[:CALIBRATION_ROWS]]
    if model.main_input_name == "pixel_values":
        lengths = None
        prepared = rows.select_columns([name for name in (column, label) if name])

        def collate(batch: list[dict]) -> Batch:
            images = [decoded_image(row[column], f"--data: {column}") for row in batch]
            images = [with_channels(image, model.config.num_channels) for image in images]
            labels = {"labels": torch.tensor([row[label] for row in batch])} if label else {}
            return {**processor(images, return_tensors="pt"), **labels}

    else:
        tokenizer = measures.padding_tokenizer(processor)
        length = min(settings.max_length, model.config.max_position_embeddings)

        def tokenise(batch: dict) -> dict:
            found = tokenizer(batch[column], truncation=True, max_length=length, return_token_type_ids=False)
            return {**found, "labels": batch[label]} if label else dict(found)

        prepared = rows.with_transform(tokenise)
        lengths = list(map(len, values[:]))  # at once: row by row, 100,000 texts take seconds
        masking = partial(DataCollatorForLanguageModeling, mlm_probability=0.15)
        collate = (masking if kind is MASKED else DataCollatorWithPadding)(tokenizer)

    train, compared = prepared.select(range(held_out, len(prepared))), prepared.select(range(held_out))
    few = "; thousands would give a better model" if len(train) < 1_000 else ""
    print(f"column {column}: {len(train):,} rows to train on, {held_out:,} to compare on{few}", file=sys.stderr)
    return Rows(train, compared, collate, label is not None or kind.is_language_model, contents, lengths)


# Shape


def shape_for(model: LeanPreTrainedModel, target: Target, speedup: float | None, batch: Batch) -> Target:
    """The target, with as many layers as reach the speed-up on this machine; narrower MLPs make up the rest."""
    if speedup is None:
        return target
    depth = model.config.num_hidden_layers
    cuts = [model, *(operations.keep_layers(model, range(count)) for count in range(depth - 1, 0, -1))]
    speeds = speeds_of(cuts, batch)
    enough = [number for number, speed in enumerate(speeds) if speed >= TOLERANCE * speedup]
    if not enough:
        reached = f"{speeds[-1]:.1f}, which 1 of {depth} layers reaches"
        raise ValueError(f"--speedup {speedup:g}: expected at most {reached}")
    cut = cuts[enough[0]]
    target = replace(target, layers=depth - enough[0])
    if target.intermediate_size is not None or speeds[enough[0]] >= speedup:
        return target
    width = cut.config.intermediate_size
    half = operations.keep_neurons(cut, [list(range(width // 2))] * cut.config.num_hidden_layers)
    _, whole, narrow = (1 / speed for speed in speeds_of([model, cut, half], batch))
    missing = (whole - 1 / speedup) / max(whole - narrow, 1e-9)  # in halves of the MLPs
    share = 1 - 0.5 * min(max(missing, 0), 1)
    return replace(target, intermediate_size=max(1, int(share * width) // 8 * 8))


@torch.inference_mode()
def speeds_of(models: Sequence[PreTrainedModel], batch: Batch) -> list[float]:
    """How many times as fast as the first each model is: the median of paired rounds, fewer if they take long."""
    steps = [partial(seconds_of, partial(model, **batch)) for model in models]
    seconds = take_turns(steps, rounds=30, limit=5)
    return np.median(seconds[0] / seconds, axis=1).tolist()


def choose(
    settings: Settings, target: Target, original: LeanPreTrainedModel, kind: Kind, processor: object, contents: list
) -> Slimmed:
    """The cut that reaches the target and changes the output least; or that of an interrupted command."""
    folder = settings.unfinished
    options = json.loads(json.dumps(vars(settings), default=str))
    for name in ("keep", "base_model", "license"):  # these change nothing before the comparison
        del options[name]
    if (folder / RECORD).is_file():
        record = read_json(folder / RECORD)
        others = [name for name, value in options.items() if record["settings"].get(name) != value]
        if others:
            others = ", ".join(f"--{name.replace('_', '-')}" for name in others)
            raise ValueError(f"{folder} was started with another {others}; repeat that, or delete it")
        return Slimmed(load_lean(str(folder / "start")).eval(), [Cut(**cut) for cut in record["cuts"]])
    halves = (contents[0::2], contents[1::2])  # the first half chooses what to remove
    batches = [measures.make_batches(original, processor, half, settings.max_length) for half in halves]
    target = shape_for(original, target, settings.speedup, batches[0][0])
    slimmed = slim(original, target, *batches, pool=kind.pool or mean_over_tokens)
    if not settings.no_training:
        slimmed.model.save_pretrained(folder / "start")
        write_json(folder / RECORD, {"settings": options, "cuts": [asdict(cut) for cut in slimmed.cuts]})
    return slimmed


# Training


@dataclass(frozen=True)
class Pair:
    """A student, the original that it reproduces, and rows of both; `kept` says which layer each of its layers was."""

    student: LeanPreTrainedModel
    original: LeanPreTrainedModel
    kind: Kind
    rows: Rows
    kept: list[int]


class Distiller(Trainer):
    """Trains the student of a pair; texts of like length come together."""

    def __init__(self, pair: Pair, arguments: TrainingArguments, **options):
        rows = pair.rows
        super().__init__(pair.student, arguments, data_collator=rows.collate, train_dataset=rows.train, **options)
        self.pair = pair
        self.original = pair.original.to(self.args.device).eval().requires_grad_(False)
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset: Dataset | None = None):
        if self.pair.rows.lengths is None:
            return super()._get_train_sampler(train_dataset)
        return LengthGroupedSampler(self.args.train_batch_size, lengths=self.pair.rows.lengths)

    def log(self, logs, start_time=None):
        """Nothing: the table at the end says what came out."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        kind = self.pair.kind
        given = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        outputs = model(**given, output_hidden_states=True)
        with torch.no_grad():
            original = self.original(**given, output_hidden_states=True)
        own, wanted = kind.compared(outputs, inputs), kind.compared(original, inputs)
        if kind.pool:
            losses = [(1 - F.cosine_similarity(own, wanted, dim=-1)).mean()]
        else:
            losses = [divergence(wanted, own, TEMPERATURE)]
        states = original["hidden_states"], outputs["hidden_states"]
        losses.append(states_distance(*states, self.pair.kept, given.get("attention_mask")))
        if kind.takes_labels and "labels" in inputs:
            losses.append(F.cross_entropy(outputs["logits"].float(), inputs["labels"]))
        return sum(losses)


def train(pair: Pair, settings: Settings) -> dict[str, int]:
    """Trains the student in place, for as many steps as were planned for `minutes`; returns steps and their rows.

    Raises KeyboardInterrupt if it was interrupted; what it had learned is saved.
    """
    folder = settings.unfinished
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16 if pair.kind.is_language_model else 64,
        "learning_rate": 3e-4 * 384 / max(384, pair.student.config.hidden_size),
        "weight_decay": 0.01,
        "warmup_steps": 0.05,
        "lr_scheduler_type": "linear",
        "save_total_limit": 1,
        "disable_tqdm": False,  # a bar with the time that is left
        "report_to": "none",
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        "seed": SEED,
        "use_cpu": not torch.accelerator.is_available(),  # without it a CPU is refused bfloat16
    }
    plan_file = folder / "training.json"
    if not plan_file.is_file():
        print("timing steps of the training", file=sys.stderr)
        write_json(plan_file, measured_plan(pair, settings.minutes, TrainingArguments(**options)))
    plan = read_json(plan_file)
    few = "; too few to learn much, give more --minutes" if plan["steps"] < 200 else ""
    size = options["per_device_train_batch_size"]
    print(f"training for about {settings.minutes:g} min: {plan['steps']:,} steps of {size} rows{few}", file=sys.stderr)
    save_steps = max(10, plan["steps"] // 20)
    arguments = TrainingArguments(**options, max_steps=plan["steps"], save_steps=save_steps, bf16=plan["bf16"])
    interruption = Interruption()
    trainer = Distiller(pair, arguments, callbacks=[interruption])
    pair.student.train()
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    trainer.accelerator.unwrap_model(pair.student, keep_fp32_wrapper=False).eval()  # without its autocast to bfloat16
    if interruption.pressed and trainer.state.global_step < plan["steps"]:
        raise KeyboardInterrupt
    return {"steps": plan["steps"], "rows_per_step": size}


def measured_plan(pair: Pair, minutes: float, arguments: TrainingArguments) -> dict:
    """How many steps fit into the minutes, by steps on short, middling and long texts, and whether in bfloat16."""
    trainer = Distiller(pair, arguments)
    size = arguments.per_device_train_batch_size
    rows, lengths = pair.rows.train, pair.rows.lengths
    order = range(len(rows)) if lengths is None else np.argsort(lengths).tolist()
    starts = np.linspace(0, max(0, len(rows) - size), 7, dtype=int)[1::2]
    batches = [pair.rows.collate([rows[row] for row in order[start : start + size]]) for start in starts]

    # By products of matrices, and a step does more: a CPU that only emulates bfloat16 takes many times as long.
    matrices = [torch.ones(512, 512, dtype=each, device=arguments.device) for each in (torch.float32, torch.bfloat16)]
    seconds = take_turns([partial(seconds_of, partial(torch.mm, each, each)) for each in matrices], 3, warm_up=1)
    in_float32, in_bfloat16 = np.median(seconds, axis=1)
    bf16 = bool(in_bfloat16 < 0.7 * in_float32)
    pair.student.train()

    def step(batch: Batch) -> None:
        with torch.autocast(arguments.device.type, torch.bfloat16, enabled=bf16):
            loss = trainer.compute_loss(pair.student, trainer._prepare_inputs(batch))
        loss.backward()

    seconds = take_turns([partial(seconds_of, partial(step, batch)) for batch in batches], 2, warm_up=1)
    pair.student.zero_grad()
    steps = int(60 * minutes / (1.1 * seconds.mean()))
    most = math.ceil(EPOCHS * len(rows) / size)
    return {"steps": max(1, min(steps, most)), "bf16": bf16}


# Comparison


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


@torch.inference_mode()
def compare(pair: Pair) -> Comparison:
    """Both on the held-out rows, on the CPU."""
    kind, rows = pair.kind, pair.rows
    models = [model.cpu().eval() for model in (pair.original, pair.student)]
    torch.manual_seed(SEED)  # of masked tokens
    batches = [
        rows.collate([rows.held_out[row] for row in range(start, min(start + 32, len(rows.held_out)))])
        for start in range(0, len(rows.held_out), 32)
    ]
    inputs = [{name: tensor for name, tensor in batch.items() if name != "labels"} for batch in batches]
    answers = []  # of each model: embeddings, or the predicted classes or tokens, (rows)
    for model in models:
        compared = (kind.compared(model(**given), batch) for given, batch in zip(inputs, batches))
        answers.append(torch.cat([each if kind.pool else each.argmax(dim=-1) for each in compared]))
    places = [slice(None) if kind.places is None else kind.places(batch) for batch in batches]
    metric = kind.metric
    if kind.pool:  # cosines of neighbours at distances 1 to 8, each pair once
        vectors = F.normalize(torch.stack(answers), dim=-1)  # (2, rows, D)
        steps = range(1, 1 + min(8, (vectors.shape[1] - 1) // 2))
        cosines = [(vectors * vectors.roll(step, dims=1)).sum(dim=-1) for step in steps]
        scored = torch.cat(cosines, dim=1).numpy()
    else:
        right = answers[0]
        if rows.has_labels:  # a text is its own
            labels = [batch["input_ids"].roll(-1, dims=1) if kind is CAUSAL else batch["labels"] for batch in batches]
            right = torch.cat([each[where] for each, where in zip(labels, places)])
        if not rows.has_labels or not (answers[0] == right).any():  # there is nothing to keep of the original
            right, metric = answers[0], "agreement of predictions"
            if (right == right[0]).all():
                print("the original predicts the same for all rows, so agreement says little", file=sys.stderr)
        scored = np.stack([(own == right).numpy() for own in answers]).astype(float)

    count = len(rows.held_out)
    if kind.places is None:
        row_of = np.arange(scored.shape[1]) % count  # of a pair its first
    else:
        row_of = np.repeat(np.arange(count), torch.cat([each.sum(dim=1) for each in places]))
    parameters = (pair.original.num_parameters(), pair.student.num_parameters())
    speedup = speeds_of(models, inputs[0])[1]
    return Comparison(metric, *scores(kind, scored), *interval_of(kind, scored, row_of), speedup, parameters)


def interval_of(kind: Kind, scored: np.ndarray, row_of: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the share that is kept, by a bootstrap over rows.

    Args:
        scored: of the original and of the result, (2, N).
        row_of: the row of each score, (N); the scores of a row are drawn together, for they depend on each other.
    """
    generator = np.random.default_rng(0)
    count = row_of.max() + 1
    ratios = []
    for _ in range(RESAMPLES):
        drawn = np.bincount(generator.integers(count, size=count), minlength=count)
        first, second = scores(kind, scored[:, np.repeat(np.arange(len(row_of)), drawn[row_of])])
        ratios.append(second / first if first else math.nan)
    return tuple(map(float, np.nanpercentile(ratios, (2.5, 97.5))))


def scores(kind: Kind, scored: np.ndarray) -> tuple[float, float]:
    """Of the original and of the student."""
    if kind.pool:
        return 1.0, float(stats.spearmanr(scored[0], scored[1]).statistic)
    return float(scored[0].mean()), float(scored[1].mean())


# The command


def run(settings: Settings) -> int:
    """Makes the faster model, whole or not at all; the exit status: 0 or `BELOW_KEEP`."""
    set_seed(SEED)
    settings.license = settings.license or license_of(settings.source)
    original = load_lean(settings.source).eval()
    processors = load_processors(settings.source, getattr(original.config, "vocab_size", None))
    if not processors:
        raise ValueError(f"{settings.source}: no tokenizer or image processor")
    files = sentence_transformers_files(settings.source)
    if settings.vocab_size is not None:
        return cut_vocabulary(settings, original, processors[0], files)
    kind = kind_of(original, settings.source)
    dtype = original.dtype
    original = original.float()
    target = Target(
        settings.layers, settings.keep_layers, settings.heads, settings.total_heads, settings.intermediate_size
    )
    check_target(original, target)
    rows = read_rows(settings, original, processors[0], kind)
    print("choosing what to remove", file=sys.stderr)
    slimmed = choose(settings, target, original, kind, processors[0], rows.contents)
    student = slimmed.model
    for cut in slimmed.cuts:
        print(f"{cut.part}: {cut.before} → {cut.after}", file=sys.stderr)
    kept = next((cut.after for cut in slimmed.cuts if cut.part == "layers"), range(student.config.num_hidden_layers))
    pair = Pair(student, original, kind, rows, list(kept))
    training = None if settings.no_training else train(pair, settings)
    print(f"comparing on {len(rows.held_out):,} rows", file=sys.stderr)
    comparison = compare(pair)
    record = {
        "parent_weights_sha256": weights_sha256(settings.source),
        "comparison": asdict(comparison),
        "cuts": [asdict(cut) for cut in slimmed.cuts],
        "distillation": training,
    }
    write(settings, student.to(dtype), processors, files, record, comparison)
    shutil.rmtree(settings.unfinished, ignore_errors=True)
    report(settings, kind, slimmed, comparison)
    if settings.keep is not None and comparison.kept < settings.keep:
        below = f"{comparison.kept:.1%} is below --keep {settings.keep:g}"
        print(f"{below}: remove less, or give more --minutes or more rows", file=sys.stderr)
        return BELOW_KEEP
    return 0


def cut_vocabulary(
    settings: Settings, original: LeanPreTrainedModel, tokenizer: object, files: dict[str, Path]
) -> int:
    """Writes the model with fewer tokens and otherwise the same weights; returns 0."""
    rows, column = rows_with_content(settings.data, settings.column, original)
    model, smaller = keep_tokens(original, tokenizer, rows[column], settings.vocab_size)
    source = local_folder(settings.source)
    record = read_json(source / RECORD) if (source / RECORD).is_file() else {}
    history = {"cuts": record.get("cuts", [])}
    if is_encoder(source):  # for `leaner publish`
        published = read_json(source / RESULTS)
        history = {name: published[name] for name in ("base_model", "cuts", "training", "commands")}
    cut = {"part": "vocab_size", "before": len(tokenizer), "after": len(smaller)}
    write(settings, model, [smaller], files, history | {"cuts": [*history["cuts"], cut]})
    before, after = (each.num_parameters() for each in (original, model))
    tokens = f"{len(smaller):,} of {len(tokenizer):,} tokens"
    print(f"{settings.output}: {tokens}, {after / 1e6:.1f}M of {before / 1e6:.1f}M parameters")
    return 0


def write(
    settings: Settings,
    model: LeanPreTrainedModel,
    processors: list,
    files: dict[str, Path],
    record: dict,
    comparison: Comparison | None = None,
) -> None:
    """The folder: the model, of transformers' own class if that can hold the shape, tokenizer, numbers, and a card."""
    try:
        model = model if settings.lean else convert(model)
    except ConversionError as error:
        print(f"written as {type(model).__name__}, which needs trust_remote_code: {error}", file=sys.stderr)
    parent = settings.base_model or Path(settings.source).resolve().name
    record = {"parent": parent, "command": shlex.join(["leaner", *sys.argv[1:]]), **record}
    with whole_folder(settings.output) as folder:
        save_converted(model, folder, settings.source)
        for processor in processors:
            processor.save_pretrained(folder)
        copy_into(folder, files)
        write_json(folder / RECORD, record)
        card = Template(CARD.read_text("utf-8"), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        facts = {"settings": settings, "record": record, "comparison": comparison, "model": model}
        text = card.render(**facts, is_encoder="modules.json" in files)
        (folder / "README.md").write_text(text, encoding="utf-8")


def report(settings: Settings, kind: Kind, slimmed: Slimmed, comparison: Comparison) -> None:
    """One table, and the next command."""
    table = Table(box=None)
    for name in ("", "original", "result", ""):
        table.add_column(name, justify="right" if name else "left")
    before, after = comparison.parameters
    table.add_row("parameters", f"{before / 1e6:.1f}M", f"{after / 1e6:.1f}M", f"{after / before:.0%}")
    for cut in slimmed.cuts:
        table.add_row(cut.part, str(cut.before), str(cut.after))
    asked = f"{settings.speedup:g} × asked for" if settings.speedup else ""
    table.add_row("speed", "1.00 ×", f"{comparison.speedup:.2f} ×", asked)
    kept = f"{comparison.kept:.1%} ({comparison.low:.1%} to {comparison.high:.1%})"
    table.add_row(comparison.metric, f"{comparison.original:.4f}", f"{comparison.result:.4f}", kept)
    plain_console(width=110).print(table)
    if settings.speedup is not None and not REACHED[0] <= comparison.speedup / settings.speedup <= REACHED[1]:
        than = "slower" if comparison.speedup < settings.speedup else "faster"
        print(f"{than} than the --speedup asked for, or timed on a busy machine; --layers sets the number of layers")
    out = settings.output
    score = ""
    if kind.pool:
        print("Test scores usually fall less than this agreement.")
        score = f"leaner evaluate {settings.source} {out} --task embedding --data stsb, then "
    elif kind.takes_labels or kind.is_language_model:
        (*files, last) = settings.data
        data = f"--dataset {last}" if not files and is_dataset(last) else "--data validation=FILE"
        if kind is KINDS["ForSequenceClassification"]:
            data += " --truncation true"  # as in the training
        score = f"leaner evaluate {out} {data}, then "
    print(f"{out}: {kind.name}. Next: {score}leaner export onnx {out} {out}-onnx")
