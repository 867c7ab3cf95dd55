"""LeanBERT."""

import pytest
import torch
from common import NO_DROPOUT, WRONG, CheckpointTests, TextModelTests

from modeling_leaner import (
    LeanBERTConfig,
    LeanBERTForMaskedLM,
    LeanBERTForMultipleChoice,
    LeanBERTForQuestionAnswering,
    LeanBERTForSequenceClassification,
    LeanBERTForTokenClassification,
    LeanBERTModel,
)


class TestLeanBERT(CheckpointTests, TextModelTests):
    config_class = LeanBERTConfig
    base_class = LeanBERTModel
    logits_class = LeanBERTForMaskedLM
    heads = {
        "MaskedLM": LeanBERTForMaskedLM,
        "SequenceClassification": LeanBERTForSequenceClassification,
        "TokenClassification": LeanBERTForTokenClassification,
        "QuestionAnswering": LeanBERTForQuestionAnswering,
        "MultipleChoice": LeanBERTForMultipleChoice,
    }
    shapes = {
        "base": {"vocab_size": 90},
        "free": {"vocab_size": 90, "head_dim": 12, "num_attention_heads": 5},
        "per-layer": {
            "vocab_size": 90,
            "per_layer_config": {0: {"num_attention_heads": 2}, 2: {"num_attention_heads": 6}},
        },
    }

    def inputs(self, head=None):
        ids = self.ids(2, self.length)
        types = (torch.arange(self.length) > 4).long().expand(2, -1)
        inputs = {"input_ids": ids, "token_type_ids": types}
        if head == "MultipleChoice":
            inputs = {name: tensor[:, None].repeat(1, 3, 1) for name, tensor in inputs.items()}
            inputs["input_ids"] = self.ids(2, 3, self.length)
        labels = {
            None: {},
            "MaskedLM": {"labels": torch.where(torch.arange(self.length) % 3 == 0, ids, -100)},
            "SequenceClassification": {"labels": torch.tensor([0, 1])},
            "TokenClassification": {"labels": ids % 2},
            "QuestionAnswering": {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 9])},
            "MultipleChoice": {"labels": torch.tensor([2, 0])},
        }
        return {**inputs, **labels[head]}

    def test_an_answer_before_the_text(self):
        model = self.build("base", self.heads["QuestionAnswering"])
        inputs = {**self.inputs("QuestionAnswering"), "end_positions": torch.tensor([3, -5])}
        message = rf"end_positions\[1\] is -5, expected 0..{self.length - 1} \(length={self.length}\)"
        with pytest.raises(ValueError, match=message):
            model(**inputs)

    def test_loss_is_of_masked_positions_only(self):
        model = self.build("base", **NO_DROPOUT)
        inputs = self.inputs("MaskedLM")
        in_eval = model(**inputs)
        assert in_eval.logits.shape == (2, self.length, self.vocab_size)
        masked = inputs["labels"] != -100
        expected = torch.nn.functional.cross_entropy(in_eval.logits[masked], inputs["labels"][masked])
        scored = []
        model.lm_head.register_forward_hook(lambda _, arguments, output: scored.append(output.shape[0]))
        in_training = model.train()(**inputs)
        assert scored == [int(masked.sum())], "the vocabulary was scored at more than the masked positions"
        assert in_training.logits is None
        assert torch.allclose(in_training.loss, expected, rtol=1e-5)
        assert torch.allclose(in_eval.loss, expected, rtol=1e-5)
        everywhere = torch.nn.functional.cross_entropy(in_eval.logits.flatten(0, 1), inputs["input_ids"].flatten())
        assert abs(everywhere - expected) > WRONG

    @pytest.mark.parametrize(
        ("task", "num_labels", "labels"),
        [
            ("MultipleChoice", 2, torch.tensor([2, 0])),
            ("SequenceClassification", 1, torch.tensor([0.5, -1.0])),
            ("SequenceClassification", 3, torch.tensor([[1.0, 0, 1], [0, 0, 1.0]])),
            ("SequenceClassification", 3, torch.tensor([2, 0])),
            ("MaskedLM", 2, None),
        ],
    )
    def test_losses_of_accumulated_batches(self, task, num_labels, labels):
        """Trainer divides by the labels of all accumulated batches: the loss is the mean over these."""
        model = self.build("base", self.heads[task], num_labels=num_labels)
        inputs = self.inputs(task)
        if labels is not None:
            inputs["labels"] = labels
        count = (inputs["labels"] != -100).sum()
        whole = model(**inputs).loss
        assert torch.allclose(model(**inputs, num_items_in_batch=3 * count).loss, whole / 3, rtol=1e-5)
