"""A leaner model from a trained one: choose what to leave out, cut it, and say what that did to the output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..layers_leaner import LeanPreTrainedModel
from ..support.progress import Progress, no_progress
from . import measures, operations
from .measures import Batch, Layers, Reference
from .operations import SlimError
from .scores import HeadScores, LayerScores, Scores, score_heads, score_layers


RECORD = "slim.json"  # of a cut, beside its weights: what was left out


@dataclass(frozen=True)
class Target:
    """The shape to reach; what is None stays as it is.

    `keep` names layers, `layers` counts them. `heads` is a number for every layer, `total_heads` one for all layers
    together, which the scores share out. More `heads` or a larger `intermediate_size` than the model has are added so
    that they contribute nothing yet (`operations.add_heads`, `add_neurons`).
    """

    layers: int | None = None
    keep: tuple[int, ...] | None = None
    heads: int | None = None
    total_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None


@dataclass(frozen=True)
class Cut:
    """One cut: what was left out, and the change of the output on held-out rows, all cuts up to this one together.

    `rivals`: other choices with the change that they make, on the rows of the choice.
    """

    part: str
    before: object
    after: object
    change: float
    rivals: dict[str, float] = field(default_factory=dict)


def cut_of_layers(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a slim.json records of the layers: their numbers `before` and `after`; None where it records nothing."""
    return next((cut for cut in record.get("cuts", []) if cut["part"] == "layers"), None)


@dataclass(frozen=True)
class Slimmed:
    """A slimmed model, its cuts, in order, and what they were chosen from."""

    model: LeanPreTrainedModel
    cuts: list[Cut]
    scores: Scores = Scores()


def slim(
    model: LeanPreTrainedModel,
    target: Target,
    calibration: list[Batch],
    held_out: list[Batch],
    progress: Progress = no_progress,
) -> Slimmed:
    """Cuts a model down to a shape, without training: first layers, then heads, the MLP, the head size.

    Args:
        calibration: batches by which is chosen what goes.
        held_out: other batches, on which the change of the output is measured.

    Returns:
        the slim model, in the dtype and mode of the first.

    Raises:
        SlimError: the model cannot have that shape; nothing is computed before.
    """
    return best_slims(model, target, calibration, held_out, 1, progress)[0]


def best_slims(
    model: LeanPreTrainedModel,
    target: Target,
    calibration: list[Batch],
    held_out: list[Batch],
    count: int,
    progress: Progress = no_progress,
) -> list[Slimmed]:
    """As `slim`, for each of the `count` best choices of layers, the best first; fewer where there are no more.

    Raises:
        SlimError: as `slim` does, or several are asked for where the layers are not to be chosen.
    """
    check_target(model, target)
    check_choice(model, target, count)
    training = model.training
    model.eval()
    try:
        chosen_by = Reference.of(model, calibration)
        others = Reference.of(model, held_out)
        ranking = rank_choices(model, target, chosen_by, progress)
        slims = []
        for place in range(min(count, len(ranking))):
            state = _Slimming(model, chosen_by, others, progress)
            state.cut_layers([ranking[place], *ranking[:place], *ranking[place + 1 :]])
            state.cut_heads(target)
            state.cut_neurons(target)
            state.cut_head_dim(target)
            slims.append(state.result(training))
    finally:
        model.train(training)
    return slims


def check_choice(model: LeanPreTrainedModel, target: Target, count: int) -> None:
    """Raises SlimError where several choices of layers are asked for and there are none."""
    if count == 1:
        return
    if target.keep is not None:
        raise SlimError("count: the layers are named, so there is nothing to choose; give a number instead")
    if target.layers is None or target.layers == model.config.num_hidden_layers:
        depth = model.config.num_hidden_layers
        raise SlimError(f"count: all {depth} layers stay, so there is nothing to choose; give a smaller number")


def rank_choices(
    model: LeanPreTrainedModel, target: Target, reference: Reference, progress: Progress
) -> list[tuple[Layers, float]]:
    """Choices of layers for the target and the change of the output, the least first; all layers where none goes."""
    depth = model.config.num_hidden_layers
    if target.keep is not None:
        layers = tuple(target.keep)
        return [(layers, measures.changes_by_layers(model, reference, [layers])[layers])]
    if target.layers is None or target.layers == depth:
        return [(tuple(range(depth)), 0.0)]
    return measures.rank_layers(model, reference, target.layers, progress)


def check_target(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises SlimError, naming the setting, for a shape to which the model cannot be cut."""
    config = model.config
    given = [name for name, value in vars(target).items() if value is not None]
    if not given:
        raise SlimError("nothing to cut: give layers, heads, head_dim or intermediate_size, or a budget")
    if target.layers is not None and target.keep is not None:
        raise SlimError("layers and keep: give one of them")
    if target.heads is not None and target.total_heads is not None:
        raise SlimError("heads and total_heads: give one of them")
    _check_size("layers", target.layers, config.num_hidden_layers)
    _check_size("head_dim", target.head_dim, config.head_dim)
    for name in ("heads", "intermediate_size"):
        value = getattr(target, name)
        if value is not None and value < 1:
            raise SlimError(f"{name}: expected 1 or more, got {value}")
    _check_more_heads(model, target)
    if target.keep is not None:
        operations.check_layers(model, target.keep)
    _check_total_heads(model, target)
    groups = getattr(config, "num_key_value_heads", 1)
    if target.heads is not None and operations.is_grouped(model, 0) and target.heads % groups:
        raise SlimError(f"heads: expected a multiple of num_key_value_heads={groups}, got {target.heads}")


def _check_size(name: str, value: int | None, largest: int) -> None:
    if value is not None and not 1 <= value <= largest:
        raise SlimError(f"{name}: expected 1..{largest}, got {value}")


def _check_more_heads(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises SlimError for more heads than a layer has, where its heads cannot all grow to that number."""
    heads = model.config.heads_per_layer
    if target.heads is None or target.heads <= min(heads):
        return
    if len(set(heads)) > 1:
        raise SlimError(f"heads: expected 1..{min(heads)} for layers of {heads} heads, got {target.heads}")
    if operations.is_grouped(model, 0):
        raise SlimError(f"heads: expected 1..{heads[0]}, since several heads share keys, got {target.heads}")


def _check_total_heads(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises SlimError for a total that the layers which stay cannot share, or a family with equal layers only."""
    if target.total_heads is None:
        return
    heads = model.config.heads_per_layer
    if target.keep is not None:
        heads = [heads[layer] for layer in target.keep]
    elif target.layers is not None:
        heads = sorted(heads)[-target.layers :]  # those with the most, which may be the ones that stay
    depth = len(heads)
    if not depth <= target.total_heads <= sum(heads):
        raise SlimError(f"total_heads: expected {depth}..{sum(heads)} for {depth} layers, got {target.total_heads}")
    if hasattr(model.config, "num_key_value_heads"):
        name = type(model.config).__name__
        raise SlimError(f"total_heads: {name} has one number of key-value heads; give heads, a number for every layer")


class _Slimming:
    """The model so far, and its cuts."""

    def __init__(self, model: LeanPreTrainedModel, chosen_by: Reference, held_out: Reference, progress: Progress):
        self.model = model
        self.chosen_by = chosen_by
        self.held_out = held_out
        self.progress = progress
        self.cuts: list[Cut] = []
        self.layer_scores: LayerScores | None = None
        self.head_scores: HeadScores | None = None

    def record(self, part: str, before: object, after: object, rivals: dict[str, float] | None = None) -> None:
        """Notes a cut that was made."""
        if rivals is None:
            rivals = {}
        self.cuts.append(Cut(part, before, after, self.held_out.change(self.model), rivals))

    def result(self, training: bool) -> Slimmed:
        """The model in training mode or not, with its cuts."""
        return Slimmed(self.model.train(training), self.cuts, Scores(self.layer_scores, self.head_scores))

    def cut_layers(self, ranking: list[tuple[Layers, float]]) -> None:
        """Keeps the first choice of the ranking; the others are its rivals."""
        best = ranking[0][0]
        depth = self.model.config.num_hidden_layers
        if len(best) == depth:
            return
        self.layer_scores = score_layers(self.model, self.chosen_by, ranking)
        self.model = operations.keep_layers(self.model, best)
        self.record("layers", list(range(depth)), list(best), self.layer_scores.choices)

    def cut_heads(self, target: Target) -> None:
        before = self.model.config.heads_per_layer
        total = sum(before)
        if target.heads is not None and target.heads > max(before):
            self.model = operations.add_heads(self.model, target.heads - max(before))
            self.record("heads", before, self.model.config.heads_per_layer)
            return
        if target.heads is not None:
            wanted = target.heads * len(before)
        elif target.total_heads is not None:
            wanted = target.total_heads
        else:
            return
        if wanted > total:
            raise SlimError(f"total_heads: the layers that stay have {total}, expected at most as many, got {wanted}")
        if wanted == total:
            return
        means = measures.input_moments(self.model, self.chosen_by.batches, "self_attn.o_proj").means
        changes = measures.changes_by_head(self.model, self.chosen_by, means, self.progress)
        if target.heads is not None:
            kept = [_best_heads(self.model, index, layer, target.heads) for index, layer in enumerate(changes)]
        else:
            kept = share_heads(changes, target.total_heads)
        layers = list(range(len(before)))
        if self.layer_scores is not None:
            layers = self.layer_scores.kept
        self.head_scores = score_heads(layers, changes, self.chosen_by.change(self.model), kept)
        self.model, rivals = self.with_better_means(operations.keep_heads, kept, means)
        self.record("heads", before, self.model.config.heads_per_layer, rivals)

    def cut_neurons(self, target: Target) -> None:
        width = self.model.config.intermediate_size
        if target.intermediate_size is None or target.intermediate_size == width:
            return
        if target.intermediate_size > width:
            self.model = operations.add_neurons(self.model, target.intermediate_size - width)
            self.record("intermediate_size", width, target.intermediate_size)
            return
        moments = measures.input_moments(self.model, self.chosen_by.batches, "mlp.fc2")
        kept = []
        for layer in measures.variance_by_neuron(self.model, moments):
            kept.append(sorted(layer.topk(target.intermediate_size).indices.tolist()))
        self.model, rivals = self.with_better_means(operations.keep_neurons, kept, moments.means)
        self.record("intermediate_size", width, target.intermediate_size, rivals)

    def with_better_means(self, cut, kept: Sequence[Sequence[int]], means: list[torch.Tensor]):
        """The cut whose removed parts count as zero, or as their mean: the one that changes the output less."""
        models = {"removed parts as zero": cut(self.model, kept), "as their mean": cut(self.model, kept, means)}
        rivals = {name: self.chosen_by.change(model) for name, model in models.items()}
        best = min(rivals, key=rivals.get)
        return models[best], rivals

    def cut_head_dim(self, target: Target) -> None:
        size = self.model.config.head_dim
        if target.head_dim is None or target.head_dim == size:
            return
        self.model = operations.factor_heads(self.model, target.head_dim)
        self.record("head_dim", size, target.head_dim)


def share_heads(changes: list[torch.Tensor], total: int) -> list[list[int]]:
    """The `total` heads whose absence changes the output most, over all layers together; at least one per layer."""
    kept = [[int(layer.argmax())] for layer in changes]
    ranking = []
    for index, layer in enumerate(changes):
        for head, change in enumerate(layer.tolist()):
            if head not in kept[index]:
                ranking.append((change, index, head))
    ranking.sort(reverse=True)
    for _, index, head in ranking[: total - len(kept)]:
        kept[index].append(head)
    return [sorted(heads) for heads in kept]


def _best_heads(model: LeanPreTrainedModel, index: int, changes: torch.Tensor, wanted: int) -> list[int]:
    """The `wanted` heads of a layer whose absence changes the output most; equally many of each key-value group."""
    groups = 1
    if operations.is_grouped(model, index):
        groups = model.config.key_value_heads_per_layer[index]
    size = len(changes) // groups
    kept = []
    for group in range(groups):
        best = changes[group * size : (group + 1) * size].topk(wanted // groups).indices
        kept += sorted((best + group * size).tolist())
    return kept
