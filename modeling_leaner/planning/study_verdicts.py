"""How the statements of a source fared in the studies of this project, read from their results.json."""

from dataclasses import dataclass
from pathlib import Path

from ..support.documents import read_json


STUDIES_FOLDER = Path("model_cards/studies")  # of the working folder, as the grids are
ITS_OWN = ("the paper", "second-hand")  # the others are derived here, or questions of this project


@dataclass(frozen=True)
class Tested:
    """Of a source's own statements: how many a study tested, how many of these agree, and how many it did not."""

    study: str
    paper: str  # its arXiv number
    agrees: int
    undecided: int
    tested: int
    untested: int

    @property
    def words(self) -> str:
        """Said of a source, with the page that says what was found."""
        words = f"{self.agrees} of {self.tested} agree"
        if self.undecided:
            words += f", {self.undecided} undecided"
        if self.untested:
            words += f", {self.untested} not tested"
        return f"{words} (docs/{self.study}.md)"


def read_tested(study: str, reference: str, folder: Path = STUDIES_FOLDER, place: str = "") -> Tested | None:
    """Of the statements of the paper whose arXiv number ends the reference, as in "Lean 2025, 2505.20802".

    With a place only of those whose place in the paper begins with it, as "fitted law".

    None where the study has no results in the folder, or tests none of them. Raises ValueError: results.json has
    another form.
    """
    path = folder / study / "results.json"
    if not path.exists():
        return None
    paper = reference.rsplit(maxsplit=1)[-1]
    document = read_json(path)
    try:
        verdicts = [
            statement["verdict"]
            for statement in document["statements"]
            if statement["whose"] in ITS_OWN
            and statement["paper"].endswith(paper)
            and statement["place"].startswith(place)
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {type(error).__name__} {error}; leaner study writes it") from error
    untested = verdicts.count("not tested")
    tested = len(verdicts) - untested
    if not tested:
        return None
    return Tested(study, paper, verdicts.count("agrees"), verdicts.count("undecided"), tested, untested)
