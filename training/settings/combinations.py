"""Settings that do not go together: of another kind of task, or of something that is not asked for.

Keys, types and bounds are checked by `parse_words` of command_line.py; what this machine lacks, by `RecipeArguments`;
what depends on the rows or the model, where these are read.
"""

from collections.abc import Iterable, Mapping

from .arguments import METRICS, OF_IMAGES, OF_TEACHER, OF_TEXT, RecipeArguments


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
    if arguments.fsdp and arguments.ema_decay is not None:
        raise ValueError("ema_decay: not with fsdp, which spreads the weights over the devices")
    if arguments.fsdp and arguments.inspect != "no":
        raise ValueError("inspect: not with fsdp, which spreads the weights over the devices")


def without_idle_steps(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings that are not defaults, without the save_steps and eval_steps that a command line may not have."""
    idle = {f"{kind}_steps" for kind in ("save", "eval") if settings.get(f"{kind}_strategy") != "steps"}
    return {key: value for key, value in settings.items() if key not in idle}
