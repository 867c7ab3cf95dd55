"""Every number in git is read by its record, and none is lost or changed when it is written again."""

import json
from pathlib import Path

import pytest
from modeling_leaner.training.experiments.grid_results import read_rows, write_rows
from modeling_leaner.training.publishing.folders import is_encoder, published_folders, results_in


CARDS = Path(__file__).parent.parent / "model_cards"
FOLDERS = [folder for folder in published_folders(CARDS) if not is_encoder(folder)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_results_are_written_as_they_were_read(folder):
    path = folder / "results.json"
    assert results_in(path).document() == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(CARDS.glob("grids/*/results.csv")), ids=lambda path: path.parent.name)
def test_rows_are_written_as_they_were_read(path, tmp_path):
    """Files of earlier releases lack the last columns."""
    write_rows(tmp_path / "results.csv", read_rows(path).values())
    texts = (each.read_text(encoding="utf-8") for each in (path, tmp_path / "results.csv"))
    for before, after in zip(*map(str.splitlines, texts), strict=True):
        assert after.startswith(before)
