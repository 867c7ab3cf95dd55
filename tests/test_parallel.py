"""Tensor parallelism: two gloo processes, each this file as a program, say what the whole model says."""

import os
import sys

import pytest
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file, save_file
from test_processes import torchrun
from test_remote_code import FAMILIES
from torch.distributed.tensor import DTensor


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_split_by_the_plan(family, tmp_path):
    tests = FAMILIES[family]()
    model = tests.build("base", **({} if family == "vit" else {"tie_word_embeddings": False}))
    model.save_pretrained(tmp_path / "model")
    tensors = tests.inputs()
    with torch.no_grad():
        tensors["expected"] = model(**tensors).logits
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, tmp_path / "inputs")
    auto_name = f"AutoModelFor{tests.logits_class.__name__.partition('For')[2]}"
    assert torchrun(__file__, tmp_path / "model", tmp_path / "inputs", auto_name).count("difference") == 2


def main():
    folder, inputs_file, auto_name = sys.argv[1:]
    dist.init_process_group("gloo")
    tensors = load_file(inputs_file)
    expected = tensors.pop("expected")
    model = getattr(transformers, auto_name).from_pretrained(folder, tp_plan="auto").eval()
    attention = model.model.layers[0].self_attn
    weight = attention.q_proj.weight
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    assert 2 * local.shape[0] == attention.num_heads * attention.head_dim, "the query heads were not split"
    with torch.no_grad():
        logits = model(**tensors).logits
    if isinstance(logits, DTensor):
        logits = logits.full_tensor()
    difference = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(f"rank {dist.get_rank()} difference {difference:.2e}", flush=True)
    assert difference < 3e-5
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo's can abort the interpreter's own end, once in some hundred times


if __name__ == "__main__":
    main()
