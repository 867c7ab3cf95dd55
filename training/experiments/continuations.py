"""What a published language model writes, and the longest run of words in it that is copied from its training rows."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from transformers import pipeline, set_seed

from ..records import Continuations, checked
from ..records.results import RESULTS


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
    prompts = []
    for text in texts:
        words = text.split()
        if len(words) >= 2 * PROMPT_WORDS:
            prompts.append(" ".join(words[:PROMPT_WORDS]))
        if len(prompts) == PROMPTS:
            break
    return prompts


def continued(folder: Path | str, prompts: list[str]) -> list[str]:
    """The prompts' continuations, sampled with a fixed seed by `pipeline` and the own code of the model's folder."""
    generate = pipeline("text-generation", model=str(folder), trust_remote_code=True)
    set_seed(SEED)
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": True, "temperature": TEMPERATURE, "return_full_text": False}
    return [generate(prompt, **options)[0]["generated_text"] for prompt in prompts]


def _common_beginning(words: list[str], others: list[str]) -> list[str]:
    """The words that both lists begin with."""
    common = []
    for word, other in zip(words, others):
        if word != other:
            break
        common.append(word)
    return common


def longest_copy(texts: Iterable[str], originals: Iterable[str]) -> list[str]:
    """The longest run of words of `texts` that is in one of `originals` too; empty below `LEAST` words."""
    written = [plain_words(text) for text in texts]
    places = defaultdict(list)  # where each run of LEAST words begins: text and word
    for index, words in enumerate(written):
        for start in range(len(words) - LEAST + 1):
            places[tuple(words[start : start + LEAST])].append((index, start))
    longest = []
    for original in originals:
        words = plain_words(original)
        for start in range(len(words) - LEAST + 1):
            for index, place in places.get(tuple(words[start : start + LEAST]), ()):
                own = written[index][place:]
                copied = _common_beginning(own, words[start : start + len(own)])
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
    return checked(Continuations, document, folder / RESULTS, "continuations")
