"""`leaner plan --heads auto` and `random`: the measurement, the rule, and shapes of equal cost that train."""

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from modeling_leaner.training.experiments.grid import load_grid
from modeling_leaner.training.experiments.soundness import check_grid
from typer.testing import CliRunner

from modeling_leaner import LeanBERTConfig, LeanBERTModel, LeanGPTConfig, LeanGPTModel
from modeling_leaner.cli import plan_heads
from modeling_leaner.cli.app import app
from modeling_leaner.conditioning import effective_rank
from modeling_leaner.inspection import effective_ranks, rows_of
from modeling_leaner.planning.adaptive_heads import (
    check_total,
    most_heads,
    rank_per_head,
    share_out,
    shuffled,
    with_heads,
)
from modeling_leaner.planning.shape_file import write_shape
from modeling_leaner.shapes import load_config, load_shape


ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "training" / "grids").glob("adaptive-heads-*.yaml"))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "head_dim": 4, "intermediate_size": 24, "initializer_range": 0.4}
TEXT = {"vocab_size": 60, "max_position_embeddings": 32}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def leaner():
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


def bert(heads):
    return LeanBERTModel(LeanBERTConfig(**SIZES, **TEXT, num_attention_heads=heads)).eval()


def token_rows(count=3, length=12):
    return rows_of({"input_ids": torch.randint(2, 60, (count, length))})


def o_proj_inputs(model, layer, row):
    """What the output projection of a layer reads of one row, (N, H·d)."""
    seen = []
    projection = model.base_model.layers[layer].self_attn.o_proj
    handle = projection.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0].double()))
    with torch.no_grad():
        model(**row)
    handle.remove()
    return seen[0]


def root_ranks(strengths, most):
    """Effective ranks that grow as the root of the heads, times a strength per layer."""
    return [[strength * heads**0.5 for heads in range(1, most + 1)] for strength in strengths]


class TestMeasurement:
    def test_known_matrices(self):
        orthogonal = torch.linalg.qr(torch.randn(30, 12, dtype=torch.double)).Q
        assert effective_rank(orthogonal) == pytest.approx(12)
        assert effective_rank(1e6 * orthogonal) == pytest.approx(12)
        assert effective_rank(torch.outer(torch.randn(9), torch.randn(5)).double()) == pytest.approx(1, abs=1e-5)
        assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(4 / 27**0.25)
        assert effective_rank(torch.zeros(4, 3)) == 0

    def test_it_is_of_what_the_output_projection_reads(self):
        model = bert(3)
        rows = token_rows()
        ranks = effective_ranks(model, rows)
        assert [len(of_layer) for of_layer in ranks] == [3, 3]
        for layer, heads in itertools.product(range(2), range(1, 4)):
            outputs = [o_proj_inputs(model, layer, row)[:, : 4 * heads] for row in rows]
            expected = sum(map(effective_rank, outputs)) / len(rows)
            assert ranks[layer][heads - 1] == pytest.approx(expected, rel=1e-4)

    def test_a_copied_head_adds_nothing(self):
        model = bert(2)
        attention = model.layers[1].self_attn
        with torch.no_grad():
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight[4:] = projection.weight[:4]
                projection.bias[4:] = projection.bias[:4]
        first, second = effective_ranks(model, token_rows())
        assert second[1] == pytest.approx(second[0]) and first[1] > first[0] + 0.1

    def test_heads_of_all_groups_are_taken_in_turns(self):
        """Of four query heads over two key-value heads, the first two are one of each, as in a layer of two."""
        groups = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = LeanGPTConfig(**SIZES, **TEXT, **groups, bos_token_id=1, eos_token_id=1)
        model = LeanGPTModel(config).eval()
        (row,) = rows = token_rows(count=1)
        outputs = o_proj_inputs(model, 0, row)
        expected = effective_rank(torch.cat([outputs[:, 0:4], outputs[:, 8:12]], dim=1))
        assert effective_ranks(model, rows)[0][1] == pytest.approx(expected, rel=1e-4)

    def test_the_model_stays_as_it_was(self):
        model = bert(2).train()
        model.layers[0].eval()
        effective_ranks(model, token_rows())
        assert model.training and not model.layers[0].mlp.training

    def test_rows_shorter_than_the_heads(self):
        with pytest.raises(ValueError, match="row 1 has 3 tokens, and layer 0 has 6 heads; expected at least 6"):
            effective_ranks(bert(6), token_rows(length=3))


class TestRule:
    def test_a_known_answer(self):
        """Where rank is c·√H, the rank per head is equal for H in proportion to c²."""
        assert share_out(root_ranks((2, 1), 20), 10) == [8, 2]
        assert share_out(root_ranks((1, 3, 2), 40), 14) == [1, 9, 4]

    def test_layers_that_are_alike_stay_alike(self):
        assert share_out(root_ranks((1, 1, 1), 12), 18) == [6, 6, 6]

    def test_the_most_of_a_layer_and_whole_steps(self):
        assert share_out(root_ranks((9, 1, 1), 6), 12) == [6, 3, 3]
        assert share_out(root_ranks((2, 1), 20), 20, step=2) == [16, 4]

    @pytest.mark.parametrize("seed", range(20))
    def test_no_other_way_leaves_the_poorest_more(self, seed):
        """Against every way to share out so many heads, where rank per head falls with each head."""
        dice = random.Random(seed)
        ranks = [[heads * share for heads, share in enumerate(falling(dice, 6), start=1)] for _ in range(3)]
        total = dice.randint(4, 18)
        ways = [way for way in itertools.product(range(1, 7), repeat=3) if sum(way) == total]
        best = max(min(map(rank_per_head, ranks, way)) for way in ways)
        chosen = share_out(ranks, total)
        assert sum(chosen) == total and min(map(rank_per_head, ranks, chosen)) == best

    def test_too_few_heads(self):
        config = load_shape("vit/lean-mini")
        assert most_heads(config, 24) == 12 and most_heads(config, 5) == 3
        with pytest.raises(ValueError, match="3 heads, and each of 4 layers has at least 1: nothing to share out"):
            check_total(config, 3)
        grouped = load_shape("gpt/lean-mini", num_key_value_heads=2)
        assert most_heads(grouped, 26) == 14
        with pytest.raises(ValueError, match="27 heads: expected a multiple of the 2 key-value heads"):
            check_total(grouped, 27)

    def test_another_order(self):
        heads = [12, 5, 4, 3]
        orders = [shuffled(heads, seed) for seed in range(30)]
        assert all(sorted(order) == sorted(heads) and order != heads for order in orders)
        assert shuffled(heads, 7) == shuffled(heads, 7) and len(set(map(tuple, orders))) > 5
        assert shuffled([1, 2], 0) == [2, 1]


def falling(dice, count):
    return sorted((dice.random() for _ in range(count)), reverse=True)


class TestShapes:
    @pytest.mark.parametrize(("name", "heads"), [("vit/lean-mini", [12, 5, 4, 3]), ("bert/lean-mini", [1, 2, 20, 1])])
    def test_equal_cost(self, name, heads):
        start = load_shape(name)
        config = with_heads(start, heads)
        assert config.heads_per_layer == heads and config.head_dim == start.head_dim
        assert config.count_parameters() == start.count_parameters() and config.count_flops() == start.count_flops()

    def test_equal_heads_need_no_layers(self):
        start = load_shape("vit/lean-mini")
        assert with_heads(with_heads(start, [12, 5, 4, 3]), [6, 6, 6, 6]) == start

    def test_the_file_says_what_was_planned(self, tmp_path):
        config = with_heads(load_shape("gpt/nano", num_key_value_heads=2), [2, 4, 4, 8, 2, 4])
        path = write_shape(config, str(tmp_path / "varied.json"))
        assert load_config(str(path)) == config


class TestCommand:
    def test_auto(self, leaner, tmp_path):
        """Heads go where random pixels spread most, to the first layers; the same again, and another by its seed."""
        words = ("plan", "--like", "vit/lean-nano", "--heads", "auto", "--json")
        result = leaner(*words, "--write", tmp_path / "auto.json")
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        assert sum(document["heads"]) == sum(document["heads_before"])
        assert document["parameters"] == document["parameters_before"]
        assert document["heads"] == share_out(document["effective_ranks"], sum(document["heads_before"]))
        assert document["data"] == "random pixels" and document["rows"] == 16
        assert load_config(str(tmp_path / "auto.json")).heads_per_layer == document["heads"]
        assert json.loads(leaner(*words).stdout) == document
        assert json.loads(leaner(*words, "--seed", 2).stdout)["effective_ranks"] != document["effective_ranks"]

    def test_rows_of_a_recipe_and_more_heads(self, leaner):
        question = ("plan", "--like", "vit/lean-nano", "--heads", "auto", "--recipe", "digits")
        words = (*question, "--total-heads", 41, "--json")
        document = json.loads(leaner(*words).stdout)
        assert sum(document["heads"]) == 41 and document["data"] == "digits (train)"
        again = json.loads(leaner(*words, "--data", "digits").stdout)
        assert again == document

    def test_the_table(self, leaner):
        text = leaner("plan", "--like", "vit/lean-nano", "--heads", "auto").stdout
        for words in ("16 rows of random pixels, 4 times with new weights", "rank per new head", "parameters, "):
            assert words in text

    def test_the_rows_there_are(self, leaner):
        """A recipe may have fewer than are asked for."""
        words = ("plan", "--like", "vit/lean-nano", "--heads", "auto", "--recipe", "digits --max_train_rows 5")
        assert "Measured: 5 rows of digits (train)" in leaner(*words).stdout

    def test_a_shape_trains(self, leaner, tmp_path):
        """What `random` writes is another order of what is in the file, and it learns."""
        write_shape(with_heads(load_shape("vit/nano"), [1, 2, 3, 2, 1, 1, 1, 1]), str(tmp_path / "some.json"))
        control = tmp_path / "control.json"
        result = leaner("plan", "--like", tmp_path / "some.json", "--heads", "random", "--seed", 3, "--write", control)
        assert result.exit_code == 0, result.output
        heads = load_config(str(control)).heads_per_layer
        assert sorted(heads) == [1, 1, 1, 1, 1, 2, 2, 3] and heads != [1, 2, 3, 2, 1, 1, 1, 1]
        run = tmp_path / "run"
        result = leaner("train", "digits", "--shape", control, "--max_steps", 1, "--output_dir", run)
        assert result.exit_code == 0, result.output
        assert load_config(str(run)).heads_per_layer == heads

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--heads", "six"], "--heads six: expected a number, auto or random"),
            (["--heads", "auto", "--layers", "3"], "--layers: not with --heads auto, which changes the heads"),
            (["--heads", "random", "--recipe", "digits"], "--recipe: goes with --heads auto"),
            (["--seed", "3"], "--seed: goes with --heads auto or --heads random"),
            (["--heads", "auto", "--data", "rows"], "--data: expected --recipe as well, which says how"),
            (["--heads", "auto", "--total-heads", "8"], "--total-heads 8: 8 heads, and each of 8 layers has"),
            (["--heads", "random"], "--like vit/nano: every layer has 4 heads: there is no other order of them"),
            (["--heads", "auto", "--recipe", "'digits"], "--recipe: no closing quotation"),
            (["--heads", "auto", "--recipe", "digitss"], "digitss: no such recipe file"),
            (["--heads", "auto", "--recipe", "listops-short"], "task: sequence-classification is not for lean_vit"),
            (["--heads", "auto", "--recipe", "digits --streaming true"], "--recipe: streaming: expected rows that"),
        ],
    )
    def test_refusals(self, leaner, words, message, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        result = leaner("plan", "--like", "vit/nano", *words, "--write", "new")
        assert result.exit_code == 1 and result.stderr.startswith(f"leaner plan: {message}"), result.output
        assert result.stderr.count("\n") == 1 and not list(tmp_path.iterdir())

    def test_a_folder_that_cannot_be_written(self, leaner, monkeypatch):
        """Is found before anything is measured; where the disk is full in the end the table is there."""
        words = ("plan", "--like", "vit/nano", "--heads", "auto", "--write")
        with monkeypatch.context() as unmeasured:
            unmeasured.setattr(plan_heads, "measure", None)
            failed = leaner(*words, "/proc/new.json")
        assert failed.exit_code == 1 and "--write /proc/new.json: /proc/new.json cannot be written (" in failed.stderr

        def full(config, name):
            raise ValueError("disk full")

        monkeypatch.setattr(plan_heads, "write_shape", full)
        failed = leaner(*words, "new.json")
        assert failed.exit_code == 1 and "disk full" in failed.stderr and "rank per new head" in failed.stdout

    def test_refusals_of_the_shape(self, leaner, tmp_path):
        assert "--heads auto: expected --like SHAPE" in leaner("plan", "--family", "vit", "--heads", "auto").stderr
        few = "--like gpt/nano: 24 heads, and each of 6 layers has at least 4, a multiple of its num_key_value_heads: "
        assert few in leaner("plan", "--like", "gpt/nano", "--heads", "auto").stderr
        write_shape(load_shape("bert/nano", max_position_embeddings=5), str(tmp_path / "short.json"))
        short = "--heads auto measures 8 heads in every layer: row 1 has 5 tokens, and layer 0 has 8 heads; expected"
        assert short in leaner("plan", "--like", tmp_path / "short.json", "--heads", "auto").stderr


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_grid_is_fair(path, monkeypatch):
    """Three shapes of equal cost by one rate: equal heads, the planned ones, and those in another order of layers."""
    monkeypatch.chdir(ROOT)
    grid = load_grid(path)
    uniform, auto, control = map(load_config, grid.shapes)
    assert grid.baseline == grid.shapes[0] and len(grid.seeds) >= 5 and len(grid.learning_rates) == 1
    assert grid.contrasts == [[grid.shapes[1], grid.shapes[0]], [grid.shapes[1], grid.shapes[2]]]
    assert len(set(uniform.heads_per_layer)) == 1 and len(set(auto.heads_per_layer)) > 1
    assert control.heads_per_layer == shuffled(auto.heads_per_layer, 1)
    for other in (auto, control):
        assert with_heads(other, uniform.heads_per_layer) == uniform
        assert other.count_parameters() == uniform.count_parameters() and other.count_flops() == uniform.count_flops()
    check_grid(grid)
    assert grid.output_dir == f"model_cards/grids/{path.stem}"


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_the_page_has_what_the_grid_found(path):
    """Means of equal heads, planned ones and their control; planned less each of them, with its interval."""
    summary = json.loads((ROOT / "model_cards" / "grids" / path.stem / "summary.json").read_text())
    means = [f"{shape['mean']:.3f}" for shape in summary["shapes"]]
    found = [contrast["difference"] for contrast in summary["contrasts"]]
    limits = [contrast["interval"] for contrast in summary["contrasts"]]
    ahead = [f"{value:+.3f} ({low:+.3f} to {high:+.3f})" for value, (low, high) in zip(found, limits)]
    line = f" | {' | '.join([*means, *ahead])} |".replace("-", "\N{MINUS SIGN}")
    assert line in (ROOT / "docs" / "choosing-a-shape.md").read_text()


def test_more_heads_than_are_known():
    with pytest.raises(ValueError, match="^total is 9, expected 8 or less, of which the ranks are known$"):
        share_out([[1.0] * 4, [1.0] * 4], 9)
