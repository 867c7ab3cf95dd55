"""What all tasks share: rows as tensors, masks and crops, metrics; and what those on text share.

Rows are prepared once, in parallel, and cached. What is random (masks, crops) happens on the device, drawn by a
generator of each row's place in the run: a baseline and its twin, one process or eight, a run and its continuation all
see the same masks. Shapes: B rows, T tokens.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from datasets import IterableDataset
from datasets.fingerprint import Hasher
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.family import TEXT

from ..data.sources import Rows, column_names, find_text_column, first_rows
from ..data.tokenizer import vocab_size_of
from ..settings import RecipeArguments


Batch = dict[str, torch.Tensor]
Generators = Sequence[np.random.Generator]
PREPARED = {"labels", "input_ids", "length", "pixels", "token_type_ids"}  # columns of prepared rows
OF_FILE = " of the file"


# Rows


def prepared_rows(
    rows: Rows, function: Callable[..., dict], key: object, workers: int | None, description: str
) -> Rows:
    """The columns alone that a batched `map` function makes of the rows, from the cache where it has them.

    The function gets columns by their names, and the numbers of the rows, as the file has them. Equal settings give
    equal results, so `key` can name the cached one. `workers` has no influence on the rows.
    """
    # else `datasets` would keep the type that a column of the same name has in the file
    rows = rows.rename_columns({name: name + OF_FILE for name in column_names(rows) if name in PREPARED})
    chosen = getattr(rows, "_indices", None)
    places = None if chosen is None else chosen.column(0).to_numpy()

    def read(batch: dict[str, list], indices: list[int]) -> dict:
        columns = {name.removesuffix(OF_FILE): values for name, values in batch.items()}
        return function(columns, indices if places is None else places[indices].tolist())

    options = {"batched": True, "with_indices": True, "remove_columns": column_names(rows)}
    if isinstance(rows, IterableDataset):
        return rows.map(read, **options)
    processes = min(workers or min(os.cpu_count() or 1, 8), len(rows) // 1000)
    return rows.map(
        read,
        **options,
        num_proc=processes if processes > 1 else None,
        new_fingerprint=Hasher.hash((rows._fingerprint, key, __version__)),
        desc=description,
    )


def row_generators(places: Iterable[int], seed: int | None = None) -> list[np.random.Generator]:
    """One generator per row, from its place in the run of this seed.

    Without a seed the rows are held-out ones, and a place is one among them.
    """
    stream = (0, 0) if seed is None else (seed, 1)
    return [np.random.default_rng((*stream, place)) for place in places]


# Tasks


class Task:
    """What the tasks share. A task also defines

    - `configure(train)`, which finds the `columns` that it reads and returns the fields of the configuration that
      follow from the data, such as the labels;
    - `prepare(rows, source)`: rows of numbers, or ValueError that names source, column and row;
    - `collate(rows)`: one batch on the host, and `score(prediction)`: the metrics, from what `reduce` kept;
    - with `has_own_loss` also `loss`, a mean of this batch.

    Args:
        arguments: the settings of the run.
        config: of the model; at first without the fields that `configure` returns.
        processing: tokenizer or image processor.
    """

    name: str
    hub_name: str  # of the task on the Hub
    head: str  # of the model's class, as ForMaskedLM; empty if the model has none
    modality: str
    does: str  # what a model does, for a card's first sentence
    main_metrics: tuple[str, ...]  # that count if none is named; which one, the rows decide
    columns: list[str]  # of the rows
    held_out_unit = "rows"  # what a row is called where the held-out ones are counted
    is_scored_by_token = False  # and not by row, so that the choice of rows gives no standard error
    has_full_rows = False  # all of one length
    regression = False
    has_own_loss = False
    classes: dict[str, int] | None = None  # of a classification, name to number
    lower_is_better = ("loss", "perplexity", "bits_per_byte")

    def __init__(self, arguments: RecipeArguments, config: LeanConfig, processing: object):
        self.arguments = arguments
        self.config = config
        self.processing = processing
        self.metric = arguments.metric or self.main_metrics[0]

    def keep_held_out(self, rows: Rows) -> None:
        """Keeps what `score` needs of the evaluation rows, as they were."""

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """What the model reads, on the device; `generators` has one per row."""
        return batch

    def loss(self, model: PreTrainedModel, inputs: Batch) -> tuple[torch.Tensor, object]:
        """The loss, and the outputs."""
        outputs = model(**inputs)
        return outputs.loss, outputs

    def aligned(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and labels such that each logit is of the label at its place."""
        return logits, labels

    def reduce(self, outputs: object, labels: torch.Tensor) -> torch.Tensor:
        """What is kept of the model's outputs on a batch, small enough for all batches to stay in memory."""
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """Name and value of a guess that reads no input, from the prepared rows; None where there is none."""
        return None


class TextTask(Task):
    """What the tasks on text share: the tokenizer's fit, the length, the text columns, padding."""

    modality = TEXT
    processing: PreTrainedTokenizerBase
    needs: tuple[str, ...] = ()  # special tokens; where there are none, a bidirectional model needs cls and sep

    def __init__(self, arguments: RecipeArguments, config: LeanConfig, processing: PreTrainedTokenizerBase):
        super().__init__(arguments, config, processing)
        # a checkpoint may have more positions than it was trained on
        self.length = arguments.max_length or min(config.max_position_embeddings, processing.model_max_length)
        self.segments = hasattr(config, "type_vocab_size")  # as bidirectional models have
        self.pad_id = processing.pad_token_id or 0
        end = processing.eos_token_id
        self.separator = processing.sep_token_id if end is None else end  # after a document
        # What cached rows depend on beside their settings: the tokenizer, and its tokens that begin and end texts.
        self.reading_key = Hasher.hash((tokenizer_text(processing), processing.special_tokens_map))
        size = vocab_size_of(processing)
        needed = self.needs or (("cls", "sep") if self.segments else ())
        lacking = [token for token in needed if getattr(processing, f"{token}_token_id") is None]
        if size > config.vocab_size or lacking:
            has = f"{size} tokens, but the shape's vocab_size is {config.vocab_size}"
            raise ValueError(f"tokenizer: {f'no {lacking[0]} token, which {self.name} needs' if lacking else has}")

    def configure(self, train: Rows) -> dict[str, object]:
        self.text_column = find_text_column(train, self.arguments.text_column, "text_column")
        self.columns = [self.text_column]
        return {}

    @classmethod
    def text_columns_of(cls, arguments: RecipeArguments, rows: Rows) -> list[str]:
        """The columns whose text the task reads, also for a tokenizer to be trained on."""
        pair = [] if arguments.text_pair_column is None else ["text_pair_column"]
        return [find_text_column(rows, getattr(arguments, key), key) for key in ("text_column", *pair)]

    def pad(self, rows: list[dict], key: str, value: int) -> torch.Tensor:
        """(B, longest) from lists of numbers."""
        numbers = [torch.tensor(row[key], dtype=torch.long) for row in rows]
        return pad_sequence(numbers, batch_first=True, padding_value=value)

    def collate_text(self, rows: list[dict]) -> Batch:
        """Token ids, the mask of what is no padding and, where model and rows have them, segments: each (B, T)."""
        ids = self.pad(rows, "input_ids", self.pad_id)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}
        if "token_type_ids" in rows[0] and self.segments:
            batch["token_type_ids"] = self.pad(rows, "token_type_ids", 0)
        return batch


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer as text, without the lengths to which it cuts and pads: those change with every call."""
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps({**document, "truncation": None, "padding": None}, sort_keys=True)


# Batches


def evaluation_batches(task: Task, rows: Rows, places: Sequence[int], size: int) -> Iterator[Batch]:
    """The prepared rows at these places as a model reads them in an evaluation, on the host, `size` at a time."""
    for start in range(0, len(places), size):
        chosen = places[start : start + size]
        batch = task.collate([rows[place] for place in chosen])
        yield task.transform(batch, row_generators(chosen), training=False)


def first_inputs(task: Task, rows: Rows, count: int) -> Batch:
    """The first prepared rows as the model reads them in an evaluation, on the host, without its targets."""
    first = list(first_rows(rows, count))
    (batch,) = evaluation_batches(task, first, range(len(first)), len(first))
    return {name: tensor for name, tensor in batch.items() if name != "labels"}
