"""Every number in git is read by a record that documents it, and is written again byte for byte."""

import json
from pathlib import Path

import pytest
from modeling_leaner.training import records


CARDS = Path(__file__).parent.parent / "model_cards"
KINDS = {
    "results.json": records.PublishedResults,
    "latency.json": records.LatencyFile,
    "step_seconds.json": records.StepTimes,
    "guesses.json": list[records.Guess],
    "row_errors.json": list[records.RowError],
}
FILES = sorted(path for name in KINDS for path in CARDS.rglob(name))


def written(read) -> str:
    """What `write_json` makes of records."""
    if isinstance(read, list):
        document = [record.document() for record in read]
    else:
        document = read.document()
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_is_written_as_it_was_read(path):
    text = path.read_text(encoding="utf-8")
    assert written(records.checked(KINDS[path.name], json.loads(text), path)) == text


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_value_is_documented(path):
    """No key in git is one that records only keep."""

    def undocumented(value):
        if isinstance(value, records.Record):
            yield from value.model_extra
            value = [getattr(value, name) for name in type(value).model_fields]
        if isinstance(value, dict):
            value = value.values()
        if not isinstance(value, str | int | float | None):
            for each in value:
                yield from undocumented(each)

    assert list(undocumented(records.checked(KINDS[path.name], json.loads(path.read_text()), path))) == []
