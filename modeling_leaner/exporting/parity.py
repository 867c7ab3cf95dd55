"""How far an exported file is from the model, on inputs of other sizes than it was traced with."""

from dataclasses import dataclass

import torch

from .files import Forward
from .graph import ExportableModel, Inputs, Size, longest, make_inputs


# The largest difference that a file may have, as in Parity:
IN_FLOAT32 = 1e-3  # rounding gives 1e-6, a mask or a cache that is ignored more than 1e-2
RANKS_BY_TOKEN = {"last_hidden_state": 3, "hidden_states": 3, "logits": 3, "start_logits": 2, "end_logits": 2}
SIZES = (Size(rows=3, length=20, past=11), Size(rows=1, length=6), Size(rows=1, length=1, past=9))


@dataclass(frozen=True)
class Parity:
    """`difference`: the largest, over the largest magnitude of the same output. `cosine`: of whole outputs, the
    smallest. `same_choice`: the share of largest logits that are the same; None without logits to choose from."""

    difference: float
    cosine: float
    same_choice: float | None


def sizes(exportable: ExportableModel) -> list[Size]:
    """Of the inputs that are compared, none longer than the model reads, without a cache where it has none."""
    most = longest(exportable)
    fitting = []
    for size in SIZES:
        past = size.past if exportable.keeps_cache else 0
        length = size.length
        if most is not None:
            past = min(past, most // 2)
            length = min(length, most - past)
        fitting.append(Size(size.rows, length, past))
    return fitting


def without_padding(name: str, output: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """The part of an output that means something: nothing at padding.

    An output has a place for each token, (B, T, ...), by its name and rank: logits (B, num_labels) are of whole rows.
    """
    mask = inputs.get("attention_mask")
    if mask is None or mask.ndim > 2:
        return output
    if name.startswith("present."):
        return output[mask.all(dim=1)]
    quantity = name.partition(".")[0]  # hidden_states.0, a layer each
    if RANKS_BY_TOKEN.get(quantity) != output.ndim:
        return output
    length = inputs["input_ids"].shape[1]
    return output[mask[:, -length:].bool()]


@torch.inference_mode()
def compare(exportable: ExportableModel, run: Forward) -> Parity:
    """Runs both on made-up inputs of `sizes`, without what lies at padding.

    Raises KeyError for an output that the file lacks.
    """
    largest = 0.0
    cosine = 1.0
    same = []
    for seed, size in enumerate(sizes(exportable), start=1):
        inputs = make_inputs(exportable, size, seed)
        given = run(inputs)
        for name, expected in exportable(**inputs).items():
            wanted = without_padding(name, expected, inputs)
            got = without_padding(name, given[name], inputs)
            if wanted.numel() == 0:
                continue
            distance = (got - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny)
            largest = max(largest, distance.nan_to_num(nan=torch.inf).item())
            alike = torch.cosine_similarity(got.double().flatten(), wanted.double().flatten(), dim=0)
            cosine = min(cosine, alike.nan_to_num(nan=-1.0).item())
            if name == "logits" and wanted.shape[-1] > 1:
                same.append((got.argmax(-1) == wanted.argmax(-1)).flatten())
    return Parity(largest, cosine, torch.cat(same).float().mean().item() if same else None)
