# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""What LeanBERT and LeanGPT share outside their layers: embedding of ids and positions, and heads over token states.

The heads are mixins, as in `class LeanXForY(YHead, LeanXPreTrainedModel)`: transformers chooses the loss by the end
of the class name.
"""

from collections import namedtuple

import torch
from torch import nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    ModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_leaner import LeanTextConfig
from .dropout_leaner import Dropout
from .layers_leaner import LeanPreTrainedModel, check_range, recorded


# sentence-transformers reads the fields of an output from the annotation of `forward`.
Output = SequenceClassifierOutput | TokenClassifierOutput | MaskedLMOutput | MultipleChoiceModelOutput
Inputs = namedtuple("Inputs", ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"))


def embed(
    model: LeanPreTrainedModel,
    input_ids: torch.LongTensor | None,
    inputs_embeds: torch.FloatTensor | None,
    position_ids: torch.LongTensor | None,
    past: int | torch.Tensor = 0,
) -> tuple[torch.FloatTensor, torch.LongTensor]:
    """Token embeddings (B, T, D) and positions (B or 1, T); without `position_ids` they continue after `past` tokens.

    Raises ValueError for both or neither of ids and embeddings, more tokens than positions, or an id out of range.
    """
    given = [None if tensor is None else list(tensor.shape) for tensor in (input_ids, inputs_embeds)]
    if [shape and len(shape) for shape in given] not in ([2, None], [None, 3]):
        raise ValueError(f"expected either input_ids (B, T) or inputs_embeds (B, T, D), got {given[0]} and {given[1]}")
    if inputs_embeds is None:
        check_range("input_ids", input_ids, model.config.vocab_size, "vocab_size")
        inputs_embeds = model.embed_tokens(input_ids)
    longest = model.config.max_position_embeddings
    length = inputs_embeds.shape[1]
    if position_ids is not None:  # a row of packed sequences may be longer than the positions
        check_range("position_ids", position_ids, longest, "max_position_embeddings")
        return inputs_embeds, position_ids
    total = length + (past if isinstance(past, int) else 0)  # a static cache counts in a tensor, which is not read
    if total > longest:
        raise ValueError(f"the sequence has {total} tokens, but max_position_embeddings is {longest}")
    positions = torch.arange(length, device=inputs_embeds.device) + past
    return inputs_embeds, positions[None]


class LeanTextEmbeddings(nn.Module):
    """Learned positions added to token embeddings: (B, T, D) → (B, T, D)."""

    def __init__(self, config: LeanTextConfig):
        super().__init__()
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(inputs_embeds + self.embed_positions(position_ids))


class TextHead:
    """A head's forward: runs the base model, then `predict` on its outputs and on the five inputs."""

    def add_classifier(self, outputs: int) -> None:
        """Adds a linear layer and the dropout before it: `classifier_dropout`, or else `hidden_dropout_prob`."""
        config = self.config
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.num_labels = config.num_labels
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, outputs)

    def arrange(self, inputs: Inputs) -> Inputs:
        """The inputs as the base model takes them."""
        return inputs

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
    ) -> Output:
        """Inputs as for the base model; the shapes of logits and labels are those of `predict`."""
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*self.arrange(inputs), return_dict=True, **kwargs)
        return self.predict(outputs, labels, inputs, **kwargs)


class TokenClassificationHead(TextHead):
    """Dropout and the linear layer `classifier` on every token."""

    def predict(self, outputs: ModelOutput, labels: torch.Tensor | None, inputs: Inputs, **kwargs) -> ModelOutput:
        """Logits (B, T, num_labels); labels (B, T), -100 is ignored."""
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            check_range("labels", labels, self.config.num_labels, "num_labels", ignore_index=-100)
            loss = self.loss_function(logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(loss=loss, logits=logits, **recorded(outputs))


class QuestionAnsweringHead(TextHead):
    """Start and end of an answer span, as in SQuAD, by the linear layer `qa_outputs` on every token."""

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
        """Inputs as for the base model; positions (B,), those beyond T are ignored."""
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return super().forward(*inputs, labels=(start_positions, end_positions), **kwargs)

    def predict(self, outputs: ModelOutput, labels: tuple, inputs: Inputs, **kwargs) -> ModelOutput:
        """Start and end logits (B, T)."""
        start, end = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if all(position is not None for position in labels):
            for name, position in zip(("start_positions", "end_positions"), labels):  # beyond the sequence: ignored
                check_range(name, position.clamp(max=start.shape[1] - 1), start.shape[1], "length")
            loss = self.loss_function(start, end, *labels, **kwargs)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end, **recorded(outputs))
