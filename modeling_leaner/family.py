"""The families, and their classes, registered with transformers' Auto classes on import."""

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


# `register_for_auto_class`: what is saved carries its code.
for config_class, models in (
    (LeanViTConfig, modeling_lean_vit),
    (LeanBERTConfig, modeling_lean_bert),
    (LeanGPTConfig, modeling_lean_gpt),
):
    for auto_name, target in config_class.auto_classes().items():
        auto_class = getattr(transformers, auto_name)
        if auto_name == "AutoConfig":
            auto_class.register(config_class.model_type, config_class, exist_ok=True)
            config_class.register_for_auto_class()
        else:
            model_class = getattr(models, target.split(".")[-1])
            auto_class.register(config_class, model_class, exist_ok=True)
            model_class.register_for_auto_class(auto_name)

for config_class in (LeanBERTConfig, LeanGPTConfig):
    transformers.AutoTokenizer.register(config_class, transformers.TokenizersBackend, exist_ok=True)
processors = {"pil": transformers.ViTImageProcessorPil}
if is_torchvision_available():
    processors["torchvision"] = transformers.ViTImageProcessor
AutoImageProcessor.register(LeanViTConfig, image_processor_classes=processors, exist_ok=True)

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
