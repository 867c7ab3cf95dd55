"""The scores of layers and heads, side by side: what a cut chose from, as numbers and as tables."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.table import Table

from ..layers_leaner import LeanPreTrainedModel
from . import measures
from .measures import Layers, Reference


BEST_SHOWN = 3  # choices of layers
EVENLY = "evenly spaced"
INFLUENCE = "block influence"


@dataclass(frozen=True)
class LayerScores:
    """Per layer of a model, and per choice of layers.

    Attributes:
        alone: the change of the output where the layer alone is left out.
        influence: mean of 1 − cosine of the layer's input and output.
        kept: the layers that stay.
        choices: the change of the output by name: the best choices, or the one that was named; the evenly spaced ones;
            that of the layers with the most influence.
    """

    alone: list[float]
    influence: list[float]
    kept: list[int]
    choices: dict[str, float]


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
        return asdict(self)


def layer_names(layers: Iterable[int]) -> str:
    """`(0, 4, 5)` as "0,4,5"."""
    return ",".join(map(str, layers))


def score_layers(
    model: LeanPreTrainedModel, reference: Reference, ranking: Sequence[tuple[Layers, float]]
) -> LayerScores:
    """The scores of layers, beside the choices of the ranking, of which the first is made."""
    depth = model.config.num_hidden_layers
    kept = ranking[0][0]
    everything = tuple(range(depth))
    all_but_one = [everything[:layer] + everything[layer + 1 :] for layer in everything]
    influence = measures.block_influence(model, reference.batches)
    most = sorted(sorted(everything, key=lambda layer: -influence[layer])[: len(kept)])
    rivals = {f"{INFLUENCE} {layer_names(most)}": tuple(most)}
    for layers in measures.evenly_spaced(depth, len(kept)):
        rivals[f"{EVENLY} {layer_names(layers)}"] = layers
    changes = measures.changes_by_layers(model, reference, sorted({*all_but_one, *rivals.values()}))
    choices = {layer_names(layers): change for layers, change in ranking[:BEST_SHOWN]}
    choices |= {name: changes[layers] for name, layers in rivals.items()}
    return LayerScores([changes[layers] for layers in all_but_one], influence, list(kept), choices)


def score_heads(layers: list[int], changes: list[torch.Tensor], before: float, kept: list[list[int]]) -> HeadScores:
    """The scores of heads, from the change of the output without each and that with all of them."""
    return HeadScores(layers, [(layer - before).tolist() for layer in changes], kept)


def score_tables(scores: Scores) -> list[Table]:
    """A table of layers, one of choices of layers, and one of heads."""
    tables = []
    if scores.layers is not None:
        tables += [layer_table(scores.layers), choice_table(scores.layers)]
    if scores.heads is not None:
        tables.append(head_table(scores.heads))
    return tables


def layer_table(scores: LayerScores) -> Table:
    table = Table(title="layers", title_justify="left", box=None)
    for name in ("layer", "change without it", "block influence", ""):
        table.add_column(name, justify="right")
    for layer, (alone, influence) in enumerate(zip(scores.alone, scores.influence)):
        table.add_row(str(layer), f"{alone:.3f}", f"{influence:.3f}", stays(layer in scores.kept))
    return table


def choice_table(scores: LayerScores) -> Table:
    table = Table(title="choices of layers", title_justify="left", box=None)
    table.add_column("layers that stay")
    table.add_column("change", justify="right")
    table.add_column("")
    for name, change in scores.choices.items():
        table.add_row(name, f"{change:.3f}", stays(name == layer_names(scores.kept)))
    return table


def head_table(scores: HeadScores) -> Table:
    """A row per layer: how many heads stay, and the least and the most that one of them, or of the others, adds."""
    table = Table(title="heads, by what the absence of one adds to the change", title_justify="left", box=None)
    for name in ("layer", "heads", "stay", "one that goes adds", "one that stays adds"):
        table.add_column(name, justify="right")
    for layer, added, kept in zip(scores.layers, scores.added, scores.kept):
        staying = [added[head] for head in kept]
        going = [change for head, change in enumerate(added) if head not in kept]
        table.add_row(str(layer), str(len(added)), str(len(kept)), extent(going), extent(staying))
    return table


def extent(changes: list[float]) -> str:
    """The smallest and the largest change, as text."""
    if not changes:
        return "–"
    return f"{min(changes):.4f} to {max(changes):.4f}"


def stays(kept: bool) -> str:
    return "stays" if kept else ""
