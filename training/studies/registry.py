"""The studies by their names."""

from . import heads_optimization, low_rank
from .study import Study


STUDIES: dict[str, Study] = {study.name: study for study in (heads_optimization.STUDY, low_rank.STUDY)}
