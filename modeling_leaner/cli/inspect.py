"""`leaner inspect`: the conditioning of a model's attention on some rows, as tables, heat maps or JSON."""

import json
from time import perf_counter

from ..inspection.document import document_of
from ..inspection.figure import draw_layers, figure_files
from ..inspection.layers import check_layers, inspect_layers
from ..inspection.tables import layer_tables
from ..support.files import write_all_new
from ..support.progress import progress_bar
from ..support.terminal import plain_console
from .checks import parse_layers
from .inspect_rows import Options, model_and_inputs


TABLE_WIDTH = 112


def run(options: Options) -> None:
    """Inspects a model and prints what was found. Raises ValueError or OSError; files are whole or absent."""
    paths = []
    if options.plot is not None:  # before anything takes time
        paths = figure_files(options.plot)
    layers = None
    if options.layers is not None:
        layers = sorted(set(parse_layers("--layers", options.layers)))
    model, inputs = model_and_inputs(options)
    if layers is not None:
        check_layers("--layers", layers, model.config.num_hidden_layers)
    start = perf_counter()
    reports = inspect_layers(model, inputs.rows, layers, options.jacobian, progress_bar)
    document = document_of(options.model, inputs.source, perf_counter() - start, reports)
    if options.as_json:
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        print(heading(document))
        console = plain_console(width=TABLE_WIDTH)
        for table in layer_tables(reports):
            console.print(table)
    # After what was measured is printed, which a full disk then does not take.
    write_all_new(f"--plot {options.plot}", {path: draw_layers(reports, path.suffix[1:]) for path in paths})
    if paths and not options.as_json:
        print(f"heat maps: {paths[0]}, {paths[1]}")


def heading(document: dict) -> str:
    """What was inspected, on what, and how long it took."""
    tokens = document["tokens"]
    extent = f"{min(tokens)} tokens each"
    if max(tokens) > min(tokens):
        extent = f"{min(tokens)} to {max(tokens)} tokens"
    return f"{document['model']} on {document['data']}: {len(tokens)} rows of {extent}, {document['seconds']:.1f} s"
