"""A traced graph as a file, the same with weights in 8 bits, and both run as their users run them."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from .graph import ExportableModel, Inputs, dynamic_axes, flattened, make_inputs, trace


if TYPE_CHECKING:
    import onnx_ir


LARGEST_FILE = 1_900_000_000  # bytes of weights in an ONNX file, which protobuf ends at 2 GB; more lie beside it
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INT8_PACKAGES = ("torchao",)
Forward = Callable[[Inputs], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Format:
    """A kind of file: where it lies in the folder, how it is written and run, and the packages that this needs.

    `write_int8` takes the file of `write`, too, which not every format needs.
    """

    file: str
    write: Callable[[ExportableModel, Path], None]
    write_int8: Callable[[ExportableModel, Path, Path], None]
    load: Callable[[Path], Forward]
    packages: tuple[str, ...]
    packages_int8: tuple[str, ...]

    def path(self, folder: Path, int8: bool = False) -> Path:
        """Of the file in a folder: `onnx/model.onnx`, or `onnx/model_int8.onnx`."""
        path = folder / self.file
        if int8:
            return path.with_stem(f"{path.stem}_int8")
        return path


def require_packages(kind: str, int8: bool) -> None:
    """Raises ValueError, with the command that installs them, where packages that a format needs are missing."""
    needed = FORMATS[kind].packages
    if int8:
        needed += FORMATS[kind].packages_int8
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ValueError(f"{kind}: needs packages that are not installed: pip install {' '.join(missing)}")


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


def write_torch_int8(exportable: ExportableModel, path: Path, whole: Path) -> None:
    """As `write_torch`, the matrices of linear layers as 8-bit integers with a scale a row (torchao)."""
    with without_remarks():
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        exportable = ExportableModel(copy.deepcopy(exportable.model))
        quantize_(exportable.model, Int8WeightOnlyConfig())
        torch.export.save(trace(exportable), path)


def load_torch(path: Path) -> Forward:
    """A file of torch.export, ready to run."""
    with without_remarks():
        program = torch.export.load(path).module()

    def run(inputs: Inputs) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return program(**inputs)

    return run


def output_names(exportable: ExportableModel) -> list[str]:
    """The names of the graph's outputs, in order."""
    with torch.inference_mode():
        return list(exportable(**make_inputs(exportable, exportable.traced_size)))


def write_onnx(exportable: ExportableModel, path: Path) -> None:
    """An ONNX graph with named axes, and without the places in source files that torch notes at every node."""
    with without_remarks():
        import onnx_ir

        program: ExportedProgram = trace(exportable)
        inputs = flattened(make_inputs(exportable, exportable.traced_size))
        model = torch.onnx.export(
            program, input_names=list(inputs), output_names=output_names(exportable), dynamo=True, verbose=False
        ).model
        name_axes(model, exportable)
        strip_metadata(model)
        size = sum(weight.nbytes for weight in exportable.model.parameters())
        beside = None
        if size > LARGEST_FILE:
            beside = f"{path.name}.data"
        onnx_ir.save(model, path, external_data=beside)


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


def write_onnx_int8(exportable: ExportableModel, path: Path, whole: Path) -> None:
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


FORMATS = {
    "onnx": Format("onnx/model.onnx", write_onnx, write_onnx_int8, load_onnx, ONNX_PACKAGES, ()),
    "torch": Format("model.pt2", write_torch, write_torch_int8, load_torch, (), INT8_PACKAGES),
}
