"""`leaner verify` of a sentence encoder: its scores again, from vectors made without this package.

Times are not measured again, what the card says of parent and cut is not computed again, and the cosine to the parent
only where the parent is given, `--data_files parent=FOLDER`, beside the held-out sentences, `sentences=FILE`.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from ..experiments.encoder_rows import NAMES, EncoderRows, load_rows
from ..experiments.encoder_scores import EncoderOutput, output_of, scores_of
from ..experiments.encoders import load_encoder
from ..records import PublishedEncoder
from ..records.results import RESULTS
from ..tasks.embedding import padded_batches, unit_vectors
from .recompute import HIDDEN, run_without_package


PARENT = "parent"
SHORT = ("stsb",)  # scores of a short verification


def stranger_vectors(folder: Path, texts: list[str], length: int) -> np.ndarray:
    """(N, D): the vectors of texts by a folder's own code, in a process that cannot import this package.

    Raises:
        ValueError: that process fails; one line.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    ids = tokenizer(texts, truncation=True, max_length=length, padding=False)["input_ids"]
    batches = list(padded_batches(ids))
    tensors = {}
    for index, (_, padded, mask) in enumerate(batches):
        tensors |= {f"{index}.input_ids": padded, f"{index}.attention_mask": mask}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        shutil.copytree(folder, model, ignore=shutil.ignore_patterns(*HIDDEN))
        inputs = Path(scratch) / "inputs.safetensors"
        outputs = Path(scratch) / "outputs.safetensors"
        save_file(tensors, inputs)
        run_without_package(model, folder, "", inputs, outputs)
        made = load_file(outputs)
    places = [place for batch_places, _, _ in batches for place in batch_places]
    vectors = torch.cat([made[str(index)] for index in range(len(batches))]).numpy()
    return vectors[np.argsort(places)]


def scores_again(folder: Path, rows: EncoderRows, length: int, parent: EncoderOutput | None) -> dict[str, float]:
    """The scores of a folder's weights; all vectors are made by one other process."""
    places: dict[str, int] = {}

    def collect(texts: list[str]) -> np.ndarray:
        for text in texts:
            places.setdefault(text, len(places))
        return np.ones((len(texts), 1))  # in place of vectors, which are not made yet

    def look_up(texts: list[str]) -> np.ndarray:
        return vectors[[places[text] for text in texts]]

    output_of(collect, rows)
    vectors = stranger_vectors(folder, list(places), length)
    return scores_of(output_of(look_up, rows, parent), rows)


def parent_vectors(source: str, rows: EncoderRows, length: int) -> EncoderOutput:
    """The parent's vectors of the held-out sentences."""
    return EncoderOutput(sentences=unit_vectors(load_encoder(source).encode(rows.sentences, length)))


def check_rows(file: Path, results: PublishedEncoder, rows: EncoderRows) -> None:
    """Raises ValueError where rows are not those that the card is of."""
    for name, found in rows.records.items():
        stated = results.comparison.data[name]
        if (found.rows, found.sha256) != (stated.rows, stated.sha256):
            message = f"{found.rows} rows of {found.dataset} with {found.sha256} differ from the card's"
            raise ValueError(f"{file}: comparison.data.{name}: {message}, {stated.rows} rows with {stated.sha256}")


def verify_encoder(folder: Path, results: PublishedEncoder, given: Mapping[str, str], short: bool = False) -> str:
    """One line of the scores that were found again.

    Args:
        given: local copies of the rows by name, and `parent`.
        short: the correlation on STS-B's validation pairs alone.

    Raises:
        ValueError: rows are others, or a score is too far off; names file and field.
    """
    file = folder / RESULTS
    expected = results.own_scores.scores
    wanted = [name for name in expected if name != "cosine"]
    if short:
        wanted = list(SHORT)
    elif PARENT in given:
        wanted.append("cosine")
    local = {name: path for name, path in given.items() if name in NAMES}
    rows = load_rows(local, wanted)
    check_rows(file, results, rows)
    length = results.comparison.max_length
    parent = None
    if "cosine" in wanted:
        parent = parent_vectors(given[PARENT], rows, length)
    found = scores_again(folder, rows, length, parent)
    for name in wanted:
        allowed = results.tolerances[name]
        if not abs(found[name] - expected[name]) <= allowed:
            place = f"comparison.models.2.scores.{name}"  # the third of three, as `check_encoder` has it
            raise ValueError(f"{file}: {place} is {expected[name]}, the weights give {found[name]} (± {allowed:g})")
    said = ", ".join(f"{name} {found[name]:.4f}" for name in wanted)
    left = [name for name in expected if name not in wanted]
    if left:
        said += f"; not computed again: {', '.join(left)}"
    return said
