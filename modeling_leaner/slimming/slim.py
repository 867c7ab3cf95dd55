"""A leaner model from a trained one: choose what to leave out, cut it, and say what that did to the output."""

from dataclasses import dataclass

from ..layers_leaner import LeanPreTrainedModel
from ..models import Pool, evaluating, mean_over_tokens
from . import measures, operations
from .measures import Batch, Reference


MOST_HEADS = 4096  # of a layer
MOST_NEURONS = 2**20  # of an MLP


@dataclass(frozen=True)
class Target:
    """The shape to reach; what is None stays as it is.

    `keep` names layers, in any order; `layers` counts them. `heads` is a number for every layer, `total_heads` one
    for all layers together, which the scores share out. More `heads` or a larger `intermediate_size` than the model
    has are added so that they contribute nothing yet (`operations.add_heads`, `add_neurons`).
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
        choosing_batches: used to choose what to remove.
        held_out_batches: others, on which the change of the output is measured.
        pool: a bare encoder's embeddings (B, D) from its last states (B, T, D) and the mask (B, T).

    Raises:
        ValueError: the model cannot have that shape, or has it already, or its output says nothing.
    """
    check_target(model, target)
    training, cuts = model.training, []
    with evaluating(model):
        choosing, held_out = [Reference.of(model, batches, pool) for batches in (choosing_batches, held_out_batches)]
        layers = list(range(model.config.num_hidden_layers))
        if target.layers is not None and target.layers < len(layers):
            chosen = list(next(iter(measures.rank_layers(model, choosing, target.layers))))
        else:
            chosen = layers if target.keep is None else sorted({*target.keep})
        if chosen != layers:
            model = operations.keep_layers(model, chosen)
            cuts.append(Cut("layers", layers, chosen, held_out.change(model)))

        heads = model.config.heads_per_layer
        model = _with_heads(model, target, choosing)
        if model.config.heads_per_layer != heads:
            cuts.append(Cut("heads", heads, model.config.heads_per_layer, held_out.change(model)))

        neurons, wanted = model.config.intermediate_size, target.intermediate_size
        if wanted is not None and wanted > neurons:
            model = operations.add_neurons(model, wanted - neurons)
        elif wanted is not None and wanted < neurons:  # those that add the least variance go, as zero or as their mean
            means, variances = measures.input_moments(model, choosing, "mlp.fc2")
            kept = []
            for layer, variance in zip(model.base_model.layers, variances):
                added = variance * layer.mlp.fc2.weight.detach().double().square().sum(dim=0)
                kept.append(sorted(added.topk(wanted).indices.tolist()))
            model = min((operations.keep_neurons(model, kept, each) for each in (None, means)), key=choosing.change)
        if model.config.intermediate_size != neurons:
            cuts.append(Cut("intermediate_size", neurons, wanted, held_out.change(model)))
    if not cuts:
        raise ValueError("nothing to remove: the model has this shape")
    return Slimmed(model.train(training), cuts)


def check_target(model: LeanPreTrainedModel, target: Target) -> None:
    """Raises ValueError, naming the setting, for a shape to which the model cannot be cut."""
    config = model.config
    is_grouped = config.key_value_heads_per_layer != config.heads_per_layer  # some heads share keys and values
    may_set_heads = not hasattr(config, "num_key_value_heads") or (
        target.total_heads is None and not (is_grouped and target.heads is not None)
    )
    heads, depth = config.heads_per_layer, config.num_hidden_layers
    if target.keep is not None:
        staying = [count for layer, count in enumerate(heads) if layer in target.keep]
    else:
        staying = sorted(heads)[-(target.layers or depth) :]  # those with the most heads may be the ones that stay
    ranges = [
        ("layers", len(target.keep) if target.keep is not None else target.layers, 1, depth),
        *(("layers to keep", layer, 0, depth - 1) for layer in target.keep or ()),
        # none is added where layers differ
        ("heads", target.heads, 1, MOST_HEADS if len(set(heads)) == 1 else min(heads)),
        ("total_heads", target.total_heads, len(staying), sum(staying)),
        ("intermediate_size", target.intermediate_size, 1, MOST_NEURONS),
    ]
    rules = [
        (None in (target.layers, target.keep), "layers and keep: give one of them"),
        (None in (target.heads, target.total_heads), "heads and total_heads: give one of them"),
        (
            may_set_heads,
            f"{type(config).__name__} has one number of key-value heads: "
            "give heads, not total_heads, and only where none share keys and values",
        ),
    ]
    for name, value, least, most in ranges:
        if value is not None:
            rules.append((least <= value <= most, f"{name}: expected {least}..{most:,}, got {value:,}"))
    for holds, message in rules:
        if not holds:
            raise ValueError(message)


def _with_heads(model: LeanPreTrainedModel, target: Target, choosing: Reference) -> LeanPreTrainedModel:
    """Without those heads whose absence changes the output least, in every layer or of all layers together.

    Or with more of them, to reach the target. What goes counts as zero or as its mean, whichever changes less.
    """
    heads, total = model.config.heads_per_layer, target.total_heads
    if set(heads) == {target.heads} or (target.heads is None and (total is None or total >= sum(heads))):
        return model
    if target.heads is not None and target.heads > max(heads):
        return operations.add_heads(model, target.heads - max(heads))
    means, _ = measures.input_moments(model, choosing, "self_attn.o_proj")
    changes = measures.changes_by_head(model, choosing, means)
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
    return min((operations.keep_heads(model, kept, each) for each in (None, means)), key=choosing.change)
