"""What figures of pages share: colours in both of GitHub's themes, the width of a README, the file of a picture."""

import io
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure


@dataclass
class Theme:
    """Colours of a figure of a page, which has no background of its own."""

    text: str
    faint: str
    band: str
    mark: str


THEMES = {  # as of GitHub's
    "light": Theme(text="#1f2328", faint="#59636e", band="#ddf4ff", mark="#0969da"),
    "dark": Theme(text="#e6edf3", faint="#9198a1", band="#12324f", mark="#58a6ff"),
}
WIDTH = 8.6  # inches of 96 pixels: a README's width


def png(figure: Figure) -> bytes:
    """The picture's file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    return content.getvalue()


def image_of_page(figure: Figure, name: str, form: str) -> bytes:
    """A figure of the README or the index, without a background, as `png` or `svg`; text is drawn as paths.

    Equal figures of the same name give equal bytes.
    """
    metadata = None
    if form == "svg":
        metadata = {"Date": None}
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(content, format=form, transparent=True, metadata=metadata, dpi=192)
    return content.getvalue()
