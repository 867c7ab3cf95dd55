"""Conditioning of attention, measured: how near the concatenated head outputs of a layer are to losing rank."""

import torch
from transformers import PreTrainedModel

from .layers_leaner import LeanAttention


@torch.no_grad()
def head_condition_numbers(model: PreTrainedModel, **inputs: torch.Tensor) -> list[float]:
    """κ of the concatenated head outputs A of each attention, the median over the rows of a batch.

    A is what `o_proj` reads, (T, H·d) for one row, without its bias or any norm; κ(A) = σ_max / σ_min over the
    min(T, H·d) singular values, the matrix of theorem 3.2 of Saratchandran et al. 2025, arXiv 2505.20802. Where
    `attention_mask` (B, T) is given, padded positions are left out.

    Returns:
        one number ≥ 1 per layer, from the first; infinite where most rows have lost rank.

    Raises:
        ValueError: the model has no attention of this family.
    """
    attentions = [module for module in model.modules() if type(module).__name__ == LeanAttention.__name__]
    if not attentions:
        raise ValueError(f"{type(model).__name__}: no LeanAttention in it")
    head_outputs: dict[torch.nn.Module, torch.Tensor] = {}

    def keep(projection: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        head_outputs[projection] = inputs[0]

    handles = [attention.o_proj.register_forward_pre_hook(keep) for attention in attentions]
    training = model.training
    try:
        model.eval()(**inputs)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    mask = inputs.get("attention_mask")
    return [median_condition_number(head_outputs[attention.o_proj], mask) for attention in attentions]


def median_condition_number(head_outputs: torch.Tensor, mask: torch.Tensor | None) -> float:
    """The median of κ over the rows of (B, T, H·d); positions that `mask` (B, T) pads are left out."""
    conditions = []
    for index, row in enumerate(head_outputs.double().cpu()):
        if mask is not None:
            row = row[mask[index].bool().cpu()]
        singular_values = torch.linalg.svdvals(row)
        conditions.append(singular_values[0] / singular_values[-1])
    return torch.stack(conditions).median().item()
