"""Every number in git is read by its record, and none is lost or changed when it is written again."""

import io
import json
from pathlib import Path

import pytest
from modeling_leaner.training import records
from modeling_leaner.training.experiments.results import read_rows, write_rows
from modeling_leaner.training.publishing.folders import is_encoder, results_in
from modeling_leaner.training.records.rows import ADDED


CARDS = Path(__file__).parent.parent / "model_cards"
KINDS = {
    "results.json": records.RunResults,
    "step_seconds.json": records.StepTimes,
    "guesses.json": list[records.Guess],
}
FILES = sorted(
    path
    for name in KINDS
    for path in CARDS.rglob(name)
    if path.parent.parent.name != "studies" and not is_encoder(path.parent)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_is_written_as_it_was_read(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    if path.name == "results.json":
        read = results_in(path)  # that of a published folder is of its kind
    else:
        read = records.checked(KINDS[path.name], document, path)
    written = [record.document() for record in read] if isinstance(read, list) else read.document()
    assert json.loads(json.dumps(written)) == document


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
