"""Muon with AdamW as one optimizer, and the learning rate that follows the heads."""

import copy
import math

import pytest
import torch
from common import NO_DROPOUT, SMALL
from datasets import Dataset
from modeling_leaner.training.running.optimizers import (
    REFERENCE_HEADS,
    MuonAdamW,
    build_muon,
    head_scaled,
    muon_parameters,
)
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments

from modeling_leaner import (
    LeanBERTConfig,
    LeanBERTForMaskedLM,
    LeanBERTForSequenceClassification,
    LeanGPTConfig,
    LeanGPTForCausalLM,
    LeanGPTModel,
    LeanViTConfig,
    LeanViTForImageClassification,
)


TEXT = {**SMALL, **NO_DROPOUT, "vocab_size": 40, "max_position_embeddings": 16}
GPT = LeanGPTConfig(**TEXT, bos_token_id=0, eos_token_id=0)
MODELS = {
    "vit": lambda: LeanViTForImageClassification(
        LeanViTConfig(**SMALL, **NO_DROPOUT, image_size=8, patch_size=4, num_labels=3)
    ),
    "bert": lambda: LeanBERTForMaskedLM(LeanBERTConfig(**TEXT)),
    "bert-classes": lambda: LeanBERTForSequenceClassification(LeanBERTConfig(**TEXT, num_labels=3)),
    "gpt": lambda: LeanGPTForCausalLM(GPT),
    "gpt-bare": lambda: LeanGPTModel(GPT),
}


def gpt(seed=0):
    torch.manual_seed(seed)
    return LeanGPTForCausalLM(GPT)


def build(model, learning_rate=1e-2, weight_decay=0.1):
    decayed = {name for name, weight in model.named_parameters() if weight.ndim > 1}
    return build_muon(model, learning_rate, weight_decay, decayed, betas=(0.9, 0.99), eps=1e-7)


def batch(seed=0):
    """Rows (8, 16) that count upwards from a random start."""
    starts = torch.randint(0, 20, (8, 1), generator=torch.Generator().manual_seed(seed))
    rows = starts + torch.arange(16)
    return {"input_ids": rows, "labels": rows}


def train(model, optimizer, steps, first=0, scheduler=None):
    losses = []
    for step in range(first, first + steps):
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters()))


@pytest.mark.parametrize("family", MODELS)
def test_every_parameter_belongs_to_one_group(family):
    model = MODELS[family]()
    optimizer, names = build(model), {weight: name for name, weight in model.named_parameters()}
    placed = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert len(placed) == len(set(placed)) == len(names) and set(placed) == set(names)
    muon, decayed, rest = [{names[weight] for weight in group["params"]} for group in optimizer.param_groups]
    blocks = model.get_submodule("layers" if family == "gpt-bare" else "model.layers")
    assert muon == {names[weight] for weight in blocks.parameters() if weight.ndim == 2}
    assert len(muon) == 6 * SMALL["num_hidden_layers"] and sorted(muon) == sorted(muon_parameters(model))
    assert not any("embed" in name or "classifier" in name or "pooler" in name or "head" in name for name in muon)
    assert all(
        names[weight] in decayed for weight in model.parameters() if weight.ndim > 1 and names[weight] not in muon
    )
    assert all(weight.ndim == 1 for weight in model.parameters() if names[weight] in rest)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 0.0]


def test_a_matrix_that_must_not_decay_makes_a_fourth_group_and_frozen_weights_make_none():
    model = gpt()
    spared = model.model.layers[0].mlp.fc1.weight
    model.model.layers[1].requires_grad_(False)
    decayed = {name for name, weight in model.named_parameters() if weight.ndim > 1 and weight is not spared}
    groups = build_muon(model, 1e-3, 0.1, decayed, (0.9, 0.99), 1e-8).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.1, 0.0]
    assert groups[1]["params"] == [spared] and len(groups[0]["params"]) == 11
    assert sum(len(group["params"]) for group in groups) == sum(w.requires_grad for w in model.parameters())
    model.model.layers.requires_grad_(False)
    with pytest.raises(ValueError, match="LeanGPTForCausalLM has no trainable matrix inside the blocks"):
        build(model)


def test_a_block_weight_tied_to_the_outside_stays_with_adamw():
    model = LeanGPTForCausalLM(LeanGPTConfig(**{**TEXT, "vocab_size": SMALL["intermediate_size"]}))
    model.model.layers[0].mlp.fc1.weight = model.model.embed_tokens.weight
    assert len(muon_parameters(model)) == 17
    assert (
        sum(weight is model.model.embed_tokens.weight for g in build(model).param_groups for weight in g["params"])
        == 1
    )


def test_updates_of_block_matrices_are_orthogonal():
    """Gradients whose singular values span a factor of 10 become updates in which they are nearly equal."""
    model = gpt()
    optimizer = build(model, learning_rate=1.0, weight_decay=0.0)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 2:
            left, _, right = torch.linalg.svd(weight.grad, full_matrices=False)
            weight.grad = left @ torch.diag(torch.logspace(-4, -3, right.shape[0])) @ right
    optimizer.step()
    matrices = set(muon_parameters(model))
    for name, weight in model.named_parameters():
        update = before[name] - weight.detach()
        if name in matrices:
            singular = torch.linalg.svdvals(update) / (0.2 * math.sqrt(max(weight.shape)))
            assert singular.min() > 0.6 and singular.max() < 1.3, name  # where five Newton-Schulz steps leave them
            assert 0.1 < update.square().mean().sqrt() < 0.3  # AdamW's usual size
        elif weight.ndim == 2:
            singular = torch.linalg.svdvals(update)
            assert singular.max() > 3 * singular.min(), name


def test_equals_muon_and_adamw_by_hand():
    ours, theirs = gpt(), gpt()
    optimizer, names = build(ours), set(muon_parameters(theirs))
    pick = [(name in names, weight.ndim > 1, weight) for name, weight in theirs.named_parameters()]
    muon = torch.optim.Muon(
        [weight for inside, _, weight in pick if inside], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [
            {"params": [w for inside, matrix, w in pick if not inside and matrix], "weight_decay": 0.1},
            {"params": [w for inside, matrix, w in pick if not inside and not matrix], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=(0.9, 0.99),
        eps=1e-7,
    )
    train(ours, optimizer, 3)
    for step in range(3):
        theirs(**batch(step)).loss.backward()
        for each in (muon, adamw):
            each.step()
            each.zero_grad()
    assert equal(ours, theirs) and not equal(ours, gpt())


def test_schedulers_reach_both():
    model = gpt()
    optimizer = build(model)
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    train(model, optimizer, 2, scheduler=scheduler)
    inner = [group for each in optimizer.inner for group in each.param_groups]
    assert all(ours is theirs for ours, theirs in zip(optimizer.param_groups, inner)) and len(inner) == 3
    assert [group["lr"] for group in inner] == [2.5e-3] * 3
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = copy.deepcopy(model)
    train(model, optimizer, 1)
    assert equal(model, before)


def test_continues_exactly_after_a_checkpoint(tmp_path):
    model = gpt()
    optimizer = build(model)
    scheduler = LambdaLR(optimizer, lambda step: 0.8**step)
    train(model, optimizer, 3, scheduler=scheduler)
    torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = gpt(seed=1)
    other = build(resumed, learning_rate=5.0)
    other_scheduler = LambdaLR(other, lambda step: 0.8**step)
    for each, state in zip((resumed, other, other_scheduler), saved):
        each.load_state_dict(state)
    assert all(each.state is other.state for each in other.inner) and len(other.state) == len(list(model.parameters()))
    copied = copy.deepcopy((resumed, other))
    expected = train(model, optimizer, 3, first=3, scheduler=scheduler)
    assert train(resumed, other, 3, first=3, scheduler=other_scheduler) == expected and equal(resumed, model)
    assert [group["lr"] for group in other.param_groups] == [1e-2 * 0.8**6] * 3
    train(*copied, 3, first=3, scheduler=LambdaLR(copied[1], lambda step: 0.8 ** (step + 3)))
    assert not equal(copied[0], gpt(seed=1)) and torch.isfinite(copied[0].model.embed_tokens.weight).all()
    del saved[1]["param_groups"][0]
    with pytest.raises(ValueError, match="parameter group"):
        other.load_state_dict(saved[1])


def test_refuses_what_it_cannot_place():
    model = gpt()
    optimizer = build(model)
    with pytest.raises(NotImplementedError, match="build a new one"):
        optimizer.add_param_group({"params": [torch.zeros(2, 2, requires_grad=True)]})
    assert len(optimizer.param_groups) == 3
    matrix, vector = torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="2D"):
        MuonAdamW([{"params": [vector]}], [{"params": [matrix]}], lr=1.0)
    with pytest.raises(ValueError, match="more than one parameter group"):
        MuonAdamW([{"params": [matrix]}], [{"params": [matrix]}], lr=1.0)


def test_the_closure_runs_once_with_gradients():
    model, calls = gpt(), []
    optimizer = build(model)

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = model(**batch()).loss
        loss.backward()
        return loss

    before = copy.deepcopy(model)
    assert optimizer.step(closure).item() == pytest.approx(math.log(40), rel=0.1) and calls == [True]
    assert not equal(model, before)


def test_learns_to_count():
    model = gpt()
    losses = train(model, build(model, learning_rate=5e-3), 60)
    assert losses[0] > 3.5 and sum(losses[-5:]) / 5 < 0.6


def trainer(folder, model, **settings):
    arguments = TrainingArguments(
        str(folder),
        learning_rate=1e-2,
        max_grad_norm=1.0,
        per_device_train_batch_size=8,
        report_to="none",
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    rows = Dataset.from_dict({key: torch.cat([batch(seed)[key] for seed in range(4)]).tolist() for key in batch()})
    out = Trainer(model, arguments, train_dataset=rows)
    decayed = set(out.get_decay_parameter_names(model))
    out.optimizer = build_muon(model, arguments.learning_rate, 0.1, decayed, betas=(0.9, 0.999), eps=1e-8)
    return out


def test_inside_a_trainer_with_a_resume(tmp_path):
    whole = trainer(tmp_path / "whole", gpt(), max_steps=3)
    whole.train()
    rates = [line["learning_rate"] for line in whole.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([1e-2, 1e-2 * 2 / 3, 1e-2 / 3])
    resumed = trainer(tmp_path / "whole", gpt(seed=1), max_steps=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.state.global_step == 3 and equal(resumed.model, whole.model) and not equal(whole.model, gpt())
    assert isinstance(whole.optimizer.optimizer, MuonAdamW)


def test_learning_rate_follows_the_heads():
    assert REFERENCE_HEADS == 12
    assert head_scaled(1e-3, LeanBERTConfig()) == 1e-3
    twin = LeanBERTConfig(num_attention_heads=24, head_dim=32)
    assert head_scaled(1e-3, twin) == pytest.approx(1e-3 * math.sqrt(2))
    varied = LeanBERTConfig(num_hidden_layers=2, head_dim=64, per_layer_config={0: {"num_attention_heads": 4}})
    assert head_scaled(1e-3, varied) == pytest.approx(1e-3 * math.sqrt(8 / 12))  # the mean of 4 and 12
    assert head_scaled(1e-3, twin, baseline_heads=6) == pytest.approx(2e-3)
