"""Who is measured: this family, its exact relatives in transformers, and timm's vision transformer."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import transformers
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import RELATIVES, from_lean_config
from modeling_leaner.registry import IMAGES
from modeling_leaner.shapes import modality_of
from modeling_leaner.support.suggest import did_you_mean

from .stand_in import import_timm
from .workload import class_name


OURS = "modeling_leaner"
REFERENCE_ATTENTION = "sdpa"  # which every library has; transformers' default
OUR_ATTENTION = "lean"  # this family's default, which picks its kernel
TIMM_ATTENTIONS = ("eager", "sdpa")
COMPILED = {"eager": "uncompiled", "compile": "compiled"}  # modes, in words


@dataclass(frozen=True)
class Contestant:
    """A library, its attention, and whether the model is compiled."""

    library: str
    attention: str
    mode: str

    def __str__(self) -> str:
        return f"{self.library}, {self.way}"

    @property
    def way(self) -> str:
        """Attention and mode in words."""
        return f"{self.attention} attention, {COMPILED[self.mode]}"

    @property
    def is_reference(self) -> bool:
        """Whether this is what the library's others are measured against: SDPA, not compiled."""
        return self.attention == REFERENCE_ATTENTION and self.mode == "eager"

    @property
    def scores_masked_tokens_only(self) -> bool:
        """Whether its masked language model scores masked tokens alone in training: this family's, uncompiled."""
        return self.library == OURS and self.mode == "eager"

    def build(self, config: LeanConfig) -> nn.Module:
        """An untrained model with the pretraining head, not yet compiled.

        Raises:
            ValueError: the library cannot have the shape or the attention.
            ImportError: it is not installed.
        """
        model = BUILDERS[self.library](config, self.attention)
        expected = config.count_parameters().total
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if parameters != expected:
            raise ValueError(f"{self.library} has {parameters} parameters here, expected {expected}")
        return model


def check_attentions(names: list[str]) -> None:
    """Raises ValueError, with the nearest one, for an attention that neither transformers nor this family has."""
    known = {"eager", OUR_ATTENTION, *ALL_ATTENTION_FUNCTIONS.valid_keys()}
    known = {name for name in known if not name.startswith(f"{OUR_ATTENTION}_")}
    for name in names:
        if name not in known:
            raise ValueError(f"--attentions {name}: expected {', '.join(sorted(known))}{did_you_mean(name, known)}")


def contestants(config: LeanConfig, attentions: list[str], modes: list[str]) -> list[Contestant]:
    """All that are measured at a shape; timm only at images, and if it is installed."""
    libraries = [OURS, "transformers"]
    if modality_of(config) is IMAGES and find_spec("timm") is not None:
        libraries.append("timm")
    return [
        Contestant(library, attention, mode)
        for mode in modes
        for library in libraries
        for attention in attentions
        if may_have(library, attention)
    ]


def may_have(library: str, attention: str) -> bool:
    """Whether an attention is worth a cell; one that transformers does not know says so there."""
    if library == "timm":
        return attention in TIMM_ATTENTIONS
    return library == OURS or attention != OUR_ATTENTION


def build_ours(config: LeanConfig, attention: str) -> nn.Module:
    """The family's model, as the Auto class gives it."""
    auto_class = getattr(transformers, f"AutoModel{config.task_heads[0]}")
    return auto_class.from_config(copy.deepcopy(config), attn_implementation=attention)  # which it writes there


def build_relative(config: LeanConfig, attention: str) -> nn.Module:
    """The model of transformers that has the same shape; raises ConversionError where it cannot have it."""
    theirs = from_lean_config(config)
    names = {ours: name for relative in RELATIVES for name, ours in relative.classes.items()}
    return getattr(transformers, names[class_name(config)])._from_config(theirs, attn_implementation=attention)


class TimmClassifier(nn.Module):
    """timm's vision transformer behind the interface of transformers' models."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> ImageClassifierOutput:
        logits = self.model(pixel_values)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


def build_timm(config: LeanConfig, attention: str) -> nn.Module:
    """timm's vision transformer of the same shape; raises ValueError where it cannot have it."""
    from_lean_config(config)  # refuses what timm, too, cannot have: a free head size, heads per layer
    vision_transformer = import_timm("timm.models.vision_transformer")
    model = vision_transformer.VisionTransformer(
        img_size=config.image_shape,
        patch_size=config.patch_shape,
        in_chans=config.num_channels,
        num_classes=config.num_labels,
        embed_dim=config.hidden_size,
        depth=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        mlp_ratio=config.intermediate_size / config.hidden_size,
        qkv_bias=config.qkv_bias,
        pos_drop_rate=config.hidden_dropout_prob,
        proj_drop_rate=config.hidden_dropout_prob,
        attn_drop_rate=config.attention_probs_dropout_prob,
        act_layer=config.hidden_act,
    )
    for block in model.blocks:
        block.attn.fused_attn = attention == "sdpa"
    return TimmClassifier(model)


BUILDERS: dict[str, Callable[[LeanConfig, str], nn.Module]] = {
    OURS: build_ours,
    "transformers": build_relative,
    "timm": build_timm,
}
