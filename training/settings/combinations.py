"""Settings that do not go together: of another kind of task, or of something that is not asked for."""

from collections.abc import Iterable

from .arguments import METRICS, OF_IMAGES, OF_TEACHER, OF_TEXT, RecipeArguments


def check_metric(task: str | None, metric: str | None) -> None:
    """Raises ValueError for a metric that the task does not have; nothing is known of a task of another name."""
    if metric is not None and task in METRICS and metric not in METRICS[task]:
        raise ValueError(f"metric: {metric}: the task {task} has {', '.join(METRICS[task])}")


def check_given(task: str | None, given: Iterable[str]) -> None:
    """Raises ValueError for a key of texts where the task reads images, or of images where it reads texts."""
    reads = "texts"
    foreign = OF_IMAGES
    if task == "image-classification":
        reads = "images"
        foreign = OF_TEXT
    for key in sorted(given):
        if task is not None and key in foreign:
            raise ValueError(f"{key}: not for {task}, which reads {reads}")


def check_inspect_steps(inspect: str, given: Iterable[str]) -> None:
    """Raises ValueError for steps between measurements where nothing is measured."""
    if inspect == "no" and "inspect_steps" in given:
        raise ValueError("inspect_steps: expected with inspect, which says what is measured")


def check_steps(arguments: RecipeArguments) -> None:
    """Raises ValueError for steps of the command line that nothing would happen at, and for restart alone."""
    for kind in ("save", "eval"):
        strategy = getattr(arguments, f"{kind}_strategy").value
        if f"{kind}_steps" in arguments.given and strategy != "steps":
            raise ValueError(f"{kind}_steps: expected with --{kind}_strategy steps, which is {strategy}")
    if arguments.restart and not arguments.resume:
        raise ValueError("restart: expected with resume")


def check_taught(teacher: str | None, given: Iterable[str]) -> None:
    """Raises ValueError for a key that says how to learn from a teacher where there is none."""
    for key in sorted(given):
        if teacher is None and key in OF_TEACHER:
            raise ValueError(f"{key}: expected with teacher, the model that is learned from")
