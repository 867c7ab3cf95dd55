"""Small made-up rows in the columns of each dataset that the recipes name, and shapes that train in a second."""

import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from modeling_leaner.training.data.tokenizer import train_tokenizer
from PIL import Image as PILImage

from modeling_leaner import LeanBERTConfig, LeanBERTModel
from modeling_leaner.shapes import load_shape


# Local copies of the Hub's datasets, for the tests that want them; CONTRIBUTING.md.
LOCAL_DATA = Path(os.environ.get("LEANER_DATA") or Path(__file__).parents[2] / "shared" / "data")
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "intermediate_size": 64}
WORDS = "the a cat dog bird likes sees hates big small red blue house tree river and or but not very".split()
TEXT = Value("string")


def write_shape(family: str, folder: Path, **overrides) -> str:
    """A config file of a small shape."""
    sizes = (
        {**SIZES, "image_size": 16, "patch_size": 8, "num_channels": 3}
        if family == "vit"
        else {**SIZES, "vocab_size": 400}
    )
    sizes |= {"num_key_value_heads": 4} if family == "gpt" else {}
    path = folder / f"{family}.json"
    load_shape(f"{family}/nano", **{**sizes, **overrides}).to_json_file(path)
    return str(path)


def save_encoder(folder, seed=0, words="wordpiece", **changes):
    """An encoder with its tokenizer."""
    texts = documents(40, 0)["text"]
    tokenizer = train_tokenizer(texts, words, 300, 24, "bert")
    torch.manual_seed(seed)
    config = LeanBERTConfig(**(SIZES | {"vocab_size": 300, "max_position_embeddings": 32} | changes))
    LeanBERTModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sentence(rng: random.Random, words: int = 8) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def pictures(count: int, seed: int, column: str = "image", classes: int = 10) -> Dataset:
    """Squares that get brighter with their label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    images = [PILImage.fromarray(np.uint8(rng.integers(20, size=(20, 18, 3)) + 20 * label)) for label in labels]
    names = [f"class {index}" for index in range(classes)]
    features = Features({column: Image(), "label": ClassLabel(names=names)})
    return Dataset.from_dict({column: images, "label": labels.tolist()}, features=features)


def documents(count: int, seed: int, words: int = 60) -> Dataset:
    rng = random.Random(seed)
    return Dataset.from_dict({"text": [sentence(rng, words) + "." for _ in range(count)]})


def labelled(count: int, seed: int, columns: tuple[str, ...], classes: int) -> Dataset:
    """Texts whose label follows from one word; classes 0: a number from 0 to 5."""
    rng = random.Random(seed)
    rows = {name: [sentence(rng) for _ in range(count)] for name in columns}
    values = [text.count("cat") for text in rows[columns[0]]]
    rows["label"] = [value % classes if classes else float(min(value, 5)) for value in values]
    label = ClassLabel(names=[f"class {index}" for index in range(classes)]) if classes else Value("float32")
    return Dataset.from_dict(rows, features=Features({**dict.fromkeys(columns, TEXT), "label": label}))


SENTENCE, PAIR = ("sentence",), ("sentence1", "sentence2")
MADE_UP = {
    "uoft-cs/cifar10": lambda count, seed: pictures(count, seed, "img"),
    "zalando-datasets/fashion_mnist": pictures,
    "ILSVRC/imagenet-1k": pictures,
    "roneneldan/TinyStories": documents,
    "LTCB/enwik8": documents,
    "sample-10BT": documents,
    "stanfordnlp/imdb": lambda count, seed: labelled(count, seed, ("text",), 2),
    "cola": lambda count, seed: labelled(count, seed, SENTENCE, 2),
    "sst2": lambda count, seed: labelled(count, seed, SENTENCE, 2),
    "mrpc": lambda count, seed: labelled(count, seed, PAIR, 2),
    "stsb": lambda count, seed: labelled(count, seed, PAIR, 0),
    "rte": lambda count, seed: labelled(count, seed, PAIR, 2),
    "wnli": lambda count, seed: labelled(count, seed, PAIR, 2),
    "qqp": lambda count, seed: labelled(count, seed, ("question1", "question2"), 2),
    "qnli": lambda count, seed: labelled(count, seed, ("question", "sentence"), 2),
    "mnli": lambda count, seed: labelled(count, seed, ("premise", "hypothesis"), 3),
}


def write_rows(folder: Path, dataset: str, eval_split: str, train: int = 96, held_out: int = 40) -> list[str]:
    """Parquet files of both splits, as the words after --data_files."""
    words = []
    for split, count, seed in (("train", train, 0), (eval_split, held_out, 1)):
        path = folder / f"{dataset.replace('/', '-')}-{split}.parquet"
        MADE_UP[dataset](count, seed).to_parquet(path)
        words.append(f"{split}={path}")
    return words


def read_lines(folder: Path) -> list[dict]:
    """metrics.jsonl of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def merged(*command_lines: list[str] | tuple[str, ...]) -> list[str]:
    """One command line of several, in which a later option replaces an earlier one, lists included."""
    options: dict[str, list[str]] = {}
    for word in itertools.chain(*command_lines):
        if word.startswith("--"):
            name = word.split("=")[0]
            options[name] = []
        options[name].append(word)
    return list(itertools.chain(*options.values()))
