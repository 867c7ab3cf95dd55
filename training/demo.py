"""`make demo`: a shipped model made faster by `leaner slim`, and a baseline and its lean twin of each family, trained.

Nothing is downloaded. Each of the six folders `runs/demo/<family>-<shape>` is ready for the Hub and is replaced
when the demo runs again. A table compares them; at the end a fresh process runs the code on the card of one of them.
"""

import re
import shlex
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

from rich.table import Table

from modeling_leaner.cli.app import app
from modeling_leaner.family import FAMILIES
from modeling_leaner.files import read_json
from modeling_leaner.terminal import plain_console

from .records import RESULTS, RunResults, checked


OUTPUT = Path("runs/demo")
FASTER = OUTPUT / "faster"
MINUTES = 0.3
SHIPPED = "model_cards/leanbert-mini-listops"
PAIR = ("nano", "lean-nano")  # the baseline and its twin
CUT_SHORT = {  # family: how its first recipe is
    "vit": "",
    "gpt": "--per_device_train_batch_size 8 --max_steps 200 --warmup_steps 50",
    "bert": "--max_train_rows 32000 --max_steps 500",
}
RECIPES = {family: f"{FAMILIES[family].first_recipe} {options}" for family, options in CUT_SHORT.items()}
ONCE = "--eval_strategy no --save_strategy no"  # evaluated and saved at the end


def leaner(*words: str) -> None:
    """Prints and runs a command, which ends the process with a line of its own where it fails."""
    print(f"\n$ {shlex.join(['leaner', *words])}", flush=True)
    app(list(words), standalone_mode=False)


def table(runs: list[RunResults]) -> Table:
    """A line for each run, a section for each pair."""
    out = Table(
        *("shape", "parameters", "metric", "held out", "guess", "training seconds"),
        title="Baselines and their lean twins",
        caption="One seed: no conclusion. The guess reads no input: always one class, or each token by its frequency.",
    )
    for results in runs:
        metric = results.metric
        out.add_row(
            results.shape,
            f"{results.parameters:,}",
            metric,
            f"{results.metrics[f'eval_{metric}']:.3f}",
            f"{results.chance.value:.3f}",
            f"{results.train.seconds:.1f}",
            end_section=results.shape.endswith(PAIR[-1]),
        )
    return out


def main() -> None:
    """Makes a shipped classifier faster, trains the pairs, prints the table, and loads one folder again."""
    shutil.rmtree(FASTER, ignore_errors=True)
    leaner(*f"slim {SHIPPED} {FASTER} --speedup 1.5 --data listops-short --minutes {MINUTES}".split())

    runs = []
    for family, shape in product(RECIPES, PAIR):
        folder = OUTPUT / f"{family}-{shape}"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier demo
        leaner(*f"train {RECIPES[family]} {ONCE} --shape {family}/{shape} --output_dir {folder}".split())
        runs.append(checked(RunResults, read_json(folder / RESULTS), folder / RESULTS))
    console = plain_console()
    console.print()
    console.print(table(runs))

    card = (OUTPUT / "bert-lean-nano" / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    print(f"\nIn a fresh process:\n\n{code}\nprints: {printed.strip()}")
    print(f"\nThe cards are {OUTPUT}/*/README.md, the figures {OUTPUT}/*/training.png.")


if __name__ == "__main__":
    main()
