"""What a language model writes, and how much of it is copied."""

from unicodedata import category

from ...experiments.continuations import LEAST
from ...records import Continuation, PublishedResults


def quoted(text: Continuation) -> str:
    """A prompt in bold and what the model made of it, control characters but the newline as �."""
    passage = f"**{text.prompt}**{text.continuation}"
    printed = "".join("�" if category(letter) == "Cc" and letter != "\n" else letter for letter in passage)
    return "> " + printed.replace("\n", "\n> ")


def continuations(results: PublishedResults) -> str | None:
    """What a language model writes, and how much of it is copied; None of other models."""
    drawn = results.continuations
    if drawn is None:
        return None
    first, *others = drawn.texts
    more = ""
    if others:
        more = f"{quoted(others[0])}\n\n"
    longest_copy = f"none of {LEAST} words or more"
    if drawn.longest_copy:
        longest_copy = f"“{drawn.longest_copy}”, {drawn.longest_copy_words} words"
    return (
        f"The first {drawn.prompt_words} words (bold) of a held-out document, continued by {drawn.new_tokens} "
        f"tokens at most, sampled at temperature {drawn.temperature:g} with seed {drawn.seed}:\n\n"
        f"{quoted(first)}\n\n<details>\n<summary>More, and what was copied</summary>\n\n"
        f"{more}All {len(drawn.texts)} are in results.json. The longest run of words that also "
        f"occurs in a training document: {longest_copy}. `leaner publish` drew and compared them; "
        "`leaner verify` does not repeat that, since sampling differs from one machine to another.\n\n</details>"
    )
