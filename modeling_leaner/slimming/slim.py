"""A leaner model from a trained one: choose what to leave out, cut it, and say what that did to the output."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..layers_leaner import LeanPreTrainedModel
from . import operations, scores
from .operations import SlimError
from .scores import Batch, Layers, Progress, Reference, plainly


@dataclass(frozen=True)
class Target:
    """The shape to reach; what is None stays as it is.

    `keep` names layers, `layers` counts them. `heads` is a number for every layer, `total_heads` one for all layers
    together, which the scores share out.
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


@dataclass(frozen=True)
class Slimmed:
    """A slimmed model and its cuts, in order."""

    model: LeanPreTrainedModel
    cuts: list[Cut]


def slim(
    model: LeanPreTrainedModel,
    target: Target,
    calibration: list[Batch],
    held_out: list[Batch],
    progress: Progress = plainly,
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
    check_target(model, target)
    training = model.training
    model.eval()
    try:
        state = _Slimming(model, Reference.of(model, calibration), Reference.of(model, held_out), progress)
        state.cut_layers(target)
        state.cut_heads(target)
        state.cut_neurons(target)
        state.cut_head_dim(target)
    finally:
        model.train(training)
    return Slimmed(state.model.train(training), state.cuts)


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
    _check_size("heads", target.heads, min(config.heads_per_layer))
    _check_size("head_dim", target.head_dim, config.head_dim)
    _check_size("intermediate_size", target.intermediate_size, config.intermediate_size)
    if target.keep is not None:
        operations.check_layers(model, target.keep)
    _check_total_heads(model, target)
    groups = getattr(config, "num_key_value_heads", 1)
    if target.heads is not None and operations.is_grouped(model, 0) and target.heads % groups:
        raise SlimError(f"heads: expected a multiple of num_key_value_heads={groups}, got {target.heads}")


def _check_size(name: str, value: int | None, largest: int) -> None:
    if value is not None and not 1 <= value <= largest:
        raise SlimError(f"{name}: expected 1..{largest}, got {value}")


def _check_total_heads(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises SlimError for a total that the layers which stay cannot share, or a family with equal layers only."""
    if target.total_heads is None:
        return
    depth = model.config.num_hidden_layers
    if target.keep is not None:
        depth = len(target.keep)
    elif target.layers is not None:
        depth = target.layers
    largest = depth * max(model.config.heads_per_layer)
    if not depth <= target.total_heads <= largest:
        raise SlimError(f"total_heads: expected {depth}..{largest} for {depth} layers, got {target.total_heads}")
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

    def record(self, part: str, before: object, after: object, rivals: dict[str, float] | None = None) -> None:
        """Notes a cut that was made."""
        if rivals is None:
            rivals = {}
        self.cuts.append(Cut(part, before, after, self.held_out.change(self.model), rivals))

    def cut_layers(self, target: Target) -> None:
        depth = self.model.config.num_hidden_layers
        if target.keep is not None:
            best = tuple(target.keep)
            rivals = {}
        elif target.layers is not None and target.layers < depth:
            ranking = scores.rank_layers(self.model, self.chosen_by, target.layers, self.progress)
            best = ranking[0][0]
            rivals = self.layer_rivals(ranking)
        else:
            return
        self.model = operations.keep_layers(self.model, best)
        self.record("layers", list(range(depth)), list(best), rivals)

    def layer_rivals(self, ranking: list[tuple[Layers, float]]) -> dict[str, float]:
        """The three best choices, the even ones, and that of block influence, with the change of each."""
        kept = len(ranking[0][0])
        depth = self.model.config.num_hidden_layers
        rivals = {_layer_names(layers): change for layers, change in ranking[:3]}
        influence = scores.block_influence(self.model, self.chosen_by.batches)
        most = sorted(sorted(range(depth), key=lambda layer: -influence[layer])[:kept])
        others = {"block influence": tuple(most)}
        for layers in scores.evenly_spaced(depth, kept):
            others[f"evenly spaced {_layer_names(layers)}"] = layers
        changes = scores.changes_by_layers(self.model, self.chosen_by, sorted(set(others.values())))
        for name, layers in others.items():
            rivals[name] = changes[layers]
        return rivals

    def cut_heads(self, target: Target) -> None:
        before = self.model.config.heads_per_layer
        total = sum(before)
        if target.heads is not None:
            wanted = target.heads * len(before)
        elif target.total_heads is not None:
            wanted = target.total_heads
        else:
            return
        if wanted >= total:
            return
        means = scores.input_moments(self.model, self.chosen_by.batches, "self_attn.o_proj").means
        changes = scores.changes_by_head(self.model, self.chosen_by, means, self.progress)
        if target.heads is not None:
            kept = [_best_heads(self.model, index, layer, target.heads) for index, layer in enumerate(changes)]
        else:
            kept = share_heads(changes, target.total_heads)
        self.model, rivals = self.with_better_means(operations.keep_heads, kept, means)
        self.record("heads", before, self.model.config.heads_per_layer, rivals)

    def cut_neurons(self, target: Target) -> None:
        width = self.model.config.intermediate_size
        if target.intermediate_size is None or target.intermediate_size == width:
            return
        moments = scores.input_moments(self.model, self.chosen_by.batches, "mlp.fc2")
        kept = []
        for layer in scores.variance_by_neuron(self.model, moments):
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


def _layer_names(layers: Layers) -> str:
    return ",".join(map(str, layers))


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
