"""A grid's summary in print: tables and notes for people, the document on the last line for programs."""

import json

import pandas as pd

from .grid import Grid, short_name
from .statistics import Summary


SHOWN = {  # what of a shape is in the table: heading and format
    "learning_rate": ("rate", "g"),
    "n": ("n", "d"),
    "mean": ("mean", ".4f"),
    "sd": ("± sd", ".4f"),
    "median": ("median", ".4f"),
    "failure_rate": ("failed or worse", ".0%"),
    "difference": ("difference", "+.4f"),
    "interval": ("95 % interval", "+.4f"),
    "p": ("p", ".3g"),
    "p_non_inferiority": ("p non-inferior", ".3g"),
    "parameters": ("parameters", ",d"),
    "parameters_over_baseline": ("of base", ".0%"),
    "seconds": ("seconds", ".1f"),
}


def _text(value: object, form: str) -> str:
    """A number, or the numbers of a list, by a format; a dash for None."""
    if value is None:
        return "–"
    return " ".join(format(number, form) for number in (value if isinstance(value, list) else [value]))


def _verdict(cell: Summary) -> str:
    """A cell's verdict; that of a baseline says if it has not learned, which is why the others have none."""
    return "baseline, not learned" if cell["verdict"] == "baseline" and cell["learned"] is False else cell["verdict"]


def _reading(reading: Summary) -> str:
    """A difference at equal cost, with its interval and the error of the interpolation."""
    if reading["difference"] is None:
        return "–"
    error = reading["interpolation_error"]
    known = "" if error == 0 else f" ± {'unknown' if error is None else format(error, '.4f')}"
    return f"{reading['difference']:+.4f} ({_text(reading['interval'], '+.4f')}){known}"


def shape_table(summary: Summary, grid: Grid) -> str:
    """What SHOWN says of each shape, and the verdict."""
    direction = {None: "", True: ", higher is better", False: ", lower is better"}[summary["higher_is_better"]]
    caption = (
        f"{summary['metric'] or 'no metric yet'}{direction}; failed or worse: runs that failed, or are worse than the "
        f"best simple guess; difference from {short_name(grid, grid.baseline)} over the same seeds"
    )
    rows = [
        {heading: _text(cell[name], form) for name, (heading, form) in SHOWN.items()} | {"verdict": _verdict(cell)}
        for cell in summary["shapes"]
    ]
    names = [short_name(grid, cell["shape"]) for cell in summary["shapes"]]
    return f"{pd.DataFrame(rows, index=names).to_string()}\n{caption}"


def curves_table(summary: Summary) -> str:
    """Mean ± sd of each shape at each budget."""
    columns = {
        f"{budget['branch']:,} tokens": {
            cell["shape"]: f"{_text(cell['mean'], '.4f')} ± {_text(cell['sd'], '.4f')}" for cell in budget["shapes"]
        }
        for budget in summary["curves"]
    }
    return pd.DataFrame(columns).to_string()


def readings_table(summary: Summary) -> str:
    """The difference of each contrast at the cost of each branch, a column for each thing that is equal."""
    readings = pd.DataFrame(summary["readings"])
    readings["pair"] = readings["shape"] + " − " + readings["minus"]
    readings["text"] = [_reading(reading) for reading in summary["readings"]]
    table = readings.pivot(index=["pair", "branch"], columns="equal", values="text")
    return table.rename_axis(columns="at equal").to_string()


def contrast_line(contrast: Summary) -> str:
    """One contrast in words."""
    line = (
        f"{contrast['shape']} − {contrast['minus']}: {_text(contrast['difference'], '+.4f')}, "
        f"95 % interval {_text(contrast['interval'], '+.4f')}, {contrast['pairs']} pairs, "
        f"p {_text(contrast['p'], '.3g')}, corrected {_text(contrast['p_corrected'], '.3g')}"
    )
    if contrast["row_error"] is not None:
        line += f"; standard error by the choice of rows at most {contrast['row_error']:.4f}"
    return line


def show(summary: Summary, grid: Grid) -> None:
    """Prints a grid's summary."""
    print(shape_table(summary, grid))
    for cell in summary["shapes"]:
        if cell["tuning_lead"] is not None:
            choice = f"learning rate {cell['learning_rate']:g} leads by {cell['tuning_lead']:.4f}"
            print(f"{cell['shape']}: {choice}, the tuning seeds differ by {_text(cell['tuning_spread'], '.4f')}")
        for note in cell["notes"]:
            print(f"{cell['shape']}: {note}")
    if summary["curves"]:
        print(curves_table(summary))
    if summary["readings"]:
        print(readings_table(summary))
    for contrast in summary["contrasts"]:
        print(contrast_line(contrast))
    if summary["unsound_tuning"]:
        print(f"the tuning is unsound: {summary['unsound_tuning']}")
    if summary["failed"]:
        print(f"failed runs: {len(summary['failed'])}, see results.csv; the same command tries them again")
    print(json.dumps(summary, allow_nan=False), flush=True)
