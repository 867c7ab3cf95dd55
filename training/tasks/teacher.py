"""A trained model whose sentence vectors another one learns: computed once, kept in the cache of `datasets`."""

import hashlib
from functools import partial

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_leaner import __version__
from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.conversion import load_lean
from modeling_leaner.slimming.scores import mean_over_tokens

from .text import vocabulary


ROWS_AT_ONCE = 64
ROWS_SORTED = 2048  # by length, so that rows of like length are padded together


def load_teacher(source: str, config: LeanConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The encoder of a checkpoint, to be learned from.

    Raises:
        ValueError: it reads other tokens than the student, or its vectors have another size.
    """
    model = load_lean(source, ignore=["pooler.*"]).base_model.eval()
    if model.config.model_type != config.model_type:
        raise ValueError(f"teacher: {source} is a {model.config.model_type}, expected a {config.model_type}")
    if model.config.hidden_size != config.hidden_size:
        width = model.config.hidden_size
        raise ValueError(f"teacher: {source} has vectors of {width} numbers, the student of {config.hidden_size}")
    if vocabulary(AutoTokenizer.from_pretrained(source)) != vocabulary(tokenizer):
        raise ValueError(f"teacher: the tokenizer of {source} is not the student's")
    return model


def weights_sha256(model: PreTrainedModel) -> str:
    """A hash of all weights by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def with_teacher(rows: Dataset, teacher: PreTrainedModel, description: str) -> Dataset:
    """The prepared rows with the teacher's vector of each as `labels`, memory-mapped from the cache.

    The cache is that of these rows and of these weights, and of no others.
    """
    size = teacher.config.hidden_size
    features = Features({**rows.features, "labels": List(Value("float32"), length=size)})
    return rows.map(
        partial(teacher_vectors, teacher=teacher),
        batched=True,
        batch_size=ROWS_SORTED,
        features=features,
        new_fingerprint=Hasher.hash((rows._fingerprint, weights_sha256(teacher), __version__)),
        desc=f"teacher's vectors of {description}",
    )


@torch.no_grad()
def teacher_vectors(batch: dict[str, list], teacher: PreTrainedModel) -> dict[str, list[np.ndarray]]:
    """The mean over tokens of the last states, of length one: (D) for each row of token ids."""
    ids = batch["input_ids"]
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    vectors: list[np.ndarray] = [np.empty(0)] * len(ids)
    for start in range(0, len(order), ROWS_AT_ONCE):
        places = order[start : start + ROWS_AT_ONCE]
        longest = len(ids[places[-1]])
        padded = torch.zeros(len(places), longest, dtype=torch.long)
        mask = torch.zeros_like(padded)
        for row, place in enumerate(places):
            length = len(ids[place])
            padded[row, :length] = torch.as_tensor(ids[place])
            mask[row, :length] = 1
        states = teacher(input_ids=padded, attention_mask=mask).last_hidden_state.float()
        units = torch.nn.functional.normalize(mean_over_tokens(states, mask), dim=-1)
        for place, unit in zip(places, units.numpy()):
            vectors[place] = unit
    return {"labels": vectors}
