"""Simple baselines: bigrams, regressions on what a text or an image shows at a glance, and when there are none."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from modeling_leaner.training.experiments import baselines
from modeling_leaner.training.tasks import TASKS
from modeling_leaner.training.tasks.language import CausalLM, MaskedLM


def packed(rows):
    return Dataset.from_dict({"input_ids": rows})


def test_a_bigram_is_interpolated():
    """Against the formula of Witten and Bell, pair by pair; rows do not run into each other."""
    rows = [[0, 1, 2, 1], [1, 2, 2], [3]]
    pairs = [pair for row in rows for pair in zip(row, row[1:])]
    frequency = (np.bincount([right for _, right in pairs], minlength=5) + 1) / (len(pairs) + 5)
    for left in range(5):
        losses = baselines.token_losses(packed(rows), 5, [], np.full(5, left), np.arange(5))
        assert np.exp(-losses["frequencies"]) == pytest.approx(frequency)
        followers = [right for start, right in pairs if start == left]
        different = len(set(followers))
        expected = [
            (followers.count(right) + different * frequency[right]) / (len(followers) + different)
            if followers
            else frequency[right]
            for right in range(5)
        ]
        assert np.exp(-losses["bigram, all training rows"]) == pytest.approx(expected)
        assert sum(expected) == pytest.approx(1)


def test_guesses_of_language_models_read_what_the_model_reads():
    """A causal model's bigram solves text in which the left neighbour decides; a masked one's sees the masks."""
    rng = np.random.default_rng(0)
    starts = rng.integers(5, 20, size=300)
    rows = [[int(5 + (start - 5 + place) % 15) for place in range(12)] for start in starts]
    task = SimpleNamespace(processing=SimpleNamespace(all_special_ids=[0]), config=SimpleNamespace(vocab_size=20))
    task.predicts_special_tokens = True
    task.metric, task.score = "loss", lambda said: {"loss": said.predictions[0, 0] / said.predictions[0, 1]}
    guesses = baselines.language_guesses(task, packed(rows), packed(rows[:50]))
    found = {each.name: each.value for each in guesses}
    assert found["frequencies"] == pytest.approx(np.log(20), abs=0.35) and len(found) == 2
    assert found["bigram, all training rows"] < 0.2


@pytest.mark.parametrize("kind, expected", [(MaskedLM, ([1, 9], [5, 7])), (CausalLM, ([1, 5, 7], [5, 7, 4]))])
def test_the_guesses_of_a_masked_model_see_the_masks(monkeypatch, kind, expected):
    """The token on the left as the model reads it, of each place that is asked for."""
    batch = {"input_ids": torch.tensor([[1, 9, 3, 4]]), "labels": torch.tensor([[-100, 5, 7, -100]])}
    asked = []
    monkeypatch.setattr(baselines, "evaluation_batches", lambda *_: [batch])
    monkeypatch.setattr(baselines, "token_losses", lambda *given: asked.extend(given[-2:]) or {})
    task = kind.__new__(kind)
    vars(task).update(processing=SimpleNamespace(all_special_ids=[]), config=SimpleNamespace(vocab_size=20))
    baselines.language_guesses(task, packed([[1, 5, 7, 4]]), packed([[1, 5, 7, 4]]))
    assert tuple(each.tolist() for each in asked) == expected


def test_which_tasks_have_guesses(monkeypatch):
    for name in ("text_features", "small_images", "fitted_guesses", "language_guesses"):
        monkeypatch.setattr(baselines, name, lambda *_: [])
    without = set()
    for name, kind in TASKS.items():
        task = kind.__new__(kind)
        vars(task).update(metric="f1", regression=False, arguments=None)
        if baselines.guesses_on(task, None, None) is None:
            without.add(name)
    assert without == {"embedding"}


def test_guesses_on_images_read_their_pixels():
    """Images whose upper half tells the class are solved by the logistic regression, and not by the majority."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=200)
    images = rng.integers(100, size=(200, 3, 32, 32))
    images[labels == 1, :, :16] += 100
    rows = Dataset.from_dict({"pixels": images.reshape(200, -1).astype(np.uint8), "labels": labels.tolist()})
    config = SimpleNamespace(image_shape=(32, 32), num_channels=3)
    task = SimpleNamespace(config=config, regression=False, metric="accuracy")
    task.score = lambda said: {"accuracy": (said.predictions.argmax(1) == said.label_ids).mean()}
    small = baselines.small_images(task, rows)
    assert small.shape == (200, 3 * 16 * 16)
    assert small[0, 0] == pytest.approx(images[0, 0, :2, :2].mean() / 255, rel=1e-5)
    guesses = baselines.fitted_guesses(task, {"pixels": (small, small, [])}, rows, rows)
    found = {each.name: each.value for each in guesses}
    assert found["pixels"] > 0.95 and found["majority class"] < 0.65


def test_shared_tokens_of_a_pair():
    ids = [[1, 7, 8, 2, 8, 9, 2], [1, 5, 2, 5, 2], [1, 5, 2, 6, 2]]
    rows = Dataset.from_dict({"input_ids": ids, "token_type_ids": ids, "length": [7, 5, 5]})
    task = SimpleNamespace(processing=SimpleNamespace(sep_token_id=2))
    shares, _, _ = baselines.text_features(task, rows, rows)["shared tokens only"]
    assert shares[:, 0] == pytest.approx([1 / 3, 1.0, 0.0])


@pytest.mark.parametrize("told_by", ["first token only", "length only", "bag of tokens"])
def test_guesses_find_what_tells_the_label(told_by):
    """Rows whose label is one simple thing are solved by the guess that reads it, and by no other.

    But the bag of tokens, a share of each, knows the length by the share of the mark of the beginning.
    """
    rng = np.random.default_rng(0)

    def rows(count):
        ids, labels = [], []
        for label in rng.integers(3, size=count):
            length = 4 * 2**label if told_by == "length only" else rng.integers(3, 30)
            body = rng.integers(10, 20, size=length)
            if told_by == "first token only":
                body[0] = 5 + label
                body[-2:] = 5 + (label + 1) % 3, 5 + (label + 2) % 3  # so that the bag has every mark once
            elif told_by == "bag of tokens":
                body[rng.integers(1, length, size=length // 2)] = 5 + label
            ids.append([1, *body])
            labels.append(label)
        return Dataset.from_dict({"input_ids": ids, "length": [len(each) for each in ids], "labels": labels})

    task = SimpleNamespace(processing=range(20), metric="accuracy", regression=False)
    task.score = lambda said: {"accuracy": (said.predictions.argmax(1) == said.label_ids).mean()}
    train, held_out = rows(2000), rows(500)
    features = baselines.text_features(task, train, held_out)
    found = {each.name: each.value for each in baselines.fitted_guesses(task, features, train, held_out)}
    assert found.pop(told_by) > 0.95, found
    assert all(value < 0.6 for name, value in found.items() if (told_by, name) != ("length only", "bag of tokens"))
