"""The two language models' tasks: documents joined and cut into rows, the next token or hidden tokens predicted."""

from itertools import chain

import numpy as np
import torch
from torch.nn import functional as F
from transformers import EvalPrediction

from ..data.sources import Rows, checked_texts, first_rows
from .base import Batch, Generators, TextTask, prepared_rows


class LanguageModelling(TextTask):
    """Documents with a separator after each, joined and cut into rows by `_pack`, 1,000 documents at a time.

    Nothing is dropped: the last row of each 1,000 documents is short.
    """

    main_metrics = ("loss",)
    is_scored_by_token = True
    has_full_rows = True
    predicts_special_tokens = True  # such as the end of a text

    def prepare(self, rows: Rows, source: str) -> Rows:
        def tokens(batch: dict[str, list], numbers: list[int]) -> dict:
            """Each document's tokens, then a separator; and for whole words the number of each token's word."""
            texts = list(checked_texts(batch[self.text_column], f"{source}: {self.text_column}", numbers))
            encodings = self.processing(texts, add_special_tokens=False, verbose=False).encodings
            columns = {"input_ids": [np.array([*each.ids, self.separator], dtype=np.int32) for each in encodings]}
            if self.arguments.whole_word_masking:
                columns["words"] = [np.array([*each.word_ids, -1], dtype=np.int32) for each in encodings]
            return columns

        key = (self.text_column, self.arguments.whole_word_masking, self.reading_key)
        rows = prepared_rows(rows, tokens, key, self.arguments.preprocessing_workers, f"tokens of {source}")
        # One process: where rows are cut must not depend on how many there are.
        return prepared_rows(rows, self._pack, (self.name, self.length), 1, f"rows of {source}")

    def chance(self, train: Rows, held_out: Rows) -> tuple[str, float] | None:
        """Loss, in nats per token, of guessing each token by its frequency in the training rows (plus one).

        By the tokens that may be targets in the first 20,000 rows of each: no row's first, which begins it.
        """
        size = self.config.vocab_size
        ignored = [] if self.predicts_special_tokens else self.processing.all_special_ids
        counts = []
        for rows in (train, held_out):
            counts.append(np.zeros(size, dtype=np.int64))
            for batch in first_rows(rows, 20_000).with_format("numpy").iter(1000):
                targets = np.concatenate([row[1:] for row in batch["input_ids"]])
                counts[-1] += np.bincount(targets[~np.isin(targets, ignored)], minlength=size)
        frequencies, occurrences = counts[0] + 1, counts[1]
        log_probabilities = np.log(frequencies / frequencies.sum())
        return "unigram loss", float(-(occurrences * log_probabilities).sum() / occurrences.sum())

    def reduce(self, outputs: object, labels: torch.Tensor) -> torch.Tensor:
        """(B, 3): loss in nats, tokens and hits of each row, from logits (B, T, V) and labels (B, T), -100 ignored."""
        logits, labels = self.aligned(super().reduce(outputs, labels), labels)
        sums = []
        for row, targets in zip(logits, labels):  # one at a time: those of a whole batch are too large to be copied
            counted = targets != -100
            if not counted.all():
                row, targets = row[counted], targets[counted]  # (N, V), (N,)
            row = row.float()
            loss = F.cross_entropy(row, targets, reduction="sum")
            sums.append(torch.stack([loss, counted.sum(), (row.argmax(-1) == targets).sum()]))
        return torch.stack(sums)

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """From sums per row (loss, tokens, hits): the loss per token in nats, its exponential, the share of hits."""
        loss, tokens, hits = np.asarray(prediction.predictions, dtype=np.float64)[:, :3].sum(0)
        return {
            "loss": loss / tokens,
            "perplexity": float(np.exp(min(loss / tokens, 700.0))),
            "accuracy": hits / tokens,
        }


class CausalLM(LanguageModelling):
    """Next-token prediction on packed rows, end-of-text between documents."""

    name = "causal-lm"
    hub_name = "text-generation"
    head = "ForCausalLM"
    does = "continues text"
    needs = ("eos",)

    def keep_held_out(self, rows: Rows) -> None:
        """Keeps the UTF-8 bytes of all documents, by which the nats of all their tokens are divided."""
        # str: nothing has read the rows of a stream yet
        self.text_bytes = sum(len(str(row[self.text_column]).encode()) for row in rows)

    def _pack(self, batch: dict[str, list], indices: list[int]) -> dict:
        """Rows that share one token with the row before, so that every token is predicted exactly once."""
        stream = [self.separator, *chain.from_iterable(batch["input_ids"])]  # the end of the text before
        starts = range(0, len(stream) - 1, self.length - 1)
        rows = [np.array(stream[start : start + self.length], dtype=np.int32) for start in starts]
        return {"input_ids": rows, "length": list(map(len, rows))}

    def reduce(self, outputs: object, labels: torch.Tensor) -> torch.Tensor:
        """(B, 5): beside the three of all tokens, loss and number of those that complete a bigram seen in the row."""
        sums = super().reduce(outputs, labels)
        pairs = labels[:, :-1] * (labels.max() + 1) + labels[:, 1:]
        values, order = pairs.sort(dim=1, stable=True)  # equal pairs side by side, the earliest first
        seen = F.pad(values.diff(dim=1) == 0, (1, 0))
        seen = F.pad(torch.zeros_like(seen).scatter(1, order, seen), (1, 0))  # (B, T), never the first
        repeated = super().reduce(outputs, labels.masked_fill(~seen, -100))
        return torch.cat([sums, repeated[:, :2]], dim=1)

    def score(self, prediction: EvalPrediction) -> dict[str, float]:
        """Adds bits per byte of text: all nats over all bytes. No token's context reaches beyond its row.

        And the loss per token of those that complete a bigram seen before in their row, and of all others, each where
        there are any; a baseline, which has no sums of its own for these, goes without.
        """
        nats, tokens, *_ = sums = np.asarray(prediction.predictions, dtype=np.float64).sum(0)
        scores = {**super().score(prediction), "bits_per_byte": float(nats / np.log(2) / self.text_bytes)}
        if len(sums) == 3:
            return scores
        repeated_nats, repeated = sums[3:]
        if repeated:
            scores["loss_repeated_bigram"] = repeated_nats / repeated
        if repeated < tokens:
            scores["loss_other"] = (nats - repeated_nats) / (tokens - repeated)
        return scores

    def collate(self, rows: list[dict]) -> Batch:
        ids = self.pad(rows, "input_ids", -100)
        return {"input_ids": ids.masked_fill(ids == -100, self.pad_id), "labels": ids}

    def aligned(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits[:, :-1], labels[:, 1:]


class MaskedLM(LanguageModelling):
    """BERT's objective (Devlin et al. 2018): 80 % of the chosen tokens masked, 10 % replaced, 10 % left."""

    name = "masked-lm"
    hub_name = "fill-mask"
    head = "ForMaskedLM"
    does = "fills in masked tokens"
    needs = ("cls", "sep", "mask")
    predicts_special_tokens = False

    def _pack(self, batch: dict[str, list], indices: list[int]) -> dict:
        stream = list(chain.from_iterable(batch["input_ids"]))
        words = list(chain.from_iterable(batch.get("words", [])))
        start, end = self.processing.cls_token_id, self.processing.sep_token_id
        size = self.length - 2
        cuts = range(0, len(stream), size)
        ids = [np.array([start, *stream[cut : cut + size], end], dtype=np.int32) for cut in cuts]
        rows = {"input_ids": ids, "length": list(map(len, ids))}
        if words:
            parts = [np.array([-1, *words[cut : cut + size], -1]) for cut in cuts]
            # numbers from 0 that rise wherever another word, or another document, begins
            rows["words"] = [np.cumsum(np.diff(part, prepend=-1) != 0).astype(np.int32) for part in parts]
        return rows

    def collate(self, rows: list[dict]) -> Batch:
        batch = self.collate_text(rows)
        batch["labels"] = batch["input_ids"]
        if self.arguments.whole_word_masking:
            batch["words"] = self.pad(rows, "words", 0)
        return batch

    def transform(self, batch: Batch, generators: Generators, training: bool) -> Batch:
        """Chooses and masks tokens; the same choice for a row at every evaluation."""
        ids = batch["input_ids"]
        words = batch.pop("words", None)
        # of the longest row, so that none depends on the batch's T
        draws = np.stack([generator.random((3, self.length), dtype=np.float32) for generator in generators])
        draws = torch.from_numpy(draws).to(ids.device)[..., : ids.shape[1]]
        chosen, fate, other = draws.unbind(1)  # each (B, T)
        if words is not None:
            chosen = chosen.gather(1, words)  # one draw per word
        special = torch.isin(ids, torch.tensor(self.processing.all_special_ids, device=ids.device))
        masked = (chosen < self.arguments.mask_fraction) & ~special
        # A row without any chosen token would have no loss: its nearest token, or word, is chosen.
        chosen = chosen.masked_fill(special, 2.0)
        least = chosen.min(1, keepdim=True).values
        masked |= ~masked.any(1, keepdim=True) & (chosen == least) & (least < 2)
        replaced = (other * len(self.processing)).long()
        inputs = torch.where(masked & (fate < 0.8), self.processing.mask_token_id, ids)
        inputs = torch.where(masked & (fate >= 0.9), replaced, inputs)
        return {**batch, "input_ids": inputs, "labels": ids.masked_fill(~masked, -100)}
