# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanGPT configuration."""

from typing import ClassVar

from .configuration_leaner import LeanTextConfig, strict_config


@strict_config
class LeanGPTConfig(LeanTextConfig):
    r"""Configuration of the LeanGPT models; the defaults are GPT-2 small (Radford et al. 2019).

    Raises ValueError, naming the field, for everything `LeanConfig` refuses and for query heads (of any layer) that
    the key-value heads do not divide.

    Args:
        vocab_size (`int`, *optional*, defaults to 50257): size of the vocabulary.
        hidden_size (`int`, *optional*, defaults to 768): width of the residual stream.
        num_hidden_layers (`int`, *optional*, defaults to 12): number of blocks.
        num_attention_heads (`int`, *optional*, defaults to 12): query heads; `per_layer_config` may vary them.
        num_key_value_heads (`int`, *optional*): key-value heads of every layer; left out, `num_attention_heads`.
        head_dim (`int`, *optional*): size of one head; left out, `hidden_size / num_attention_heads`.
        intermediate_size (`int`, *optional*, defaults to 3072): width of the MLP.
        hidden_act (`str`, *optional*, defaults to `"gelu_new"`): activation of the MLP.
        hidden_dropout_prob (`float`, *optional*, defaults to 0.1): dropout after embeddings, attention and MLP.
        attention_probs_dropout_prob (`float`, *optional*, defaults to 0.1): dropout on attention probabilities.
        max_position_embeddings (`int`, *optional*, defaults to 1024): longest sequence.
        initializer_range (`float`, *optional*, defaults to 0.02): standard deviation of the initial weights; the two
            projections that write to the residual stream start smaller by 1/sqrt(2 · num_hidden_layers).
        layer_norm_eps (`float`, *optional*, defaults to 1e-5): epsilon of every LayerNorm.
        classifier_dropout (`float`, *optional*): dropout before the token classifier; left out, `hidden_dropout_prob`.
        use_cache (`bool`, *optional*, defaults to `True`): return the key-value cache.
        pad_token_id (`int`, *optional*): padding token, needed by batched sequence classification.
        bos_token_id (`int`, *optional*, defaults to 50256): beginning-of-text token.
        eos_token_id (`int` or list, *optional*, defaults to 50256): end-of-text token.
        tie_word_embeddings (`bool`, *optional*, defaults to `True`): the head shares the token embeddings.
    """

    model_type = "lean_gpt"
    keys_to_ignore_at_inference = ["past_key_values"]
    task_heads: ClassVar[tuple[str, ...]] = (
        "ForCausalLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    )
    pretraining_head: ClassVar[str] = "ForCausalLM"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_lean_gpt.LeanGPTConfig",
        "AutoModel": "modeling_lean_gpt.LeanGPTModel",
        "AutoModelForCausalLM": "modeling_lean_gpt.LeanGPTForCausalLM",
        "AutoModelForSequenceClassification": "modeling_lean_gpt.LeanGPTForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_lean_gpt.LeanGPTForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_lean_gpt.LeanGPTForQuestionAnswering",
    }
    base_model_pp_plan: ClassVar[dict[str, tuple]] = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

    vocab_size: int = 50257
    num_key_value_heads: int | None = None
    hidden_act: str = "gelu_new"
    max_position_embeddings: int = 1024
    layer_norm_eps: float = 1e-5
    use_cache: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    def __post_init__(self, **kwargs):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._require_sizes("num_key_value_heads")
        for index, heads in enumerate(self.heads_per_layer):
            self._require(
                heads % self.num_key_value_heads == 0,
                f"num_attention_heads={heads} of layer {index} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}",
            )

    @property
    def key_value_heads_per_layer(self) -> list[int]:
        return [self.num_key_value_heads] * self.num_hidden_layers

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Bytes that one token adds to the key-value cache, all layers together (2 a value: bfloat16)."""
        return 2 * sum(self.key_value_heads_per_layer) * self.head_dim * bytes_per_value

    def _embedding_parameters(self) -> int:
        return (self.vocab_size + self.max_position_embeddings) * self.hidden_size

    def _outer_parameters(self, architecture: str) -> int:
        width, total = self.hidden_size, 2 * self.hidden_size  # final norm
        if architecture == "ForCausalLM":
            return total + (0 if self.tie_word_embeddings else self.vocab_size * width)
        outputs = self._outputs(architecture)
        bias = architecture != "ForSequenceClassification"
        return total + (width + bias) * outputs

    def _outputs(self, architecture: str) -> int:
        labels = self.num_labels
        return {
            "ForCausalLM": self.vocab_size,
            "ForSequenceClassification": labels,
            "ForTokenClassification": labels,
            "ForQuestionAnswering": 2,
        }.get(architecture, 0)

    def _outer_flops(self, architecture: str, length: int) -> int:
        rows = 1 if architecture == "ForSequenceClassification" else length
        return 2 * rows * self.hidden_size * self._outputs(architecture)


__all__ = ["LeanGPTConfig"]
