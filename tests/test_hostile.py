"""What strangers give: names that command a terminal, a repository of a pickle."""

from pathlib import Path

from command import invoked, refused
from hub_server import LocalHub, reached

from modeling_leaner import hub as hub_files
from modeling_leaner.terminal import visible


GOLDEN = Path(__file__).parent / "golden"
REPOSITORY = "someone/a-model"


def test_visible():
    assert visible("a b é × →") == "a b é × →"
    assert visible("a\nb\x1b[31m\udcff\u202e") == "a\\nb\\x1b[31m\\udcff\\u202e"


def test_errors_say_what_was_given():
    """No emoji, no markup, no command to the terminal."""
    for name, shown in (("a:x:b", "a:x:b"), ("a[red]b", "a[red]b"), ("a\x1b[31mb", "a\\x1b[31mb")):
        result = invoked("verify", name)
        assert result.exit_code == 2 and f"'{shown}' does not exist" in result.output


def test_a_repository_of_a_pickle(tmp_path):
    config = (GOLDEN / "gpt" / "config.json").read_bytes()
    with LocalHub() as hub, reached(hub, tmp_path / "home"):
        hub_files.commit({"config.json": config, "pytorch_model.bin": b"x"}, REPOSITORY, "a pickle")
        named = f"{REPOSITORY}: no model.safetensors"
        refused(named, "convert", REPOSITORY, tmp_path / "out")
        refused(named, "evaluate", REPOSITORY, "--task", "causal-lm", "--dataset", "python-docs")
    assert not (tmp_path / "out").exists()
