"""The published cards as a visitor of the Hub meets them: they parse, load, predict; their numbers are in the rows."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command import leaner
from datasets import Dataset
from huggingface_hub import ModelCard
from jinja2 import UndefinedError
from modeling_leaner.training.experiments import guess_features, row_errors, simple_guesses
from modeling_leaner.training.experiments.bigram import Bigram
from modeling_leaner.training.publishing import (
    rendering,
    tables,
)
from modeling_leaner.training.publishing.wording import comparison, scoring
from modeling_leaner.training.records import Guess, PublishedResults
from modeling_leaner.training.running import finished_folder, metadata, reevaluate
from modeling_leaner.training.tasks.language import CausalLM, MaskedLM
from modeling_leaner.training.tasks.registry import TASKS
from scipy import stats
from transformers.utils import is_torchvision_available


ROOT = Path(__file__).parent.parent
CARDS = ROOT / "model_cards"
PUBLISHED = {
    folder: finished_folder.results_in(folder / "results.json") for folder in finished_folder.published_folders(CARDS)
}
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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_card_says_first_what_a_visitor_needs(folder):
    """Use within 40 lines of the body; links, limits, citation; and what the Hub reads is what was written."""
    results = RESULTS[folder.name]
    card = ModelCard.load(folder / "README.md")
    body = card.text.strip().splitlines()
    assert body[0] == f"# {folder.name}" and "```python" in body[:40]
    first = body[2].split(". ")[0]
    assert " that " in first and ", not for " in first
    assert f"- **Project and papers:** {metadata.project_link()}; " in card.text
    for text in ("arxiv.org/abs/2505.20802", "@software{modeling_leaner", "The best simple guess"):
        assert text in card.text
    assert card.text.count("σ_max/σ_min") == 1 and not re.search(r"\b0\.\d+ epochs", card.text)
    assert {"modeling_leaner", "custom_code"} <= set(card.data.tags) and card.data.model_name == folder.name
    assert card.data.pipeline_tag == TASKS[results.task].hub_name
    assert card.data.datasets == ([results.dataset] if "/" in results.dataset else None)
    assert card.data.language == ("en" if "/" in results.dataset and "cifar" not in folder.name else None)
    started = results.shape if results.cut_parent is None else f"model_cards/{results.cut_parent.name}"
    expected = started.replace("model_cards", metadata.HUB_OWNER) if started.startswith("model_cards/") else None
    assert card.data.base_model == expected
    written = metadata.evaluations(results, results.evidence.hub)
    assert sorted(map(str, card.data.eval_results)) == sorted(map(str, written))
    for each in card.data.eval_results:
        value = results.metrics[f"eval_{each.metric_type}"]
        assert each.metric_value == pytest.approx(value, rel=5e-4) and len(str(each.metric_value)) <= 6


@pytest.mark.parametrize(("value", "shown"), [(None, "–"), (8.3e6, "8.3e+06"), (1.3e7, "> 8e+06")])
def test_kappa_beyond_rounding(value, shown):
    assert tables.kappa(value) == shown


def test_a_table_says_how_often_its_cells_were_trained():
    known = RESULTS["leanbert-mini-sst2"].evidence
    assert f"one shape, trained with {len(known.seeds)} seeds." in comparison.comparison_intro(known)
    one = known.model_copy(update={"seeds": known.seeds[:1]})
    assert "one shape, trained once." in comparison.comparison_intro(one)


def test_an_outlier_is_told_from_a_bad_run():
    known = RESULTS["leanbert-mini-sst2"].evidence
    base = known.cells[0].model_copy(update={"shape": known.baseline, "chance": 0.2})
    evidence = known.model_copy(update={"higher_is_better": True, "cells": [base], "guesses": None})
    lower = evidence.model_copy(update={"higher_is_better": False})
    cell = base.model_copy(update={"values": {str(seed): 0.5 + 0.01 * seed for seed in range(7)}})
    assert scoring.outliers(cell, evidence) == []
    cell.values["3"] = 0.1
    assert scoring.outliers(cell, evidence) == ["3"]
    assert scoring.outliers(cell, lower) == []
    ties = base.model_copy(update={"values": {"1": 0.1, "2": 0.1, "3": 0.1, "4": 0.1, "5": 0.099}})
    assert scoring.outliers(ties, evidence) == []
    base.chance = 0.05
    assert scoring.outliers(cell, evidence) == []  # far below the others, and better than the guess
    base.chance = None
    assert scoring.outliers(cell, evidence) == ["3"]  # no guess is known
    base.chance = 0.2
    del cell.values["0"], cell.values["1"], cell.values["2"]
    assert scoring.outliers(cell, evidence) == []  # of four nothing can be said


def test_a_run_is_no_outlier_for_a_guess_that_no_run_beats():
    """Early in a training: losses of enwik8-text-causal-curves, gpt/narrow-mini after 3.1M tokens."""
    known = RESULTS["leanbert-mini-sst2"].evidence
    losses = {"11": 5.0085, "12": 5.0039, "13": 5.0094, "14": 5.024, "15": 5.0079}
    base = known.cells[0].model_copy(update={"shape": known.baseline, "chance": 6.93, "values": losses})
    guesses = [Guess(name="frequencies", value=6.92), Guess(name="bigram", value=4.81)]
    evidence = known.model_copy(update={"higher_is_better": False, "cells": [base], "guesses": guesses})
    assert scoring.outliers(base, evidence) == []
    losses["14"] = 6.95  # as bad as frequencies, which the others beat
    assert scoring.outliers(base, evidence) == ["14"]
    losses.update(dict.fromkeys(("11", "12", "13", "15"), 7.1))
    losses["14"] = 7.5
    assert scoring.outliers(base, evidence) == []  # none has learned anything
    evidence.guesses = None
    losses.update(dict.fromkeys(("11", "12", "13", "15"), 5.0))
    assert scoring.outliers(base, evidence) == ["14"]  # against the guess that reads nothing


@dataclass
class Half:
    name: str = "x"


def test_a_template_with_a_missing_field_makes_no_card():
    with pytest.raises(UndefinedError, match="'metadata' is undefined"):
        rendering.fill_card("model_card.md", Half())


@pytest.fixture
def run_folder(tmp_path):
    """A published folder's configuration and results."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "results.json"):
        shutil.copyfile(CARDS / "leanvit-mini-cifar10" / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "files, message",
    [
        ([], "nothing: the folder is empty, expected config.json and results.json of a finished run"),
        (["config.json"], "nothing/results.json: missing; leaner train writes it at the end of a run"),
        (["results.json"], "nothing/config.json: missing; leaner train writes it"),
        (None, "nothing: no such folder"),
    ],
)
def test_a_folder_without_a_run_is_named(files, message, tmp_path):
    folder = tmp_path / "nothing"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).write_text("{}")
    with pytest.raises(SystemExit, match=message):
        leaner("card", folder)


@pytest.mark.parametrize("name", ["config.json", "results.json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file: "),
        ("[]", "expected a JSON object, got list"),
    ],
)
def test_what_is_no_json_object_is_named(name, text, message, run_folder):
    (run_folder / name).write_text(text)
    with pytest.raises(SystemExit) as refused:
        leaner("card", run_folder)
    assert str(refused.value).startswith(f"leaner card: {run_folder / name}: {message}")


def test_another_family_is_named(run_folder):
    document = json.loads((run_folder / "config.json").read_text())
    (run_folder / "config.json").write_text(json.dumps({**document, "model_type": "gpt2"}))
    with pytest.raises(SystemExit) as refused:
        leaner("card", run_folder)
    expected = "model_type is 'gpt2', expected one of lean_vit, lean_bert, lean_gpt"
    assert str(refused.value) == f"leaner card: {run_folder / 'config.json'}: {expected}"


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


def test_the_error_by_the_choice_of_rows():
    """Of hits as the paired test has it; of a loss per token as resampling the rows finds it."""
    rng = np.random.default_rng(0)
    own, base = (np.stack([rng.integers(2, size=400), np.ones(400)], axis=1).astype(float) for _ in range(2))
    difference, error = row_errors.paired_error(own, base)
    hits = own[:, 0] - base[:, 0]
    assert (difference, error) == pytest.approx((hits.mean(), stats.sem(hits)))
    tokens = rng.integers(5, 60, size=400).astype(float)
    own, base = (np.stack([tokens * rng.normal(loss, 1, size=400), tokens], axis=1) for loss in (6, 3))
    difference, error = row_errors.paired_error(own, base)
    drawn = [rng.integers(400, size=400) for _ in range(2000)]
    again = [(own[rows, 0].sum() - base[rows, 0].sum()) / tokens[rows].sum() for rows in drawn]
    assert difference == pytest.approx((own[:, 0].sum() - base[:, 0].sum()) / tokens.sum())
    assert error == pytest.approx(np.std(again), rel=0.1)


def test_cards_give_the_error_of_rows_beside_that_of_seeds():
    """On SST-2 the choice of rows moves a difference more than the seed does."""
    evidence = RESULTS["leanbert-shallow-mini-sst2"].evidence
    (each,) = (each for each in evidence.row_errors if each.shape == "bert/shallow-mini")
    values = {cell.shape: cell.values for cell in evidence.cells}
    own, base = values["bert/shallow-mini"], values["bert/mini"]
    assert each.difference == pytest.approx(own["11"] - base["11"])  # the published seed's
    spread = np.std([own[seed] - base[seed] for seed in base], ddof=1)
    assert each.error > spread
    text = (CARDS / "leanbert-shallow-mini-sst2" / "README.md").read_text()
    assert f"| 4 × 3 | {each.difference:+.3f} | {each.error:.3f} | {spread:.3f} |" in text
    assert "conditional on the same held-out rows" in text
