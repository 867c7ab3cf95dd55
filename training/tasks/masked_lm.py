"""The task of a masked language model: tokens that are hidden."""

import numpy as np
import torch

from .base import Batch, Generators
from .language_modelling import LanguageModelling


class MaskedLM(LanguageModelling):
    """BERT's objective (Devlin et al. 2018): 80 % of the chosen tokens masked, 10 % replaced, 10 % left."""

    name = "masked-lm"
    hub_name = "fill-mask"
    title = "Masked language modelling"
    head = "ForMaskedLM"
    does = "fills in masked tokens"
    not_for = "any use without fine-tuning"
    needs = ("cls", "sep", "mask")
    predicts_special_tokens = False

    def _pack(self, batch: dict[str, list], indices: list[int]) -> dict:
        stream = self._join(batch["input_ids"])
        words = self._join(batch.get("words", []))
        start = self.processing.cls_token_id
        end = self.processing.sep_token_id
        size = self.length - 2
        cuts = range(0, len(stream), size)
        rows = {"input_ids": [np.array([start, *stream[cut : cut + size], end], dtype=np.int32) for cut in cuts]}
        rows["length"] = [len(row) for row in rows["input_ids"]]
        if words:
            rows["words"] = [self._number([-1, *words[cut : cut + size], -1]) for cut in cuts]
        return rows

    @staticmethod
    def _number(words: list[int]) -> np.ndarray:
        """Numbers from 0 that rise wherever another word, or another document, begins."""
        words = np.array(words)
        return np.cumsum(np.diff(words, prepend=words[0]) != 0).astype(np.int32)

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
        draws = self._random(generators, (3, self.length), ids)[..., : ids.shape[1]]  # none depends on the batch's T
        chosen, fate, other = draws.unbind(1)  # each (B, T)
        if words is not None:
            chosen = chosen.gather(1, words)  # one draw per word
        special = torch.tensor(self.processing.all_special_ids, device=ids.device)
        masked = (chosen < self.arguments.mask_fraction) & ~torch.isin(ids, special)
        # A row without any chosen token would have no loss: its nearest token, or word, is chosen.
        chosen = chosen.masked_fill(torch.isin(ids, special), 2.0)
        least = chosen.min(1, keepdim=True).values
        masked |= ~masked.any(1, keepdim=True) & (chosen == least) & (least < 2)
        replaced = (other * len(self.processing)).long()
        inputs = torch.where(masked & (fate < 0.8), self.processing.mask_token_id, ids)
        inputs = torch.where(masked & (fate >= 0.9), replaced, inputs)
        return {**batch, "input_ids": inputs, "labels": ids.masked_fill(~masked, -100)}

    def targets(self, ids: np.ndarray) -> np.ndarray:
        return ids[~np.isin(ids, self.processing.all_special_ids)]
