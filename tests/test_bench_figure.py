"""`leaner bench-figure`: the cells of a CSV file, read as they were written, and their curves."""

import csv
import io
from pathlib import Path

import pytest
from bench_cells import cell, failed
from command import leaner
from modeling_leaner.training.benchmarking.cells import csv_text, read_cells
from modeling_leaner.training.publishing.bench_figure import QUANTITIES, most_varied, panels_of
from modeling_leaner.training.publishing.theme import THEMES
from modeling_leaner.training.records import BenchCell, BenchFile, Environment
from modeling_leaner.training.running.environment import environment

from modeling_leaner.cli.checks import BENCH_SIZES


@pytest.fixture
def written(tmp_path):
    """Writes cells as `leaner bench` does."""

    def write(*cells):
        document = BenchFile(
            cells=[*cells],
            comparisons=[],
            geometric_means={},
            matrix_product_flops={"float32": 1e11},
            processor_flags=["avx2"],
            timm=None,
            environment=Environment(**environment()),
        )
        path = tmp_path / "cells.csv"
        path.write_text(csv_text(document), encoding="utf-8")
        return path

    return write


LENGTHS = [cell(length=length) for length in (64, 256, 128)]


def test_cells_are_read_as_they_were_written(written):
    cells = [cell(phase="decoding", new_tokens=4), failed(library="transformers")]
    assert read_cells(written(*cells)) == cells


def test_two_panels_for_each_phase(written, tmp_path, capsys):
    others = [cell(length=length, library="transformers", phase="training") for length in (64, 128)]
    times, memory, *more = panels_of([*LENGTHS, *others], "length")
    assert times.title == memory.title == "inference, gpt.json, float32"
    assert times.x_scale == "log" and (times.y, memory.y) == ("milliseconds a step", "memory at the peak, MB")
    (line,) = times.lines
    assert (line.label, line.x) == ("modeling_leaner sdpa, eager", [64, 128, 256])
    assert (line.y, line.low, line.high) == ([128, 256, 512], [64, 128, 256], [256, 512, 1024])
    assert memory.lines[0].y == [8, 8, 8]
    assert [(panel.title, panel.x_scale, panel.lines[0].x) for panel in more] == [
        ("training, gpt.json, float32", "linear", [64, 128])
    ] * 2
    leaner("bench-figure", written(*LENGTHS, *others, failed(length=512)))
    names = [f"cells-length-{theme}.svg" for theme in THEMES]
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == names
    first, second = [(tmp_path / name).read_bytes() for name in names]
    assert first != second and first.startswith(b"<?xml")
    leaner("bench-figure", tmp_path / "cells.csv", "--over", "length")
    assert (tmp_path / names[0]).read_bytes() == first


def test_what_else_varies_has_panels_of_its_own():
    cells = [cell(length=length, batch=batch) for batch in (1, 4, 8) for length in (64, 128)]
    assert most_varied(cells) == "batch"
    titles = [panel.title for panel in panels_of(cells, "batch")[::2]]
    assert titles == ["inference, gpt.json, float32, length 64", "inference, gpt.json, float32, length 128"]


def test_sizes_that_vary_together_are_one_curve():
    """Heads at a fixed width: the more, the smaller."""
    cells = [cell(heads=heads, head_dim=256 // heads) for heads in (4, 8, 16)]
    assert most_varied(cells) == "heads"
    times, memory = panels_of(cells, "heads")
    assert times.lines[0].x == [4, 8, 16] and memory.lines[0].y == [4, 8, 16]
    assert panels_of(cells, "head_dim")[1].lines[0].y == [16, 8, 4]


def test_the_sizes_of_the_command_are_those_that_can_be_drawn():
    assert tuple(QUANTITIES) == BENCH_SIZES


def test_nothing_varies(written, tmp_path):
    with pytest.raises(SystemExit, match=r"no two cells that ran differ in batch; expected one of length, "):
        leaner("bench-figure", written(*LENGTHS), "--over", "batch")
    with pytest.raises(SystemExit, match=r"cells.csv: no two cells that ran differ in length"):
        leaner("bench-figure", written(failed(length=1), failed(length=2)))
    assert [path.name for path in tmp_path.iterdir()] == ["cells.csv"]


def changed_row(path, **changes):
    """The file with other values in its second row."""
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    first, second = map(dict, csv.DictReader(line for line in path.open() if not line.startswith("#")))
    file = io.StringIO()
    writer = csv.DictWriter(file, list(second | changes))
    writer.writeheader()
    writer.writerows([first, second | changes])
    path.write_text("\n".join([*comments, file.getvalue()]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": "many"}, "cells.csv: row 2: length is 'many', expected "),
        ({"length": ""}, "cells.csv: row 2: length is None, expected int"),
        ({"milliseconds": "nan"}, "cells.csv: row 2: milliseconds is 'nan', expected a finite number"),
        ({"milliseconds": "-1"}, "cells.csv: row 2: milliseconds is '-1', expected a number from 0"),
        ({"flops": "9" * 400}, "cells.csv: row 2: flops is above 1e+30"),
        ({"peak_memory_bytes": ""}, "row 2: expected milliseconds, milliseconds_low, milliseconds_high, "),
        ({"speed": "1"}, "cells.csv: expected the columns phase, shape, layers, "),
    ],
)
def test_a_row_that_does_not_fit(written, changes, message):
    path = written(cell(), cell(length=9))
    changed_row(path, **changes)
    with pytest.raises(SystemExit) as refused:
        leaner("bench-figure", path)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a CSV file of leaner bench"),
        (b"\xff\xfe", "expected a CSV file of leaner bench"),
        (b"", "expected the columns phase, "),
        (b"# python: 3.12\n", "expected the columns phase, "),
    ],
)
def test_no_file_of_cells(tmp_path, content, message):
    path = tmp_path / "cells.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as refused:
        leaner("bench-figure", path)
    assert str(refused.value).startswith(f"leaner bench-figure: {path}: ") and message in str(refused.value)


def test_a_row_cut_short(written):
    path = written(cell(), cell(length=9))
    path.write_text(path.read_text().rstrip("\n").rpartition(",")[0])
    with pytest.raises(SystemExit, match=f"cells.csv: row 2: expected {len(BenchCell.model_fields)} values"):
        leaner("bench-figure", path)
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(SystemExit, match="cells.csv: expected a row at least"):
        leaner("bench-figure", path)


def test_times_of_any_size_are_drawn(written, recwarn):
    """Also where a clock stood still."""
    times = {"milliseconds": 0.0, "milliseconds_low": 0.0}
    leaner("bench-figure", written(cell(**times), cell(length=9, **times), cell(length=99, milliseconds_high=1e29)))
    assert [str(warning.message) for warning in recwarn] == []


def test_a_size_that_cannot_be_drawn(written):
    with pytest.raises(SystemExit, match="--over lenght: expected one of length, .* did you mean length?"):
        leaner("bench-figure", written(*LENGTHS), "--over", "lenght")
