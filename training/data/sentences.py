"""The sentences of texts, to learn vectors from; `leaner sentences`: a file of them without those of tests."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from datasets import Dataset

from modeling_leaner.files import write_bytes

from .sources import load_split, text_columns
from .tokenizer import TextSource


SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
SENTENCE_LENGTHS = range(20, 221)  # characters
WORD = re.compile(r"\w+")
WORDS_IN_A_ROW = 8
Match = Literal["equal", "alike"]


def sentences(text: str) -> list[str]:
    """The sentences of a text that have 20 to 220 characters."""
    parts = [part.strip() for part in SENTENCE_END.split(text)]
    return [part for part in parts if len(part) in SENTENCE_LENGTHS]


def words_of(text: str) -> list[str]:
    """Its words in lower case, without punctuation: what two texts are compared by."""
    return WORD.findall(text.lower())


def runs_of(words: list[str]) -> Iterator[str]:
    """Every 8 words in a row."""
    for start in range(len(words) - WORDS_IN_A_ROW + 1):
        yield " ".join(words[start : start + WORDS_IN_A_ROW])


class TestedTexts:
    """Texts that a model is tested on.

    Args:
        source: files, or a Hub dataset as ID:CONFIGURATION:SPLIT, the configuration empty where it has none.
    """

    def __init__(self, source: str):
        self.source = source
        self.texts = set()
        self.runs = set()
        for text in read_texts(source):
            words = words_of(text)
            self.texts.add(" ".join(words))
            self.runs.update(runs_of(words))

    def match(self, words: list[str]) -> Match | None:
        """equal: one of the texts has the same words; alike: one has 8 of them in a row; None where none has."""
        if " ".join(words) in self.texts:
            return "equal"
        if any(run in self.runs for run in runs_of(words)):
            return "alike"
        return None


def read_texts(source: str) -> Iterable[str]:
    """All text columns of files or of a Hub dataset. Raises ValueError where they cannot be read."""
    if Path(source).exists():
        rows = load_split(None, "train", data_files=[source])
    else:
        try:
            dataset, configuration, split = source.split(":")
        except ValueError:
            raise ValueError(
                f"--leave-out {source}: no such file, nor a Hub dataset as ID:CONFIGURATION:SPLIT"
            ) from None
        rows = load_split(dataset, split, dataset_config=configuration or None)
    columns = text_columns(rows)
    if not columns:
        raise ValueError(f"--leave-out {source}: no column of texts, only {', '.join(rows.column_names)}")
    return (text for column in columns for text in rows[column] if text is not None)


def write_sentences(output: Path, source: TextSource, leave_out: list[str]) -> None:
    """Writes the distinct sentences of a source, in their order, as the column `text`, and prints what was left out.

    Raises:
        ValueError: the source or what is to be left out cannot be read, or no sentence is left.
        FileExistsError: the file exists.
    """
    if output.suffix != ".parquet":
        raise ValueError(f"{output}: expected a name that ends in .parquet")
    if output.exists():
        raise FileExistsError(f"{output} exists already")
    tested = [TestedTexts(name) for name in leave_out]
    found: list[Counter[Match]] = [Counter() for _ in tested]  # of each, how many sentences match
    kept = {}
    left_out = set()
    total = 0
    for row, text in enumerate(source.read(), 1):
        if not isinstance(text, str):
            raise ValueError(f"{source.name}: row {row} is of type {type(text).__name__}, expected a text")
        for sentence in sentences(text):
            total += 1
            words = words_of(sentence)
            key = " ".join(words)
            if key in kept or key in left_out:
                continue
            is_tested = False
            for texts, counts in zip(tested, found, strict=True):
                match = texts.match(words)
                if match is not None:
                    counts[match] += 1
                    is_tested = True
            if is_tested:
                left_out.add(key)
            else:
                kept[key] = sentence
    if not kept:
        raise ValueError(f"{source.name}: no sentence is left of {total:,}")
    output.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Dataset.from_dict({"text": list(kept.values())}).to_parquet(content)
    write_bytes(output, content.getvalue())
    for texts, counts in zip(tested, found, strict=True):
        alike = f"{counts['alike']:,} with {WORDS_IN_A_ROW} words in a row of theirs"
        print(f"{texts.source}: left out {counts['equal']:,} sentences that are among its texts, {alike}")
    print(f"{output}: {len(kept):,} sentences of {total:,}, {len(left_out):,} left out, the rest repeated")
