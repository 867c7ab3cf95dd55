"""Slimming: exact operations compute what the model computed; a cut equals the model with the rest silenced."""

import re

import pytest
import torch

from modeling_leaner import (
    LeanBERTConfig,
    LeanBERTForMaskedLM,
    LeanBERTModel,
    LeanGPTConfig,
    LeanGPTForCausalLM,
    LeanViTConfig,
    LeanViTForImageClassification,
)
from modeling_leaner.hub import POOLS
from modeling_leaner.slimming import measures, operations
from modeling_leaner.slimming.measures import Reference
from modeling_leaner.slimming.slim import Target, slim


TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SHAPE = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
TEXT = {"vocab_size": 50, "max_position_embeddings": 16, "pad_token_id": 0}


def bert(head=LeanBERTModel, **changes):
    return filled(head(LeanBERTConfig(**(SHAPE | TEXT | changes))))


def gpt(**changes):
    special = {"bos_token_id": 1, "eos_token_id": 1}
    return filled(LeanGPTForCausalLM(LeanGPTConfig(**(SHAPE | TEXT | special | changes))))


def vit(**changes):
    sizes = {"image_size": 8, "patch_size": 4}
    return filled(LeanViTForImageClassification(LeanViTConfig(**(SHAPE | sizes | changes))))


def filled(model):
    """A model of which no weight is zero or one, so that nothing is equal by chance."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def inputs(model):
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)}
    ids = torch.randint(1, 50, (3, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def output(model):
    outputs = model(**inputs(model))
    first = outputs.logits if "logits" in outputs else outputs.last_hidden_state
    if "attention_mask" in inputs(model):
        return first[inputs(model)["attention_mask"].bool()]
    return first


MODELS = {
    "bert": lambda: bert(LeanBERTForMaskedLM),
    "bert-uneven": lambda: bert(per_layer_config={1: {"num_attention_heads": 2}}, head_dim=6),
    "gpt": gpt,
    "gpt-grouped": lambda: gpt(num_key_value_heads=2),
    "gpt-first-not-grouped": lambda: gpt(
        num_key_value_heads=2, per_layer_config={0: {"num_attention_heads": 2}}, head_dim=6
    ),
    "vit": lambda: vit(qkv_bias=False),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(params=[name for name in MODELS if "grouped" not in name])
def ungrouped(request):
    """A model whose heads can be cut."""
    return MODELS[request.param]()


def same_output(slim, model):
    torch.testing.assert_close(output(slim), output(model), **TOLERANCE)


def all_heads(model):
    return [list(range(heads)) for heads in model.config.heads_per_layer]


def silence(linears, kept, means, fold):
    """Every linear layer reads the columns that are kept, and of the others their mean, or zero."""
    for linear, columns, mean in zip(linears, kept, means):

        def hook(module, args, columns=columns, mean=mean):
            masked = mean.expand_as(args[0]).clone() if fold else torch.zeros_like(args[0])
            masked[..., columns] = args[0][..., columns]
            return (masked,)

        linear.register_forward_pre_hook(hook)


class TestExact:
    def test_keeping_everything(self, model):
        """Bit for bit, by every cut."""
        config = model.config
        neurons = [range(config.intermediate_size)] * config.num_hidden_layers
        kept = [
            operations.keep_layers(model, range(config.num_hidden_layers)),
            operations.keep_neurons(model, neurons),
        ]
        if config.key_value_heads_per_layer == config.heads_per_layer:
            kept.append(operations.keep_heads(model, all_heads(model)))
        for same in kept:
            assert same.config == config
            assert torch.equal(output(same), output(model))
            torch.testing.assert_close(same.state_dict(), model.state_dict(), rtol=0, atol=0)

    def test_new_heads_contribute_nothing_and_can_learn(self, ungrouped):
        model = ungrouped
        slim = operations.add_heads(model, 2)
        assert slim.config.heads_per_layer == [heads + 2 for heads in model.config.heads_per_layer]
        same_output(slim, model)
        rows = 2 * slim.config.head_dim
        for layer in slim.base_model.layers:
            assert not layer.self_attn.o_proj.weight[:, -rows:].any()
            assert len(layer.self_attn.v_proj.weight[-rows:].unique(dim=0)) == rows
        slim.train()(**inputs(slim))[0].float().square().sum().backward()
        assert (slim.base_model.layers[0].self_attn.o_proj.weight.grad[:, -rows:].abs().amax(dim=0) > 0).all()

    def test_new_neurons_contribute_nothing_and_can_learn(self, model):
        slim = operations.add_neurons(model, 3)
        assert slim.config.intermediate_size == 43
        same_output(slim, model)
        for layer in slim.base_model.layers:
            assert not layer.mlp.fc2.weight[:, -3:].any()  # a column of equal numbers would vanish in the next norm
            assert len(layer.mlp.fc1.weight[-3:].unique(dim=0)) == 3  # alike, they would learn alike
        slim.train()(**inputs(slim))[0].float().square().sum().backward()
        assert (slim.base_model.layers[0].mlp.fc2.weight.grad[:, -3:].abs().amax(dim=0) > 0).all()


class TestCuts:
    def test_layers(self, model):
        """A cut model equals the model whose list of layers was cut by hand."""
        slim = operations.keep_layers(model, [0, 2])
        assert slim.config.heads_per_layer == [model.config.heads_per_layer[layer] for layer in (0, 2)]
        del model.base_model.layers[1]
        assert torch.equal(output(slim), output(model))

    @pytest.mark.parametrize("fold", [False, True], ids=["zero", "mean"])
    def test_heads_are_masked(self, ungrouped, fold):
        """What is removed equals what is masked, where `o_proj` reads it: by zero or by its mean; in any order."""
        model = ungrouped
        kept = [[2, 0], [1], [0, 3, 1]]
        if "gpt" in model.config.model_type:  # which has equally many in every layer
            kept = [[2, 0], [1, 3], [3, 2]]
        size = model.config.head_dim
        means = [torch.randn(heads * size) for heads in model.config.heads_per_layer]
        slim = operations.keep_heads(model, kept, means if fold else None)
        assert slim.config.heads_per_layer == [len(heads) for heads in kept]
        columns = [[head * size + column for head in heads for column in range(size)] for heads in kept]
        silence([layer.self_attn.o_proj for layer in model.base_model.layers], columns, means, fold)
        same_output(slim, model)

    @pytest.mark.parametrize("fold", [False, True], ids=["zero", "mean"])
    def test_neurons_are_masked(self, model, fold):
        kept = [[0, 5, 39], [7, 8, 9], [1, 0, 2]]
        means = [torch.randn(40) for _ in kept]
        slim = operations.keep_neurons(model, kept, means if fold else None)
        assert slim.config.intermediate_size == 3
        silence([layer.mlp.fc2 for layer in model.base_model.layers], kept, means, fold)
        same_output(slim, model)

    def test_dtype_mode_and_kind_of_attention_are_kept(self):
        model = bert().to(torch.bfloat16).train()
        model.set_attn_implementation("eager")
        slim = operations.keep_layers(model, [1])
        assert slim.dtype == torch.bfloat16 and slim.training
        assert slim.layers[0].self_attn.config._attn_implementation == "eager"
        assert all(parameter.requires_grad for parameter in slim.parameters())


@pytest.fixture
def reference():
    model = bert(num_hidden_layers=4)
    return model, Reference.of(model, [inputs(model), more_inputs()])


def more_inputs():
    ids = torch.randint(1, 50, (5, 7), generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class TestScores:
    def test_layers_are_ranked_by_what_the_cut_model_puts_out(self, model):
        """The search that shares beginnings gives the change of each model that was cut and run."""
        reference = Reference.of(model, [inputs(model)], POOLS["cls"])  # of an encoder; others do not pool
        ranking = measures.rank_layers(model, reference, 2)
        assert sorted(ranking) == [(0, 1), (0, 2), (1, 2)]
        changes = list(ranking.values())
        assert changes == sorted(changes) and changes[0] > 0
        for layers, change in ranking.items():
            assert reference.change(operations.keep_layers(model, layers)) == pytest.approx(change, rel=1e-4)

    def test_greedy_beyond_the_depth_of_the_exhaustive_search(self, reference, monkeypatch):
        model, expected = reference
        monkeypatch.setattr(measures, "EXHAUSTIVE_DEPTH", 3)
        ranking = measures.rank_layers(model, expected, 2)
        survivors = next(iter(measures.rank_layers(model, expected, 3)))
        assert len(ranking) == 3 and all(set(layers) < set(survivors) for layers in ranking)
        assert next(iter(ranking.values())) == min(ranking.values())

    def test_heads_are_scored_by_what_their_removal_changes(self, model):
        reference = Reference.of(model, [inputs(model)])
        means, _ = measures.input_moments(model, reference, "self_attn.o_proj")
        changes = measures.changes_by_head(model, reference, means)
        assert [len(layer) for layer in changes] == model.config.heads_per_layer
        if model.config.heads_per_layer != model.config.key_value_heads_per_layer or "gpt" in model.config.model_type:
            return  # no configuration holds one head less in one layer
        kept = all_heads(model)
        kept[1] = kept[1][1:]
        without = operations.keep_heads(model, kept, means)
        assert reference.change(without) == pytest.approx(float(changes[1][0]), rel=1e-3)

    def test_moments_leave_padding_out(self, reference):
        model, expected = reference
        means, variances = measures.input_moments(model, expected, "mlp.fc2")
        read = []
        handle = model.layers[2].mlp.fc2.register_forward_pre_hook(lambda module, args: read.append(args[0]))
        with torch.no_grad():
            for batch, _ in expected.pairs:
                model(**batch)
        handle.remove()
        rows = torch.cat([states[batch["attention_mask"].bool()] for states, (batch, _) in zip(read, expected.pairs)])
        torch.testing.assert_close(means[2].float(), rows.mean(dim=0), **TOLERANCE)
        torch.testing.assert_close(variances[2].float(), rows.var(dim=0, correction=0), **TOLERANCE)


def cut(model, **target):
    return slim(model, Target(**target), [inputs(model)], [inputs(model)])


class TestSlim:
    def test_every_part_at_once(self):
        model = vit()
        slimmed = cut(model, layers=2, heads=2, intermediate_size=30)
        config = slimmed.model.config
        assert (config.num_hidden_layers, config.heads_per_layer, config.intermediate_size) == (2, [2, 2], 30)
        assert [each.part for each in slimmed.cuts] == ["layers", "heads", "intermediate_size"]
        reference = Reference.of(model, [inputs(model)])
        assert slimmed.cuts[-1].change == pytest.approx(reference.change(slimmed.model))

    def test_what_matters_stays(self):
        """A head and a layer that do nothing are what goes."""
        model = gpt()
        silent_layer = model.base_model.layers[1]
        with torch.no_grad():
            for linear in (silent_layer.self_attn.o_proj, silent_layer.mlp.fc2):
                linear.weight.zero_()
                linear.bias.zero_()
        slimmed = cut(model, layers=2)
        assert slimmed.cuts[0].after == [0, 2] and slimmed.cuts[0].change < 1e-10

    def test_total_heads_are_shared_out(self):
        model = bert()
        with torch.no_grad():
            model.layers[1].self_attn.o_proj.weight[:, 6:].zero_()  # three of its four heads
        slimmed = cut(model, total_heads=9)
        assert slimmed.model.config.heads_per_layer == [4, 1, 4]
        assert slimmed.cuts[0].change < 1e-10

    def test_more_than_there_is_contributes_nothing_yet(self):
        model = bert()
        alone = cut(model, layers=2)
        slimmed = cut(model, layers=2, heads=7, intermediate_size=50)
        assert slimmed.model.config.heads_per_layer == [7, 7] and slimmed.model.config.intermediate_size == 50
        assert [(each.part, each.after) for each in slimmed.cuts[1:]] == [("heads", [7, 7]), ("intermediate_size", 50)]
        same_output(slimmed.model, alone.model)

    def test_the_mean_is_folded_where_that_is_better(self):
        """A neuron that always puts out the same is no loss, once its output is in the bias."""
        model = bert()
        with torch.no_grad():
            for layer in model.layers:
                layer.mlp.fc1.weight[:20].zero_()
                layer.mlp.fc1.bias[:20].fill_(2.0)
        slimmed = cut(model, intermediate_size=20)
        assert slimmed.cuts[0].change < 1e-8
        kept = [list(range(20, 40))] * 3
        assert Reference.of(model, [inputs(model)]).change(operations.keep_neurons(model, kept)) > 0.01

    @pytest.mark.parametrize(
        "make, target, message",
        [
            (bert, Target(layers=4), "layers: expected 1..3, got 4"),
            (bert, Target(keep=(0, 3)), "keep: expected 0..2, got 3"),
            (MODELS["bert-uneven"], Target(heads=5), "heads: expected 1..2, got 5"),
            (MODELS["gpt-grouped"], Target(heads=2), "only where none share keys and values"),
            (bert, Target(heads=2, total_heads=4), "heads and total_heads: give one of them"),
            (MODELS["bert-uneven"], Target(total_heads=11), "total_heads: expected 3..10, got 11"),
            (gpt, Target(total_heads=6), "LeanGPTConfig has one number of key-value heads"),
        ],
    )
    def test_shapes_that_cannot_be(self, make, target, message):
        with pytest.raises(ValueError, match=re.escape(message)):
            slim(make(), target, [], [])

    @pytest.mark.parametrize("target", [{}, {"layers": 3}, {"keep": (0, 1, 2)}], ids=str)
    def test_nothing_to_remove(self, target):
        with pytest.raises(ValueError, match="^nothing to remove"):
            cut(bert(), **target)


def test_a_row_without_tokens_is_no_reason_to_stop():
    """Its mean over no tokens is 0; NaN in the weights is told as what it is."""
    states = torch.ones(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert measures.mean_over_tokens(states, mask).tolist() == [[1.0] * 4, [0.0] * 4]
    model = bert()
    with torch.no_grad():
        model.embed_tokens.weight[:] = float("nan")
    with pytest.raises(ValueError, match="output of LeanBERTModel is not finite"):
        Reference.of(model, [inputs(model)])


def test_layers_with_grouped_heads_alone_keep_their_groups():
    """Whether heads share keys is asked of the whole model: the first layer alone does not say it."""
    model = MODELS["gpt-first-not-grouped"]()
    for layers in ([0], [1, 2]):
        fewer = operations.keep_layers(model, layers).config
        assert fewer.heads_per_layer == [model.config.heads_per_layer[layer] for layer in layers]
        assert fewer.num_key_value_heads == 2
    config = cut(model, intermediate_size=20).model.config
    assert config.intermediate_size == 20 and config.heads_per_layer == model.config.heads_per_layer
