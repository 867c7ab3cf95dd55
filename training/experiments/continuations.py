"""What a published language model writes, and the longest run of words in it that is copied from its training rows."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from transformers import pipeline, set_seed


PROMPTS, PROMPT_WORDS, NEW_TOKENS, TEMPERATURE, SEED = 20, 16, 96, 0.7, 0
LEAST = 8  # words; a shorter run is not counted as a copy


def words_of(text: str) -> list[str]:
    """The words in lower case, without numbers and punctuation."""
    return re.findall(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", text.lower())


def prompts_of(texts: Iterable[str]) -> list[str]:
    """The first `PROMPT_WORDS` words of the first `PROMPTS` texts that go on for as many again."""
    found = []
    for text in texts:
        pieces = text.split()
        if len(pieces) >= 2 * PROMPT_WORDS:
            found.append(" ".join(pieces[:PROMPT_WORDS]))
        if len(found) == PROMPTS:
            break
    return found


def continued(folder: Path | str, prompts: list[str]) -> list[str]:
    """What the model in `folder` goes on with, sampled with a fixed seed, by `pipeline` and the folder's own code."""
    generate = pipeline("text-generation", model=str(folder), trust_remote_code=True)
    set_seed(SEED)
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": True, "temperature": TEMPERATURE, "return_full_text": False}
    return [generate(prompt, **options)[0]["generated_text"] for prompt in prompts]


def longest_copy(texts: Iterable[str], originals: Iterable[str]) -> list[str]:
    """The longest run of words of `texts` that is in one of `originals` too; empty below `LEAST` words."""
    written, places, best = [words_of(text) for text in texts], defaultdict(list), []
    for index, words in enumerate(written):
        for start in range(len(words) - LEAST + 1):
            places[tuple(words[start : start + LEAST])].append((index, start))
    for original in originals:
        words = words_of(original)
        for end in range(LEAST, len(words) + 1):
            for index, start in places.get(tuple(words[end - LEAST : end]), ()):
                ours, length = written[index][start:], LEAST
                while length < len(ours) and end - LEAST + length < len(words):
                    if ours[length] != words[end - LEAST + length]:
                        break
                    length += 1
                best = max(best, ours[:length], key=len)
    return best


def continuations(folder: Path, train: Iterable[str], held_out: Iterable[str]) -> dict[str, object]:
    """What results.json holds of it: how it was drawn, the texts, and the longest copy.

    Args:
        train, held_out: the texts of the training rows, and those whose beginnings are continued.
    """
    prompts = prompts_of(held_out)
    texts = continued(folder, prompts)
    copied = longest_copy(texts, train)
    return {
        "prompt_words": PROMPT_WORDS,
        "new_tokens": NEW_TOKENS,
        "temperature": TEMPERATURE,
        "seed": SEED,
        "texts": [{"prompt": prompt, "continuation": text} for prompt, text in zip(prompts, texts)],
        "longest_copy": " ".join(copied),
        "longest_copy_words": len(copied),
    }
