"""The studies by their names."""

from . import conditioning, depth_width, heads_optimization, low_rank
from .study import Study


ROOMS = (conditioning, depth_width, heads_optimization, low_rank)
STUDIES: dict[str, Study] = {room.STUDY.name: room.STUDY for room in ROOMS}
