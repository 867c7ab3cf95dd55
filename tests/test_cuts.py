"""A grid whose shapes are cuts of one model: the sweep makes them before its first run."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from modeling_leaner.training.experiments import cuts, grid, runs
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.experiments.grid_results import read_rows
from modeling_leaner.training.experiments.runs import run_arguments
from modeling_leaner.training.experiments.sweep import sweep
from modeling_leaner.training.records import ResultRow
from training_data import documents, save_encoder

from modeling_leaner.conversion import load_lean
from modeling_leaner.shapes import load_config


CELLS = {
    "cells/2x4": {"layers": 2},
    "cells/2x6": {"layers": 2, "heads": 6},
    "cells/2x4-wide": {"layers": 2, "intermediate_size": 80},
    "cells/4x2-unequal": {"total_heads": 8},
    "cells/even": {"keep": [0, 2]},
}
OVERRIDES = {
    "task": "embedding",
    "teacher": "parent",
    "max_length": 24,
    "max_steps": 2,
    "dropout": 0.0,
    "per_device_train_batch_size": 8,
    "preprocessing_workers": 1,
    "use_cpu": True,
    "eval_strategy": "no",
    "save_strategy": "no",
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def cut_once(tmp_path_factory):
    """A model of four layers, rows, a recipe, and a grid of its cuts, which are made."""
    folder = tmp_path_factory.mktemp("cuts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_encoder(Path("parent"), num_hidden_layers=4, initializer_range=0.3)
        documents(60, 1, words=12).to_parquet("train.parquet")
        documents(12, 2, words=12).to_parquet("validation.parquet")
        Path("recipe.yaml").write_text("task: embedding\n")
        write_grid()
        make()
    return folder


@pytest.fixture
def made(cut_once, tmp_path, monkeypatch):
    """A copy of all that, to work in."""
    shutil.copytree(cut_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(made):
    """The same before the cuts are made."""
    shutil.rmtree("cells")


def write_grid(**changes):
    shapes = [*CELLS, "cells/2x4/config.json"]
    grid = {"recipe": "recipe.yaml", "shapes": shapes, "baseline": "cells/2x4", "seeds": [1], "learning_rates": [1e-3]}
    grid |= {"overrides": OVERRIDES, "cut_from": "parent", "cuts": CELLS, "output_dir": "out"} | changes
    Path("grid.yaml").write_text(yaml.safe_dump({key: value for key, value in grid.items() if value is not None}))


def data():
    return ["train=train.parquet", "validation=validation.parquet"]


def make():
    cuts.make_cuts(load_grid(Path("grid.yaml")), ["--data_files", *data()])


def test_cuts_may_be_added(made):
    """To a grid that has run; one that is there stays as it is."""
    write_grid()
    Path("out").mkdir()
    grid.write_grid(load_grid(Path("grid.yaml")))
    rows = [ResultRow.from_cells({"status": "finished"})]
    one_more = {**CELLS, "cells/1x4": {"layers": 1}}
    write_grid(cuts=one_more, shapes=[*CELLS, "cells/2x4/config.json", "cells/1x4"])
    grid.check_unchanged(load_grid(Path("grid.yaml")), rows)
    write_grid(cuts=CELLS | {"cells/even": {"keep": [0, 3]}})
    with pytest.raises(ValueError, match="^cuts: expected "):
        grid.check_unchanged(load_grid(Path("grid.yaml")), rows)


def read_cuts(name):
    return json.loads(Path("cells", name, "slim.json").read_text())["cuts"]


def test_the_cuts(made):
    configs = {name: load_config(name) for name in CELLS}
    assert [config.heads_per_layer for config in configs.values()][:3] == [[4, 4], [6, 6], [4, 4]]
    assert sum(configs["cells/4x2-unequal"].heads_per_layer) == 8
    assert configs["cells/2x4-wide"].intermediate_size == 80
    chosen = read_cuts("2x4")[0]
    assert read_cuts("even")[0]["after"] == [0, 2]
    assert chosen["after"] == read_cuts("2x6")[0]["after"] == read_cuts("2x4-wide")[0]["after"]
    kept = load_lean("cells/2x4").state_dict()["layers.1.mlp.fc1.weight"]
    source = load_lean("parent").state_dict()[f"layers.{chosen['after'][1]}.mlp.fc1.weight"]
    torch.testing.assert_close(kept, source)
    for name in ("2x6", "2x4-wide"):
        assert read_cuts(name)[1]["change"] == pytest.approx(chosen["change"], rel=1e-4)


def test_the_layers_of_a_teacher_are_named_for_the_cuts(folder):
    """Two for the cuts of two layers, of a model of four."""
    write_grid(overrides=OVERRIDES | {"distill_hidden": 1.0, "distill_layers": [1, 3]})
    make()
    assert load_config("cells/2x4").num_hidden_layers == 2


# In place of a training: says whether its shape has weights, and fails.
STUB = """
import sys
from collections import defaultdict
from pathlib import Path

shape = Path(sys.argv[sys.argv.index("--shape") + 1])
with open("calls", "a") as calls:
    print(shape, (shape / "model.safetensors").is_file(), file=calls)
sys.exit(1)
"""


def test_a_sweep_makes_them_before_its_first_run(folder, monkeypatch):
    Path("stub.py").write_text(STUB)
    monkeypatch.setattr(runs, "TRAIN_COMMAND", [sys.executable, "-S", "stub.py"])
    assert not sweep(Path("grid.yaml"), data_files=data())
    expected = [*(f"{cell} True" for cell in CELLS), "cells/2x4/config.json False"]
    assert Path("calls").read_text().splitlines() == expected


@pytest.mark.full
def test_a_sweep_trains_them(folder, capsys):
    """The random start has the shape of a cut and the tokenizer of the teacher."""
    assert sweep(Path("grid.yaml"), data_files=data())
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()[1:7]] == [*CELLS, "cells/2x4/config.json"]
    values = {run.shape: row.value for run, row in read_rows(Path("out/results.csv")).items()}
    assert set(values) == {*CELLS, "cells/2x4/config.json"}
    assert values["cells/2x4"] > values["cells/2x4/config.json"]
    assert values["cells/2x4"] == pytest.approx(values["cells/2x6"], abs=0.02)


def test_a_cut_is_made_once_and_again_where_its_weights_are_gone(made, monkeypatch):
    before = Path("cells/even/model.safetensors").read_bytes()
    for path in Path("cells/even").iterdir():
        if path.name not in ("config.json", "slim.json"):
            path.unlink()
    record = Path("cells/even/slim.json").read_text().replace('"change": ', '"change": 1')  # as if rounded otherwise
    Path("cells/even/slim.json").write_text(record)
    assert run_arguments(load_grid(Path("grid.yaml")), "cells/even").task == "embedding"  # read without weights
    calls = []
    original = cuts.slim
    monkeypatch.setattr(cuts, "slim", lambda *words: calls.append(words) or original(*words))
    make()
    assert len(calls) == 1 and Path("cells/even/model.safetensors").read_bytes() == before
    make()
    assert len(calls) == 1 and Path("cells/even/slim.json").read_text() == record


def test_a_cut_that_comes_out_otherwise_is_refused(made):
    record = json.loads(Path("cells/even/slim.json").read_text())
    record["cuts"][0]["after"] = [0, 3]
    Path("cells/even/slim.json").write_text(json.dumps(record))
    Path("cells/even/model.safetensors").unlink()
    with pytest.raises(ValueError, match="cells/even/slim.json: expected .*0, 3.* but the cut came out with .*0, 2"):
        make()
    assert not Path("cells/even/model.safetensors").exists() and not list(Path("cells/even").glob(".cut-*"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"cuts": None}, "cut_from, cuts: expected both or neither"),
        ({"cuts": CELLS | {"cells/even": {"layer": 1}}}, "cuts.cells/even.layer"),
        ({"cuts": CELLS | {"cells/even": {"layers": 9}}}, "cuts: cells/even: layers: expected 1..4, got 9"),
        ({"cut_from": "nowhere/at-all"}, "cut_from: nowhere/at-all: "),
    ],
)
def test_what_is_refused(folder, changes, message):
    write_grid(**changes)
    with pytest.raises(ValueError) as error:
        sweep(Path("grid.yaml"), data_files=data())
    assert message in str(error.value)
    assert not Path("cells/even").exists() and not Path("out").exists()


def test_rows_to_choose_by_are_not_those_held_out(folder, monkeypatch):
    """And a batch is what the model reads, without labels."""
    halves = []
    original = cuts.slim
    monkeypatch.setattr(cuts, "slim", lambda *words: halves.extend(words[2:]) or original(*words))
    write_grid(cuts={"cells/even": CELLS["cells/even"]}, shapes=["cells/even"], baseline="cells/even")
    make()
    seen = [{str(row[row > 0].tolist()) for batch in half for row in batch["input_ids"]} for half in halves]
    assert seen[0] and seen[1] and not seen[0] & seen[1]
    assert all(set(batch) <= {"input_ids", "attention_mask", "token_type_ids"} for half in halves for batch in half)
