"""`leaner sentences`: the sentences of texts, without those that a model is tested on."""

import pytest
from command import leaner
from datasets import Dataset
from modeling_leaner.training.data.sources import sentences


LONG = "one two three four five six seven eight nine"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [
        "Nothing is said of this one here.\nShort. Nothing is said of this one here.",
        f"It began: {LONG}. Is this QUESTION tested, or not?",
        "Seven of them: one two three four five six seven.",
    ]
    Dataset.from_dict({"text": texts}).to_parquet("train.parquet")
    columns = {"question": ["is this question tested or not"], "sentence": [f"{LONG}, ten."], "label": [1]}
    Dataset.from_dict(columns).to_parquet("tested.parquet")
    return tmp_path


def test_what_is_written(folder, capsys):
    """Distinct sentences; equal words or eight of them in a row are left out, seven are not."""
    leaner("sentences", "out/all.parquet", "--data", "train.parquet", "--leave-out", "tested.parquet")
    kept = Dataset.from_parquet("out/all.parquet")["text"]
    assert list(kept) == ["Nothing is said of this one here.", "Seven of them: one two three four five six seven."]
    said = capsys.readouterr().out
    assert "out/all.parquet: 2 sentences, 2 left out" in said
    assert [sentences(sentence) for sentence in kept] == [[sentence] for sentence in kept]
