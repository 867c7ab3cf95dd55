"""The studies by their names."""

from . import depth_width, heads_optimization, low_rank
from .study import Study


STUDIES: dict[str, Study] = {room.STUDY.name: room.STUDY for room in (heads_optimization, low_rank, depth_width)}
