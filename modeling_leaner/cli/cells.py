"""`leaner cut-cells`: an encoder and its cuts, as shapes of a grid in which depth, heads and MLP are compared."""

from collections.abc import Iterator
from pathlib import Path

from ..conversion import load_lean, load_processors, whole_folder
from ..layers_leaner import LeanPreTrainedModel
from ..slimming import calibration
from ..slimming.budget import parameters_of
from ..slimming.operations import SlimError, add_heads, add_neurons, drop_pooler
from ..slimming.scores import Batch, Reference, evenly_spaced
from ..slimming.slim import Target, slim
from ..support.documents import write_json
from .slim import calibration_rows, progress_bar


MAX_LENGTH = 64  # tokens of a calibration row
DIVISOR = 6  # of the depth: the cells have a third, a half and two thirds of the layers


def write_cells(source: str, folder: Path, data: list[str], column: str | None, count: int) -> None:
    """Writes the teacher, its cuts, a shape without weights, and cells.json; the folder is whole or absent.

    Raises:
        ValueError, OSError: the source is no encoder of such a depth, the rows do not fit, or the folder exists.
    """
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists already")
    model = load_lean(source).eval()
    if model.base_model is not model or model.config.num_hidden_layers % DIVISOR or model.config.per_layer_attributes:
        raise SlimError(f"{source}: expected a bare encoder of equal layers, whose number is a multiple of {DIVISOR}")
    if getattr(model, "pooler", None) is not None:
        model = drop_pooler(model)
    processors = load_processors(source)
    rows = calibration_rows(model, data, column, count)
    chosen_by, held_out = calibration.halves(rows)
    batches = calibration.make_batches(model, processors[0], chosen_by, MAX_LENGTH)
    reference = Reference.of(model, calibration.make_batches(model, processors[0], held_out, MAX_LENGTH))
    described = {}
    with whole_folder(folder) as whole:
        for name, cell in cells(model, batches):
            for part in (cell, *processors):
                part.save_pretrained(whole / name)
            described[name] = describe(cell, reference)
            print(f"{name}: {described[name]}")
        half = whole / half_name(model)
        (whole / f"{half.name}-random.json").write_bytes((half / "config.json").read_bytes())
        write_json(whole / "cells.json", described)


def half_name(model: LeanPreTrainedModel) -> str:
    """The cell of half the layers, as `3x12`."""
    return f"{model.config.num_hidden_layers // 2}x{model.config.num_attention_heads}"


def describe(cell: LeanPreTrainedModel, reference: Reference) -> dict[str, object]:
    """Size and shape of a cell, and the change of the output on held-out rows, before any training."""
    parameters = parameters_of(cell)
    return {
        "heads_per_layer": cell.config.heads_per_layer,
        "intermediate_size": cell.config.intermediate_size,
        "parameters": parameters.total,
        "without_embeddings": parameters.without_embeddings,
        "change": reference.change(cell),
    }


def cells(model: LeanPreTrainedModel, batches: list[Batch]) -> Iterator[tuple[str, LeanPreTrainedModel]]:
    """The teacher, then every cut that has weights, by name: layers × heads."""
    depth = model.config.num_hidden_layers
    heads = model.config.num_attention_heads
    yield "teacher", model

    def cut(**target: object) -> LeanPreTrainedModel:
        return slim(model, Target(**target), batches, batches[:1], progress_bar).model

    yield f"{depth}x{heads // 2}", cut(heads=heads // 2)
    yield f"{depth}x{heads // 2}-unequal", cut(total_heads=depth * heads // 2)
    yield f"{2 * depth // 3}x{heads}", cut(layers=2 * depth // 3)
    yield f"{depth // 3}x{heads}", cut(layers=depth // 3)
    half = cut(layers=depth // 2)
    yield half_name(model), half
    more = add_heads(half, heads)
    yield f"{depth // 2}x{2 * heads}", more
    yield f"{half_name(model)}-wide", add_neurons(half, neurons_for(half, more))
    for place, layers in zip(("first", "last"), evenly_spaced(depth, depth // 2)):
        yield f"{half_name(model)}-even-{place}", cut(keep=layers)


def neurons_for(model: LeanPreTrainedModel, larger: LeanPreTrainedModel) -> int:
    """How many more neurons in every MLP bring a model nearest to the parameters of a larger one."""
    one = add_neurons(model, 1).num_parameters() - model.num_parameters()
    return round((larger.num_parameters() - model.num_parameters()) / one)
