"""Conditioning of attention, measured: how near its matrices are to losing rank, and how alike its heads are."""

from dataclasses import dataclass
from math import inf

import torch
from transformers import PreTrainedModel

from .layers_leaner import LeanAttention
from .models import evaluating, is_named_as, without_unpadding


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a matrix (M, N).

    Attributes:
        size: how many there are, min(M, N).
        rank: how many are above max(M, N) · ε · σ_max, ε of the matrix's dtype.
        largest: σ_max.
        smallest: the smallest of those that the rank counts; 0 of a matrix of zeros.
    """

    size: int
    rank: int
    largest: float
    smallest: float

    @classmethod
    def of(cls, matrix: torch.Tensor) -> "Spectrum":
        """Raises ValueError for a matrix with NaN or infinity."""
        if not matrix.isfinite().all():
            raise ValueError(f"a matrix {list(matrix.shape)} holds NaN or infinity, which has no singular values")
        values = torch.linalg.svdvals(matrix)
        counted = values[values > max(matrix.shape) * torch.finfo(matrix.dtype).eps * values[0]]
        smallest = counted[-1].item() if len(counted) else 0.0
        return cls(len(values), len(counted), values[0].item(), smallest)

    @property
    def has_full_rank(self) -> bool:
        return self.rank == self.size

    @property
    def condition_number(self) -> float:
        """κ = σ_max / σ_min, infinite where rank is lost."""
        if not self.has_full_rank:
            return inf
        return self.largest / self.smallest


def query_key_spectrum(query: torch.Tensor, key: torch.Tensor) -> Spectrum:
    """Of W_Q W_Kᵀ of one head, whose rank is at most its size: W_Q and W_K (D, d).

    By QR of both factors: with W = Q R the product is Q_Q (R_Q R_Kᵀ) Q_Kᵀ, of which the middle (d, d) has the non-zero
    singular values.
    """
    query_factor = torch.linalg.qr(query, mode="r").R
    key_factor = torch.linalg.qr(key, mode="r").R
    return Spectrum.of(query_factor @ key_factor.mT)


def attention_entropy(weights: torch.Tensor) -> torch.Tensor:
    """Mean over queries of the entropy of each head's weights, in nats: (H, T, S) → (H)."""
    return torch.special.entr(weights).sum(dim=-1).mean(dim=-1)


def head_similarity(heads: torch.Tensor) -> torch.Tensor:
    """Linear CKA of each pair of heads (Kornblith et al. 2019, arXiv 1905.00414): outputs (T, H, d) → (H, H).

    1 where one head's outputs are the other's, turned and scaled. Of a head whose output is the same for every token
    it is NaN. With few tokens beside the head size it is too high.
    """
    tokens, count, size = heads.shape
    centred = (heads - heads.mean(dim=0)).reshape(tokens, count * size)
    products = (centred.mT @ centred).reshape(count, size, count, size)
    squares = products.square().sum(dim=(1, 3))  # ‖A_iᵀ A_j‖_F²
    own = squares.diagonal().sqrt()
    return squares / torch.outer(own, own)


@torch.no_grad()
def head_condition_numbers(model: PreTrainedModel, **inputs: torch.Tensor) -> list[float]:
    """κ of the concatenated head outputs A of each attention, the median over the rows of a batch.

    A is what `o_proj` reads, (T, H·d) for one row, without its bias or any norm; κ(A) = σ_max / σ_min over the
    min(T, H·d) singular values, the matrix of theorem 3.2 of Saratchandran et al. 2025, arXiv 2505.20802. Where
    `attention_mask` (B, T) is given, padded positions are left out.

    Returns:
        one number ≥ 1 per layer, from the first; infinite only where σ_min is exactly 0, NaN of zeros alone. Above
        1/ε of the model's dtype, 8e6 in float32, it is rounding; `Spectrum` says there that rank is lost. The median
        is the lower of the middle two.

    Raises:
        ValueError: the model has no attention of this family, or a row has no tokens.
    """
    attentions = [module for module in model.modules() if is_named_as(module, LeanAttention)]
    if not attentions:
        raise ValueError(f"{type(model).__name__}: no LeanAttention in it")
    mask = inputs.get("attention_mask")
    conditions: dict[torch.nn.Module, float] = {}

    def measure(projection: torch.nn.Module, arguments: tuple[torch.Tensor]) -> None:
        conditions[projection] = median_condition_number(arguments[0], mask)

    handles = [attention.o_proj.register_forward_pre_hook(measure) for attention in attentions]
    try:
        with evaluating(model), without_unpadding(model):
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return [conditions[attention.o_proj] for attention in attentions]


def median_condition_number(head_outputs: torch.Tensor, mask: torch.Tensor | None) -> float:
    """The median of κ over the rows of (B, T, H·d), without the positions that `mask` (B, T) pads.

    Of multiple choice the mask is (B / C, C, T). Raises ValueError for a row without tokens.
    """
    if mask is not None:
        mask = mask.flatten(0, -2)
    conditions = []
    for index, row in enumerate(head_outputs.double().cpu()):
        if mask is not None:
            row = row[mask[index].bool().cpu()]
        if len(row) == 0:
            raise ValueError(f"index {index} of the batch has no tokens, expected one or more")
        singular_values = torch.linalg.svdvals(row)
        conditions.append(singular_values[0] / singular_values[-1])
    return torch.stack(conditions).median().item()
