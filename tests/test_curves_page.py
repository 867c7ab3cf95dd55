"""model_cards/curves.md and what a card says of budgets: made-up rows, and a run that was trained and published."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from command import leaner
from modeling_leaner.training.experiments import step_time
from modeling_leaner.training.experiments.grid import GridError, load_grid, write_grid
from modeling_leaner.training.experiments.rows import reported, write_rows
from modeling_leaner.training.publishing.curves_figure import contrasts_panel, curves_figure, quality_panel
from modeling_leaner.training.publishing.curves_page import grids_with_branches, write_curves
from modeling_leaner.training.publishing.gathered_grids import read_grids_of_shapes
from modeling_leaner.training.publishing.index import write_index
from modeling_leaner.training.publishing.wording.amounts import label, short_label
from modeling_leaner.training.publishing.wording.curves import interpolation_text
from modeling_leaner.training.records import Evidence, PublishedResults, ResultRow, checked
from scipy import stats
from training_data import documents, write_shape

from modeling_leaner.support import files
from modeling_leaner.support.documents import write_json
from modeling_leaner.support.files import sha256


STEP = 16 * 32
BUDGETS = [10 * STEP, 20 * STEP, 40 * STEP]
LAYERS = {"deep.json": 4, "lean.json": 2, "later.json": 3}
COST = {"deep.json": 100, "lean.json": 50}  # FLOPs a token


def value_of(shape, tokens, seed):
    """On a line over log tokens, so that what is read between branches is exact."""
    slope = 0.5 if shape == "deep.json" else 0.3
    return 9 - slope * np.log(tokens / 1e3) + 0.01 * seed + 0.002 * seed**2 * (shape == "lean.json")


def row(grid, shape, seed, branch, **changes):
    """A finished run to report, its score on a line over log tokens unless told."""
    run = reported(grid, shape, seed, 1e-3, branch)
    cells = {"status": "finished", "metric": "loss", "value": value_of(shape, branch, seed), "higher_is_better": 0}
    cells |= {"tokens": branch, "training_flops": branch * COST[shape], "steps": branch // STEP, "parameters": 1000}
    made = ResultRow.from_cells({**run._asdict(), **cells, "seconds": 1e3})
    return replace(made, **changes)


def all_rows(grid, **changes):
    return [row(grid, shape, seed, branch, **changes) for shape in COST for seed in grid.seeds for branch in BUDGETS]


def put(grid, rows):
    """Writes the rows of a grid, and the grid beside them."""
    folder = Path(grid.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_grid(grid)
    with (folder / "results.csv").open("w", newline="") as file:
        write_rows(rows, file)


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of three shapes, deep, lean and later."""
    monkeypatch.chdir(tmp_path)
    for name, layers in LAYERS.items():
        Path(write_shape("gpt", tmp_path, num_hidden_layers=layers)).rename(name)
    overrides = {"max_length": 32, "max_steps": 32, "warmup_steps": 2, "lr_scheduler_type": "warmup_stable_decay"}
    values = {"recipe": "enwik8-text-causal", "shapes": [*LAYERS], "baseline": "deep.json", "seeds": [1, 2, 3]}
    values |= {"learning_rates": [1e-3], "branches": BUDGETS, "overrides": overrides, "margin": 0.02}
    values["contrasts"] = [["lean.json", "deep.json"], ["later.json", "deep.json"]]
    values["output_dir"] = "cards/grids/short"
    Path("my.yaml").write_text(yaml.safe_dump({**values, "test": "non-inferiority"}))
    return load_grid(Path("my.yaml"))


@pytest.fixture
def cards(grid):
    """A folder of cards with that grid, of which two shapes have run, exactly on lines."""
    put(grid, all_rows(grid))
    return Path("cards")


def page(cards):
    write_curves(cards, read_grids_of_shapes(cards))
    return (cards / "curves.md").read_text()


def gathered(cards):
    return grids_with_branches(read_grids_of_shapes(cards))["short"]


def put_guess(cards, value):
    """Gives the grid a simple guess of that loss."""
    (cards / "grids/short/guesses.json").write_text(json.dumps([{"name": "bigram", "value": value}]))


def lines_of(text, title):
    """The cells of the lines of the table whose header begins with a title."""
    table = next(part for part in text.split("\n\n") if part.startswith(f"| {title}"))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_the_page_has_every_budget(cards):
    """Mean, sd and seeds; the shape that has not run is left out of the scores, and said not to be tested."""
    text = page(cards)
    header, *lines = lines_of(text, "layers × heads")
    assert header[2:] == ["5,120 tokens", "10,240 tokens", "20,480 tokens"] and len(lines) == 3
    for line, shape in zip(lines[1:], COST):
        for cell, branch in zip(line[2:], BUDGETS):
            values = [value_of(shape, branch, seed) for seed in (1, 2, 3)]
            assert cell == f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f} (3)"
    assert "3 × 4 against 4 × 4: 0 of 3 pairs of runs so far, not tested" in text
    assert all((cards / f"curves-short-{theme}.svg").is_file() for theme in ("light", "dark"))


@pytest.mark.parametrize(("guess", "learned"), [(8.0, True), (7.0, False)])
def test_the_page_says_where_nothing_has_been_learned(cards, guess, learned):
    """The baseline ends at 7.5: the page says that there is no verdict where a guess is better."""
    put_guess(cards, guess)
    assert ("**No verdict on quality:**" not in page(cards)) == learned


def test_the_page_has_the_contrasts_with_plus_for_better(cards):
    """At equal tokens, and at equal FLOPs where the deep shape has read half as much; with p by scipy."""
    text = page(cards)
    _, _, tokens, flops = lines_of(text, "first against second")
    assert tokens[:3] == ["2 × 4 against 4 × 4", "tokens", "3"] and flops[:3] == ["", "FLOPs", "3"]
    for share, line in ((1.0, tokens), (0.5, flops)):
        for cell, branch in zip(line[3:], BUDGETS):
            if branch * share < BUDGETS[0]:
                assert cell == "–"
                continue
            own = [value_of("lean.json", branch, seed) for seed in (1, 2, 3)]
            others = [value_of("deep.json", branch * share, seed) for seed in (1, 2, 3)]
            expected = stats.ttest_rel(others, own)  # a lower loss is better
            low, high = expected.confidence_interval()
            assert cell == f"{np.mean(others) - np.mean(own):+.3f} ({low:+.3f} to {high:+.3f})"
    last = stats.ttest_rel(*([value_of(shape, BUDGETS[-1], seed) for seed in (1, 2, 3)] for shape in COST)).pvalue
    assert f"2 × 4 against 4 × 4: p {last:.3g}, corrected {2 * last:.3g};" in text


def test_the_figure_has_the_same_numbers(cards):
    """A panel for each known cost, the differences with their intervals, and the same bytes each time."""
    found = gathered(cards)
    assert quality_panel(found, "seconds") is None
    shapes = {shape: {"seconds": cost / 1e3, "tokens": STEP} for shape, cost in {**COST, "later.json": 75}.items()}
    (cards / "grids" / "short" / step_time.STEP_SECONDS).write_text(json.dumps({"shapes": shapes}))
    found = gathered(cards)
    units = {"tokens": [b / 1e6 for b in BUDGETS], "FLOPs": [b * 50 / 1e12 for b in BUDGETS]}
    units["seconds"] = [b // STEP * 0.05 for b in BUDGETS]
    for way, places in units.items():
        deep, lean = quality_panel(found, way).lines
        assert lean.x == pytest.approx(places, rel=5e-3) and (deep.label, lean.label) == ("4 × 4", "2 × 4")
        values = np.array([[value_of("lean.json", branch, seed) for branch in BUDGETS] for seed in (1, 2, 3)])
        for got, expected in ((lean.y, values.mean(0)), (lean.low, values.min(0)), (lean.high, values.max(0))):
            assert got == pytest.approx(expected)
    (line,) = contrasts_panel(found.evidence).lines
    differences = [[value_of("deep.json", b, s) - value_of("lean.json", b, s) for s in (1, 2, 3)] for b in BUDGETS]
    assert line.y == pytest.approx(np.mean(differences, axis=1))
    half = stats.t.ppf(0.975, 2) * np.std(differences, axis=1, ddof=1) / 3**0.5
    assert line.low == pytest.approx(line.y - half) and line.high == pytest.approx(line.y + half)
    assert curves_figure(found, "light") == curves_figure(found, "light") != curves_figure(found, "dark")


def test_the_index_names_the_page(grid, cards):
    """Until the grid's first branch has ended there is no page, and no word of one."""
    text = write_index(cards).read_text()
    assert "[all budgets](curves.md)) `short`: " in text and (cards / "curves.md").is_file()
    trunk = replace(row(grid, "deep.json", 1, BUDGETS[0]), phase="trunk", branch=None)
    put(grid, [trunk])
    assert "curves.md" not in write_index(cards).read_text()
    assert not (cards / "curves.md").exists() and not [*cards.glob("curves-*")]


def test_figures_without_anything_to_draw_go(cards):
    for name in ("forest-light.svg", "kappa-dark.svg", "kappa-own.svg"):
        (cards / name).write_text("of an earlier time")
    write_index(cards)
    assert [path.name for path in cards.glob("*-*.svg") if not path.name.startswith("curves")] == ["kappa-own.svg"]


def test_an_error_while_the_page_is_written_leaves_the_old_one(cards, monkeypatch):
    old = page(cards)

    def full_disk(path, content):
        raise OSError("no space left")

    monkeypatch.setattr(files, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space left"):
        page(cards)
    assert (cards / "curves.md").read_text() == old and len([*cards.glob("curves-*")]) == 2


def test_a_grid_under_way_of_an_accuracy(grid):
    """Only the first budget has ended, with one pair: which way is better is known all the same."""
    first = [row(grid, shape, 1, BUDGETS[0], metric="accuracy", higher_is_better=True) for shape in COST]
    put(grid, first)
    text = page(Path("cards"))
    assert "held-out accuracy, higher is better." in text and "None" not in text
    header, _, line = lines_of(text, "first against second")
    ahead = value_of("lean.json", BUDGETS[0], 1) - value_of("deep.json", BUDGETS[0], 1)
    assert line[1:] == ["tokens", "1", f"{ahead:+.3f}", "–", "–"] and len(header) == len(line)
    assert "1 of 3" not in text and "0 of 3 pairs of runs so far, not tested" in text  # at the longest budget


def test_failed_runs_stay_in_the_table(grid):
    """Beside those that finished; and of a shape of which all failed."""
    failed = {"status": "failed", "error": "the loss is not finite", "value": None, "metric": None}
    rows = [each for each in all_rows(grid) if (each.shape, each.seed) != ("lean.json", 2)]
    rows += [row(grid, "lean.json", 2, branch, **failed) for branch in BUDGETS]
    rows += [replace(each, shape="later.json") for each in rows if each.status == "failed"]
    put(grid, rows)
    _, _, _, lean, later = lines_of(page(Path("cards")), "layers × heads")
    assert all(cell.endswith(" (2), 1 failed") for cell in lean[2:]) and later[2:] == ["not run, 1 failed"] * 3
    assert "2 of 3 pairs of runs so far, not tested" in page(Path("cards"))


def test_what_interpolation_may_be_off_by(grid):
    """Nothing is said where nothing was read between branches, no number where two branches cannot tell."""
    put(grid, [each for each in all_rows(grid) if each.branch == BUDGETS[0]])
    assert "between its own branches; the seconds" in page(Path("cards"))
    put(grid, [each for each in all_rows(grid) if each.branch != BUDGETS[1] or each.shape == "lean.json"])
    assert "off by what so few branches cannot tell" in page(Path("cards"))
    bent = []
    for each in all_rows(grid):  # not on a line, and read at 0.75 of the tokens
        if each.branch == BUDGETS[1]:
            each = replace(each, value=each.value + 0.5)
        if each.shape == "lean.json":
            each = replace(each, training_flops=each.training_flops * 3 // 2)
        bent.append(each)
    put(grid, bent)
    errors = [each.interpolation_error for each in gathered(Path("cards")).evidence.readings if each.pairs]
    assert max(errors) > 0.01 and f"off by about {max(errors):.3f} at most" in page(Path("cards"))


def test_the_best_guess_is_on_the_page(grid, cards):
    assert "Best simple guess" not in page(cards)
    put_guess(cards, 6.5)
    text = page(cards)
    assert "Best simple guess 6.5000 (bigram): the dotted line where the axis is loss." in text
    assert quality_panel(gathered(cards), "tokens").level == 6.5


@pytest.mark.parametrize(
    "place, value, message",
    [
        ((), [], "curves is \\[\\], expected at least one"),
        ((0, "shapes", 0, "shape"), "no.json", r"curves.0.shapes are .*'no.json'.*, expected .* as in cells"),
        ((1, "contrasts", 0, "minus"), "no.json", "curves.1.contrasts are of .*, expected the same pairs of"),
        ((2, "contrasts"), [], "curves.2.contrasts are of .*, expected the same pairs of"),
    ],
)
def test_invented_curves_make_no_card(cards, place, value, message):
    """One line that names the file and the place."""
    document = gathered(cards).evidence.document()
    document["curves"] = json.loads(json.dumps(document["curves"]))
    if place:
        *outer, last = place
        part = document["curves"]
        for key in outer:
            part = part[key]
        part[last] = value
    else:
        document["curves"] = value
    with pytest.raises(ValueError, match=f"results.json: .*{message}"):
        checked(Evidence, document, Path("results.json"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"metric": "accuracy"}, "line 19: metric: expected one for all rows, got accuracy and loss"),
        ({"tokens": 0}, "line 19: tokens: expected a number above 0, got 0"),
        ({"training_flops": -5}, "line 19: training_flops: expected a number above 0, got -5"),
        ({"branch": 650}, r"a row of 650 tokens, expected one of the grid's branches, \[5120, 10240, 20480\]"),
    ],
)
def test_rows_that_do_not_fit_make_no_page(grid, changes, message):
    """One line that names the file, instead of a page without them, or with false numbers."""
    *others, last = all_rows(grid)
    put(grid, [*others, replace(last, **changes)])
    with pytest.raises(GridError, match=rf"^cards/grids/short/results.csv: {message}"):
        page(Path("cards"))


def test_a_row_without_steps_has_no_time(grid, cards):
    shapes = {shape: {"seconds": 0.1, "tokens": STEP} for shape in LAYERS}
    (cards / "grids" / "short" / step_time.STEP_SECONDS).write_text(json.dumps({"shapes": shapes}))
    put(grid, [replace(each, steps=None) for each in all_rows(grid)])
    assert quality_panel(gathered(cards), "seconds") is None
    text = page(cards)
    assert "| seconds |" not in text and "; [what was expected" not in text
    (cards / "LOG.md").write_text("# Log\n")
    assert "; [what was expected before the runs](LOG.md)." in page(cards)


@pytest.mark.parametrize(
    "errors, text",
    [
        ([], ""),
        ([0.0, 0.0004], ""),  # of shapes with the same FLOPs nothing is interpolated
        ([0.0, 0.0123], ", off by about 0.012 at most"),
        ([0.0123, None], ", off by what so few branches cannot tell"),
    ],
)
def test_how_far_off_a_reading_may_be(errors, text):
    readings = [SimpleNamespace(equal="FLOPs", pairs=1, interpolation_error=error) for error in errors]
    readings.append(SimpleNamespace(equal="tokens", pairs=1, interpolation_error=9.0))
    assert interpolation_text(SimpleNamespace(readings=readings)) == text


def test_labels_say_in_what_a_shape_differs(cards):
    evidence = gathered(cards).evidence
    cell = evidence.cells[1]
    narrow = cell.model_copy(update={"width": cell.width // 2, "mlp": cell.mlp // 2})
    thin = cell.model_copy(update={"mlp": cell.mlp // 2})
    assert short_label(cell, evidence) == "2 × 4"
    assert short_label(narrow, evidence) == f"2 × 4 × {cell.head_dim} of width {cell.width // 2}"
    assert short_label(narrow.model_copy(update={"heads": 2}), evidence) == f"2 × 2 of width {cell.width // 2}"
    assert short_label(thin, evidence) == f"2 × 4 with MLP {cell.mlp // 2}"
    assert label(thin, evidence) == f"2 layers × 4 heads of {cell.head_dim} with MLP {cell.mlp // 2}"
    both = narrow.model_copy(update={"mlp": cell.mlp})
    assert short_label(both, evidence) == f"{short_label(narrow, evidence)} with MLP {cell.mlp}"


@pytest.fixture(scope="module")
def published(tmp_path_factory, warm_stranger):
    """A project with a published model, whose run was finished at two budgets."""
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("project"))
    Path("data").mkdir()
    for split, count in (("train", 24), ("validation", 6)):
        documents(count, seed=count).to_parquet(f"data/{split}.parquet")
    write_shape("gpt", Path())
    Path("text.yaml").write_text(yaml.safe_dump({"task": "causal-lm", "dataset": "someone/text"}))
    overrides = {"tokenizer": "byte-bpe", "max_length": 32, "max_steps": 8, "warmup_steps": 2, "hardware": "cpu"}
    overrides |= {"lr_scheduler_type": "warmup_stable_decay", "eval_strategy": "no", "per_device_train_batch_size": 4}
    grid = {"recipe": "text.yaml", "overrides": overrides, "shapes": ["gpt.json"], "baseline": "gpt.json"}
    grid |= {"seeds": [1], "learning_rates": [1e-3], "branches": [640, 1280], "output_dir": "model_cards/grids/short"}
    Path("training/grids").mkdir(parents=True)
    Path("training/grids/short.yaml").write_text(yaml.safe_dump({**grid, "publish": {"gpt.json": "leangpt-short"}}))
    for command in ("sweep", "publish"):
        leaner(command, "training/grids/short.yaml", "--data", "data")
    yield Path("model_cards/leangpt-short")
    patch.undo()


def test_a_published_run_names_its_budgets(published):
    """The last one is the model that is published; a verification finds the same."""
    results = json.loads((published / "results.json").read_text())
    runs = [f"report-gpt-seed1-lr0.001-tokens{tokens}" for tokens in (640, 1280)]
    folders = [published.parent / "grids" / "short" / "runs" / run for run in runs]
    for branch, folder in zip(results["branches"], folders):
        scored = json.loads((folder / "results.json").read_text())["metrics"]["eval_loss"]
        assert branch["value"] == scored and branch["weights_sha256"] == sha256(folder / "model.safetensors")
    assert results["branches"][-1]["weights_sha256"] == results["weights_sha256"]
    lines = lines_of((published / "README.md").read_text(), "tokens |")[2:]
    assert [line[0] for line in lines] == ["640", "1,280"]
    assert [line[2:] for line in lines] == [
        [f"{branch['value']:.4f}", branch["weights_sha256"]] for branch in results["branches"]
    ]
    leaner("verify-cards", published, "--data_files", "text=data")


def test_an_invented_budget_is_found(published, capsys):
    """Its value and tokens by the row, the hash of the longest one by the weights that are there."""
    folder = published.parent / "leangpt-short"
    kept = (folder / "results.json").read_text()
    results = json.loads(kept)
    first, last = results["branches"]
    invented = {
        "branches.0.value is 0.5": [{**first, "value": 0.5}, last],
        "branches.1.tokens is 641": [first, {**last, "tokens": 641}],
        "branches.1.weights_sha256 is '000": [first, {**last, "weights_sha256": "0" * 64}],
        "branches.2 is {": [first, last, last],
        "branches.1.weights_sha256 is None": [first],
        "branches.1.weights_sha256 is None, ": None,
    }
    for message, branches in invented.items():
        write_json(folder / "results.json", {**results, "branches": branches})
        leaner("card", folder, "--replace")
        with pytest.raises(SystemExit):
            leaner("verify-cards", folder, "--data_files", "text=data")
        assert f"results.json: {message}" in capsys.readouterr().err
        assert "None" not in (folder / "README.md").read_text().split("## Over the length")[1].split("## ")[0]
    (folder / "results.json").write_text(kept)
    leaner("card", folder, "--replace")


@pytest.mark.parametrize("held", ["0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "not kept", ""])
def test_the_hash_of_a_budget_is_a_sha256(published, held):
    """The weights of a shorter budget are not published: nothing else can find that it is none."""
    document = json.loads((published / "results.json").read_text())
    document["branches"][0]["weights_sha256"] = held
    said = f"branches.0.weights_sha256 is {held!r:.100}, expected a SHA-256, 64 hex digits in lower case"
    with pytest.raises(ValueError, match=f"^results.json: {re.escape(said)}$"):
        checked(PublishedResults, document, Path("results.json"))
    document["branches"][0]["weights_sha256"] = None
    assert checked(PublishedResults, document, Path("results.json")).branches[0].weights_sha256 is None


def test_a_budget_whose_weights_are_gone_has_no_hash(published):
    """They may be, but those of the longest, which are published."""
    run = published.parent / "grids" / "short" / "runs" / "report-gpt-seed1-lr0.001-tokens640"
    (run / "model.safetensors").unlink()
    leaner("publish", "training/grids/short.yaml", "--replace", "--data", "data")
    first, last = json.loads((published / "results.json").read_text())["branches"]
    assert first["weights_sha256"] is None and last["weights_sha256"] == sha256(published / "model.safetensors")
    assert lines_of((published / "README.md").read_text(), "tokens |")[2][-1] == "not kept"
    leaner("verify-cards", published, "--data_files", "text=data")
