"""The sentences that the published encoders learn from, without those that share eight words in a row with a test.

    python -m modeling_leaner.training.data.encoder_texts OUT.parquet TEXTS.parquet ... --leave-out TEST.parquet ...

It reads the columns in `COLUMNS`, and of the files to leave out every column of text.
"""

import re
import sys
from argparse import ArgumentParser
from pathlib import Path

import pandas as pd


COLUMNS = ("text", "sentence", "sentence1", "sentence2", "premise", "hypothesis")
WORDS_IN_A_ROW = 8


def sentences_of(text: str) -> list[str]:
    """Those of 20 to 220 characters."""
    parts = (part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text))
    return [part for part in parts if 20 <= len(part) <= 220]


def compared(text: str) -> tuple[str, set[str]]:
    """What two texts are compared by: their words in lower case, without punctuation, and every 8 of them in a row."""
    words = re.findall(r"\w+", text.lower())
    starts = range(len(words) - WORDS_IN_A_ROW + 1)
    return " ".join(words), {" ".join(words[start : start + WORDS_IN_A_ROW]) for start in starts}


def write_sentences(output: Path, sources: list[Path], leave_out: list[Path]) -> None:
    """Writes the distinct sentences of 20 to 220 characters, in their order, as the column `text`."""
    whole, runs = set(), set()  # of what is left out
    for path in leave_out:
        for _, column in pd.read_parquet(path).select_dtypes(["object", "string"]).items():
            for text in filter(lambda text: isinstance(text, str), column):
                words, in_a_row = compared(text)
                whole.add(words)
                runs |= in_a_row

    kept: dict[str, str | None] = {}  # by the words of the sentence; None for what is left out
    for path in sources:
        rows = pd.read_parquet(path)
        for column in (name for name in COLUMNS if name in rows):
            for text in rows[column].dropna():
                for sentence in sentences_of(text):
                    words, in_a_row = compared(sentence)
                    if words not in kept:
                        kept[words] = None if words in whole or in_a_row & runs else sentence
    found = [sentence for sentence in kept.values() if sentence is not None]
    pd.DataFrame({"text": found}).to_parquet(output)
    print(f"{output}: {len(found):,} sentences, {len(kept) - len(found):,} left out", file=sys.stderr)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--leave-out", type=Path, nargs="+", default=[])
    options = parser.parse_args()
    if options.output.exists():
        parser.error(f"{options.output} exists already")
    missing = [path for path in (*options.sources, *options.leave_out) if not path.is_file()]
    if missing:
        parser.error(f"{missing[0]}: no such file")
    write_sentences(options.output, options.sources, options.leave_out)
