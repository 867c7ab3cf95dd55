"""The rows and the task of a run, ready for its model."""

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from ..data.sources import Rows, content_sha256, describe, load_training, naming
from ..settings.arguments import RecipeArguments
from ..tasks.tasks import Task
from .loading import fitted, load_processing, resized, task_of, with_fields


def prepare(arguments: RecipeArguments) -> tuple[Task, LeanConfig, Rows, Rows | None]:
    """The task with its data, ready for the model: prepared training and evaluation rows."""
    config = resized(load_config(str(arguments.shape)), arguments)
    task_class = task_of(arguments, config)
    with arguments.main_process_first(local=True, desc="data"):
        train, held_out = load_training(arguments)
        processing = load_processing(arguments, config, train)
        config = fitted(config, arguments, processing)
        task = task_class(arguments, config, processing)
        train_source = describe(arguments.dataset, arguments.train_split, arguments.data_files)
        with naming(train_source):
            fields = task.configure(train)
        config = with_fields(config, arguments, fields)
        task.config = config
        if arguments.streaming:
            train = train.shuffle(seed=arguments.seed, buffer_size=10_000)
        prepared_train = task.prepare(train, train_source, training=True).with_format("numpy")
        task.training_data = training_data(train, task, bool(arguments.data_files))
        if held_out is None:
            return task, config, prepared_train, None
        held_out_source = describe(arguments.dataset, evaluation_split(arguments), arguments.data_files)
        prepared_held_out = task.prepare(held_out, held_out_source, training=False).with_format("numpy")
        task.data_sha256 = content_sha256(held_out, task.columns())
    return task, config, prepared_train, prepared_held_out


def training_data(rows: Rows, task: Task, local: bool) -> dict[str, object]:
    """How many rows are trained on, the hash of their text, and whether they are local; None where it is not known."""
    count = None
    if hasattr(rows, "__len__"):
        count = len(rows)
    sha256 = None  # of images: to decode them all would take long
    if "Image" not in task.head:
        sha256 = content_sha256(rows, task.columns())
    return {"rows": count, "sha256": sha256, "local": local}


def holdout_key(arguments: RecipeArguments) -> str | None:
    """The setting that takes the evaluation rows out of the training split; None where they have their own split."""
    if arguments.tuning_holdout:
        return "tuning_holdout"
    if arguments.holdout:
        return "holdout"
    return None


def evaluation_split(arguments: RecipeArguments) -> str:
    """The split that the evaluation rows come from."""
    if holdout_key(arguments) is None:
        return arguments.eval_split
    return arguments.train_split


def split_name(arguments: RecipeArguments) -> str:
    """The evaluation rows as results.json names them: their split, or what was taken out of the training split."""
    key = holdout_key(arguments)
    if key is None:
        return arguments.eval_split
    return f"{key} of {arguments.train_split}"
