"""The grids that come with the project: complete, of one width, and fair before their first run."""

from pathlib import Path

import pytest
from modeling_leaner.training.experiments import latency
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.experiments.soundness import check_grid
from modeling_leaner.training.settings.arguments import RECIPES

from modeling_leaner.shapes import load_shape


CONTROLS = ("mlp-mini", "narrow-mini")
GRIDS = sorted((RECIPES.parent / "grids").glob("*.yaml"))


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
    check_grid(grid)
    for shape in grid.shapes:
        assert latency.settings(grid, shape).task
    assert grid.output_dir == f"model_cards/grids/{path.stem}"
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_reference_differs_by_its_implementation_alone(path):
    if not path.stem.endswith("-transformers"):
        pytest.skip("not a reference")
    grid, own = load_grid(path), load_grid(Path(str(path).replace("-transformers", "")))
    assert {**grid.overrides} == {**(own.overrides or {}), "implementation": "transformers"}
    for name in ("recipe", "baseline", "seeds", "learning_rates", "tuning", "unsound_tuning", "metric", "branches"):
        assert getattr(grid, name) == getattr(own, name)
