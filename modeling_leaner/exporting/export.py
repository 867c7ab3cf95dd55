"""`leaner export`: traces a checkpoint and writes a folder of files, each compared with the model."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..conversion import load_lean
from ..files import whole_folder, write_json
from ..hub import check_vocabulary, load_processors
from . import files
from .graph import ExportableModel, input_shapes, make_inputs
from .parity import IN_FLOAT32, Parity, compare


PARITY_FILE = "parity.json"  # not export.json, which transformers.exporters writes


@dataclass(frozen=True)
class Exported:
    """A file that was written, its bytes, and how far its outputs are from the model's."""

    file: str
    bytes: int
    parity: Parity


def export(kind: str, source: str, output: Path, int8: bool = True) -> list[Exported]:
    """Writes a checkpoint to a new folder as `kind`, "onnx" (with `int8` in 8 bits, too) or "torch".

    The folder has the configuration, tokenizer or image processor, and `PARITY_FILE`, too; it is whole or absent.

    Raises:
        ValueError: packages are missing, or the file's outputs are not the model's.
    """
    if kind == "onnx":
        files.require_onnx()
    exportable = ExportableModel(load_lean(source).float())
    processors = load_processors(source)
    check_vocabulary(source, processors, getattr(exportable.model.config, "vocab_size", None))
    with whole_folder(output) as folder:
        (folder / "onnx" if kind == "onnx" else folder).mkdir(parents=True)
        if kind == "onnx":
            whole = folder / files.ONNX_FILE
            files.write_onnx(exportable, whole)
            exported = [compared(exportable, files.load_onnx, folder, files.ONNX_FILE)]
        else:
            files.write_torch(exportable, folder / files.TORCH_FILE)
            exported = [compared(exportable, files.load_torch, folder, files.TORCH_FILE)]
        difference = exported[0].parity.difference
        if difference > IN_FLOAT32:
            raise ValueError(f"{source}: its {kind} file differs from it by {difference:.1e}; not kept")
        if kind == "onnx" and int8:
            files.write_onnx_int8(whole, folder / files.ONNX_INT8_FILE)
            exported.append(compared(exportable, files.load_onnx, folder, files.ONNX_INT8_FILE))
        config = json.loads(exportable.model.config.to_json_string())
        config.pop("auto_map", None)  # names files of code, which are not there
        write_json(folder / "config.json", config)
        for processor in processors:
            processor.save_pretrained(folder)
        write_json(folder / PARITY_FILE, document(exportable, exported))
    return exported


def compared(exportable: ExportableModel, load: Callable[[Path], files.Forward], folder: Path, file: str) -> Exported:
    """A file that was written, compared with the model; its bytes with those of large weights beside it."""
    path = folder / file
    size = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))
    return Exported(file, size, compare(exportable, load(path)))


def document(exportable: ExportableModel, exported: list[Exported]) -> dict[str, object]:
    """What parity.json holds."""
    with torch.inference_mode():
        outputs = list(exportable(**make_inputs(exportable, exportable.traced_size)))
    return {
        "architecture": type(exportable.model).__name__,
        "inputs": input_shapes(exportable),
        "outputs": outputs,
        "files": [{"file": each.file, "bytes": each.bytes, **asdict(each.parity)} for each in exported],
    }
