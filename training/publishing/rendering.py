"""Markdown: the templates of `templates/`, and tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from huggingface_hub import ModelCard

from ..running.card import templates_in


TEMPLATES = Path(__file__).parent / "templates"
ENVIRONMENT = templates_in(TEMPLATES)


def millions(count: float) -> str:
    """`4.1M`; below a million with thousands separated."""
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count:,.0f}"


ENVIRONMENT.globals["millions"] = millions


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a | within a cell is escaped, for it would end the cell."""
    rows = [header, ["---"] * len(header), *lines]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def fill_card(template: str, **values: object) -> str:
    """The text of a template that begins with metadata.

    Raises:
        ValueError: the metadata is no YAML for the Hub.
        jinja2.UndefinedError: the template names a value that is not given.
    """
    return str(ModelCard(ENVIRONMENT.get_template(template).render(values)))
