"""Files that nobody should trust, one kind at a time: read as they are, or refused in one line; see fuzzing.py."""

import csv
import dataclasses
import io
import json
import math
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml
from fuzzing import Judge, changed, damaged, json_files, yaml_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modeling_leaner.training.data.tokenizer import train_tokenizer
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.publishing.push import read_card
from modeling_leaner.training.running.loading import prepare, read_tokenizer
from modeling_leaner.training.settings import RecipeArguments, parse
from training_data import documents, save_encoder, write_shape

from modeling_leaner import LeanBERTConfig, LeanBERTForMaskedLM
from modeling_leaner.conversion import load_lean
from modeling_leaner.shapes import load_config, load_shape


ROOT = Path(__file__).parent.parent
CASES = pytest.mark.parametrize("cases", [25, pytest.param(1000, marks=pytest.mark.full)])


def fuzz(cases: int, strategy: st.SearchStrategy, check: Callable) -> None:
    """Calls `check` with so many examples, the same ones every time."""

    @settings(max_examples=cases, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(example: object) -> None:
        check(example)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()


def same(stated: object, kept: object) -> bool:
    """Whether a value was kept; 3 and 3.0 are the same, NaN is nothing that may be kept."""
    if isinstance(stated, bool) or isinstance(kept, bool):
        return stated is kept
    if isinstance(stated, dict) and isinstance(kept, dict):
        kept = {str(key): value for key, value in kept.items()}
        return stated.keys() == kept.keys() and all(same(value, kept[key]) for key, value in stated.items())
    if isinstance(stated, (list, tuple)) and isinstance(kept, (list, tuple)):
        return len(stated) == len(kept) and all(map(same, stated, kept))
    return stated == kept


CONFIGS = [load_shape(name) for name in ("vit/nano", "bert/nano", "gpt/nano")]


@CASES
def test_configurations(cases, tmp_path):
    """What is accepted has every value of the file, and can be counted."""
    path = tmp_path / "config.json"
    judge = Judge(lambda path: load_config(str(path)), str(path))
    documents = []
    for config in CONFIGS:
        document = json.loads(config.to_json_string(use_diff=False))
        own = {name: document[name] for name in sorted(config._own_keys() & document.keys())}
        heads = {"per_layer_config": {"0": {"num_attention_heads": 2}}}
        documents += [own | heads | {"model_type": config.model_type, "id2label": {"0": "no", "1": "yes"}}]

    def check(content: bytes) -> None:
        path.write_bytes(content)
        config = judge(path)
        if config is None:
            return
        stated = json.loads(content)
        kept = config.to_dict()
        for key in config._own_keys() & stated.keys():
            if stated[key] is not None:  # which asks for the default
                assert same(stated[key], kept[key]), (key, stated[key], kept[key])
        assert config.count_parameters().total > 0 and config.count_flops().forward > 0

    fuzz(cases, st.sampled_from(documents).flatmap(json_files), check)
    judge.check(cases)


DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16}


def by_hand(content: bytes) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, read by its description alone."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            payload = content[8 + length + first : 8 + length + last]
            tensors[name] = np.frombuffer(payload, DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


@st.composite
def safetensors_files(draw: Callable, whole: bytes) -> bytes:
    """A file of weights whose header, or the length of it, is nearly right."""
    (length,) = struct.unpack("<Q", whole[:8])
    text = json.dumps(draw(changed(json.loads(whole[8 : 8 + length])))).encode()
    stated = len(text)
    if draw(st.integers(0, 9)) == 0:
        stated = draw(st.sampled_from((0, 1, len(text) + 1, 2**40, 2**64 - 1)))
    return draw(damaged(struct.pack("<Q", stated) + text + whole[8 + length :]))


@CASES
def test_safetensors_headers(cases, tmp_path):
    """What is loaded is what the file's own header says, of every tensor, by either way to load."""
    sizes = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
    torch.manual_seed(0)
    config = LeanBERTConfig(**sizes, intermediate_size=8, max_position_embeddings=6, tie_word_embeddings=False)
    LeanBERTForMaskedLM(config).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    judge = Judge(lambda load: load(tmp_path), str(tmp_path), errors=(RuntimeError,))  # as it is documented to raise
    ways = st.sampled_from((load_lean, LeanBERTForMaskedLM.from_pretrained))

    def check(example: tuple[Callable, bytes]) -> None:
        load, content = example
        weights.write_bytes(content)
        model = judge(load)
        if model is None:
            return
        state = model.state_dict()
        expected = by_hand(content)
        if load is load_lean:
            assert expected.keys() == state.keys()
        for name, tensor in expected.items():
            if name in state:
                assert np.array_equal(state[name].numpy(), tensor, equal_nan=True), name

    fuzz(cases, st.tuples(ways, safetensors_files(weights.read_bytes())), check)
    judge.check(cases)


@CASES
def test_tokenizers(cases, tmp_path):
    """What is accepted reads any text, into tokens that it has."""
    texts = documents(40, 0)["text"]
    originals = {}
    for family, kind in {"bert": "wordpiece", "gpt": "byte-bpe"}.items():
        train_tokenizer(texts, kind, 300, 64, family).save_pretrained(tmp_path / family)
        for path in sorted((tmp_path / family).glob("*.json")):
            originals[path] = path.read_bytes()

    def read(folder: Path) -> None:
        tokenizer = read_tokenizer(str(folder))
        numbers = set(tokenizer.get_vocab().values())
        for text in ("the small dog", "", "é\ud7ff\0 ", "x" * 3000):
            ids = tokenizer(text, truncation=True, max_length=32)["input_ids"]
            assert all(token in numbers for token in ids), ids

    judge = Judge(read, str(tmp_path))

    def check(example: tuple[Path, bytes]) -> None:
        path, content = example
        path.write_bytes(content)
        judge(path.parent)
        path.write_bytes(originals[path])

    def of(path: Path) -> st.SearchStrategy:
        return st.tuples(st.just(path), json_files(json.loads(originals[path])))

    fuzz(cases, st.sampled_from(sorted(originals)).flatmap(of), check)
    judge.check(cases)


RECIPES = [yaml.safe_load((ROOT / "training" / "recipes" / f"{name}.yaml").read_text()) for name in
           ("digits", "sst2", "squad", "enwik8-text-masked", "imagenet-1k")]  # fmt: skip


def same_setting(stated: object, kept: object) -> bool:
    """Whether a setting has the value that a recipe gives it, which may be the text of a number."""
    kept = getattr(kept, "value", kept)
    if isinstance(kept, list):
        return list(map(str, stated if isinstance(stated, list) else [stated])) == list(map(str, kept))
    if isinstance(kept, bool):
        truths = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
        return str(stated).lower() in truths[not kept]
    if isinstance(stated, str) and isinstance(kept, dict):
        return json.loads(stated) == kept
    try:
        return stated == kept or str(stated) == str(kept) or float(stated) == float(kept)
    except (TypeError, ValueError):
        return False


@CASES
def test_recipes(cases, tmp_path):
    """What is accepted trains with the values that the file gives."""
    path = tmp_path / "recipe-of-mine.yaml"
    keys = [f"{setting.name}: " for setting in dataclasses.fields(RecipeArguments)]
    words = ["--shape", "vit/nano", "--output_dir", str(tmp_path)]
    judge = Judge(lambda path: parse(str(path), words), path.name, *keys)
    decided = ("report_to", "use_cpu", "eval_steps")  # by the machine, or by what else is given

    def check(content: bytes) -> None:
        path.write_bytes(content)
        arguments = judge(path)
        if arguments is None:
            return
        for key, value in yaml.safe_load(content).items():
            if value is not None and value != [] and key not in decided:
                kept = getattr(arguments, key)
                assert same_setting(value, kept), (key, value, kept)

    fuzz(cases, st.sampled_from(RECIPES).flatmap(yaml_files), check)
    judge.check(cases)


GRIDS = [yaml.safe_load((ROOT / "training" / "grids" / f"{name}.yaml").read_text()) for name in
         ("cifar10", "sst2", "enwik8-text-causal-curves", "listops-short-heads", "minilm")]  # fmt: skip


@CASES
def test_grids(cases, tmp_path):
    """What is accepted runs with the values that the file gives."""
    path = tmp_path / "grid-of-mine.yaml"
    judge = Judge(load_grid, path.name)

    def check(content: bytes) -> None:
        path.write_bytes(content)
        grid = judge(path)
        if grid is None:
            return
        for key, value in yaml.safe_load(content).items():
            kept = getattr(grid, key)
            if key == "learning_rates":
                assert [float(rate) for rate in value] == kept and all(map(math.isfinite, kept))
            elif key == "margin":
                assert value is None or float(value) == kept
            elif key != "tuning" and value is not None:
                assert same(value, kept), (key, value, kept)

    fuzz(cases, st.sampled_from(GRIDS).flatmap(yaml_files), check)
    judge.check(cases)


@CASES
def test_cards(cases, tmp_path):
    """What is accepted says what the file says: nothing of the metadata is lost."""
    names = ("leanbert-mini-sst2", "minilm-3-layers")
    texts = [(ROOT / "model_cards" / name / "README.md").read_text() for name in names]
    metadata = [yaml.safe_load(text.split("---\n")[1]) for text in texts]
    judge = Judge(read_card, str(tmp_path / "README.md"))

    def check(content: bytes) -> None:
        (tmp_path / "README.md").write_bytes(b"---\n" + content + b"\n---\n\n# A model\n\nWhat it does.\n")
        card = judge(tmp_path)
        if card is not None:
            kept = yaml.safe_load(card.data.to_yaml())
            for key, value in (yaml.safe_load(content) or {}).items():
                if value is not None and key != "model-index":
                    assert key in kept, key

    fuzz(cases, st.sampled_from(metadata).flatmap(yaml_files), check)
    judge.check(cases)


ROWS = [{"sentence": f"the dog {number} likes a red house", "label": name} for number, name in enumerate("abab" * 3)]


def columns_of(rows: list[dict]) -> dict[str, list]:
    """The values of each column that the first row has."""
    return {key: [row.get(key) for row in rows] for row in rows[:1] for key in row}


def parquet_bytes(rows: list[dict]) -> bytes:
    """The rows as a parquet file; a column of several kinds is text."""
    arrays = {}
    for key, column in columns_of(rows).items():
        try:
            arrays[key] = pyarrow.array(column)
        except (pyarrow.ArrowException, OverflowError, UnicodeError):
            arrays[key] = pyarrow.array([ascii(value) for value in column])
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()


def csv_bytes(rows: list[dict]) -> bytes:
    columns = columns_of(rows)
    file = io.StringIO()
    writer = csv.writer(file, escapechar="\\")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
    return file.getvalue().encode(errors="surrogatepass")


def json_bytes(rows: list) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


FORMATS = {"parquet": parquet_bytes, "csv": csv_bytes, "json": json_bytes}


@st.composite
def row_files(draw: Callable) -> tuple[str, list, bytes]:
    """A format, the rows of a file, and the file, of which nothing is known where it is damaged."""
    kind = draw(st.sampled_from(sorted(FORMATS)))
    rows = draw(changed(ROWS))
    if kind != "json":
        rows = [row for row in rows if isinstance(row, dict)]
    try:
        content = FORMATS[kind](rows)
    except (pyarrow.ArrowException, UnicodeError):  # no such file can be
        content = b""
    broken = draw(damaged(content))
    if broken != content:
        rows = []
    return kind, rows, broken


@CASES
def test_datasets(cases, tmp_path, monkeypatch):
    """What is accepted is prepared as it is: every row, with its own label."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    save_encoder(tmp_path / "encoder")
    words = ["--task", "sequence-classification", "--shape", write_shape("bert", tmp_path), "--eval_split", "none"]
    words += ["--tokenizer", str(tmp_path / "encoder"), "--output_dir", str(tmp_path / "run"), "--hardware", "cpu"]
    words += ["--max_length", "16", "--truncation", "true", "--preprocessing_workers", "1", "--data_files"]
    judge = Judge(lambda path: prepare(parse(None, [*words, f"train={path}"])), str(tmp_path), "label", "text_column")
    number = 0

    def check(example: tuple[str, list, bytes]) -> None:
        nonlocal number
        number += 1
        kind, rows, content = example
        path = tmp_path / f"rows-{number}.{kind}"
        path.write_bytes(content)
        prepared = judge(path)
        path.unlink()
        if prepared is None or not rows:
            return
        assert len(prepared.train) == len(rows)
        labels = [row.get("label") for row in rows]
        if all(isinstance(label, str) and label.isalpha() for label in labels):
            names = list(prepared.task.classes)
            assert [names[label] for label in prepared.train["labels"]] == labels

    fuzz(cases, row_files(), check)
    judge.check(cases)
