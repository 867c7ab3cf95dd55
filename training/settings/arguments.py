"""Every setting of a run, with its default, its line of the help and its bounds; the metrics of each task."""

import typing
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy


# Of each task; the first counts where none is named. They are not on its class, since a command checks the name of a
# metric before it takes the time to import the tasks.
METRICS = {
    "image-classification": ("accuracy", "f1", "matthews_correlation", "loss"),
    "masked-lm": ("loss", "perplexity", "accuracy"),
    "causal-lm": ("loss", "perplexity", "bits_per_byte", "accuracy"),
    "sequence-classification": (
        "accuracy",
        "f1",
        "matthews_correlation",
        "pearson",
        "spearman",
        "squared_error",
        "loss",
    ),
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
    metric: str | None = option(None, "the metric that counts; left out, the task's")

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
    test_trees: int | None = option(None, "listops, listops-short: expressions to test on; left out, 2,000")
    preprocessing_workers: int | None = option(None, "processes that prepare data; left out, the cores, at most 8")
    image_column: str | None = option(None, "left out, the only image column")
    label_column: str | None = option(None, "left out, label, labels or fine_label")
    text_column: str | None = option(None, "left out, text, sentence, sentence1, question, premise or the only one")
    text_pair_column: str | None = option(None, "second text of a pair")

    # Text
    tokenizer: str | None = option(
        None, "byte-bpe, wordpiece, bytes or words: trained here; or a folder or Hub id. A checkpoint keeps its own"
    )
    max_length: int | None = option(None, "tokens of a row; left out, the tokenizer's own length, or all positions")
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
        metadata={"help": "the teacher's layer for each of the student's, from 0; left out, as cut, or evenly"},
    )
    vector_loss: Literal["cosine", "squared_error"] = option("cosine", "embedding: distance to the teacher's vectors")

    # Images
    image_size: int | None = option(None, "pixels of an image's side for a new model; left out, the shape's")
    train_resize: int | None = option(None, "resize to this before the random crop; left out, the image size")
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
            group = []
            groups[GROUPS[key]] = group
        help = settings[key].metadata["help"].replace("%%", "%")
        if isinstance(settings[key].default, bool | int | float | str):
            help += f" [default: {settings[key].default}]"
        group.append((key, help))
    return groups


INFINITY = float("inf")
BOUNDS = {  # the lowest and the highest value, both allowed; infinity itself is not
    **dict.fromkeys(
        "learning_rate weight_decay max_grad_norm warmup_steps holdout tuning_holdout crop_padding mixup_alpha "
        "distill_task distill_logits distill_hidden".split(),
        (0, INFINITY),
    ),
    **dict.fromkeys(
        "max_train_rows max_eval_rows doc_stride image_size train_resize loss_chunk_size early_stopping_patience "
        "distill_top_k save_total_limit preprocessing_workers".split(),
        (1, INFINITY),
    ),
    **dict.fromkeys("num_train_epochs eval_steps save_steps logging_steps inspect_steps".split(), (1e-6, INFINITY)),
    **dict.fromkeys(
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps".split(), (1, 2**31 - 1)
    ),
    **dict.fromkeys(("seed", "data_seed"), (0, 2**32 - 1)),
    **dict.fromkeys(("dropout", "label_smoothing_factor"), (0, 0.99)),
    "max_length": (8, INFINITY),
    "test_trees": (1, 100_000),
    "mask_fraction": (0.01, 0.99),
    "initializer_range": (1e-6, 1),
    "ema_decay": (0, 1),
    "distill_temperature": (0.01, INFINITY),
}
