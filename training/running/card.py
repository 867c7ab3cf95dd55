"""The model card of a run: README.md from its config.json and results.json."""

import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from transformers import AutoConfig, PreTrainedConfig

from modeling_leaner.files import read_object, write_bytes

from ..records import RunResults, checked
from ..records.results import RESULTS
from ..settings import settings_parser, without_idle_steps, words_of
from .environment import PACKAGES, machine_name
from .metadata import base_model, metadata, named_metrics
from .snippets import named_place, snippet


TRAINING_FIGURE = "training.png"


def templates_in(folder: Path) -> Environment:
    """The templates of a folder; a name that a template lacks is an error."""
    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=select_autoescape(),  # HTML; in Markdown there is nothing to escape
    )


TEMPLATES = templates_in(Path(__file__).parent / "templates")


def settings_of(results: RunResults) -> tuple[dict[str, Any], str]:
    """All settings of a run, and the command that trains it again."""
    words = words_of({"shape": results.shape, "seed": results.seed, **without_idle_steps(results.recipe)})
    return vars(settings_parser().parse_words(words)), shlex.join(["leaner", "train", *words])


def run_card(folder: Path, config: PreTrainedConfig, results: RunResults) -> str:
    """The card of a run that is not published: its own numbers, nothing to compare them with."""
    settings, command = settings_of(results)
    machine = results.environment
    where = named_place(folder)
    packages = [name for name in ("modeling_leaner", *PACKAGES) if getattr(machine, name) is not None]
    text = TEMPLATES.get_template("run_card.md").render(
        metadata=metadata(results, config.model_type),
        results=results,
        config=config,
        parent=base_model(results),
        snippet=snippet(results, config, where),
        metrics=named_metrics(results),
        figure=(folder / TRAINING_FIGURE).is_file(),
        chose_checkpoint=settings["load_best_model_at_end"] or settings["early_stopping_patience"] is not None,
        command=command,
        folder=shlex.quote(f"{where}-again"),
        machine=machine,
        processor=machine_name(machine.processor, machine.threads),
        software=", ".join(f"{name} {getattr(machine, name)}" for name in packages),
    )
    return str(ModelCard(text))


def write_run_card(folder: Path) -> None:
    """Writes README.md of a finished run's folder, whole."""
    file = folder / RESULTS
    results = checked(RunResults, read_object(file), file)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    write_bytes(folder / "README.md", run_card(folder, config, results).encode())
