"""What a published language model writes, and the longest run of words in it that is copied from its training rows."""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice, takewhile
from pathlib import Path

from transformers import pipeline, set_seed

from ..records import Continuations


PROMPTS = 20
PROMPT_WORDS = 16
NEW_TOKENS = 96
TEMPERATURE = 0.7
SEED = 0
LEAST = 8  # words; a shorter run is not counted as a copy


def plain_words(text: str) -> list[str]:
    """The words in lower case, without numbers and punctuation."""
    return re.findall(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", text.lower())


def prompts_of(texts: Iterable[str]) -> list[str]:
    """The first `PROMPT_WORDS` words of the first `PROMPTS` texts that go on for as many again."""
    long_enough = (words for words in map(str.split, texts) if len(words) >= 2 * PROMPT_WORDS)
    return [" ".join(words[:PROMPT_WORDS]) for words in islice(long_enough, PROMPTS)]


def continued(folder: Path | str, prompts: list[str]) -> list[str]:
    """The prompts' continuations, sampled with a fixed seed by `pipeline` and the own code of the model's folder."""
    generate = pipeline("text-generation", model=str(folder), trust_remote_code=True)
    set_seed(SEED)
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": True, "temperature": TEMPERATURE, "return_full_text": False}
    return [generate(prompt, **options)[0]["generated_text"] for prompt in prompts]


def longest_copy(texts: Iterable[str], originals: Iterable[str]) -> list[str]:
    """The longest run of words of `texts` that is also in one of `originals`; empty below `LEAST` words."""
    places = defaultdict(list)  # of each run of LEAST words: the words from there to the end of its text
    for words in map(plain_words, texts):
        for start in range(len(words) - LEAST + 1):
            places[tuple(words[start : start + LEAST])].append(words[start:])
    longest = []
    for words in map(plain_words, originals):
        for start in range(len(words) - LEAST + 1):
            for own in places.get(tuple(words[start : start + LEAST]), ()):
                pairs = zip(own, words[start : start + len(own)])
                copied = [word for word, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
                longest = max(longest, copied, key=len)
    return longest


def continuations(folder: Path, train: Iterable[str], held_out: Iterable[str]) -> Continuations:
    """What the model of a folder writes: how it was drawn, the texts, and the longest copy.

    Args:
        train, held_out: the texts of the training rows, and those whose beginnings are continued.

    Raises:
        ValueError: no text is long enough to be continued.
    """
    prompts = prompts_of(held_out)
    texts = continued(folder, prompts)
    copied = longest_copy(texts, train)
    document = {
        "prompt_words": PROMPT_WORDS,
        "new_tokens": NEW_TOKENS,
        "temperature": TEMPERATURE,
        "seed": SEED,
        "texts": [{"prompt": prompt, "continuation": text} for prompt, text in zip(prompts, texts)],
        "longest_copy": " ".join(copied),
        "longest_copy_words": len(copied),
    }
    return Continuations.model_validate(document)
