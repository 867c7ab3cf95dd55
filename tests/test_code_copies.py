"""The model code in published folders: the package's own, which is compared before any of it could run."""

import json
import shutil
from pathlib import Path

import pytest
from modeling_leaner.training.publishing import folders, verify

from modeling_leaner import LeanBERTConfig


ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "model_cards" / "leanbert-lean-mini-sst2"


@pytest.fixture
def folder(tmp_path):
    """A copy of a published folder with the package's code, to be tampered with; its weights are not needed."""
    copy = tmp_path / "cards" / PUBLISHED.name
    shutil.copytree(PUBLISHED, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.png", "README.md"))
    folders.renew_code(copy)
    folders.check_code(copy)
    return copy


def edit(name, **values):
    """Puts values into a JSON file of a folder."""

    def tamper(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return tamper


def write(name, text):
    """Puts text at the end of a file, which need not be there."""

    def tamper(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("a") as file:
            file.write(text)

    return tamper


def link(name, target):
    """Puts a link in the place of a file."""

    def tamper(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return tamper


EVIL = "open('EVIL', 'w')\n"
OWN = LeanBERTConfig.auto_classes()
CONFIG = "config.json"
TAMPERINGS = [
    (write("layers_leaner.py", " "), "layers_leaner.py: differs"),
    (lambda folder: (folder / "heads_leaner.py").unlink(), "heads_leaner.py: missing"),
    (write(".evil.py", EVIL), ".evil.py: not a file of a published folder"),
    (write("modeling_lean_gpt.py", ""), "modeling_lean_gpt.py: not a file of a published folder"),
    (write("sub/modeling_lean_bert.py", EVIL), "sub/modeling_lean_bert.py: not a file"),
    (
        link("layers_leaner.py", folders.PACKAGE / "layers_leaner.py"),
        "layers_leaner.py: a link to",
    ),
    (link("sub", ROOT), "sub: a link to"),
    (edit(CONFIG, auto_map={**OWN, "AutoModel": "evil.X"}), "auto_map is .*'evil.X'.*, expected .*LeanBERTModel'"),
    (edit(CONFIG, auto_map={**OWN, "AutoModel": "other/repo--modeling.X"}), "auto_map is .*'other/repo--modeling.X'"),
    (edit(CONFIG, model_type="evil"), "attention_leaner.py: not a file of a published folder"),
    (edit(CONFIG, attn_implementation="evil/kernel"), "attn_implementation: not a key that a LeanBERTConfig is saved"),
    (edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}), "r_config.json: auto_map is .*evil"),
    (
        write("modules.json", '[{"type": "modeling.Evil"}]'),
        "'modeling.Evil', expected a module of sentence-t",
    ),
]


@pytest.mark.parametrize(("tamper", "message"), TAMPERINGS)
def test_tampered_code_is_named_and_never_runs(folder, tamper, message, monkeypatch):
    tamper(folder)

    def loaded(*arguments, **options):
        raise AssertionError("something of the folder was loaded before its code was compared")

    for module, step in ((folders, "safe_open"), (verify, "render"), (verify, "metrics_of")):
        monkeypatch.setattr(module, step, loaded)
    monkeypatch.setattr(folders, "find_weights", lambda folder: ["weights"])
    with pytest.raises(ValueError, match=message):
        verify.verify(folder, {})
    assert not list(folder.parent.rglob("EVIL")) and not Path("EVIL").exists()


def test_a_folder_of_the_hubs_cache_is_made_of_links(folder):
    """snapshots/REVISION/FILE → ../../blobs/HASH, all of one repository."""
    repository = folder.parent / "models--leaner--x"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in folder.glob("*.*"):
        if path.is_file():
            shutil.copyfile(path, repository / "blobs" / path.name)
            (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    folders.check_code(snapshot)
    write("layers_leaner.py", EVIL)(repository / "blobs")
    with pytest.raises(ValueError, match="layers_leaner.py: differs"):
        folders.check_code(snapshot)


def test_renewed_copies(folder):
    before = (folder / "config.json").read_text()
    outside = folder.parent / "outside.py"
    outside.touch()
    for tamper in (
        write("modeling_lean_bert.py", EVIL),
        write("evil_lean.py", EVIL),
        link("layers_leaner.py", outside),
        edit("config.json", auto_map={**OWN, "AutoModel": "evil.X"}),
    ):
        tamper(folder)
    (folder / "heads_leaner.py").unlink()
    folders.renew_code(folder)
    folders.check_code(folder)
    assert outside.read_text() == "" and (folder / "config.json").read_text() == before
