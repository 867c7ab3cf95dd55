"""The conditioning of a model while it is trained: what `leaner inspect` measures, as numbers of the log."""

from collections.abc import Callable, Sequence
from math import ceil, isfinite, isnan, nan
from statistics import median

from transformers import PreTrainedModel, TrainerCallback, TrainerState

from modeling_leaner.conversion import convert
from modeling_leaner.inspection import LayerReport, Row, inspect_layers, similarities

from ..settings import RecipeArguments
from .figure import KAPPA


Numbers = dict[str, float]


class Inspection(TrainerCallback):
    """Logs the conditioning of the attention before the first step, after the last, and every `inspect_steps`.

    It draws no random numbers of the training's, and leaves the model as it was.

    Args:
        log: writes numbers under the present step.
        rows: what is measured.
    """

    def __init__(self, log: Callable[[Numbers], None], rows: Sequence[Row]):
        self.log = log
        self.rows = rows

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:  # else the run is continued, and has done so
            self.measure(args, state, model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if is_due(state, args.inspect_steps):
            loss_is_due = control.should_log
            self.measure(args, state, model)
            control.should_log = loss_is_due  # what is logged counts as the log of the step

    def measure(self, args: RecipeArguments, state: TrainerState, model: PreTrainedModel) -> None:
        """Raises ValueError, naming the setting, where the model or its rows cannot be measured."""
        if not state.is_world_process_zero:
            return
        if args.implementation == "transformers":
            model = convert(model)
        jacobian = "none"
        if args.inspect == "jacobian":
            jacobian = "matrix-free"
        try:
            reports = inspect_layers(model, self.rows, jacobian=jacobian)
        except ValueError as error:
            raise ValueError(f"inspect: {error}") from error
        self.log(numbers_of(reports))


def is_due(state: TrainerState, interval: float) -> bool:
    """Whether a step is a multiple of the interval, in steps or as a share of the run, or the last."""
    if interval < 1:
        interval *= state.max_steps
    return state.global_step % max(1, ceil(interval)) == 0 or state.global_step == state.max_steps


def numbers_of(reports: list[LayerReport]) -> Numbers:
    """κ of the head outputs of each layer, the median of the rows, and the medians over layers of everything else.

    What has lost rank, or is not defined, is left out.
    """
    numbers = {}
    for report in reports:
        numbers[f"{KAPPA}{report.layer}"] = median(spectrum.condition_number for spectrum in report.head_outputs)
    layers = [layer_numbers(report) for report in reports]
    for name in layers[0]:
        defined = [layer[name] for layer in layers if not isnan(layer[name])]
        if defined:
            numbers[name] = median(defined)
    return {name: value for name, value in numbers.items() if isfinite(value)}


def layer_numbers(report: LayerReport) -> Numbers:
    """Of several heads, or pairs of them, the median; NaN where there is no pair."""
    numbers = {
        "kappa_query_key": median(spectrum.condition_number for spectrum in report.query_key),
        "kappa_value": report.value.condition_number,
        "kappa_output": report.output.condition_number,
        "entropy": median(report.entropy),
        "similarity": nan,
        "removal": median(report.removal),
    }
    pairs = similarities(report)
    if pairs:
        numbers["similarity"] = median(pairs)
    if report.jacobian is not None:
        numbers["jacobian_largest"] = report.jacobian.largest
        numbers["jacobian_stable_rank"] = report.jacobian.stable_rank
        numbers["jacobian_with_residual_largest"] = report.jacobian_with_residual.largest
    return numbers
