# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanViT configuration."""

from typing import ClassVar

from transformers.backbone_utils import BackboneConfigMixin

from .configuration_leaner import LeanConfig, strict_config


@strict_config
class LeanViTConfig(BackboneConfigMixin, LeanConfig):
    r"""Configuration of the LeanViT models; the defaults are ViT-B/16 (Dosovitskiy et al. 2020, arXiv 2010.11929).

    Raises ValueError, naming the field, for everything `LeanConfig` refuses and for an image that the patch does not
    divide.

    Args:
        hidden_size (`int`, *optional*, defaults to 768): width of the residual stream.
        num_hidden_layers (`int`, *optional*, defaults to 12): number of blocks.
        num_attention_heads (`int`, *optional*, defaults to 12): heads per layer; `per_layer_config` may vary them.
        head_dim (`int`, *optional*): size of one head; left out, `hidden_size / num_attention_heads`.
        intermediate_size (`int`, *optional*, defaults to 3072): width of the MLP.
        hidden_act (`str`, *optional*, defaults to `"gelu"`): activation of the MLP.
        hidden_dropout_prob (`float`, *optional*, defaults to 0.0): dropout after embeddings, attention and MLP.
        attention_probs_dropout_prob (`float`, *optional*, defaults to 0.0): dropout on attention probabilities.
        initializer_range (`float`, *optional*, defaults to 0.02): standard deviation of the initial weights.
        layer_norm_eps (`float`, *optional*, defaults to 1e-12): epsilon of every LayerNorm.
        image_size (`int` or pair, *optional*, defaults to 224): height and width in pixels.
        patch_size (`int` or pair, *optional*, defaults to 16): height and width of a patch in pixels.
        num_channels (`int`, *optional*, defaults to 3): channels of an image.
        qkv_bias (`bool`, *optional*, defaults to `True`): biases on the query, key and value projections.
        pooler_output_size (`int`, *optional*): width of the pooler; left out, `hidden_size`.
        pooler_act (`str`, *optional*, defaults to `"tanh"`): activation of the pooler.
        _out_features (`list[str]`, *optional*): stages that the backbone returns, `"stem"`, `"stage1"`, …
        _out_indices (`list[int]`, *optional*): the same stages by number, 0 is the stem.
    """

    model_type = "lean_vit"
    task_heads: ClassVar[tuple[str, ...]] = ("ForImageClassification", "Backbone")
    pretraining_head: ClassVar[str] = "ForImageClassification"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_lean_vit.LeanViTConfig",
        "AutoModel": "modeling_lean_vit.LeanViTModel",
        "AutoModelForImageClassification": "modeling_lean_vit.LeanViTForImageClassification",
        "AutoBackbone": "modeling_lean_vit.LeanViTBackbone",
    }
    base_model_pp_plan: ClassVar[dict[str, tuple]] = {
        "embeddings": (["pixel_values"], ["hidden_states"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    num_channels: int = 3
    qkv_bias: bool = True
    pooler_output_size: int | None = None
    pooler_act: str = "tanh"
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        self.pooler_output_size = self.pooler_output_size or self.hidden_size
        self.set_output_features_output_indices(
            out_features=kwargs.pop("out_features", None), out_indices=kwargs.pop("out_indices", None)
        )
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        from transformers.activations import ACT2FN

        super().validate_architecture()
        self._require_sizes("num_channels", "pooler_output_size")
        self._require(self.pooler_act in ACT2FN, f"pooler_act {self.pooler_act!r} is not one of transformers' ACT2FN")
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            pair = [value, value] if isinstance(value, int) else list(value)
            valid = len(pair) == 2 and min(pair) >= 1
            self._require(valid, f"{name} must be one or two sizes of at least 1, got {value}")
        for side, image, patch in zip(("height", "width"), self.image_shape, self.patch_shape):
            self._require(image % patch == 0, f"image_size: {side} {image} is not a multiple of patch_size {patch}")

    @classmethod
    def _own_keys(cls) -> set[str]:
        return super()._own_keys() | {"out_features", "out_indices"}

    @property
    def stage_names(self) -> list[str]:
        """Names of the backbone's feature maps: the embeddings, then the output of every layer."""
        return ["stem"] + [f"stage{index}" for index in range(1, self.num_hidden_layers + 1)]

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of an image in pixels."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else tuple(self.image_size)

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return (self.patch_size, self.patch_size) if isinstance(self.patch_size, int) else tuple(self.patch_size)

    @property
    def num_patches(self) -> int:
        (height, width), (rows, columns) = self.image_shape, self.patch_shape
        return (height // rows) * (width // columns)

    @property
    def default_length(self) -> int:
        """Tokens of one image: its patches and the CLS token."""
        return self.num_patches + 1

    def _qkv_bias(self) -> bool:
        return self.qkv_bias

    def _patch_weights(self) -> int:
        return self.num_channels * self.patch_shape[0] * self.patch_shape[1] * self.hidden_size

    def _embedding_parameters(self) -> int:
        return (self.num_patches + 2) * self.hidden_size  # positions (with one for CLS) and the CLS token

    def _outer_parameters(self, architecture: str) -> int:
        total = self._patch_weights() + self.hidden_size + 2 * self.hidden_size  # patch projection, final norm
        if architecture == "Model":
            total += (self.hidden_size + 1) * self.pooler_output_size
        elif architecture == "ForImageClassification":
            total += (self.hidden_size + 1) * self.num_labels
        return total

    def _flops_without_input_gradient(self) -> int:
        return 2 * self.num_patches * self._patch_weights()

    def _outer_flops(self, architecture: str, length: int) -> int:
        head = {"Model": self.pooler_output_size, "ForImageClassification": self.num_labels}.get(architecture, 0)
        return self._flops_without_input_gradient() + 2 * self.hidden_size * head


__all__ = ["LeanViTConfig"]
