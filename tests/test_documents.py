"""Texts and JSON documents: whatever a file holds, it is read or refused in one line that names it."""

import json

import pytest
from modeling_leaner.training.publishing.folders import check_code, is_plain
from modeling_leaner.training.tasks.distillation import mapped_layers

from modeling_leaner import hub
from modeling_leaner.files import read_json
from modeling_leaner.layers_leaner import INDEX, find_weights


DEEP = "[" * 200_000


def test_what_is_no_json(tmp_path):
    path = tmp_path / "x.json"
    for content, message in (
        (DEEP.encode(), "not a JSON file: "),
        (b'{"a": ' * 200_000, "not a JSON file: "),
        (b"\xff\xfe\x00", "not a text in UTF-8: "),
        (b"{", "not a JSON file: "),
        (b"", "not a JSON file: "),
        (b"9" * 6000, "not a JSON file: "),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError) as error:
            read_json(path)
        assert str(error.value).startswith(f"{path}: {message}")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    "name, read",
    [
        ("config.json", is_plain),
        (INDEX, find_weights),
        ("modules.json", lambda folder: (folder / "config.json").write_text("{}") and check_code(folder)),
        ("modules.json", lambda folder: hub.sentence_transformers_files(str(folder))),
        ("slim.json", lambda folder: mapped_layers(str(folder), [], 2, 4)),
    ],
)
def test_a_strangers_file_is_named(tmp_path, name, read):
    for content in (DEEP, json.dumps("x" * 9)[:-1], "\0"):
        (tmp_path / name).write_text(content)
        with pytest.raises((ValueError, OSError), match=name):
            read(tmp_path)
