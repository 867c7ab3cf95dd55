"""Data that every installation already has: scikit-learn's digits, the standard library's prose, ListOps expressions.

Each function returns a `datasets.DatasetDict` with the splits `train` and `test`, the same on every call.
"""

import ast
import io
import random
import statistics
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as PILImage
from sklearn.datasets import load_digits

from modeling_leaner import __version__


def digits() -> DatasetDict:
    """scikit-learn's 1,797 handwritten digits (8×8 pixels, UCI; BSD): 1,437 to train, 360 to test.

    Columns: image (greyscale PIL image, 0..255), label (0..9).
    """
    source = load_digits()
    images = [PILImage.fromarray(np.uint8(np.round(image * 255 / 16))) for image in source.images]
    features = Features({"image": Image(mode="L"), "label": ClassLabel(names=[str(digit) for digit in range(10)])})
    data = Dataset.from_dict({"image": images, "label": source.target.tolist()}, features=features)
    return data.train_test_split(test_size=360, seed=0)


def _prose(path: Path) -> Iterator[str]:
    """Documentation strings and runs of comments of one Python file, in no particular order."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documentation = ast.get_docstring(node)
            if documentation:
                yield documentation
    comments = []
    last_line = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] > last_line + 1 and comments:
                yield "\n".join(comments)
                comments = []
            comments.append(token.string.lstrip("#! "))
            last_line = token.start[0]
    if comments:
        yield "\n".join(comments)


@cache
def python_docs(max_bytes: int = 800_000, holdout: int = 20) -> DatasetDict:
    """Documentation strings and comments of the standard library that this Python runs on, one row per module.

    Modules in alphabetical order until `max_bytes` of text; tests, character tables and what does not parse are left
    out, and every `holdout`th is the test split. The text differs between Python versions: compare models within one
    run only.
    Columns: module, text.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__"}
    rows = []
    size = 0
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library)
        if skipped & set(module.parts):
            continue
        try:
            text = "\n\n".join(part for part in _prose(path) if len(part) >= 40)
        except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
            continue
        if len(text) < 400:
            continue
        rows.append({"module": str(module), "text": text})
        size += len(text.encode())
        if size > max_bytes:
            break
    held_out = [row for index, row in enumerate(rows) if index % holdout == holdout - 1]
    training = [row for index, row in enumerate(rows) if index % holdout != holdout - 1]
    return DatasetDict(train=Dataset.from_list(training), test=Dataset.from_list(held_out))


@dataclass(frozen=True)
class ListOpsRules:
    """The rules of Long Range Arena's ListOps generator (Tay et al. 2020, arXiv 2011.04006).

    A node below `max_depth` is an operator with probability `operator_probability`, else a digit; an operator takes
    2..`max_args` arguments. Length counts operators, closing brackets and digits; both bounds are strict. The defaults
    are the benchmark's; `SHORT_LISTOPS` changes the lengths alone, to 10-30 tokens; `SMALL_LISTOPS` has shallow trees
    that a small model reads in seconds.
    """

    max_depth: int = 10
    max_args: int = 10
    operator_probability: float = 0.25
    min_length: int = 500
    max_length: int = 2000


SHORT_LISTOPS = ListOpsRules(min_length=9, max_length=31)
SMALL_LISTOPS = ListOpsRules(max_depth=3, max_args=4, min_length=4, max_length=40)
LISTOPS_OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def _list_ops_tree(rules: ListOpsRules, rng: random.Random, tokens: list[str], depth: int = 1) -> int | None:
    """Writes a random expression to `tokens` and returns its value; None as soon as it is too long."""
    if depth == rules.max_depth or (depth > 1 and rng.random() >= rules.operator_probability):
        digit = rng.randrange(10)
        tokens.append(str(digit))
        return digit
    operator = rng.choice(list(LISTOPS_OPERATORS))
    tokens.append(operator)
    values = []
    for _ in range(rng.randint(2, rules.max_args)):
        value = _list_ops_tree(rules, rng, tokens, depth + 1)
        if value is None or len(tokens) >= rules.max_length:
            return None
        values.append(value)
    tokens.append("]")
    return LISTOPS_OPERATORS[operator](values)


def _list_ops_rows(rules: ListOpsRules, rows: int, seed: int, version: str) -> Iterator[dict[str, object]]:
    """Different expressions; `version` tells the caches of different releases apart."""
    rng = random.Random(seed)
    seen = set()
    for _ in range(1000 * rows):
        tokens = []
        label = _list_ops_tree(rules, rng, tokens)
        source = " ".join(tokens)
        if label is not None and rules.min_length < len(tokens) < rules.max_length and source not in seen:
            seen.add(source)
            yield {"source": source, "label": label}
            if len(seen) == rows:
                return


def listops(
    rules: ListOpsRules = ListOpsRules(), train: int = 96_000, test: int = 2_000, seed: int = 0
) -> DatasetDict:
    """Random ListOps expressions and their values; no expression occurs twice, within or across the splits.

    They are kept in the datasets' cache. More test expressions continue the same list: what is trained on, and the
    first ones to test on, do not change.
    The root is always an operator: the single digits that LRA also draws as roots are always too short to be kept.
    Columns: source (tokens separated by spaces, the benchmark's surface without its round brackets), label (0..9).
    """
    features = Features({"source": Value("string"), "label": ClassLabel(names=[str(digit) for digit in range(10)])})
    asked = {"rules": rules, "rows": train + test, "seed": seed, "version": __version__}
    data = Dataset.from_generator(_list_ops_rows, features=features, gen_kwargs=asked)
    return DatasetDict(train=data.select(range(train)), test=data.select(range(train, train + test)))
