"""Fewer tokens: a WordPiece vocabulary cut to the tokens that texts use, and the model's embeddings with it."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..files import read_json, write_json


TEXTS_AT_ONCE = 1024


def keep_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], size: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model and a tokenizer with `size` tokens: the special ones, ASCII characters, and the commonest of the texts.

    A word whose token is gone is written with shorter ones. Embeddings of the tokens that stay are equal.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)  # an image processor has none
    document = json.loads(backend.to_str()) if backend else {"model": {"type": type(tokenizer).__name__}}
    kind = document["model"]["type"]
    if kind != "WordPiece":
        raise ValueError(f"vocab_size: only WordPiece tokenizers can be cut, not {kind}")
    vocabulary = document["model"]["vocab"]
    prefix = document["model"]["continuing_subword_prefix"]
    needed = {*tokenizer.all_special_ids, *(added["id"] for added in document["added_tokens"])}
    for token, index in vocabulary.items():
        character = token.removeprefix(prefix)
        if len(character) == 1 and character.isascii():
            needed.add(index)
    if not len(needed) < size < len(vocabulary):
        raise ValueError(f"vocab_size: expected {len(needed) + 1:,}..{len(vocabulary) - 1:,}, got {size:,}")

    counts: Counter[int] = Counter()
    texts = list(texts)
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        for ids in tokenizer(texts[start : start + TEXTS_AT_ONCE], add_special_tokens=False)["input_ids"]:
            counts.update(ids)
    by_use = sorted(set(vocabulary.values()) - needed, key=lambda index: (-counts[index], index))
    kept = sorted(needed | set(by_use[: size - len(needed)]))
    return cut_model(model, kept), cut_tokenizer(tokenizer, document, kept)


def cut_tokenizer(tokenizer: PreTrainedTokenizerBase, document: dict, kept: list[int]) -> PreTrainedTokenizerBase:
    """The tokenizer with these tokens, numbered anew in their order; `document` is its tokenizer.json."""
    new_ids = {old: new for new, old in enumerate(kept)}
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {token: new_ids[old] for token, old in vocabulary.items() if old in new_ids}
    for added in document["added_tokens"]:
        added["id"] = new_ids[added["id"]]
    processor = document["post_processor"] or {"processors": []}
    processors = processor.get("processors", [processor])
    for processor in processors:
        if processor["type"] == "BertProcessing":
            processor |= {name: [token, new_ids[old]] for name in ("cls", "sep") for token, old in [processor[name]]}
        for special in processor.get("special_tokens", {}).values():
            special["ids"] = [new_ids[old] for old in special["ids"]]
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        Path(folder, "vocab.txt").unlink(missing_ok=True)
        write_json(Path(folder, "tokenizer.json"), document)
        settings = read_json(Path(folder, "tokenizer_config.json"))
        settings.pop("added_tokens_decoder", None)
        write_json(Path(folder, "tokenizer_config.json"), settings)
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def cut_model(model: PreTrainedModel, kept: list[int]) -> PreTrainedModel:
    """The model with these rows of its embeddings, and of all that has one value per token."""
    config = type(model.config).from_dict({**model.config.to_dict(), "vocab_size": len(kept)})
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(config, name, None) is not None:
            setattr(config, name, kept.index(getattr(config, name)))
    options = {"add_pooling_layer": model.pooler is not None} if hasattr(model, "pooler") else {}
    smaller = type(model)(config, **options).to(model.dtype)
    rows = torch.tensor(kept)
    target = smaller.state_dict()
    state = {
        name: tensor if tensor.shape == target[name].shape else tensor[rows]
        for name, tensor in model.state_dict().items()
    }
    smaller.load_state_dict(state)
    return smaller.eval()
