"""The training sentences of the published encoders."""

import pandas as pd
from modeling_leaner.training.data.encoder_texts import write_sentences


LONG = "one two three four five six seven eight nine"


def test_what_is_written(tmp_path):
    """Distinct sentences; equal words or eight of them in a row are left out, seven are not."""
    texts = [
        "Nothing is said of this one here.\nShort. Nothing is said of this one here.",
        f"It began: {LONG}. Is this QUESTION tested, or not?",
        "Seven of them: one two three four five six seven.",
    ]
    train, tested, output = tmp_path / "train.parquet", tmp_path / "tested.parquet", tmp_path / "all.parquet"
    pd.DataFrame({"text": texts, "title": "A title that is not one of the sentences."}).to_parquet(train)
    columns = {"question": ["is this question tested or not"], "sentence": [f"{LONG}, ten."], "label": [1]}
    pd.DataFrame(columns).to_parquet(tested)

    write_sentences(output, [train], [tested])
    kept = pd.read_parquet(output).text.tolist()
    assert kept == ["Nothing is said of this one here.", "Seven of them: one two three four five six seven."]
