"""Markdown: the templates of `templates/`, filled from one dataclass each, and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from huggingface_hub import ModelCard
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape


TEMPLATES = Path(__file__).parent / "templates"
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    autoescape=select_autoescape(),  # HTML; in Markdown there is nothing to escape
)


PAGES = ("LOG.md", "../docs/findings.md", "../docs/slimming.md")  # written by hand; paths from the folder of cards


def pages_beside(cards: Path) -> list[str]:
    """Those of `PAGES` that are there, for a template to link."""
    return [page for page in PAGES if (cards / page).is_file()]


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a | within a cell is escaped, for it would end the cell."""
    rows = [header, ["---"] * len(header), *lines]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def fill(template: str, context: object) -> str:
    """The text of a template with the fields of a dataclass.

    Raises:
        jinja2.UndefinedError: the template names a field that `context` lacks.
    """
    values = {field.name: getattr(context, field.name) for field in fields(context)}
    return ENVIRONMENT.get_template(template).render(values)


def fill_card(template: str, context: object) -> str:
    """The text of a template that begins with metadata.

    Raises:
        ValueError: the metadata is no YAML for the Hub.
        jinja2.UndefinedError: as of `fill`.
    """
    return str(ModelCard(fill(template, context)))
