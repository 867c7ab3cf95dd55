# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanBERT configuration."""

from typing import ClassVar

from .configuration_leaner import LeanTextConfig, LinearSize, strict_config


@strict_config
class LeanBERTConfig(LeanTextConfig):
    r"""Configuration of the LeanBERT models; the defaults are BERT-base (Devlin et al. 2018, arXiv 1810.04805).

    Raises:
        ValueError: as `LeanConfig`, and for `is_decoder`.

    Args (in addition to those of `LeanTextConfig`):
        type_vocab_size (`int`, *optional*, defaults to 2): number of token types.
        unpad_inputs (`bool`, defaults to `False`): run the layers over the tokens alone, those of several padded rows
            side by side: the same states, 0 at padding, in less time where lengths differ. Batches stay padded where a
            graph is recorded, or hidden states or attentions are asked for.
    """

    model_type = "lean_bert"
    task_heads: ClassVar[tuple[str, ...]] = (
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForMultipleChoice",
    )

    type_vocab_size: int = 2
    pad_token_id: int | None = 0
    unpad_inputs: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._require_sizes("type_vocab_size")
        self._require(not getattr(self, "is_decoder", False), "is_decoder must be False: LeanBERT is an encoder")

    def _embedding_parameters(self) -> int:
        return super()._embedding_parameters() + self.type_vocab_size * self.hidden_size

    def _outer_linears(self, head: str, length: int) -> list[LinearSize]:
        width = self.hidden_size
        pooler = LinearSize(width, width)
        transform = LinearSize(width, width, tokens=length)
        return {
            "Model": [pooler],
            "ForMaskedLM": [transform, LinearSize(width, self.vocab_size, tokens=length)],
            "ForSequenceClassification": [pooler, LinearSize(width, self.num_labels)],
            "ForTokenClassification": [LinearSize(width, self.num_labels, tokens=length)],
            "ForQuestionAnswering": [LinearSize(width, 2, tokens=length)],
            "ForMultipleChoice": [pooler, LinearSize(width, 1)],
        }[head]
