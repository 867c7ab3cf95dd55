"""The settings of a run: every key with its default, its line of the help and its bounds; recipes; command lines.

Defaults < recipe < command line. A recipe is a flat YAML file of `RecipeArguments` fields; it never names a shape, so
that a baseline and its lean twin are trained by the very same file.
"""

import argparse
import copy
import json
import math
import os
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer_utils import HubStrategy

from modeling_leaner.terminal import did_you_mean

from .reading import given_options, read_recipe


METRICS = {  # of each task; the first counts if none is named. Checked before the tasks are imported
    "image-classification": ("accuracy", "f1", "matthews_correlation", "loss"),
    "masked-lm": ("loss", "perplexity", "accuracy"),
    "causal-lm": ("loss", "perplexity", "bits_per_byte", "accuracy"),
    "sequence-classification": tuple("accuracy f1 matthews_correlation pearson spearman squared_error loss".split()),
    "question-answering": ("f1", "exact_match", "loss"),
    "embedding": ("cosine", "spearman", "mrr", "loss"),
}
TASK_NAMES = tuple(METRICS)
LANGUAGE_MODELLING = ("masked-lm", "causal-lm")
OF_TEXT = (
    "tokenizer max_length truncation text_column text_pair_column doc_stride mask_fraction whole_word_masking "
    "split_sentences"
).split()
OF_IMAGES = ("image_column", "train_resize", "crop_padding", "horizontal_flip", "mixup_alpha")
OF_TRAINING = (  # what evaluation does not read
    "learning_rate weight_decay warmup_steps lr_scheduler_type lr_scheduler_kwargs optim max_grad_norm max_steps "
    "num_train_epochs per_device_train_batch_size gradient_accumulation_steps dropout initializer_range ema_decay "
    "early_stopping_patience checkpoint_steps save_strategy save_steps save_total_limit resume restart "
    "inspect inspect_steps"
).split()
OF_TEACHER = (
    "distill_task distill_logits distill_hidden distill_temperature distill_top_k distill_layers vector_loss".split()
)
NOT_IN_RECIPES = (
    "shape resume restart output_dir resume_from_checkpoint do_train do_eval do_predict "
    "push_to_hub hub_model_id hub_strategy hub_private_repo hub_always_push hub_revision"
).split()


def option(default: object, help: str) -> typing.Any:
    """A key with its default and its line of the help."""
    return field(default=default, metadata={"help": help})


@dataclass
class RecipeArguments(TrainingArguments):
    """transformers' TrainingArguments, with the task, its data and objective; defaults that a pair is trained with.

    The order of the fields is that of the help, whose headings are `GROUPS`.
    """

    # The run
    shape: str | None = option(None, "named shape (vit/lean-tiny), folder, config file or Hub id")
    resume: bool = option(False, "continue the run in output_dir from its last whole checkpoint")
    restart: bool = option(False, "with resume: begin again where every checkpoint is damaged")
    hardware: Literal["auto", "cpu", "gpu"] = option("auto", "auto takes a GPU where there is one")
    task: Literal[TASK_NAMES] | None = option(None, f"one of {', '.join(TASK_NAMES)}")
    metric: str | None = option(None, "the metric that counts [default: the task's]")

    # Data
    dataset: str | None = option(None, "Hub id, or a built-in set: digits, python-docs, listops, listops-short")
    dataset_config: str | None = option(None, "configuration of the Hub dataset, such as GLUE's sst2")
    data_files: list[str] = field(
        default_factory=list,
        metadata={"help": "local data in place of the Hub's: a folder, or split=FILE (parquet, json, csv, text)"},
    )
    streaming: bool = option(False, "read the Hub dataset as a stream; needs max_steps")
    train_split: str = option("train", "split to train on; slices such as train[:90%%] are allowed")
    eval_split: str = option("validation", "split to evaluate on; none for no evaluation")
    holdout: int = option(0, "evaluate on this many rows taken out of the training split instead of eval_split")
    tuning_holdout: int = option(0, "evaluate on other rows taken out of the training split, to choose settings by")
    max_train_rows: int | None = option(None, "use only the first rows of the training split")
    max_eval_rows: int | None = option(None, "use only the first rows of the evaluation split")
    test_trees: int | None = option(None, "listops, listops-short: expressions to test on [default: 2,000]")
    preprocessing_workers: int | None = option(None, "processes that prepare data [default: the cores, at most 8]")
    image_column: str | None = option(None, "column of the images [default: the only one]")
    label_column: str | None = option(None, "column of the labels [default: label, labels or fine_label]")
    text_column: str | None = option(
        None, "column of the texts [default: text, sentence, sentence1, question, premise or the only one]"
    )
    text_pair_column: str | None = option(None, "second text of a pair")

    # Text
    tokenizer: str | None = option(
        None, "byte-bpe, wordpiece, bytes or words: trained here; or a folder or Hub id. A checkpoint keeps its own"
    )
    max_length: int | None = option(None, "tokens of a row [default: the tokenizer's own length, or all positions]")
    truncation: bool = option(False, "cut longer texts instead of refusing them")
    mask_fraction: float = option(0.15, "masked-lm: share of the tokens to predict")
    whole_word_masking: bool = option(False, "masked-lm: mask all pieces of a word together")
    doc_stride: int = option(64, "question-answering: tokens that neighbouring windows share")
    split_sentences: bool = option(False, "embedding: every sentence of 20 to 220 characters is a row")

    # A teacher
    teacher: str | None = option(None, "folder or Hub id of a trained model that is learned from")
    distill_task: float = option(1.0, "weight of the task's own loss: of the labels, or the teacher's vectors")
    distill_logits: float = option(1.0, "weight of the distance to the teacher's logits; not for embedding")
    distill_hidden: float = option(0.0, "weight of the distance to the teacher's hidden states, 1 - cosine")
    distill_temperature: float = option(2.0, "divides the logits of both")
    distill_top_k: int = option(32, "language models: logits kept for a token; the others count as one")
    distill_layers: list[int] = field(
        default_factory=list,
        metadata={"help": "the teacher's layer for each of the student's, from 0 [default: as cut, or evenly]"},
    )
    vector_loss: Literal["cosine", "squared_error"] = option("cosine", "embedding: distance to the teacher's vectors")

    # Images
    image_size: int | None = option(None, "pixels of an image's side for a new model [default: the shape's]")
    train_resize: int | None = option(None, "resize to this before the random crop [default: the image size]")
    crop_padding: int = option(0, "random crop from an image padded by so many pixels on each side")
    horizontal_flip: bool = option(False, "mirror half of the training images")
    mixup_alpha: float = option(0.0, "mixup (Zhang et al. 2018, arXiv 1710.09412); 0 is off")

    # The model
    implementation: Literal["lean", "transformers"] = option("lean", "transformers: its ViT, BERT or GPT-2 instead")
    initializer_range: float | None = option(None, "replaces the shape's standard deviation of new weights")

    # Checkpoints
    checkpoint_steps: list[int] = field(
        default_factory=list,
        metadata={"help": "steps whose checkpoints are saved as well, and kept beyond save_total_limit"},
    )

    # Conditioning
    inspect: Literal["no", "heads", "jacobian"] = option(
        "no", "log what leaner inspect measures, on two held-out rows: without the Jacobian, or with it"
    )
    inspect_steps: float = option(0.1, "steps between two measurements, or their share below 1")

    # The machine
    attn_implementation: str | None = option(None, "lean, eager, sdpa, flex_attention; else lean; rounding differs")
    loss_chunk_size: int | None = option(None, "causal-lm: logits of so many tokens at a time, to save memory")

    # Optimisation
    dropout: float | None = option(None, "replaces the shape's dropout, on states and on attention")
    ema_decay: float | None = option(None, "keep, evaluate and save an exponential average of the weights")
    early_stopping_patience: int | None = option(None, "stop after so many evaluations without improvement")

    # Other defaults than transformers'
    learning_rate: float = option(5e-4, "highest learning rate")
    weight_decay: float = option(0.05, "not on norms and biases")
    warmup_steps: float = option(0.05, "steps, or their share below 1")
    lr_scheduler_type: str = option("cosine", "schedule after the warm-up; warmup_stable_decay is WSD")
    per_device_train_batch_size: int = option(32, "rows a device reads at once")
    per_device_eval_batch_size: int = option(64, "rows a device reads at once")
    eval_strategy: str = option("epoch", "no, steps or epoch")
    save_strategy: str = option("epoch", "no, steps or epoch")
    save_total_limit: int | None = option(2, "checkpoints kept")
    logging_steps: float = option(25, "steps between two lines of metrics.jsonl")
    logging_nan_inf_filter: bool = option(False, "a loss that is not finite stops the run")
    report_to: str | None = option("none", "tensorboard, trackio, wandb ...")
    disable_tqdm: bool | None = option(False, "no progress bars")
    remove_unused_columns: bool = option(False, "the tasks hand on what the model reads")
    dataloader_pin_memory: bool = option(torch.cuda.is_available(), "page-locked batches")
    seed: int = option(1, "of weights, order, masks, crops and dropout")

    def __post_init__(self) -> None:
        self.given: set[str] = set()  # the keys of the command line, which `parse` of recipes.py fills in
        self.settings: dict[str, object] = {}  # what differs from the defaults, by `parse`, too
        if self.hardware == "gpu" and not torch.cuda.is_available():
            raise ValueError("hardware: gpu was asked for, but torch sees none; use --hardware auto or cpu")
        if self.hardware == "cpu" or not torch.accelerator.is_available():
            self.use_cpu = True
        if self.early_stopping_patience is not None:
            self.load_best_model_at_end = True
            self.restore_callback_states_from_checkpoint = True
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = "inductor"
        if self.hub_token is not None:
            raise ValueError(
                "hub_token: a run writes its settings down; hf auth login saves a token, or HF_TOKEN has it"
            )
        super().__post_init__()
        if self.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            raise ValueError(
                f"hub_strategy: {self.hub_strategy.value} sends the optimizer's state; expected end or every_save"
            )


GROUPS = {  # of RecipeArguments, by the first key of each
    "shape": "The run",
    "dataset": "Data",
    "tokenizer": "Text",
    "teacher": "A teacher",
    "image_size": "Images",
    "implementation": "The model",
    "checkpoint_steps": "Checkpoints",
    "inspect": "Conditioning",
    "attn_implementation": "The machine",
    "dropout": "Optimisation",
    "learning_rate": "Other defaults than transformers'",
}


def settings_by_group() -> dict[str, list[tuple[str, str]]]:
    """The settings of this package: of each group in GROUPS the keys, each with its help and its default."""
    settings = {setting.name: setting for setting in fields(RecipeArguments)}
    groups: dict[str, list[tuple[str, str]]] = {}
    for key in RecipeArguments.__annotations__:
        if key in GROUPS:
            group = groups[GROUPS[key]] = []
        default = settings[key].default
        shown = f" [default: {default}]" if isinstance(default, bool | int | float | str) else ""
        group.append((key, settings[key].metadata["help"].replace("%%", "%") + shown))
    return groups


INFINITY = float("inf")
BOUNDS = {  # the lowest and the highest value, both allowed; infinity itself is not
    key: bounds
    for keys, bounds in {
        "learning_rate weight_decay max_grad_norm warmup_steps holdout tuning_holdout crop_padding mixup_alpha "
        "distill_task distill_logits distill_hidden": (0, INFINITY),
        "max_train_rows max_eval_rows doc_stride image_size train_resize loss_chunk_size early_stopping_patience "
        "distill_top_k save_total_limit preprocessing_workers": (1, INFINITY),
        "num_train_epochs eval_steps save_steps logging_steps inspect_steps": (1e-6, INFINITY),
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps": (1, 2**31 - 1),
        "seed data_seed": (0, 2**32 - 1),
        "dropout label_smoothing_factor": (0, 0.99),
        "max_length": (8, INFINITY),
        "test_trees": (1, 100_000),
        "mask_fraction": (0.01, 0.99),
        "initializer_range": (1e-6, 1),
        "ema_decay": (0, 1),
        "distill_temperature": (0.01, INFINITY),
    }.items()
    for key in keys.split()
}


def check_metric(task: str | None, metric: str | None) -> None:
    """Raises ValueError for a metric that the task does not have; nothing is known of a task of another name."""
    if metric is not None and task in METRICS and metric not in METRICS[task]:
        raise ValueError(f"metric: {metric}: the task {task} has {', '.join(METRICS[task])}")


def check_modality(task: str | None, given: Iterable[str]) -> None:
    """Raises ValueError for a key of texts where the task reads images, or of images where it reads texts."""
    reads, foreign = ("images", OF_TEXT) if task == "image-classification" else ("texts", OF_IMAGES)
    for key in sorted(given):
        if task is not None and key in foreign:
            raise ValueError(f"{key}: not for {task}, which reads {reads}")


def check_combinations(arguments: RecipeArguments) -> None:
    """Raises ValueError for settings that do not go together.

    What would have no effect is refused on the command line alone: a recipe may state it for those who ask for more.
    """
    check_modality(arguments.task, arguments.given)
    if arguments.teacher is None:
        for key in sorted(arguments.given & set(OF_TEACHER)):
            raise ValueError(f"{key}: expected with teacher, the model that is learned from")
    if arguments.inspect == "no" and "inspect_steps" in arguments.given:
        raise ValueError("inspect_steps: expected with inspect, which says what is measured")
    for kind in ("save", "eval"):
        strategy = getattr(arguments, f"{kind}_strategy").value
        if f"{kind}_steps" in arguments.given and strategy != "steps":
            raise ValueError(f"{kind}_steps: expected with --{kind}_strategy steps, which is {strategy}")
    if arguments.restart and not arguments.resume:
        raise ValueError("restart: expected with resume")
    if arguments.label_smoothing_factor and arguments.task == "question-answering":
        raise ValueError("label_smoothing_factor: not for question-answering")
    for key, is_on in (("ema_decay", arguments.ema_decay is not None), ("inspect", arguments.inspect != "no")):
        if arguments.fsdp and is_on:
            raise ValueError(f"{key}: not with fsdp, which spreads the weights over the devices")


def without_idle_steps(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings that are not defaults, without the save_steps and eval_steps that a command line may not have."""
    idle = {f"{kind}_steps" for kind in ("save", "eval") if settings.get(f"{kind}_strategy") != "steps"}
    return {key: value for key, value in settings.items() if key not in idle}


def split_files(data_files: list[str]) -> dict[str | None, list[str]]:
    """`["train=a.parquet", "train=b.parquet", "folder"]` → files of each split; None for what names no split."""
    files: dict[str | None, list[str]] = {}
    for entry in data_files:
        split, _, path = entry.partition("=")
        is_named = bool(path) and split.isidentifier() and not Path(entry).exists()
        files.setdefault(split if is_named else None, []).append(path if is_named else entry)
    return files


def check_data_files(files: Iterable[str]) -> None:
    """Raises ValueError for a path that is not there, with the nearest; patterns and addresses are not looked up."""
    for name in files:
        if not Path(name).exists() and not any(character in name for character in "*?[") and "://" not in name:
            raise ValueError(f"data_files: {name}: no such file or folder")


OTHER_NAMES = {  # what other tools, or older transformers, call it
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "steps": "max_steps",
    "warmup_ratio": "warmup_steps",
    "model": "shape",
    "data": "data_files",
}
HEADS_WITHOUT_TASK = ("token-classification", "multiple-choice")  # of the models, by the Hub's names of their tasks


def check_finite(values: object, name: str) -> None:
    """Raises ValueError, naming the setting, for NaN and infinity, also in lists and by keys."""
    if isinstance(values, float) and not math.isfinite(values):
        raise ValueError(f"{name}: {values} is not a finite number")
    if isinstance(values, dict | list):
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            check_finite(value, f"{name}.{key}")


class SettingsParser(HfArgumentParser):
    """HfArgumentParser that raises ValueError, one line, instead of leaving the process."""

    def __init__(self):
        super().__init__((RecipeArguments,), allow_abbrev=False, add_help=False)
        for action in self._actions:
            if typing.get_origin(action.type) is dict:
                action.type = json.loads

    def error(self, message: str) -> typing.NoReturn:
        if re.search(r"invalid (int|float) value: '[\d.]+,", message):
            message += ", expected spaces between numbers"
        raise ValueError(re.sub(r"^argument --(\w+)(/\S+)?:", r"\1:", message))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            has_head = action.dest == "task" and value in HEADS_WITHOUT_TASK
            own_loop = "; the models have this head, for a loop of your own or transformers' Trainer"
            error.message += own_loop if has_head else did_you_mean(str(value), map(str, action.choices))
            raise

    def parse_words(self, words: list[str]) -> argparse.Namespace:
        """Raises ValueError for an unknown key, with the nearest one, and for a value of the wrong type."""
        parsed, unknown = self.parse_known_args(words)
        namespace = copy.deepcopy(parsed)  # lists that are defaults are the parser's own
        for word in unknown:
            if word.startswith("--"):
                raise ValueError(unknown_key(word.removeprefix("--").split("=")[0].replace("-", "_")))
            raise ValueError(f"unexpected {word!r}: expected --key value")
        for name, (low, high) in BOUNDS.items():
            value = getattr(namespace, name)
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                raise ValueError(f"{name}: {value} is not in {low}..{high}")
        if namespace.max_steps < 1 and namespace.max_steps != -1:
            raise ValueError(f"max_steps: {namespace.max_steps} is neither a number from 1 on nor -1, no limit")
        return namespace


@cache
def settings_parser() -> SettingsParser:
    """The parser of all settings; to build it takes longer than to parse."""
    return SettingsParser()


def unknown_key(key: str) -> str:
    """The error about a key that no setting has."""
    if key in OTHER_NAMES:
        return f"{key}: unknown key, did you mean {OTHER_NAMES[key]}?"
    keys = [setting.name for setting in fields(RecipeArguments)]
    return f"{key}: unknown key{did_you_mean(key, keys)}"


def words_of(settings: Mapping[str, object]) -> list[str]:
    """The settings as options of a command line.

    Raises:
        ValueError: names a key that is unknown, and one whose value has the wrong structure.
    """
    words = []
    for key, value in settings.items():
        action = settings_parser()._option_string_actions.get(f"--{key}")
        if action is None or key != action.dest:
            raise ValueError(unknown_key(str(key)))
        if key == "data_files" and isinstance(value, dict):
            value = [f"{split}={path}" for split, path in value.items()]
        if value is not None:
            words += option_words(action, value)
    return words


def option_words(action: argparse.Action, value: object) -> list[str]:
    """One setting as an option with its values; ValueError where it has the wrong structure, or is not finite."""
    key = action.dest
    check_finite(value, key)
    if isinstance(value, list):
        if action.nargs not in ("+", "*"):
            raise ValueError(f"{key}: expected one value, got a list")
        return [f"--{key}", *map(str, value)] if value else []
    if isinstance(value, dict):
        if action.type is not json.loads and key not in TrainingArguments._VALID_DICT_FIELDS:
            raise ValueError(f"{key}: expected one value, got keys and values")
        return [f"--{key}", json.dumps(value)]
    if isinstance(value, bool) and action.type in (int, float):
        raise ValueError(f"{key}: expected a number, got {str(value).lower()}")
    return [f"--{key}={str(value).lower() if isinstance(value, bool) else value}"]


def data_options(data_files: Sequence[str]) -> list[str]:
    """The files or folders of a local copy of the data as options of a command line; none where there is no copy."""
    return ["--data_files", *data_files] if data_files else []


def copy_options(recipe: Mapping[str, object], data_files: Sequence[str]) -> list[str]:
    """As `data_options`, with the recipe's `--holdout`: the same rows of the copy are held out again."""
    held_out = words_of({"holdout": recipe.get("holdout")}) if data_files else []
    return [*data_options(data_files), *held_out]


def recipe_words(recipe: str) -> list[str]:
    """The settings of a recipe as options of a command line; ValueError, with the file, where one of them is wrong."""
    path, settings = read_recipe(recipe)
    try:
        if path.name == "recipe.yaml":  # of a run folder, which also says what was trained
            settings.pop("shape", None)
        for key in NOT_IN_RECIPES:
            if key in settings:
                raise ValueError(f"{key}: belongs on the command line, not in a recipe")
        words = words_of(settings)
        settings_parser().parse_words(words)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return words


def arguments_of(namespace: argparse.Namespace) -> RecipeArguments:
    """The settings as transformers checks them; ValueError that names the key, where it can be found."""
    try:
        arguments = RecipeArguments(**vars(namespace))
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.doc!r}: no JSON: {error}") from error
    except ValueError as error:
        invalid = re.match(r"(\S+) is not a valid ", str(error))  # of an Enum, which does not know its key
        for key, value in vars(namespace).items():
            if invalid and value == invalid[1]:
                raise ValueError(f"{key}: {error}") from error
        raise
    for key in vars(namespace):
        check_finite(getattr(arguments, key), key)  # what was text of JSON until now
    return arguments


def parse(
    recipe: str | None,
    command_line: Iterable[str] = (),
    needed: tuple[str, ...] = (),
    fixed: dict[str, object] | None = None,
) -> RecipeArguments:
    """The resolved settings of a run; without an `output_dir`, it is `runs/<recipe>/<shape>-seed<seed>`.

    `given` of the result holds the keys of the command line; `settings`, as plain values, what differs from the
    defaults and is a recipe's business.

    Args:
        recipe: name or path of a recipe; None for the defaults alone.
        command_line: options such as `["--learning_rate", "1e-3"]`, which win over the recipe.
        needed: keys that must have a value.
        fixed: settings that win over the command line, too.

    Raises:
        ValueError: one line that names the file where it is the recipe's fault, and the key.
    """
    parser = settings_parser()
    options = list(command_line)
    given = given_options(parser, options)
    words = [] if recipe is None else recipe_words(recipe)
    namespace = parser.parse_words([*words, *options, *words_of(fixed or {})])
    for key in needed:
        if getattr(namespace, key) is None:
            shapes = "as --shape; leaner shapes lists those that have a name"
            raise ValueError(f"{key}: missing; give it {shapes if key == 'shape' else f'in the recipe or as --{key}'}")
    if namespace.output_dir is None:
        shape = str(namespace.shape).strip("/").replace("/", "-").removesuffix(".json").lstrip(".-")
        namespace.output_dir = os.path.join("runs", Path(recipe or "run").stem, f"{shape}-seed{namespace.seed}")
    arguments = arguments_of(namespace)
    arguments.given = set(given)
    check_combinations(arguments)
    defaults = vars(parser.parse_words([]))
    for key, value in vars(namespace).items():
        if value != defaults[key] and key not in [*NOT_IN_RECIPES, "hardware"]:
            arguments.settings[key] = value.value if isinstance(value, Enum) else value
    return arguments
