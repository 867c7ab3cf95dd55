"""What the tasks on text share: the tokenizer's fit, the length, the text column, padding."""

import json

import numpy as np
import torch
from datasets import Value
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.registry import TEXT
from modeling_leaner.shapes import family_of, load_shape, shape_names

from ..data.sources import Rows, likely_texts
from ..settings.arguments import RecipeArguments
from .base import Batch, Task, column_kinds, features_of, find_column, shown


def text_columns(rows: Rows) -> list[str]:
    columns = features_of(rows).items()
    return [name for name, kind in columns if isinstance(kind, Value) and kind.dtype.endswith("string")]


def check_text(batch: dict[str, list], column: str, indices: list[int], source: str) -> None:
    """Raises ValueError for the first value of `column` that is not text."""
    for index, text in zip(indices, batch[column]):
        if isinstance(text, str):
            continue
        given = shown(text)
        if text is not None:
            given = f"{type(text).__name__} {given}"
        raise ValueError(f"{source}: {column}, row {index + 1}: expected text, got {given}")


def fitting(config: LeanConfig, key: str, least: int) -> str:
    """The end of an error about a shape that is too small: the named shapes of its family that would do.

    They have `least` or more of `key`, and of vocabulary and positions no less than the shape itself.
    """
    limits = {"vocab_size": config.vocab_size, "max_position_embeddings": config.max_position_embeddings, key: least}
    sizes = {}
    for name in shape_names():
        shape = load_shape(name)
        if family_of(shape) != family_of(config):
            continue
        if all(getattr(shape, field) >= limit for field, limit in limits.items()):
            sizes[name] = shape.count_parameters().total
    if not sizes:
        return ""
    smallest = sorted(sizes, key=sizes.get)[:5]
    return f"; shapes with {key} {least} or more, smallest first: {', '.join(smallest)}"


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer as text, without the lengths to which it cuts and pads: those change with every call."""
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    document["truncation"] = None
    document["padding"] = None
    return json.dumps(document, sort_keys=True)


class TextTask(Task):
    """What the tasks on text share: the tokenizer's fit, the length, the text column, padding."""

    modality = TEXT
    processing: PreTrainedTokenizerBase
    needs: tuple[str, ...] = ()  # special tokens; where there are none, a bidirectional model needs cls and sep

    def __init__(self, arguments: RecipeArguments, config: LeanConfig, processing: PreTrainedTokenizerBase):
        super().__init__(arguments, config, processing)
        size = max(processing.get_vocab().values(), default=-1) + 1
        vocabulary = config.vocab_size
        if size > vocabulary:
            fit = fitting(config, "vocab_size", size)
            raise ValueError(f"tokenizer: {size} tokens, but the shape's vocab_size is {vocabulary}{fit}")
        self.length = arguments.max_length
        if self.length is None:  # a checkpoint may have more positions than it was trained on
            self.length = min(config.max_position_embeddings, processing.model_max_length)
        self.segments = hasattr(config, "type_vocab_size")  # as bidirectional models have
        needs = self.needs
        if not needs and self.segments:
            needs = ("cls", "sep")
        for token in needs:
            if getattr(processing, f"{token}_token_id") is None:
                raise ValueError(f"tokenizer: it has no {token} token, which {self.name} with this shape needs")

    @classmethod
    def text_columns_of(cls, arguments: RecipeArguments, rows: Rows) -> list[str]:
        columns = [cls.find_text(rows, arguments.text_column, "text_column")]
        if arguments.text_pair_column is not None:
            columns.append(cls.find_text(rows, arguments.text_pair_column, "text_pair_column"))
        return columns

    @staticmethod
    def find_text(rows: Rows, named: str | None, key: str) -> str:
        texts = text_columns(rows)
        if named is None and rows.features and not texts:
            raise ValueError(f"{key}: no column holds text alone: {column_kinds(rows)}")
        column = find_column(rows, named, key, likely_texts(texts))
        feature = features_of(rows).get(column)
        if feature is not None and column not in texts:
            raise ValueError(f"{key}: column {column!r} is {getattr(feature, 'dtype', feature)}, expected text")
        return column

    def tokenizer_key(self) -> str:
        """What cached rows depend on: the tokenizer, and which of its tokens begins, ends and separates texts."""
        return Hasher.hash((tokenizer_text(self.processing), self.processing.special_tokens_map))

    def pad(self, rows: list[dict], key: str, value: int) -> torch.Tensor:
        """(B, longest) from lists of numbers."""
        longest = max(len(row[key]) for row in rows)
        out = np.full((len(rows), longest), value, dtype=np.int64)
        for index, row in enumerate(rows):
            out[index, : len(row[key])] = row[key]
        return torch.from_numpy(out)

    def collate_text(self, rows: list[dict]) -> Batch:
        """Token ids, the mask of what is no padding and, where model and rows have them, segments: each (B, T)."""
        ids = self.pad(rows, "input_ids", self.pad_id)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}
        if "token_type_ids" in rows[0] and self.segments:
            batch["token_type_ids"] = self.pad(rows, "token_type_ids", 0)
        return batch

    @property
    def pad_id(self) -> int:
        if self.processing.pad_token_id is None:
            return 0
        return self.processing.pad_token_id
