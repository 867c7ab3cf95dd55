# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanGPT configuration."""

from typing import ClassVar

from .configuration_leaner import LeanTextConfig, LinearSize, strict_config


@strict_config
class LeanGPTConfig(LeanTextConfig):
    r"""Configuration of the LeanGPT models; the defaults are GPT-2 small (Radford et al. 2019).

    Raises:
        ValueError: as `LeanConfig`, and for query heads, of any layer, that are not a multiple of the key-value heads.

    Args (in addition to those of `LeanTextConfig`):
        num_key_value_heads (`int`, *optional*): key-value heads of every layer; by default
            `num_attention_heads`.
        use_cache (`bool`, *optional*, defaults to `True`): return the key-value cache.
        loss_chunk_size (`int`, *optional*): in training with labels, logits of so many tokens are held at a time, and
            computed again in the backward pass; the loss is the same, `logits` is None. By default all are held.
    """

    model_type = "lean_gpt"
    keys_to_ignore_at_inference = ["past_key_values"]
    task_heads: ClassVar[tuple[str, ...]] = (
        "ForCausalLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    )
    base_model_pp_plan = LeanTextConfig.base_model_pp_plan | {"norm": (["hidden_states"], ["hidden_states"])}

    vocab_size: int = 50257
    num_key_value_heads: int | None = None
    hidden_act: str = "gelu_new"
    max_position_embeddings: int = 1024
    layer_norm_eps: float | int = 1e-5
    use_cache: bool = True
    loss_chunk_size: int | None = None
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    def __post_init__(self, **kwargs):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._require_sizes("num_key_value_heads")
        if self.loss_chunk_size is not None:
            self._require_sizes("loss_chunk_size")
        groups = self.num_key_value_heads
        for index, heads in enumerate(self.heads_per_layer):
            uneven = f"num_attention_heads={heads} of layer {index} is not a multiple of num_key_value_heads={groups}"
            self._require(heads % groups == 0, uneven)

    @property
    def key_value_heads_per_layer(self) -> list[int]:
        return [self.num_key_value_heads] * self.num_hidden_layers

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Bytes that one token adds to the key-value cache, all layers together (2 a value: bfloat16)."""
        return 2 * sum(self.key_value_heads_per_layer) * self.head_dim * bytes_per_value

    def _outer_linears(self, head: str, length: int) -> list[LinearSize]:
        width = self.hidden_size
        return {
            "Model": [],
            "ForCausalLM": [LinearSize(width, self.vocab_size, bias=False, tokens=length)],
            "ForSequenceClassification": [LinearSize(width, self.num_labels, bias=False)],
            "ForTokenClassification": [LinearSize(width, self.num_labels, tokens=length)],
            "ForQuestionAnswering": [LinearSize(width, 2, tokens=length)],
        }[head]
