# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""Attention of query, key and value over heads: eager, by plain products, by blocks, by SDPA; "lean" chooses.

Shapes: B batch, T query tokens, S key tokens, H query heads, K key-value heads, d head_dim.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import FunctionCtx, once_differentiable
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .dropout_leaner import draw_kept, drop, drops_here, is_eager_on_cpu, scale_of_kept


# transformers' registries are global: the module's own name keeps this attention apart from that of another version of
# this file, which a second remote repository may bring into the process.
LEAN_ATTENTION = f"lean_{__name__}"
LONGEST_PRODUCTS = 640  # keys, up to which products were measured to beat SDPA in bfloat16 training on a CPU
SCORES_OF_A_BLOCK = 2**18  # a megabyte in float32: what is done to a block stays in a core's cache
ROWS_OF_A_CAUSAL_BLOCK = 64  # queries; the keys after them are left out


def per_query_head(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Keys or values (B, K, S, d) → (B, H, S, d)."""
    if module.num_key_value_groups == 1:
        return states
    return states.repeat_interleave(module.num_key_value_groups, dim=1)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain softmax attention: query (B, H, T, d), key and value (B, K, S, d) → (B, T, H, d), weights (B, H, T, S)."""
    key = per_query_head(module, key)
    value = per_query_head(module, value)
    scores = query @ key.transpose(2, 3) * scaling  # (B, H, T, S)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = drop(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def whole_mask(
    mask: torch.Tensor | None, is_causal: bool, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """The mask or, where SDPA would do without one in causal attention, the triangle (T, S) that it stands for."""
    queries, keys = query.shape[2], key.shape[2]
    if mask is not None or not is_causal or queries == 1:
        return mask
    return torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()


def added_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores of `dtype`, from one of SDPA's masks: True or 0 is what is seen."""
    least = torch.finfo(dtype).min / 2  # half, so that sums stay finite: a softmax over -inf alone is NaN
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, least)
    return mask.clamp(min=least).to(dtype)


def products_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """As eager attention, with SDPA's masks and the softmax in the dtype of the query.

    The softmax computes in float32 all the same, but in half precision nothing of (B, H, T, S) is kept in float32.
    """
    key = per_query_head(module, key)
    value = per_query_head(module, value)
    if is_causal is None:
        is_causal = module.is_causal
    mask = whole_mask(attention_mask, is_causal, query, key)
    scores = (query * scaling) @ key.transpose(2, 3)  # (B, H, T, S)
    if mask is not None:
        scores = scores + added_mask(mask, scores.dtype)
    weights = nn.functional.softmax(scores, dim=-1)
    weights = drop(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def blocks_of(scores: torch.Size, is_causal: bool) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Cuts scores (B, H, T, S) into blocks: slices of all four. Causal blocks end with the key of their last query."""
    batch, heads, queries, keys = scores
    rows = min(queries, max(1, SCORES_OF_A_BLOCK // keys))
    if is_causal:
        rows = min(rows, ROWS_OF_A_CAUSAL_BLOCK)
    some_heads = max(1, min(heads, SCORES_OF_A_BLOCK // (rows * keys)))
    items = max(1, SCORES_OF_A_BLOCK // (rows * keys * heads))
    for item in range(0, batch, items):
        for head in range(0, heads, some_heads):
            for row in range(0, queries, rows):
                seen = row + rows if is_causal else keys
                yield slice(item, item + items), slice(head, head + some_heads), slice(row, row + rows), slice(0, seen)


def weights_of(
    block: tuple[slice, ...], query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> torch.Tensor:
    """The attention weights of a block.

    `mask` is added to the scores: it expands to (B, H, T, S) or, causal, is the triangle of any block's last keys.
    """
    items, heads, queries, keys = block
    scores = query[items, heads, queries] @ key[items, heads, keys].transpose(2, 3)
    if is_causal:
        last_keys = scores[..., queries]
        rows = last_keys.shape[-1]
        last_keys += mask[:rows, :rows]
    elif mask is not None:
        scores += mask.expand(*query.shape[:3], key.shape[2])[block]
    return scores.softmax(-1)


class AttentionByBlocks(torch.autograd.Function):
    """Attention with dropout on a CPU, a block of scores at a time.

    For the backward pass it keeps one byte a score, what dropout left; the weights are computed again, as in
    FlashAttention (Dao et al. 2022, section 3.1), but in whole rows: a CPU has the memory for them.
    """

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: FunctionCtx,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        is_causal: bool,
        dropout: float,
    ) -> torch.Tensor:
        """Query (B, H, T, d), already scaled, key and value (B, H, S, d), mask as of `weights_of` → (B, H, T, d)."""
        kept = draw_kept(torch.Size((*query.shape[:3], key.shape[2])), dropout)
        output = torch.empty_like(query)
        for block in blocks_of(kept.shape, is_causal):
            items, heads, queries, keys = block
            weights = weights_of(block, query, key, mask, is_causal)
            weights *= kept[block].to(weights.dtype)
            output[items, heads, queries] = weights @ value[items, heads, keys]
        ctx.save_for_backward(query, key, value, mask, kept)
        ctx.is_causal = is_causal
        ctx.scale = scale_of_kept(dropout)
        return output.mul_(ctx.scale)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: FunctionCtx, of_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of query, key and value; `of_…` is the gradient of what is named."""
        query, key, value, mask, kept = ctx.saved_tensors
        of_output = of_output.contiguous() * ctx.scale
        of_query = torch.empty_like(query)
        of_key = torch.zeros_like(key)
        of_value = torch.zeros_like(value)
        for block in blocks_of(kept.shape, ctx.is_causal):
            items, heads, queries, keys = block
            weights = weights_of(block, query, key, mask, ctx.is_causal)
            kept_here = kept[block].to(weights.dtype)
            of_rows = of_output[items, heads, queries]
            of_weights = of_rows @ value[items, heads, keys].transpose(2, 3) * kept_here
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[items, heads, queries] = of_scores @ key[items, heads, keys]
            of_key[items, heads, keys] += of_scores.transpose(2, 3) @ query[items, heads, queries]
            of_value[items, heads, keys] += (weights * kept_here).transpose(2, 3) @ of_rows
        return of_query, of_key, of_value, None, None, None


def block_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float,
    is_causal: bool | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, None]:
    """As products, but by blocks, in float32 at least, and without the weights; for dropout on a CPU alone."""
    key = per_query_head(module, key)
    value = per_query_head(module, value)
    if is_causal is None:
        is_causal = module.is_causal
    skips_keys = attention_mask is None and is_causal and 1 < query.shape[2] == key.shape[2]
    given = query.dtype
    dtype = torch.promote_types(given, torch.float32)
    mask = whole_mask(attention_mask, is_causal, query, key)
    if skips_keys:
        mask = mask[:ROWS_OF_A_CAUSAL_BLOCK, :ROWS_OF_A_CAUSAL_BLOCK]
    if mask is not None:
        mask = added_mask(mask, dtype)
    query, key, value = (states.to(dtype).contiguous() for states in (query, key, value))
    output = AttentionByBlocks.apply(query * scaling, key, value, mask, skips_keys, dropout)
    return output.to(given).transpose(1, 2).contiguous(), None


def products_are_faster(dtype: torch.dtype, length: int) -> bool:
    """Whether plain matrix products beat SDPA in uncompiled training on a CPU without dropout; `length` in keys."""
    return dtype == torch.bfloat16 and length <= LONGEST_PRODUCTS


def fastest_kernel(module: nn.Module, query: torch.Tensor, key: torch.Tensor, dropout: float) -> Callable:
    """What `leaner bench` measured to be fastest: SDPA, but in uncompiled training on a CPU.

    There SDPA has no kernel with dropout and takes products in float32 itself; and its backward pass in bfloat16 is
    slower than products, until their (T, S) tensors leave the caches. The choice does not ask for gradients: a layer
    that is computed again in the backward pass takes the same kernel.
    """
    if not module.training or not is_eager_on_cpu(query):
        return sdpa_attention_forward
    if drops_here(query, dropout):
        return block_attention_forward
    if products_are_faster(query.dtype, key.shape[2]):
        return products_attention_forward
    return sdpa_attention_forward


def lean_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`attn_implementation="lean"`: the fastest kernel, or products where the weights are asked for."""
    forward = fastest_kernel(module, query, key, dropout)
    if kwargs.get("output_attentions", module.config.output_attentions):
        forward = products_attention_forward
    return forward(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)


AttentionInterface.register(LEAN_ATTENTION, lean_attention_forward)
AttentionMaskInterface.register(LEAN_ATTENTION, sdpa_mask)
