"""A leaner model from a trained one: choose what to leave out, cut it, and say what that did to the output."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..layers_leaner import LeanPreTrainedModel
from ..models import Pool, evaluating, mean_over_tokens
from . import measures, operations
from .measures import Batch, Reference


MOST_HEADS = 4096  # of a layer
MOST_NEURONS = 2**20  # of an MLP


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
    intermediate_size: int | None = None


@dataclass(frozen=True)
class Cut:
    """One cut: what was left out, and the change of the output on held-out rows, all cuts up to this one together."""

    part: str
    before: object
    after: object
    change: float


@dataclass(frozen=True)
class Slimmed:
    """A slimmed model and its cuts, in order."""

    model: LeanPreTrainedModel
    cuts: list[Cut]


def slim(
    model: LeanPreTrainedModel,
    target: Target,
    choosing_batches: list[Batch],
    held_out_batches: list[Batch],
    pool: Pool = mean_over_tokens,
) -> Slimmed:
    """Cuts a model down to a shape, without training: first layers, then heads, the MLP. Dtype and mode stay.

    Args:
        choosing_batches: those by which is chosen what goes.
        held_out_batches: others, on which the change of the output is measured.
        pool: a bare encoder's embeddings (B, D) from its last states (B, T, D) and the mask (B, T).

    Raises:
        ValueError: the model cannot have that shape, or its output says nothing.
    """
    check_target(model, target)
    training = model.training
    with evaluating(model):
        references = [Reference.of(model, batches, pool) for batches in (choosing_batches, held_out_batches)]
        state = _Slimming(model, *references)
        state.cut_layers(target)
        state.change_heads(target)
        state.change_neurons(target)
    return Slimmed(state.model.train(training), state.cuts)


def check_target(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises ValueError, naming the setting, for a shape to which the model cannot be cut."""
    config = model.config
    if target == Target():
        raise ValueError("nothing to cut: give layers, heads or intermediate_size")
    for one, other in (("layers", "keep"), ("heads", "total_heads")):
        if None not in (getattr(target, one), getattr(target, other)):
            raise ValueError(f"{one} and {other}: give one of them")
    if target.heads is not None and operations.is_grouped(model):
        raise ValueError("heads: cannot change where several share keys and values")
    if target.total_heads is not None and hasattr(config, "num_key_value_heads"):
        reason = f"{type(config).__name__} has one number of key-value heads; give heads, a number for every layer"
        raise ValueError(f"total_heads: {reason}")

    heads, depth = config.heads_per_layer, config.num_hidden_layers
    if target.keep is not None:
        if len(target.keep) == 0 or list(target.keep) != sorted({*target.keep} & {*range(depth)}):
            expected = f"some of 0..{depth - 1}, each once, in ascending order"
            raise ValueError(f"layers to keep: expected {expected}, got {list(target.keep)}")
        staying = [heads[layer] for layer in target.keep]
    else:
        staying = sorted(heads)[-(target.layers or depth) :]  # those with the most heads may be the ones that stay
    ranges = {
        "layers": (1, depth),
        "heads": (1, MOST_HEADS if len(set(heads)) == 1 else min(heads)),  # none is added where layers differ
        "total_heads": (len(staying), sum(staying)),
        "intermediate_size": (1, MOST_NEURONS),
    }
    for name, (least, most) in ranges.items():
        value = getattr(target, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name}: expected {least}..{most:,}, got {value:,}")


@dataclass
class _Slimming:
    """The model so far, and its cuts.

    `choosing` is the source's output on the rows by which is chosen what goes; `held_out` that on the rows on which
    the change of the output is recorded.
    """

    model: LeanPreTrainedModel
    choosing: Reference
    held_out: Reference
    cuts: list[Cut] = field(default_factory=list)

    def record(self, part: str, before: object, after: object) -> None:
        """Notes a cut that was made."""
        self.cuts.append(Cut(part, before, after, self.held_out.change(self.model)))

    def cut_layers(self, target: Target) -> None:
        """Keeps the layers that are named, or those of the best choice."""
        layers = list(range(self.model.config.num_hidden_layers))
        chosen = layers if target.keep is None else list(target.keep)
        if target.layers is not None and target.layers < len(layers):
            ranking = measures.rank_layers(self.model, self.choosing, target.layers)
            chosen = list(next(iter(ranking)))
        if chosen != layers:
            self.model = operations.keep_layers(self.model, chosen)
            self.record("layers", layers, chosen)

    def change_heads(self, target: Target) -> None:
        """Leaves those heads out whose absence changes the output least, in every layer or of all layers together.

        Or adds some, to reach the target.
        """
        heads = self.model.config.heads_per_layer
        total = target.total_heads
        if set(heads) == {target.heads} or (target.heads is None and (total is None or total >= sum(heads))):
            return
        if target.heads is not None and target.heads > max(heads):
            self.model = operations.add_heads(self.model, target.heads - max(heads))
            self.record("heads", heads, self.model.config.heads_per_layer)
            return
        means, _ = measures.input_moments(self.model, self.choosing, "self_attn.o_proj")
        changes = measures.changes_by_head(self.model, self.choosing, means)
        if total is None:
            kept = [of_heads.topk(target.heads).indices.tolist() for of_heads in changes]
        else:  # at least one per layer
            kept = [[int(of_heads.argmax())] for of_heads in changes]
            ranking = [
                (change, index, head)
                for index, of_heads in enumerate(changes)
                for head, change in enumerate(of_heads.tolist())
                if head not in kept[index]
            ]
            for _, index, head in sorted(ranking, reverse=True)[: total - len(kept)]:
                kept[index].append(head)
        kept = [sorted(of_layer) for of_layer in kept]
        self.cut_as_zero_or_mean(operations.keep_heads, kept, means)
        self.record("heads", heads, self.model.config.heads_per_layer)

    def change_neurons(self, target: Target) -> None:
        """Leaves those neurons of every MLP out that add the least variance, or adds some, to reach the target."""
        wanted = target.intermediate_size
        width = self.model.config.intermediate_size
        if wanted is None or wanted == width:
            return
        if wanted > width:
            self.model = operations.add_neurons(self.model, wanted - width)
        else:
            means, variances = measures.input_moments(self.model, self.choosing, "mlp.fc2")
            kept = []
            for layer, variance in zip(self.model.base_model.layers, variances):
                added = variance * layer.mlp.fc2.weight.detach().double().square().sum(dim=0)
                kept.append(sorted(added.topk(wanted).indices.tolist()))
            self.cut_as_zero_or_mean(operations.keep_neurons, kept, means)
        self.record("intermediate_size", width, wanted)

    def cut_as_zero_or_mean(self, keep: Callable, kept: list[list[int]], means: list[torch.Tensor]) -> None:
        """The cut that changes the output less: what goes counts as zero, or as its mean."""
        models = [keep(self.model, kept, None), keep(self.model, kept, means)]
        self.model = min(models, key=self.choosing.change)
