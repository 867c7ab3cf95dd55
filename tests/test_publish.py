"""From a finished grid to a published folder, its card, its verification, and the index; each with what must fail."""

import contextlib
import csv
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from command import leaner
from datasets import Dataset
from huggingface_hub import ModelCard
from matplotlib.axes import Axes
from modeling_leaner.training.data import builtin as data
from modeling_leaner.training.data import sources
from modeling_leaner.training.experiments import evidence, latency, run_statistics, runs, simple_guesses, summary
from modeling_leaner.training.experiments.grid import GridError, load_grid
from modeling_leaner.training.experiments.grid_results import GridResults, load_results
from modeling_leaner.training.experiments.guess_files import GUESSES, read_guesses
from modeling_leaner.training.experiments.rows import Run, read_rows
from modeling_leaner.training.publishing import (
    cards,
    evidence_figure,
    index,
    publish,
    stranger,
    tables,
    verify,
    verify_grid,
    verify_weights,
)
from modeling_leaner.training.publishing.wording import (
    amounts,
    comparison,
    limits,
    provenance,
    samples,
    scoring,
)
from modeling_leaner.training.records import (
    Cell,
    Continuation,
    Environment,
    Evidence,
    Guess,
    PublishedResults,
    ResultRow,
    Train,
    TuningSettings,
)
from modeling_leaner.training.running import loading, metadata, reevaluate
from modeling_leaner.training.running.finished_folder import results_in
from modeling_leaner.training.settings import recipes
from safetensors.torch import load_file, save_file
from scipy import stats
from training_data import write_shape
from workshop import GRID, small_listops, train_grid

from modeling_leaner.shapes import load_config
from modeling_leaner.support.files import sha256
from modeling_leaner.transfer import contents


WORDS = "--max_steps 6 --max_train_rows 96 --max_eval_rows 64 --per_device_train_batch_size 8 --logging_steps 2"

GRID_FOLDER = "model_cards/grids/tiny"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, warm_stranger):
    """A grid of two small shapes, run and published."""
    place, patch = small_listops(tmp_path_factory)
    for name, layers in (("deep", 2), ("shallow", 1)):
        (place / name).mkdir()
        write_shape("bert", place / name, num_hidden_layers=layers, max_position_embeddings=128)
    shapes = ["deep/bert.json", "shallow/bert.json"]
    grid = {**GRID, "shapes": shapes, "baseline": shapes[0], "output_dir": GRID_FOLDER}
    grid["publish"] = {shapes[0]: "leanbert-deep", shapes[1]: "leanbert-shallow"}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    train_grid("grid.yaml")
    leaner("bench", "grid.yaml", "--rounds", 3)
    leaner("publish", "grid.yaml", "--license", "mit")
    leaner("card")
    yield place
    patch.undo()


@pytest.fixture
def folder(workshop, tmp_path):
    """A copy of a published folder, to be damaged."""
    copy = tmp_path / "leanbert-shallow"
    shutil.copytree(workshop / "model_cards" / "leanbert-shallow", copy)
    return copy


def gathered(path):
    """The evidence of the grid in a file."""
    return evidence.gather(load_results(load_grid(path)))


def change(folder, **values):
    path = folder / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=1, ensure_ascii=False) + "\n")


def test_a_published_folder_holds_what_is_pushed(workshop):
    for name in ("leanbert-deep", "leanbert-shallow"):
        files = {path.name for path in (workshop / "model_cards" / name).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "results.json", "README.md"} <= files
        assert {"evidence.png", "modeling_lean_bert.py", "layers_leaner.py", "recipe.yaml", "training.png"} <= files
        config = json.loads((workshop / "model_cards" / name / "config.json").read_text())
        assert "AutoModel" in config["auto_map"] and "AutoModelForMaskedLM" in config["auto_map"]
        for path in (workshop / "model_cards" / name).rglob("*.yaml"):
            assert str(workshop) not in path.read_text()


def test_the_card_shows_the_grid(workshop):
    found = gathered(Path("grid.yaml"))
    text = (workshop / "model_cards/leanbert-shallow/README.md").read_text()
    model_card = ModelCard(text)
    assert model_card.data.model_name == "leanbert-shallow" and model_card.data.license == "mit"
    assert "- **Licence:** MIT for the weights, Apache-2.0 for the code; the terms of the data are" in text
    with Path("model_cards/grids/tiny/results.csv").open() as file:
        rows = list(csv.DictReader(file))
    for cell in found.cells:
        values = [float(row["value"]) for row in rows if row["shape"] == cell.shape]
        assert list(cell.values.values()) == values
        assert f"{stats.tmean(values):.4f} ± {stats.tstd(values):.4f} (2)" in text
        kappas = [float(row["kappa_end"]) for row in rows if row["shape"] == cell.shape]
        assert cell.kappa_end == pytest.approx(stats.gmean(kappas)) and f"→ {cell.kappa_end:.3g}" in text
        assert cell.latency.one.seconds > 0 and f"{cell.parameters:,}" in text
        assert cell.milliseconds == pytest.approx(1e3 * cell.latency.one.seconds)
        assert cell.model_copy(update={"latency": None}).milliseconds is None
    assert found.cells[1].parameters_over_baseline < 1
    guesses = ("majority class", "length only", "first token only", "bag of tokens")
    results = json.loads((workshop / "model_cards/leanbert-shallow/results.json").read_text())
    ended, held_out = results["train"]["loss"], results["metrics"]["eval_loss"]
    ended = amounts.number(ended, ".4f")  # a run this short may not have logged any
    losses = f"384 texts, 6 epochs (6 steps). Loss at the end: {ended} over the last training steps, "
    flops = load_config("shallow/bert.json").count_flops(128, "ForSequenceClassification").forward
    assert f"| FLOPs of a forward pass (its tokens) | {found.cells[0].flops_forward / 1e6:,.1f}M (128) |" in text
    assert found.cells[1].flops_forward == pytest.approx(flops, rel=1e-3) and " (1) | **" in text
    assert "not timed" not in text and "Inference was measured in turns" in text
    for said in (*guesses, "has not been trained this", "What was not tested", f"{losses}{held_out:.4f} held out."):
        assert said in text
    assert "; no verdict: the baseline is not clearly better than the best simple guess." in text
    assert text.count("No verdict on quality:") == 1
    assert text.count("o loss of quality") == 1  # what it would need
    assert (workshop / "model_cards/README.md").read_text() == index.render(Path("model_cards"))
    assert "[leanbert-deep](leanbert-deep)" in index.render(Path("model_cards"))


def test_a_second_time_changes_nothing_but_the_evidence(workshop):
    """The weights that are there stay; a folder that is another's, or whose weights were swapped, is refused."""
    target = workshop / "model_cards/leanbert-deep"
    before = {path.name: path.read_bytes() for path in target.iterdir() if path.suffix != ".png" and path.is_file()}
    loaded = load_grid(Path("grid.yaml"))
    publish.renew(load_results(loaded), loaded.baseline)
    after = {path.name: path.read_bytes() for path in target.iterdir() if path.suffix != ".png" and path.is_file()}
    assert {name for name in before if before[name] != after[name]} == set() and before.keys() == after.keys()
    assert not list((workshop / "model_cards").glob(".publish-*"))
    with pytest.raises(ValueError, match="leanbert-deep: there already, of deep/bert.json in the grid tiny"):
        publish.read_target(target, loaded, "shallow/bert.json")
    with pytest.raises(ValueError, match="grids: there already, and not published by this command"):
        publish.read_target(workshop / "model_cards/grids", loaded, loaded.baseline)
    weights = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(weights[:-4] + bytes(4))
    try:
        with pytest.raises(ValueError, match="weights_sha256 of its results.json differs"):
            publish.renew(load_results(loaded), loaded.baseline)
    finally:
        (target / "model.safetensors").write_bytes(weights)


def test_without_a_grid_every_folder_is_renewed(workshop, tmp_path, capsys):
    target = workshop / "model_cards/leanbert-deep"
    saved = workshop / "model_cards/grids/tiny/grid.yaml"
    held = saved.read_text()
    saved.write_text(held.replace("leanbert-deep", "another"))
    with pytest.raises(SystemExit, match="leanbert-deep: model_cards/grids/tiny/grid.yaml does not have it under"):
        leaner("publish")
    saved.write_text(held)
    before = (target / "results.json").read_text()
    results = json.loads(before)
    change(target, evidence={**results["evidence"], "margin": 0.5})
    assert (target / "results.json").read_text() != before
    leaner("publish")
    assert (target / "results.json").read_text() == before
    assert "leanbert-deep\nmodel_cards/leanbert-shallow\n" in capsys.readouterr().out
    (target / "results.json").rename(tmp_path / "results.json")
    try:
        for command in ("publish", "card"):
            with pytest.raises(SystemExit, match="leanbert-deep/results.json"):
                leaner(command)
    finally:
        (tmp_path / "results.json").rename(target / "results.json")
    with pytest.raises(SystemExit, match="^2$"):
        leaner("publish", "--replace")
    assert "--replace and --license: expected with the grid file whose runs are meant" in capsys.readouterr().err


def test_a_card_of_another_project_names_the_files_of_that_project(workshop):
    """Those of this project are found by the grid's name, in a clone of it."""
    folder = workshop / "model_cards/leanbert-deep"
    results = results_in(folder / "results.json")
    text = (folder / "README.md").read_text()
    assert f"In the project that published it, with {metadata.project_link()} installed, " in text
    named = set(re.findall(r"(?:^|[ `])([\w.-]+/[\w./-]+)", text.partition("## How to get the numbers again")[2]))
    paths = {name for name in named if not name.startswith(("https:", "listops"))}
    assert paths >= {"model_cards/leanbert-deep", f"{GRID_FOLDER}/grid.yaml", f"{GRID_FOLDER}/results.csv"}
    assert {path for path in paths if not Path(path).exists()} == {f"{GRID_FOLDER}-again"}
    assert "training/" not in text and "this project" not in text and "the project's log" not in text
    own = results.model_copy(update={"grid_folder": None})
    commands = provenance.commands(own, "leaner train")
    assert "leaner sweep training/grids/tiny.yaml --output_dir runs/tiny " in commands
    assert provenance.place(own) == f"In a clone of {metadata.project_link()}"
    assert "commits of this project: " in provenance.hardware(own)


def test_the_link_to_the_code_is_this_project_s_whoever_pushes(folder, monkeypatch):
    """None as long as the project states no address; never one under the name of the account that it is pushed to."""

    def sent():
        cards.write_card(folder)
        return contents(folder, "someone/small")["README.md"].decode()

    monkeypatch.setattr(metadata, "PROJECT_URL", None)
    assert "github.com" not in sent()
    monkeypatch.setattr(metadata, "PROJECT_URL", "https://example.org/the/project")
    text = sent()
    assert text.count("[modeling_leaner](https://example.org/the/project)") == 2
    assert "  author = {{The modeling_leaner authors}},\n  url = {https://example.org/the/project}\n}" in text
    assert "someone/modeling_leaner" not in text


def test_a_grid_of_this_project_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, other = (SimpleNamespace(output_dir=folder) for folder in ("model_cards/grids/tiny", "runs/sweeps/tiny"))
    assert publish.grid_folder(own) == "model_cards/grids/tiny"
    Path("setup.cfg").write_text("[metadata]\nname = modeling_leaner\n")
    assert publish.grid_folder(own) is None and publish.grid_folder(other) == "runs/sweeps/tiny"
    for place, named in ((f"{tmp_path}/runs/a/../tiny", "runs/tiny"), ("model_cards/grids/../grids/tiny", None)):
        assert publish.grid_folder(SimpleNamespace(output_dir=place)) == named
    for place in ("../tiny", str(tmp_path.parent)):  # nobody else has it
        with pytest.raises(ValueError, match=f"^output_dir: {place}: expected a folder in {tmp_path}, for the card"):
            publish.grid_folder(SimpleNamespace(output_dir=place))


def test_the_licence_is_that_of_the_owner_of_the_weights(workshop):
    """As given; left out, what the folder says; none where none was given. What the Hub does not know is refused."""
    target = workshop / "model_cards/leanbert-deep"
    before = {path: path.read_bytes() for path in target.iterdir() if path.is_file()}

    def stated(*words):
        leaner("publish", "grid.yaml", *words)
        text = (target / "README.md").read_text()
        return ModelCard(text).data.license, re.search(r"\*\*Licence:\*\* (.*?);", text)[1]

    assert stated() == stated("--replace") == ("mit", "MIT for the weights, Apache-2.0 for the code")
    assert stated("--license", "cc-by-4.0") == ("cc-by-4.0", "cc-by-4.0 for the weights, Apache-2.0 for the code")
    assert stated("--license", "apache-2.0") == ("apache-2.0", "Apache-2.0 for weights and code")
    shutil.rmtree(target)
    assert stated() == (None, "none was given for the weights, Apache-2.0 for the code")
    verify.verify(target, {}, short=True)
    stated("--license", "mit")
    assert before.keys() == {path for path in target.iterdir() if path.is_file()}
    for path, content in before.items():
        assert path.suffix == ".png" or path.read_bytes() == content
    wrong = r"license 'Apache 2.0': expected an identifier of .*, such as apache-2.0; did you mean apache-2.0\?"
    with pytest.raises(SystemExit, match=f"^leaner publish: {wrong}$"):
        leaner("publish", "grid.yaml", "--license", "Apache 2.0")


def test_a_licence_in_the_results_is_one_that_the_hub_knows(folder):
    change(folder, license="MIT")
    with pytest.raises(SystemExit, match="results.json: license 'MIT': expected .*; did you mean mit"):
        leaner("card", folder)


def test_what_no_run_depends_on_is_taken_from_the_grid_as_it_is_now(workshop):
    """So that a verification, which reads the grid beside the rows, finds what the card says."""
    folder, saved = workshop / "model_cards/leanbert-deep", workshop / "model_cards/grids/tiny/grid.yaml"
    before, loaded = saved.read_bytes(), load_grid(Path("grid.yaml"))
    try:
        publish.renew(load_results(dataclasses.replace(loaded, data="trees of another wood")), loaded.baseline)
        said = results_in(folder / "results.json").evidence
        assert said.data == "trees of another wood" and "another wood" in (folder / "README.md").read_text()
        verify_grid.check_evidence(folder, said)
        with contextlib.chdir("/"):
            verify_grid.check_evidence(folder, said)
            verify_grid.check_run(folder, results_in(folder / "results.json"))
        for change in ({"start_seed": 2, "start_from": "x"}, {"margin": 0.5}, {"overrides": None}):
            with pytest.raises(GridError, match=f"{[*change][-1]}: expected"):
                publish.renew(load_results(dataclasses.replace(loaded, **change)), loaded.baseline)
        kept = saved.read_bytes()
        for change, message in (
            ({"beside": "model_cards/grids/nope"}, "no YAML file"),
            ({"length": 100_000}, "length: expected at most the 128 positions of deep/bert.json, got 100000"),
        ):
            with pytest.raises(GridError, match=message):
                publish.renew(load_results(dataclasses.replace(loaded, **change)), loaded.baseline)
            assert saved.read_bytes() == kept
        config = (folder / "config.json").read_bytes()
        (folder / "config.json").write_bytes(config.replace(b'"hidden_size": ', b'"hidden_size": "x", "other": '))
        with pytest.raises(ValueError, match="model_cards/leanbert-deep/config.json: hidden_size is 'x'"):
            publish.renew(load_results(dataclasses.replace(loaded, data="twigs")), loaded.baseline)
        (folder / "config.json").write_bytes(config)
        assert saved.read_bytes() == kept
    finally:
        saved.write_bytes(before)
        publish.renew(load_results(load_grid(saved)), loaded.baseline)


@pytest.mark.parametrize(
    "place, value",
    [
        ("cells.0.values.2", 0.9),
        ("guesses.1.value", 0.99),
        ("cells.1.mean", 0.99),
        ("cells.1.interval.0", 0.4),
        ("cells.1.n", 7),
        ("cells.1.kappa_end", 1.5),
        ("cells.0.heads", 48),
        ("cells.0.latency.1.seconds", 1e-9),
        ("margin", 0.5),
        ("runs", 70),
        ("reference", {"learning_rate": 1e-3, "n": 2, "mean": 0.9}),
        ("data", "all of Wikipedia"),
        ("grid", "small"),
    ],
)
def test_invented_evidence_is_found(workshop, place, value):
    folder = workshop / "model_cards/leanbert-shallow"
    found = json.loads((folder / "results.json").read_text())["evidence"]
    verify_grid.check_evidence(folder, Evidence(**found))
    *way, last = [int(key) if key.isdigit() and at < 2 else key for at, key in enumerate(place.split("."))]
    inner = found
    for key in way:
        inner = inner[key]
    inner[int(last) if isinstance(inner, list) else last] = value
    with pytest.raises(ValueError, match=rf"results.json: evidence.{place} is "):
        verify_grid.check_evidence(folder, Evidence(**found))


@pytest.mark.parametrize(
    "name, value",
    [
        ("name", "leanbert-shallow"),
        ("partners", ["gpt-5"]),
        ("learning_rate", 0.5),
        ("train.steps", 5),
        ("rows", 7),
        ("data_sha256", "0" * 64),
        ("recipe.learning_rate", 0.5),
        ("recipe.max_train_rows", 7),
    ],
)
def test_what_a_folder_says_of_its_run_is_compared(workshop, name, value):
    folder = workshop / "model_cards/leanbert-deep"
    results = json.loads((folder / "results.json").read_text())
    verify_grid.check_run(folder, PublishedResults(**results))
    outer, _, key = name.rpartition(".")
    (results[outer] if outer else results)[key] = value
    with pytest.raises(ValueError, match=f"results.json: {name} is .*, expected .*, as of its grid and its row there"):
        verify_grid.check_run(folder, PublishedResults(**results))


def test_a_seed_that_was_left_out_is_found(workshop):
    folder = workshop / "model_cards/leanbert-shallow"
    found = results_in(folder / "results.json").evidence
    del found.cells[0].values["2"]
    with pytest.raises(ValueError, match="evidence.cells.0.values.2 is None"):
        verify_grid.check_evidence(folder, found)


@pytest.mark.full
def test_without_grids_the_cells_are_said_not_to_be_compared(folder):
    assert verify.verify(folder, {}, short=True).endswith("other cells not compared, no grids/tiny beside it")


@pytest.mark.parametrize("name", ["evil.py", "pytorch_model.bin", "notes.txt"])
def test_files_that_are_not_published_are_found(folder, name):
    (folder / name).write_text("")
    with pytest.raises(ValueError, match=f"{name}: not a file of a published folder"):
        verify.verify(folder, {})


def test_missing_files_and_another_recipe_are_found(folder):
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace("learning_rate: 0.001", "learning_rate: 0.9"))
    with pytest.raises(ValueError, match="recipe.yaml: not the recipe of"):
        verify.verify(folder, {})
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "training.png").unlink()
    with pytest.raises(ValueError, match="training.png: missing"):
        verify.verify(folder, {})


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt("disk full")], ids=["full", "Ctrl-C"])
def test_a_failed_move_leaves_what_was_there(error, tmp_path, monkeypatch):
    target, scratch = tmp_path / "target", tmp_path / "scratch"
    for path in (target, scratch / "new"):
        path.mkdir(parents=True)
        (path / "file").write_text(path.name)
    rename = Path.rename

    def fails(path, place):
        if path.name == "new":
            raise error
        return rename(path, place)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(type(error), match="disk full"):
        publish.move_into_place(scratch / "new", target, scratch)
    assert (target / "file").read_text() == "target"
    monkeypatch.setattr(Path, "rename", rename)
    publish.move_into_place(scratch / "new", target, scratch)
    assert (target / "file").read_text() == "new"


def test_the_cells_of_another_grid(workshop):
    """A pair's card may show a grid that says more; its numbers are checked too."""
    grid = dataclasses.replace(load_grid(Path("grid.yaml")), beside="model_cards/grids/tiny")
    with pytest.raises(ValueError, match="beside: goes in a circle: tiny → tiny"):
        evidence.gather(load_results(grid))
    shutil.copytree("model_cards/grids/tiny", "other", ignore=shutil.ignore_patterns("runs"))
    folder = workshop / "model_cards/leanbert-shallow"
    found = evidence.gather(load_results(dataclasses.replace(grid, output_dir="other")))
    (said,) = cards.beside(found)
    assert said.summary == "the grid <code>tiny</code>" and said.about.startswith("Recipe `listops-short` with")
    assert said.table == tables.comparison(found.beside, "") and said.claims == comparison.claims(found.beside)
    assert "compared within one table alone" in said.about and "Another recipe" not in said.about
    (other,) = cards.beside(found.model_copy(update={"recipe": "listops"}))
    assert "Another recipe: compare its numbers with each other" in other.about
    assert len(cards.beside(found.model_copy(update={"beside": found}))) == 2
    shutil.copytree("other", "model_cards/grids/other")
    text = Path("model_cards/grids/other/grid.yaml").read_text()
    text = text.replace("beside: null\n", "beside: model_cards/grids/tiny\n")
    Path("model_cards/grids/other/grid.yaml").write_text(text.replace("grids/tiny\n", "grids/other\n", 1))
    try:
        verify_grid.check_evidence(folder, found)
        found.beside.cells[0].values["2"] += 0.25
        with pytest.raises(ValueError, match="evidence.beside.cells.0.values.2 is"):
            verify_grid.check_evidence(folder, found)
    finally:
        shutil.rmtree("model_cards/grids/other")


def test_what_was_fine_tuned_from_a_grid(workshop):
    """A grid that starts from another stands on the other's card, a shape that it left out as not run; checked too."""
    here, later = (workshop / "model_cards/grids" / name for name in ("tiny", "tiny-later"))
    later.mkdir()
    try:
        grid = yaml.safe_load((here / "grid.yaml").read_text())
        grid |= {"output_dir": "model_cards/grids/tiny-later", "start_from": grid["output_dir"], "publish": None}
        (later / "grid.yaml").write_text(yaml.safe_dump({**grid, "shapes": grid["shapes"][:1]}))
        lines = (here / "results.csv").read_text().splitlines()
        (later / "results.csv").write_text("\n".join(line for line in lines if "shallow" not in line) + "\n")
        found, folder = gathered(here / "grid.yaml"), workshop / "model_cards/leanbert-shallow"
        (each,) = found.fine_tuned
        (cell,) = each.cells
        assert each.grid == "tiny-later" and not each.published and cell.values == found.cells[0].values
        score = amounts.score(found.cells[0], ".4f")
        assert each.guess == cell.chance  # no guesses.json there
        guess = f"{cell.chance:.4f}" + (", not learned" if each.learned is False else "")
        line = f"| `tiny-later`, accuracy (higher is better) | its own | {score} | not run | {guess} |"
        assert line in tables.fine_tuned(found)
        for learned in (True, False, None):
            each.learned = learned
            assert (", not learned |" in tables.fine_tuned(found)) == (learned is False)
        each.learned = gathered(here / "grid.yaml").fine_tuned[0].learned
        verify_grid.check_evidence(folder, found)
        cell.values["2"] += 0.25
        with pytest.raises(ValueError, match="evidence.fine_tuned.0.cells.0.values.2 is"):
            verify_grid.check_evidence(folder, found)
    finally:
        shutil.rmtree(later)
    assert tables.fine_tuned(gathered(here / "grid.yaml")) is None


def test_the_reference_beside(workshop):
    """A grid of transformers' own model, tuned and trained alike, is named on the card and in the index."""
    here = workshop / "model_cards/grids/tiny"
    beside = workshop / "model_cards/grids/tiny-transformers"
    beside.mkdir()
    try:
        grid = yaml.safe_load((here / "grid.yaml").read_text())
        grid |= {"output_dir": "model_cards/grids/tiny-transformers", "shapes": grid["shapes"][:1], "publish": None}
        grid["overrides"] = {**grid["overrides"], "implementation": "transformers"}
        (beside / "grid.yaml").write_text(yaml.safe_dump(grid))
        lines = (here / "results.csv").read_text().splitlines()
        kept = [line for line in lines if "shallow" not in line]
        (beside / "results.csv").write_text("\n".join(kept) + "\n")
        found = gathered(here / "grid.yaml")
        assert found.reference.mean == found.cells[0].mean and found.reference.n == 2
        assert "transformers' own model of the baseline's shape, tuned and trained alike" in comparison.notes_on(found)
        assert "transformers' own" not in comparison.notes_on(gathered(beside / "grid.yaml"))
        for key, value in (("overrides", {**grid["overrides"], "max_steps": 9}), ("recipe", "listops")):
            (beside / "grid.yaml").write_text(yaml.safe_dump({**grid, key: value}))
            with pytest.raises(ValueError, match=f"tiny-transformers/grid.yaml: {key}: expected .* got"):
                gathered(here / "grid.yaml")
    finally:
        shutil.rmtree(beside)


def test_words_of_one_seed_without_tuning_and_margin(workshop):
    found = gathered(Path("grid.yaml"))
    for cell in found.cells:
        cell.n, cell.difference, cell.verdict = 1, 0.01, "undecided"
        cell.sd = cell.interval = cell.p = cell.p_non_inferiority = None
    found.seeds, found.margin, found.tuning, found.planned = [1], None, None, 2
    said, base = comparison.claims(found), found.cells[0]
    assert "0.0100 better than the baseline (accuracy " in said
    assert f" against {base.mean:.4f}), one pair of" in said
    assert "one pair of runs, which may be chance; no verdict on quality below 7 seeds" in said
    assert "interval" not in said
    results = PublishedResults.model_construct(task="causal-lm", continuations=None)
    rest = "\n".join(limits.untested(found, results))
    quoted = "\n".join(limits.untested(found, results.model_copy(update={"continuations": "some"})))
    assert "by heart" in rest and "by heart" not in quoted
    assert "was not tuned" in rest and "against a margin fixed" in rest and "–" not in rest.split("Seeds a cell")[1]
    many = limits.seeds_limit(found.model_copy(update={"seeds": list(range(7)), "margin": 0.02}), has_log=True)
    assert "would need 7 or more" in rest and "would need" not in many
    assert "Seeds a cell: 1 to 7. “No loss of quality” needs p < 0.01 against a margin of 0.02 fixed" in many
    assert many.endswith("not this card; whether seeds were added after others had been seen is in the project's log.")
    without = limits.seeds_limit(found.model_copy(update={"seeds": list(range(7))}), has_log=False)
    assert without.endswith("of all grids decides it, not this card.")
    under_way = found.model_copy(update={"seeds": [1, 2], "planned": 4})
    assert "Seeds a cell: 2 planned, 1 or more finished. " in limits.seeds_limit(under_way, has_log=True)
    assert "with up to 2 seeds, not all of which have finished." in comparison.comparison_intro(under_way)
    found.tuning = TuningSettings(seed=0, holdout=200, overrides={"max_steps": 3})
    assert "in runs of max_steps 3, which may favour what learns quickly" in limits.chosen(found, "rows")
    found.cells[1].notes = ["the best learning rate is at the edge of the grid"]
    assert "Note: the best learning rate is at the edge of the grid." in comparison.claims(found)
    found.cells[0].notes = found.cells[1].notes
    found.cells[1].verdict = run_statistics.NO_VERDICT
    assert "; no verdict: the baseline" in comparison.claims(found) and "undecided" not in comparison.claims(found)
    found.cells[1].verdict, found.cells[1].pairs, found.cells[1].interval = "undecided", 7, [-0.1, 0.2]
    assert "includes 0; undecided, without the margin that a verdict needs" in comparison.claims(found)
    assert "over all seeds of each" not in comparison.claims(found)
    found.cells[1].n = 8
    assert "over all seeds of each, the difference over the 7 of both), over 7 seeds" in comparison.claims(found)


def test_words_of_where_the_weights_start():
    found = Evidence.model_construct(recipe="cola", overrides={"max_steps": 3, "eval_strategy": "no"})
    assert provenance.how_trained(found) == "Recipe `cola` with max_steps 3, eval_strategy no."
    found = Evidence.model_construct(recipe="cola", start_from="masked")
    assert provenance.how_trained(found) == "Recipe `cola`; from the weights of `masked`."
    found.start_seed = 1
    assert provenance.how_trained(found) == "Recipe `cola`; from the weights of seed 1 of `masked`."


@pytest.mark.parametrize("dataset, hub", [("nyu-mll/glue", True), ("articles/enwik8", False), ("listops", False)])
def test_commands_name_a_local_copy_where_the_hub_has_none(dataset, hub):
    evidence = Evidence.model_construct(grid="g", hub=hub)
    results = PublishedResults.model_construct(name="lean", dataset=dataset, recipe={}, evidence=evidence)
    lines = provenance.commands(results, "leaner train recipe.yaml").splitlines()
    local = dataset == "articles/enwik8"
    assert (" --data_files enwik8=FOLDER" in lines[0]) == local and ("generated" in lines[0]) == ("/" not in dataset)
    assert [" --data_files FOLDER" in line for line in lines[1:]] == [local] * 3
    evidence.data_files, evidence.start_from = "train=FOLDER/a validation=FOLDER/b", "masked"
    lines = provenance.commands(results, "leaner train recipe.yaml").splitlines()
    assert [" --data_files train=FOLDER/a validation=FOLDER/b" in line for line in lines[1:]] == [False, local, local]
    assert lines[-1].endswith("   # every cell, trained anew; names the runs of masked that it needs")


def test_words_of_inputs_rows_and_attempts():
    config, recipe = SimpleNamespace(max_position_embeddings=512), SimpleNamespace(recipe={"max_length": 64})
    untrained = "at 64 tokens. Positions beyond the longest training row were never trained (512 exist)"
    assert untrained in provenance.limits_of_inputs(config, recipe)
    config.max_position_embeddings = 64
    assert provenance.limits_of_inputs(config, recipe) == " Its training cut inputs at 64 tokens."
    assert provenance.limits_of_inputs(SimpleNamespace(), recipe) == ""
    assert [amounts.duration(hours) for hours in (2.3, 1.0, 0.5)] == ["2.3 hours", "1.0 hours", "30 minutes"]
    assert amounts.duration(0.01) == "1 minute"
    tasks = ("causal-lm", "masked-lm", "image-classification")
    named = {task: provenance.rows_of(SimpleNamespace(task=task)) for task in tasks}
    assert list(named.values()) == ["documents", "documents", "rows"]
    found = {"software": {"torch": ["2"]}, "commits": ["abc"], "failures": 2, "runs": 9, "failed": 1, "hours": 1.0}
    results = PublishedResults.model_construct(
        evidence=Evidence.model_construct(**found, processor=["x"], grid="g"),
        train=Train.model_construct(seconds=1.0, steps=2),
        environment=Environment.model_construct(device="cpu", processor="x", threads=1),
    )
    assert "1 of them failed, 2 further attempts failed and were repeated" in " ".join(
        provenance.hardware(results).split()
    )
    results.evidence.failures = 0
    assert "attempts" not in provenance.hardware(results)
    assert "This run: 1 s for 2 steps, x, 1 thread." in provenance.hardware(results)
    results.environment.device = "NVIDIA H200"
    assert "This run: 1 s for 2 steps, NVIDIA H200." in provenance.hardware(results)
    rows = [SimpleNamespace(device=device, processor="x", threads=1) for device in ("cpu", None, "NVIDIA H200")]
    assert list(map(evidence._machine, rows)) == ["x, 1 thread a run", "x, 1 thread a run", "NVIDIA H200"]


def test_the_kinds_of_cells():
    base = {"shape": "base", "layers": 8, "heads": 3, "width": 96, "mlp": 384}
    cells = [base, {**base, "heads": 6}, {**base, "layers": 4}, {**base, "layers": 4, "heads": 6}]
    cells += [{**base, "width": 64, "heads": 6}, {**base, "heads": 1}, {**base, "layers": 12}]
    cells += [{**base, "heads": 12}, {**base, "layers": 4, "heads": 12}]  # not twice as many
    found = Evidence.model_construct(baseline="base", cells=[Cell.model_construct(**base)])
    said = [evidence.kind(Cell.model_construct(**cell), found) for cell in cells]
    assert said == ["baseline", "more heads", "fewer layers", "both", None, None, None, None, None]
    unequal = Cell.model_construct(**{**cells[0], "heads": [12, 5, 4, 3]})
    assert unequal.heads_text == "12/5/4/3" and evidence.kind(unequal, found) is None


def test_times_of_another_length_are_not_shown(workshop, tmp_path):
    grid = load_grid(Path("grid.yaml"))
    held = latency.read(grid)
    assert held.shapes and latency.read(dataclasses.replace(grid, length=held.length - 1)) is None
    grid = dataclasses.replace(grid, output_dir=str(tmp_path))
    assert latency.read(grid) is None
    held = held.document()
    (tmp_path / latency.FILE).write_text(json.dumps({**held, "shapes": {}}))
    assert latency.read(grid) is None
    for wrong in ([], {**held, "environment": "x"}, {**held, "environment": {"a": 1}}, {**held, "shapes": "x"}):
        (tmp_path / latency.FILE).write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=f"{latency.FILE}: .*expected (dict|str).*; leaner bench writes it"):
            latency.read(grid)


@pytest.mark.parametrize("wrong", ["{", "{}", "[]", "[1]", '[{"name": "a"}]', '[{"name": "a", "value": "x"}]'])
def test_guesses_of_another_form(tmp_path, wrong):
    grid = load_grid(Path(__file__).parent.parent / "training/grids/wnli.yaml")
    grid = dataclasses.replace(grid, output_dir=str(tmp_path))
    assert read_guesses(grid) is None
    (tmp_path / GUESSES).write_text(wrong)
    with pytest.raises(ValueError, match=f"{GUESSES}: expected a list of name and value"):
        read_guesses(grid)


def test_what_a_model_writes_is_printable():
    text = Continuation(prompt="One", continuation=" day\r\n\x0bit\trained\x1b[31m.\n\nThe end")
    assert samples.quoted(text) == "> **One** day�\n> �it�rained�[31m.\n> \n> The end"


def test_the_card_of_local_files(workshop):
    """Its commands say where the files go, and nobody has said that they are English."""
    results = results_in(workshop / "model_cards/leanbert-deep/results.json")
    local = results.model_copy(update={"dataset": "local files", "dataset_config": None})
    lines = provenance.commands(local, "leaner train").splitlines()
    assert lines[0].startswith("leaner verify model_cards/leanbert-deep --data_files 'local files'=FOLDER ")
    assert all("--data_files FOLDER" in line for line in lines[1:]) and "generated" not in lines[0]
    assert metadata.is_english("causal-lm", "wikitext") and not metadata.is_english("causal-lm", "local files")


def test_tolerances_follow_the_rows(folder):
    """And are those of results.json: one that somebody widened is refused."""
    metrics = {"eval_accuracy": 0.7, "eval_loss": 0.5, "eval_perplexity": 50}
    few, many = verify_weights.tolerances(metrics, 200), verify_weights.tolerances(metrics, 10_000)
    assert (few["eval_accuracy"], many["eval_accuracy"]) == (pytest.approx(0.015), pytest.approx(0.002))
    assert few["eval_loss"] == 1e-3 and few["eval_perplexity"] == 0.05
    with pytest.raises(ValueError, match="metrics.eval_loss is missing"):
        verify_weights.compare(Path("results.json"), SimpleNamespace(metrics={}, rows=5), {}, "eval_loss")
    expected = results_in(folder / "results.json")
    verify_weights.compare(Path("results.json"), expected, expected.metrics, "eval_accuracy")
    expected.tolerances["eval_accuracy"] = 0.5
    with pytest.raises(ValueError, match="results.json: tolerances is .*0.5.*, expected"):
        verify_weights.compare(Path("results.json"), expected, expected.metrics, "eval_accuracy")


def test_verification_finds_the_same_numbers(workshop, folder):
    assert verify.verify(folder, {}).startswith("accuracy ")


@pytest.mark.full
def test_verification_of_few_rows_finds_the_same_numbers(workshop, folder):
    assert verify.verify(folder, {}, short=True).startswith("accuracy ")


def test_a_changed_tensor_is_found(folder):
    """By its hash; and by its metrics where somebody has mended the hash."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.bias"] = tensors["classifier.bias"].clone()
    tensors["classifier.bias"][0] += 5
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ValueError, match="weights_sha256 differs"):
        verify.verify(folder, {})
    change(folder, weights_sha256=sha256(path))
    cards.write_card(folder)
    with pytest.raises(ValueError, match=r"results.json: metrics.eval_\w+ is .*, the weights give"):
        verify.verify(folder, {})


@pytest.mark.full
def test_invented_guesses_are_found(folder, monkeypatch):
    """Where no grid is beside the folder, by fitting them again."""
    results = json.loads((folder / "results.json").read_text())
    (bag,) = (each for each in results["evidence"]["guesses"] if each["name"] == "bag of tokens")
    bag["value"] = 0.01
    change(folder, evidence=results["evidence"])
    cards.write_card(folder)
    verify.verify(folder, {}, short=True)

    def gone(folder, words):
        raise ValueError("Unknown split")

    with monkeypatch.context() as patch:
        patch.setattr(verify_weights, "guesses", gone)
        assert "guesses not fitted again: no training rows (Unknown split)" in verify.verify(folder, {})
    with pytest.raises(ValueError, match="results.json: evidence.guesses: bag of tokens is 0.01, the data give"):
        verify.verify(folder, {})


def test_guesses_are_fitted_on_the_files_that_the_grid_names():
    def options(stated, files, **recipe):
        evidence = Evidence.model_construct(data_files=stated)
        return verify_weights.training_options(SimpleNamespace(evidence=evidence, recipe=recipe), files)

    assert options(None, ["a copy"]) == ["--data_files", "a copy"]
    stated = "train=FOLDER/a.parquet validation=FOLDER/b.parquet"
    assert options(stated, []) == options(stated, [], holdout=5) == []
    named = ["--data_files", "train=a copy/a.parquet", "validation=a copy/b.parquet"]
    assert options(stated, ["a copy"]) == named
    assert options(stated, ["a copy"], holdout=5) == [*named, "--holdout", "5"]


def test_a_grid_with_guesses_says_what_must_be_beaten(workshop):
    """guesses.json beside the rows decides what has learned, in the summary and on the cards."""
    path = workshop / "model_cards/grids/tiny" / GUESSES
    before = path.read_bytes()
    try:
        path.write_text(json.dumps([{"name": "a bag", "value": 0.99}]))
        found = gathered(Path("grid.yaml"))
        assert scoring.best_of(found) == Guess(name="a bag", value=0.99)
        assert [cell.learned for cell in found.cells] == [False, False]
        assert "loses to the best simple guess that reads the input (a bag, 0.990)" in comparison.notes_on(found)
    finally:
        path.write_bytes(before)


def test_the_evaluator_sees_no_results(folder, monkeypatch):
    """Whoever evaluates has neither the numbers nor the package."""
    code = f"import sys; sys.argv=['x']; exec(open({reevaluate.__file__!r}).read().split('def main')[0])\n"
    code += "sys.meta_path.insert(0, NoPackage())\nimport modeling_leaner"
    process = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'modeling_leaner'" in process.stderr
    seen = {}

    def run(command, **options):
        seen["files"] = {path.name for path in Path(command[3]).iterdir()}
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: stopped here")

    monkeypatch.setattr(stranger.subprocess, "run", run)
    with pytest.raises(ValueError, match="without the package failed: ValueError: stopped here"):
        verify.verify(folder, {})
    assert "model.safetensors" in seen["files"] and not {"results.json", "README.md"} & seen["files"]


def test_other_data_are_said_to_differ(folder, monkeypatch):
    rules = data.SMALL_LISTOPS
    monkeypatch.setitem(sources.BUILT_IN, "listops-short", lambda: data.listops(rules, train=200, test=80, seed=9))
    with pytest.raises(
        ValueError, match="data_sha256: 64 rows of listops-short with .* differ from the card's data, 64 rows with"
    ):
        verify.verify(folder, {})


def test_a_smoothed_training_loss_is_said_to_be_one(folder):
    assert "smoothed" not in (folder / "README.md").read_text()
    recipe = json.loads((folder / "results.json").read_text())["recipe"]
    change(folder, recipe={**recipe, "label_smoothing_factor": 0.1})
    cards.write_card(folder)
    assert "last training steps (with labels smoothed by 0.1, which raises it)" in (folder / "README.md").read_text()


def test_a_cell_has_one_colour_in_all_figures(folder, monkeypatch):
    """That of its kind, whichever cells stand beside it."""
    results, drawn = results_in(folder / "results.json"), []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: drawn.append(k["color"]) or plot(self, *a, **k))
    base, *_ = cells = results.evidence.cells
    few = {"layers": base.layers, "heads": base.heads}
    for changes, colour in (
        (few | {"heads": 2 * base.heads}, "tab:cyan"),
        (few | {"layers": base.layers - 1}, "tab:orange"),
        ({"layers": base.layers - 1, "heads": 2 * base.heads}, "tab:red"),
        (few | {"width": 7}, "tab:green"),
    ):
        drawn.clear()
        held = results.evidence.model_copy(update={"cells": [base, cells[1].model_copy(update=changes)]})
        evidence_figure.evidence_figure(results.model_copy(update={"evidence": held}))
        assert set(drawn) == {"tab:blue", colour}


def test_small_and_unknown_numbers_of_parameters(folder, monkeypatch):
    """A small model's bar says how small; one of unknown size has none."""
    results, written = results_in(folder / "results.json"), []
    text = Axes.text
    monkeypatch.setattr(Axes, "text", lambda self, x, y, s, **k: written.append(s) or text(self, x, y, s, **k))
    cells = [cell.model_copy(update={"parameters": None, "latency": None}) for cell in results.evidence.cells]
    cells[0].parameters = 3456
    held = results.evidence.model_copy(update={"cells": cells})
    evidence_figure.evidence_figure(results.model_copy(update={"evidence": held}))
    assert written == [" 0.0035"]


def test_an_edited_card_is_found(folder):
    text = (folder / "README.md").read_text()
    (folder / "README.md").write_text(text.replace("| accuracy | ", "| accuracy | 1"))
    with pytest.raises(ValueError, match="README.md: not what leaner card writes"):
        verify.verify(folder, {})


@pytest.mark.parametrize(
    "values, message",
    [
        ({"seed": 2}, "evidence.cells.values is"),
        ({"cell": "bert/base"}, "cell is 'bert/base', expected a shape of evidence.cells"),
        ({"metrics": {"eval_accuracy": 0.99, "eval_loss": 1.0}}, "evidence.cells.values is .* expected 0.99"),
        ({"parameters": 7}, "parameters is 7"),
        ({"main_metric": ...}, "main_metric is None"),
        ({"partners": ...}, "partners is None, expected list"),
        ({"cell": ...}, "cell is None, expected str"),
        ({"evidence": ...}, "evidence is None, expected dict"),
        ({"evidence": {}}, "evidence.grid is None, expected str"),
        ({"evidence": []}, r"evidence is \[\], expected dict"),
        ({"name": "../../etc"}, "name, partners is '../../etc', expected a folder's name"),
        ({"rows": -5}, "rows is -5, expected a number from 0"),
        ({"continuations": {}}, "continuations.prompt_words is None, expected int"),
    ],
)
def test_numbers_that_do_not_fit_make_no_card(folder, values, message):
    before = (folder / "README.md").read_text()
    if ... in values.values():
        results = json.loads((folder / "results.json").read_text())
        results.pop(next(iter(values)))
        (folder / "results.json").write_text(json.dumps(results))
    else:
        change(folder, **values)
    with pytest.raises(ValueError, match=rf"results.json: .*{message}"):
        cards.write_card(folder)
    assert (folder / "README.md").read_text() == before


@pytest.mark.parametrize(
    "place, value, message",
    [
        ("values", {"1": "x", "2": 0.1}, "evidence.cells.0.values.1 is 'x', expected float"),
        ("interval", ["a", 1.0], "evidence.cells.0.interval.0 is 'a', expected float"),
        ("mean", 10**400, "evidence.cells.0.mean is 1000.*, expected float"),
        ("latency", ..., "evidence.cells.0.latency is missing"),
        (
            "latency",
            {"32": {"seconds": 1.0, "items_per_second": 1.0}},
            "evidence.cells.0.latency.1 is None, expected dict",
        ),
    ],
)
def test_what_cannot_be_drawn_makes_no_card(folder, place, value, message):
    before = (folder / "README.md").read_text()
    found = json.loads((folder / "results.json").read_text())["evidence"]
    found["cells"][0][place] = value
    if value is ...:
        del found["cells"][0][place]
    change(folder, evidence=found)
    with pytest.raises(ValueError, match=f"results.json: {message}"):
        cards.write_card(folder)
    assert (folder / "README.md").read_text() == before


def test_a_recipe_that_is_no_yaml(folder, capsys):
    (folder / "recipe.yaml").write_text("task: [")
    with pytest.raises(SystemExit, match="1 of 1 failed"):
        leaner("verify", folder)
    assert "recipe.yaml: no YAML file" in capsys.readouterr().err
    (folder / "results.json").write_text("[]")
    with pytest.raises(SystemExit, match="1 of 1 failed"):  # named, and not that its dataset is unknown
        leaner("verify", folder, "--data_files", "sst2=x")
    assert "results.json" in capsys.readouterr().err


def test_weights_of_another_run_make_no_card(folder, workshop):
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="model.safetensors: weights_sha256 differs"):
        cards.write_card(folder)


def test_weights_of_another_shape(folder, workshop):
    shutil.copyfile(workshop / "model_cards/leanbert-deep/model.safetensors", folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors: model.layers.1\S+ is \[.*\], expected None of"):
        cards.write_card(folder)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="model.safetensors: damaged or not safetensors"):
        cards.write_card(folder)


def test_commands_end_with_one_line(folder, workshop, capsys, monkeypatch):
    (folder / "results.json").unlink()
    with pytest.raises(SystemExit, match=r"leaner card: \S+results.json"):
        leaner("card", folder)
    with pytest.raises(SystemExit, match="1 of 1 failed"):
        leaner("verify", folder)
    assert "FAILED" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--data_files: expected NAME=FOLDER"):
        leaner("verify", "--data_files", "folder")
    with pytest.raises(
        SystemExit, match="--data_files: listopps is no dataset of these folders, expected one of list"
    ):
        leaner("verify", "--data_files", "listopps=folder")
    with pytest.raises(SystemExit, match="^2$"):
        leaner("bench", "grid.yaml", "--rounds", 0)
    assert "leaner bench: Invalid value for '--rounds': Input should be greater" in capsys.readouterr().err
    Path("bare.yaml").write_text(yaml.safe_dump({**yaml.safe_load(Path("grid.yaml").read_text()), "publish": None}))
    with pytest.raises(SystemExit, match="publish: missing"):
        leaner("publish", "bare.yaml")
    monkeypatch.setattr(publish, "UNVERIFIABLE", ("image-classification", "sequence-classification"))
    with pytest.raises(SystemExit, match="publish: the task .*-classification cannot be verified; expected one of "):
        leaner("publish", "grid.yaml")


def test_holm():
    assert run_statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert run_statistics.holm([]) == [] and run_statistics.holm([0.6, 0.9]) == [1.0, 1.0]


def row(value, chance=0.1, **changes):
    found = {"value": value, "chance": chance, "metric": "accuracy", "higher_is_better": 1, "rows": 100}
    return ResultRow.from_cells({**found, "status": "finished", **changes})


def test_what_counts_as_learned():
    assert summary.learned([row(0.5), row(0.52)]) is True
    assert summary.learned([row(0.15), row(0.16)]) is False  # within three binomial standard errors of 100 rows
    assert summary.learned([row(0.15, rows=10_000), row(0.16, rows=10_000)]) is True
    assert summary.learned([row(0.1, rows=10_000), row(0.9, rows=10_000)]) is False  # the seeds disagree
    matthews = {"metric": "matthews_correlation", "chance": 0.0, "rows": 1043}
    assert summary.learned([row(0.062, **matthews), row(0.064, **matthews)]) is False  # 1/√1042 is 0.031
    assert summary.learned([row(0.12, **matthews), row(0.13, **matthews)]) is True
    f1 = {"metric": "f1", "chance": 0.81, "rows": 400}
    assert summary.learned([row(0.83, **f1)]) is False and summary.learned([row(0.9, **f1)]) is True
    loss = {"metric": "loss", "higher_is_better": 0, "chance": 6.0}
    assert summary.learned([row(5.0, **loss), row(5.1, **loss)]) is True
    assert summary.learned([row(6.2, **loss), row(6.3, **loss)]) is False
    assert summary.learned([row(5.99, **loss)]) is None and summary.learned([row(6.1, **loss)]) is False
    assert summary.learned([row(0.5, chance=None)]) is None
    for guess, expected in ((0.3, True), (0.45, False), (0.05, True)):  # the best of guesses must be beaten
        assert summary.learned([row(0.5), row(0.52)], guess) is expected
    assert summary.learned([row(5.0, **loss), row(5.1, **loss)], guess=4.8) is False
    assert summary.learned([row(0.5, chance=None), row(0.52, chance=None)], guess=0.2) is True
    result = run_statistics.paired_statistics([0.5] * 7, [0.5] * 7, 0.01)
    assert run_statistics.verdict(result, 0.01, 7, False) == "no verdict"
    assert run_statistics.verdict(result, 0.01, 7, True).startswith(run_statistics.NON_INFERIOR)
    assert run_statistics.verdict(result, 0.01, 7, None) == "undecided"


@pytest.mark.parametrize("told_by", ["first token only", "length only", "bag of tokens"])
def test_guesses_find_what_tells_the_label(told_by):
    """Rows whose label is one simple thing are solved by the guess that reads it, and by no other.

    But the bag of tokens, a share of each, knows the length by the share of the mark of the beginning.
    """
    rng = np.random.default_rng(0)

    def rows(count):
        ids, labels = [], []
        for label in rng.integers(3, size=count):
            length = 4 * 2**label if told_by == "length only" else rng.integers(3, 30)
            body = rng.integers(10, 20, size=length)
            if told_by == "first token only":
                body[0] = 5 + label
                body[-2:] = 5 + (label + 1) % 3, 5 + (label + 2) % 3  # so that the bag has every mark once
            elif told_by == "bag of tokens":
                body[rng.integers(1, length, size=length // 2)] = 5 + label
            ids.append([1, *body])
            labels.append(label)
        return Dataset.from_dict({"input_ids": ids, "length": [len(each) for each in ids], "labels": labels})

    task = SimpleNamespace(processing=range(20), metric="accuracy", regression=False)
    task.score = lambda said: {"accuracy": (said.predictions.argmax(1) == said.label_ids).mean()}
    found = {each.name: each.value for each in simple_guesses.text_guesses(task, rows(2000), rows(500))}
    assert found.pop(told_by) > 0.95, found
    assert all(value < 0.6 for name, value in found.items() if (told_by, name) != ("length only", "bag of tokens"))


@pytest.mark.parametrize(
    "dataset, message",
    [
        (None, "it was trained on local files; expected --data with their folder, or SPLIT=FILE$"),
        ("nobody/rows", "dataset nobody/rows: not found .*; --data names a local copy$"),
    ],
)
def test_rows_that_are_not_to_be_had_are_found_first(workshop, monkeypatch, dataset, message):
    """Before any folder is begun; a run's own recipe says where a copy lay, a published one does not."""
    local = workshop / "local"
    shutil.copytree(GRID_FOLDER, local)
    grid = yaml.safe_load((local / "grid.yaml").read_text())
    names = {shape: f"{name}-local" for shape, name in grid["publish"].items()}
    Path("local.yaml").write_text(yaml.safe_dump({**grid, "output_dir": "local", "publish": names}))
    for file in local.glob("runs/*/recipe.yaml"):
        recipe = yaml.safe_load(file.read_text()) | {"dataset": dataset, "data_files": ["rows"]}
        file.write_text(yaml.safe_dump(recipe))
    begun = []
    monkeypatch.setattr(publish, "check_copy", lambda run, files: None)
    monkeypatch.setattr(publish, "publish", lambda loaded, shape, files, license: begun.append((shape, files)))
    with pytest.raises(SystemExit, match=f"^leaner publish: local/runs/report-deep-bert-seed1-lr0.001: {message}"):
        leaner("publish", "local.yaml")
    assert begun == []
    leaner("publish", "local.yaml", "--data", "rows")
    assert begun == [(shape, ["rows"]) for shape in names]
    shutil.rmtree(local)


def test_a_tokenizer_that_is_kept_says_the_length_of_the_new_training(workshop):
    words = ["--shape", "model_cards/leanbert-deep", "--max_length", "16", "--output_dir", "unused"]
    kept = loading.load_processing(recipes.parse("listops-short", words), load_config("deep/bert.json"), None)
    assert kept.model_max_length == 16


def test_a_grid_that_starts_from_another(workshop, tmp_path):
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    later = {**grid, "start_from": "model_cards/grids/tiny", "output_dir": str(tmp_path), "publish": None}
    Path("later.yaml").write_text(yaml.safe_dump(later))
    loaded = load_results(load_grid(Path("later.yaml")))
    for phase, seed, expected in (("report", 2, "seed2"), ("tune", 0, "seed1")):
        start = runs.shape_option(loaded, Run(phase, grid["shapes"][0], seed, 1e-3))
        assert start.endswith(f"deep-bert-{expected}-lr0.001") and Path(start, "model.safetensors").is_file()
    for shape, seed in ((grid["shapes"][0], 5), ("bert/nano", 1)):
        with pytest.raises(GridError, match=f"start_from: expected a finished run of {shape} with seed {seed}"):
            runs.shape_option(loaded, Run("report", shape, seed, 1e-3))


def test_what_a_published_run_started_from_is_compared(workshop, monkeypatch):
    """The weights that it began with must be those of the folder that the card names."""
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    shape = grid["shapes"][0]
    monkeypatch.setattr(publish, "CARDS", workshop / "model_cards")
    monkeypatch.setattr(publish, "load_grid", lambda path: load_grid(Path("grid.yaml")))
    started = SimpleNamespace(start_from="model_cards/grids/tiny", cuts=None)
    run = workshop / "begun"
    run.mkdir()
    folder = workshop / "model_cards/leanbert-deep"

    def begun_from(place):
        (run / "results.json").write_text(json.dumps({"shape": str(place)}))
        return publish.reproducible_shape(started, shape, run)

    assert publish.reproducible_shape(SimpleNamespace(start_from=None, cuts=None), shape, run) == shape
    first, second = (Run("report", shape, seed, 1e-3).folder(load_grid(Path("grid.yaml"))) for seed in (1, 2))
    assert begun_from(first) == begun_from(folder) == str(folder)
    with pytest.raises(ValueError, match="start_from: .*leanbert-deep does not hold .*seed2"):
        begun_from(second)
    with pytest.raises(ValueError, match="start_from: .*gone.model.safetensors, .* is not there to compare"):
        begun_from(workshop / "gone")
    with pytest.raises(ValueError, match="start_from: the weights of other in .* are not published yet"):
        publish.reproducible_shape(started, "other", run)


def test_a_grid_that_starts_from_published_weights(workshop, tmp_path):
    """Of one seed for all: its run's folder where that is there, else the folder that was published of it."""
    grid = yaml.safe_load(Path("grid.yaml").read_text())
    shape = grid["shapes"][0]
    later = {**grid, "start_from": "model_cards/grids/tiny", "output_dir": str(tmp_path), "publish": None}
    starts = {}
    for seed in (1, 2):
        Path("later.yaml").write_text(yaml.safe_dump({**later, "start_seed": seed}))
        starts[seed] = load_results(load_grid(Path("later.yaml")))
    of = [Run("tune", shape, 0, 1e-3), Run("report", shape, 5, 1e-3)]
    kept = Path("model_cards/grids/tiny/runs")
    assert {runs.shape_option(starts[2], run) for run in of} == {str(kept / Run("report", shape, 2, 1e-3).name)}
    kept.rename(tmp_path / "runs")
    try:
        assert {runs.shape_option(starts[1], run) for run in of} == {f"model_cards/{grid['publish'][shape]}"}
        how = "leaner train listops-short --shape deep/bert.json --seed 2 .*--output_dir model_cards/grids/tiny/runs"
        with pytest.raises(GridError, match=f"start_from: .*seed2.*, found none; {how}.* trains them"):
            runs.shape_option(starts[2], of[0])
        own = dataclasses.replace(starts[1].grid, start_seed=None)
        with pytest.raises(GridError, match="start_from: .*deep-bert-seed2-.*; also the weights .*shallow-bert-seed2"):
            runs.check_starts(GridResults(own, {}))
        rows = read_rows(Path("model_cards/grids/tiny/results.csv"))
        runs.check_starts(GridResults(own, rows))  # nothing left to train
        del rows[Run("report", grid["shapes"][1], 2, 1e-3)]
        with pytest.raises(GridError, match="shallow-bert-seed2.* trains them .*rows.$"):
            runs.check_starts(GridResults(own, rows))
    finally:
        (tmp_path / "runs").rename(kept)
