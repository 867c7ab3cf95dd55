"""`leaner plan`: from its options to the planner, to measurements where they are wanted, and to what is printed."""

import json

from .memory import BYTES, StepSetting
from .plan_report import plan_document, print_plan
from .planner import (
    Budget,
    Dials,
    cost_of,
    family_of,
    parse_size,
    plan,
    with_inputs,
    write_shape,
)
from .shapes import CONFIG_CLASSES, load_config, load_shape


def check_choice(flag: str, value: str | None, choices) -> None:
    """Raises ValueError, naming the flag and what was expected."""
    if value not in choices:
        raise ValueError(f"{flag} {value}: expected one of {', '.join(each for each in choices if each)}")


def run(
    family: str | None,
    params: str | None,
    flops: str | None,
    memory: str | None,
    latency: str | None,
    like: str | None,
    equal: str | None,
    length: int | None,
    image_size: int | None,
    vocab_size: int | None,
    batch: int,
    dtype: str,
    attention: str,
    device: str,
    rows: int | None,
    measure: bool,
    write: str | None,
    pick: int,
    plot: str | None,
    as_json: bool,
    **dials: float | None,
) -> None:
    """The options of `leaner plan` as they were given; prints. Raises ValueError that names the flag."""
    for flag, value, choices in (
        ("--family", family, (*CONFIG_CLASSES, *([None] if like else []))),
        ("--equal", equal, ("params", "flops", None)),
        ("--dtype", dtype, BYTES),
        ("--attention", attention, ("sdpa", "eager")),
        ("--device", device, ("cpu", "gpu")),
    ):
        check_choice(flag, value, choices)
    for flag, value in (("--batch", batch), ("--rows", rows), ("--pick", pick)):
        if value is not None and value < 1:
            raise ValueError(f"{flag} {value}: expected a number above 0")
    if latency is not None and not measure:
        raise ValueError(f"--latency {latency}: needs --measure, for time is measured on this machine")
    start = with_inputs(load_config(like), length, image_size, vocab_size) if like else None
    family = family or family_of(start)
    if start is not None and family_of(start) != family:
        raise ValueError(f"--like {like}: a {family_of(start)} shape, but --family is {family}")
    base = start or with_inputs(load_shape(f"{family}/base"), length, image_size, vocab_size)
    setting = StepSetting(batch, length, dtype, attention, device)
    sizes = [
        text and parse_size(flag, text, unit)
        for flag, text, unit in (
            ("--params", params, ""),
            ("--flops", flops, ""),
            ("--memory", memory, "B"),
            ("--latency", latency, "s"),
        )
    ]
    budget, limit = Budget(*sizes[:3], equal), sizes[3]
    rows = 6 if measure and rows is None else rows
    candidates = plan(family, budget, Dials(**dials), setting, start, base, rows)
    first = cost_of(start, setting) if start is not None else None
    if pick > len(candidates):
        raise ValueError(f"--pick {pick}: expected a row from 1 to {len(candidates)}")
    if as_json:
        print(json.dumps(plan_document(candidates, setting, first), indent=1, ensure_ascii=False))
    else:
        print_plan(candidates, setting, first)
    if write is not None:
        path = write_shape(candidates[pick - 1].config, write)
        if not as_json:
            print(f"row {pick} → {path}")
