"""README.md of a study's folder: figure and statements with their verdicts, made of results.json alone."""

from ..publishing.rendering import markdown
from ..records import Statement, StudyFile
from ..running.environment import machine_name


HEADER = ("", "statement", "whose", "verdict", "what was found")
OF_QUICK = "`--quick` checks the code, not the statements: the verdicts that count are those of the other sizes."
PICTURE = """<picture>
<source media="(prefers-color-scheme: dark)" srcset="figure-dark.svg">
<img alt="{title}" src="figure-light.svg">
</picture>"""


def finding_of(statement: Statement) -> str:
    """What was found, or what the test would need."""
    if statement.missing is not None:
        return f"{statement.finding} Needs: {statement.missing}."
    return statement.finding


def line_of(number: int, statement: Statement) -> tuple[str, ...]:
    """A row of the table."""
    where = f"{statement.paper}, {statement.place}; {statement.whose}"
    finding = finding_of(statement)
    if statement.rule is not None:
        finding += f" *Rule:* {statement.rule}."
    return str(number), statement.statement, where, f"**{statement.verdict}**", finding


def verdict_table(results: StudyFile) -> str:
    """Statement, whose it is, verdict and finding alone, as a page of docs/ shows them."""
    lines = [(each.statement, each.whose, each.verdict, finding_of(each)) for each in results.statements]
    return markdown(("statement", "whose", "verdict", "what was found"), lines)


def with_verdicts(page: str, results: StudyFile) -> str:
    """A page of docs/ with its `verdict_table` made anew. Raises ValueError for a page without one."""
    table = verdict_table(results)
    header = table.split("\n")[0]
    before, found, rest = page.partition(f"{header}\n")
    if not found:
        raise ValueError(f"no table that begins {header}")
    _, _, after = rest.partition("\n\n")
    return f"{before}{table}\n\n{after}"


def study_page(results: StudyFile) -> str:
    """The page, in Markdown."""
    table = markdown(HEADER, [line_of(number, each) for number, each in enumerate(results.statements, 1)])
    seeds = ", ".join(map(str, results.seeds))
    software = results.environment
    machine = machine_name(software.processor, software.threads)
    provenance = (
        f"Written by `{results.command}` in {results.seconds:.0f} s of processor time; seeds {seeds}; {machine}; "
        f"torch {software.torch}. The numbers behind each verdict, settings and the figure's lines: `results.json`."
    )
    summary = f"{results.title}. {results.tested} of {len(results.statements)} statements are tested."
    if results.size == "quick":
        summary += f" {OF_QUICK}"
    parts = (
        f"# Study: {results.study}",
        summary,
        PICTURE.format(title=results.title),
        table,
        provenance,
    )
    return "\n\n".join(parts) + "\n"
