"""Sentence encoders side by side, and results.json of a published one, which was cut from another and recovered."""

from pydantic import Field

from .base import Count, Duration, Record, Sha256
from .results import Environment, RunResults


class TextRows(Record):
    """Rows that encoders are scored on."""

    dataset: str
    """Its Hub id, or the name of a local file."""
    dataset_config: str | None
    """Its configuration on the Hub."""
    split: str
    rows: Count
    """Pairs, questions or sentences that are scored; of a probe those that it is fitted on."""
    sha256: str
    """Of their texts."""
    documents: Count | None = None
    """Distinct sentences among which the right one is looked for; None where nothing is looked for."""


class Difference(Record):
    """A model's score less its parent's on the same rows, with the 95 % interval of a paired bootstrap over rows."""

    value: float
    low: float
    high: float


class EncoderTime(Record):
    """A forward pass at one batch size, measured in turns with the other models."""

    milliseconds: Duration
    """The median over the rounds, between the quartiles that follow."""
    milliseconds_low: Duration
    milliseconds_high: Duration
    speed: Duration
    """The parent's time over this one, round by round: the median, between the quartiles that follow."""
    speed_low: Duration
    speed_high: Duration
    sentences_per_second: Duration
    """Batch size over the median."""


class EncoderScores(Record):
    """One encoder: its size, its scores, its time."""

    model: str
    """The name of its folder, or its Hub id."""
    parameters: Count
    body_parameters: Count
    """Without embeddings."""
    kept_layers: list[Count] | None
    """Which of its parent's layers it has, from 0; None where its folder does not say."""
    heads_per_layer: list[Count]
    scores: dict[str, float]
    """By name: stsb, stsb_test, qnli, sst2, cosine; each from 0, or −1, to 1."""
    differences: dict[str, Difference]
    """Of the scores to the parent's; empty for the parent, without the cosine to it."""
    times: dict[str, EncoderTime]
    """By batch size; empty where nothing was timed."""


class EncoderComparison(Record):
    """The comparison of an encoder with its parent."""

    models: list[EncoderScores] = Field(min_length=1)
    """The parent first."""
    data: dict[str, TextRows]
    """By score, and those that the probe is fitted on as sst2_train."""
    max_length: Count
    """Tokens at which texts were cut."""
    resamples: Count
    """Of each bootstrap."""
    timed_length: Count
    """Tokens of a sentence whose time was taken."""
    rounds: Count
    """In each of which every model had its turn."""
    processor_flags: list[str]
    """Those of the processor's vector and matrix units that decide how fast a dtype is."""
    environment: Environment


class StoredWeights(Record):
    """How 16 bits hold the weights; the narrower loss was chosen."""

    dtype: str
    """Of model.safetensors; config.json has float32, in which the model computes."""
    cosine: dict[str, float]
    """By dtype: the mean cosine to the vectors of the 32-bit weights on the held-out sentences."""


class Lengths(Record):
    """At how many tokens texts are cut."""

    parent_tokenizer: Count | None
    """By the parent's tokenizer.json; None where it does not cut."""
    parent_sentence_transformers: Count | None
    """By the parent's sentence_bert_config.json; None without that file."""
    model: Count
    """By both files of this model."""
    training: Count
    """Of the sentences of the recovery."""


class PublishedEncoder(RunResults):
    """results.json of a published sentence encoder: its run's, which `metrics` are of, and what was made of it."""

    name: str
    """Of the folder, and of the repository on the Hub."""
    base_model: str
    """The parent's Hub id."""
    license: str | None = None
    """Of the weights, as the Hub names it; None where none was given."""
    weights_sha256: Sha256
    """Of model.safetensors."""
    stored: StoredWeights
    lengths: Lengths
    texts: str | None = None
    """Where the sentences of the training come from, if not from the recipe's dataset alone."""
    tokens: Count
    """That the recovery has read, without padding."""
    core_hours: Duration
    """Of the recovery: its seconds times its threads; without the parent's vectors, which are computed once."""
    commands: list[str]
    """That made it, from the parent on."""
    tolerances: dict[str, float]
    """How far each score may be off on another machine."""
    comparison: EncoderComparison
    """The parent, the cut before its recovery, and the stored weights."""

    @property
    def parent_scores(self) -> EncoderScores:
        """Of the encoder that it was cut from."""
        return self.comparison.models[0]

    @property
    def cut_scores(self) -> EncoderScores:
        """Of the cut before its recovery."""
        return self.comparison.models[1]

    @property
    def own_scores(self) -> EncoderScores:
        """Of the stored weights."""
        return self.comparison.models[-1]
