"""Texts and JSON documents: whatever a file holds, it is read or refused in one line that names it."""

import pytest
from modeling_leaner.training.publishing.folders import check_code
from modeling_leaner.training.tasks.distillation import mapped_layers

from modeling_leaner import hub
from modeling_leaner.layers_leaner import INDEX, find_weights
from modeling_leaner.shapes import is_plain


NO_JSON = (b"[" * 200_000, b'{"a": ' * 200_000, b"\xff\xfe\x00", b"{", b"", b"9" * 6000, b'"xxx', b"\0")


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
    for content in NO_JSON:
        (tmp_path / name).write_bytes(content)
        with pytest.raises((ValueError, OSError), match=name):
            read(tmp_path)
