"""`leaner export`: a model as an ONNX graph, which runs without this package.

The graph is traced once for any number of rows and any length, and compared with the model at other sizes. Names are
those of transformers and, for a key-value cache, of ONNX files on the Hub: `past_key_values.0.key` goes in,
`present.0.key` comes out. transformers.exporters, which is experimental, gives caches and free sizes other names.
"""

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache

from .conversion import load_lean
from .files import read_json, whole_folder, write_json
from .hub import copy_into, load_processors, local_folder, sentence_transformers_files
from .layers_leaner import LeanPreTrainedModel


ONNX_FILE = "onnx/model.onnx"  # the names that transformers.js, fastembed and TEI read
ONNX_INT8_FILE = "onnx/model_quantized.onnx"
PARITY_FILE = "parity.json"  # not export.json, which transformers.exporters writes
LARGEST_FILE = 1_900_000_000  # bytes of weights in an ONNX file, which protobuf ends at 2 GB; more lie beside it
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
CACHE = "past_key_values"
PADDED = 2  # tokens of a made-up row
BLOCK = 32  # values of an embedding that share a scale
LARGEST_DIFFERENCE = 1e-3  # as of `compare`: rounding gives 1e-6, a mask or a cache that is ignored more than 1e-2
RANKS_BY_TOKEN = {"last_hidden_state": 3, "hidden_states": 3, "logits": 3, "start_logits": 2, "end_logits": 2}

Inputs = dict[str, torch.Tensor | list[torch.Tensor]]
Forward = Callable[[Inputs], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Size:
    """Of inputs: rows, tokens of each row, and tokens that a cache holds already."""

    rows: int
    length: int
    past: int = 0


TRACED = Size(rows=2, length=7, past=5)
COMPARED = (Size(rows=3, length=20, past=11), Size(rows=1, length=6), Size(rows=1, length=1, past=9))


# The graph


class ExportableModel(nn.Module):
    """A model whose inputs and outputs are tensors alone; those of its cache are a list, layer by layer.

    `keeps_cache`: keys and values of earlier tokens go in and come out.
    """

    def __init__(self, model: LeanPreTrainedModel):
        super().__init__()
        self.model = model.eval()
        self.keeps_cache = isinstance(model, GenerationMixin)
        self.reads_images = model.main_input_name == "pixel_values"

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
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if pixel_values is not None:
            inputs = {"pixel_values": pixel_values}
        elif token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if past_key_values is not None:
            cache = DynamicCache(config=self.model.config)
            for index, (key, value) in enumerate(zip(past_key_values[::2], past_key_values[1::2])):
                cache.update(key, value, index)
            inputs |= {"position_ids": position_ids, CACHE: cache, "use_cache": True}
        elif not self.keeps_cache and hasattr(self.model.config, "use_cache"):
            inputs["use_cache"] = False  # else a decoder gives out a cache that no input takes
        named = {}
        for name, value in self.model(**inputs).items():
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
    named = {name: value for name, value in inputs.items() if name != CACHE}
    for index, tensor in enumerate(inputs.get(CACHE, [])):
        named[f"{CACHE}.{index // 2}.{('key', 'value')[index % 2]}"] = tensor
    return named


def make_inputs(exportable: ExportableModel, size: Size = TRACED, seed: int = 0) -> Inputs:
    """Random inputs; of several rows of text the last is padded, on the left if the model continues texts.

    A past counts only for a model that keeps a cache: random keys and values (B, K, past, d), layer by layer.
    """
    generator = torch.Generator().manual_seed(seed)
    config = exportable.model.config
    if exportable.reads_images:
        shape = (size.rows, config.num_channels, *config.image_shape)
        return {"pixel_values": torch.randn(shape, generator=generator)}
    past = size.past if exportable.keeps_cache else 0
    shape = (size.rows, size.length)
    mask = torch.ones(size.rows, past + size.length, dtype=torch.long)
    if size.rows > 1 and mask.shape[1] > PADDED:
        mask[-1, slice(PADDED) if exportable.keeps_cache else slice(-PADDED, None)] = 0
    inputs = {"input_ids": torch.randint(config.vocab_size, shape, generator=generator), "attention_mask": mask}
    if exportable.keeps_cache:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        inputs["position_ids"] = positions[:, past:].clone()  # a view would be part of what is traced
        inputs[CACHE] = [
            torch.randn(size.rows, heads, past, config.head_dim, generator=generator)
            for heads in config.key_value_heads_per_layer
            for _ in ("key", "value")
        ]
    elif hasattr(config, "type_vocab_size"):
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape, generator=generator)
    return inputs


class Int4Embedding(nn.Module):
    """A table (V, D) of embeddings in 4 bits, with a scale for every 32 values, as in Q4_0 of llama.cpp.

    Of ONNX's own operators: onnxruntime's GatherBlockQuantized is absent in browsers. `write_onnx_int8` rounds the
    scales to 8 bits.
    """

    def __init__(self, table: torch.Tensor):
        super().__init__()
        blocks = table.detach().unflatten(1, (-1, BLOCK))
        scales = (blocks.abs().amax(dim=-1) / 7).half().clamp(min=1e-6)
        codes = (blocks / scales.unsqueeze(-1)).round().clamp(-7, 7) + 8
        low, high = codes.flatten(1).to(torch.uint8).chunk(2, dim=1)
        self.register_buffer("pairs", low + 16 * high)  # (V, D/2)
        self.register_buffer("scales", scales)  # (V, D/32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        pairs = F.embedding(input_ids, self.pairs).float()
        high = (pairs / 16).floor()  # in float: torch exports shifts of uint8 wrongly
        codes = torch.cat([pairs - 16 * high, high], dim=-1) - 8
        scales = F.embedding(input_ids, self.scales).float()
        return (codes.unflatten(-1, (-1, BLOCK)) * scales.unsqueeze(-1)).flatten(-2)


# Files, written and run as users run them


@contextmanager
def without_remarks() -> Iterator[None]:
    """Exporters remark on their own insides through warnings and the log; errors are raised all the same."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)


def write_onnx(exportable: ExportableModel, path: Path) -> None:
    """An ONNX graph with named axes, and without the places in source files that torch notes at every node."""
    inputs = make_inputs(exportable)
    free = {0: "batch"} if exportable.reads_images else {0: "batch", 1: "length"}  # axes of any size, and its name
    axes: dict[str, object] = dict.fromkeys(inputs, free)
    if exportable.keeps_cache:
        axes["attention_mask"] = {0: "batch", 1: "past + length"}
        axes[CACHE] = [{0: "batch", 2: "past"}] * len(inputs[CACHE])
    with without_remarks(), torch.no_grad():
        import onnx_ir

        model = torch.onnx.export(
            exportable,
            kwargs=inputs,
            dynamic_shapes=axes,
            input_names=list(flattened(inputs)),
            output_names=list(exportable(**inputs)),
            dynamo=True,
            verbose=False,
        ).model
        graph = model.graph
        nodes = list(graph.all_nodes())
        values = [value for node in nodes for value in node.outputs]
        for part in (model, graph, *nodes, *values, *graph.inputs, *graph.initializers.values()):
            part.metadata_props.clear()
        size = sum(weight.nbytes for weight in exportable.model.parameters())
        onnx_ir.save(model, path, external_data=f"{path.name}.data" if size > LARGEST_FILE else None)


def write_onnx_int8(whole: Path, path: Path, first_mlp: tuple[int, int]) -> None:
    """The graph in `whole` with weights as 8-bit integers.

    Matrices: int8, a scale a column, 7 of the bits (x86 processors without VNNI add products of 8 bits in 16, which
    overflows). Embeddings: uint8, one scale for the table. Activations are rounded as they come: onnxruntime's dynamic
    quantisation, which needs no data. The first matrix of shape `first_mlp` (intermediate size, hidden size) is kept
    in float16 and multiplied in float32: it reads a few activations so large that one scale leaves the others few
    steps, and in MiniLM causes up to half of the error.
    """
    with without_remarks():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        model = onnx.load(whole)
        graph = model.graph
        weights = {tensor.name: tensor for tensor in graph.initializer}
        # The shapes that torch notes of weights, too, would contradict those of the integers.
        shapes = [value for value in graph.value_info if value.name not in weights]
        del graph.value_info[:]
        graph.value_info.extend(shapes)
        matmuls = [node for node in graph.node if node.op_type == "MatMul"]
        read = [weights[name] for node in matmuls for name in node.input if name in weights]
        kept = next((tensor for tensor in read if tuple(tensor.dims) == first_mlp), None)
        if kept is not None:
            values = onnx.numpy_helper.to_array(kept).astype("float16")
            half = onnx.numpy_helper.from_array(values, f"{kept.name}_half")
            graph.node.insert(0, onnx.helper.make_node("Cast", [half.name], [kept.name], to=onnx.TensorProto.FLOAT))
            graph.initializer.append(half)
            graph.initializer.remove(kept)
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=whole.with_name(f"{whole.name}.data").exists(),
        )


def load_onnx(path: Path) -> Forward:
    """An ONNX file in onnxruntime on the CPU, with as many threads as PyTorch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Inputs) -> dict[str, torch.Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in flattened(inputs).items()}
        return dict(zip(names, map(torch.from_numpy, session.run(names, arrays))))

    return run


# The comparison


def without_padding(name: str, output: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """The part of an output that means something: nothing at padding.

    An output has a place for each token, (B, T, ...), by its name and rank: logits (B, num_labels) are of whole rows.
    """
    mask = inputs.get("attention_mask")
    if mask is None:
        return output
    if name.startswith("present."):
        return output[mask.all(dim=1)]
    if RANKS_BY_TOKEN.get(name.partition(".")[0]) != output.ndim:  # hidden_states.0, a layer each
        return output
    return output[mask[:, -inputs["input_ids"].shape[1] :].bool()]


@torch.inference_mode()
def compare(exportable: ExportableModel, run: Forward) -> dict[str, float]:
    """Runs both on made-up inputs, none longer than the model reads, without what lies at padding.

    `difference` is the largest, over the largest magnitude of the same output; `cosine` the smallest of whole outputs.
    """
    most = getattr(exportable.model.config, "max_position_embeddings", sys.maxsize)
    largest = 0.0
    cosine = 1.0
    for seed, size in enumerate(COMPARED, start=1):
        past = min(size.past, most // 2) if exportable.keeps_cache else 0
        inputs = make_inputs(exportable, Size(size.rows, min(size.length, most - past), past), seed)
        given = run(inputs)
        for name, expected in exportable(**inputs).items():
            wanted = without_padding(name, expected, inputs)
            got = without_padding(name, given[name], inputs)
            if wanted.numel() == 0:
                continue
            distance = (got - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny)
            largest = max(largest, distance.nan_to_num(nan=torch.inf).item())
            alike = torch.cosine_similarity(got.double().flatten(), wanted.double().flatten(), dim=0)
            cosine = min(cosine, alike.nan_to_num(nan=-1.0).item())
    return {"difference": largest, "cosine": cosine}


# The command


def export(source: str, output: Path, int8: bool = True, int4_embeddings: bool = False) -> list[dict[str, object]]:
    """Writes a checkpoint to a new folder as an ONNX graph, with `int8` in 8 bits, too.

    With `int4_embeddings` the word embeddings of the file in 8 bits have 4. The folder has the configuration,
    tokenizer or image processor, and `PARITY_FILE`, too; it is whole or absent. Returns the entries of `PARITY_FILE`.
    """
    if int4_embeddings and not int8:
        raise ValueError("--int4-embeddings: those of the file in int8; leave out --no-int8")
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"onnx: needs packages that are not installed: pip install {' '.join(missing)}")
    model = load_lean(source).float()
    if type(model).__name__.endswith("ForMultipleChoice"):
        raise ValueError(f"{source}: models for multiple choice are not exported")
    encoder_files = sentence_transformers_files(source)
    if encoder_files and hasattr(model, "pooler"):
        model.pooler = None  # which sentence-transformers does not read
    has_own_embeddings = model.main_input_name == "input_ids" and model.get_output_embeddings() is None
    if int4_embeddings and not (has_own_embeddings and model.config.hidden_size % BLOCK == 0):
        expected = f"a model of texts without a head over the vocabulary, whose hidden_size is a multiple of {BLOCK}"
        raise ValueError(f"--int4-embeddings: {source}: expected {expected}")
    exportable = ExportableModel(model)
    processors = load_processors(source, getattr(model.config, "vocab_size", None))
    with TemporaryDirectory() as scratch, whole_folder(output) as folder:
        (folder / ONNX_FILE).parent.mkdir(parents=True)
        write_onnx(exportable, folder / ONNX_FILE)
        if int8:
            whole = folder / ONNX_FILE
            if int4_embeddings:
                smaller = copy.deepcopy(model)
                smaller.set_input_embeddings(Int4Embedding(model.get_input_embeddings().weight))
                whole = Path(scratch, "model.onnx")
                write_onnx(ExportableModel(smaller), whole)
            first_mlp = (model.config.intermediate_size, model.config.hidden_size)
            write_onnx_int8(whole, folder / ONNX_INT8_FILE, first_mlp)
        files = []
        for file in (ONNX_FILE, ONNX_INT8_FILE) if int8 else (ONNX_FILE,):
            path = folder / file
            size = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))  # with weights beside it
            files.append({"file": file, "bytes": size, **compare(exportable, load_onnx(path))})
        if files[0]["difference"] > LARGEST_DIFFERENCE:
            raise ValueError(f"{source}: its onnx file differs from it by {files[0]['difference']:.1e}; not kept")
        config = read_json(local_folder(source) / "config.json")  # the source's own: clients know its model_type
        config.pop("auto_map", None)  # names files of code, which are not there
        write_json(folder / "config.json", config)
        copy_into(folder, encoder_files)
        for processor in processors:
            processor.save_pretrained(folder)
        write_json(folder / PARITY_FILE, {"architecture": type(model).__name__, "files": files})
    return files
