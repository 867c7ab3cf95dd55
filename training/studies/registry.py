"""The studies by their names."""

from . import conditioning, heads_optimization, low_rank
from .study import Study


ALL = (conditioning.STUDY, heads_optimization.STUDY, low_rank.STUDY)
STUDIES: dict[str, Study] = {study.name: study for study in ALL}
