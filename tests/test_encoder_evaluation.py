"""`leaner evaluate ... --task embedding`: sentence encoders as MTEB scores them."""

import json

import numpy as np
import pytest
from command import invoked
from encoders import save_sentence_encoder, write_rows
from modeling_leaner.training.running import encoder_evaluation
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two encoders and the words of --data."""
    folder = tmp_path_factory.mktemp("benchmark")
    pair = [save_sentence_encoder(folder / "first"), save_sentence_encoder(folder / "second", num_hidden_layers=2)]
    rows = dict(word.split("=") for word in write_rows(folder / "rows"))
    return pair, [*(f"{name}={path}" for name, path in rows.items()), f"stsb_test={rows['stsb']}"]


def test_scores_are_those_of_sentence_transformers(made):
    """Spearman's correlation by its own evaluator; the accuracy and ranks lie within their bounds."""
    (first, second), data = made
    result = invoked("evaluate", first, second, "--task", "embedding", "--json", "--rounds", 3, "--data", *data)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    rows = encoder_evaluation.load_rows(encoder_evaluation.local_copies(data))
    for folder, model in zip((first, second), document["models"]):
        pairs = rows["stsb"]
        evaluator = EmbeddingSimilarityEvaluator(pairs.first, pairs.second, pairs.ratings, main_similarity="cosine")
        expected = evaluator(SentenceTransformer(str(folder)))["spearman_cosine"]
        assert model["scores"]["stsb"] == pytest.approx(expected, abs=1e-6)
        assert all(0 <= model["scores"][name] <= 1 for name in ("qnli", "same_index", "sst2"))
        assert model["megabytes"] > 0 and set(model["speed"]) == {"1", "64"}
    own, other = document["models"]
    assert own["scores"]["cosine"] == pytest.approx(1) and other["scores"]["cosine"] < 1
    assert own["scores"]["qnli"] == own["scores"]["same_index"]
    low, high = other["intervals"]["stsb"]
    assert low <= other["scores"]["stsb"] - own["scores"]["stsb"] <= high


def test_keys_of_a_training_are_refused(made):
    result = invoked("evaluate", *made[0], "--max_eval_rows", 5)
    assert result.exit_code == 1 and "--max_eval_rows: not an option of --task embedding" in result.output


def test_an_encoder_that_embeds_by_meaning_scores_higher():
    """Pairs whose ratings are the cosines score 1, shuffled ratings near 0; constant ratings have no score."""
    generator = np.random.default_rng(0)
    vectors = {str(place): generator.normal(size=8) for place in range(400)}

    def encode(texts):
        return np.stack([vectors[text] for text in texts])

    first, second = list(vectors)[:200], list(vectors)[200:]
    first_vectors, second_vectors = (encoder_evaluation.unit_vectors(encode(part)) for part in (first, second))
    cosines = (first_vectors * second_vectors).sum(axis=1)
    right = encoder_evaluation.Pairs(first, second, cosines)
    assert encoder_evaluation.score(right, encoder_evaluation.outputs_of(right, encode, encode)) == pytest.approx(1)
    shuffled = encoder_evaluation.Pairs(first, second, generator.permutation(cosines))
    assert abs(encoder_evaluation.score(shuffled, cosines)) < 0.2
    assert np.isnan(encoder_evaluation.score(encoder_evaluation.Pairs(first, second, np.ones(200)), cosines))
