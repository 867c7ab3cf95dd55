"""The settings of a run: every key with its default, its line of the help and its bounds; recipes; command lines.

Defaults < recipe < command line. A recipe is a flat YAML file of `RecipeArguments` fields; it never names a shape, so
that a baseline and its lean twin are trained by the very same file.
"""

import argparse
import json
import math
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Literal

import torch
from transformers import HfArgumentParser, TrainingArguments

from modeling_leaner.files import naming
from modeling_leaner.terminal import did_you_mean

from .reading import read_recipe


METRICS = {  # of each task; the first counts if none is named. Checked before the tasks are imported
    "image-classification": ("accuracy", "f1", "matthews_correlation", "loss"),
    "masked-lm": ("loss", "perplexity", "accuracy"),
    "causal-lm": ("loss", "perplexity", "bits_per_byte", "accuracy"),
    "sequence-classification": tuple("accuracy f1 matthews_correlation pearson spearman squared_error loss".split()),
    "embedding": ("cosine", "loss"),
}
TASK_NAMES = tuple(METRICS)
LANGUAGE_MODELLING = ("masked-lm", "causal-lm")
NOT_IN_RECIPES = (  # nor in what a run writes down of its settings
    "shape resume output_dir resume_from_checkpoint do_train do_eval do_predict "
    "push_to_hub hub_model_id hub_strategy hub_private_repo hub_always_push hub_revision"
).split()
SHARES = ("mask_fraction", "dropout", "label_smoothing_factor", "ema_decay")


def option(default: object, help: str) -> typing.Any:
    """A key with its default and its line of the help."""
    value = {"default_factory": list} if default == [] else {"default": default}
    return field(**value, metadata={"help": help})


@dataclass
class RecipeArguments(TrainingArguments):
    """transformers' TrainingArguments, with the task, its data and objective; defaults that a pair is trained with.

    The order of the fields is that of the help.
    """

    # The run
    shape: str | None = option(None, "named shape (vit/lean-tiny), folder, config file or Hub id")
    resume: bool = option(False, "continue the run in output_dir from its last whole checkpoint")
    task: Literal[TASK_NAMES] | None = option(None, f"one of {', '.join(TASK_NAMES)}")
    metric: str | None = option(None, "the metric that counts [default: the task's]")

    # Data
    dataset: str | None = option(None, "Hub id, or a built-in set: digits, python-docs, listops, listops-short")
    dataset_config: str | None = option(None, "configuration of the Hub dataset, such as GLUE's sst2")
    data_files: list[str] = option([], "local data: a folder, or split=FILE (parquet, json, csv, text)")
    streaming: bool = option(False, "read the Hub dataset as a stream; needs max_steps")
    train_split: str = option("train", "split to train on; slices such as train[:1000] are allowed")
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
    split_sentences: bool = option(False, "embedding: every sentence of 20 to 220 characters is a row")

    # A teacher
    teacher: str | None = option(None, "folder or Hub id of a trained model that is learned from")
    distill_task: float = option(1.0, "weight of the task's own loss: of the labels, or the teacher's vectors")
    distill_logits: float = option(1.0, "weight of the distance to the teacher's logits; not for embedding")
    distill_hidden: float = option(0.0, "weight of the distance to the teacher's hidden states, 1 - cosine")
    distill_temperature: float = option(2.0, "divides the logits of both")
    distill_top_k: int = option(32, "language models: logits kept for a token; the others count as one")
    distill_layers: list[int] = option([], "a layer of the teacher, from 0, for each own [default: as cut, or evenly]")
    vector_loss: Literal["cosine", "squared_error"] = option("cosine", "embedding: distance to the teacher's vectors")

    # Images
    image_size: int | None = option(None, "pixels of an image's side for a new model [default: the shape's]")
    crop_padding: int = option(0, "random crop from an image padded by so many pixels on each side")
    horizontal_flip: bool = option(False, "mirror half of the training images")

    # The model
    implementation: Literal["lean", "transformers"] = option("lean", "transformers: its ViT, BERT or GPT-2 instead")
    initializer_range: float | None = option(None, "replaces the shape's standard deviation of new weights")

    # Checkpoints
    checkpoint_steps: list[int] = option([], "steps whose checkpoints are saved, too, and kept for good")

    # The machine
    attn_implementation: str | None = option(None, "lean, eager, sdpa, flex_attention; else lean; rounding differs")
    loss_chunk_size: int | None = option(None, "causal-lm: logits of so many tokens at a time, to save memory")

    # Optimisation
    dropout: float | None = option(None, "replaces the shape's dropout, on states and on attention")
    ema_decay: float | None = option(None, "keep, evaluate and save an exponential average of the weights")

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
        self.settings: dict[str, object] = {}  # what differs from the defaults, as `parse` fills in
        if not torch.accelerator.is_available():
            self.use_cpu = True
        self.hub_strategy = "end"  # a finished run is sent once, with its card
        super().__post_init__()
        if self.hub_token is not None:
            raise ValueError("hub_token: use hf auth login, or HF_TOKEN")


def split_files(data_files: list[str]) -> dict[str | None, list[str]]:
    """`["train=a.parquet", "train=b.parquet", "folder"]` → files of each split; None for what names no split."""
    files: dict[str | None, list[str]] = {}
    for entry in data_files:
        split, _, path = entry.partition("=")
        is_named = bool(path) and split.isidentifier() and not Path(entry).exists()
        files.setdefault(split if is_named else None, []).append(path if is_named else entry)
    return files


class SettingsParser(HfArgumentParser):
    """HfArgumentParser that raises ValueError, one line with the key, instead of leaving the process."""

    def error(self, message: str) -> typing.NoReturn:
        message = re.sub(r"^argument --(\w+)(/\S+)?:", r"\1:", message)
        unknown = re.match(r"unrecognized arguments: (--)?([^\s=]*)", message)
        if unknown:
            key = unknown[2].replace("-", "_")
            near = did_you_mean(key, [setting.name for setting in fields(RecipeArguments)])
            problem = f"{key}: unknown key{near or ' (leaner train --help lists them)'}"
            message = problem if unknown[1] else f"unexpected {unknown[2]!r}: expected --key value"
        raise ValueError(message)

    def parse_words(self, words: list[str]) -> argparse.Namespace:
        """Raises ValueError for what is no key, and for a value that a key cannot have."""
        namespace = self.parse_args(words)
        for name, value in vars(namespace).items():
            most = 1 if name in SHARES else math.inf
            if isinstance(value, int | float) and not 0 <= value < most and value != self.get_default(name):
                raise ValueError(f"{name}: {value} is not in 0..{most}")
        return namespace


PARSER = SettingsParser((RecipeArguments,), allow_abbrev=False, add_help=False)  # once: building it takes long


def words_of(settings: Mapping[str, object]) -> list[str]:
    """The settings as options of a command line, which is read with the types of the keys."""
    words = []
    for key, value in settings.items():
        if key == "data_files" and isinstance(value, dict):
            paths = ((split, files if isinstance(files, list) else [files]) for split, files in value.items())
            value = [f"{split}={path}" for split, files in paths for path in files]
        if isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        elif value is not None:
            words.append(f"--{key}={value if isinstance(value, str) else json.dumps(value)}")
    return words


def parse(recipe: str | None, command_line: Iterable[str] = (), needed: tuple[str, ...] = ()) -> RecipeArguments:
    """The settings of a run: the command line wins over the recipe, a name or path.

    `settings` of the result has, as plain values, what differs from the defaults and is a recipe's business. Raises
    ValueError, one line that names the recipe's file and the key.
    """
    words = []
    if recipe is not None:
        path, settings = read_recipe(recipe)
        if path.name == "recipe.yaml":  # of a run folder, which also says what was trained
            settings.pop("shape", None)
        words = words_of(settings)
        with naming(path):
            PARSER.parse_words(words)
            misplaced = [key for key in NOT_IN_RECIPES if key in settings]
            if misplaced:
                raise ValueError(f"{misplaced[0]}: belongs on the command line, not in a recipe")

    namespace = PARSER.parse_words([*words, *command_line])
    fixes = {
        "shape": "such as --shape vit/nano (leaner shapes lists all)",
        "teacher": "a folder or Hub id whose vectors are learned",
    }
    for key in (*needed, *(["teacher"] if namespace.task == "embedding" else [])):
        if getattr(namespace, key) is None:
            raise ValueError(f"missing --{key}, {fixes.get(key, 'or name a recipe')}")
    if namespace.output_dir is None:
        shape = str(namespace.shape).strip("/").replace("/", "-").removesuffix(".json").lstrip(".-")
        namespace.output_dir = os.path.join("runs", Path(recipe or "run").stem, f"{shape}-seed{namespace.seed}")

    arguments = RecipeArguments(**vars(namespace))
    metrics = METRICS.get(arguments.task, ())
    if metrics and arguments.metric not in (None, *metrics):
        raise ValueError(f"metric: {arguments.metric}: the task {arguments.task} has {', '.join(metrics)}")
    if arguments.fsdp and arguments.ema_decay is not None:
        raise ValueError("ema_decay: not with fsdp, which spreads the weights over the devices")
    defaults = vars(PARSER.parse_words([]))
    for key, value in vars(namespace).items():
        if value != defaults[key] and key not in [*NOT_IN_RECIPES, "use_cpu"]:
            arguments.settings[key] = value.value if isinstance(value, Enum) else value
    return arguments
