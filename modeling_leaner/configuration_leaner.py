# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""What the three configurations share: free shape fields, strict keys, heads per layer, and counting by arithmetic."""

import difflib
from dataclasses import dataclass, fields
from functools import wraps
from typing import ClassVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging


# Keys that transformers itself reads or writes and that are neither fields nor attributes of PreTrainedConfig.
TRANSFORMERS_KEYS = frozenset(
    "add_cross_attention attn_implementation auto_map bos_token_id cross_attention_hidden_size decoder_start_token_id "
    "eos_token_id experts_implementation finetuning_task gradient_checkpointing is_decoder model_type pad_token_id "
    "prefix pruned_heads quantization_config sep_token_id task_specific_params tie_encoder_decoder "
    "tie_last_hidden_states tie_word_embeddings tokenizer_class torchscript transformers_weights".split()
)


@dataclass(frozen=True)
class ParameterCount:
    """Exact number of parameters of one architecture; tied weights count once.

    `embeddings` are lookup tables (tokens, positions, token types) and the CLS token; projections are not embeddings.
    """

    total: int
    embeddings: int

    @property
    def without_embeddings(self) -> int:
        return self.total - self.embeddings


@dataclass(frozen=True)
class Flops:
    """Floating point operations of the matrix products for one sequence (or image) of `length` tokens.

    A multiply-add is 2. Causal attention is counted full, as profilers do; norms, activations, softmax and lookups are
    left out. Backward costs two products per product, one where the input is data (`no_input_gradient`: pixels).
    """

    length: int
    linear: int
    attention: int
    no_input_gradient: int = 0

    @property
    def forward(self) -> int:
        return self.linear + self.attention

    @property
    def training_step(self) -> int:
        return 3 * self.forward - self.no_input_gradient


@dataclass(frozen=True)
class Linear:
    """A linear layer as counting sees it; `rows` is how many vectors of one sequence pass through it."""

    inputs: int
    outputs: int
    bias: bool = True
    rows: int = 1
    reads_data: bool = False

    @property
    def parameters(self) -> int:
        return (self.inputs + self.bias) * self.outputs

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inputs * self.outputs


def strict_config(cls: type) -> type:
    """transformers' strict dataclass whose refusals are ValueErrors that name the field."""
    cls = strict(cls)
    strict_init = cls.__init__

    @wraps(strict_init)
    def __init__(self, *args, **kwargs) -> None:
        try:
            strict_init(self, *args, **kwargs)
        except StrictDataclassFieldValidationError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error
        except StrictDataclassClassValidationError as error:
            raise ValueError(str(error.__cause__)) from error

    cls.__init__ = __init__
    return cls


@strict_config
class LeanConfig(PreTrainedConfig):
    """Base of LeanViTConfig, LeanBERTConfig and LeanGPTConfig, with the fields that all share; never used alone.

    Layers, width, heads, head size and MLP width are free of each other. Heads may differ from layer to layer:
    `per_layer_config={0: {"num_attention_heads": 4}}`; the head size stays one.

    Raises ValueError, naming the field, for an unknown key, a size below 1, a probability outside [0, 1), an unknown
    activation, or a `hidden_size` that the heads do not divide while `head_dim` is left out.

    Args:
        hidden_size (`int`, defaults to 768): width of the residual stream.
        num_hidden_layers (`int`, defaults to 12): number of blocks.
        num_attention_heads (`int`, defaults to 12): query heads of every layer that `per_layer_config` does not name.
        head_dim (`int`, *optional*): size of one head; left out, `hidden_size / num_attention_heads`.
        intermediate_size (`int`, defaults to 3072): width of the MLP.
        hidden_act (`str`, defaults to `"gelu"`, LeanGPT `"gelu_new"`): activation of the MLP, a key of `ACT2FN`.
        hidden_dropout_prob (`float`, defaults to 0.1, LeanViT 0): dropout after embeddings, attention and MLP.
        attention_probs_dropout_prob (`float`, defaults to 0.1, LeanViT 0): dropout on attention probabilities.
        initializer_range (`float`, defaults to 0.02): standard deviation of the initial weights.
        layer_norm_eps (`float`, defaults to 1e-12, LeanGPT 1e-5): epsilon of every LayerNorm.
    """

    attribute_map: ClassVar[dict[str, str]] = {"layer_norm_epsilon": "layer_norm_eps"}
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        **{f"layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.fc1": "colwise",
        "layers.*.mlp.fc2": "rowwise",
    }
    # Each family states the ends of its heads' class names, and counts `_embedding_parameters` and `_outer_linears`.
    task_heads: ClassVar[tuple[str, ...]] = ()

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12

    def __init_subclass__(cls, *args, **kwargs):
        super().__init_subclass__(*args, **kwargs)
        cls.__eq__ = LeanConfig.__eq__  # the dataclass decorator writes one that fails on heads per layer

    def __post_init__(self, **kwargs):
        self._refuse(self._unknown_keys(kwargs))
        labels, layers = kwargs.get("num_labels"), kwargs.get("per_layer_config") or {}
        self._require(labels is None or (type(labels) is int and labels >= 0), f"num_labels is no count: {labels!r}")
        mapping = isinstance(layers, dict) and all(isinstance(layer, dict) for layer in layers.values())
        self._require(mapping, f"per_layer_config must map layers to fields, got {layers!r}")
        if self.head_dim is None and self.num_attention_heads > 0:
            width, heads = self.hidden_size, self.num_attention_heads
            self.head_dim = width // heads if width % heads == 0 else None  # validate_architecture refuses None
        super().__post_init__(**kwargs)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        ours, theirs = ({**config.to_dict(), "_name_or_path": None} for config in (self, other))
        return ours == theirs

    @classmethod
    def auto_classes(cls) -> dict[str, str]:
        """The `auto_map` of the family: Auto class → file.Class, for every head."""
        prefix, names = cls.__name__.removesuffix("Config"), {"Model": "AutoModel", "Backbone": "AutoBackbone"}
        heads = ("Model", *cls.task_heads)
        models = {names.get(head, f"AutoModel{head}"): f"modeling_{cls.model_type}.{prefix}{head}" for head in heads}
        return {"AutoConfig": f"configuration_{cls.model_type}.{cls.__name__}", **models}

    @classmethod
    def _own_keys(cls) -> set[str]:
        names = {field.name for field in fields(cls)} - {field.name for field in fields(PreTrainedConfig)}
        return names | set(cls.attribute_map)

    @classmethod
    def _unknown_keys(cls, keys) -> list[str]:
        known = cls._own_keys() | TRANSFORMERS_KEYS
        foreign = [key for key in keys if not (key in known or key[:1] == "_" or hasattr(PreTrainedConfig, key))]
        if foreign:  # imported late: only a surprising key pays for it
            from transformers import GenerationConfig

            foreign = [key for key in foreign if key not in vars(GenerationConfig())]
        return foreign

    @classmethod
    def _nearest(cls, key: str, cutoff: float = 0.6) -> list[str]:
        known = sorted(cls._own_keys() | {"per_layer_config", "num_labels"})
        return difflib.get_close_matches(key, known, n=1, cutoff=cutoff)

    @classmethod
    def _refuse(cls, keys: list[str]) -> None:
        """Raises ValueError for the first key, with the nearest of ours."""
        for key in keys:
            nearest = cls._nearest(key)
            hint = f"did you mean {nearest[0]}?" if nearest else "unknown key"
            raise ValueError(f"{cls.__name__}: {key}: {hint}")

    @classmethod
    def from_dict(cls, config_dict: dict, **kwargs):
        """As in transformers, but near misses of our fields are ValueErrors; other unknown keys stay, with warning."""
        unknown = cls._unknown_keys(config_dict)
        cls._refuse([key for key in unknown + cls._unknown_keys(kwargs) if cls._nearest(key, cutoff=0.85)])
        if unknown:
            logging.get_logger(__name__).warning(f"{cls.__name__}: unknown keys are kept as they are: {unknown}")
        known = {key: value for key, value in config_dict.items() if key not in unknown}
        validated = {field.name for field in fields(cls)} | {"per_layer_config"}  # transformers would only set these
        known |= {key: kwargs.pop(key) for key in list(kwargs) if key in validated}
        loaded = super().from_dict(known, **kwargs)
        for key in unknown:
            setattr(loaded[0] if isinstance(loaded, tuple) else loaded, key, config_dict[key])
        return loaded

    @classmethod
    def from_json_file(cls, json_file):
        return cls.from_dict(cls._dict_from_json_file(json_file))

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            raise ValueError(f"{type(self).__name__}: {message}")

    def _require_sizes(self, *names: str) -> None:
        for name in names:
            value = self._getattr_without_heterogeneous_validation(name)
            self._require(type(value) is int and value >= 1, f"{name} must be a whole number from 1 on, got {value!r}")

    def validate_architecture(self) -> None:
        """Runs after construction and before saving; every message names the field."""
        varied = sorted(self.per_layer_attributes or ())
        self._require(varied in ([], ["num_attention_heads"]), f"per_layer_config varies {varied}, not heads only")
        self._require_sizes("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        heads = self._getattr_without_heterogeneous_validation("num_attention_heads")
        divides = f"num_attention_heads={heads} does not divide hidden_size={self.hidden_size}: give head_dim"
        self._require(self.head_dim is not None, divides)
        self._require_sizes("head_dim")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            self._require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("initializer_range", "layer_norm_eps"):
            self._require(0 <= getattr(self, name) < float("inf"), f"{name} must be finite and not negative")
        self._require(self.hidden_act in ACT2FN, f"hidden_act {self.hidden_act!r} is not one of transformers' ACT2FN")
        for index, heads in enumerate(self.heads_per_layer if varied else ()):
            self._require(type(heads) is int and heads > 0, f"per_layer_config[{index}] num_attention_heads={heads!r}")

    @property
    def heads_per_layer(self) -> list[int]:
        """Query heads of each layer."""
        return [layer.num_attention_heads for layer in self.per_layer_config]

    @property
    def key_value_heads_per_layer(self) -> list[int]:
        """Key-value heads of each layer."""
        return self.heads_per_layer

    def _layer_linears(self) -> list[Linear]:
        """The linear layers of all blocks; `rows` 1 stands for every token."""
        width, mlp, linears = self.hidden_size, self.intermediate_size, []
        for q, kv in zip(self.heads_per_layer, self.key_value_heads_per_layer):
            q, kv, bias = q * self.head_dim, kv * self.head_dim, getattr(self, "qkv_bias", True)
            linears += [Linear(width, q, bias), Linear(width, kv, bias), Linear(width, kv, bias), Linear(q, width)]
            linears += [Linear(width, mlp), Linear(mlp, width)]
        return linears

    def _outer_parameters(self, head: str) -> int:
        """Parameters outside the blocks that are neither embeddings nor linear layers, less those that are tied."""
        return 2 * self.hidden_size  # one norm

    def _head(self, architecture: str | None) -> str:
        """The head whose class name ends so; left out, the family's pretraining head (ForMaskedLM and so on)."""
        name = architecture or self.task_heads[0]
        for head in ("Model", *self.task_heads):
            if name.endswith(head):
                return head
        raise ValueError(f"{type(self).__name__}: unknown architecture {name!r}, expected one of {self.task_heads}")

    def count_parameters(self, architecture: str | None = None) -> ParameterCount:
        """Exact parameters of `architecture` (a class name or its end, `"ForMaskedLM"`), equal to the built module's.

        Left out, the family's pretraining head is counted, as for the usual ViT-B/16 86.6M and GPT-2 124.4M.
        """
        head, embeddings = self._head(architecture), self._embedding_parameters()
        linears = sum(each.parameters for each in self._layer_linears() + self._outer_linears(head, 1))
        norms = 4 * self.hidden_size * self.num_hidden_layers
        return ParameterCount(embeddings + linears + norms + self._outer_parameters(head), embeddings)

    def count_flops(self, length: int | None = None, architecture: str | None = None) -> Flops:
        """FLOPs of `architecture` for one sequence of `length` tokens (left out, the longest the positions allow)."""
        length = self.default_length if length is None else length
        self._require(type(length) is int, f"length must be a whole number, got {length!r}")
        self._require(1 <= length <= self.default_length, f"length must be in 1..{self.default_length}, got {length}")
        outer = self._outer_linears(self._head(architecture), length)
        linear = length * sum(each.flops for each in self._layer_linears()) + sum(each.flops for each in outer)
        attention = 4 * length**2 * self.head_dim * sum(self.heads_per_layer)
        return Flops(length, linear, attention, sum(each.flops for each in outer if each.reads_data))

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int | None:
        """Bytes of the key-value cache per token (2 a value: bfloat16); None where a family keeps no cache."""
        return None

    def estimate_activation_bytes(self, batch_size: int, length: int | None = None, bytes_per_value: int = 4) -> int:
        """Estimate of what the layers keep for the backward pass of one training step, in bytes.

        For attention that keeps no weights (SDPA; on a CPU only without attention dropout) and no checkpointing: norms
        and statistics, q, k, v, output and log-sum-exp, the MLP around its activation, a byte per dropped value.
        """
        length = self.default_length if length is None else length
        per_token = 0
        for q, kv in zip(self.heads_per_layer, self.key_value_heads_per_layer):
            values = 4 * self.hidden_size + 4 + 2 * self.head_dim * (q + kv) + q + 2 * self.intermediate_size
            dropped = 2 * self.hidden_size if self.hidden_dropout_prob else 0
            per_token += values * bytes_per_value + dropped
        return batch_size * length * per_token


@strict_config
class LeanTextConfig(LeanConfig):
    """What LeanBERTConfig and LeanGPTConfig share beside `LeanConfig`; never used alone.

    Args:
        vocab_size (`int`, defaults to 30522, LeanGPT 50257): size of the vocabulary.
        max_position_embeddings (`int`, defaults to 512, LeanGPT 1024): longest sequence.
        classifier_dropout (`float`, *optional*): dropout before a classifier; left out, `hidden_dropout_prob`.
        pad_token_id (`int`, *optional*, LeanBERT 0): padding token; LeanBERT's embedding of it starts at zero.
        bos_token_id (`int`, *optional*, LeanGPT 50256): beginning-of-text token.
        eos_token_id (`int` or list, *optional*, LeanGPT 50256): end-of-text token.
        tie_word_embeddings (`bool`, defaults to `True`): the language-model head shares the token embeddings.
    """

    base_model_pp_plan: ClassVar[dict[str, tuple]] = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "embeddings": (["inputs_embeds"], ["hidden_states"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    }

    vocab_size: int = 30522
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    classifier_dropout: float | int | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._require_sizes("vocab_size", "max_position_embeddings")
        dropout, pad, size = self.classifier_dropout, self.pad_token_id, self.vocab_size
        self._require(dropout is None or 0 <= dropout < 1, f"classifier_dropout must be in [0, 1), got {dropout}")
        self._require(pad is None or 0 <= pad < size, f"pad_token_id {pad} must be in 0..vocab_size-1={size - 1}")

    @property
    def default_length(self) -> int:
        """Longest sequence that the positions allow."""
        return self.max_position_embeddings
