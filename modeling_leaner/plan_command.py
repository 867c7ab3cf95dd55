"""`leaner plan`: from its options to the planner, to measurements where they are wanted, and to what is printed."""

import json
from contextlib import suppress
from dataclasses import replace

from .memory import BYTES, StepSetting
from .plan_figure import draw_plan
from .plan_report import plan_document, print_plan
from .planner import (
    Budget,
    Candidate,
    Dials,
    NoShapeFits,
    cost_of,
    describe,
    flops_unit,
    parse_size,
    plan,
    with_inputs,
    write_shape,
)
from .shapes import CONFIG_CLASSES, family_of, load_config, load_shape


MEASURED_ROWS = 6
LATENCY_ROUNDS, MARGIN = 3, 0.85  # times vary: aim below the limit


def measured(candidates: list[Candidate], setting: StepSetting, first: Candidate | None) -> list[dict[str, float]]:
    """Measurements on this machine, the starting point's first."""
    from .training.measure_shapes import measure

    return measure([each.config for each in (*([first] if first else []), *candidates)], setting)


def plan_for_latency(limit: float, budget: Budget, dials: Dials, rows: int, **question) -> list[Candidate]:
    """Shapes whose forward pass of one item takes about `limit` seconds here.

    Time is no arithmetic: a ceiling of FLOPs stands for it, which each shape's measured time corrects three times.
    """
    from .training.measure_shapes import latencies

    setting, base = question["setting"], question["base"]
    rate = flops_unit(base, base.count_flops(setting.length)) / latencies([base], setting)[0]
    highest = budget.flops or float("inf")
    candidates = plan(
        budget=replace(budget, flops=min(highest, MARGIN * limit * rate)), dials=dials, rows=rows, **question
    )
    for _ in range(LATENCY_ROUNDS):
        corrected = []
        for each, seconds in zip(candidates, latencies([each.config for each in candidates], setting)):
            ceiling = min(highest, each.flops_unit * min(max(MARGIN * limit / seconds, 0.2), 5))
            fixed = replace(dials, layers=each.config.num_hidden_layers, head_dim=each.config.head_dim)
            with suppress(NoShapeFits):  # the smallest of this depth is too slow
                corrected += plan(budget=replace(budget, flops=ceiling), dials=fixed, **question)
        candidates = corrected or candidates
    return candidates


def within_latency(
    limit: float, candidates: list[Candidate], measurements: list[dict[str, float]], first: Candidate | None
) -> tuple[list[Candidate], list[dict[str, float]]]:
    """Those that keep the limit, and their measurements; raises NoShapeFits, with the nearest, where none does."""
    head, rows = measurements[: 1 if first else 0], measurements[1 if first else 0 :]
    kept = [(each, row) for each, row in zip(candidates, rows) if row["latency_s"] <= limit]
    if not kept:
        each, row = min(zip(candidates, rows), key=lambda pair: pair[1]["latency_s"])
        nearest, far = describe(each.config), f"{row['latency_s'] / limit:.2f} times --latency {1e3 * limit:g}ms"
        raise NoShapeFits(f"no shape fits: the nearest, {nearest}, takes {1e3 * row['latency_s']:.2f}ms, {far}")
    return [each for each, _ in kept], head + [row for _, row in kept]


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
    patch_size: int | None,
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
    start = with_inputs(load_config(like), length, image_size, vocab_size, patch_size) if like else None
    family = family or family_of(start)
    if start is not None and family_of(start) != family:
        raise ValueError(f"--like {like}: a {family_of(start)} shape, but --family is {family}")
    base = start or with_inputs(load_shape(f"{family}/base"), length, image_size, vocab_size, patch_size)
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
    rows = MEASURED_ROWS if measure and rows is None else rows
    question = {"family": family, "setting": setting, "start": start, "base": base, "rows": rows}
    if limit is not None and not (budget.parameters or start):
        candidates = plan_for_latency(limit, budget, Dials(**dials), **question)
    else:
        candidates = plan(budget=budget, dials=Dials(**dials), **question)
    first = cost_of(start, setting) if start is not None else None
    measurements = measured(candidates, setting, first) if measure else None
    if limit is not None:
        candidates, measurements = within_latency(limit, candidates, measurements, first)
    if pick > len(candidates):
        raise ValueError(f"--pick {pick}: expected a row from 1 to {len(candidates)}")
    if as_json:
        print(json.dumps(plan_document(candidates, setting, first, measurements), indent=1, ensure_ascii=False))
    else:
        print_plan(candidates, setting, first, measurements)
    if plot is not None:
        paths = draw_plan(candidates, setting, plot, start)
        if not as_json:
            print(f"drawn: {', '.join(map(str, paths))}")
    if write is not None:
        path = write_shape(candidates[pick - 1].config, write)
        if not as_json:
            print(f"row {pick} → {path}")
