"""LeanGPT."""

from functools import partial

import pytest
import torch
from common import NO_DROPOUT, TOLERANCE, TextModelTests, distance, sharpen
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig, StaticCache

from modeling_leaner import (
    LeanGPTConfig,
    LeanGPTForCausalLM,
    LeanGPTForQuestionAnswering,
    LeanGPTForSequenceClassification,
    LeanGPTForTokenClassification,
    LeanGPTModel,
)


class TestLeanGPT(TextModelTests):
    config_class = LeanGPTConfig
    base_class = LeanGPTModel
    logits_class = LeanGPTForCausalLM
    heads = {
        "CausalLM": LeanGPTForCausalLM,
        "SequenceClassification": LeanGPTForSequenceClassification,
        "TokenClassification": LeanGPTForTokenClassification,
        "QuestionAnswering": LeanGPTForQuestionAnswering,
    }
    tokens = {"vocab_size": 90, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 64}
    shapes = {
        "base": tokens,
        "grouped": {**tokens, "num_key_value_heads": 2, "head_dim": 12},
        "per-layer": {
            **tokens,
            "num_key_value_heads": 2,
            "per_layer_config": {0: {"num_attention_heads": 2}, 2: {"num_attention_heads": 6}},
        },
    }

    def inputs(self, head=None):
        ids = self.ids(2, self.length)
        labels = {
            None: {},
            "CausalLM": {"labels": ids},
            "SequenceClassification": {"labels": torch.tensor([0, 1])},
            "TokenClassification": {"labels": ids % 2},
            "QuestionAnswering": {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 9])},
        }
        return {"input_ids": ids, **labels[head]}

    def generating(self, shape):
        """A model whose greedy continuations do not settle on few tokens: the first seed that gives such a one."""
        config = self.config(shape, tie_word_embeddings=False)
        for seed in range(64):
            model = sharpen(self.logits_class(config), seed)
            said = self.continue_by_hand(model, self.ids(2, 5), 16)[:, 5:]
            if all(len(set(row.tolist())) >= 10 for row in said):
                break
        else:
            raise AssertionError("no seed says anything")
        model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=None)
        return model

    def continue_by_hand(self, model, ids, steps):
        """Greedy continuation without any cache."""
        for _ in range(steps):
            ids = torch.cat((ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
        return ids

    @pytest.mark.parametrize("cache_class", [DynamicCache, partial(StaticCache, max_cache_len=20)])
    def test_cached_is_uncached(self, shape, cache_class):
        model = self.build(shape)
        ids = self.ids(2, 12)
        expected = model(ids, use_cache=False).logits
        cache = cache_class(config=model.config)
        steps = (ids[:, :7], *ids[:, 7:].split(1, dim=1))
        parts = [model(step, past_key_values=cache, use_cache=True).logits for step in steps]
        assert distance(torch.cat(parts, dim=1), expected) < TOLERANCE

    def test_greedy(self, shape):
        model = self.generating(shape)
        prompt = self.ids(2, 5)
        expected = self.continue_by_hand(model, prompt, 16)
        for options in ({}, {"cache_implementation": "static", "disable_compile": True}):
            assert torch.equal(model.generate(prompt, max_new_tokens=16, do_sample=False, **options), expected)

    def test_left_padding(self, shape):
        model = self.generating(shape)
        prompt = self.ids(1, 5)
        expected = model.generate(prompt, max_new_tokens=10, do_sample=False)[:, 5:]
        padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), prompt), dim=1)
        mask = (padded != 0).long()
        generated = model.generate(padded, attention_mask=mask, max_new_tokens=10, do_sample=False)[:, 9:]
        assert torch.equal(generated, expected)
        without = model.generate(padded, attention_mask=torch.ones_like(mask), max_new_tokens=10, do_sample=False)
        assert not torch.equal(without[:, 9:], expected)

    def test_generate_batch(self):
        """Continuous batching over a paged cache says what `generate` says, from the family's own attention on."""
        model = self.generating("per-layer")
        model.set_attn_implementation("lean")
        model.config.allow_global_per_layer_attribute_access = True  # the paged cache is sized by one number of heads
        prompts = [self.ids(1, 5, seed=1)[0], self.ids(1, 9, seed=2)[0], self.ids(1, 3, seed=3)[0]]
        rows = [model.generate(prompt[None], max_new_tokens=6, do_sample=False)[0] for prompt in prompts]
        expected = [row[len(prompt) :].tolist() for row, prompt in zip(rows, prompts)]
        config = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
        results = model.generate_batch(
            [prompt.tolist() for prompt in prompts],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64),
        )
        generated = [results[key].generated_tokens for key in sorted(results, key=lambda key: int(key.split("_")[-1]))]
        assert generated == expected

    def test_logits_to_keep(self):
        model = self.build("base")
        ids = self.ids(2, 8)
        everything = model(ids).logits
        for keep, kept in ((1, [-1]), (3, [-3, -2, -1]), (torch.tensor([1, 4]), [1, 4])):
            logits = model(ids, logits_to_keep=keep).logits
            assert logits.shape[1] == len(kept) and distance(logits, everything[:, kept]) < 1e-6

    def test_sequence_classifier_reads_the_last_token(self):
        model = self.build("base", LeanGPTForSequenceClassification)
        ids = self.ids(2, 8)
        expected = model(ids[:1, :6]).logits
        padding = torch.zeros(1, 2, dtype=torch.long)
        for padded in (torch.cat((ids[:1, :6], padding), dim=1), torch.cat((padding, ids[:1, :6]), dim=1)):
            mask = (padded != 0).long()
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            assert distance(model(padded, attention_mask=mask, position_ids=positions).logits, expected) < TOLERANCE
        unpadded = self.build("base", LeanGPTForSequenceClassification, pad_token_id=None)
        with pytest.raises(ValueError, match="pad_token_id is not set"):
            unpadded(ids)

    def test_a_mask_covers_the_cache(self):
        """Its width is that of the tokens before and the new ones; a static cache takes any, as before."""
        model = self.build("base")
        ids = torch.full((2, 3), 7)
        cache = model(ids, use_cache=True).past_key_values
        with pytest.raises(ValueError, match=r"attention_mask is \[2, 3\], expected \[2, 6\], .* 3 tokens before"):
            model(ids, attention_mask=torch.ones(2, 3), past_key_values=cache)
        model(ids, attention_mask=torch.ones(2, 6), past_key_values=cache)
        static = StaticCache(config=model.config, max_cache_len=8)
        model(ids, attention_mask=torch.ones(2, 8), past_key_values=static)

    def test_refuses_a_cache_beyond_the_positions(self):
        model = self.build("base", max_position_embeddings=8)
        cache = DynamicCache(config=model.config)
        model(self.ids(1, 6), past_key_values=cache, use_cache=True)
        with pytest.raises(ValueError, match="has 9 tokens, but max_position_embeddings is 8"):
            model(self.ids(1, 3), past_key_values=cache, use_cache=True)


class TestChunkedLoss:
    """`loss_chunk_size`: the loss and its gradients without all logits."""

    def models(self, size):
        """The same model in training twice: with all logits and with so many at a time."""
        torch.manual_seed(0)
        sizes = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        whole = LeanGPTForCausalLM(LeanGPTConfig(**sizes, **NO_DROPOUT))
        chunked = LeanGPTForCausalLM(LeanGPTConfig(**sizes, **NO_DROPOUT, loss_chunk_size=size))
        chunked.load_state_dict(whole.state_dict())
        return whole.train(), chunked.train()

    def batch(self):
        ids = torch.randint(0, 500, (3, 17))
        labels = ids.masked_fill(torch.rand(ids.shape) < 0.2, -100)
        return {"input_ids": ids, "labels": labels}

    @pytest.mark.parametrize(
        ("size", "extra"), [(1, {}), (7, {"num_items_in_batch": 77}), (1000, {"num_items_in_batch": torch.tensor(77)})]
    )
    def test_same_loss_and_gradients(self, size, extra):
        whole, chunked = self.models(size)
        batch = self.batch()
        outputs = chunked(**batch, **extra)
        expected = whole(**batch, **extra)
        assert outputs.logits is None
        assert distance(outputs.loss, expected.loss) < TOLERANCE
        outputs.loss.backward()
        expected.loss.backward()
        gradients = [[parameter.grad for parameter in model.parameters()] for model in (chunked, whole)]
        torch.testing.assert_close(*gradients, rtol=TOLERANCE, atol=1e-6)

    def test_all_logits_are_never_held(self):
        """Neither by the forward pass nor for the backward pass."""
        _, chunked = self.models(7)
        sizes = []
        handle = chunked.lm_head.register_forward_hook(lambda module, args, logits: sizes.append(len(logits)))
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda t: t):
            loss = chunked(**self.batch()).loss
        loss.backward()
        handle.remove()
        assert max(sizes) == 7 and sum(sizes) == 2 * 3 * 17
        assert not [shape for shape in kept if shape[-1:] == (500,)]

    def test_what_is_refused(self):
        _, chunked = self.models(4)
        batch = self.batch()
        batch["labels"][0, 3] = 500
        with pytest.raises(ValueError, match=r"labels\[0, 3\] is 500"):
            chunked(**batch)
        with pytest.raises(ValueError, match="loss_chunk_size"):
            LeanGPTConfig(loss_chunk_size=0)
