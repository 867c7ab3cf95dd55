"""`unpad_inputs` of LeanBERT: the same results as with padding, through fewer rows."""

import pytest
import torch
from common import NO_DROPOUT

from modeling_leaner.configuration_lean_bert import LeanBERTConfig
from modeling_leaner.layers_leaner import LeanBlock
from modeling_leaner.modeling_lean_bert import (
    LeanBERTForMaskedLM,
    LeanBERTForMultipleChoice,
    LeanBERTForQuestionAnswering,
    LeanBERTForSequenceClassification,
    LeanBERTForTokenClassification,
    LeanBERTModel,
)
from modeling_leaner.unpadding_leaner import Unpadding, cheapest_rows, rows_for


LENGTHS = (3, 12, 1, 7, 5, 4)
LONGEST = max(LENGTHS)
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = LeanBERTConfig(**SIZES)
HEADS = (
    LeanBERTForMaskedLM,
    LeanBERTForMultipleChoice,
    LeanBERTForQuestionAnswering,
    LeanBERTForSequenceClassification,
    LeanBERTForTokenClassification,
    LeanBERTModel,
)


def mask_of(lengths, side="right"):
    mask = (torch.arange(LONGEST) < torch.tensor(lengths)[:, None]).long()
    return mask.flip(1) if side == "left" else mask


def batch(side="right"):
    torch.manual_seed(1)
    mask = mask_of(LENGTHS, side)
    return {
        "input_ids": torch.randint(1, 50, mask.shape) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, mask.shape),
    }


def model_of(head=LeanBERTModel, unpads=True, **options):
    torch.manual_seed(0)
    config = LeanBERTConfig(
        **SIZES,
        **NO_DROPOUT,
        vocab_size=50,
        num_hidden_layers=2,
        initializer_range=0.5,
        unpad_inputs=unpads,
        **options,
    )
    return head(config).eval().double()  # so that other sums, of rows of another length, show no difference


def rows_seen(model, inputs, **options):
    """How many rows the first layer gets."""
    seen = []
    handle = next(module for module in model.modules() if isinstance(module, LeanBlock)).register_forward_pre_hook(
        lambda block, args: seen.append(args[0].shape[0])
    )
    model(**inputs, **options)
    handle.remove()
    return seen[0]


class TestPacking:
    def test_rows(self):
        assert rows_for([3, 12, 1, 7, 5, 4], 12) == [[1], [3, 4], [5, 0, 2]]
        assert rows_for([4, 4, 4], 4) == [[0], [1], [2]]
        assert rows_for([], 4) == []

    def test_longer_rows_where_they_cost_less(self):
        """Two lengths above half the longest fit into a row that is a little longer; not where attention is dear."""
        lengths = [12, 7, 7, 7, 7, 7, 7]
        rows, size = cheapest_rows(lengths, LeanBERTConfig())
        assert size == 14 and sorted(map(len, rows)) == [1, 2, 2, 2]
        dear = LeanBERTConfig(hidden_size=2, num_attention_heads=1, head_dim=512, intermediate_size=2)
        whole_rows = [12, 8, 8]
        assert cheapest_rows(whole_rows, LeanBERTConfig())[1] == 28 and cheapest_rows(whole_rows, dear)[1] == 12
        assert cheapest_rows([5, 5], LeanBERTConfig()) == ([[0], [1]], 5)

    @pytest.mark.parametrize("lengths, shape", [((5, 5, 4), (3, 5)), ((3, 0, 2), (1, 5))])
    def test_rows_are_as_long_as_the_longest_text_not_as_its_padding(self, lengths, shape):
        mask = torch.nn.functional.pad(mask_of(lengths), (0, 20))
        unpadding = Unpadding(mask, CONFIG)
        assert unpadding.sequences.shape == shape
        states = torch.randn(*mask.shape, 3)
        torch.testing.assert_close(unpadding.unpack(unpadding.pack(states)), states * mask[..., None], rtol=0, atol=0)


class TestModel:
    @pytest.mark.parametrize("attention", ["lean", "eager"])
    @pytest.mark.parametrize("side", ["right", "left"])
    def test_the_same_states_in_fewer_rows(self, attention, side):
        inputs = batch(side)
        expected = model_of(unpads=False, attn_implementation=attention)(**inputs).last_hidden_state
        model = model_of(attn_implementation=attention)
        model.pooler = None  # which would read padding on the left
        states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        torch.testing.assert_close(states, expected * mask, rtol=0, atol=1e-13)
        assert rows_seen(model, inputs) == 2 and states.abs().max() > 0.1

    @pytest.mark.parametrize("head", HEADS)
    def test_every_head_gives_the_same(self, head):
        """Logits where there is a token, and the gradients of their sum."""
        inputs = batch()
        mask = inputs["attention_mask"]
        if head is LeanBERTForMultipleChoice:
            inputs = {name: tensor.unflatten(0, (3, 2)) for name, tensor in inputs.items()}
        results = []
        for unpads in (False, True):
            model = model_of(head, unpads).train()
            output = model(**inputs)
            values = []
            for value in (output[name] for name in output if name not in ("hidden_states", "attentions")):
                if value.shape[:2] == mask.shape:
                    value = value[mask.bool()]
                values.append(value)
            sum(value.square().sum() for value in values).backward()
            gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
            results.append((values, gradients))
        assert len(results[0][1]) > 20
        torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("options", [{"output_hidden_states": True}, {"output_attentions": True}])
    def test_what_is_recorded_is_padded(self, options):
        model = model_of(attn_implementation="eager")
        assert rows_seen(model, batch(), **options) == len(LENGTHS)
        recorded = model(**batch(), **options)
        assert (recorded.hidden_states or recorded.attentions)[0].shape[0] == len(LENGTHS)

    def test_a_graph_has_one_shape(self):
        inputs = batch()
        model = model_of()
        expected = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        exported = torch.export.export(model, (), inputs).module()(**inputs).last_hidden_state
        torch.testing.assert_close(exported * mask, expected, rtol=0, atol=1e-13)


def test_a_pooler_reads_no_padding():
    """With padding on the left the first token is padding: the pooled states are those of the padded batch."""
    inputs = batch("left")
    expected = model_of(unpads=False)(**inputs).pooler_output
    assert torch.equal(model_of()(**inputs).pooler_output, expected)
