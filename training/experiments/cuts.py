"""The shapes of a grid that are cuts of one trained model: made before the first run, as `leaner slim` makes them.

What is left out is chosen by the change of the output on training rows of the grid's recipe. Git may hold only
config.json and slim.json of a cut, so that the grid can be read without weights: the cut is then made again, and has
to come out as it was.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from modeling_leaner.files import naming, read_object, write_json
from modeling_leaner.hub import RECORD, weights_sha256
from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.slimming.measures import BATCH_SIZE
from modeling_leaner.slimming.slim import Slimmed, Target, slim

from ..data.sources import evenly
from ..running.loading import build_model, prepare
from ..settings import parse, words_of
from ..tasks.base import evaluation_batches
from ..tasks.distillation import Embedding
from .grid import Grid


ROWS = 256  # half of them to choose by, half held out


def make_cuts(grid: Grid, local: Sequence[str] = ()) -> None:
    """Makes the grid's cuts that have no weights yet; `local` are the options for this machine's copy of the rows.

    Raises ValueError if the model in `cut_from`, its rows or a shape do not fit, or a cut differs from its slim.json.
    """
    missing = [shape for shape in grid.cuts or {} if not (Path(shape) / WEIGHTS).is_file()]
    if not missing:
        return
    with naming(f"cut_from: {grid.cut_from}", (ValueError, OSError)):
        arguments = parse(grid.recipe, ["--shape", grid.cut_from, *words_of(grid.overrides or {}), *local])
        arguments.distill_hidden = 0.0  # whose layers are named for the cuts, not for the model that is cut
        if arguments.task != Embedding.name:  # else the teacher makes the labels
            arguments.teacher = None
        prepared = prepare(arguments)
        model = build_model(prepared.arguments, prepared.task).eval()
        # Training rows, evenly over all of them, as the model reads them: those to choose by, and those held out.
        places = evenly(len(prepared.train), ROWS)
        inputs = prepared.task.processing.model_input_names
        batches = [
            [
                {name: tensor for name, tensor in batch.items() if name in inputs}
                for batch in evaluation_batches(prepared.task, prepared.train, half, BATCH_SIZE)
            ]
            for half in (places[0::2], places[1::2])
        ]
    parent_sha256 = weights_sha256(grid.cut_from)
    for shape in missing:
        with naming(f"cuts: {shape}", (ValueError, OSError)):
            slimmed = slim(model, Target(**grid.cuts[shape]), *batches)
            write_cut(Path(shape), slimmed, prepared.task.processing, parent_sha256)
        change = slimmed.cuts[-1].change
        print(f"{shape}: cut from {grid.cut_from}; the output changed by {change:.3f}", file=sys.stderr, flush=True)


def write_cut(folder: Path, slimmed: Slimmed, processing: object, parent_sha256: str | None) -> None:
    """The folder of a cut: its model, what it reads by, and slim.json; the weights come last, with them it is whole.

    A config.json and slim.json that are there stay: theirs is the same cut, but for the rounding of its changes.
    Raises ValueError if the folder has another cut.
    """
    record = folder / RECORD
    if record.is_file():
        before = [(cut["part"], cut["after"]) for cut in read_object(record)["cuts"]]
        now = [(cut.part, cut.after) for cut in slimmed.cuts]
        if before != now:
            raise ValueError(f"cuts: {record}: expected {before}, but the cut came out with {now}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".cut-") as scratch:
        for part in (slimmed.model, processing):
            part.save_pretrained(scratch)
        document = {"parent_weights_sha256": parent_sha256, "cuts": [asdict(cut) for cut in slimmed.cuts]}
        write_json(Path(scratch) / RECORD, document)
        for path in sorted(Path(scratch).iterdir(), key=lambda path: path.name == WEIGHTS):
            if path.name not in ("config.json", RECORD) or not (folder / path.name).is_file():
                path.replace(folder / path.name)
