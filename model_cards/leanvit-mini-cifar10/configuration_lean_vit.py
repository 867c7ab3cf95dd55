# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanViT configuration."""

from typing import ClassVar

from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneConfigMixin

from .configuration_leaner import MOST_LAYERS, LeanConfig, LinearSize, strict_config


def as_pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    """Height and width of a size that may be one number for both."""
    return (size, size) if isinstance(size, int) else tuple(size)


@strict_config
class LeanViTConfig(BackboneConfigMixin, LeanConfig):
    r"""Configuration of the LeanViT models; the defaults are ViT-B/16 (Dosovitskiy et al. 2020, arXiv 2010.11929).

    Raises:
        ValueError: as `LeanConfig`, and for an image size that is not a multiple of the patch size.

    Args (in addition to those of `LeanConfig`):
        image_size (`int` or pair, *optional*, defaults to 224): height and width in pixels.
        patch_size (`int` or pair, *optional*, defaults to 16): height and width of a patch in pixels.
        num_channels (`int`, *optional*, defaults to 3): channels of an image.
        qkv_bias (`bool`, *optional*, defaults to `True`): biases on the query, key and value projections.
        pooler_output_size (`int`, *optional*): width of the pooler; by default `hidden_size`.
        pooler_act (`str`, *optional*, defaults to `"tanh"`): activation of the pooler.
        _out_features (`list[str]`, *optional*): given as `out_features`: stages of the backbone, as `"stage1"`.
        _out_indices (`list[int]`, *optional*): given as `out_indices`: the same stages by number, 0 is the stem.
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
        if self.pooler_output_size is None:
            self.pooler_output_size = self.hidden_size
        self._require_sizes("num_hidden_layers", largest=MOST_LAYERS)  # before stages are named
        stages = kwargs.pop("out_features", None), kwargs.pop("out_indices", None)
        self.set_output_features_output_indices(*stages)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict, **kwargs):
        """As transformers; the last stage, the default of `out_features`, stays the last at another depth."""
        last = f"stage{config_dict.get('num_hidden_layers')}"
        if "num_hidden_layers" in kwargs and config_dict.get("out_features") == [last]:
            defaults = ("out_features", "out_indices")
            config_dict = {key: value for key, value in config_dict.items() if key not in defaults}
        return super().from_dict(config_dict, **kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._require_sizes("num_channels", "pooler_output_size")
        self._require(self.pooler_act in ACT2FN, f"pooler_act {self.pooler_act!r} is not one of transformers' ACT2FN")
        for name in ("image_size", "patch_size"):
            sides = as_pair(getattr(self, name))
            self._require(len(sides) == 2 and min(sides) >= 1, f"{name} must be one or two integers ≥ 1, got {sides}")
        for side, image, patch in zip(("height", "width"), self.image_shape, self.patch_shape):
            self._require(image % patch == 0, f"image_size: {side} {image} is not a multiple of patch_size {patch}")

    @property
    def stage_names(self) -> list[str]:
        """Names of the backbone's feature maps: the embeddings, then the output of every layer."""
        return ["stem"] + [f"stage{index}" for index in range(1, self.num_hidden_layers + 1)]

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of an image in pixels."""
        return as_pair(self.image_size)

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return as_pair(self.patch_size)

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        height, width = self.image_shape
        patch_height, patch_width = self.patch_shape
        return (height // patch_height) * (width // patch_width)

    @property
    def default_length(self) -> int:
        """Tokens of one image: its patches and the CLS token."""
        return self.num_patches + 1

    def _embedding_parameters(self) -> int:
        return (self.num_patches + 2) * self.hidden_size  # positions (with one for CLS) and the CLS token

    def _outer_linears(self, head: str, length: int) -> list[LinearSize]:
        pixels = self.num_channels * self.patch_shape[0] * self.patch_shape[1]
        outputs = {"Model": self.pooler_output_size, "ForImageClassification": self.num_labels}.get(head, 0)
        patches = LinearSize(pixels, self.hidden_size, tokens=self.num_patches, reads_data=True)
        return [patches, LinearSize(self.hidden_size, outputs)]
