"""How far an exported file is from the model, on inputs of other sizes than it was traced with."""

from dataclasses import dataclass

import torch

from .files import Forward
from .graph import Graph, Inputs, Size, longest, make_inputs


SIZES = (Size(rows=3, length=20, past=11), Size(rows=1, length=6), Size(rows=1, length=1, past=9))


@dataclass(frozen=True)
class Parity:
    """`difference`: the largest, over the largest magnitude of the same output. `same_choice`: the share of largest
    logits that are the same; None without logits to choose from."""

    difference: float
    same_choice: float | None


def sizes(graph: Graph) -> list[Size]:
    """Of the inputs that are compared, none longer than the model reads, without a cache where it has none."""
    most = longest(graph)
    fitting = []
    for size in SIZES:
        past = size.past if graph.keeps_cache else 0
        length = size.length
        if most is not None:
            past = min(past, most // 2)
            length = min(length, most - past)
        fitting.append(Size(size.rows, length, past))
    return fitting


def without_padding(name: str, output: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """The part of an output that means something: nothing at padding."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.ndim > 2:
        return output
    if name.startswith("present."):
        return output[mask.all(dim=1)]
    tokens = inputs["input_ids"].shape
    if output.shape[:2] == tokens:
        return output[mask[:, -tokens[1] :].bool()]
    return output


@torch.inference_mode()
def compare(graph: Graph, run: Forward) -> Parity:
    """The exported file beside the model itself."""
    largest = 0.0
    same = []
    for seed, size in enumerate(sizes(graph), start=1):
        inputs = make_inputs(graph, size, seed)
        given = run(inputs)
        for name, expected in graph(**inputs).items():
            wanted = without_padding(name, expected, inputs)
            got = without_padding(name, given[name], inputs)
            if wanted.numel() == 0:
                continue
            distance = (got - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny)
            largest = max(largest, distance.nan_to_num(nan=torch.inf).item())
            if name == "logits" and wanted.shape[-1] > 1:
                same.append((got.argmax(-1) == wanted.argmax(-1)).flatten())
    share = None
    if same:
        share = torch.cat(same).float().mean().item()
    return Parity(largest, share)
