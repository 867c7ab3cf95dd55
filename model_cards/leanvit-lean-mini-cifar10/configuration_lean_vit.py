# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanViT configuration."""

from typing import ClassVar

from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneConfigMixin

from .configuration_leaner import LeanConfig, Linear, strict_config


@strict_config
class LeanViTConfig(BackboneConfigMixin, LeanConfig):
    r"""Configuration of the LeanViT models; the defaults are ViT-B/16 (Dosovitskiy et al. 2020, arXiv 2010.11929).

    Raises ValueError, naming the field, for everything `LeanConfig` refuses and for an image that the patch does not
    divide.

    Args (beside those of `LeanConfig`):
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
        self.pooler_output_size = self.hidden_size if self.pooler_output_size is None else self.pooler_output_size
        self.set_output_features_output_indices(kwargs.pop("out_features", None), kwargs.pop("out_indices", None))
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
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

    def _embedding_parameters(self) -> int:
        return (self.num_patches + 2) * self.hidden_size  # positions (with one for CLS) and the CLS token

    def _outer_linears(self, head: str, length: int) -> list[Linear]:
        pixels = self.num_channels * self.patch_shape[0] * self.patch_shape[1]
        outputs = {"Model": self.pooler_output_size, "ForImageClassification": self.num_labels}.get(head, 0)
        patches = Linear(pixels, self.hidden_size, rows=self.num_patches, reads_data=True)
        return [patches, Linear(self.hidden_size, outputs)]
