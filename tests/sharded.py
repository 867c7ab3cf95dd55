"""One of two gloo processes: a model under FSDP2 trains as it does whole, and its checkpoint is everyone's.

usage: torchrun --nproc-per-node 2 sharded.py FOLDER BATCHES AUTO_CLASS LOSSES OUTPUT
Trains the model of FOLDER on each process's half of every batch, asserts the loss curve of the whole model, writes
the trained weights to OUTPUT in one file.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import modeling_leaner  # noqa: F401


LEARNING_RATE = 1e-3


def batches(file: str) -> list[dict[str, torch.Tensor]]:
    """The tensors `3.input_ids` and so on, as batches."""
    tensors = load_file(file)
    count = 1 + max(int(name.split(".")[0]) for name in tensors)
    names = {name.split(".")[1] for name in tensors}
    return [{name: tensors[f"{index}.{name}"] for name in names} for index in range(count)]


def train(model: torch.nn.Module, rows: list[dict[str, torch.Tensor]]) -> list[float]:
    """The loss of every step; with several processes, the mean over them (equal parts of every batch)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, processes = [], dist.get_world_size() if dist.is_initialized() else 1
    for batch in rows:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        if processes > 1:
            dist.all_reduce(total)
        losses.append(total.item() / processes)
    return losses


def main() -> None:
    folder, file, auto_name, expected, output = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, half = dist.get_rank(), len(next(iter(batches(file)[0].values()))) // 2
    model = getattr(transformers, auto_name).from_pretrained(folder).train()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters()), "not sharded"
    rows = [{name: value[rank * half : (rank + 1) * half] for name, value in batch.items()} for batch in batches(file)]
    losses = train(model, rows)
    whole = json.loads(Path(expected).read_text())
    worst = max(abs(ours - theirs) for ours, theirs in zip(losses, whole, strict=True))
    print(f"rank {rank} difference {worst:.2e}", flush=True)
    assert worst < 1e-3 and abs(losses[0] - losses[-1]) > 1e-2
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        plain = getattr(transformers, auto_name).from_pretrained(folder)
        plain.load_state_dict(weights)
        plain.save_pretrained(output)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo's can abort the interpreter's own end, once in some hundred times


if __name__ == "__main__":
    main()
