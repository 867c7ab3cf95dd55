"""`make demo`: a shipped model made faster by `leaner slim`, and a baseline and its lean twin, trained from scratch.

Nothing is downloaded. The folders in `runs/demo` are ready for the Hub and are replaced when the demo runs again. At
the end a fresh process runs the code on the card of one of them.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rich.table import Table

from modeling_leaner.cli.app import app
from modeling_leaner.files import read_json
from modeling_leaner.terminal import plain_console

from .records import RESULTS, RunResults, checked


OUTPUT = Path("runs/demo")
FASTER = f"slim model_cards/leanbert-mini-listops {OUTPUT / 'faster'} --speedup 1.5 --data listops-short --minutes 0.3"
TRAIN = "train digits --eval_strategy no --save_strategy no"  # evaluated and saved at the end
PAIR = ("nano", "lean-nano")  # the baseline and its twin


def leaner(command: str) -> None:
    """Prints and runs a command, which ends the process with a line of its own where it fails."""
    print(f"\n$ leaner {command}", flush=True)
    app(shlex.split(command), standalone_mode=False)


def table(runs: list[RunResults]) -> Table:
    """A line for each run."""
    out = Table(
        *("shape", "parameters", "metric", "held out", "guess", "training seconds"),
        title="A baseline and its lean twin",
        caption="One seed: no conclusion. The guess is always one class.",
    )
    for results in runs:
        held_out, seconds = results.metrics[f"eval_{results.metric}"], results.train.seconds
        row = results.shape, f"{results.parameters:,}", results.metric, f"{held_out:.3f}"
        out.add_row(*row, f"{results.chance.value:.3f}", f"{seconds:.1f}")
    return out


def main() -> None:
    """Makes a shipped classifier faster, trains the pair, prints the table, and loads one folder again."""
    folders = [OUTPUT / f"vit-{shape}" for shape in PAIR]
    for folder in (OUTPUT / "faster", *folders):  # of an earlier demo
        shutil.rmtree(folder, ignore_errors=True)
    leaner(FASTER)
    for shape, folder in zip(PAIR, folders):
        leaner(f"{TRAIN} --shape vit/{shape} --output_dir {folder}")
    console = plain_console()
    console.print()
    console.print(table([checked(RunResults, read_json(folder / RESULTS), folder / RESULTS) for folder in folders]))

    code = re.search(r"```python\n(.*?)```", (folders[-1] / "README.md").read_text(), re.DOTALL)[1]
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    print(f"\nIn a fresh process:\n\n{code}\nprints: {printed.strip()}")
    print(f"\nThe cards are {OUTPUT}/*/README.md, the figures {OUTPUT}/*/training.png.")


if __name__ == "__main__":
    main()
