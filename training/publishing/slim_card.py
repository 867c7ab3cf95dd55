"""The card of a slimmed model: its parent, what was cut, and what that did."""

from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import ModelCardData

from modeling_leaner.layers_leaner import LeanPreTrainedModel
from modeling_leaner.planning.dials import describe
from modeling_leaner.slimming.budget import parameters_of
from modeling_leaner.slimming.slim import Slimmed
from modeling_leaner.transfer import is_repository

from ..running.metadata import hub_task
from ..running.snippets import ENCODE_TEXT, named_place, task_snippet
from ..tasks.registry import TASKS
from .rendering import fill_card


ENCODE_IMAGE = """\
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

repository = "{repository}"  # or a folder with the files of this repository
processor = AutoImageProcessor.from_pretrained(repository, trust_remote_code=True)
model = AutoModel.from_pretrained(repository, trust_remote_code=True)
image = Image.new("RGB", (32, 32), "skyblue")  # in its place Image.open("photograph.png").convert("RGB")
print(model(**processor(image, return_tensors="pt")).last_hidden_state.shape)"""
TASKS_OF_HEADS = {task.head: name for name, task in TASKS.items() if task.head}


@dataclass(frozen=True)
class Try:
    """A choice of layers that was trained for a little: the change on held-out rows before and after."""

    layers: list[int]
    before: float
    after: float


def best_try(tries: list[Try]) -> Try:
    """The one that is kept: with the least change after its training, the first of equals."""
    return min(tries, key=lambda attempt: attempt.after)


@dataclass(frozen=True)
class Making:
    """How a slim model came about: its parent (Hub id or folder) and the hash of its weights, rows, the command.

    Where several choices of layers were trained before one was kept: the command of that training, and what they came
    to.
    """

    parent: str
    chosen_by: int
    held_out: int
    command: str
    parent_weights_sha256: str | None
    recovery: str | None = None
    tries: list[Try] = field(default_factory=list)


def write_slim_card(
    folder: Path,
    output: Path,
    source: LeanPreTrainedModel,
    slimmed: Slimmed,
    making: Making,
    license: str | None,
) -> None:
    """Writes README.md into the folder of a slimmed model.

    Args:
        output: where the folder will be, once it is whole; its lines of code load it from there.
        license: of its weights, as the Hub names it; None states none.
    """
    base = making.parent if is_hub_id(making.parent) else None
    text = fill_card(
        "slim_card.md",
        metadata=slim_metadata(slimmed.model, base, license),
        name=output.name,
        parent=f"[{base}](https://huggingface.co/{base})" if base else Path(making.parent).name,
        snippet=slim_snippet(slimmed.model, named_place(output)),
        architecture=type(slimmed.model).__name__,
        shape=describe(slimmed.model.config),
        source=source.config,
        config=slimmed.model.config,
        before=parameters_of(source),
        after=parameters_of(slimmed.model),
        cuts=slimmed.cuts,
        making=making,
        kept=best_try(making.tries) if making.tries else None,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def is_hub_id(source: str) -> bool:
    """Whether a source can be named as a repository on the Hub."""
    return not Path(source).exists() and is_repository(source)


def head_of(model: LeanPreTrainedModel) -> str | None:
    """The end of the class name that says what a model with a head is for; None for a bare one."""
    for head in TASKS_OF_HEADS:
        if type(model).__name__.endswith(head):
            return head
    return None


def slim_metadata(model: LeanPreTrainedModel, parent: str | None, license: str | None) -> str:
    """The YAML by which the Hub shows and finds the model, and its parent where that is on the Hub."""
    optional = {}
    if license is not None:
        optional["license"] = license
    head = head_of(model)
    if head is not None:
        optional["pipeline_tag"] = hub_task(TASKS_OF_HEADS[head])
    if parent is not None:
        optional["base_model"] = parent
        optional["base_model_relation"] = "finetune"  # the Hub knows no cut
    tags = ["modeling_leaner", model.config.model_type, "custom_code", "pruned"]
    return ModelCardData(library_name="transformers", tags=tags, **optional).to_yaml()


def slim_snippet(model: LeanPreTrainedModel, repository: str) -> str:
    """Python that loads the model and prints what it makes of one input."""
    head = head_of(model)
    if head is not None:
        return task_snippet(TASKS_OF_HEADS[head], type(model).__name__, model.config, repository)
    if model.main_input_name == "pixel_values":
        return ENCODE_IMAGE.format(repository=repository)
    return ENCODE_TEXT.format(repository=repository)
