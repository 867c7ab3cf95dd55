"""A run before its model is built: the task with its configuration, and the rows as the model reads them."""

from dataclasses import dataclass

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.family import TEXT
from modeling_leaner.files import naming

from ..data.sources import Rows, content_sha256, describe, load_training
from ..settings import RecipeArguments
from ..tasks.base import Task
from ..tasks.distillation import with_teacher
from .loading import fitted, has_weights, load_processing, shape_config, task_of, with_fields


@dataclass(frozen=True)
class HeldOut:
    """Evaluation rows: where they come from, for people; as the model reads them; and the hash of their contents."""

    source: str
    rows: Rows
    sha256: str | None


@dataclass(frozen=True)
class PreparedRun:
    """What is trained or evaluated.

    Args:
        task: with the configuration of the model.
        train: the rows to train on, as the model reads them; None where a trained model is only evaluated.
        training_data: their number and the hash of their text, for results.json.
        held_out: the rows to evaluate on; None for a run without any.
    """

    arguments: RecipeArguments
    task: Task
    train: Rows | None = None
    training_data: dict[str, object] | None = None
    held_out: HeldOut | None = None

    @property
    def config(self) -> LeanConfig:
        """The configuration of the model."""
        return self.task.config

    @property
    def held_out_rows(self) -> Rows | None:
        """The evaluation rows as the model reads them; None without any."""
        return self.held_out and self.held_out.rows


def prepare(arguments: RecipeArguments) -> PreparedRun:
    """The run that the settings describe: its data loaded, its task configured by them, its rows prepared.

    Raises:
        ValueError: shape, task, data or tokenizer do not fit; names the key, or file, column and row.
    """
    config = shape_config(arguments)
    task_class = task_of(arguments, config)
    is_lean_gpt = task_class.name == "causal-lm" and arguments.implementation != "transformers"
    if arguments.loss_chunk_size is not None and not is_lean_gpt:
        raise ValueError("loss_chunk_size: expected with a LeanGPT that learns causal-lm")
    if arguments.streaming and arguments.max_steps <= 0:
        raise ValueError("streaming: expected with max_steps, for nobody knows how long a stream is")
    with arguments.main_process_first(local=True, desc="data"):
        train, held_out = load_training(arguments)
        processing = load_processing(arguments, config, train)
        task = task_class(arguments, fitted(config, arguments, processing), processing)
        with naming(describe(arguments.dataset, arguments.train_split, arguments.data_files)):
            fields = task.configure(train)
        if has_weights(str(arguments.shape)):
            fields |= own_class_numbers(task, config)
        task.config = with_fields(task.config, arguments, fields)
        taught, prepared = with_teacher(task, prepare_training(task, train))
        return PreparedRun(
            arguments=arguments,
            task=taught,
            train=prepared,
            training_data=training_data(train, task),
            held_out=prepare_held_out(task, held_out),
        )


def own_class_numbers(task: Task, config: LeanConfig) -> dict[str, object]:
    """The fields with a checkpoint's own numbers of the classes, where its head has the same; else none.

    Classes without names go by their number already.
    """
    own = {name: index for index, name in sorted(config.id2label.items())}
    if task.classes is None or set(own) != set(task.classes) or list(task.classes) == list(map(str, range(len(own)))):
        return {}
    task.classes = own
    return {"id2label": {index: name for name, index in own.items()}, "label2id": own}


def prepare_training(task: Task, rows: Rows) -> Rows:
    """The rows to train on as the model reads them; those of a stream are shuffled within a window first."""
    arguments = task.arguments
    if arguments.streaming:
        rows = rows.shuffle(seed=arguments.seed, buffer_size=10_000)
    source = describe(arguments.dataset, arguments.train_split, arguments.data_files)
    with naming(source, (UnicodeDecodeError,)):  # some formats are read before they are decoded
        return task.prepare(rows, source, training=True).with_format("numpy")


def held_out_source(arguments: RecipeArguments) -> str:
    """Where the evaluation rows come from, for people."""
    return describe(arguments.dataset, evaluation_split(arguments), arguments.data_files)


def prepare_held_out(task: Task, rows: Rows | None, inputs_alone: bool = False) -> HeldOut | None:
    """The evaluation rows as the model reads them, or by `prepare_inputs` alone; None where there are none.

    The task keeps what it scores them by, but for `inputs_alone`.
    """
    if rows is None:
        return None
    source = held_out_source(task.arguments)
    with naming(source, (UnicodeDecodeError,)):
        if inputs_alone:
            prepared = task.prepare_inputs(rows, source)
        else:
            prepared = task.prepare(rows, source, training=False)
            task.keep_held_out(rows, prepared)
    prepared = prepared.with_format("numpy")
    return HeldOut(source, prepared, content_sha256(rows, task.columns()))


def training_data(rows: Rows, task: Task) -> dict[str, object]:
    """How many rows are trained on, the hash of their text, and whether they are local; None where it is not known."""
    count = len(rows) if hasattr(rows, "__len__") else None
    # None of images: to decode them all would take long
    sha256 = content_sha256(rows, task.columns()) if task.modality is TEXT else None
    return {"rows": count, "sha256": sha256, "local": bool(task.arguments.data_files)}


def holdout_key(arguments: RecipeArguments) -> str | None:
    """The setting that takes the evaluation rows out of the training split; None where they have their own split."""
    return next((key for key in ("tuning_holdout", "holdout") if getattr(arguments, key)), None)


def evaluation_split(arguments: RecipeArguments) -> str:
    """The split that the evaluation rows come from."""
    return arguments.eval_split if holdout_key(arguments) is None else arguments.train_split


def split_name(arguments: RecipeArguments) -> str:
    """The evaluation rows as results.json names them: their split, or what was taken out of the training split."""
    key = holdout_key(arguments)
    return arguments.eval_split if key is None else f"{key} of {arguments.train_split}"
