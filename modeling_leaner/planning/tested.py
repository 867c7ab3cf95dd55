"""How the statements of a source fared in the studies of this project, read from their results.json."""

import json
from dataclasses import dataclass
from pathlib import Path


STUDIES = Path("model_cards/studies")  # of the working folder, as the grids are


@dataclass(frozen=True)
class Tested:
    """How many statements a study put to the test, and how many of them agree."""

    study: str
    agrees: int
    tested: int

    @property
    def words(self) -> str:
        """Said of a source, with the page that says what was found."""
        return f"{self.agrees} of {self.tested} statements hold (docs/{self.study}.md)"


def read_tested(study: str, folder: Path = STUDIES) -> Tested | None:
    """None where the study has no results in the folder. Raises ValueError: results.json has another form."""
    path = folder / study / "results.json"
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        verdicts = [statement["verdict"] for statement in document["statements"]]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: {type(error).__name__} {error}; leaner study writes it") from error
    agrees = verdicts.count("agrees")
    return Tested(study, agrees, agrees + verdicts.count("disagrees"))
