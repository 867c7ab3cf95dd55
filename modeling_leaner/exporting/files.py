"""A traced graph as a file of ONNX, in float32 and in 8 bits, or of torch.export, and both run as users run them."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .graph import ExportableModel, Inputs, dynamic_axes, flattened, make_inputs, trace


if TYPE_CHECKING:
    import onnx_ir


ONNX_FILE = "onnx/model.onnx"  # the names that transformers.js, fastembed and TEI read
ONNX_INT8_FILE = "onnx/model_quantized.onnx"
TORCH_FILE = "model.pt2"
LARGEST_FILE = 1_900_000_000  # bytes of weights in an ONNX file, which protobuf ends at 2 GB; more lie beside it
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
Forward = Callable[[Inputs], dict[str, torch.Tensor]]


def require_onnx() -> None:
    """Raises ValueError, with the command that installs them, if packages are missing."""
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"onnx: needs packages that are not installed: pip install {' '.join(missing)}")


@contextmanager
def without_remarks() -> Iterator[None]:
    """Exporters remark on their own insides through warnings and the log; errors are raised all the same."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def write_torch(exportable: ExportableModel, path: Path) -> None:
    """A program of torch.export, which `torch.export.load` reads."""
    with without_remarks():
        torch.export.save(trace(exportable), path)


def load_torch(path: Path) -> Forward:
    """A file of torch.export, ready to run."""
    with without_remarks():
        program = torch.export.load(path).module()
    return lambda inputs: program(**inputs)


def write_onnx(exportable: ExportableModel, path: Path) -> None:
    """An ONNX graph with named axes, and without the places in source files that torch notes at every node."""
    with without_remarks():
        import onnx_ir

        inputs = make_inputs(exportable, exportable.traced_size)
        with torch.inference_mode():
            outputs = list(exportable(**inputs))
        model = torch.onnx.export(
            trace(exportable), input_names=list(flattened(inputs)), output_names=outputs, dynamo=True, verbose=False
        ).model
        name_axes(model, exportable)
        strip_metadata(model)
        size = sum(weight.nbytes for weight in exportable.model.parameters())
        onnx_ir.save(model, path, external_data=f"{path.name}.data" if size > LARGEST_FILE else None)


def name_axes(onnx_model: "onnx_ir.Model", exportable: ExportableModel) -> None:
    """Gives the free axes of inputs and outputs, which torch numbers, the names of `dynamic_axes`."""
    import onnx_ir

    names = {}
    axes = dynamic_axes(exportable)
    for value in onnx_model.graph.inputs:
        free = axes[value.name.partition(".")[0]]
        for axis, name in free.items():
            names.setdefault(str(value.shape[axis]), name)
            value.shape[axis] = onnx_ir.SymbolicDim(name)
    for value in onnx_model.graph.outputs:
        for axis, size in enumerate(value.shape):
            if isinstance(size, onnx_ir.SymbolicDim):
                total = "past + length" if value.name.startswith("present.") else str(size)
                value.shape[axis] = onnx_ir.SymbolicDim(names.get(str(size), total))


def strip_metadata(onnx_model: "onnx_ir.Model") -> None:
    """Removes what torch notes of every node, with paths of this machine among it."""
    graph = onnx_model.graph
    for part in (onnx_model, graph, *graph.all_nodes()):
        part.metadata_props.clear()
    for node in graph.all_nodes():
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()


def write_onnx_int8(whole: Path, path: Path) -> None:
    """The graph in `whole` with weights as 8-bit integers.

    Matrices: int8, a scale a column, 7 of the bits (x86 processors without VNNI add products of 8 bits in 16, which
    overflows). Embeddings: uint8, one scale for the table. Activations are rounded as they come: onnxruntime's dynamic
    quantisation, which needs no data.
    """
    with without_remarks():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        model = onnx.load(whole)
        weights = {tensor.name for tensor in model.graph.initializer}
        # The shapes that torch notes of weights, too, would contradict those of the integers.
        shapes = [value for value in model.graph.value_info if value.name not in weights]
        del model.graph.value_info[:]
        model.graph.value_info.extend(shapes)
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
