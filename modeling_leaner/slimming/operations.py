"""Changes of shape that carry the weights over: each function takes a model and returns a new one.

Two kinds. *Exact* ones compute what the model computed, up to rounding: `add_heads`, `add_neurons`, and every cut that
keeps everything. *Cuts* leave something out: `keep_layers`, `keep_heads`, `keep_neurons`.

Letters as in `layers_leaner`: D hidden_size, H query heads, K key-value heads, d head_dim.
"""

import copy
from collections.abc import Sequence

import torch

from ..layers_leaner import LeanPreTrainedModel


PROJECTIONS = tuple(f"self_attn.{name}_proj." for name in "qkv")  # beginnings of their tensors' names

Tensors = dict[str, torch.Tensor]


def keep_layers(model: LeanPreTrainedModel, layers: Sequence[int]) -> LeanPreTrainedModel:
    """A cut: the named layers, counted from 0, in their order."""
    heads = [model.config.heads_per_layer[layer] for layer in layers]
    return _rebuilt(model, [model.base_model.layers[layer].state_dict() for layer in layers], heads=heads)


def keep_heads(
    model: LeanPreTrainedModel, kept: Sequence[Sequence[int]], means: Sequence[torch.Tensor] | None = None
) -> LeanPreTrainedModel:
    """A cut: the named heads of every layer. What is left out counts as zero, or as its mean where `means` are given.

    Another order of the same heads is a permutation, which is exact. Not for heads that share keys and values.

    Args:
        kept: per layer, heads counted from 0.
        means: per layer the mean (H·d) of what `o_proj` reads, whose removed part goes into its bias.
    """
    size = model.config.head_dim
    layers = []
    for layer, heads, mean in zip(model.base_model.layers, kept, means or [None] * len(kept)):
        tensors = layer.state_dict()
        rows = torch.cat([torch.arange(head * size, (head + 1) * size) for head in heads])
        _keep_columns(tensors, "self_attn.o_proj", rows, mean)
        for name, tensor in tensors.items():
            if name.startswith(PROJECTIONS):
                tensors[name] = tensor[rows]
        layers.append(tensors)
    return _rebuilt(model, layers, heads=[len(heads) for heads in kept])


def keep_neurons(
    model: LeanPreTrainedModel, kept: Sequence[Sequence[int]], means: Sequence[torch.Tensor] | None = None
) -> LeanPreTrainedModel:
    """A cut: the named neurons of every MLP, equally many per layer, since a configuration has one MLP width.

    Args:
        kept: per layer, neurons counted from 0.
        means: per layer the mean (intermediate_size) of what `fc2` reads, whose removed part goes into its bias.
    """
    layers = []
    for layer, neurons, mean in zip(model.base_model.layers, kept, means or [None] * len(kept)):
        tensors = layer.state_dict()
        rows = torch.tensor(neurons)
        _keep_columns(tensors, "mlp.fc2", rows, mean)
        for name in ("mlp.fc1.weight", "mlp.fc1.bias"):
            tensors[name] = tensors[name][rows]
        layers.append(tensors)
    return _rebuilt(model, layers, intermediate_size=len(kept[0]))


def add_heads(model: LeanPreTrainedModel, added: int) -> LeanPreTrainedModel:
    """Exact: `added` more heads in every layer, which contribute nothing yet because their output columns are zero.

    Queries, keys and values are drawn from N(0, initializer_range): were they zero, the heads would never learn. Not
    for heads that share keys and values.
    """
    generator = torch.Generator().manual_seed(0)
    rows = added * model.config.head_dim
    layers = []
    for layer in model.base_model.layers:
        tensors = layer.state_dict()
        for name, tensor in tensors.items():
            if name.startswith(PROJECTIONS):
                new = torch.zeros(rows, *tensor.shape[1:])
                if name.endswith("weight"):
                    new.normal_(std=model.config.initializer_range, generator=generator)
                tensors[name] = torch.cat([tensor, new.to(tensor)])
        out = tensors["self_attn.o_proj.weight"]
        tensors["self_attn.o_proj.weight"] = torch.cat([out, out.new_zeros(out.shape[0], rows)], dim=1)
        layers.append(tensors)
    return _rebuilt(model, layers, heads=[heads + added for heads in model.config.heads_per_layer])


def add_neurons(model: LeanPreTrainedModel, added: int) -> LeanPreTrainedModel:
    """Exact: `added` more neurons in every MLP, which contribute nothing yet because their output columns are zero.

    What they read by is drawn from N(0, initializer_range): were it zero, they would never learn apart.
    """
    generator = torch.Generator().manual_seed(0)
    layers = []
    for layer in model.base_model.layers:
        tensors = layer.state_dict()
        out = tensors["mlp.fc2.weight"]
        new = torch.zeros(added, out.shape[0]).normal_(std=model.config.initializer_range, generator=generator)
        tensors["mlp.fc1.weight"] = torch.cat([tensors["mlp.fc1.weight"], new.to(out)])
        tensors["mlp.fc1.bias"] = torch.cat([tensors["mlp.fc1.bias"], out.new_zeros(added)])
        tensors["mlp.fc2.weight"] = torch.cat([out, out.new_zeros(out.shape[0], added)], dim=1)
        layers.append(tensors)
    return _rebuilt(model, layers, intermediate_size=model.config.intermediate_size + added)


def _rebuilt(
    model: LeanPreTrainedModel, layers: Sequence[Tensors], heads: Sequence[int] | None = None, **changes: int
) -> LeanPreTrainedModel:
    """A model of the same class and mode with these layers, copied, and all else of the given one; all can be trained.

    `heads` of each layer are as many as before by default; `changes` are of the configuration.
    """
    heads = model.config.heads_per_layer if heads is None else heads
    document = model.config.to_dict()
    document.pop("per_layer_config", None)
    if len(heads) != model.config.num_hidden_layers:
        for name in ("stage_names", "out_features", "out_indices"):  # a ViT's backbone counts its layers in them
            document.pop(name, None)
    most = max(heads)
    document |= {"num_hidden_layers": len(heads), "num_attention_heads": most, "head_dim": model.config.head_dim}
    fewer = {index: {"num_attention_heads": count} for index, count in enumerate(heads) if count != most}
    if fewer:
        document["per_layer_config"] = fewer
    is_grouped = model.config.key_value_heads_per_layer != model.config.heads_per_layer
    if "num_key_value_heads" in document and not is_grouped:  # else all layers keep their key-value heads
        document["num_key_value_heads"] = most

    options = {"add_pooling_layer": model.pooler is not None} if hasattr(model, "pooler") else {}
    with torch.device("meta"):
        slim = type(model)(type(model.config).from_dict(document | changes), **options)
    slim.set_attn_implementation(model.config._attn_implementation)  # which no document of a configuration holds
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    tensors = {name: each for name, each in model.state_dict().items() if not name.startswith(f"{prefix}layers.")}
    for index, layer in enumerate(layers):
        tensors |= {f"{prefix}layers.{index}.{name}": tensor for name, tensor in layer.items()}
    copies = {name: each.detach().clone(memory_format=torch.contiguous_format) for name, each in tensors.items()}
    slim.load_state_dict(copies, strict=True, assign=True)

    slim.tie_weights()
    slim.requires_grad_(True)
    if model.can_generate():
        slim.generation_config = copy.deepcopy(model.generation_config)
    return slim.train(model.training)


def _keep_columns(tensors: Tensors, linear: str, kept: torch.Tensor, means: torch.Tensor | None) -> None:
    """Cuts the weight of a linear layer; what the other columns add where each reads its mean goes into the bias."""
    weight, bias = tensors[f"{linear}.weight"], tensors[f"{linear}.bias"]
    if means is not None:
        removed = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
        removed[kept] = False
        tensors[f"{linear}.bias"] = bias + weight[:, removed] @ means.to(weight)[removed]
    tensors[f"{linear}.weight"] = weight[:, kept]
