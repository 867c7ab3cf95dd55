"""What heads of a size cost a training step, as `leaner bench` measured it: docs/speed/heads.csv."""

import csv
from pathlib import Path


HEAD_TIMES = Path("docs/speed/heads.csv")  # of the working folder, as studies and grids are
USUAL_SIZE = 64
OURS = {
    "library": "modeling_leaner",
    "attention": "sdpa",
    "mode": "eager",
    "phase": "training",
    "dtype": "float32",
    "device": "cpu",
}


def read_head_times(path: Path = HEAD_TIMES) -> dict[int, float]:
    """By head size, the time of a training step over that with heads of 64, at one width; empty without the file.

    Raises ValueError: the file has another form.
    """
    if not path.exists():
        return {}
    times: dict[int, float] = {}
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        for row in csv.DictReader(lines):
            if any(row[name] != value for name, value in OURS.items()):
                continue
            size = int(row["head_dim"])
            if size in times:
                raise ValueError(f"heads of {size} twice")
            times[size] = float(row["milliseconds"])
        return {size: time / times[USUAL_SIZE] for size, time in times.items()}
    except (ValueError, LookupError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: {type(error).__name__} {error}; leaner bench writes it") from error
