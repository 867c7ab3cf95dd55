"""Cells of `leaner bench`, made up."""

from modeling_leaner.training.records import BenchCell


COMMON = {"dtype": "float32", "precision": "float32", "device": "cpu", "torch": "2.13.0", "transformers": "5.23.0"}
SIZES = {"layers": 4, "heads": 8, "head_dim": 32, "batch": 2, "length": 64, "new_tokens": 0}
NUMBERS = {
    "rounds": 3,
    "relative_time": 1.0,
    "relative_time_low": 0.5,
    "relative_time_high": 2.0,
    "items_per_second": 0.1,
    "flops": 10,
}
EMPTY = ("milliseconds", "milliseconds_low", "milliseconds_high", "peak_memory_bytes", *NUMBERS)


def cell(phase="inference", library="modeling_leaner", **changes):
    """A cell that takes as many milliseconds as its tokens, and a megabyte for each head."""
    sizes = {name: changes.pop(name, value) for name, value in SIZES.items()}
    time = float(sizes["batch"] * sizes["length"])
    values = {
        **COMMON,
        **sizes,
        **NUMBERS,
        "phase": phase,
        "shape": "gpt.json",
        "library": library,
        "attention": "sdpa",
        "mode": "eager",
        "milliseconds": time,
        "milliseconds_low": time / 2,
        "milliseconds_high": time * 2,
        "peak_memory_bytes": sizes["heads"] * 10**6,
        "parameters": 1000,
        "matrix_product_share": None,
        "note": None,
    }
    return BenchCell(**{**values, **changes})


def failed(**changes):
    """A cell that could not run."""
    return cell(**{**dict.fromkeys(EMPTY), "rounds": 0, "note": "no room, says torch", **changes})
