"""The ONNX graphs that a published folder may carry: whether they are its weights."""

import re
from importlib.util import find_spec
from pathlib import Path

from modeling_leaner.conversion import load_lean
from modeling_leaner.exporting.files import FORMATS
from modeling_leaner.exporting.graph import Graph
from modeling_leaner.exporting.parity import compare


ONNX = FORMATS["onnx"]
ONNX_FOLDER = Path(ONNX.file).parent.name
FILES = re.compile(r"model(_int8)?\.onnx(\.data)?")
# The largest difference of an output from the model's own, as a share of the largest value:
IN_FLOAT32 = 1e-3
IN_INT8 = 0.5


def check_onnx(folder: Path) -> str:
    """Runs the graphs of `onnx/` beside the model, in onnxruntime; returns how it went, nothing where there are none.

    Raises:
        ValueError: another file is there, a graph cannot be run, or its outputs are not the model's.
    """
    if not (folder / ONNX_FOLDER).exists():
        return ""
    for path in sorted((folder / ONNX_FOLDER).iterdir()):
        if not FILES.fullmatch(path.name):
            raise ValueError(f"{path}: not a file of a published folder")
    if find_spec("onnxruntime") is None:
        return f", {ONNX_FOLDER}/ not run: onnxruntime is not installed"
    graph = Graph(load_lean(str(folder)).float())
    checked = 0
    for int8, allowed in ((False, IN_FLOAT32), (True, IN_INT8)):
        path = ONNX.path(folder, int8)
        if not path.exists():
            continue
        try:
            found = compare(graph, ONNX.load(graph, path)).difference
        except Exception as error:  # onnxruntime's own, which have no class in common but this
            raise ValueError(f"{path}: {error}") from error
        if found > allowed:
            raise ValueError(f"{path}: differs from model.safetensors by {found:.1e}, at most {allowed:g} expected")
        checked += 1
    return f", {checked} ONNX files"
