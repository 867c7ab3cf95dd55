"""One of two gloo processes: the model split by its tensor-parallel plan must say what the whole model says.

usage: torchrun --nproc-per-node 2 parallel.py FOLDER INPUTS AUTO_CLASS
"""

import os
import sys

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

import modeling_leaner  # noqa: F401


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
