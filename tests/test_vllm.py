"""vLLM's contract for models that it runs by transformers' code, by "Writing custom models" of its documentation.

vLLM itself is not run. It builds the base model, puts its own attention in place of the model's, and calls it with one
row of tokens of all requests, their positions, and `attention_instances`, which has to reach every layer's attention.
"""

import ast
import inspect
import json
from pathlib import Path

import pytest
import torch
import transformers
from common import distance
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from modeling_leaner.layers_leaner import LeanAttention


CARDS = Path(__file__).parent.parent / "model_cards"
FOLDERS = ["leangpt-mini-tinystories", "leanbert-mini-enwik8", "minilm-half-heads"]
CALLS: list[dict] = []


def attend(module, query, key, value, attention_mask, scaling=None, attention_instances=None, **kwargs):
    """In place of vLLM's attention, which reads queries (1, H, T, d) and writes (1, T, H, d)."""
    CALLS.append({"module": module, "instances": attention_instances, "query": query.shape, "scaling": scaling})
    assert query.shape[2] == key.shape[2] == value.shape[2], "the tokens before are vLLM's own to keep"
    return sdpa_attention_forward(module, query, key, value, None, scaling=scaling, is_causal=module.is_causal)


@pytest.fixture(params=FOLDERS)
def folder(request):
    return CARDS / request.param


@pytest.fixture
def model(folder):
    """The class that `auto_map.AutoModel` names, as vLLM looks it up."""
    reference = json.loads((folder / "config.json").read_text())["auto_map"]["AutoModel"]
    return transformers.AutoModel.from_pretrained(folder).eval(), reference


def test_base_model(folder, model):
    """`config.json` names the base model, which is the one that supports the attention of others."""
    base, reference = model
    assert reference.split(".")[-1] == type(base).__name__ and type(base)._supports_attention_backend is True
    assert base.is_backend_compatible()
    assert (folder / f"{reference.split('.')[0]}.py").is_file()


def test_attention_of_others_gets_all_that_it_needs(model):
    """Every layer calls it once, with what was given to the base model, its own number, and the scaling."""
    base, _ = model
    ids = torch.arange(5, 21)[None]
    inputs = {"input_ids": ids, "inputs_embeds": None, "use_cache": False, "return_dict": False}
    inputs["position_ids"] = torch.arange(16)[None]
    with torch.no_grad():
        expected = base(**inputs)[0]
        AttentionInterface.register("vllm", attend)
        base.set_attn_implementation("vllm")
        CALLS.clear()
        instances = {layer: object() for layer in range(base.config.num_hidden_layers)}
        states = base(**inputs, attention_instances=instances)[0]
    assert distance(states, expected) < 1e-5
    assert [call["module"].layer_idx for call in CALLS] == list(instances)
    for call, heads in zip(CALLS, base.config.heads_per_layer):
        assert call["instances"] is instances
        assert call["query"] == (1, heads, 16, base.config.head_dim)
        assert call["scaling"] == call["module"].scaling
    is_decoder = "GPT" in type(base).__name__
    assert all(call["module"].is_causal is is_decoder for call in CALLS)


def test_attention_is_written_as_vllm_reads_it():
    """One call of the function that ALL_ATTENTION_FUNCTIONS gives, with `scaling=self.scaling` and `**kwargs`."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(LeanAttention)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert sum("ALL_ATTENTION_FUNCTIONS" in ast.unparse(call.func) for call in calls) == 1
    (call,) = [call for call in calls if ast.unparse(call.func) == "attention_interface"]
    assert [ast.unparse(each) for each in call.args[:1]] == ["self"]
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert given["scaling"] == "self.scaling" and given[None] == "kwargs"


def test_plans(model):
    """Tensor parallel: styles that vLLM has, of linear layers; pipeline parallel: children, and one list of layers."""
    base, _ = model
    modules = dict(base.named_modules())
    for pattern, style in type(base.config).base_model_tp_plan.items():  # 5.17 adds one to a config's own
        assert style in ("colwise", "rowwise")
        for layer in range(base.config.num_hidden_layers):
            assert isinstance(modules[pattern.replace("*", str(layer))], nn.Linear)
    children = dict(base.named_children())
    plan = base.config.base_model_pp_plan
    assert plan.keys() <= children.keys()
    assert [name for name, child in children.items() if isinstance(child, nn.ModuleList)] == ["layers"]
    assert plan["layers"] == (["hidden_states", "attention_mask"], ["hidden_states"])
