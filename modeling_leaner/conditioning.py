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
    seen: dict[int, torch.Tensor] = {}
    handles = [
        module.o_proj.register_forward_pre_hook(lambda _, args, index=index: seen.update({index: args[0]}))
        for index, module in enumerate(attentions)
    ]
    training = model.training
    try:
        model.eval()(**inputs)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    mask = inputs.get("attention_mask")
    medians = []
    for index in range(len(attentions)):
        rows = seen[index].double().cpu()  # (B, T, H·d)
        kept = [row if mask is None else row[mask[place].bool().cpu()] for place, row in enumerate(rows)]
        values = [torch.linalg.svdvals(row) for row in kept]
        medians.append(torch.stack([each[0] / each[-1] for each in values]).median().item())
    return medians
