"""The model code in published folders: the package's own, which is compared before any of it could run."""

import json
import shutil
from pathlib import Path

import pytest
from command import leaner
from modeling_leaner.training.publishing import folders, verify

from modeling_leaner import LeanBERTConfig


ROOT = Path(__file__).parent.parent
FOLDERS = sorted(path.parent for path in (ROOT / "model_cards").glob("*/config.json"))
PUBLISHED = ROOT / "model_cards" / "leanbert-lean-mini-sst2"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_published_copies_are_those_of_the_package(folder):
    """Where this fails, the package has gone on: leaner publish renews the copies."""
    folders.check_code(folder)


@pytest.fixture
def folder(tmp_path):
    """A copy of a published folder with the package's code, to be tampered with; its weights are not needed."""
    copy = tmp_path / "cards" / PUBLISHED.name
    shutil.copytree(PUBLISHED, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.png", "README.md"))
    folders.renew_code(copy)
    folders.check_code(copy)
    return copy


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def append(folder, name, text):
    with (folder / name).open("a") as file:
        file.write(text)


def link(folder, name, target):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


def outside(folder, text=""):
    """A file outside the folder."""
    path = folder.parent / "outside.py"
    path.write_text(text)
    return path


EVIL = "open('EVIL', 'w')\n"
OWN = LeanBERTConfig.auto_classes()
ELSEWHERE = {**OWN, "AutoModel": "other/repo--modeling.X"}
TAMPERINGS = {
    "a changed file": (lambda folder: append(folder, "layers_leaner.py", " "), "layers_leaner.py: differs"),
    "a missing file": (lambda folder: (folder / "heads_leaner.py").unlink(), "heads_leaner.py: missing"),
    "a hidden file": (lambda folder: append(folder, ".evil.py", EVIL), ".evil.py: not a file of a published folder"),
    "another family's file": (
        lambda folder: append(folder, "modeling_lean_gpt.py", ""),
        "modeling_lean_gpt.py: not a file of a published folder",
    ),
    "a file in a folder": (
        lambda folder: ((folder / "sub").mkdir(), append(folder, "sub/modeling_lean_bert.py", EVIL)),
        "sub/modeling_lean_bert.py: not a file",
    ),
    "a compiled file": (lambda folder: append(folder, "heads_leaner.pyc", ""), "heads_leaner.pyc: not a file"),
    "a link to other code": (
        lambda folder: link(folder, "layers_leaner.py", outside(folder, EVIL)),
        "layers_leaner.py: a link to .*outside.py, expected a file of this folder",
    ),
    "a link to the same code": (
        lambda folder: link(folder, "layers_leaner.py", folders.PACKAGE / "layers_leaner.py"),
        "layers_leaner.py: a link to",
    ),
    "a linked folder": (lambda folder: link(folder, "sub", folder.parent), "sub: a link to"),
    "other code": (
        lambda folder: edit_json(folder / "config.json", auto_map={**OWN, "AutoModel": "evil.X"}),
        "config.json: auto_map is .*'evil.X'.*, expected .*'modeling_lean_bert.LeanBERTModel'",
    ),
    "another repository": (
        lambda folder: edit_json(folder / "config.json", auto_map=ELSEWHERE),
        "config.json: auto_map is .*'other/repo--modeling.X'",
    ),
    "one more class": (
        lambda folder: edit_json(folder / "config.json", auto_map={**OWN, "AutoModelForCTC": "modeling_lean_bert.X"}),
        "config.json: auto_map is .*'modeling_lean_bert.X'",
    ),
    "no auto_map": (lambda folder: edit_json(folder / "config.json", auto_map=None), "config.json: auto_map is None"),
    "another model_type": (
        lambda folder: edit_json(folder / "config.json", model_type="evil"),
        "attention_leaner.py: not a file of a published folder",
    ),
    "a kernel": (
        lambda folder: edit_json(folder / "config.json", attn_implementation="evil/kernel"),
        "config.json: attn_implementation: not a key that a LeanBERTConfig is saved with",
    ),
    "a tokenizer's code": (
        lambda folder: edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
        "tokenizer_config.json: auto_map names code",
    ),
    "another's module": (
        lambda folder: (folder / "modules.json").write_text('[{"path": "", "type": "evil/repo--module.Evil"}]'),
        "modules.json: type is 'evil/repo--module.Evil', expected a module of sentence-transformers",
    ),
    "a module of its own": (
        lambda folder: (folder / "modules.json").write_text('[{"path": "", "type": "modeling.Evil"}]'),
        "modules.json: type is 'modeling.Evil', expected a module of sentence-transformers",
    ),
    "no module": (lambda folder: (folder / "modules.json").write_text("{}"), "modules.json: .* list"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json: not a JSON file"),
    "no JSON object": (lambda folder: (folder / "config.json").write_text("[]"), "config.json: expected a JSON obj"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampered_code_is_named_and_never_runs(folder, name, monkeypatch, capsys):
    tamper, message = TAMPERINGS[name]
    tamper(folder)
    with pytest.raises(ValueError, match=message):
        folders.check_links(folder)
        folders.check_code(folder)

    def loaded(*arguments, **options):
        raise AssertionError("something of the folder was loaded before its code was compared")

    for step in ("render", "metrics_of"):
        monkeypatch.setattr(verify, step, loaded)
    with pytest.raises(SystemExit, match="1 of 1 failed"):
        leaner("verify", folder)
    assert "FAILED" in capsys.readouterr().err
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
    folders.check_links(snapshot)
    folders.check_code(snapshot)
    append(repository / "blobs", "layers_leaner.py", EVIL)
    with pytest.raises(ValueError, match="layers_leaner.py: differs"):
        folders.check_code(snapshot)


def test_renewed_copies(folder):
    before = (folder / "config.json").read_text()
    append(folder, "modeling_lean_bert.py", EVIL)
    append(folder, "evil_lean.py", EVIL)
    (folder / "heads_leaner.py").unlink()
    link(folder, "layers_leaner.py", outside(folder))
    edit_json(folder / "config.json", auto_map=ELSEWHERE)
    folders.renew_code(folder)
    folders.check_code(folder)
    assert outside(folder).read_text() == "" and (folder / "config.json").read_text() == before
