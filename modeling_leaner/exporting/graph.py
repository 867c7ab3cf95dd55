"""A model as a graph of named tensors, traced once for any number of rows and any length.

Names are those of transformers and, for a key-value cache, of ONNX files on the Hub: `past_key_values.0.key` goes in,
`present.0.key` comes out. transformers.exporters, which is experimental, gives caches and free sizes other names.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import ModelOutput

from ..layers_leaner import LeanPreTrainedModel


CACHE = "past_key_values"
CHOICES = 3  # of made-up inputs for multiple choice
PADDED = 2  # tokens of a made-up row
Inputs = dict[str, torch.Tensor | list[torch.Tensor]]


@dataclass(frozen=True)
class Size:
    """Of inputs: rows, tokens of each row, and tokens that a cache holds already."""

    rows: int
    length: int
    past: int = 0


TRACED = Size(rows=2, length=7)
TRACED_PAST = 5  # of a model that keeps a cache


class ExportableModel(nn.Module):
    """A model whose inputs and outputs are tensors alone; those of its cache are a list, layer by layer."""

    def __init__(self, model: LeanPreTrainedModel):
        super().__init__()
        self.model = model.eval()

    @property
    def keeps_cache(self) -> bool:
        """Whether keys and values of earlier tokens go in and come out."""
        return isinstance(self.model, GenerationMixin)

    @property
    def reads_images(self) -> bool:
        return self.model.main_input_name == "pixel_values"

    @property
    def reads_choices(self) -> bool:
        """Whether inputs are (B, C, T), every choice a text."""
        return type(self.model).__name__.endswith("ForMultipleChoice")

    @property
    def reads_token_types(self) -> bool:
        """Whether a token says to which of two texts it belongs."""
        return hasattr(self.model.config, "type_vocab_size")

    @property
    def traced_size(self) -> Size:
        """Of the inputs that the graph is traced with."""
        return replace(TRACED, past=TRACED_PAST) if self.keeps_cache else TRACED

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: list[torch.Tensor] | None = None,
        pixel_values: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The model's outputs by name."""
        if pixel_values is not None:
            return by_name(self.model(pixel_values=pixel_values))
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if past_key_values is not None:
            cache = DynamicCache(config=self.model.config)
            for index, (key, value) in enumerate(zip(past_key_values[::2], past_key_values[1::2])):
                cache.update(key, value, index)
            inputs |= {"position_ids": position_ids, CACHE: cache, "use_cache": True}
        elif not self.keeps_cache and hasattr(self.model.config, "use_cache"):
            inputs["use_cache"] = False  # else a decoder gives out a cache that no input takes
        return by_name(self.model(**inputs))


def by_name(outputs: ModelOutput) -> dict[str, torch.Tensor]:
    """The tensors of a model's outputs."""
    named = {}
    for name, value in outputs.items():
        if isinstance(value, Cache):
            for index, layer in enumerate(value.layers):
                named |= {f"present.{index}.key": layer.keys, f"present.{index}.value": layer.values}
        elif isinstance(value, tuple):
            named |= {f"{name}.{index}": tensor for index, tensor in enumerate(value)}
        else:
            named[name] = value
    return named


def flattened(inputs: Inputs) -> dict[str, torch.Tensor]:
    """Inputs by the names that an ONNX graph has for them."""
    named = {}
    for name, value in inputs.items():
        if name == CACHE:
            parts = ("key", "value")
            named |= {f"{CACHE}.{index // 2}.{parts[index % 2]}": tensor for index, tensor in enumerate(value)}
        else:
            named[name] = value
    return named


def make_inputs(exportable: ExportableModel, size: Size, seed: int = 0) -> Inputs:
    """Random inputs; of several rows of text the last is padded, on the left if the model continues texts."""
    generator = torch.Generator().manual_seed(seed)
    config = exportable.model.config
    if exportable.reads_images:
        shape = (size.rows, config.num_channels, *config.image_shape)
        return {"pixel_values": torch.randn(shape, generator=generator)}
    shape = (size.rows, size.length)
    if exportable.reads_choices:
        shape = (size.rows, CHOICES, size.length)
    mask = torch.ones(*shape[:-1], size.past + size.length, dtype=torch.long)
    if size.rows > 1 and mask.shape[-1] > PADDED and not exportable.reads_choices:
        if exportable.keeps_cache:
            mask[-1, :PADDED] = 0
        else:
            mask[-1, -PADDED:] = 0
    inputs = {"input_ids": torch.randint(config.vocab_size, shape, generator=generator), "attention_mask": mask}
    if exportable.keeps_cache:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        inputs["position_ids"] = positions[:, size.past :].clone()  # a view would be part of what is traced
        inputs[CACHE] = make_cache(exportable, size, generator)
    elif exportable.reads_token_types:
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape, generator=generator)
    return inputs


def make_cache(exportable: ExportableModel, size: Size, generator: torch.Generator) -> list[torch.Tensor]:
    """Random keys and values (B, K, past, d), layer by layer."""
    config = exportable.model.config
    return [
        torch.randn(size.rows, heads, size.past, config.head_dim, generator=generator)
        for heads in config.key_value_heads_per_layer
        for _ in ("key", "value")
    ]


def dynamic_axes(exportable: ExportableModel) -> dict[str, dict[int, str]]:
    """The axes of each input that may have any size, with the name of that size."""
    if exportable.reads_images:
        return {"pixel_values": {0: "batch"}}
    tokens = {0: "batch", 1: "length"}
    if exportable.reads_choices:
        tokens = {0: "batch", 1: "choices", 2: "length"}
    axes = {"input_ids": tokens, "attention_mask": tokens}
    if exportable.keeps_cache:
        axes["attention_mask"] = {0: "batch", 1: "past + length"}
        axes["position_ids"] = tokens
        axes[CACHE] = {0: "batch", 2: "past"}
    elif exportable.reads_token_types:
        axes["token_type_ids"] = tokens
    return axes


def input_shapes(exportable: ExportableModel) -> dict[str, list[int | str]]:
    """The shape of every input, with names instead of free sizes."""
    axes = dynamic_axes(exportable)
    shapes = {}
    for name, tensor in flattened(make_inputs(exportable, exportable.traced_size)).items():
        free = axes[name.partition(".")[0]]
        shapes[name] = [free.get(axis, size) for axis, size in enumerate(tensor.shape)]
    return shapes


def longest(exportable: ExportableModel) -> int | None:
    """Tokens of a row at most; None of images."""
    return getattr(exportable.model.config, "max_position_embeddings", None)


def trace(exportable: ExportableModel) -> ExportedProgram:
    """The graph as torch.export records it, without the places in source files that it keeps of each operation."""
    inputs = make_inputs(exportable, exportable.traced_size)
    shapes = {}
    for name, axes in dynamic_axes(exportable).items():
        free = dict.fromkeys(axes, Dim.DYNAMIC)
        shapes[name] = free
        if name == CACHE:
            shapes[name] = [free for _ in inputs[CACHE]]
    with torch.no_grad():
        program = torch.export.export(exportable, (), inputs, dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with paths of this machine
    return program
