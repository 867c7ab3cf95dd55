"""What every family must do, written once; test_vit.py, test_bert.py and test_gpt.py list shapes and add their own.

Weights are of high variance (`sharpen`): with the usual small ones attention is nearly uniform, every wrong mask or
position changes little, and tests pass with the bug in place.
"""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from modeling_leaner.layers_leaner import LeanAttention


TOLERANCE = 3e-5
WRONG = 1e-2  # what a planted bug must exceed
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def sharpen(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """The model in eval mode with weights of high variance, attention outputs enlarged, biases and norms random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_((1.0 if "norm" in name and name.endswith("weight") else 0.0) + 0.2 * noise)
            else:
                parameter.copy_(noise * (0.4 if parameter.shape[-1] <= 64 else 0.1))
        for module in model.modules():
            if isinstance(module, LeanAttention):
                module.o_proj.weight.mul_(6 / module.o_proj.in_features**0.5)
                module.q_proj.weight.mul_(2.0)
    model.tie_weights()
    return model.eval()


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Largest difference over the largest magnitude."""
    return ((left - right).abs().max() / right.abs().max()).item()


def loss_and_gradients(model: PreTrainedModel, inputs: dict) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss, and the gradient of every parameter that has one; always with the same dropout."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_training(found: tuple, expected: tuple, tolerance: float = 1e-4) -> None:
    """The same loss, and gradients that differ by no more than a part of the largest."""
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance / 10, atol=0)
    largest = max(gradient.abs().max().item() for gradient in expected[1].values())
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=tolerance * largest)


class FirstArgument(nn.Module):
    """What stands where another pipeline stage has the module."""

    def forward(self, *args, **kwargs):
        return args[0]


class ModelTests:
    """Base of the families' test classes; a subclass sets the attributes and `inputs`."""

    config_class: type
    base_class: type[PreTrainedModel]
    logits_class: type[PreTrainedModel]  # the head whose `logits` the shared tests compare
    heads: dict[str, type[PreTrainedModel]]  # name after For → class
    shapes: dict[str, dict]

    def config(self, shape: str, **overrides):
        return self.config_class(**{**SMALL, **self.shapes[shape], **overrides})

    def build(self, shape: str, model_class: type | None = None, **overrides) -> PreTrainedModel:
        return sharpen((model_class or self.logits_class)(self.config(shape, **overrides)))

    def inputs(self, head: str | None = None) -> dict[str, torch.Tensor]:
        """Inputs, with labels where `head` names a task."""
        raise NotImplementedError

    def padded(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Inputs with a mask that hides some positions, and the positions that count."""
        inputs = self.inputs()
        mask = torch.ones(inputs["input_ids"].shape, dtype=torch.long)
        mask[0, 7:] = 0
        return {**inputs, "attention_mask": mask}, mask.bool()

    # Forward, backward, saving

    def test_forward_backward(self, shape: str, head: str):
        torch.manual_seed(0)
        model = self.heads[head](self.config(shape)).train()
        assert model.num_parameters() == model.config.count_parameters(type(model).__name__).total
        loss, gradients = loss_and_gradients(model, self.inputs(head))
        assert torch.isfinite(loss) and gradients.keys() == dict(model.named_parameters()).keys()

    def test_saved_and_loaded_is_the_same(self, head: str, tmp_path: Path):
        model = self.build("per-layer", self.heads[head])
        model.save_pretrained(tmp_path)
        loaded = self.heads[head].from_pretrained(tmp_path)
        again = self.config_class.from_pretrained(tmp_path)
        assert again == loaded.config and again.heads_per_layer == model.config.heads_per_layer
        inputs = self.inputs(head)
        for left, right in zip(model(**inputs).to_tuple(), loaded(**inputs).to_tuple()):
            if isinstance(left, torch.Tensor):
                assert distance(left, right) < 1e-6  # the loaded tensors lie elsewhere: sums may round otherwise
        assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == self.config_class.auto_classes()

    # Initialisation

    def check_initialisation(self, model: PreTrainedModel):
        """Every parameter has the spread that the documentation states: weights N(0, std), biases 0, norms 1."""
        std = model.config.initializer_range
        modules = dict(model.named_modules())
        scales = {f"{name}.weight": each.init_scale for name, each in modules.items() if hasattr(each, "init_scale")}
        padding = {
            f"{name}.weight": module.padding_idx
            for name, module in modules.items()
            if isinstance(module, nn.Embedding) and module.padding_idx is not None
        }
        for name, parameter in model.named_parameters():
            if "norm" in name:
                expected = 1.0 if name.endswith("weight") else 0.0
                assert torch.equal(parameter, torch.full_like(parameter, expected)), name
            elif name.endswith("bias"):
                assert not parameter.any(), name
            else:
                values = parameter.detach()
                if name in padding:
                    assert not values[padding[name]].any(), name
                    values = torch.cat((values[: padding[name]], values[padding[name] + 1 :]))
                expected = std * scales.get(name, 1.0)
                error = 5 / (2 * values.numel()) ** 0.5  # five standard errors of a standard deviation
                assert abs(values.std().item() / expected - 1) < error + 0.01, f"{name}: {values.std()} for {expected}"
                assert abs(values.mean().item()) < 5 * expected / values.numel() ** 0.5, name

    def test_initialised_when_built(self, head: str):
        torch.manual_seed(0)
        self.check_initialisation(self.heads[head](self.config("base", hidden_size=64)))

    # Attention

    def check_attention(self, shape: str, implementation: str):
        """It gives what eager attention gives."""
        model = self.build(shape)
        inputs, counts = self.padded()
        model.set_attn_implementation("eager")
        expected = model(**inputs).logits[counts]
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            assert distance(model(**inputs).logits[counts], expected) < TOLERANCE

    def test_sdpa_is_eager(self, shape: str):
        self.check_attention(shape, "sdpa")

    @pytest.mark.full
    def test_flex_attention_is_eager(self, shape: str):
        """Which torch compiles, anew for every shape."""
        self.check_attention(shape, "flex_attention")

    def test_attentions_and_hidden_states_are_recorded(self, shape: str):
        model = self.build(shape)
        model.set_attn_implementation("eager")
        inputs, counts = self.padded()
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
        config = model.config
        assert [weights.shape[1] for weights in output.attentions] == config.heads_per_layer
        for weights in output.attentions:
            assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert len(output.hidden_states) == config.num_hidden_layers + 1
        assert all(state.shape[-1] == config.hidden_size for state in output.hidden_states)

    # Training modes

    def test_gradient_checkpointing_changes_nothing(self, shape: str):
        head = next(iter(self.heads))
        model = self.build(shape, self.heads[head]).train()  # with dropout: its state must be restored
        expected = loss_and_gradients(model, self.inputs(head))
        calls = []
        for module in model.modules():
            if isinstance(module, LeanAttention):
                module.register_forward_hook(lambda *_: calls.append(1))
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        check_training(loss_and_gradients(model, self.inputs(head)), expected, 1e-5)
        assert len(calls) == 2 * model.config.num_hidden_layers, "the layers were not computed again"

    def check_compiled(self, shape: str, backend: str, **overrides):
        model = self.build(shape, **NO_DROPOUT, **overrides)
        inputs, counts = self.padded()
        with torch.no_grad():
            expected = model(**inputs).logits[counts]
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            assert distance(compiled(**inputs).logits[counts], expected) < TOLERANCE

    def test_compiled_is_eager(self):
        """With layers of different heads."""
        heads = {0: {"num_attention_heads": 2}}
        self.check_compiled("per-layer", "aot_eager", num_hidden_layers=2, per_layer_config=heads)

    def test_compiled_training_is_eager(self):
        head = next(iter(self.heads))
        model = self.build("base", self.heads[head], **NO_DROPOUT, num_hidden_layers=1).train()
        expected = loss_and_gradients(model, self.inputs(head))
        torch._dynamo.reset()
        model.compile(fullgraph=True, backend="aot_eager")
        check_training(loss_and_gradients(model, self.inputs(head)), expected)

    @pytest.mark.full
    def test_compiled_by_inductor(self, shape: str):
        if not (shutil.which("g++") or shutil.which("clang++")):
            pytest.skip("inductor needs a C++ compiler")
        self.check_compiled(shape, "inductor")

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, shape: str, dtype: torch.dtype):
        model = self.build(shape)
        with torch.no_grad():
            for module in model.modules():  # within half precision's reach
                if isinstance(module, LeanAttention):
                    module.q_proj.weight.mul_(0.25)
        inputs, counts = self.padded()
        expected = model(**inputs).logits[counts]
        half = copy.deepcopy(model).to(dtype)
        output = half(**inputs).logits
        assert output.dtype == dtype
        assert distance(output[counts].float(), expected) < 0.1

    # Plans and files

    def test_parallel_plans_name_modules(self):
        model = self.logits_class(self.config("base"))
        names = {name for name, _ in model.named_modules()}
        for pattern in self.config_class.base_model_tp_plan:
            assert f"model.{pattern.replace('*', '0')}" in names
        for plan in (model._tp_plan, model._pp_plan):
            assert plan and all(name.replace("*", "0") in names for name in plan)

    def test_pipeline_stages(self):
        """Two stages by the plan: modules of the other stage hand their first argument on, as pipeline engines do."""
        plan = list(self.config_class.base_model_pp_plan)
        model = self.build("base")
        inputs = self.inputs()
        expected = model(**inputs).logits
        assert [name for name, _ in model.model.named_children() if name in plan] == plan
        elsewhere = {name for name, module in model.model.named_children() if list(module.parameters())}
        assert elsewhere - {"pooler"} == set(plan), "a module with parameters is in no stage"
        first, second = copy.deepcopy(model), copy.deepcopy(model)
        layers = model.config.num_hidden_layers
        for index in range(layers):
            (first if index >= 1 else second).model.layers[index] = FirstArgument()
        for name in plan:
            if name != "layers":
                setattr((second if name in plan[: plan.index("layers")] else first).model, name, FirstArgument())
        states = first.model(**inputs).last_hidden_state
        rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "pixel_values")}
        received = {"pixel_values": states} if "pixel_values" in inputs else {**rest, "inputs_embeds": states}
        assert distance(second(**received).logits, expected) < TOLERANCE


class TextModelTests(ModelTests):
    """What the two text families share."""

    vocab_size = 90
    length = 10

    def ids(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randint(3, self.vocab_size, shape, generator=torch.Generator().manual_seed(seed))

    def test_padded_is_trimmed(self, shape: str):
        model = self.build(shape)
        inputs, _ = self.padded()
        padded = model(**inputs).logits[0, :7]
        trimmed = model(**{name: tensor[:1, :7] for name, tensor in inputs.items()}).logits[0]
        assert distance(padded, trimmed) < TOLERANCE

    def test_packed_is_separate(self, shape: str):
        model = self.build(shape)
        first, second = self.ids(1, 6, seed=1), self.ids(1, 9, seed=2)
        row = torch.cat((first, second), dim=1)
        positions = torch.cat((torch.arange(6), torch.arange(9)))[None]
        packed = model(input_ids=row, position_ids=positions).logits
        assert distance(packed[:, :6], model(input_ids=first).logits) < TOLERANCE
        expected = model(input_ids=second).logits
        assert distance(packed[:, 6:], expected) < TOLERANCE
        assert distance(model(input_ids=row).logits[:, 6:], expected) > WRONG  # without position_ids

    def test_inputs_embeds(self, shape: str):
        model = self.build(shape)
        inputs = self.inputs()
        embeds = model.get_input_embeddings()(inputs.pop("input_ids"))
        assert torch.equal(model(inputs_embeds=embeds, **inputs).logits, model(**self.inputs()).logits)
        with pytest.raises(ValueError, match="expected either input_ids .B, T. or inputs_embeds"):
            model(**self.inputs(), inputs_embeds=embeds)
        with pytest.raises(ValueError, match=r"got \[5\] and None"):
            model(torch.full((5,), 7))

    @pytest.mark.parametrize("tied", [True, False])
    def test_resized_embeddings(self, tied: bool, tmp_path: Path):
        model = self.build("base", tie_word_embeddings=tied)
        expected = model(**self.inputs()).logits
        model.resize_token_embeddings(self.vocab_size + 7)
        grown = model(**self.inputs()).logits
        assert grown.shape[-1] == self.vocab_size + 7 and torch.equal(grown[..., : self.vocab_size], expected)
        model.save_pretrained(tmp_path)
        loaded = self.logits_class.from_pretrained(tmp_path)
        assert torch.equal(loaded(**self.inputs()).logits, grown)
        shared = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
        assert shared == tied

    @pytest.mark.parametrize("attention", ["sdpa", "eager"])
    def test_refuses_masks_of_another_width(self, attention: str):
        model = self.build("base", attn_implementation=attention)
        for rows, width in ((2, 4), (2, 6), (1, 5), (3, 5)):
            with pytest.raises(ValueError, match=rf"attention_mask is \[{rows}, {width}\], expected \[2, 5\]"):
                model(torch.full((2, 5), 7), attention_mask=torch.ones(rows, width))

    def test_refuses_what_is_out_of_range(self):
        model = self.build("base", max_position_embeddings=16)
        with pytest.raises(ValueError, match="has 17 tokens, but max_position_embeddings is 16"):
            model(input_ids=self.ids(1, 17))
        ids = self.ids(2, 8)
        ids[1, 3] = self.vocab_size
        with pytest.raises(ValueError, match=r"input_ids\[1, 3\] is 90, expected 0..89 \(vocab_size=90\)"):
            model(input_ids=ids)
        with pytest.raises(ValueError, match=r"position_ids\[0, 1\] is 16"):
            model(input_ids=self.ids(1, 2), position_ids=torch.tensor([[0, 16]]))
        with pytest.raises(ValueError, match=r"labels\[0, 0\] is -5"):
            model(input_ids=self.ids(1, 2), labels=torch.tensor([[-5, 1]]))
        classifier = self.build("base", self.heads["SequenceClassification"], num_labels=3)
        with pytest.raises(ValueError, match=r"labels\[0\] is 3, expected 0..2 \(num_labels=3\)"):
            classifier(input_ids=self.ids(1, 4), labels=torch.tensor([3]))


class CheckpointTests:
    """Checkpoints that do not fit, which the base class of all families reads; one family's are enough."""

    def test_damaged_checkpoints(self, tmp_path: Path):
        model = self.logits_class(self.config("base"))
        weights = tmp_path / "model.safetensors"
        model.save_pretrained(tmp_path)
        whole = weights.read_bytes()

        weights.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(OSError, match="damaged or not safetensors"):
            self.logits_class.from_pretrained(tmp_path)

        weights.unlink()
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        with pytest.raises(OSError, match="no file named model.safetensors"):
            self.logits_class.from_pretrained(tmp_path)
        model.save_pretrained(tmp_path, variant="fp16")
        self.logits_class.from_pretrained(tmp_path, variant="fp16")  # has safetensors of its own

        state = model.state_dict()
        state["model.layers.0.mlp.fc1.bias"] = torch.zeros(3)
        model.save_pretrained(tmp_path, state_dict=state)
        with pytest.raises(RuntimeError, match=r"model.layers.0.mlp.fc1.bias is \[3\], expected \[48\]"):
            self.logits_class.from_pretrained(tmp_path)

    def saved(self, folder: Path, model_class: type | None = None, **overrides) -> Path:
        model = (model_class or self.logits_class)(self.config("base", **overrides))
        model.save_pretrained(folder)
        return folder

    def edit_config(self, folder: Path, **values) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    def edit_weights(self, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    def test_a_missing_tensor_is_reported(self, tmp_path: Path):
        self.edit_weights(self.saved(tmp_path), lambda tensors: tensors.pop("model.layers.1.mlp.fc1.bias"))
        _, info = self.logits_class.from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"] == {"model.layers.1.mlp.fc1.bias"}

    def test_a_head_of_another_width_may_be_left_out(self, head: str, tmp_path: Path):
        folder = self.saved(tmp_path, self.heads[head])
        for loaded_class in (self.base_class, *self.heads.values()):
            loaded_class.from_pretrained(folder, ignore_mismatched_sizes=True)

    def test_integers_are_no_weights(self, tmp_path: Path):
        name = "model.layers.1.mlp.fc1.weight"
        self.edit_weights(self.saved(tmp_path), lambda tensors: tensors.update({name: (100 * tensors[name]).long()}))
        message = rf"{name} \(I64\) are integers, expected floating point"
        for model_class in (self.logits_class, self.base_class):
            with pytest.raises(RuntimeError, match=message):
                model_class.from_pretrained(tmp_path)

    def test_folders_that_hold_no_checkpoint(self, tmp_path: Path):
        folder = self.saved(tmp_path / "model")
        for source in (tmp_path / "nowhere", folder / "config.json"):
            with pytest.raises(OSError, match=f"{source}: no such folder"):
                self.logits_class.from_pretrained(source)
        index = folder / "model.safetensors.index.json"
        names = list(load_file(folder / "model.safetensors"))
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        document = {"metadata": {}, "weight_map": dict.fromkeys(names, "part.safetensors")}
        index.write_text(json.dumps(document))
        self.logits_class.from_pretrained(folder)
        for text, message in (
            (json.dumps(document).replace("part", "../model/part"), "is not the name of a file in this folder"),
            (json.dumps(document).replace("part", "gone"), "'gone.safetensors' is not the name of a file"),
            (json.dumps(document).replace('"part.safetensors"', "3"), "index.json: damaged"),
            ("{", "index.json: damaged"),
        ):
            index.write_text(text)
            with pytest.raises(OSError, match=message):
                self.logits_class.from_pretrained(folder)
        (folder / "config.json").unlink()
        with pytest.raises(OSError, match="config.json: missing"):
            self.logits_class.from_pretrained(folder)
