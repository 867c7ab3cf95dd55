"""model_cards/README.md: the published folders and every cell of every grid; written from their files, not by hand."""

import json
from dataclasses import replace
from pathlib import Path

from . import report
from .comparison import MAX_P, MIN_PAIRS, holm
from .evidence import KINDS, baseline_of, gather, kind
from .grid import load_grid
from .published import claims, duration, how_trained, is_local, notes_on, number, score, table


HEAD = """# Model cards

Written by `leaner card` from the folders here and the results.csv of each grid. One folder per published model,
exactly what is pushed to the Hub; `make verify-cards` recomputes their numbers from the weights alone. What was
expected before each grid and what came out, failures too, is in [LOG.md](LOG.md).
"""


def folders_table(cards: Path) -> str:
    """The published folders, one line each."""
    lines = ["| folder | shape | parameters | data | held-out metric |", "|---|---|---|---|---|"]
    for path in sorted(config.with_name("results.json") for config in cards.glob("*/config.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        if "evidence" not in results:
            continue
        metric, name = results["main_metric"].removeprefix("eval_"), path.parent.name
        value = f"{metric} {results['metrics'][f'eval_{metric}']:.4f} on {results['rows']:,} rows"
        data = results.get("dataset_config") or results["dataset"]
        data += ", a local copy that its card describes" if is_local(results) else ""
        lines.append(f"| [{name}]({name}) | {results['cell']} | {results['parameters']:,} | {data} | {value} |")
    return "\n".join(lines) if len(lines) > 2 else "None is published yet."


def grid_section(name: str, evidence: dict) -> str:
    """One grid: how far it is, its cells, and what they allow to be said."""
    planned = evidence["planned"]
    done = sum(cell["n"] for cell in evidence["cells"])
    far = "all" if done == planned else f"{done} of {planned}"
    seeds = ", ".join(map(str, evidence["seeds"]))
    rates = ", ".join(f"{rate:g}" for rate in evidence["learning_rates"])
    about = f"{how_trained(evidence)} Seeds {seeds}, learning rates tried {rates}; {far} reported runs "
    about += f"finished, {evidence['failed']} failed, {duration(evidence['hours'])}."
    return "\n\n".join((f"### {name}", about, table(evidence, ""), claims(evidence), notes_on(evidence))) + "\n"


def verdicts(found: dict[str, dict]) -> str:
    """Non-inferiority of every cell over all grids, corrected together; or that none can be tested."""
    raw = {
        f"{cell['shape']} on {name}": cell["p_non_inferiority"]
        for name, evidence in found.items()
        for cell in evidence["cells"]
        if cell["p_non_inferiority"] is not None
        and cell["pairs"] == len(evidence["seeds"]) >= MIN_PAIRS
        and baseline_of(evidence)["learned"]
    }
    if not raw:
        most = max((cell["n"] for evidence in found.values() for cell in evidence["cells"]), default=0)
        needed = f"{MIN_PAIRS} seeds (the most here is {most}), a margin fixed before the first run, and a baseline"
        return f"“No loss of quality” needs {needed} that has learned. No cell has all of it: none is decided."
    lines = [
        f"- {name}: p = {number(raw[name], '.3g')}, corrected {number(value, '.3g')}: "
        + ("no loss of quality within the margin." if value < MAX_P else "undecided.")
        for name, value in holm(raw).items()
    ]
    said = "Non-inferiority, one-sided paired t, corrected by Holm over the comparisons below:\n\n" + "\n".join(lines)
    said += "\n\nWhere seeds were added after others had been seen, [LOG.md](LOG.md) says so."
    if sum(len(evidence["cells"]) - 1 for evidence in found.values()) > len(raw):
        lacking = f"fewer than {MIN_PAIRS} seeds, a missing or failed one, no margin, or a baseline"
        said += f" Nothing is decided of the other cells: {lacking} not known to have learned."
    return said


def render(cards: Path) -> str:
    """The index's text. Raises ValueError or GridError where a grid's files do not fit."""
    found = {}
    for path in sorted(cards.glob("grids/*/results.csv")):
        grid = load_grid(path.parent / "grid.yaml")
        found[path.parent.name] = gather(replace(grid, beside=None))  # which has a section of its own
    overview = [f"| grid | {' | '.join(KINDS)} |", "|---" * (1 + len(KINDS)) + "|"]
    for name, evidence in found.items():
        cells = {kind(cell, evidence): score(cell, ".4f") for cell in evidence["cells"]}
        if cells.keys() == set(KINDS):
            said = f"{name}, {evidence['metric']}"
            said += ", not learned" if baseline_of(evidence)["learned"] is False else ""
            overview.append(f"| {said} | " + " | ".join(cells[each] for each in KINDS) + " |")
    parts = [HEAD, "## Published folders\n", folders_table(cards), "\n## All cells\n"]
    parts += ["\n".join(overview), "", verdicts(found), "", *(grid_section(*each) for each in found.items())]
    return "\n".join(parts).rstrip() + "\n" if found else "\n".join(parts[:3]) + "\n"


def write_index(cards: Path) -> Path:
    """Writes README.md of the folder of cards."""
    if not cards.is_dir():
        raise ValueError(f"{cards}: expected the folder of published models, found none")
    report.write_bytes(cards / "README.md", render(cards).encode())
    return cards / "README.md"
