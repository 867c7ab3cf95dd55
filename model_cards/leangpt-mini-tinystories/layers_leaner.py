# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""The layers of all three families: one attention, one MLP, one block in two norm orders; base class, loading, losses.

Shapes: B batch, T query tokens, S key tokens, D hidden_size, H query heads, K key-value heads, d head_dim.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .attention_leaner import DEFAULT_ATTENTION, LEAN_ATTENTION, eager_attention_forward, lean_attention_forward
from .configuration_leaner import LeanConfig
from .dropout_leaner import Dropout, is_eager_on_cpu


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class LeanAttention(nn.Module):
    """Multi-head attention whose head size is independent of the width (Bhojanapalli et al. 2020, section 3).

    The number of heads is that of layer `layer_idx`; there may be fewer key-value heads (LeanGPT). Scores are scaled
    by 1/sqrt(head_dim).
    """

    def __init__(self, config: LeanConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.head_dim = config.head_dim
        self.num_heads = config.heads_per_layer[layer_idx]
        self.num_key_value_heads = config.key_value_heads_per_layer[layer_idx]
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_probs_dropout_prob
        width = config.hidden_size
        bias = getattr(config, "qkv_bias", True)
        self.q_proj = nn.Linear(width, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, width)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, T, D) → (B, T, D), and the attention weights (B, H, T, S), None of fused kernels."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)  # -1: a tensor-parallel rank holds some of the heads
        query_states = self.q_proj(hidden_states).view(shape).transpose(1, 2)  # (B, H, T, d)
        key_states = self.k_proj(hidden_states).view(shape).transpose(1, 2)  # (B, K, T, d)
        value_states = self.v_proj(hidden_states).view(shape).transpose(1, 2)  # (B, K, T, d)
        if past_key_values is not None:
            key_states, value_states = past_key_values.update(key_states, value_states, self.layer_idx)  # (B, K, S, d)

        implementation = self.config._attn_implementation
        if hasattr(implementation, "chooses_kernel"):
            attention_interface: Callable = lean_attention_forward
        else:
            attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        attn_output, attn_weights = attention_interface(
            self,
            query_states,
            key_states,
            value_states,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        attn_output = attn_output.reshape(*hidden_states.shape[:-1], -1).contiguous()  # (B, T, H·d)
        return self.o_proj(attn_output), attn_weights


class LeanMLP(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, config: LeanConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        # gelu_new is nine operations, which torch has as one.
        self.act = ACT2FN["gelu_pytorch_tanh" if config.hidden_act == "gelu_new" else config.hidden_act]
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(hidden_states)))


class LeanBlock(GradientCheckpointingLayer):
    """Attention and MLP with the norm before each (pre-LN): ViT and GPT-2."""

    def __init__(self, config: LeanConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = LeanAttention(config, layer_idx, is_causal)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = LeanMLP(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        hidden_states = hidden_states + self.dropout(self.self_attn(self.norm1(hidden_states), *args, **kwargs)[0])
        return hidden_states + self.dropout(self.mlp(self.norm2(hidden_states)))


class LeanPostNormBlock(LeanBlock):
    """The same block with the norm after each residual sum (post-LN): BERT."""

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        hidden_states = self.norm1(hidden_states + self.dropout(self.self_attn(hidden_states, *args, **kwargs)[0]))
        return self.norm2(hidden_states + self.dropout(self.mlp(hidden_states)))


class LeanPooler(nn.Module):
    """Linear layer and activation on the first token: (B, T, D) → (B, out)."""

    def __init__(self, hidden_size: int, output_size: int, activation: str = "tanh"):
        super().__init__()
        self.dense = nn.Linear(hidden_size, output_size)
        self.activation = ACT2FN[activation]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states[:, 0]))


class LeanPreTrainedModel(PreTrainedModel):
    """Base class of every LeanViT, LeanBERT and LeanGPT model: flags, initialisation, loading and saving."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LeanBlock", "LeanPostNormBlock", "LeanViTEmbeddings", "LeanBERTEmbeddings"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": LeanBlock, "attentions": LeanAttention}

    def get_correct_attn_implementation(self, requested_attention: str | None, *args, **kwargs) -> str:
        """As in transformers, but "lean" is `LEAN_ATTENTION`, and the default is SDPA with the kernels of "lean"."""
        if requested_attention is None:
            requested_attention = DEFAULT_ATTENTION
        elif requested_attention == "lean":
            requested_attention = LEAN_ATTENTION
        return super().get_correct_attn_implementation(requested_attention, *args, **kwargs)

    def set_attn_implementation(self, attn_implementation: str | dict, *args, **kwargs) -> None:
        """As in transformers; "sdpa" by name also replaces the default, which transformers takes for the same."""
        if attn_implementation == "sdpa":
            self.config._attn_implementation = attn_implementation
        super().set_attn_implementation(attn_implementation, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights N(0, initializer_range), biases 0, norms 1 and 0; `init_scale` of a layer narrows it (GPT-2)."""
        super()._init_weights(module)
        if hasattr(module, "init_scale"):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range * module.init_scale)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, **kwargs):
        """As in transformers, but from safetensors only, unless `use_safetensors=False`: a pickle can run code.

        Raises:
            OSError: a file is missing, damaged, or outside the checkpoint's folder.
            RuntimeError: tensors have another shape than the configuration says, or hold integers; each is named.
        """
        source = pretrained_model_name_or_path
        kwargs["use_safetensors"] = kwargs.get("use_safetensors") is not False
        wants_info = kwargs.pop("output_loading_info", False)
        allows_mismatch = kwargs.pop("ignore_mismatched_sizes", False)
        folder = find_folder(source, kwargs.get("subfolder"))
        if folder is not None and kwargs.get("config") is None and not (folder / "config.json").is_file():
            raise OSError(f"{folder / 'config.json'}: missing")
        weights = find_weights(folder) if folder is not None and kwargs["use_safetensors"] else []
        try:
            model, info = super().from_pretrained(
                source, *model_args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
            integers = [] if getattr(model, "is_quantized", False) else find_integers(weights, model)
        except SafetensorError as error:
            raise OSError(f"{source}: damaged or not safetensors ({error}); expected {WEIGHTS}") from error
        wrong = [f"{name} are integers, expected floating point" for name in integers]
        if not allows_mismatch:
            wrong += [f"{name} is {list(held)}, expected {list(size)}" for name, held, size in info["mismatched_keys"]]
        if wrong:
            hint = "ignore_mismatched_sizes=True leaves out those of another shape"
            raise RuntimeError(f"{source}: tensors do not fit ({hint}): {'; '.join(wrong)}")

        return (model, info) if wants_info else model

    def save_pretrained(self, save_directory, *args, **kwargs) -> None:
        """As in transformers; config.json names every Auto class of the family, so that any head loads without it."""
        if self._auto_class is not None:
            self.config.auto_map = self.config.auto_classes()
        super().save_pretrained(save_directory, *args, **kwargs)


def find_folder(source: object, subfolder: str | None = None) -> Path | None:
    """The folder of a checkpoint; None for a Hub id. Raises OSError for a path that is no folder."""
    path = Path(str(source))
    if path.is_dir():
        return path / (subfolder or "")
    if path.is_file() or path.is_absolute() or str(source).startswith((".", "~")) or len(path.parts) > 2:
        raise OSError(f"{source}: no such folder")
    return None


def find_weights(folder: Path) -> list[Path]:
    """The safetensors files of a folder: model.safetensors, or else those that its index names.

    Raises OSError for an index that cannot be read, or that names a file outside the folder or one that is missing.
    """
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not index.is_file():
        return []
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
        names = sorted({str(Path(name)) for name in document["weight_map"].values()})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f'{index}: damaged, expected {{"metadata": {{}}, "weight_map": {{tensor: file}}}}') from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise OSError(f"{index}: {name!r} is not the name of a file in this folder")
    return [folder / name for name in names]


def find_integers(weights: Iterable[Path], model: PreTrainedModel) -> list[str]:
    """Tensors of the files that hold integers under the name of a weight of the model, as `name (I64)`.

    transformers would turn them into floating point without a word.
    """
    prefix = f"{model.base_model_prefix}."  # before the backbone's names in models with a head
    known = {name.removeprefix(prefix) for name in model.state_dict()}
    integers = []
    for path in weights:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                kind = tensors.get_slice(name).get_dtype()
                if kind.startswith(("I", "U", "BOOL")) and name.removeprefix(prefix) in known:
                    integers.append(f"{name} ({kind})")
    return sorted(integers)


def check_range(name: str, ids: torch.Tensor | None, size: int, bound: str, ignore_index: int | None = None) -> None:
    """Raises ValueError, naming the position, for an id outside 0..size-1. Only in eager mode on a CPU.

    Elsewhere, reading the values would wait for the device or break the graph.
    """
    if ids is None or not is_eager_on_cpu(ids) or ids.is_floating_point():
        return
    wrong = (ids < 0) | (ids >= size)
    if ignore_index is not None:
        wrong &= ids != ignore_index
    if wrong.any():
        position = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"{name}{list(position)} is {ids[position].item()}, expected 0..{size - 1} ({bound}={size})")


def check_sequence(states: torch.Tensor, attention_mask: object, cache: Cache | None = None) -> None:
    """Raises ValueError for a mask that is not (B, past + T), as of embedded tokens (B, T, D). In eager mode.

    Masks of other caches than a dynamic one are not compared: those of a static cache may be as long as itself.
    """
    is_recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()
    is_mask = isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2
    if is_recorded or not is_mask or not isinstance(cache, DynamicCache | None):
        return
    past = 0 if cache is None else cache.get_seq_length()
    expected = [states.shape[0], past + states.shape[1]]
    given = list(attention_mask.shape)
    if given != expected:
        raise ValueError(f"attention_mask is {given}, expected {expected}, (B, T) with {past} tokens before T")


def recorded(outputs: ModelOutput) -> dict[str, tuple[torch.Tensor, ...] | None]:
    """The base model's hidden states and attentions, which a head returns beside its logits."""
    return {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}


def class_loss(
    model: PreTrainedModel, logits: torch.Tensor, labels: torch.Tensor | None, **kwargs: Unpack[TransformersKwargs]
) -> torch.Tensor | None:
    """Loss of one prediction per item, from logits (B, num_labels); None without labels.

    The kind of loss follows `config.problem_type` and, where that is None, the labels: (B,) classes; (B,) or
    (B, num_labels) numbers for regression; (B, num_labels) zeros and ones, as floats, for several labels at once.
    """
    if labels is None:
        return None
    config = model.config
    if config.problem_type in (None, "single_label_classification") and config.num_labels > 1:
        check_range("labels", labels, config.num_labels, "num_labels", ignore_index=-100)
    loss = model.loss_function(labels, logits, config, **kwargs)  # sets a problem_type that is None
    items = kwargs.get("num_items_in_batch")
    if items is not None and config.problem_type != "single_label_classification":
        loss = loss * labels.numel() / items  # transformers' mean is of one batch, Trainer divides by all accumulated
    return loss
