"""The scores of layers and heads: what a cut chose from, as scores.json has them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..layers_leaner import LeanPreTrainedModel
from . import measures
from .measures import BLOCK_INFLUENCE, EVENLY_SPACED, LayerChoice, Reference


BEST_SHOWN = 3  # choices of layers, that which was made among them, beside those by a rule


@dataclass(frozen=True)
class LayerScores:
    """Per layer of a model, and per choice of layers.

    Attributes:
        alone: the change of the output where the layer alone is left out.
        influence: mean of 1 − cosine of the layer's input and output.
        kept: the layers that stay.
        choices: the one that was made; the best others, none where the layers were named; that of the layers with the
            most influence; the evenly spaced ones.
    """

    alone: list[float]
    influence: list[float]
    kept: list[int]
    choices: list[LayerChoice]

    def changes_by_name(self) -> dict[str, float]:
        """The change of the output by the name of each choice, for JSON."""
        return {choice.name: choice.change for choice in self.choices}


@dataclass(frozen=True)
class HeadScores:
    """Per layer and head.

    Attributes:
        layers: the number that each layer has in the source.
        added: per layer (H), what holding the head alone at its mean adds to the change of the output; below zero
            where the output comes nearer to the source's.
        kept: per layer, the heads that stay.
    """

    layers: list[int]
    added: list[list[float]]
    kept: list[list[int]]


@dataclass(frozen=True)
class Scores:
    """What was measured for the cuts of a model; None of a part that was not cut."""

    layers: LayerScores | None = None
    heads: HeadScores | None = None

    def is_empty(self) -> bool:
        return self.layers is None and self.heads is None

    def as_document(self) -> dict[str, object]:
        """The numbers, for JSON."""
        document = asdict(self)
        if self.layers is not None:
            document["layers"]["choices"] = self.layers.changes_by_name()
        return document


def score_layers(
    model: LeanPreTrainedModel, reference: Reference, chosen: LayerChoice, ranking: Sequence[LayerChoice]
) -> LayerScores:
    """The scores of layers, and beside the chosen ones the best others of the ranking and those by a rule."""
    depth = model.config.num_hidden_layers
    count = len(chosen.layers)
    everything = tuple(range(depth))
    all_but_one = [everything[:layer] + everything[layer + 1 :] for layer in everything]
    influence = measures.block_influence(model, reference.batches)
    most_influential = layers_with_most(influence, count)
    even = measures.evenly_spaced(depth, count)
    candidates = sorted({*all_but_one, most_influential, *even})
    changes = measures.changes_by_layers(model, reference, candidates)
    alone = [changes[kept] for kept in all_but_one]
    others = [choice for choice in ranking if choice.layers != chosen.layers]
    choices = [chosen, *others[: BEST_SHOWN - 1]]
    choices.append(LayerChoice(most_influential, changes[most_influential], BLOCK_INFLUENCE))
    choices += [LayerChoice(kept, changes[kept], EVENLY_SPACED) for kept in even]
    return LayerScores(alone, influence, list(chosen.layers), choices)


def layers_with_most(influence: Sequence[float], count: int) -> tuple[int, ...]:
    """The `count` layers with the most influence, in ascending order; of equal ones the first."""
    most_first = sorted(range(len(influence)), key=lambda layer: -influence[layer])
    return tuple(sorted(most_first[:count]))
