"""What sentence encoders are scored by, from nothing but the vectors that they make of texts.

- stsb, stsb_test: Spearman's correlation of the cosine of two sentences with how alike people find them, on STS-B's
  validation and test pairs.
- qnli: of each question of QNLI's validation rows whose sentence holds the answer, among the distinct sentences of
  all rows: the mean of 1/rank of its own sentence by cosine, 0 beyond rank 10.
- sst2: the accuracy, on SST-2's validation rows, of a logistic regression on the vectors of 5,000 training rows.
- cosine: the mean cosine to the parent's vectors on held-out sentences.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..records import Difference
from ..tasks.embedding import reciprocal_ranks, spearman, unit_vectors
from .encoder_rows import EncoderRows, Labelled


TITLES = {  # by score, in the order in which they are shown
    "stsb": "STS-B validation, Spearman",
    "stsb_test": "STS-B test, Spearman",
    "qnli": "QNLI retrieval, MRR@10",
    "sst2": "SST-2 linear probe, accuracy",
    "cosine": "cosine to the parent",
}
RESAMPLES = 2_000
Encode = Callable[[list[str]], np.ndarray]  # texts → (N, D)


@dataclass(frozen=True)
class EncoderOutput:
    """What an encoder made of each row, before any mean."""

    pair_cosines: dict[str, np.ndarray] = field(default_factory=dict)
    """By score, (N): cosines of pairs, which are correlated with people's numbers."""
    row_scores: dict[str, np.ndarray] = field(default_factory=dict)
    """By score, (N): what it is the mean of, reciprocal ranks, hits or cosines to the parent."""
    sentences: np.ndarray | None = None
    """Vectors of the held-out sentences, of length one: (N, D)."""


def output_of(encode: Encode, rows: EncoderRows, parent: EncoderOutput | None = None) -> EncoderOutput:
    """What an encoder makes of the rows; cosines are those to the vectors of `parent`, None for the parent itself."""
    pair_cosines = {}
    for name, pairs in rows.pairs.items():
        first = unit_vectors(encode(pairs.first))
        second = unit_vectors(encode(pairs.second))
        pair_cosines[name] = (first * second).sum(axis=1)
    row_scores = {}
    if rows.qnli is not None:
        questions = unit_vectors(encode(rows.qnli.questions))
        row_scores["qnli"] = reciprocal_ranks(questions, unit_vectors(encode(rows.qnli.sentences)), rows.qnli.right)
    if rows.sst2 is not None:
        row_scores["sst2"] = probe_hits(encode, rows.sst2)
    sentences = None
    if rows.sentences is not None:
        sentences = unit_vectors(encode(rows.sentences))
        reference = sentences
        if parent is not None:
            reference = parent.sentences
        row_scores["cosine"] = (sentences * reference).sum(axis=1)
    return EncoderOutput(pair_cosines, row_scores, sentences)


def probe_hits(encode: Encode, rows: Labelled) -> np.ndarray:
    """(N): 1 where a logistic regression on the vectors is right."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    probe.fit(unit_vectors(encode(rows.train)), rows.train_labels)
    return (probe.predict(unit_vectors(encode(rows.texts))) == rows.labels).astype(float)


def scores_of(output: EncoderOutput, rows: EncoderRows) -> dict[str, float]:
    """The scores by name, in the order of `TITLES`."""
    scores = {name: spearman(cosines, rows.pairs[name].numbers) for name, cosines in output.pair_cosines.items()}
    scores |= {name: float(values.mean()) for name, values in output.row_scores.items()}
    return {name: scores[name] for name in TITLES if name in scores}


def differences(own: EncoderOutput, parent: EncoderOutput, rows: EncoderRows) -> dict[str, Difference]:
    """Scores less the parent's, with 95 % intervals of a paired bootstrap over pairs, questions and sentences."""
    found = {}
    for name, cosines in own.pair_cosines.items():
        numbers = rows.pairs[name].numbers
        found[name] = bootstrapped(correlation_difference, (cosines, parent.pair_cosines[name], numbers))
    for name, values in own.row_scores.items():
        if name != "cosine":
            found[name] = bootstrapped(np.mean, (values - parent.row_scores[name],))
    return {name: found[name] for name in TITLES if name in found}


def correlation_difference(own: np.ndarray, parent: np.ndarray, numbers: np.ndarray, axis: int = -1) -> np.ndarray:
    """Spearman's correlation with the numbers of the one less that of the other; one that is undefined counts as 0."""
    ranks = stats.rankdata(numbers, axis=axis)
    correlations = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        for cosines in (own, parent):
            correlation = stats.pearsonr(stats.rankdata(cosines, axis=axis), ranks, axis=axis).statistic
            correlations.append(np.nan_to_num(correlation))
    return correlations[0] - correlations[1]


def bootstrapped(statistic: Callable[..., float], samples: tuple[np.ndarray, ...]) -> Difference:
    """A statistic of paired samples, along an axis, with its interval by percentiles; the same resamples for all."""
    value = float(statistic(*samples))
    if len(samples[0]) < 2:
        return Difference(value=value, low=value, high=value)
    interval = stats.bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        batch=100,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Difference(value=value, low=float(interval.low), high=float(interval.high))
