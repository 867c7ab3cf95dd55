"""A study: its sizes, its run, and the folder that it writes, whole or not at all.

results.json has all; README.md and the figures are made of it alone.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from modeling_leaner.planning.study_verdicts import STUDIES_FOLDER
from modeling_leaner.support.documents import naming, read_json, write_json
from modeling_leaner.support.files import whole_folder, write_bytes

from ..publishing.theme import THEMES
from ..records import Environment, FigurePanel, Statement, StudyFile, Whose, checked
from ..running.environment import code_commit, environment
from .figure import study_figure
from .page import OF_QUICK, finding_of, study_page, with_verdicts


NOT_TESTED = "not tested"
GRIDS_FOLDER = Path("model_cards/grids")  # of the working folder
Progress = Callable[[str], None]  # told what is done now, in a line


@dataclass(frozen=True)
class Findings:
    """What a study found: its statements with their verdicts, the panels of its figure, and its seeds."""

    statements: list[Statement]
    panels: list[FigurePanel]
    seeds: list[int]


@dataclass(frozen=True)
class Study:
    """A study by its name on the command line.

    `sizes` has a dataclass of settings for quick, default and full; `run` gets one of them. `of_grids` takes the
    folder of the grids and gives the statements that are read from finished runs alone; None where the study has none.
    `threads` are PyTorch's while it runs, None as they are: products of small matrices are fastest on one.
    """

    name: str
    title: str
    sizes: dict[str, Any]
    run: Callable[[Any, Progress], Findings]
    of_grids: Callable[[Path], list[Statement]] | None = None
    threads: int | None = None


@contextmanager
def threads_of(study: Study) -> Iterator[None]:
    """Inside, PyTorch has the study's threads."""
    before = torch.get_num_threads()
    if study.threads is not None:
        torch.set_num_threads(study.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, new tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended: a machine has other work."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def untested(paper: str, whose: Whose, place: str, statement: str, missing: str) -> Statement:
    """A statement with the paper's own numbers, and what its test would need."""
    return Statement(
        paper=paper,
        place=place,
        whose=whose,
        statement=statement,
        rule=None,
        verdict=NOT_TESTED,
        finding="The numbers are the paper's.",
        numbers={},
        missing=missing,
    )


def command_of(study: Study, size: str) -> str:
    """The command that writes the same results again."""
    command = f"leaner study {study.name}"
    if size != "default":
        command += f" --{size}"
    return command


def conduct(study: Study, size: str, settings: Any, progress: Progress = say) -> StudyFile:
    """Runs a study of a size by its settings. Raises ValueError or OSError where it cannot read what it needs."""
    start = processor_seconds()
    code_commit()  # files may change during the run
    with threads_of(study):
        findings = study.run(settings, progress)
        machine = environment()
    seconds = processor_seconds() - start
    return StudyFile(
        study=study.name,
        title=study.title,
        size=size,
        command=command_of(study, size),
        settings=asdict(settings),
        seeds=findings.seeds,
        statements=findings.statements,
        panels=findings.panels,
        seconds=round(seconds, 1),
        environment=Environment(**machine),
        tested=number_tested(findings.statements),
    )


def number_tested(statements: list[Statement]) -> int:
    """How many have a verdict."""
    return sum(statement.verdict != NOT_TESTED for statement in statements)


def write_study(results: StudyFile, output: Path) -> None:
    """results.json, README.md and the figure in two themes, in a new folder. Raises OSError; then nothing is left."""
    with whole_folder(output) as folder:
        folder.mkdir()
        for theme in THEMES:
            write_bytes(folder / f"figure-{theme}.svg", study_figure(results, theme))
        write_results(results, folder)


def write_results(results: StudyFile, folder: Path) -> None:
    """results.json and the page of it."""
    page = study_page(results).encode()  # first: nothing is written where it cannot be made
    write_json(folder / "results.json", results.document())
    write_bytes(folder / "README.md", page)


def renew_docs(results: StudyFile, folder: Path) -> None:
    """Writes the table of docs/NAME.md anew where the folder is model_cards/studies/NAME of the working folder.

    Does nothing for any other folder, or where there is no such page. Raises ValueError for one without the table.
    """
    page = Path("docs") / f"{results.study}.md"
    if folder.resolve() == (STUDIES_FOLDER / results.study).resolve() and page.is_file():
        with naming(page):
            text = with_verdicts(page.read_text(encoding="utf-8"), results)
        write_bytes(page, text.encode())


def read_grids_again(chosen: Study, folder: Path, grids: Path) -> None:
    """Writes the statements on finished grids anew, by the rows of today, in a folder that `study` has written.

    All else stays, also the commit and machine of the study: these statements follow from the rows alone. Its figure
    shows none of them. Prints what has changed, or that nothing has.

    Raises:
        ValueError: the study reads no grids, no grid is there that it could read, or results.json is missing or of
            another study or version of it.
        OSError: a file cannot be read or written.
    """
    if chosen.of_grids is None:
        raise ValueError(f"{chosen.name}: no statement of this study is read from grids")
    path = folder / "results.json"
    if not path.is_file():
        raise ValueError(f"{path}: missing; expected the folder of a study, as leaner study {chosen.name} writes it")
    results = checked(StudyFile, read_json(path), path)
    if results.study != chosen.name:
        raise ValueError(f"{path}: study is {results.study!r}, expected {chosen.name!r}")
    statements = {(each.place, each.statement): each for each in results.statements}
    for each in chosen.of_grids(grids):
        if each.verdict == NOT_TESTED:
            raise ValueError(f"{grids}: expected, for {each.statement!r}, {each.missing}")
        key = (each.place, each.statement)
        if key not in statements:
            raise ValueError(f"{path}: expected a statement {each.statement!r}; {results.command} writes all anew")
        if each != statements[key]:
            print(f"{each.verdict}: {each.statement} {finding_of(each)}")
        statements[key] = each
    renewed = list(statements.values())
    if renewed == results.statements:
        print(f"{folder}: no statement has changed")
    results = results.model_copy(update={"statements": renewed, "tested": number_tested(renewed)})
    renew_docs(results, folder)
    write_results(results, folder)


def study(chosen: Study, size: str, output: Path) -> StudyFile:
    """Runs a study and writes its folder; prints each statement with its verdict.

    Raises:
        FileExistsError: the folder is there already.
        OSError: it cannot be written, which is tried before the study runs.
        ValueError: what the study reads does not fit.
    """
    if output.exists() or output.is_symlink():
        raise FileExistsError(f"{output} exists already")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent):
            pass
    except OSError as error:
        raise OSError(f"{output}: cannot be written: {error.strerror}") from error
    results = conduct(chosen, size, chosen.sizes[size])
    for statement in results.statements:  # before they are written: a full disk does not take them
        print(f"{statement.verdict}: {statement.statement} {finding_of(statement)}")
    if size == "quick":
        print(OF_QUICK)
    write_study(results, output)
    tested = f"{results.tested} of {len(results.statements)} statements tested"
    print(f"{tested} in {results.seconds:.0f} s of processor time: {output}")
    return results
