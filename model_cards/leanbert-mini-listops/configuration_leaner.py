# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""What the three configurations share: free shape fields, strict keys, heads per layer, and counting by arithmetic."""

import difflib
import math
from collections.abc import Iterable
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

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# Beyond these a typo in a configuration would exhaust the memory before anything could say so.
MOST_LAYERS = 10_000
MOST_LABELS = 10_000_000
LARGEST_SIZE = 2**31 - 1


@dataclass(frozen=True)
class ParameterCount:
    """Exact number of parameters of one architecture; tied weights count once.

    `embeddings` counts the lookup tables (tokens, positions, token types) and the CLS token, not the projections.
    """

    total: int
    embeddings: int

    @property
    def without_embeddings(self) -> int:
        return self.total - self.embeddings


@dataclass(frozen=True)
class Flops:
    """Floating point operations of the matrix products for one sequence (or image) of `length` tokens.

    A multiply-add counts as 2. Causal attention is counted in full, as profilers do; norms, activations, softmax and
    lookups are left out. The backward pass costs two products per product, but one where the input is data and needs
    no gradient (`no_input_gradient`: pixels).
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
class LinearSize:
    """Size of a linear layer; `tokens` is how many vectors of one sequence pass through it."""

    inputs: int
    outputs: int
    bias: bool = True
    tokens: int = 1
    reads_data: bool = False

    @property
    def parameters(self) -> int:
        return (self.inputs + self.bias) * self.outputs

    @property
    def flops(self) -> int:
        return 2 * self.tokens * self.inputs * self.outputs


def strict_config(cls: type) -> type:
    """transformers' strict dataclass; what it refuses is a ValueError of one line that names the field."""
    cls = strict(cls)
    strict_init = cls.__init__

    @wraps(strict_init)
    def __init__(self, *args, **kwargs) -> None:
        try:
            strict_init(self, *args, **kwargs)
        except (StrictDataclassFieldValidationError, StrictDataclassClassValidationError) as error:
            reason = str(error.__cause__).split(". Errors:")[0]  # what follows repeats it for each type of a union
            named = reason if reason.startswith(cls.__name__) else f"{cls.__name__}: {reason}"
            raise ValueError(named) from error

    cls.__init__ = __init__
    return cls


@strict_config
class LeanConfig(PreTrainedConfig):
    """Base class of LeanViTConfig, LeanBERTConfig and LeanGPTConfig with the fields that all three share.

    The numbers of layers and heads, the width, the head size and the MLP width are independent of each other. The
    number of heads may differ from layer to layer, `per_layer_config={0: {"num_attention_heads": 4}}`; the head size
    is the same in every layer.

    Raises:
        ValueError: an unknown key, a value of the wrong type, a size or number of labels below 1, a probability
            outside [0, 1), an unknown activation or problem type, or a `hidden_size` that is not a multiple of
            `num_attention_heads` where `head_dim` is left out. The message names the field.

    Args:
        hidden_size (`int`, defaults to 768): width of the residual stream.
        num_hidden_layers (`int`, defaults to 12): number of blocks.
        num_attention_heads (`int`, defaults to 12): query heads of every layer that `per_layer_config` does not name.
        head_dim (`int`, *optional*): size of one head; by default `hidden_size / num_attention_heads`.
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
    # The ends of the class names of the family's heads. A family also counts what is outside its blocks, in
    # `_embedding_parameters` and `_outer_linears`.
    task_heads: ClassVar[tuple[str, ...]] = ()

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12

    def __init_subclass__(cls, *args, **kwargs):
        super().__init_subclass__(*args, **kwargs)
        cls.__eq__ = LeanConfig.__eq__  # the dataclass decorator writes one that fails on heads per layer

    def __post_init__(self, **kwargs):
        self._check_keys(kwargs, refused=True)
        if kwargs.get("num_labels", 1) is None:
            kwargs.pop("num_labels")

        # What transformers would read without a check, or refuse with a message that names no field.
        model_type = kwargs.get("model_type", self.model_type)
        self._require(model_type == self.model_type, f"model_type must be {self.model_type!r}, got {model_type!r}")
        labels = kwargs.get("num_labels", 1)
        fits = type(labels) is int and 1 <= labels <= MOST_LABELS
        self._require(fits, f"num_labels must be an integer from 1 to {MOST_LABELS:,}, got {labels!r}")
        self._require_sizes("num_hidden_layers", largest=MOST_LAYERS)
        kind = self.problem_type
        self._require(kind in (None, *PROBLEM_TYPES), f"problem_type must be one of {PROBLEM_TYPES}, got {kind!r}")
        names = self.id2label
        fits = names is None or isinstance(names, dict) and names and all(str(index).isdecimal() for index in names)
        self._require(fits, f'id2label must map numbers to names, as {{0: "no"}}, got {names!r}')
        layers = {} if kwargs.get("per_layer_config") is None else kwargs["per_layer_config"]
        fits = isinstance(layers, dict) and all(
            str(index).isdecimal()
            and int(index) < self.num_hidden_layers
            and isinstance(layer, dict)
            and layer.keys() <= {"num_attention_heads"}
            and all(type(heads) is int and 1 <= heads <= LARGEST_SIZE for heads in layer.values())
            for index, layer in layers.items()
        )
        expected = f'map layers in 0..{self.num_hidden_layers - 1} to heads, as {{0: {{"num_attention_heads": 4}}}}'
        self._require(fits, f"per_layer_config must {expected}, got {layers!r}")

        heads = self.num_attention_heads
        if self.head_dim is None and heads > 0 and self.hidden_size % heads == 0:
            self.head_dim = self.hidden_size // heads  # validate_architecture refuses a head_dim that stays None
        super().__post_init__(**kwargs)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return {**self.to_dict(), "_name_or_path": None} == {**other.to_dict(), "_name_or_path": None}

    @classmethod
    def auto_classes(cls) -> dict[str, str]:
        """The family's `auto_map` for config.json: name of the Auto class → file.Class, for every head."""
        family = cls.__name__.removesuffix("Config")
        classes = {"AutoConfig": f"configuration_{cls.model_type}.{cls.__name__}"}
        for head in ("Model", *cls.task_heads):
            auto_class = {"Model": "AutoModel", "Backbone": "AutoBackbone"}.get(head, f"AutoModel{head}")
            classes[auto_class] = f"modeling_{cls.model_type}.{family}{head}"
        return classes

    @classmethod
    def _own_keys(cls) -> set[str]:
        """Names of the family's own fields, as they are given, with their aliases."""
        inherited = {field.name for field in fields(PreTrainedConfig)}
        own = {field.name for field in fields(cls)} - inherited
        return {name.removeprefix("_") for name in own} | cls.attribute_map.keys()

    @classmethod
    def _check_keys(cls, keys: Iterable[str], refused: bool = False) -> list[str]:
        """The keys that neither this family nor transformers knows.

        Raises ValueError for one that is nearly the name of a field, and where they are `refused` for any.
        """
        own = cls._own_keys()
        known = own | TRANSFORMERS_KEYS
        unknown = [key for key in keys if not (key in known or key.startswith("_") or hasattr(PreTrainedConfig, key))]
        if unknown:  # imported late: only a surprising key pays for it
            from transformers import GenerationConfig

            unknown = [key for key in unknown if key not in vars(GenerationConfig())]
        names = sorted(own | {"per_layer_config", "num_labels"})
        for key in unknown:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.6 if refused else 0.85)
            if near or refused:
                raise ValueError(f"{cls.__name__}: {key}: {f'did you mean {near[0]}?' if near else 'unknown key'}")
        return unknown

    @classmethod
    def from_dict(cls, config_dict: dict, **kwargs):
        """The configuration that a config.json holds; other keyword arguments override its fields.

        As in transformers, but a key that is nearly the name of a field is a ValueError. Other unknown keys are kept,
        with a warning.
        """
        unknown = cls._check_keys(config_dict)
        cls._check_keys(kwargs)
        if unknown:
            logging.get_logger(__name__).warning(f"{cls.__name__}: unknown keys are kept as they are: {unknown}")
        known = {key: value for key, value in config_dict.items() if key not in unknown}
        # transformers would set these on the finished configuration, unchecked; it reads dtype="auto" itself.
        checked = {field.name for field in fields(cls)} - {"dtype"} | {"per_layer_config"}
        for key in checked & kwargs.keys():
            known[key] = kwargs.pop(key)
        loaded = super().from_dict(known, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded  # a tuple with return_unused_kwargs
        for key in unknown:
            setattr(config, key, config_dict[key])
        return loaded

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            raise ValueError(f"{type(self).__name__}: {message}")

    def _require_sizes(self, *names: str, largest: int = LARGEST_SIZE) -> None:
        for name in names:
            value = self._getattr_without_heterogeneous_validation(name)
            fits = type(value) is int and 1 <= value <= largest
            self._require(fits, f"{name} must be an integer from 1 to {largest:,}, got {value!r}")

    def validate_architecture(self) -> None:
        """Checks every field, after construction and before saving; the messages name the field."""
        self._require_sizes("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        heads = self._getattr_without_heterogeneous_validation("num_attention_heads")
        undivided = f"num_attention_heads={heads} does not divide hidden_size={self.hidden_size}: give head_dim"
        self._require(self.head_dim is not None, undivided)
        self._require_sizes("head_dim")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            probability = getattr(self, name)
            self._require(0 <= probability < 1, f"{name} must be at least 0 and below 1, got {probability}")
        spread, epsilon = self.initializer_range, self.layer_norm_eps
        self._require(0 <= spread < math.inf, f"initializer_range must be finite and at least 0, got {spread}")
        self._require(0 < epsilon < math.inf, f"layer_norm_eps must be finite and above 0, got {epsilon}")
        self._require(self.hidden_act in ACT2FN, f"hidden_act {self.hidden_act!r} is not one of transformers' ACT2FN")

    @property
    def heads_per_layer(self) -> list[int]:
        """Query heads of each layer."""
        return [layer.num_attention_heads for layer in self.per_layer_config]

    @property
    def key_value_heads_per_layer(self) -> list[int]:
        """Key-value heads of each layer."""
        return self.heads_per_layer

    def _layer_linears(self, length: int) -> list[LinearSize]:
        """The linear layers of all blocks; every one of `length` tokens passes through each."""
        width, mlp = self.hidden_size, self.intermediate_size
        bias = getattr(self, "qkv_bias", True)
        linears = []
        for heads, groups in zip(self.heads_per_layer, self.key_value_heads_per_layer):
            sizes = [each * self.head_dim for each in (heads, groups, groups)]
            linears += [LinearSize(width, size, bias, length) for size in sizes]  # q, k and v
            others = ((sizes[0], width), (width, mlp), (mlp, width))
            linears += [LinearSize(*inputs_and_outputs, tokens=length) for inputs_and_outputs in others]
        return linears

    def _head(self, architecture: str | None) -> str:
        """The head that a class name ends in; by default the family's pretraining head (ForMaskedLM and so on)."""
        name = architecture or self.task_heads[0]
        for head in ("Model", *self.task_heads):
            if name.endswith(head):
                return head
        heads = ", ".join(("Model", *self.task_heads))
        raise ValueError(f"{type(self).__name__}: unknown architecture {name!r}, expected one of {heads}")

    def count_parameters(self, architecture: str | None = None) -> ParameterCount:
        """Exact parameters of `architecture`, a class name or its end (`"ForMaskedLM"`): those of the built module.

        By default those of the family's pretraining head, as in the usual 86.6M of ViT-B/16 and 124.4M of GPT-2.
        """
        head = self._head(architecture)
        embeddings = self._embedding_parameters()
        linears = sum(linear.parameters for linear in self._layer_linears(1) + self._outer_linears(head, 1))
        norms = 2 * self.num_hidden_layers + (2 if head == "ForMaskedLM" else 1)  # it has one of its own
        has_tied = head in ("ForMaskedLM", "ForCausalLM") and self.tie_word_embeddings
        tied = self.vocab_size if has_tied else 0  # rows of the token embedding
        return ParameterCount(embeddings + linears + (2 * norms - tied) * self.hidden_size, embeddings)

    def count_flops(
        self, length: int | None = None, architecture: str | None = None, head_tokens: int | None = None
    ) -> Flops:
        """FLOPs of `architecture` for one sequence of `length` tokens (left out, the longest the positions allow).

        A head of every token reads `head_tokens` of them: left out, all; LeanBERT's in training the masked ones.
        Raises ValueError for a length that is not from 1 to the longest.
        """
        length = self.default_length if length is None else length
        self._require(1 <= length <= self.default_length, f"length must be in 1..{self.default_length}, got {length}")
        outer = self._outer_linears(self._head(architecture), length if head_tokens is None else head_tokens)
        linears = sum(linear.flops for linear in self._layer_linears(length) + outer)
        attention = 4 * length**2 * self.head_dim * sum(self.heads_per_layer)
        no_input_gradient = sum(linear.flops for linear in outer if linear.reads_data)
        return Flops(length, linears, attention, no_input_gradient)

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int | None:
        """Bytes of the key-value cache per token (2 a value: bfloat16); None for a family that keeps no cache."""
        return None


@strict_config
class LeanTextConfig(LeanConfig):
    """Base class of LeanBERTConfig and LeanGPTConfig with the fields that the two text families share.

    Args:
        vocab_size (`int`, defaults to 30522, LeanGPT 50257): size of the vocabulary.
        max_position_embeddings (`int`, defaults to 512, LeanGPT 1024): longest sequence.
        classifier_dropout (`float`, *optional*): dropout before a classifier; by default `hidden_dropout_prob`.
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
        dropout = self.classifier_dropout
        if dropout is not None:
            self._require(0 <= dropout < 1, f"classifier_dropout must be at least 0 and below 1, got {dropout}")
        pad, last = self.pad_token_id, self.vocab_size - 1
        if pad is not None:
            self._require(0 <= pad <= last, f"pad_token_id {pad} must be in 0..vocab_size-1={last}")

    @property
    def default_length(self) -> int:
        """The longest sequence that the positions allow, in tokens."""
        return self.max_position_embeddings

    def _embedding_parameters(self) -> int:
        return (self.vocab_size + self.max_position_embeddings) * self.hidden_size
