# Copyright 2026 the modeling_leaner authors. Licensed under the Apache License, Version 2.0.
"""LeanGPT: a pre-LN decoder with learned positions and a tied head; with GPT-2's shape it is GPT-2."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    ModelOutput,
    SequenceClassifierOutputWithPast,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_lean_gpt import LeanGPTConfig
from .heads_leaner import Inputs, LeanTextEmbeddings, QuestionAnsweringHead, TextHead, TokenClassificationHead, embed
from .layers_leaner import LeanBlock, LeanPreTrainedModel, check_range, check_sequence, class_loss, recorded


class LeanGPTPreTrainedModel(LeanPreTrainedModel):
    config: LeanGPTConfig
    _skip_keys_device_placement = ["past_key_values"]


class LeanGPTModel(LeanGPTPreTrainedModel):
    """The decoder, without a head."""

    def __init__(self, config: LeanGPTConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embeddings = LeanTextEmbeddings(config)
        blocks = [LeanBlock(config, index, is_causal=True) for index in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False  # merge_with_config_defaults reads it: a layer run twice fills no cache
        scale = (2 * config.num_hidden_layers) ** -0.5
        for layer in self.layers:  # what writes to the residual stream starts smaller (GPT-2, section 2.3)
            layer.self_attn.o_proj.init_scale = scale
            layer.mlp.fc2.init_scale = scale
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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Token states (B, T, D) and, with `use_cache`, the key-value cache.

        Args:
            input_ids: (B, T) token ids, or `inputs_embeds` (B, T, D) in their place.
            attention_mask: (B, past + T), 1 for a token and 0 for padding.
            token_type_ids: (B, T) tokens whose embeddings are added, as GPT-2 does; by default none.
            position_ids: (B, T); by default they continue after the cache. Where they restart in a row and neither a
                mask nor a cache is given, the row is several packed sequences that do not see each other.
            past_key_values: keys and values of the tokens before these.
        """
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        inputs_embeds, positions = embed(self, input_ids, inputs_embeds, position_ids, past)
        check_sequence(inputs_embeds, attention_mask, past_key_values)
        if token_type_ids is not None:
            check_range("token_type_ids", token_type_ids, self.config.vocab_size, "vocab_size")
            inputs_embeds = inputs_embeds + self.embed_tokens(token_type_ids)
        states = self.embeddings(inputs_embeds, positions)
        # The mask comes before a new cache: packed sequences are recognised only where there is none.
        mask = create_causal_mask(
            self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
        )
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        for layer in self.layers:
            states = layer(states, mask, past_key_values=past_key_values, position_ids=positions, **kwargs)
        cache = past_key_values if use_cache else None
        return BaseModelOutputWithPast(last_hidden_state=self.norm(states), past_key_values=cache)


class LeanGPTForCausalLM(LeanGPTPreTrainedModel, GenerationMixin):
    """Predicts the next token; the matrix is the token embedding where `tie_word_embeddings` is set."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: LeanGPTConfig):
        super().__init__(config)
        self.model = LeanGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, vocab_size), or those of the last `logits_to_keep` tokens; a tensor names the positions.

        Labels (B, T) are the input ids themselves: they are shifted here; -100 is ignored. In training with labels and
        `config.loss_chunk_size`, the loss is computed in chunks and `logits` is None.
        """
        inputs = Inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, past_key_values=past_key_values, use_cache=use_cache, return_dict=True, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        states = outputs.last_hidden_state[:, kept]

        logits = None
        loss = None
        check_range("labels", labels, self.config.vocab_size, "vocab_size", ignore_index=-100)
        if labels is not None and self.training and self.config.loss_chunk_size is not None:
            loss = self.chunked_loss(states, labels, **kwargs)
        else:
            logits = self.lm_head(states)
            if labels is not None:
                loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        cache = outputs.past_key_values
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache, **recorded(outputs))

    def init_continuous_batching(self, *args, **kwargs) -> object:
        """As in transformers; `generate_batch` calls this. The default and `lean` attention become `sdpa`."""
        if self.config._attn_implementation in ("sdpa", self.get_correct_attn_implementation("lean")):
            self.set_attn_implementation("sdpa")  # a paged cache takes none but transformers' own
        return super().init_continuous_batching(*args, **kwargs)

    def chunked_loss(
        self,
        states: torch.Tensor,
        labels: torch.LongTensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        shift_labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """As `ForCausalLMLoss`, from states (B, T, D) and labels (B, T), `loss_chunk_size` tokens at a time."""
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        states = states.flatten(0, 1)  # (B·T, D)
        targets = shift_labels.flatten()  # (B·T)
        if num_items_in_batch is None:
            num_items_in_batch = (targets != -100).sum()
        loss = 0.0
        size = self.config.loss_chunk_size
        for chunk, target in zip(states.split(size), targets.split(size), strict=True):
            loss = loss + checkpoint(self.summed_loss, chunk, target, use_reentrant=False)
        return loss / torch.as_tensor(num_items_in_batch, device=loss.device)

    def summed_loss(self, states: torch.Tensor, targets: torch.LongTensor) -> torch.Tensor:
        """Cross-entropy in nats, summed, from states (N, D) of the tokens before `targets` (N); -100 is ignored."""
        logits = self.lm_head(states).float()
        return nn.functional.cross_entropy(logits, targets.to(logits.device), ignore_index=-100, reduction="sum")


class LeanGPTForSequenceClassification(TextHead, LeanGPTPreTrainedModel):
    """A linear classifier (or regressor) on the last token that is not padding."""

    def __init__(self, config: LeanGPTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LeanGPTModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    def predict(self, outputs: ModelOutput, labels: torch.Tensor | None, inputs: Inputs, **kwargs) -> ModelOutput:
        """Logits (B, num_labels); labels (B,) classes or numbers, (B, num_labels) for several labels at once.

        Raises ValueError for a batch of more than one sequence while `pad_token_id` is not set.
        """
        states, ids, pad = outputs.last_hidden_state, inputs.input_ids, self.config.pad_token_id
        if pad is None and states.shape[0] > 1:
            raise ValueError("pad_token_id is not set: a batch of more than one sequence needs it")
        if pad is None or ids is None:
            last_states = states[:, -1]
        else:  # of the rightmost token that is not padding
            positions = torch.arange(states.shape[1], device=states.device)
            last = (positions * (ids != pad).to(states.device)).argmax(-1)
            last_states = states[torch.arange(states.shape[0], device=states.device), last]
        logits = self.score(last_states)
        loss = class_loss(self, logits, labels, **kwargs)
        cache = outputs.past_key_values
        return SequenceClassifierOutputWithPast(loss=loss, logits=logits, past_key_values=cache, **recorded(outputs))


class LeanGPTForTokenClassification(TokenClassificationHead, LeanGPTPreTrainedModel):
    """A linear classifier on every token."""

    def __init__(self, config: LeanGPTConfig):
        super().__init__(config)
        self.model = LeanGPTModel(config)
        self.add_classifier(config.num_labels)
        self.post_init()


class LeanGPTForQuestionAnswering(QuestionAnsweringHead, LeanGPTPreTrainedModel):
    """Start and end of an answer span, as in SQuAD."""

    def __init__(self, config: LeanGPTConfig):
        super().__init__(config)
        self.model = LeanGPTModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()
