# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanBERT configuration."""

from typing import ClassVar

from .configuration_leaner import LeanTextConfig, strict_config


@strict_config
class LeanBERTConfig(LeanTextConfig):
    r"""Configuration of the LeanBERT models; the defaults are BERT-base (Devlin et al. 2018, arXiv 1810.04805).

    Raises ValueError, naming the field, for everything `LeanTextConfig` refuses.

    Args:
        vocab_size (`int`, *optional*, defaults to 30522): size of the vocabulary.
        hidden_size (`int`, *optional*, defaults to 768): width of the residual stream.
        num_hidden_layers (`int`, *optional*, defaults to 12): number of blocks.
        num_attention_heads (`int`, *optional*, defaults to 12): heads per layer; `per_layer_config` may vary them.
        head_dim (`int`, *optional*): size of one head; left out, `hidden_size / num_attention_heads`.
        intermediate_size (`int`, *optional*, defaults to 3072): width of the MLP.
        hidden_act (`str`, *optional*, defaults to `"gelu"`): activation of the MLP.
        hidden_dropout_prob (`float`, *optional*, defaults to 0.1): dropout after embeddings, attention and MLP.
        attention_probs_dropout_prob (`float`, *optional*, defaults to 0.1): dropout on attention probabilities.
        max_position_embeddings (`int`, *optional*, defaults to 512): longest sequence.
        type_vocab_size (`int`, *optional*, defaults to 2): number of token types.
        initializer_range (`float`, *optional*, defaults to 0.02): standard deviation of the initial weights.
        layer_norm_eps (`float`, *optional*, defaults to 1e-12): epsilon of every LayerNorm.
        classifier_dropout (`float`, *optional*): dropout before a classifier; left out, `hidden_dropout_prob`.
        pad_token_id (`int`, *optional*, defaults to 0): padding token; its embedding starts at zero.
        bos_token_id (`int`, *optional*): beginning-of-text token.
        eos_token_id (`int` or list, *optional*): end-of-text token.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`): the masked-LM head shares the token embeddings.
    """

    model_type = "lean_bert"
    task_heads: ClassVar[tuple[str, ...]] = (
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForMultipleChoice",
    )
    pretraining_head: ClassVar[str] = "ForMaskedLM"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_lean_bert.LeanBERTConfig",
        "AutoModel": "modeling_lean_bert.LeanBERTModel",
        "AutoModelForMaskedLM": "modeling_lean_bert.LeanBERTForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_lean_bert.LeanBERTForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_lean_bert.LeanBERTForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_lean_bert.LeanBERTForQuestionAnswering",
        "AutoModelForMultipleChoice": "modeling_lean_bert.LeanBERTForMultipleChoice",
    }
    base_model_pp_plan: ClassVar[dict[str, tuple]] = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    }

    type_vocab_size: int = 2
    pad_token_id: int | None = 0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._require_sizes("type_vocab_size")

    def _embedding_parameters(self) -> int:
        return (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * self.hidden_size

    def _outer_parameters(self, architecture: str) -> int:
        width, total = self.hidden_size, 2 * self.hidden_size  # embedding norm
        if architecture == "ForMaskedLM":  # dense, norm, and the output bias; the matrix too unless it is tied
            total += width * width + width + 2 * width + self.vocab_size
            total += 0 if self.tie_word_embeddings else self.vocab_size * width
        if architecture in ("Model", "ForSequenceClassification", "ForMultipleChoice"):  # pooler
            total += width * width + width
        outputs = self._outputs(architecture)
        return total + (width + 1) * outputs

    def _outputs(self, architecture: str) -> int:
        labels = self.num_labels
        return {
            "ForSequenceClassification": labels,
            "ForTokenClassification": labels,
            "ForQuestionAnswering": 2,
            "ForMultipleChoice": 1,
        }.get(architecture, 0)

    def _outer_flops(self, architecture: str, length: int) -> int:
        width, outputs = self.hidden_size, self._outputs(architecture)
        if architecture == "ForMaskedLM":
            return 2 * length * width * (width + self.vocab_size)
        if architecture in ("Model", "ForSequenceClassification", "ForMultipleChoice"):
            return 2 * width * (width + outputs)
        return 2 * length * width * outputs


__all__ = ["LeanBERTConfig"]
