"""The rows and the task of a run, ready for its model."""

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_config

from ..data.sources import Rows, content_sha256, describe, load_training
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
        config = with_fields(config, arguments, task.configure(train))
        task.config = config
        held = arguments.holdout or arguments.tuning_holdout
        names = [
            describe(arguments.dataset, split, arguments.data_files)
            for split in (arguments.train_split, arguments.train_split if held else arguments.eval_split)
        ]
        if arguments.streaming:
            train = train.shuffle(seed=arguments.seed, buffer_size=10_000)
        found, train = train, task.prepare(train, names[0], training=True).with_format("numpy")
        task.training_data = training_data(found, task, bool(arguments.data_files))
        if held_out is not None:
            prepared = task.prepare(held_out, names[1], training=False).with_format("numpy")
            task.data_sha256, held_out = content_sha256(held_out, task.columns()), prepared
    return task, config, train, held_out


def training_data(rows: Rows, task: Task, local: bool) -> dict[str, object]:
    """How many rows are trained on, the hash of their text (to decode all images would take long), and if local."""
    text = "Image" not in task.head
    count = len(rows) if hasattr(rows, "__len__") else None
    return {"rows": count, "sha256": content_sha256(rows, task.columns()) if text else None, "local": local}


def split_name(arguments: RecipeArguments) -> str:
    """What was evaluated on."""
    held = "tuning_holdout" if arguments.tuning_holdout else "holdout" if arguments.holdout else None
    return f"{held} of {arguments.train_split}" if held else arguments.eval_split
