# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanViT: a pre-LN vision transformer with a CLS token and learned positions; with ViT's shape it is ViT."""

import torch
from torch import nn
from transformers import initialization as init
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_lean_vit import LeanViTConfig
from .dropout_leaner import Dropout
from .layers_leaner import LeanBlock, LeanPooler, LeanPreTrainedModel, check_sequence, class_loss, recorded


class LeanViTEmbeddings(nn.Module):
    """Patches projected to the width, a CLS token before them, learned positions added to all.

    P patches; pixel_values (B, C, height, width) → (B, 1 + P, D).
    """

    def __init__(self, config: LeanViTConfig):
        super().__init__()
        self.config = config
        patch = config.patch_shape
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.position_embeddings = nn.Parameter(torch.zeros(1, 1 + config.num_patches, config.hidden_size))
        self.dropout = Dropout(config.hidden_dropout_prob)

    def interpolate_pos_encoding(self, height: int, width: int) -> torch.Tensor:
        """The learned positions, resampled (bicubic) for an image of height × width pixels: (1, 1 + P', D)."""
        patches = self.config.patch_shape
        grid = tuple(side // patch for side, patch in zip(self.config.image_shape, patches))
        new_grid = (height // patches[0], width // patches[1])
        if new_grid == grid:
            return self.position_embeddings
        cls_position = self.position_embeddings[:, :1]
        positions = self.position_embeddings[:, 1:].reshape(1, *grid, -1).permute(0, 3, 1, 2)  # (1, D, rows, columns)
        positions = nn.functional.interpolate(positions, size=new_grid, mode="bicubic", align_corners=False)
        return torch.cat((cls_position, positions.permute(0, 2, 3, 1).flatten(1, 2)), dim=1)

    def forward(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool | None = None) -> torch.Tensor:
        """Raises ValueError for channels or a size other than the configuration's."""
        shape, config = list(pixel_values.shape), self.config
        are_multiples = all(side % patch == 0 for side, patch in zip(shape[2:], config.patch_shape))
        fits = are_multiples if interpolate_pos_encoding else tuple(shape[2:]) == config.image_shape
        if len(shape) != 4 or shape[1] != config.num_channels or not fits:
            expected = [config.num_channels, *config.image_shape]
            other = f"or multiples of patch_size={config.patch_size} with interpolate_pos_encoding=True"
            raise ValueError(f"pixel_values are {shape}, expected channels, height, width of {expected}, {other}")

        patches = self.projection(pixel_values.to(self.projection.weight.dtype))  # (B, D, rows, columns)
        # Left strided, the patch tokens slow every later layer down in eager mode.
        patches = patches.flatten(2).transpose(1, 2).contiguous()  # (B, P, D)
        hidden_states = torch.cat((self.cls_token.expand(patches.shape[0], -1, -1), patches), dim=1)  # (B, 1 + P, D)
        positions = self.interpolate_pos_encoding(*shape[2:]) if interpolate_pos_encoding else self.position_embeddings
        return self.dropout(hidden_states + positions)


class LeanViTPreTrainedModel(LeanPreTrainedModel):
    config: LeanViTConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _input_embed_layer = "embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Positions and CLS token from a normal distribution truncated at ±2 (ViT); the rest as in every family."""
        super()._init_weights(module)
        if hasattr(module, "position_embeddings"):
            init.trunc_normal_(module.position_embeddings, mean=0.0, std=self.config.initializer_range)
            init.trunc_normal_(module.cls_token, mean=0.0, std=self.config.initializer_range)


class LeanViTModel(LeanViTPreTrainedModel):
    """The encoder; `add_pooling_layer` adds a tanh layer on the CLS token."""

    def __init__(self, config: LeanViTConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = LeanViTEmbeddings(config)
        self.layers = nn.ModuleList([LeanBlock(config, index) for index in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        pooler = config.hidden_size, config.pooler_output_size, config.pooler_act
        self.pooler = LeanPooler(*pooler) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Token states (B, 1 + P, D), CLS first, and the pooled CLS state (B, pooler_output_size).

        Args:
            pixel_values: (B, num_channels, height, width).
            interpolate_pos_encoding: resample the positions to an image of another size.
            attention_mask: (B, 1 + P), 0 for patches that no token may attend to.
        """
        hidden_states = self.embeddings(pixel_values, interpolate_pos_encoding)
        check_sequence(hidden_states, attention_mask)
        mask = create_bidirectional_mask(self.config, inputs_embeds=hidden_states, attention_mask=attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        hidden_states = self.norm(hidden_states)
        pooled = None if self.pooler is None else self.pooler(hidden_states)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)


class LeanViTForImageClassification(LeanViTPreTrainedModel):
    """A linear classifier on the CLS token."""

    def __init__(self, config: LeanViTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LeanViTModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Logits (B, num_labels) from pixel_values (B, num_channels, height, width); labels (B,) give the loss."""
        outputs = self.model(pixel_values, interpolate_pos_encoding, attention_mask, return_dict=True, **kwargs)
        logits = self.classifier(outputs.last_hidden_state[:, 0])
        loss = class_loss(self, logits, labels, **kwargs)
        return ImageClassifierOutput(loss=loss, logits=logits, **recorded(outputs))


class LeanViTBackbone(BackboneMixin, LeanViTPreTrainedModel):
    """Feature maps (B, D, rows, columns) of the stages in `out_features=["stage4", "stage8"]`, after the final norm.

    `LeanViTBackbone.from_pretrained(folder)` loads any LeanViT checkpoint.
    """

    def __init__(self, config: LeanViTConfig):
        super().__init__(config)
        self.num_features = [config.hidden_size] * (1 + config.num_hidden_layers)
        self.model = LeanViTModel(config, add_pooling_layer=False)
        self.post_init()

    @can_return_tuple
    @filter_output_hidden_states
    def forward(
        self,
        pixel_values: torch.FloatTensor,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BackboneOutput:
        """One map per requested stage from pixel_values (B, num_channels, height, width)."""
        outputs = self.model(pixel_values, interpolate_pos_encoding, attention_mask, return_dict=True, **kwargs)
        grid = [side // patch for side, patch in zip(pixel_values.shape[2:], self.config.patch_shape)]
        feature_maps = tuple(
            self.model.norm(state)[:, 1:].transpose(1, 2).unflatten(2, grid).contiguous()
            for stage, state in zip(self.stage_names, outputs.hidden_states)
            if stage in self.out_features
        )
        return BackboneOutput(feature_maps=feature_maps, **recorded(outputs))
