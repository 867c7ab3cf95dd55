"""Files that nobody should trust: read as they are, or refused by one clear error, soon, in bounded memory."""

import copy
import json
import math
import resource
import signal
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from modeling_leaner.training.settings import parse

from modeling_leaner import LeanBERTConfig, LeanBERTForMaskedLM
from modeling_leaner.conversion import load_lean
from modeling_leaner.shapes import load_config, load_shape


CASES = pytest.mark.parametrize("cases", [25, pytest.param(1000, marks=pytest.mark.full)])
SECONDS = 20  # of a processor, for one file
MEMORY = 3 * 2**30  # bytes beyond what the process has
LONGEST_MESSAGE = 2500  # characters

# Documents that are nearly right

NUMBERS = (-1, 0, 1, 3, 2**31, 2**63, 10**30, 10**400, -0.5, 0.5, 1e308, 5e-324, math.nan, math.inf, -math.inf)
TEXTS = ("", " ", "1", "true", "1e-3", "../../etc/passwd", "\0", "\ud800", "é" * 300, "a\nb", "{}", "12" * 3000)
LEAVES = st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.sampled_from((*NUMBERS, *TEXTS))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def places(document: object) -> Iterator[tuple[dict | list, object]]:
    """The holder and the key of every value within a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


def near(value: object) -> st.SearchStrategy:
    """Values of the same type."""
    match value:
        case bool():
            return st.just(not value)
        case int():
            return st.integers(0, 9) | st.sampled_from((value + 1, 2 * value))
        case float():
            return st.floats(0, 1) | st.just(2 * value)
        case str():
            return st.sampled_from((f"{value}x", value.upper(), value[:-1]))
    return st.just(value)


EDITS = ("near", "near", "near", "drop", "replace", "replace", "rename", "add", "exchange", "nest", "repeat")


@st.composite
def changed(draw: Callable, document: dict | list) -> dict | list:
    """A document with up to two values varied, dropped, replaced, renamed, added, exchanged, nested or repeated."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 2))):
        found = list(places(document))
        if not found:
            break
        holder, key = found[draw(st.integers(0, len(found) - 1))]
        match draw(st.sampled_from(EDITS)):
            case "near":
                holder[key] = draw(near(holder[key]))
            case "drop":
                del holder[key]
            case "replace":
                holder[key] = draw(VALUES)
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from((f"{key}s", str(key)[:-1], str(key).upper(), "")))] = holder.pop(key)
            case "add" if isinstance(holder, dict):
                holder[draw(st.text(max_size=6))] = draw(VALUES)
            case "exchange":
                other, name = found[draw(st.integers(0, len(found) - 1))]
                holder[key] = copy.deepcopy(other[name])
            case "nest":
                for _ in range(draw(st.sampled_from((1, 2, 50)))):
                    holder[key] = [holder[key]]
            case "repeat" if isinstance(holder, list):
                holder.extend([copy.deepcopy(holder[key])] * draw(st.sampled_from((1, 2000))))
    return document


# Files that are nearly right


def deep(opening: str, closing: str) -> bytes:
    """Brackets within brackets."""
    return (opening * 1500 + closing * 1500).encode()


SPECIAL = (b"\xff\xfe", b"\xc3", b"\0", b"\t", b"}", b"]", b'"', b"\n", b"-", b"\xef\xbb\xbf", b"9" * 6000, b": ")
WHOLE_JSON = (b"", b"{}", b"[]", b"null", b"3", b'"x"', b"NaN", deep("[", "]"), deep('{"a":', "}"))
WHOLE_YAML = (
    b"", b"{}", b"[]", b"3", b"x", b"~", b"2026-13-45", b"a: 2026-13-45", b"? [a]\n: b", b"? {a: b}\n: c",
    b"a: !!python/object/apply:os.system [ls]", b"a: !!binary x", b"a: !!timestamp x", b"a: &x [*x]",
    b"a: &x {b: *x}", b"<<: 3", b"<<: [3]", b"a: !!int x", b"a: !!set [b]", b"--- a\n--- b", b"a: 1:99:99",
    b"a: 0b", b"a: !!bool x", b"=: =", deep("[", "]"), deep("{a: ", "}"),
)  # fmt: skip


@st.composite
def damaged(draw: Callable, content: bytes) -> bytes:
    """Bytes cut short, changed or added to; three times out of four as they are."""
    if draw(st.integers(0, 3)):
        return content
    place = draw(st.integers(0, len(content)))
    inserted = draw(st.binary(max_size=4) | st.sampled_from(SPECIAL))
    return draw(st.sampled_from((content[:place], content[:place] + inserted + content[place:], content * 2)))


def json_files(document: dict) -> st.SearchStrategy:
    """The bytes of a JSON file that is nearly this document."""
    edited = changed(document).map(lambda each: json.dumps(each).encode())
    return edited.flatmap(damaged)


# Limits for what reads them


class TooSlow(BaseException):
    """A file took longer than it may."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raises TooSlow after SECONDS, and MemoryError beyond MEMORY."""

    def stop(*_: object) -> None:
        raise TooSlow

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def fuzz(
    cases: int, files: st.SearchStrategy, read: Callable, check: Callable, *names: str, errors=(), always=()
) -> None:
    """Reads so many files, and those of `always`: each is checked, or refused by an error with one of the names."""
    counts = {"accepted": 0, "refused": 0}

    @settings(max_examples=cases, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(files)
    def run(file: object) -> None:
        try:
            with bounded():
                result = read(file)
        except (ValueError, OSError, *errors) as error:
            message = " ".join(str(error).split())
            assert message and len(message) <= LONGEST_MESSAGE, f"{error!r}: {message:.300}"
            assert any(name in message for name in names), f"names no file: {type(error).__name__} {message:.500}"
            counts["refused"] += 1
        else:
            counts["accepted"] += 1
            check(file, result)

    for file in always:
        run = example(file)(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    assert sum(counts.values()) >= 0.9 * cases and min(counts.values()) >= cases / 25, counts


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


@CASES
def test_configurations(cases, tmp_path):
    """What is accepted has every value of the file, and can be counted."""
    path = tmp_path / "config.json"
    documents = []
    for config in map(load_shape, ("vit/nano", "bert/nano", "gpt/nano")):
        document = json.loads(config.to_json_string(use_diff=False))
        own = {name: document[name] for name in sorted(config._own_keys() & document.keys())}
        heads = {"per_layer_config": {"0": {"num_attention_heads": 2}}}
        documents += [own | heads | {"model_type": config.model_type, "id2label": {"0": "no", "1": "yes"}}]

    def read(content: bytes) -> LeanBERTConfig:
        path.write_bytes(content)
        return load_config(str(path))

    def check(content: bytes, config: LeanBERTConfig) -> None:
        stated = json.loads(content)
        kept = config.to_dict()
        for key in config._own_keys() & stated.keys():
            if stated[key] is not None:  # which asks for the default
                assert same(stated[key], kept[key]), (key, stated[key], kept[key])
        assert config.count_parameters().total > 0 and config.count_flops().forward > 0

    fuzz(cases, st.sampled_from(documents).flatmap(json_files), read, check, str(path), always=WHOLE_JSON)


def by_hand(content: bytes) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, read by its description alone."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            payload = content[8 + length + first : 8 + length + last]
            dtype = {"F32": np.float32, "F64": np.float64, "F16": np.float16}[entry["dtype"]]
            tensors[name] = np.frombuffer(payload, dtype).reshape(entry["shape"])
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
    files = st.tuples(
        st.sampled_from((load_lean, LeanBERTForMaskedLM.from_pretrained)), safetensors_files(weights.read_bytes())
    )

    def read(example: tuple[Callable, bytes]) -> LeanBERTForMaskedLM:
        load, content = example
        weights.write_bytes(content)
        return load(tmp_path)

    def check(example: tuple[Callable, bytes], model: LeanBERTForMaskedLM) -> None:
        load, content = example
        state = model.state_dict()
        expected = by_hand(content)
        if load is load_lean:
            assert expected.keys() == state.keys()
        for name in expected.keys() & state.keys():
            assert np.array_equal(state[name].numpy(), expected[name], equal_nan=True), name

    fuzz(cases, files, read, check, str(tmp_path), errors=(RuntimeError,))  # as it is documented to raise


def test_yaml_that_broke_readers(tmp_path):
    """Whole files: each is read as a recipe, or refused with its name, soon and in bounded memory."""
    path = tmp_path / "recipe-of-mine.yaml"
    for content in WHOLE_YAML:
        path.write_bytes(content)
        try:
            with bounded():
                parse(str(path), ["--shape", "vit/nano", "--output_dir", str(tmp_path)])
        except (ValueError, OSError) as error:
            assert str(error).strip() and len(str(error)) <= LONGEST_MESSAGE, content[:80]
