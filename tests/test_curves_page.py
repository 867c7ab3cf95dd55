"""model_cards/curves.md and what a card says of budgets: made-up rows, and a run that was trained and published."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import leaner
from modeling_leaner.training.experiments import step_time
from modeling_leaner.training.experiments.grid import load_grid, write_grid
from modeling_leaner.training.experiments.rows import reported, write_rows
from modeling_leaner.training.publishing.curves_figure import contrasts_panel, curves_figure, quality_panel
from modeling_leaner.training.publishing.curves_page import grids_with_branches, write_curves
from modeling_leaner.training.publishing.index import read_grids_of_shapes, write_index
from modeling_leaner.training.publishing.wording.amounts import short_label
from modeling_leaner.training.records import Evidence, ResultRow, checked
from scipy import stats
from training_data import documents, write_shape

from modeling_leaner.support.documents import write_json
from modeling_leaner.support.files import sha256


STEP = 16 * 32
BUDGETS = [10 * STEP, 20 * STEP, 40 * STEP]
LAYERS = {"deep.json": 4, "lean.json": 2, "later.json": 3}
COST = {"deep.json": 100, "lean.json": 50}  # FLOPs a token


def loss(shape, tokens, seed):
    """On a line over log tokens, so that what is read between branches is exact."""
    slope = 0.5 if shape == "deep.json" else 0.3
    return 9 - slope * np.log(tokens / 1e3) + 0.01 * seed + 0.002 * seed**2 * (shape == "lean.json")


def row(grid, shape, seed, branch):
    run = reported(grid, shape, seed, 1e-3, branch)
    cells = {"status": "finished", "metric": "loss", "value": loss(shape, branch, seed), "higher_is_better": 0}
    cells |= {"tokens": branch, "training_flops": branch * COST[shape], "steps": branch // STEP, "parameters": 1000}
    return ResultRow.from_cells({**run._asdict(), **cells, "seconds": 1e9})


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """A folder of cards with a grid of three shapes, of which two have run."""
    monkeypatch.chdir(tmp_path)
    for name, layers in LAYERS.items():
        Path(write_shape("gpt", tmp_path, num_hidden_layers=layers)).rename(name)
    overrides = {"max_length": 32, "max_steps": 32, "warmup_steps": 2, "lr_scheduler_type": "warmup_stable_decay"}
    values = {"recipe": "enwik8-text-causal", "shapes": [*LAYERS], "baseline": "deep.json", "seeds": [1, 2, 3]}
    values |= {"learning_rates": [1e-3], "branches": BUDGETS, "overrides": overrides, "margin": 0.02}
    values["contrasts"] = [["lean.json", "deep.json"], ["later.json", "deep.json"]]
    values["output_dir"] = "cards/grids/short"
    Path("my.yaml").write_text(yaml.safe_dump({**values, "test": "non-inferiority"}))
    grid = load_grid(Path("my.yaml"))
    folder = Path(grid.output_dir)
    folder.mkdir(parents=True)
    write_grid(grid)
    rows = [row(grid, shape, seed, branch) for shape in COST for seed in grid.seeds for branch in BUDGETS]
    with (folder / "results.csv").open("w", newline="") as file:
        write_rows(rows, file)
    return Path("cards")


def gathered(cards):
    return grids_with_branches(read_grids_of_shapes(cards))["short"]


def lines_of(text, title):
    """The cells of the lines of the table whose header begins with a title."""
    table = next(part for part in text.split("\n\n") if part.startswith(f"| {title}"))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_the_page_has_every_budget(cards):
    """Mean, sd and seeds; the shape that has not run is left out of the scores, and said not to be tested."""
    write_curves(cards, read_grids_of_shapes(cards))
    text = (cards / "curves.md").read_text()
    header, *lines = lines_of(text, "layers × heads")
    assert header[2:] == ["5,120 tokens", "10,240 tokens", "20,480 tokens"] and len(lines) == 3
    for line, shape in zip(lines[1:], COST):
        for cell, branch in zip(line[2:], BUDGETS):
            values = [loss(shape, branch, seed) for seed in (1, 2, 3)]
            assert cell == f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f} (3)"
    assert "3 × 4 − 4 × 4 not tested, 0 of its pairs of runs are there" in text
    assert all((cards / f"curves-short-{theme}.svg").is_file() for theme in ("light", "dark"))


def test_the_page_has_the_contrasts_with_plus_for_better(cards):
    """At equal tokens, and at equal FLOPs where the deep shape has read half as much; with p by scipy."""
    write_curves(cards, read_grids_of_shapes(cards))
    text = (cards / "curves.md").read_text()
    _, _, tokens, flops = lines_of(text, "first − second")
    assert (tokens[0], tokens[1], flops[0], flops[1]) == ("2 × 4 − 4 × 4", "tokens", "", "FLOPs")
    for share, line in ((1.0, tokens), (0.5, flops)):
        for cell, branch in zip(line[2:], BUDGETS):
            if branch * share < BUDGETS[0]:
                assert cell == "–"
                continue
            own = [loss("lean.json", branch, seed) for seed in (1, 2, 3)]
            others = [loss("deep.json", branch * share, seed) for seed in (1, 2, 3)]
            expected = stats.ttest_rel(others, own)  # a lower loss is better
            low, high = expected.confidence_interval()
            assert cell == f"{np.mean(others) - np.mean(own):+.3f} ({low:+.3f} to {high:+.3f})"
    last = stats.ttest_rel(*([loss(shape, BUDGETS[-1], seed) for seed in (1, 2, 3)] for shape in COST)).pvalue
    assert f"2 × 4 − 4 × 4 p {last:.3g}, corrected {2 * last:.3g};" in text


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
        values = np.array([[loss("lean.json", branch, seed) for branch in BUDGETS] for seed in (1, 2, 3)])
        for got, expected in ((lean.y, values.mean(0)), (lean.low, values.min(0)), (lean.high, values.max(0))):
            assert got == pytest.approx(expected)
    (line,) = contrasts_panel(found.evidence).lines
    differences = [[loss("deep.json", b, s) - loss("lean.json", b, s) for s in (1, 2, 3)] for b in BUDGETS]
    assert line.y == pytest.approx(np.mean(differences, axis=1))
    half = stats.t.ppf(0.975, 2) * np.std(differences, axis=1, ddof=1) / 3**0.5
    assert line.low == pytest.approx(line.y - half) and line.high == pytest.approx(line.y + half)
    assert curves_figure(found, "light") == curves_figure(found, "light") != curves_figure(found, "dark")


def test_the_index_names_the_page(cards):
    """Until the grid's first branch has ended there is no page, and no word of one."""
    text = write_index(cards).read_text()
    assert "[a page of its own](curves.md): `short`" in text and (cards / "curves.md").is_file()
    results = cards / "grids" / "short" / "results.csv"
    header, trunk = results.read_text().splitlines()[:2]
    results.write_text(f"{header}\n{trunk.replace('report', 'trunk').replace(str(BUDGETS[0]), '')}\n")
    (cards / "curves.md").unlink()
    assert "curves.md" not in write_index(cards).read_text() and not (cards / "curves.md").exists()


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


def test_labels_say_in_what_a_shape_differs(cards):
    evidence = gathered(cards).evidence
    cell = evidence.cells[1]
    narrow = cell.model_copy(update={"width": cell.width // 2, "mlp": cell.mlp // 2})
    thin = cell.model_copy(update={"mlp": cell.mlp // 2})
    assert short_label(cell, evidence) == "2 × 4"
    assert short_label(narrow, evidence) == f"2 × 4 of width {cell.width // 2}"
    assert short_label(thin, evidence) == f"2 × 4 with MLP {cell.mlp // 2}"
    both = narrow.model_copy(update={"mlp": cell.mlp})
    assert short_label(both, evidence) == f"2 × 4 of width {cell.width // 2} with MLP {cell.mlp}"


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
    for change in ({"value": 0.5}, {"tokens": 641}, {"weights_sha256": "0" * 64}):
        branches = [results["branches"][0], {**results["branches"][1], **change}]
        write_json(folder / "results.json", {**results, "branches": branches})
        leaner("card", folder)
        with pytest.raises(SystemExit):
            leaner("verify-cards", folder, "--data_files", "text=data")
        assert f"results.json: branches.1.{next(iter(change))} is " in capsys.readouterr().err
    (folder / "results.json").write_text(kept)
    leaner("card", folder)
