# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""Attention of query, key and value over heads: eager, by plain products, by blocks, by SDPA; "lean" chooses.

Shapes: B batch, T query tokens, S key tokens, H query heads, K key-value heads, d head_dim.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .dropout_leaner import draw_kept, drop, drops_here, is_eager_on_cpu, scale_of_kept


# transformers' registries are global: the module's own name keeps this attention apart from that of another version of
# this file, which a second remote repository may bring into the process.
LEAN_ATTENTION = f"lean_{__name__}"
LONGEST_PRODUCTS = 640  # keys, up to which products were measured to beat blocks in bfloat16 training without dropout
KEYS_WORTH_SKIPPING = range(128, 640)  # causal inference in float32: blocks were measured to beat SDPA here
SCORES_OF_A_BLOCK = 2**18  # in float32, a megabyte; in bfloat16 four times as many: half and twice were slower
ROWS_OF_A_CAUSAL_BLOCK = 64  # queries; the keys after them are left out


def per_query_head(module: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Keys or values (B, K, S, d) → (B, H, S, d)."""
    groups = module.num_key_value_groups
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


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
    scores = masked(query @ key.transpose(2, 3) * scaling, attention_mask)  # (B, H, T, S)
    dtype = torch.promote_types(query.dtype, torch.float32)
    weights = nn.functional.softmax(scores, dim=-1, dtype=dtype).to(query.dtype)
    weights = drop(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def mask_or_triangle(
    mask: torch.Tensor | None, is_causal: bool, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor | None:
    """The mask; where causal attention has none, the triangle (T, S) that SDPA would assume."""
    if mask is not None or not is_causal or query.shape[2] == 1:
        return mask
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()


def without_blind_rows(output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The output (B, H, T, d), 0 of queries that see no key, as of SDPA: padding on the left of causal attention."""
    if mask is None:
        return output
    seen = mask if mask.dtype == torch.bool else mask > -torch.inf
    return output * seen.any(-1, keepdim=True)


def masked(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Scores by a mask: what is seen is True, 1 as an integer, or 0 in floating point, which is added; None: all."""
    if mask is None:
        return scores
    least = torch.finfo(scores.dtype).min / 2  # half, so that sums stay finite: a softmax over -inf alone is NaN
    if not mask.is_floating_point():
        return torch.where(mask.bool(), scores, least)
    return scores + mask.to(scores.dtype).clamp(min=least)


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
    is_causal = module.is_causal if is_causal is None else is_causal
    mask = mask_or_triangle(attention_mask, is_causal, query, key)
    scores = masked((query * scaling) @ key.transpose(2, 3), mask)  # (B, H, T, S)
    weights = nn.functional.softmax(scores, dim=-1)
    weights = drop(weights, dropout, module.training)
    output = without_blind_rows(weights @ value, mask)
    return output.transpose(1, 2).contiguous(), weights


def blocks_of(
    scores: torch.Size, skips_keys: bool, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Cuts scores (B, H, T, S), no size of which is 0, into blocks: slices of items, heads, queries and keys.

    With `skips_keys` a block ends with the key of its last query, as causal attention does.
    """
    most = SCORES_OF_A_BLOCK * (4 if dtype == torch.bfloat16 else 1)
    batch, num_heads, num_queries, num_keys = scores
    most_queries = ROWS_OF_A_CAUSAL_BLOCK if skips_keys else num_queries
    some_queries = min(num_queries, most_queries, max(1, most // num_keys))
    some_heads = min(num_heads, max(1, most // (some_queries * num_keys)))
    some_items = max(1, most // (some_queries * num_keys * num_heads))
    for item in range(0, batch, some_items):
        items = slice(item, item + some_items)
        for head in range(0, num_heads, some_heads):
            heads = slice(head, head + some_heads)
            for query in range(0, num_queries, some_queries):
                queries = slice(query, query + some_queries)
                last_key = queries.stop if skips_keys else num_keys
                yield items, heads, queries, slice(0, last_key)


def weights_of(
    block: tuple[slice, ...], query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, skips_keys: bool
) -> torch.Tensor:
    """The attention weights of a block; `mask` is one of SDPA's, and None where keys are skipped."""
    items, heads, queries, keys = block
    scores = query[items, heads, queries] @ key[items, heads, keys].transpose(2, 3)
    if skips_keys:
        rows = scores.shape[2]
        unseen = torch.full((rows, rows), -torch.inf, dtype=scores.dtype).triu(1)
        scores[..., queries] += unseen  # the last keys of the block are those of its queries
    elif mask is not None:
        scores = masked(scores, mask.expand(*query.shape[:3], key.shape[2])[block])
    return scores.softmax(-1)


class AttentionByBlocks(torch.autograd.Function):
    """Attention on a CPU, a block of scores at a time, with or without dropout.

    For the backward pass it keeps one byte a score: whether dropout kept it. The weights are computed again, as in
    FlashAttention (Dao et al. 2022, section 3.1), but the softmax of a row at once, not in tiles of keys. The
    backward pass consists of differentiable operations, so there are second derivatives (`create_graph`), too.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        skips_keys: bool,
        dropout: float,
    ) -> torch.Tensor:
        """Query (B, H, T, d), already scaled, key and value (B, H, S, d), mask as of `weights_of` → (B, H, T, d)."""
        scores = torch.Size((*query.shape[:3], key.shape[2]))
        kept = draw_kept(scores, dropout) if dropout > 0 else None
        output = torch.empty_like(query)
        with torch.autocast("cpu", enabled=False):
            for block in blocks_of(scores, skips_keys, query.dtype):
                items, heads, queries, keys = block
                weights = weights_of(block, query, key, mask, skips_keys)
                if kept is not None:
                    weights *= kept[block].to(weights.dtype)
                torch.matmul(weights, value[items, heads, keys], out=output[items, heads, queries])
        ctx.save_for_backward(query, key, value, mask, kept)
        ctx.skips_keys = skips_keys
        ctx.scale = scale_of_kept(dropout)
        return output if kept is None else output.mul_(ctx.scale)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, mask, kept = ctx.saved_tensors
        scores = torch.Size((*query.shape[:3], key.shape[2]))
        grad_output = grad_output.contiguous() * ctx.scale
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros_like(key)
        grad_value = torch.zeros_like(value)
        with torch.autocast("cpu", enabled=False):
            for block in blocks_of(scores, ctx.skips_keys, query.dtype):
                items, heads, queries, keys = block
                grad_rows = grad_output[items, heads, queries]
                weights = weights_of(block, query, key, mask, ctx.skips_keys)
                grad_weights = grad_rows @ value[items, heads, keys].transpose(2, 3)
                used_weights = weights
                if kept is not None:
                    kept_here = kept[block].to(weights.dtype)
                    grad_weights = grad_weights * kept_here
                    used_weights = weights * kept_here
                # weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
                grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
                grad_query[items, heads, queries] = grad_scores @ key[items, heads, keys]
                grad_key[items, heads, keys] += grad_scores.transpose(2, 3) @ query[items, heads, queries]
                grad_value[items, heads, keys] += used_weights.transpose(2, 3) @ grad_rows
        return grad_query, grad_key, grad_value, None, None, None


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions that multiply in bfloat16; without them, float32 is faster."""
    return torch.cpu._is_avx512_bf16_supported()


def block_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As products, but by blocks and without the weights, on a CPU alone.

    It computes in float32 at least, but in bfloat16 on a processor that multiplies it. A mask that is to be learnt is
    left to products.
    """
    if attention_mask is not None and attention_mask.requires_grad:
        return products_attention_forward(module, query, key, value, attention_mask, scaling, dropout, is_causal)
    key = per_query_head(module, key)
    value = per_query_head(module, value)
    is_causal = module.is_causal if is_causal is None else is_causal
    skips_keys = attention_mask is None and is_causal and query.shape[2] == key.shape[2]
    mask = None if skips_keys else mask_or_triangle(attention_mask, is_causal, query, key)

    given_dtype = query.dtype
    stays = given_dtype == torch.bfloat16 and multiplies_bfloat16()
    dtype = given_dtype if stays else torch.promote_types(given_dtype, torch.float32)
    query, key, value = (states.to(dtype).contiguous() for states in (query, key, value))
    output = AttentionByBlocks.apply(query * scaling, key, value, mask, skips_keys, dropout)
    output = without_blind_rows(output.to(given_dtype), mask)
    return output.transpose(1, 2).contiguous(), None


def fastest_kernel(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, dropout: float
) -> Callable:
    """What `leaner bench` measured to be fastest: blocks in these cases of an uncompiled model on a CPU, else SDPA.

    With dropout, since SDPA has no such kernel and takes products in float32 itself; in bfloat16 on a processor that
    multiplies it; in causal inference in float32, where SDPA multiplies the keys after a query, too. The choice does
    not ask for gradients: a layer that is computed again in the backward pass takes the same kernel.
    """
    num_queries, num_keys = query.shape[2], key.shape[2]
    if not is_eager_on_cpu(query) or num_queries == 1:
        return sdpa_attention_forward
    if drops_here(query, dropout):
        return block_attention_forward
    if query.dtype == torch.bfloat16 and dropout == 0 and multiplies_bfloat16():
        keeps_weights = module.training and num_keys <= LONGEST_PRODUCTS
        return products_attention_forward if keeps_weights else block_attention_forward
    skips_keys = module.is_causal and mask is None and num_queries == num_keys
    if skips_keys and not module.training and num_keys in KEYS_WORTH_SKIPPING:
        return block_attention_forward
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
    wants_weights = kwargs.get("output_attentions", module.config.output_attentions)
    if wants_weights:
        forward = products_attention_forward
    else:
        forward = fastest_kernel(module, query, key, attention_mask, dropout)
    return forward(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)


class DefaultAttention(str):
    """The default: "sdpa" to transformers, and `lean` to the layers. A name that is asked for is a plain string."""

    chooses_kernel = True


DEFAULT_ATTENTION = DefaultAttention("sdpa")


AttentionInterface.register(LEAN_ATTENTION, lean_attention_forward)
AttentionMaskInterface.register(LEAN_ATTENTION, sdpa_mask)
