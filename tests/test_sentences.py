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
    assert "tested.parquet: left out 1 sentences that are among its texts, 1 with 8 words in a row of theirs" in said
    assert "out/all.parquet: 2 sentences of 5, 2 left out, the rest repeated" in said
    assert [sentences(sentence) for sentence in kept] == [[sentence] for sentence in kept]


def test_each_set_of_tested_texts_has_its_own_counts(folder, capsys):
    """A sentence that two of them have counts for both, and is left out once."""
    Dataset.from_dict({"text": [LONG, "Nothing is said of this one here"]}).to_parquet("more.parquet")
    leave_out = ["--leave-out", "tested.parquet", "--leave-out", "more.parquet"]
    leaner("sentences", "all.parquet", "--data", "train.parquet", *leave_out)
    said = capsys.readouterr().out
    assert "tested.parquet: left out 1 sentences that are among its texts, 1 with 8 words in a row of theirs" in said
    assert "more.parquet: left out 1 sentences that are among its texts, 1 with 8 words in a row of theirs" in said
    assert "all.parquet: 1 sentences of 5, 3 left out, the rest repeated" in said
