"""`leaner evaluate MODEL`: a task's metrics of a run folder, a published folder or a Hub id; one JSON line last."""

import json

from modeling_leaner.terminal import quiet_libraries

from .running import evaluation


def evaluate(model: str, options: list[str]) -> None:
    """Evaluates a model and prints its metrics.

    Args:
        options: keys of a recipe, which win over the model's own recipe, such as `["--data_files", "FOLDER"]`.

    Raises:
        ValueError, OSError: one line that names what is missing or does not fit.
    """
    quiet_libraries()
    try:
        results = evaluation.evaluate(model, options)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    for key, value in sorted(results["metrics"].items()):
        print(f"{key}: {'undefined' if value is None else f'{value:.4f}'}")
    print(json.dumps(results, allow_nan=False))
