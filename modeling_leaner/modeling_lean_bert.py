# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanBERT: a post-LN text encoder with token types and learned positions; with BERT's shape it is BERT."""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.masking_utils import (
    create_bidirectional_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_lean_bert import LeanBERTConfig
from .layers_leaner import (
    LeanPooler,
    LeanPostNormBlock,
    LeanPreTrainedModel,
    answer_output,
    check_length,
    check_range,
    classifier_dropout,
    recorded,
    sequence_output,
    token_output,
)


class LeanBERTPreTrainedModel(LeanPreTrainedModel):
    config: LeanBERTConfig


class LeanBERTModel(LeanBERTPreTrainedModel):
    """The encoder; `add_pooling_layer` adds a tanh layer on the first token."""

    def __init__(self, config: LeanBERTConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width)
        self.embed_token_types = nn.Embedding(config.type_vocab_size, width)
        self.embed_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
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
            token_type_ids: (B, T) segments; left out, all 0.
            position_ids: (B, T); left out, 0..T-1. Where they restart in a row and no mask is given, the row is
                several packed sequences that do not see each other.

        Raises:
            ValueError: both or neither of ids and embeddings, more tokens than positions, an id out of range.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        if inputs_embeds is None:
            check_range("input_ids", input_ids, self.config.vocab_size, "vocab_size")
            inputs_embeds = self.embed_tokens(input_ids)
        packed = None
        if position_ids is None:
            check_length(inputs_embeds.shape[1], self.config)
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]  # (1, T)
        else:
            check_range("position_ids", position_ids, self.config.max_position_embeddings, "max_position_embeddings")
            if attention_mask is None:
                packed = find_packed_sequence_indices(position_ids.expand(len(inputs_embeds), -1))
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(position_ids)
        check_range("token_type_ids", token_type_ids, self.config.type_vocab_size, "type_vocab_size")

        hidden_states = inputs_embeds + self.embed_token_types(token_type_ids) + self.embed_positions(position_ids)
        hidden_states = self.dropout(self.embed_norm(hidden_states))
        mask = create_bidirectional_mask(
            self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            and_mask_function=None if packed is None else packed_sequence_mask_function(packed),
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, position_ids=position_ids, **kwargs)
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states,
            pooler_output=self.pooler(hidden_states) if self.pooler is not None else None,
        )


class LeanBERTPredictionTransform(nn.Module):
    """Linear layer, activation and norm before the masked-LM matrix: (…, D) → (…, D)."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.act = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act(self.dense(hidden_states)))


class LeanBERTForMaskedLM(LeanBERTPreTrainedModel):
    """Predicts masked tokens; the matrix is the token embedding where `tie_word_embeddings` is set."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config, add_pooling_layer=False)
        self.transform = LeanBERTPredictionTransform(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Logits (B, T, vocab_size); labels (B, T) are -100 where nothing was masked.

        While training with labels the vocabulary is scored at the masked positions only and no logits are returned:
        the full tensor would be most of the memory. Compiled training scores every position, for fixed shapes.
        """
        outputs: BaseModelOutputWithPooling = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        if labels is not None:
            check_range("labels", labels, self.config.vocab_size, "vocab_size", ignore_index=-100)
        masked_only = labels is not None and self.training and not torch.compiler.is_compiling()
        if masked_only:
            masked = labels != -100
            hidden_states, labels = hidden_states[masked.to(hidden_states.device)], labels[masked]  # (masked, D)
        logits = self.lm_head(self.transform(hidden_states))

        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss=loss, logits=None if masked_only else logits, **recorded(outputs))


class LeanBERTForSequenceClassification(LeanBERTPreTrainedModel):
    """A linear classifier (or regressor) on the pooled first token."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LeanBERTModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Logits (B, num_labels); labels (B,) classes or numbers, (B, num_labels) for several labels at once."""
        outputs: BaseModelOutputWithPooling = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output))
        return sequence_output(self, outputs, logits, labels, **kwargs)


class LeanBERTForTokenClassification(LeanBERTPreTrainedModel):
    """A linear classifier on every token."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LeanBERTModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Logits (B, T, num_labels); labels (B, T), -100 is ignored."""
        outputs: BaseModelOutputWithPooling = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return token_output(self, outputs, labels, **kwargs)


class LeanBERTForQuestionAnswering(LeanBERTPreTrainedModel):
    """Start and end of an answer span, as in SQuAD."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Start and end logits (B, T); positions (B,), those beyond T are ignored."""
        outputs: BaseModelOutputWithPooling = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return answer_output(self, outputs, start_positions, end_positions, **kwargs)


class LeanBERTForMultipleChoice(LeanBERTPreTrainedModel):
    """Scores C choices per item by the pooled first token of each."""

    def __init__(self, config: LeanBERTConfig):
        super().__init__(config)
        self.model = LeanBERTModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """Logits (B, C) from input_ids (B, C, T) or inputs_embeds (B, C, T, D); labels (B,) name the right choice."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        choices = (input_ids if input_ids is not None else inputs_embeds).shape[1]
        flat = [
            None if each is None else each.flatten(0, 1)
            for each in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        ]
        outputs: BaseModelOutputWithPooling = self.model(
            flat[0],
            attention_mask=flat[1],
            token_type_ids=flat[2],
            position_ids=flat[3],
            inputs_embeds=flat[4],
            **kwargs,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, choices)
        loss = None
        if labels is not None:
            check_range("labels", labels, choices, "choices", ignore_index=-100)
            loss = nn.functional.cross_entropy(logits, labels.to(logits.device))
        return MultipleChoiceModelOutput(loss=loss, logits=logits, **recorded(outputs))


__all__ = [
    "LeanBERTForMaskedLM",
    "LeanBERTForMultipleChoice",
    "LeanBERTForQuestionAnswering",
    "LeanBERTForSequenceClassification",
    "LeanBERTForTokenClassification",
    "LeanBERTModel",
    "LeanBERTPreTrainedModel",
]
