# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanBERT: a post-LN text encoder with token types and learned positions; with BERT's shape it is BERT."""

from collections import OrderedDict

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.masking_utils import (
    create_bidirectional_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    ModelOutput,
    MultipleChoiceModelOutput,
    SequenceClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_lean_bert import LeanBERTConfig
from .heads_leaner import Inputs, LeanTextEmbeddings, QuestionAnsweringHead, TextHead, TokenClassificationHead, embed
from .layers_leaner import (
    LeanPooler,
    LeanPostNormBlock,
    LeanPreTrainedModel,
    check_range,
    check_sequence,
    class_loss,
    recorded,
)
from .unpadding_leaner import unpadding_of


class LeanBERTEmbeddings(LeanTextEmbeddings):
    """Learned positions and token types added to token embeddings, then a norm: (B, T, D) → (B, T, D)."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.embed_token_types = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        hidden_states = inputs_embeds + self.embed_token_types(types) + self.embed_positions(position_ids)
        return self.dropout(self.norm(hidden_states))


class LeanBERTPreTrainedModel(LeanPreTrainedModel):
    config: LeanBERTConfig


class LeanBERTModel(LeanBERTPreTrainedModel):
    """The encoder; `add_pooling_layer` adds a tanh layer on the first token."""

    def __init__(self, config: LeanBERTConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.embeddings = LeanBERTEmbeddings(config)
        self.layers = nn.ModuleList([LeanPostNormBlock(config, index) for index in range(config.num_hidden_layers)])
        self.pooler = LeanPooler(width, width) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Token states (B, T, D) and the pooled first token (B, D).

        Args:
            input_ids: (B, T) token ids, or `inputs_embeds` (B, T, D) in their place.
            attention_mask: (B, T), 1 for a token and 0 for padding.
            token_type_ids: (B, T) segments; by default all 0.
            position_ids: (B, T); by default 0..T-1. Where they restart in a row and no mask is given, the row is
                several packed sequences that do not see each other.
        """
        inputs_embeds, positions = embed(self, input_ids, inputs_embeds, position_ids)
        check_sequence(inputs_embeds, attention_mask)
        packing = None
        if position_ids is not None and attention_mask is None:
            sequences = find_packed_sequence_indices(position_ids.expand(inputs_embeds.shape[0], -1))
            if sequences is not None:
                packing = packed_sequence_mask_function(sequences)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(positions)
        check_range("token_type_ids", token_type_ids, self.config.type_vocab_size, "type_vocab_size")
        hidden_states = self.embeddings(inputs_embeds, positions, token_type_ids)
        unpadding = unpadding_of(self, attention_mask, **kwargs)
        if unpadding is not None:
            hidden_states = unpadding.pack(hidden_states)
            positions = unpadding.pack(positions.expand(unpadding.shape))
            packing = packed_sequence_mask_function(unpadding.sequences)
            attention_mask = None
        mask = create_bidirectional_mask(
            self.config, inputs_embeds=hidden_states, attention_mask=attention_mask, and_mask_function=packing
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, position_ids=positions, **kwargs)
        if unpadding is not None:
            hidden_states = unpadding.unpack(hidden_states)
        pooled = None if self.pooler is None else self.pooler(hidden_states)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)


class LeanBERTForMaskedLM(TextHead, LeanBERTPreTrainedModel):
    """Predicts masked tokens; the matrix is the token embedding where `tie_word_embeddings` is set."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config, add_pooling_layer=False)
        width = config.hidden_size
        dense = nn.Linear(width, width)
        norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.transform = nn.Sequential(OrderedDict(dense=dense, act=ACT2FN[config.hidden_act], norm=norm))
        self.lm_head = nn.Linear(width, config.vocab_size)
        self.post_init()

    def predict(self, outputs: ModelOutput, labels: torch.Tensor | None, inputs: Inputs, **kwargs) -> ModelOutput:
        """Logits (B, T, vocab_size); labels (B, T) are -100 where nothing was masked.

        While training with labels the vocabulary is scored at the masked positions only and no logits are returned:
        the full tensor would be most of the memory. Compiled training scores every position, for fixed shapes.
        """
        hidden_states = outputs.last_hidden_state
        size = self.config.vocab_size
        check_range("labels", labels, size, "vocab_size", ignore_index=-100)
        masked_only = labels is not None and self.training and not torch.compiler.is_compiling()
        if masked_only:
            masked = labels != -100
            hidden_states = hidden_states[masked.to(hidden_states.device)]  # (masked, D)
            labels = labels[masked]
        logits = self.lm_head(self.transform(hidden_states))
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=size, **kwargs)
        return MaskedLMOutput(loss=loss, logits=None if masked_only else logits, **recorded(outputs))


class LeanBERTForSequenceClassification(TextHead, LeanBERTPreTrainedModel):
    """A linear classifier (or regressor) on the pooled first token."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config)
        self.add_classifier(config.num_labels)
        self.post_init()

    def predict(self, outputs: ModelOutput, labels: torch.Tensor | None, inputs: Inputs, **kwargs) -> ModelOutput:
        """Logits (B, num_labels); labels (B,) classes or numbers, (B, num_labels) for several labels at once."""
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = class_loss(self, logits, labels, **kwargs)
        return SequenceClassifierOutput(loss=loss, logits=logits, **recorded(outputs))


class LeanBERTForTokenClassification(TokenClassificationHead, LeanBERTPreTrainedModel):
    """A linear classifier on every token."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config, add_pooling_layer=False)
        self.add_classifier(config.num_labels)
        self.post_init()


class LeanBERTForQuestionAnswering(QuestionAnsweringHead, LeanBERTPreTrainedModel):
    """Start and end of an answer span, as in SQuAD."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()


class LeanBERTForMultipleChoice(TextHead, LeanBERTPreTrainedModel):
    """Scores C choices per item by the pooled first token of each: every input is (B, C, T)."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config)
        self.add_classifier(1)
        self.post_init()

    def arrange(self, inputs: Inputs) -> Inputs:
        """Every choice as a row of its own: (B, C, T) → (B·C, T)."""
        return Inputs(*(None if tensor is None else tensor.flatten(0, 1) for tensor in inputs))

    def predict(self, outputs: ModelOutput, labels: torch.Tensor | None, inputs: Inputs, **kwargs) -> ModelOutput:
        """Logits (B, C); labels (B,) name the right choice."""
        choices = next(tensor.shape[1] for tensor in inputs if tensor is not None)
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, choices)
        loss = None
        if labels is not None:
            check_range("labels", labels, choices, "choices", ignore_index=-100)
            loss = fixed_cross_entropy(logits, labels.to(logits.device), **kwargs)
        return MultipleChoiceModelOutput(loss=loss, logits=logits, **recorded(outputs))
