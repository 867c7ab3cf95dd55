"""What is in model_cards/: every folder says what its weights give on its first rows; the index is as written."""

import json
import re
import shlex
from pathlib import Path

import pytest
from modeling_leaner.training.experiments.grid import check_unchanged, load_grid
from modeling_leaner.training.experiments.grid_results import load_folder, load_results
from modeling_leaner.training.publishing import publish, verify
from modeling_leaner.training.publishing.folders import check_folder, is_encoder, published_folders, results_in
from modeling_leaner.training.settings import parse
from test_referee import same
from training_data import LOCAL_DATA


ROOT = Path(__file__).parent.parent
CARDS = ROOT / "model_cards"
FOLDERS = published_folders(CARDS)
OF_GRIDS = [path for path in FOLDERS if not is_encoder(path)]
MINIATURE = 25e6  # bytes of weights at most
ENCODER = 42 * 2**20
COPIES = {
    "cifar10": "cifar10",
    "enwik8": "enwik8_text",
    "sst2": "glue/sst2",
    "stsb": "glue/stsb",
    "TinyStories": "tinystories",
}


# One of each task; make test-full takes all.
CHOSEN = (
    "leanvit-lean-mini-cifar10 leangpt-lean-mini-enwik8 leanbert-lean-mini-enwik8 leanbert-lean-mini-listops "
    "minilm-3-layers"
).split()
CHECKED = [pytest.param(path, marks=() if path.name in CHOSEN else pytest.mark.full) for path in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_code_configuration_and_weights_of_a_folder_belong_together(folder):
    check_folder(folder)


@pytest.mark.parametrize("folder", CHECKED, ids=lambda folder: folder.name)
def test_a_folder_says_what_its_weights_give(folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = {name: [str(LOCAL_DATA / copy)] for name, copy in COPIES.items() if (LOCAL_DATA / copy).is_dir()}
    needed, has_rows = "STS-B", "stsb" in given
    if not is_encoder(folder):
        results = results_in(folder / "results.json")
        needed = results.dataset
        has_rows = "/" not in needed or {results.dataset_config, needed.split("/")[-1], needed} & given.keys()
    if not has_rows:
        pytest.skip(f"no local copy of {needed} beside this clone, and no Hub in the tests")
    assert verify.verify(folder.relative_to(ROOT), given, short=True)


@pytest.mark.parametrize("folder", OF_GRIDS, ids=lambda folder: folder.name)
def test_what_a_folder_says_of_other_runs_is_in_the_rows_of_the_grids(folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    results = results_in(folder / "results.json")
    fresh = publish.evidence_of(load_folder(publish.GRIDS / results.evidence.grid), results.cell)
    same(results.evidence.document(), fresh.document())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_small_has_a_licence_and_names_no_local_path(folder):
    most = MINIATURE if folder in OF_GRIDS else ENCODER
    assert (folder / "model.safetensors").stat().st_size <= most
    assert json.loads((folder / "results.json").read_text())["license"] == "apache-2.0"
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".md", ".yaml", ".jsonl"):
            text = path.read_text(encoding="utf-8")
            assert "../" not in text and str(ROOT.parent) not in text, path
            assert not re.search(r"(?<![\w/:.])/(home|tmp|root|Users|mnt|var)/", text), path


@pytest.mark.parametrize("path", sorted(CARDS.glob("grids/*/results.csv")), ids=lambda path: path.parent.name)
def test_the_rows_are_of_the_grid_in_git(path, monkeypatch):
    """Nobody has changed the grid after its first row."""
    monkeypatch.chdir(ROOT)
    ours = load_results(load_grid(ROOT / "training" / "grids" / f"{path.parent.name}.yaml"))
    rows = ours.rows
    assert rows and all(row.status in ("finished", "failed") for row in rows.values())
    assert not any("-dirty" in (row.git_commit or "") for row in rows.values())
    check_unchanged(ours.grid, rows.values())
    saved = load_grid(path.parent / "grid.yaml")
    changed = [key for key in vars(saved) if getattr(saved, key) != getattr(ours.grid, key)]
    assert not changed, "leaner sweep --summary and leaner publish take the grid as it is now"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_training_command_of_a_folder_is_taken(folder, monkeypatch):
    text = (folder / "README.md").read_text(encoding="utf-8")
    if is_encoder(folder):
        text = "\n".join(json.loads((folder / "results.json").read_text())["commands"])
    commands = re.findall(r"^leaner train (.*)$", text, re.M)
    assert commands
    monkeypatch.chdir(ROOT)
    for command in map(shlex.split, commands):
        recipe = None if command[0].startswith("--") else command.pop(0)
        assert parse(recipe, command).max_steps
