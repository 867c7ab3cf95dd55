"""`leaner report`: one HTML page with every cell of every grid, charts and data in it, that loads nothing.

plotly.js draws the charts. The page's Content-Security-Policy allows its own scripts and styles by their hashes, and
no request at all; without JavaScript the table of all cells is there.
"""

import base64
import hashlib
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from markupsafe import Markup

from modeling_leaner.support.files import write_bytes

from ..running.finished_folder import CARDS
from .gathered_grids import read_grids
from .rendering import TEMPLATES, fill
from .report_data import AXES, COLUMNS, MEASURES, Panel, count_of, panels_of


THEME_CHOICES = {"": "as the system", "light": "light", "dark": "dark"}
EMPTY_STYLE = ""  # of elements that plotly.js makes for its own rules
MAP_STYLE = re.compile(r'document\.getElementById\("([0-9a-f]{64})"\)')  # plotly.js makes one unless it is there


@dataclass
class ReportContext:
    """What `templates/report.html` names."""

    policy: str
    style: Markup
    map_styles: list[str]
    library: Markup
    library_version: str
    script: Markup
    count: str
    size: str
    tasks: dict[str, str]
    axes: dict[str, str]
    measures: dict[str, str]
    themes: dict[str, str]
    columns: tuple[str, ...]
    panels: list[Panel]
    data: dict[str, object]


def source_of(text: str) -> str:
    """An inline script or style as a Content-Security-Policy allows it: by the hash of its text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def policy_of(scripts: list[str], styles: list[str]) -> str:
    """The Content-Security-Policy of a page that runs these scripts, uses these styles, and requests nothing."""
    allowed_scripts = " ".join(map(source_of, scripts))
    allowed_styles = " ".join(map(source_of, styles))
    return (
        f"default-src 'none'; script-src {allowed_scripts}; style-src {allowed_styles}; "
        "base-uri 'none'; form-action 'none'"
    )


def plotly_source() -> tuple[str, str]:
    """The text of plotly.js and its version. Raises ValueError where plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs, get_plotlyjs_version
    except ImportError as error:
        message = 'plotly is not installed, which draws the charts: pip install ".[report]" in a clone'
        raise ValueError(message) from error
    return get_plotlyjs(), get_plotlyjs_version()


def chart_data(panels: list[Panel]) -> dict[str, object]:
    """What the page's script reads: the panels without what only the table shows."""
    drawn = []
    for panel in panels:
        values = asdict(panel)
        for mark in values["marks"]:
            del mark["columns"]
        drawn.append(values)
    return {"axes": AXES, "measures": MEASURES, "panels": drawn}


def page_of(panels: list[Panel]) -> str:
    """The page's text. Raises ValueError where plotly is not installed."""
    library, version = plotly_source()
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    context = ReportContext(
        policy=policy_of([library, script], [style, EMPTY_STYLE]),
        style=Markup(style),
        map_styles=MAP_STYLE.findall(library),
        library=Markup(library),
        library_version=version,
        script=Markup(script),
        count=count_of(panels),
        size="",
        tasks={panel.task: panel.title.partition(":")[0] for panel in panels},
        axes=AXES,
        measures=MEASURES,
        themes=THEME_CHOICES,
        columns=COLUMNS,
        panels=panels,
        data=chart_data(panels),
    )
    size = len(fill("report.html", context).encode())
    return fill("report.html", replace(context, size=megabytes(size)))


def megabytes(size: int) -> str:
    """Bytes in MB, to a tenth."""
    return f"{size / 1e6:.1f} MB"


def check_output(output: Path) -> None:
    """Raises ValueError where the page cannot be written: no .html file's name, a folder, or no folder to be in."""
    if output.suffix != ".html":
        raise ValueError(f"--output: expected a file's name that ends in .html, got {output}")
    if output.is_dir():
        raise ValueError(f"--output: {output} is a folder, expected a file's name")
    if not output.parent.is_dir():
        raise ValueError(f"--output: {output} cannot be written (no folder {output.parent})")


def write_report(output: Path) -> None:
    """Writes the page of all grids in model_cards/grids, over an older one, whole or not at all; prints its size.

    Raises:
        ValueError: there is no such folder or no run in it, its files do not fit, the page cannot be written there, or
            plotly is not installed.
    """
    check_output(output)
    if not (CARDS / "grids").is_dir():
        raise ValueError(f"{CARDS / 'grids'}: expected the folder of the grids' rows, found none")
    panels = panels_of(read_grids(CARDS))
    if not panels:
        raise ValueError(f"{CARDS / 'grids'}: no run of any grid has ended yet")
    page = page_of(panels).encode()
    write_bytes(output, page)
    print(f"{output}: {count_of(panels)}, {megabytes(len(page))}")
