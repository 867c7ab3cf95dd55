"""The sentences of a published sentence encoder's card."""

from typing import Any

from modeling_leaner.support.terminal import plural

from ...records import EncoderComparison, Lengths, PublishedEncoder, StoredWeights
from ...running.card import run_hardware
from ...running.environment import machine_name
from .amounts import millions
from .provenance import CODE_LICENCE, licence_name


SHARE_ALIKE = "LTCB/enwik8"


def purpose(results: PublishedEncoder) -> str:
    """The first sentence: what it does and what it is not good for."""
    return (
        f"A sentence encoder for English: LeanBERT with {results.parameters / 1e6:.1f} million parameters, cut from "
        f"[{results.base_model}](https://huggingface.co/{results.base_model}). Sentences that mean the same get "
        "vectors that are near each other. Not for other languages, long documents, or uses for which its parent is "
        "too weak."
    )


def standing(results: PublishedEncoder) -> str:
    """Its score and its speed beside its parent's."""
    own = results.own_scores
    name = "stsb"
    split = "validation"
    if "stsb_test" in own.scores:
        name = "stsb_test"
        split = "test"
    text = (
        f"STS-B {split} (Spearman): **{own.scores[name]:.3f}**, its parent "
        f"{results.parent_scores.scores[name]:.3f}, the cut before its recovery {results.cut_scores.scores[name]:.3f}."
    )
    if own.times:
        many = max(own.times, key=int)
        text += f" At batch {many} it encodes {own.times[many].speed:.2f} × as many sentences a second as its parent."
    return text


def scores_about(comparison: EncoderComparison) -> str:
    """What each score is of."""
    said = []
    data = comparison.data
    pairs = [f"{data[name].split} {data[name].rows:,}" for name in ("stsb", "stsb_test") if name in data]
    said.append(f"STS-B: Spearman's correlation of cosine similarity with human ratings ({', '.join(pairs)} pairs).")
    qnli = data["qnli"]
    said.append(
        f"QNLI: the {qnli.split} split has {qnli.rows:,} questions with a sentence that answers them, to be found "
        f"among its {qnli.documents:,} distinct sentences; the score is the mean of 1/rank, 0 beyond rank 10."
    )
    sst2 = data["sst2"]
    fitted = data["sst2_train"].rows
    said.append(
        f"SST-2: a logistic regression on the vectors of {fitted:,} training rows, accuracy on {sst2.rows:,} "
        f"{sst2.split} rows."
    )
    cosine = data["cosine"]
    said.append(f"Cosine to the parent's vectors: the mean over {cosine.rows:,} held-out sentences.")
    said.append(
        f"In parentheses below a score: the 95 % interval of its difference to the parent's, by a paired bootstrap "
        f"over pairs, questions or rows ({comparison.resamples:,} resamples). Texts are cut at "
        f"{comparison.max_length} tokens."
    )
    return " ".join(said)


def time_about(comparison: EncoderComparison) -> str:
    """How time was taken, and where."""
    machine = comparison.environment
    return (
        f"Time is that of a forward pass in float32 over rows of {comparison.timed_length} tokens, without the "
        f"tokenizer. The three models took turns for {comparison.rounds} rounds; shown is the median, below it the "
        "quartiles. Speed is the parent's time divided by the model's of the same round. "
        f"{machine_name(machine.processor, machine.threads)} "
        f"({' '.join(comparison.processor_flags)}). Compare within this table only."
    )


def recovery(results: PublishedEncoder, settings: dict[str, Any]) -> str:
    """How it learned from its parent."""
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] * results.train.processes
    rows = results.train.steps * batch
    loss = "1 − their cosine"
    if settings["vector_loss"] == "squared_error":
        loss = "their squared error"
    data = results.training_data
    pool = ""
    if data is not None and data.rows is not None:
        pool = f", drawn from {data.rows:,}"
    return (
        f"The cut learned to give its parent's vectors of unlabelled sentences, with {loss} as the loss: "
        f"{plural(results.train.steps, 'step')} of {batch} sentences ({millions(rows)} sentences{pool}, "
        f"about {millions(results.tokens)} tokens without padding), seed {results.seed}, highest rate "
        f"{results.learning_rate:g}. That took {results.core_hours:.2f} core-hours, on a machine with other work, not "
        "counting the parent's vectors, which were computed once."
    )


def stored(weights: StoredWeights) -> str:
    """In which 16 bits the weights are, and why."""
    losses = ", ".join(f"{name} {1 - cosine:.1e}" for name, cosine in weights.cosine.items())
    return (
        f"The weights are stored in {weights.dtype}, the one of two formats of 16 bits that moves the vectors less "
        f"(1 − mean cosine to those of 32 bits: {losses}). All scores are those of the stored weights, computed in "
        "float32, in which the model loads."
    )


def lengths(held: Lengths) -> str:
    """At how many tokens texts are cut."""
    before = []
    if held.parent_tokenizer is not None:
        before.append(f"by its tokenizer.json at {held.parent_tokenizer}")
    if held.parent_sentence_transformers is not None:
        before.append(f"by its sentence_bert_config.json at {held.parent_sentence_transformers}")
    said = ""
    if before:
        said = f"The parent cuts texts {' and '.join(before)} tokens. "
    return (
        f"{said}This model cuts at {held.model}, in transformers and in sentence-transformers. The recovery read at "
        f"most {held.training} tokens a sentence: longer texts rest on what the parent knew."
    )


def untested() -> list[str]:
    """What was not tested."""
    return [
        "One seed of one recovery; intervals are over rows, not over trainings.",
        "English alone; longer texts, other domains, clustering and retrieval from large collections.",
        "Speed on accelerators, and in 16 bits.",
    ]


def licence(results: PublishedEncoder) -> str:
    """Of the weights and of the text that they learned from."""
    weights = licence_name(results.license)
    if results.license is not None:
        weights += ", as the parent's"
    text = f"Weights: {weights}; code: {CODE_LICENCE}."
    if results.dataset == SHARE_ALIKE:
        text += " The sentences of the recovery are Wikipedia's (enwik8), CC BY-SA; they are not part of this folder."
    return text


def hardware(results: PublishedEncoder) -> str:
    """The machine of the recovery and that of the comparison."""
    measured = results.comparison.environment
    commit = measured.git_commit or "unknown"
    return (
        f"Recovery: {results.train.seconds:,.0f} s. {run_hardware(results.environment)}\n\n"
        f"Comparison: {machine_name(measured.processor, measured.threads)}; commit {commit}."
    )
