"""What `--help` prints of the commands of this folder, and which options they have, without importing any of them.

Each command reads its words itself; a test compares these texts with what it reads.
"""

import re
from dataclasses import fields

from modeling_leaner.support.suggest import did_you_mean


HELP = {
    "evaluate": """usage: leaner evaluate MODEL [--key value ...]
MODEL: a run folder, a published folder, or a Hub id. Its own recipe says task and data; other data by
--data FOLDER or --data SPLIT=FILE (also --dataset, --eval_split, --max_eval_rows ...), another task by --task.
The last line is one JSON document.""",
    "sweep": """usage: leaner sweep GRID.yaml [options]
Trains a grid of shapes, seeds and learning rates by one recipe, then compares the shapes.
  --jobs N               runs at the same time; they share the machine's cores (1)
  --data_files PATH ...  a local copy of the recipe's dataset, as of leaner train
  --output_dir FOLDER    in place of the grid's; a new folder trains all anew
  --summary              only summarise the runs that are there""",
    "latency": """usage: leaner latency GRID.yaml [options]
Measures inference time and throughput of a grid's shapes, in turns, on this machine.
  --rounds N             how often every shape has its turn""",
    "step-time": """usage: leaner step-time GRID.yaml [options]
Measures how long a training step of each shape of a grid takes, in turns, on this machine; for equal seconds.
  --rounds N             how often every shape has its turn""",
    "law": """usage: leaner law GRID.yaml
Fits quality against tokens and the sizes of a shape on the finished rows of a grid with branches, and writes
law.json and law.png beside them; says so where shapes that were left out are not predicted.""",
    "guesses": """usage: leaner guesses GRID.yaml [options]
Scores simple guesses on a grid's task, to be beaten.
  --data_files PATH ...  a local copy of the recipe's dataset""",
    "publish": """usage: leaner publish [GRID.yaml] [options]
Copies a grid's runs to model_cards/, ready for the Hub; without a grid, renews the folders that are there.
  --data_files PATH ...  a local copy of the recipe's dataset
  --replace              take folders that are there anew, weights too""",
    "card": """usage: leaner card [FOLDER ...]
Writes README.md from config.json and results.json of run folders or published ones;
without a folder, of all published ones, and their index.""",
    "verify-cards": """usage: leaner verify-cards [FOLDER ...] [options]
Recomputes what a published card says of its model, from the weights alone;
without a folder, of all under model_cards/.
  --data_files NAME=FOLDER ...  local copies of datasets
  --short                the first rows only""",
    "tokenizer": """usage: leaner tokenizer --kind KIND --output_dir FOLDER [options]
Trains a tokenizer on a column of text.
  --kind KIND            byte-bpe, wordpiece, bytes or words
  --output_dir FOLDER    folder to write; it must not exist
  --family FAMILY        gpt or bert: the special tokens (bert)
  --vocab_size N         tokens at most, special tokens included (8192)
  --max_length N         tokens of the longest input (512)
  --dataset NAME         built-in data, or a Hub id
  --dataset_config NAME  configuration of a Hub dataset
  --data_files PATH ...  local data: a folder, or files, also split=FILE (parquet, json, csv, text)
  --split NAME           (train)
  --text_column NAME     (text)
  --max_rows N           read only the first rows
  --streaming            read as a stream, without preparing a copy on disk""",
}
WITH_KEYS = ("train", "evaluate")  # whose options are the keys of a recipe


def options_of(command: str) -> list[str]:
    """The options that the help of a command lists."""
    return re.findall(r"^  (--\w+)", HELP[command], flags=re.MULTILINE)


def check_options(command: str, words: list[str]) -> None:
    """Raises ValueError, with the nearest option, for one that the command does not have."""
    options = options_of(command)
    for word in words:
        name = word.split("=")[0]
        if name.startswith("--") and not any(option.startswith(name) for option in options):
            raise ValueError(f"{name}: no such option{did_you_mean(name, options)}")


def train_help() -> str:
    """The settings of this package; those of TrainingArguments are documented by transformers."""
    from .arguments import RecipeArguments, recipe_names  # imports torch

    lines = [
        "usage: leaner train RECIPE --shape NAME|FOLDER|HUB_ID [--key value ...]",
        f"recipes: {', '.join(recipe_names())}; or a file of your own",
        "Every field of transformers.TrainingArguments is a key; beside them, or with another default:",
    ]
    for setting in fields(RecipeArguments):
        if setting.name in RecipeArguments.__annotations__:
            default = "none"
            if isinstance(setting.default, bool | int | float | str):
                default = setting.default
            lines.append(f"  --{setting.name} ({default}): {setting.metadata['help'].replace('%%', '%')}")
    return "\n".join(lines)


def help_of(command: str) -> str:
    """What `leaner COMMAND --help` prints."""
    if command == "train":
        return train_help()
    return HELP[command]
