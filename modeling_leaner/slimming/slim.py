"""A leaner model from a trained one: choose what to leave out, cut it, and say what that did to the output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ..layers_leaner import LeanPreTrainedModel
from ..source_files import RECORD, cut_of_layers  # noqa: F401 (also taken from here)
from ..support.models import evaluating
from ..support.progress import Progress, no_progress
from . import measures, operations
from .measures import Batch, LayerChoice, Reference
from .operations import SlimError
from .scores import HeadScores, LayerScores, Scores, score_heads, score_layers


MOST_HEADS = 4096  # of a layer
MOST_NEURONS = 2**20  # of an MLP

# `operations.keep_heads` or `keep_neurons`: a model, per layer what stays, and the means of what goes or None.
KeepParts = Callable[[LeanPreTrainedModel, list[list[int]], list[torch.Tensor] | None], LeanPreTrainedModel]


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


@dataclass(frozen=True)
class Slimmed:
    """A slimmed model, its cuts, in order, and what they were chosen from."""

    model: LeanPreTrainedModel
    cuts: list[Cut]
    scores: Scores = Scores()


def slim(
    model: LeanPreTrainedModel,
    target: Target,
    choosing_batches: list[Batch],
    held_out_batches: list[Batch],
    progress: Progress = no_progress,
) -> Slimmed:
    """Cuts a model down to a shape, without training: first layers, then heads, the MLP, the head size.

    Args:
        choosing_batches: those by which is chosen what goes.
        held_out_batches: others, on which the change of the output is measured.

    Returns:
        the slim model, in the dtype and mode of the first.

    Raises:
        SlimError: the model cannot have that shape; nothing is computed before, except where the layers that stay
            have fewer heads than `total_heads`.
    """
    return best_slims(model, target, choosing_batches, held_out_batches, 1, progress)[0]


def best_slims(
    model: LeanPreTrainedModel,
    target: Target,
    choosing_batches: list[Batch],
    held_out_batches: list[Batch],
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
    with evaluating(model):
        choosing_reference = Reference.of(model, choosing_batches)
        held_out_reference = Reference.of(model, held_out_batches)
        ranking = rank_choices(model, target, choosing_reference, progress)
        slims = []
        for chosen in ranking[:count]:
            state = _Slimming(model, choosing_reference, held_out_reference, progress)
            state.cut_layers(chosen, ranking)
            state.change_heads(target)
            state.change_neurons(target)
            state.cut_head_dim(target)
            slims.append(state.result(training))
    return slims


def check_choice(model: LeanPreTrainedModel, target: Target, count: int) -> None:
    """Raises SlimError where several choices of layers are asked for and there are none."""
    if count == 1:
        return
    if target.keep is not None:
        reason = "the layers are named, so there is nothing to choose; give a number instead"
        raise SlimError(reason, settings=["count"])
    if target.layers is None or target.layers == model.config.num_hidden_layers:
        depth = model.config.num_hidden_layers
        reason = f"all {depth} layers stay, so there is nothing to choose; give a smaller number"
        raise SlimError(reason, settings=["count"])


def rank_choices(
    model: LeanPreTrainedModel, target: Target, reference: Reference, progress: Progress
) -> list[LayerChoice]:
    """Choices of layers for the target, that with the least change of the output first; all layers where none goes."""
    depth = model.config.num_hidden_layers
    if target.keep is not None:
        named = tuple(target.keep)
        changes = measures.changes_by_layers(model, reference, [named])
        return [LayerChoice(named, changes[named])]
    if target.layers is None or target.layers == depth:
        return [LayerChoice(tuple(range(depth)), 0.0)]
    return measures.rank_layers(model, reference, target.layers, progress)


def check_target(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises SlimError, naming the setting, for a shape to which the model cannot be cut."""
    config = model.config
    given = [name for name, value in vars(target).items() if value is not None]
    if not given:
        raise SlimError("nothing to cut: give layers, heads, head_dim or intermediate_size, or a budget")
    if target.layers is not None and target.keep is not None:
        raise SlimError("give one of them", settings=["layers", "keep"])
    if target.heads is not None and target.total_heads is not None:
        raise SlimError("give one of them", settings=["heads", "total_heads"])
    _check_size("layers", target.layers, config.num_hidden_layers)
    _check_size("head_dim", target.head_dim, config.head_dim)
    for name, most in (("heads", MOST_HEADS), ("intermediate_size", MOST_NEURONS)):
        value = getattr(target, name)
        if value is not None and not 1 <= value <= most:
            raise SlimError(f"expected 1..{most:,}, got {value:,}", settings=[name])
    _check_more_heads(model, target)
    if target.keep is not None:
        operations.check_layers(model, target.keep)
    _check_total_heads(model, target)
    groups = getattr(config, "num_key_value_heads", 1)
    if target.heads is not None and operations.is_grouped(model) and target.heads % groups:
        reason = f"expected a multiple of num_key_value_heads={groups}, got {target.heads}"
        raise SlimError(reason, settings=["heads"])


def _check_size(name: str, value: int | None, largest: int) -> None:
    """Raises SlimError for a number that is not in 1..largest."""
    if value is not None and not 1 <= value <= largest:
        raise SlimError(f"expected 1..{largest}, got {value}", settings=[name])


def _check_more_heads(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises SlimError for more heads than a layer has, where its heads cannot all grow to that number."""
    heads = model.config.heads_per_layer
    if target.heads is None or target.heads <= min(heads):
        return
    if len(set(heads)) > 1:
        reason = f"expected 1..{min(heads)} for layers of {heads} heads, got {target.heads}"
        raise SlimError(reason, settings=["heads"])
    if operations.is_grouped(model):
        reason = f"expected 1..{heads[0]}, since several heads share keys, got {target.heads}"
        raise SlimError(reason, settings=["heads"])


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
        reason = f"expected {depth}..{sum(heads)} for {depth} layers, got {target.total_heads}"
        raise SlimError(reason, settings=["total_heads"])
    if hasattr(model.config, "num_key_value_heads"):
        name = type(model.config).__name__
        reason = f"{name} has one number of key-value heads; give heads, a number for every layer"
        raise SlimError(reason, settings=["total_heads"])


class _Slimming:
    """The model so far, and its cuts.

    Args:
        choosing_reference: the source's output on the rows by which is chosen what goes.
        held_out_reference: that on the rows on which the change of the output is recorded.
    """

    def __init__(
        self,
        model: LeanPreTrainedModel,
        choosing_reference: Reference,
        held_out_reference: Reference,
        progress: Progress,
    ):
        self.model = model
        self.choosing_reference = choosing_reference
        self.held_out_reference = held_out_reference
        self.progress = progress
        self.cuts: list[Cut] = []
        self.layer_scores: LayerScores | None = None
        self.head_scores: HeadScores | None = None

    def record(self, part: str, before: object, after: object, rivals: dict[str, float] | None = None) -> None:
        """Notes a cut that was made."""
        if rivals is None:
            rivals = {}
        self.cuts.append(Cut(part, before, after, self.held_out_reference.change(self.model), rivals))

    def result(self, training: bool) -> Slimmed:
        """The model in training mode or not, with its cuts."""
        return Slimmed(self.model.train(training), self.cuts, Scores(self.layer_scores, self.head_scores))

    def cut_layers(self, chosen: LayerChoice, ranking: Sequence[LayerChoice]) -> None:
        """Keeps the chosen layers; the other choices of the ranking are their rivals."""
        depth = self.model.config.num_hidden_layers
        if len(chosen.layers) == depth:
            return
        self.layer_scores = score_layers(self.model, self.choosing_reference, chosen, ranking)
        self.model = operations.keep_layers(self.model, chosen.layers)
        self.record("layers", list(range(depth)), list(chosen.layers), self.layer_scores.changes_by_name())

    def change_heads(self, target: Target) -> None:
        """Leaves heads out, in every layer or of all layers together, or adds some, to reach the target."""
        if target.heads is not None:
            most = max(self.model.config.heads_per_layer)
            if target.heads > most:
                self.add_heads(target.heads - most)
            else:
                self.cut_heads_per_layer(target.heads)
        elif target.total_heads is not None:
            self.cut_total_heads(target.total_heads)

    def add_heads(self, added: int) -> None:
        """So many more in every layer, which contribute nothing yet."""
        before = self.model.config.heads_per_layer
        self.model = operations.add_heads(self.model, added)
        self.record("heads", before, self.model.config.heads_per_layer)

    def cut_heads_per_layer(self, wanted: int) -> None:
        """Keeps the `wanted` heads of every layer whose absence changes the output most. No layer may have fewer."""
        if set(self.model.config.heads_per_layer) == {wanted}:
            return
        means, changes = self.measure_heads()
        kept = [_best_heads(self.model, index, of_heads, wanted) for index, of_heads in enumerate(changes)]
        self.keep_heads(kept, means, changes)

    def cut_total_heads(self, wanted: int) -> None:
        """Keeps the `wanted` heads of all layers together whose absence changes the output most."""
        total = sum(self.model.config.heads_per_layer)
        if wanted > total:
            reason = f"the layers that stay have {total}, expected at most as many, got {wanted}"
            raise SlimError(reason, settings=["total_heads"])
        if wanted == total:
            return
        means, changes = self.measure_heads()
        self.keep_heads(share_heads(changes, wanted), means, changes)

    def measure_heads(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Per layer the mean of what its heads put out (H·d), and the change of the output without each head (H)."""
        means = measures.input_moments(self.model, self.choosing_reference.batches, "self_attn.o_proj").means
        changes = measures.changes_by_head(self.model, self.choosing_reference, means, self.progress)
        return means, changes

    def keep_heads(self, kept: list[list[int]], means: list[torch.Tensor], changes: list[torch.Tensor]) -> None:
        """Leaves the other heads out, and notes the scores by which they were chosen.

        Args:
            kept: per layer the heads that stay.
            means, changes: as `measure_heads` returns them.
        """
        before = self.model.config.heads_per_layer
        layers = list(range(len(before)))
        if self.layer_scores is not None:
            layers = self.layer_scores.kept
        change_before = self.choosing_reference.change(self.model)
        self.head_scores = score_heads(layers, changes, change_before, kept)
        self.model, rivals = self.cut_as_zero_or_mean(operations.keep_heads, kept, means)
        self.record("heads", before, self.model.config.heads_per_layer, rivals)

    def change_neurons(self, target: Target) -> None:
        """Leaves neurons of every MLP out, or adds some, to reach the target."""
        wanted = target.intermediate_size
        width = self.model.config.intermediate_size
        if wanted is None or wanted == width:
            return
        if wanted > width:
            self.add_neurons(wanted - width)
        else:
            self.cut_neurons(wanted)

    def add_neurons(self, added: int) -> None:
        """So many more in every MLP, which contribute nothing yet."""
        width = self.model.config.intermediate_size
        self.model = operations.add_neurons(self.model, added)
        self.record("intermediate_size", width, width + added)

    def cut_neurons(self, wanted: int) -> None:
        """Keeps the `wanted` neurons of every MLP that add the most variance."""
        width = self.model.config.intermediate_size
        moments = measures.input_moments(self.model, self.choosing_reference.batches, "mlp.fc2")
        kept = []
        for of_neurons in measures.variance_by_neuron(self.model, moments):
            kept.append(sorted(of_neurons.topk(wanted).indices.tolist()))
        self.model, rivals = self.cut_as_zero_or_mean(operations.keep_neurons, kept, moments.means)
        self.record("intermediate_size", width, wanted, rivals)

    def cut_as_zero_or_mean(
        self, keep: KeepParts, kept: list[list[int]], means: list[torch.Tensor]
    ) -> tuple[LeanPreTrainedModel, dict[str, float]]:
        """The cut after which what goes counts as zero, or that after which it counts as its mean.

        Args:
            keep: makes the cut.
            kept: per layer the heads or neurons that stay.
            means: per layer the mean of what all of them put out.

        Returns:
            the one that changes the output less, and the change of both by name.
        """
        models = {
            "removed parts as zero": keep(self.model, kept, None),
            "as their mean": keep(self.model, kept, means),
        }
        changes = {name: self.choosing_reference.change(model) for name, model in models.items()}
        best = min(changes, key=changes.get)
        return models[best], changes

    def cut_head_dim(self, target: Target) -> None:
        """Makes every head smaller, where the target says so."""
        size = self.model.config.head_dim
        if target.head_dim is None or target.head_dim == size:
            return
        self.model = operations.factor_heads(self.model, target.head_dim)
        self.record("head_dim", size, target.head_dim)


def share_heads(changes: list[torch.Tensor], total: int) -> list[list[int]]:
    """The `total` heads whose absence changes the output most, over all layers together; at least one per layer."""
    kept = [[int(of_heads.argmax())] for of_heads in changes]
    ranking = []
    for index, of_heads in enumerate(changes):
        for head, change in enumerate(of_heads.tolist()):
            if head not in kept[index]:
                ranking.append((change, index, head))
    ranking.sort(reverse=True)
    for _, index, head in ranking[: total - len(kept)]:
        kept[index].append(head)
    return [sorted(heads) for heads in kept]


def _best_heads(model: LeanPreTrainedModel, index: int, changes: torch.Tensor, wanted: int) -> list[int]:
    """The `wanted` heads of a layer whose absence changes the output most; equally many of each key-value group."""
    groups = 1
    if operations.is_grouped(model):
        groups = model.config.key_value_heads_per_layer[index]
    size = len(changes) // groups
    kept = []
    for group in range(groups):
        best = changes[group * size : (group + 1) * size].topk(wanted // groups).indices
        kept += sorted((best + group * size).tolist())
    return kept
