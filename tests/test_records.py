"""Every number in git is read by a record that documents it, and is written again byte for byte."""

import io
import json
from pathlib import Path

import pytest
from modeling_leaner.training import records
from modeling_leaner.training.experiments.rows import ADDED, read_rows, write_rows
from modeling_leaner.training.running.finished_folder import results_in


CARDS = Path(__file__).parent.parent / "model_cards"
KINDS = {
    "results.json": records.RunResults,
    "latency.json": records.LatencyFile,
    "step_seconds.json": records.StepTimes,
    "guesses.json": list[records.Guess],
    "row_errors.json": list[records.RowError],
}
FILES = sorted(path for name in KINDS for path in CARDS.rglob(name))


def read_file(path):
    """The record of a file; that of a published folder is of its kind."""
    if path.parent.parent.name == "studies":
        return records.checked(records.StudyFile, json.loads(path.read_text(encoding="utf-8")), path)
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

    assert list(undocumented(read_file(path))) == []


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


def test_the_hash_of_a_parent_is_a_hash():
    path = CARDS / "leanvit-slim-mini-cifar10" / "slim.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    assert records.checked(records.SlimFile, document, path).parent_weights_sha256 is not None
    parent = {"name": "x", "slim_options": [], "parameters": 1, "steps": 1, "metrics": {}, "untrained_metrics": {}}
    for kind, changed, key in (
        (records.SlimFile, {**document, "parent_weights_sha256": "invented"}, "parent_weights_sha256"),
        (records.CutParent, {**parent, "weights_sha256": "invented"}, "weights_sha256"),
    ):
        with pytest.raises(ValueError, match=f"slim.json: {key} is 'invented', expected"):
            records.checked(kind, changed, path)
