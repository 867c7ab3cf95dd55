"""model_cards/README.md: its tables are renewed from the rows, and nothing else on the page is touched."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from modeling_leaner.training.publishing import index
from scipy import stats


ROOT = Path(__file__).parent.parent
CARDS = ROOT / "model_cards"


@pytest.fixture(autouse=True)
def in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def page():
    return (CARDS / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def grids():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return index.read_grids(CARDS)


def table_of(page: str, name: str) -> str:
    (found,) = (match[3] for match in index.TABLE.finditer(page) if match[2] == name)
    return found


def test_the_page_is_as_renewed(page, grids):
    assert index.render(CARDS, grids) == page
    shown = {name for _, name, _, _ in index.TABLE.findall(page)}
    assert shown == {"sentence encoders", "miniatures", *(grid["table"] for grid in grids.values())}


def test_only_what_stands_between_markers_changes(page, tmp_path):
    """Prose stays, a broken table is mended, a section that was deleted comes back at the end."""
    for name in ("cifar10", "minilm", "enwik8-text-causal-27m"):
        shutil.copytree(CARDS / "grids" / name, tmp_path / "grids" / name)
    edited = page.replace(table_of(page, "cifar10"), "| an old table |\n").replace("# Results", "# Our own words", 1)
    section = edited.index("### minilm")
    edited = edited[:section] + edited[edited.index("<!-- end -->", section) :].removeprefix("<!-- end -->")
    (tmp_path / "README.md").write_text(edited)
    renewed = index.write_index(tmp_path).read_text(encoding="utf-8")
    assert renewed.startswith("# Our own words") and table_of(renewed, "cifar10") == table_of(page, "cifar10")
    assert renewed.index("### minilm\n") > renewed.index("### cifar10")
    assert table_of(renewed, "minilm") == table_of(page, "minilm")
    between = re.compile(r"(?<=-->\n).*?(?=<!-- end -->)", re.DOTALL)
    assert between.sub("", renewed).startswith(between.sub("", edited))
    figures = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert index.write_index(tmp_path).read_text(encoding="utf-8") == renewed
    assert figures == {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")} and figures


def test_a_grid_without_a_finished_run_is_left_out(tmp_path):
    for name in ("cifar10", "wnli"):
        shutil.copytree(CARDS / "grids" / name, tmp_path / "grids" / name)
    rows = pd.read_csv(tmp_path / "grids/cifar10/results.csv")
    rows[rows["phase"] == "tune"].to_csv(tmp_path / "grids/cifar10/results.csv", index=False)
    assert "cifar10" not in index.write_index(tmp_path).read_text(encoding="utf-8")


def test_a_new_project_gets_a_page(tmp_path):
    shutil.copytree(CARDS / "grids/wnli", tmp_path / "grids/wnli")
    text = index.write_index(tmp_path).read_text(encoding="utf-8")
    assert "4 × 6 × 16: 0.5399 ± 0.0407 (3)" in table_of(text, "not learned")


def differences(grid: str) -> dict[str, str]:
    """Shape → its difference from the baseline as the page writes it, from results.csv and scipy alone."""
    rows = pd.read_csv(CARDS / "grids" / grid / "results.csv")
    summary = json.loads((CARDS / "grids" / grid / "summary.json").read_text())
    rows = rows[(rows["phase"] == "report") & (rows["status"] == "finished")]
    if summary["branches"]:
        rows = rows[rows["branch"].fillna(max(summary["branches"])) == max(summary["branches"])]
    values = rows.pivot(index="seed", columns="shape", values="value")
    sign = 1 if rows["higher_is_better"].iloc[0] else -1
    found = {}
    for shape in values.columns.drop(summary["baseline"]):
        each = (sign * (values[shape] - values[summary["baseline"]])).dropna()
        low, high = stats.ttest_1samp(each, 0).confidence_interval()
        found[shape] = f"{each.mean():+.3f} ({low:+.3f} to {high:+.3f})"
    return found


@pytest.mark.parametrize("grid", ["enwik8-text-causal-curves", "listops-short-heads", "cifar10", "minilm"])
def test_the_numbers_are_in_the_rows(page, grids, grid):
    known = grids[grid]
    found = differences(grid)
    assert len(found) == len(known["shapes"]) - 1
    for shape, text in found.items():
        name = index.label(known, shape)
        (line,) = (line for line in table_of(page, grid).splitlines() if line.startswith(f"| {name} |"))
        assert line.endswith(f"| {text} |")
