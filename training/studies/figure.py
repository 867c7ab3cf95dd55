"""figure-light.svg and figure-dark.svg of a study, drawn from results.json alone."""

from ..publishing.panels import panels_figure
from ..records import StudyFile


def study_figure(results: StudyFile, theme: str, form: str = "svg") -> bytes:
    """All panels of a study, two a row; transparent."""
    return panels_figure(results.panels, results.study, theme, form)
