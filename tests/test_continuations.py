"""What a language model writes: copies are found wherever they lie, and the published stories are in English words."""

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from modeling_leaner.training import train
from modeling_leaner.training.publishing import continuations, publish
from modeling_leaner.training.publishing.continuations import (
    LEAST,
    PROMPT_WORDS,
    PROMPTS,
    longest_copy,
    plain_words,
    prompts_of,
)
from spellchecker import SpellChecker
from training_data import LOCAL_DATA, documents, write_shape


ROOT = Path(__file__).parents[1]
STORIES = ROOT / "model_cards" / "leangpt-lean-mini-tinystories"
LOCAL = LOCAL_DATA / "tinystories"
LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z".split()


@pytest.mark.parametrize("start, end", [(0, 20), (6, 26), (3, 3 + LEAST)])
def test_the_longest_copy_is_found_wherever_it_lies(start, end):
    text = " ".join(LETTERS[start:end])
    originals = ["nothing of it", f"before {text}, after", " ".join(LETTERS[start : end - 1])]
    assert longest_copy([f"other words: {text.upper()}! More."], originals) == LETTERS[start:end]


def test_a_copy_of_the_fewest_words_at_the_end_of_a_text():
    assert longest_copy([" ".join(LETTERS[:LEAST])], ["before " + " ".join(LETTERS[:LEAST])]) == LETTERS[:LEAST]


def test_short_copies_and_broken_ones_are_none():
    assert longest_copy([" ".join(LETTERS[: LEAST - 1])], [" ".join(LETTERS)]) == []
    broken = LETTERS[:7] + ["!x"] + LETTERS[7:14]
    assert longest_copy([" ".join(broken)], [" ".join(LETTERS)]) == []
    assert longest_copy([], []) == []


def test_words_and_prompts():
    assert plain_words("Lily's 3 well-known cats; said “No!”") == ["lily's", "well-known", "cats", "said", "no"]
    short = " ".join((LETTERS * 2)[: 2 * PROMPT_WORDS - 1])
    rows = [short] + [f"{number} " + " ".join(LETTERS * 2) for number in range(PROMPTS + 5)]
    prompts = prompts_of(rows)
    assert len(prompts) == PROMPTS and prompts[0] == " ".join(["0", *LETTERS[: PROMPT_WORDS - 1]])


@pytest.mark.full
@pytest.mark.skipif(not STORIES.is_dir(), reason="the TinyStories pair is not published yet")
def test_the_published_stories_are_english_and_not_copied():
    """At least 95 % dictionary words through `pipeline`, and no run of 20 words from the training text."""
    said = json.loads((STORIES / "results.json").read_text())["continuations"]
    fresh = continuations.continued(STORIES, [each["prompt"] for each in said["texts"]])
    for texts in (fresh, [each["continuation"] for each in said["texts"]]):
        words = [word for text in texts for word in plain_words(text)]
        unknown = SpellChecker().unknown(words)
        share = sum(word not in unknown for word in words) / len(words)
        assert len(words) > 500 and share >= 0.95, f"{share:.1%} of {len(words)} words; not {sorted(unknown)[:20]}"
    assert said["longest_copy_words"] < 20
    if not LOCAL.is_dir():
        pytest.skip("the training text, for copies in fresh continuations, is not on this machine")
    files = [str(LOCAL / name) for name in ("train.parquet", "sampled.parquet")]
    training = load_dataset("parquet", data_files=files, split="train")["text"]
    assert len(longest_copy(fresh, training)) < 20


def test_a_published_language_model_says_what_it_writes(tmp_path, monkeypatch):
    """From the run's folder alone: prompts of held-out rows, copies from training rows; and the card's section."""
    monkeypatch.chdir(tmp_path)
    rows = documents(40, seed=0)
    rows.to_parquet("train.parquet")
    documents(3, seed=1).to_parquet("validation.parquet")
    shape = write_shape("gpt", tmp_path, max_position_embeddings=256)
    files = ["train=train.parquet", "validation=validation.parquet"]
    words = ["--dataset", "parquet", "--data_files", *files, "--task", "causal-lm", "--tokenizer", "byte-bpe"]
    quiet = ["--disable_tqdm", "true", "--hardware", "cpu", "--eval_split", "validation"]
    train.main([*words, "--shape", shape, "--max_steps", "2", "--output_dir", "run", "--max_length", "64", *quiet])
    said = publish.continuations_of(Path("run"), [])
    held_out = load_dataset("parquet", data_files="validation.parquet", split="train")["text"]
    assert [each.prompt for each in said.texts] == [" ".join(text.split()[:PROMPT_WORDS]) for text in held_out]
    monkeypatch.setattr(continuations, "continued", lambda folder, prompts: [rows[7]["text"]] * len(prompts))
    said = publish.continuations_of(Path("run"), [])
    assert said.longest_copy.split() == plain_words(rows[7]["text"]) and said.longest_copy_words == 60
