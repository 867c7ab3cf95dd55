"""The ONNX graphs that a published folder may carry: whether they are its weights."""

import re
from importlib.util import find_spec
from pathlib import Path

from modeling_leaner.conversion import load_lean
from modeling_leaner.exporting.files import ONNX_FILE, ONNX_INT8_FILE, load_onnx
from modeling_leaner.exporting.graph import ExportableModel
from modeling_leaner.exporting.parity import IN_FLOAT32, IN_INT8, compare
from modeling_leaner.terminal import plural


ONNX_FOLDER = Path(ONNX_FILE).parent.name
FILES = re.compile(r"model(_quantized)?\.onnx(\.data)?")


def check_onnx(folder: Path) -> str:
    """Runs the graphs of `onnx/` beside the model, in onnxruntime; returns how it went, nothing where there are none.

    Raises:
        ValueError: another file is there, or no graph, one cannot be run, or its outputs are not the model's.
        NotADirectoryError: `onnx` is a file.
    """
    place = folder / ONNX_FOLDER
    if not place.exists():
        return ""
    for path in sorted(place.iterdir()):
        if not FILES.fullmatch(path.name):
            raise ValueError(f"{path}: not a file of a published folder")
    graphs = {folder / ONNX_FILE: IN_FLOAT32, folder / ONNX_INT8_FILE: IN_INT8}
    there = [path for path in graphs if path.exists()]
    if not there:
        raise ValueError(f"{place}: no graph; expected {' or '.join(path.name for path in graphs)}, or no such folder")
    if find_spec("onnxruntime") is None:
        return f", {ONNX_FOLDER}/ not run: onnxruntime is not installed"
    exportable = ExportableModel(load_lean(str(folder)).float())
    for path in there:
        try:
            found = compare(exportable, load_onnx(path)).difference
        except Exception as error:  # onnxruntime's own, which have no class in common but this
            raise ValueError(f"{path}: {error}") from error
        if found > graphs[path]:
            expected = f"at most {graphs[path]:g} expected"
            raise ValueError(f"{path}: differs from model.safetensors by {found:.1e}, {expected}")
    return f", {plural(len(there), 'ONNX file')}"
