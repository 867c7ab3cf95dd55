"""The grids that come with the project: complete, of one width, and fair before their first run."""

from pathlib import Path

import pytest
import yaml
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.experiments.runs import check_settings, run_arguments
from modeling_leaner.training.experiments.sweep import write_guesses
from modeling_leaner.training.reading import RECIPES

from modeling_leaner.shapes import load_config, load_shape


CONTROLS = ("mlp-mini", "narrow-mini")
FILES = sorted((RECIPES.parent / "grids").glob("*.yaml"))
CUTS = [path for path in FILES if "cut_from:" in path.read_text()]
HEADS = [path for path in FILES if path.stem.startswith("adaptive-heads") or path.stem.endswith("added-heads")]
GRIDS = [path for path in FILES if path not in CUTS + HEADS]


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_grid_is_fair(path):
    """One width and MLP but for controls, a tuning apart from what is reported, settings that a run accepts."""
    grid = load_grid(path)
    configs = [load_shape(shape) for shape in grid.shapes]
    alike = {shape: config for shape, config in zip(grid.shapes, configs) if not shape.endswith(CONTROLS)}
    assert len({(config.hidden_size, config.intermediate_size) for config in alike.values()}) == 1
    assert grid.baseline in alike
    assert all(config.num_attention_heads * config.head_dim == config.hidden_size for config in configs)
    if len(grid.shapes) == 4:
        cells = {(config.num_hidden_layers, config.num_attention_heads) for config in configs}
        assert len(cells) == 4 and len({layers for layers, _ in cells}) == len({heads for _, heads in cells}) == 2
        assert grid.tuning and len(grid.learning_rates) >= 3 and len(grid.seeds) >= 3 and grid.margin
        base, both = configs[0], configs[-1]
        assert both.count_parameters().total <= 0.7 * base.count_parameters().total
    if grid.tuning:
        assert not set(grid.tuning.seeds) & set(grid.seeds) and grid.tuning.holdout >= 200
    check_settings(grid)
    for shape in grid.shapes:
        arguments = run_arguments(grid, shape)
        assert arguments.task
        # What rows were recorded with before the family had a default of its own:
        assert arguments.attn_implementation == (grid.overrides or {}).get("attn_implementation", "sdpa")
    assert grid.output_dir == f"model_cards/grids/{path.stem}"
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_reference_differs_by_its_implementation_alone(path):
    if not path.stem.endswith("-transformers"):
        pytest.skip("not a reference")
    grid, own = load_grid(path), load_grid(Path(str(path).replace("-transformers", "")))
    assert {**grid.overrides} == {**(own.overrides or {}), "implementation": "transformers"}
    for name in ("recipe", "baseline", "seeds", "learning_rates", "tuning", "branches"):
        assert getattr(grid, name) == getattr(own, name)


@pytest.mark.parametrize("path", CUTS, ids=lambda path: path.stem)
def test_a_grid_of_cuts_is_fair(path, monkeypatch):
    """By one recipe and one teacher, that which is cut; a single rate, seeds enough; only new weights are no cut."""
    monkeypatch.chdir(RECIPES.parents[1])
    grid = load_grid(path)
    assert grid.overrides["teacher"] == grid.cut_from and len(grid.learning_rates) == 1 and len(grid.seeds) >= 3
    assert grid.margin and grid.contrasts
    others = set(grid.shapes) - set(grid.cuts)
    assert all(shape.endswith("/config.json") for shape in others)
    arguments = run_arguments(grid, grid.baseline)
    if path.stem != "minilm-again":  # which is as published
        assert (arguments.bf16, arguments.attn_implementation) == (False, "sdpa")  # as every grid, on any processor
    assert grid.output_dir == f"model_cards/grids/{path.stem}"


def test_the_wider_mlp_has_the_parameters_of_the_heads():
    """Within one neuron in each layer."""
    folder = RECIPES.parents[1] / "model_cards" / "grids" / "minilm" / "cells"
    heads, wide = (load_config(str(folder / name)) for name in ("3x24", "3x12-wide"))
    off = wide.count_parameters().total - heads.count_parameters().total
    assert abs(off) < 3 * (2 * wide.hidden_size + 1)


def test_guesses_need_no_teacher(tmp_path, capsys):
    """Whatever else the grid's runs learn from: a guess reads rows and labels."""
    grid = {"recipe": "digits", "shapes": ["vit/nano"], "baseline": "vit/nano", "seeds": [1], "learning_rates": [1e-3]}
    grid |= {"overrides": {"teacher": "gone", "max_train_rows": 100}, "output_dir": str(tmp_path / "rows")}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    (tmp_path / "rows").mkdir()
    write_guesses(load_grid(tmp_path / "grid.yaml"))
    assert "majority class: 0." in capsys.readouterr().err
