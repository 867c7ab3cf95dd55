"""`leaner report`: the numbers of the page, what it escapes and refuses, and the page in a headless Chromium."""

import base64
import csv
import hashlib
import html.parser
import io
import json
import os
import re
import shutil
import statistics
import sys
from pathlib import Path

import browser
import pytest
import yaml
from command import leaner
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.experiments.rows import reported, write_rows
from modeling_leaner.training.publishing import gathered_grids, report_data, tables
from modeling_leaner.training.publishing.wording.scoring import best_of, has_outliers
from modeling_leaner.training.records import Guess, ResultRow
from PIL import Image
from scipy import stats
from training_data import write_shape


ROOT = Path(__file__).parent.parent
CHROMIUM = browser.find()
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to open the page in")
HOSTILE = """"'><img src=x onerror=hacked=1><script>hacked=1<br>"""  # a name of a folder
CLOSING = "</script><script>hacked=1</script><!-- <script>"
STEP, BRANCHES = 16 * 32, [10 * 512, 20 * 512, 40 * 512]


class Reader(html.parser.HTMLParser):
    """The tags of a page with their attributes, the text of scripts and styles, and the rows of its table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inline, self.rows = [], [], []
        self.within = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.within = tag
        if tag in ("script", "style"):
            self.inline.append((tag, dict(attributes), []))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.within = None

    def handle_data(self, data):
        if self.within in ("script", "style"):
            self.inline[-1][2].append(data)
        if self.within in ("td", "th"):
            self.rows[-1][-1] += data

    def data(self):
        """What the page's script reads."""
        (text,) = ["".join(parts) for _, attributes, parts in self.inline if attributes.get("id") == "data"]
        return json.loads(text)

    def marks(self):
        return [mark for panel in self.data()["panels"] for mark in panel["marks"]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of this project's own grids."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        leaner("report", "--output", path)
        yield path, gathered_grids.read_grids(Path("model_cards"))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def read(written):
    return Reader(written[0].read_text(encoding="utf-8"))


def copied(folder, name, **values):
    """A grid of this project under another name, in model_cards of a folder."""
    place = folder / "model_cards" / "grids" / name
    shutil.copytree(ROOT / "model_cards" / "grids" / "rte", place)
    keys = yaml.safe_load((place / "grid.yaml").read_text())
    keys |= {"output_dir": str(place.relative_to(folder)), "start_from": None, "start_seed": None, **values}
    (place / "grid.yaml").write_text(yaml.safe_dump(keys))


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A page of a grid whose name and words would be tags."""
    monkeypatch.chdir(tmp_path)
    copied(tmp_path, HOSTILE, unsound_tuning=CLOSING)
    leaner("report")
    return tmp_path / "report.html"


def test_every_cell_of_every_grid_is_in_the_table(written, read):
    header, *rows = read.rows
    assert header == list(report_data.COLUMNS)
    cells = [
        (name, tables.shape_and_start(cell), f"{cell.width:,}", f"{cell.mlp:,}")
        for name, known in written[1].items()
        for cell in known.evidence.cells
    ]
    assert len(cells) > 50 and {tuple(row[:4]) for row in rows} == set(cells)
    grids = [known.results.grid for known in written[1].values()]
    lengths = [len(grid.branches or [None]) * len(grid.shapes) for grid in grids]
    assert len(rows) == sum(lengths)
    assert [row[0] for row in rows] == [mark["grid"] for mark in read.marks()]


def test_the_numbers_are_those_of_the_evidence(written, read):
    """Each mark beside the cell, and beside what scipy makes of the rows."""
    marks = {(mark["grid"], mark["shape"]): (mark, row) for mark, row in zip(read.marks(), read.rows[1:])}
    compared = 0
    for name, known in written[1].items():
        evidence = known.evidence
        for cell in evidence.cells:
            mark, row = marks[name, cell.shape]
            own, difference = mark["measures"]["score"], mark["measures"]["difference"]
            if cell.n == 0:
                assert own is difference is None and row[5] == "not run"
                continue
            values = list(cell.values.values())
            if has_outliers(evidence):
                assert own == {"value": statistics.median(values), "low": None, "high": None}
                assert row[5].startswith(f"median {own['value']:.4f}") and difference["low"] is None
                continue
            assert own["value"] == pytest.approx(stats.tmean(values)) == cell.mean
            assert row[5] == f"{cell.mean:.4f}" + ("" if cell.n < 2 else f" ± {cell.sd:.4f}") + f" ({cell.n})"
            if cell.n > 1:
                assert [own["low"], own["high"]] == pytest.approx([cell.mean - cell.sd, cell.mean + cell.sd])
            up = 1 if evidence.higher_is_better else -1
            if cell.interval is not None:
                assert difference["value"] == pytest.approx(up * cell.difference)
                ends = sorted(up * end for end in cell.interval)
                assert [difference["low"], difference["high"]] == ends
                assert row[6] == f"{difference['value']:+.3f} ({ends[0]:+.3f} to {ends[1]:+.3f})"
                compared += 1
    assert compared > 15


def test_costs_are_those_of_the_rows(written, read):
    """From results.csv itself; tokens of text are steps × 16 rows × 128, of images 64 × 65."""
    marks = {(mark["grid"], mark["shape"]): mark["costs"] for mark in read.marks()}
    for name, known in written[1].items():
        file = (ROOT / "model_cards/grids" / name / "results.csv").read_text()
        all_rows = [row for row in csv.DictReader(io.StringIO(file)) if row["phase"] == "report" and row["value"]]
        for cell in known.evidence.cells:
            seeds, rate = known.results.grid.seeds_for(cell.shape), cell.learning_rate
            rows = [row for row in all_rows if row["shape"] == cell.shape and int(row["seed"]) in seeds]
            rows = [row for row in rows if float(row["learning_rate"]) == rate]
            rows = [row for row in rows if row.get("branch", "") in ("", str(known.results.grid.longest))]
            costs = marks[name, cell.shape]
            assert len(rows) == cell.n
            if not rows:
                assert costs["seconds"] is costs["memory"] is costs["tokens"] is None
                continue
            assert costs["parameters"] == int(rows[0]["parameters"])
            assert costs["seconds"] == pytest.approx(stats.tmean([float(row["seconds"]) for row in rows]))
            assert costs["memory"] == max(int(row["peak_memory_bytes"]) for row in rows) / 2**30
            assert costs["milliseconds"] == (cell.latency and 1e3 * cell.latency.one.seconds)
            per_step = {"enwik8-text-causal": 2048, "enwik8-text-masked": 2048, "cifar10": 64 * 65}.get(name)
            if per_step is not None:
                assert costs["tokens"] == stats.tmean([int(row["steps"]) for row in rows]) * per_step
                assert costs["flops"] > 6 * costs["tokens"] * 1e5
    assert marks["cola", "bert/mini"]["tokens"] is None  # its rows are of different lengths


def test_what_is_not_comparable_shares_no_chart(written, read):
    panels = read.data()["panels"]
    for panel in panels:
        evidences = [written[1][name].evidence for name in panel["grids"]]
        assert len({(evidence.recipe, evidence.metric) for evidence in evidences}) == 1
        assert {mark["grid"] for mark in panel["marks"]} == set(panel["grids"])
    assert sorted(name for panel in panels for name in panel["grids"]) == sorted(written[1])
    (listops,) = [panel for panel in panels if "listops-short" in panel["grids"]]
    assert "Not all on the same held-out rows" in listops["notes"][0] and "20,000" in listops["notes"][0]
    guesses = {name: best_of(written[1][name].evidence) for name in listops["grids"]}
    for line in listops["guesses"]:
        name = line["text"].split(": ")[1].rpartition(",")[0]
        for grid in line["grids"]:
            assert guesses[grid] == Guess(name=name, value=line["value"])
    named = sorted(name for line in listops["guesses"] for name in line["grids"])
    assert named == sorted(name for name, best in guesses.items() if best is not None) != []


def test_nothing_is_loaded_and_only_what_is_hashed_runs(read):
    """Whatever is inline has its hash in the policy; there is no other script, style, picture, link or handler."""
    (policy,) = [attributes["content"] for _, attributes in read.tags if "http-equiv" in attributes]
    expected = {"script": set(), "style": {"'sha256-" + base64.b64encode(hashlib.sha256(b"").digest()).decode() + "'"}}
    for tag, attributes, parts in read.inline:
        if attributes.get("type") != "application/json":
            digest = hashlib.sha256("".join(parts).encode()).digest()
            expected[tag].add(f"'sha256-{base64.b64encode(digest).decode()}'")
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives.keys() == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert [directives.pop(name) for name in ("default-src", "base-uri", "form-action")] == ["'none'"] * 3
    assert {name: set(words.split()) for name, words in directives.items()} == {
        "script-src": expected["script"],
        "style-src": expected["style"],
    }
    names = {name for _, attributes in read.tags for name in attributes}
    assert not names & {"src", "href", "style", "srcset", "action", "data"}
    assert not [name for name in names if name.startswith("on")]


def test_the_page_says_what_it_shows_how_large_it_is_and_waits_for_scripts(written, read):
    text = written[0].read_text(encoding="utf-8")
    cells = sum(len(known.evidence.cells) for known in written[1].values())
    assert f"{cells} cells of {len(written[1])} grids" in text
    assert f"It is {len(text.encode()) / 1e6:.1f} MB," in text
    hidden = [attributes.get("id") for _, attributes in read.tags if "hidden" in attributes]
    assert hidden == ["controls", "charts"] and "<noscript>" in text


def test_branches_are_marks_of_their_own(tmp_path, monkeypatch):
    """Made-up rows of two shapes and three branches: scores, costs and differences at each of them."""
    monkeypatch.chdir(tmp_path)
    for name, layers in (("deep", 4), ("lean", 2)):
        Path(write_shape("gpt", tmp_path, num_hidden_layers=layers)).rename(f"{name}.json")
    folder = Path("model_cards/grids/long")
    folder.mkdir(parents=True)
    overrides = {"max_length": 32, "max_steps": 64, "warmup_steps": 2, "lr_scheduler_type": "warmup_stable_decay"}
    values = {"recipe": "enwik8-text-causal", "shapes": ["deep.json", "lean.json"], "baseline": "deep.json"}
    values |= {"seeds": [1, 2, 3], "learning_rates": [1e-3], "branches": BRANCHES, "overrides": overrides}
    (folder / "grid.yaml").write_text(yaml.safe_dump(values | {"output_dir": str(folder)}))
    grid = load_grid(folder / "grid.yaml")
    losses = {}
    rows = []
    for shape in grid.shapes:
        for branch in BRANCHES:
            losses[shape, branch] = [
                6 - branch / 1e5 + 0.01 * seed**2 * len(shape + str(branch)) for seed in (1, 2, 3)
            ]
            for seed, loss in zip(grid.seeds, losses[shape, branch]):
                run = reported(grid, shape, seed, 1e-3, branch)
                cells = {"status": "finished", "metric": "loss", "value": loss, "higher_is_better": 0}
                cells |= {"tokens": branch, "training_flops": 70 * branch, "steps": branch // STEP, "seconds": 9.0}
                cells |= {"parameters": 1000, "peak_memory_bytes": 2**30}
                rows.append(ResultRow.from_cells({**run._asdict(), **cells}))
    with (folder / "results.csv").open("w", newline="") as file:
        write_rows(rows, file)
    times = {shape: {"seconds": 0.5, "tokens": STEP} for shape in grid.shapes}
    (folder / "step_seconds.json").write_text(json.dumps({"shapes": times}))
    leaner("report", "--output", "long.html")
    found = Reader(Path("long.html").read_text(encoding="utf-8"))
    assert (
        len(found.rows) == 1 + 6 and "2 cells of 1 grid, 6 marks with their branches" in Path("long.html").read_text()
    )
    for mark, (shape, branch) in zip(found.marks(), losses):
        assert mark["shape"] == shape and f"after {branch:,} tokens" in mark["tooltip"]
        assert mark["measures"]["score"]["value"] == pytest.approx(stats.tmean(losses[shape, branch]))
        costs = {"tokens": branch, "flops": 70 * branch, "seconds": 9.0, "memory": 1.0, "parameters": 1000}
        assert {name: mark["costs"][name] for name in costs} == costs
        assert mark["costs"]["step_seconds"] == branch // STEP * 0.5
        if shape == "lean.json":
            test = stats.ttest_rel(losses["deep.json", branch], losses[shape, branch])
            difference = mark["measures"]["difference"]
            assert [difference["low"], difference["high"]] == pytest.approx([*test.confidence_interval()])
        assert (f"verdict: {report_data.BEFORE_THE_END}" in mark["tooltip"]) == (branch != BRANCHES[-1])


def test_hostile_names_are_text(hostile):
    found = Reader(hostile.read_text(encoding="utf-8"))
    assert {row[0] for row in found.rows[1:]} == {HOSTILE}
    assert "img" not in {tag for tag, _ in found.tags}
    assert [attributes.get("type") for tag, attributes in found.tags if tag == "script"] == [
        "application/json",
        None,
        None,
    ]
    assert CLOSING in "".join(found.data()["panels"][0]["notes"]) and HOSTILE in found.data()["panels"][0]["grids"]


def test_what_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"model_cards/grids: expected the folder of the grids' rows, found none"):
        leaner("report")
    Path("model_cards/grids/empty").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"model_cards/grids: no run of any grid has ended yet"):
        leaner("report")
    Path("folder.html").mkdir()
    for output, message in (
        ("folder.html", "--output: folder.html is a folder, expected a file's name"),
        ("README.md", r"--output: expected a file's name that ends in .html, got README.md"),
        ("nowhere/report.html", r"cannot be written \(no folder nowhere\)"),
    ):
        with pytest.raises(SystemExit, match=message):
            leaner("report", "--output", output)
    copied(tmp_path, "rte")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SystemExit, match=r'pip install "\.\[report\]" in a clone'):
        leaner("report")
    assert not list(Path().glob("*report*"))


def test_an_older_page_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied(tmp_path, "rte")
    page = Path("report.html")
    page.write_text("older")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full_disk)
        with pytest.raises(SystemExit, match="No space left"):
            leaner("report")
    assert page.read_text() == "older" and [path.name for path in Path().glob("*report*")] == ["report.html"]
    leaner("report")
    assert "rte" in page.read_text(encoding="utf-8")


def known_of(marks, x, y="score"):
    return [mark for mark in marks if mark["measures"][y] is not None and mark["costs"][x] is not None]


def corner(path):
    """The colour of the first pixel of a picture."""
    with Image.open(path) as image:
        return image.convert("RGB").getpixel((0, 0))


def check_still(page, address):
    """Nothing was complained of, and nothing but the page was asked for."""
    assert page.complaints() == []
    assert page.requests() == [address]


DRAWN = "document.querySelectorAll('.panel:not([hidden]) .points path').length"
STATUS = "document.getElementById('status').textContent"


@needs_chromium
def test_the_page_in_a_browser(written, read, tmp_path):
    """Opened, filtered, its axis changed, pointed at, in both themes; no error and no request."""
    marks = read.marks()
    masked = [mark for panel in read.data()["panels"] if panel["task"] == "masked-lm" for mark in panel["marks"]]
    address = written[0].as_uri()
    with browser.Page(CHROMIUM, tmp_path / "profile") as page:
        page.open(address)
        assert page.ask(DRAWN) == len(known_of(marks, "parameters"))
        bars = [mark for mark in known_of(marks, "parameters") if mark["measures"]["score"]["low"] is not None]
        assert page.ask("document.querySelectorAll('.errorbar').length") == len(bars)
        page.choose("x", "tokens")
        known = known_of(marks, "tokens")
        assert page.ask(DRAWN) == len(known) < len(marks)
        run = [mark for mark in marks if mark["measures"]["score"] is not None]
        unknown = f"{len(run) - len(known)} (unknown: training tokens)"
        assert page.ask(STATUS).startswith(f"{len(known)} of {len(marks)} marks drawn; left out: ")
        assert unknown in page.ask(STATUS)
        page.choose("task", "masked-lm")
        assert page.ask(DRAWN) == len(masked) and page.ask(STATUS) == f"{len(masked)} of {len(masked)} marks drawn."
        assert page.ask("document.querySelectorAll('tbody tr:not([hidden])').length") == len(masked)
        assert page.ask("document.querySelector('.panel:not([hidden]) .xtitle').textContent") == "training tokens"
        page.point_at(".panel:not([hidden]) .points path")
        shown = page.wait_for("document.querySelector('.hovertext')?.textContent")
        assert shown in ["".join(mark["tooltip"]) for mark in masked]
        page.choose("grid", "enwik8-text-masked")
        page.choose("y", "difference")
        page.choose("theme", "light")
        page.screenshot(tmp_path / "light.png")
        page.choose("theme", "dark")
        page.screenshot(tmp_path / "dark.png")
        assert corner(tmp_path / "light.png") == (255, 255, 255) and corner(tmp_path / "dark.png") == (13, 17, 23)
        stated = page.ask("location.hash")
        assert stated == "#task=masked-lm&grid=enwik8-text-masked&x=tokens&y=difference&theme=dark"
        check_still(page, address)


@needs_chromium
def test_a_view_can_be_linked(written, tmp_path):
    """The address sets the controls; what it misspells is as at first, and a later address is followed, too."""
    view = "Object.fromEntries([...document.querySelectorAll('select')].map((each) => [each.id, each.value]))"
    stated = {"task": "masked-lm", "grid": "enwik8-text-masked", "x": "flops", "y": "difference", "theme": "dark"}
    first = {"task": "", "grid": "", "x": "parameters", "y": "score", "theme": ""}
    address = written[0].as_uri()
    with browser.Page(CHROMIUM, tmp_path / "profile") as page:
        page.open(f"{address}#" + "&".join(f"{name}={value}" for name, value in stated.items()))
        assert page.ask(view) == stated
        page.ask("location.hash = '#task=none&x=%3Cscript%3E&y=scores&grid=cola'")
        page.wait_for(
            f"JSON.stringify({view}) === {json.dumps(json.dumps({**first, 'grid': 'cola'}, separators=(',', ':')))}"
        )
        page.choose("task", "masked-lm")
        assert page.ask(view) == {**first, "task": "masked-lm"}  # which cola is not of
        assert page.ask("document.getElementById('grid').selectedIndex") == 0
        assert re.findall(r"\d+", page.ask(STATUS))[0] == str(page.ask(DRAWN))
        assert page.complaints() == []


@needs_chromium
def test_hostile_names_in_a_browser(hostile, tmp_path):
    with browser.Page(CHROMIUM, tmp_path / "profile") as page:
        page.open(hostile.as_uri())
        page.point_at(".points path")
        assert HOSTILE in page.wait_for("document.querySelector('.hovertext')?.textContent")
        page.choose("grid", HOSTILE)
        assert HOSTILE in page.ask("document.querySelector('.legend').textContent")
        assert page.ask(DRAWN) == 2 and page.ask("typeof window.hacked") == "undefined"
        check_still(page, hostile.as_uri())
