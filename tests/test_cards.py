"""The published cards as a visitor of the Hub meets them: they parse, load, predict; their numbers are in the rows."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from modeling_leaner.training.publishing import cards, folders
from modeling_leaner.training.records import PublishedResults
from modeling_leaner.training.running import run_card
from modeling_leaner.training.settings import parse
from modeling_leaner.training.tasks import TASKS
from transformers.utils import is_torchvision_available

from modeling_leaner.hub import HUB_OWNER


ROOT = Path(__file__).parent.parent
CARDS = ROOT / "model_cards"
PUBLISHED = {
    folder: folders.results_in(folder / "results.json")
    for folder in folders.published_folders(CARDS)
    if not folders.is_encoder(folder)
}
FOLDERS = [folder for folder, results in PUBLISHED.items() if isinstance(results, PublishedResults)]  # of grids
# transformers 5.17 has AutoImageProcessor only with torchvision:
OLD = version("transformers") < "5.18" and not is_torchvision_available()
RESULTS = {folder.name: PUBLISHED[folder] for folder in FOLDERS}
FIRST_OF_TASK = {results.task: name for name, results in RESULTS.items() if not OLD or "vit" not in name}
LOADABLE = [folder for folder in FOLDERS if not OLD or "vit" not in folder.name]
QUICK = [CARDS / name for name in FIRST_OF_TASK.values()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_command_that_trains_it_again(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    recipe, *words = re.search(r"^leaner train (.+)$", text, re.MULTILINE)[1].split()
    assert parse(str(ROOT / recipe), words, needed=("shape",)).shape == RESULTS[folder.name].shape


def snippet_of(text):
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.parametrize(
    "folders", [pytest.param(QUICK, id="one per task"), pytest.param(LOADABLE, id="all", marks=pytest.mark.full)]
)
def test_cards_predict_by_their_own_snippets(folders, tmp_path):
    """With the Hub's repository replaced by the folder, in a process that cannot import the package."""
    lines = ["import sys", "sys.modules['modeling_leaner'] = None"]
    for folder in folders:
        code = snippet_of((folder / "README.md").read_text(encoding="utf-8"))
        repository = f'"{run_card.HUB_OWNER}/{folder.name}"'
        assert code.count(repository) == 1 and code.splitlines()[-1].startswith("print(")
        lines.append(f"print({folder.name!r}, end=': ', flush=True)")
        lines.append(f"exec({code.replace(repository, repr(str(folder)))!r}, {{}})")
    (tmp_path / "snippets.py").write_text("\n".join(lines))
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "snippets.py"]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, (process.stdout[-500:], process.stderr[-2000:])
    for folder in folders:
        assert re.search(rf"^{folder.name}: \S", process.stdout, re.MULTILINE)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_every_folder_has_its_short_card(folder):
    """README.md is what the results make of it; what the Hub reads of it are their numbers."""
    results = PUBLISHED[folder]
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert cards.render(folder) == text
    card = ModelCard(text)
    assert {"modeling_leaner", "custom_code"} <= set(card.data.tags) and card.data.model_name == folder.name
    assert len(card.text.split()) <= 500
    assert card.data.pipeline_tag == TASKS[results.task].hub_name
    assert card.data.datasets == ([results.dataset] if "/" in results.dataset else None)
    assert card.data.base_model == (f"{HUB_OWNER}/{results.parent}" if results.parent else None)
    assert {each.metric_type for each in card.data.eval_results} == {name[5:] for name in results.metrics}
    for each in card.data.eval_results:
        value = results.metrics[f"eval_{each.metric_type}"]
        assert each.metric_value == pytest.approx(value, rel=5e-4) and f"{value:.4g}" in card.text
    page = (CARDS / "README.md").read_text(encoding="utf-8")
    grid = results.evidence.grid
    assert grid in text and (f"\n### {grid}\n" in page or f"\n| {grid}: " in page)
    best = results.evidence.best_guess
    assert f"{best.name} | {best.value:.4g} |" in text
