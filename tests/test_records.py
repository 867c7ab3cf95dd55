"""Every number in git is read by a record that documents it, and is written again byte for byte."""

import io
import json
from pathlib import Path

import pytest
from modeling_leaner.training import records
from modeling_leaner.training.experiments.rows import ADDED, read_rows, write_rows
from modeling_leaner.training.publishing.folders import results_in


CARDS = Path(__file__).parent.parent / "model_cards"
KINDS = {
    "results.json": records.RunResults,
    "latency.json": records.LatencyFile,
    "step_seconds.json": records.StepTimes,
    "guesses.json": list[records.Guess],
    "row_errors.json": list[records.RowError],
}
FILES = sorted(path for name in KINDS for path in CARDS.rglob(name) if path.parent.parent.name != "studies")


def read_file(path):
    """The record of a file; that of a published folder is of its kind."""
    if path.name == "results.json":
        return results_in(path)
    return records.checked(KINDS[path.name], json.loads(path.read_text(encoding="utf-8")), path)


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
    assert written(read_file(path)) == text


@pytest.mark.parametrize("path", sorted(CARDS.glob("grids/*/results.csv")), ids=lambda path: path.parent.name)
def test_rows_are_written_as_they_were_read(path):
    """With the columns that the file has: files of earlier releases have none of ADDED."""
    text = path.read_text(encoding="utf-8")
    file = io.StringIO(newline="")
    write_rows(read_rows(path).values(), file)
    header, *rows = file.getvalue().splitlines(keepends=True)
    if ADDED[0] not in text.splitlines()[0]:
        header = header.replace("," + ",".join(ADDED), "")
        rows = [row.removesuffix("," * len(ADDED) + "\n") + "\n" for row in rows]
    assert "".join([header, *rows]) == text
