"""The families: facts about each, and its classes, registered with transformers' Auto classes on import."""

from dataclasses import dataclass

import transformers
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # top level: needs torchvision in 5.17
from transformers.utils import is_torchvision_available

from . import modeling_lean_bert, modeling_lean_gpt, modeling_lean_vit
from .configuration_lean_bert import LeanBERTConfig
from .configuration_lean_gpt import LeanGPTConfig
from .configuration_lean_vit import LeanViTConfig
from .modeling_lean_bert import (
    LeanBERTForMaskedLM,
    LeanBERTForMultipleChoice,
    LeanBERTForQuestionAnswering,
    LeanBERTForSequenceClassification,
    LeanBERTForTokenClassification,
    LeanBERTModel,
)
from .modeling_lean_gpt import (
    LeanGPTForCausalLM,
    LeanGPTForQuestionAnswering,
    LeanGPTForSequenceClassification,
    LeanGPTForTokenClassification,
    LeanGPTModel,
)
from .modeling_lean_vit import LeanViTBackbone, LeanViTForImageClassification, LeanViTModel


IMAGES, TEXT = "image", "token"  # what a family reads: the unit by which its costs are stated


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer that is trained for a family of text.

    `tokens` in the order of their numbers, from 0 on; `roles` as arguments of the tokenizer; `unknown` stands for a
    word outside the vocabulary. `single` and `pair` say what is put around a text or two, "" for nothing.
    """

    tokens: tuple[str, ...]
    roles: dict[str, str]
    unknown: str
    single: str = ""
    pair: str = ""


END_OF_TEXT = SpecialTokens(
    tokens=("<|endoftext|>",),
    roles=dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>"),
    unknown="<|endoftext|>",
)
CLS_AND_SEP = SpecialTokens(
    tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    roles={
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    unknown="[UNK]",
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
)


@dataclass(frozen=True)
class Family:
    """Facts about a family that neither its configuration nor its models hold.

    `title` is its name for people; `first_recipe` one whose data every installation has. A family of
    text has `special_tokens`.
    """

    title: str
    modality: str
    first_recipe: str
    special_tokens: SpecialTokens | None = None


FAMILIES = {
    "vit": Family("LeanViT", IMAGES, "digits"),
    "bert": Family("LeanBERT", TEXT, "listops-short", CLS_AND_SEP),
    "gpt": Family("LeanGPT", TEXT, "python-docs", END_OF_TEXT),
}


def _register(config_class: type, models: object, modality: str) -> None:
    """Registers one family, with transformers' tokenizer or image processor; what is saved carries its code."""
    for auto_name, target in config_class.auto_classes().items():
        auto_class = getattr(transformers, auto_name)
        if auto_name == "AutoConfig":
            auto_class.register(config_class.model_type, config_class, exist_ok=True)
            config_class.register_for_auto_class()
        else:
            model_class = getattr(models, target.split(".")[-1])
            auto_class.register(config_class, model_class, exist_ok=True)
            model_class.register_for_auto_class(auto_name)
    if modality is TEXT:
        transformers.AutoTokenizer.register(config_class, transformers.TokenizersBackend, exist_ok=True)
        return
    processors = {"pil": transformers.ViTImageProcessorPil}
    if is_torchvision_available():
        processors["torchvision"] = transformers.ViTImageProcessor
    AutoImageProcessor.register(config_class, image_processor_classes=processors, exist_ok=True)


for _name, _config_class, _models in (
    ("vit", LeanViTConfig, modeling_lean_vit),
    ("bert", LeanBERTConfig, modeling_lean_bert),
    ("gpt", LeanGPTConfig, modeling_lean_gpt),
):
    _register(_config_class, _models, FAMILIES[_name].modality)

__all__ = [
    "LeanBERTConfig",
    "LeanBERTForMaskedLM",
    "LeanBERTForMultipleChoice",
    "LeanBERTForQuestionAnswering",
    "LeanBERTForSequenceClassification",
    "LeanBERTForTokenClassification",
    "LeanBERTModel",
    "LeanGPTConfig",
    "LeanGPTForCausalLM",
    "LeanGPTForQuestionAnswering",
    "LeanGPTForSequenceClassification",
    "LeanGPTForTokenClassification",
    "LeanGPTModel",
    "LeanViTBackbone",
    "LeanViTConfig",
    "LeanViTForImageClassification",
    "LeanViTModel",
]
