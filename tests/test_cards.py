"""The published cards as a visitor of the Hub meets them: they parse, load, predict; their numbers are in the rows."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from modeling_leaner.training.experiments import guess_features, simple_guesses
from modeling_leaner.training.experiments.bigram import Bigram
from modeling_leaner.training.publishing import cards, folders
from modeling_leaner.training.records import Guess, PublishedResults
from modeling_leaner.training.running import metadata, reevaluate
from modeling_leaner.training.tasks.language import CausalLM, MaskedLM
from modeling_leaner.training.tasks.registry import TASKS
from transformers.utils import is_torchvision_available


ROOT = Path(__file__).parent.parent
CARDS = ROOT / "model_cards"
PUBLISHED = {folder: folders.results_in(folder / "results.json") for folder in folders.published_folders(CARDS)}
FOLDERS = [folder for folder, results in PUBLISHED.items() if isinstance(results, PublishedResults)]  # of grids
# transformers 5.17 has AutoImageProcessor only with torchvision:
OLD = version("transformers") < "5.18" and not is_torchvision_available()
RESULTS = {folder.name: PUBLISHED[folder] for folder in FOLDERS}
FIRST_OF_TASK = {results.task: name for name, results in RESULTS.items() if not OLD or "vit" not in name}
LOADABLE = [folder for folder in FOLDERS if not OLD or "vit" not in folder.name]
QUICK = [CARDS / name for name in FIRST_OF_TASK.values()]


def snippet_of(text):
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.parametrize(
    "folders", [pytest.param(QUICK, id="one per task"), pytest.param(LOADABLE, id="all", marks=pytest.mark.full)]
)
def test_cards_predict_by_their_own_snippets(folders, tmp_path):
    """With the Hub's repository replaced by the folder, in a process that cannot import the package."""
    package_hidden = Path(reevaluate.__file__).read_text().split("def reduced")[0]
    lines = [package_hidden, "sys.meta_path.insert(0, NoPackage())"]
    for folder in folders:
        code = snippet_of((folder / "README.md").read_text(encoding="utf-8"))
        repository = f'"{metadata.HUB_OWNER}/{folder.name}"'
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
    assert cards.render(folder)[0]["README.md"] == text
    card = ModelCard(text)
    assert {"modeling_leaner", "custom_code"} <= set(card.data.tags) and card.data.model_name == folder.name
    if not isinstance(results, PublishedResults):
        assert len(text.encode()) <= 8000 and card.data.base_model == results.base_model
        return
    assert len(card.text.split()) <= 500
    assert card.data.pipeline_tag == TASKS[results.task].hub_name
    assert card.data.datasets == ([results.dataset] if "/" in results.dataset else None)
    assert card.data.base_model == (metadata.repository(results.parent) if results.parent else None)
    assert {each.metric_type for each in card.data.eval_results} == {name[5:] for name in results.metrics}
    for each in card.data.eval_results:
        value = results.metrics[f"eval_{each.metric_type}"]
        assert each.metric_value == pytest.approx(value, rel=5e-4) and f"{value:.4g}" in card.text
    page = (CARDS / "README.md").read_text(encoding="utf-8")
    assert f"(../README.md#{results.evidence.grid})" in text and f"\n### {results.evidence.grid}\n" in page
    best = cards.best_of(results.evidence)
    assert f"{best.name} | {best.value:.4g} |" in text


@pytest.mark.parametrize("higher, name", [(True, "high"), (False, "low")])
def test_the_best_baseline_is_by_the_metric(higher, name):
    evidence = RESULTS["leanbert-mini-sst2"].evidence
    guesses = [Guess(name="low", value=0.1), Guess(name="high", value=0.9)]
    assert cards.best_of(evidence.model_copy(update={"higher_is_better": higher, "guesses": guesses})).name == name


def packed(rows):
    return Dataset.from_dict({"input_ids": rows})


def test_a_bigram_is_interpolated():
    """Against the formula of Witten and Bell, pair by pair; rows do not run into each other."""
    rows = [[0, 1, 2, 1], [1, 2, 2], [3]]
    model = Bigram.fit(packed(rows), 5, ignored=[])
    pairs = [pair for row in rows for pair in zip(row, row[1:])]
    frequency = (np.bincount([right for _, right in pairs], minlength=5) + 1) / (len(pairs) + 5)
    assert model.frequency == pytest.approx(frequency)
    for left in range(5):
        followers = [right for start, right in pairs if start == left]
        different = len(set(followers))
        expected = [
            (followers.count(right) + different * frequency[right]) / (len(followers) + different)
            if followers
            else frequency[right]
            for right in range(5)
        ]
        assert np.exp(-model.nats(np.full(5, left), np.arange(5))) == pytest.approx(expected)
        assert sum(expected) == pytest.approx(1)


def test_guesses_of_language_models_read_what_the_model_reads():
    """A causal model's bigram solves text in which the left neighbour decides; a masked one's sees the masks."""
    rng = np.random.default_rng(0)
    starts = rng.integers(5, 20, size=300)
    rows = [[int(5 + (start - 5 + place) % 15) for place in range(12)] for start in starts]
    task = SimpleNamespace(processing=SimpleNamespace(all_special_ids=[0]), config=SimpleNamespace(vocab_size=20))
    task.predicts_special_tokens = True
    task.metric, task.score = "loss", lambda said: {"loss": said.predictions[0, 0] / said.predictions[0, 1]}
    guesses = simple_guesses.language_guesses(task, packed(rows), packed(rows[:50]), trained_on=100)
    found = {each.name: each.value for each in guesses}
    assert found["frequencies"] == pytest.approx(np.log(20), abs=0.35) and len(found) == 3
    assert found["bigram, all training rows"] < found["bigram, as many rows as trained on"] < 0.2


def test_the_guesses_of_a_masked_model_see_the_masks(monkeypatch):
    """The token on the left as the model reads it, of each place that is asked for."""
    batch = {"input_ids": torch.tensor([[1, 9, 3, 4]]), "labels": torch.tensor([[-100, 5, 7, -100]])}
    monkeypatch.setattr(simple_guesses, "evaluation_batches", lambda *_: [batch])
    ((left, targets),) = simple_guesses.left_and_target(MaskedLM.__new__(MaskedLM), packed([[1, 5, 7, 4]]))
    assert (left.tolist(), targets.tolist()) == ([1, 9], [5, 7])
    ((left, targets),) = simple_guesses.left_and_target(CausalLM.__new__(CausalLM), packed([[1, 5, 7, 4]]))
    assert (left.tolist(), targets.tolist()) == ([1, 5, 7], [5, 7, 4])


def test_which_tasks_have_guesses(monkeypatch):
    for name in ("text_guesses", "image_guesses", "language_guesses"):
        monkeypatch.setattr(simple_guesses, name, lambda *_: [])
    monkeypatch.setattr(simple_guesses, "rows_trained_on", lambda arguments: None)
    without = set()
    for name, kind in TASKS.items():
        task = kind.__new__(kind)
        vars(task).update(metric="f1", regression=False, arguments=None)
        if simple_guesses.guesses_on(task, None, None) is None:
            without.add(name)
    assert without == {"question-answering", "embedding"}


@pytest.mark.parametrize(
    "name, scored",
    [
        ("image-classification", {"regression": True}),
        ("image-classification", {"regression": False, "metric": "loss"}),
        ("sequence-classification", {"metric": "loss"}),
        ("causal-lm", {"metric": "accuracy"}),
    ],
)
def test_what_no_guess_is_known_for(name, scored):
    """Numbers of images, the loss of a classification, and hits of a language model; said before any row is read."""
    task = TASKS[name].__new__(TASKS[name])
    vars(task).update(scored)
    assert simple_guesses.guesses_on(task, None, None) is None


def test_special_tokens_are_counted_where_they_are_predicted():
    """Of text that ends in one, their share is known to the frequencies alone where the task asks for it."""
    rows = [[5, 6, 7, 0]] * 40
    task = SimpleNamespace(processing=SimpleNamespace(all_special_ids=[0]), config=SimpleNamespace(vocab_size=20))
    task.metric, task.score = "loss", lambda said: {"loss": said.predictions[0, 0] / said.predictions[0, 1]}
    nats = {}
    for task.predicts_special_tokens in (TASKS["causal-lm"].predicts_special_tokens, False):
        first, *_ = simple_guesses.language_guesses(task, packed(rows), packed(rows), trained_on=None)
        nats[task.predicts_special_tokens] = first.value
    assert nats[True] < nats[False]


def test_guesses_on_images_read_their_pixels():
    """Images whose upper half tells the class are solved by the logistic regression, and not by the majority."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=200)
    images = rng.integers(100, size=(200, 3, 32, 32))
    images[labels == 1, :, :16] += 100
    rows = Dataset.from_dict({"pixels": images.reshape(200, -1).astype(np.uint8), "labels": labels.tolist()})
    config = SimpleNamespace(image_shape=(32, 32), num_channels=3)
    task = SimpleNamespace(config=config, regression=False, metric="accuracy")
    task.score = lambda said: {"accuracy": (said.predictions.argmax(1) == said.label_ids).mean()}
    small = guess_features.small_images(task, rows)
    assert small.shape == (200, 3 * 16 * 16)
    assert small[0, 0] == pytest.approx(images[0, 0, :2, :2].mean() / 255, rel=1e-5)
    found = {each.name: each.value for each in simple_guesses.image_guesses(task, rows, rows)}
    assert found["16 × 16 pixels"] > 0.95 and found["majority class"] < 0.65


def test_shared_tokens_of_a_pair():
    rows = packed([[1, 7, 8, 2, 8, 9, 2], [1, 5, 2, 5, 2], [1, 5, 2, 6, 2]])
    assert guess_features.token_overlap(rows, separator=2)[:, 0] == pytest.approx([1 / 3, 1.0, 0.0])


def test_the_choice_of_rows_moves_a_difference_more_than_the_seed():
    """On SST-2 the choice of rows moves a difference more than the seed does."""
    evidence = RESULTS["leanbert-shallow-mini-sst2"].evidence
    (each,) = (each for each in evidence.row_errors if each.shape == "bert/shallow-mini")
    values = {cell.shape: cell.values for cell in evidence.cells}
    own, base = values["bert/shallow-mini"], values["bert/mini"]
    assert each.difference == pytest.approx(own["11"] - base["11"])  # the published seed's
    spread = np.std([own[seed] - base[seed] for seed in base], ddof=1)
    assert each.error > spread
