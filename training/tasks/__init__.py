"""How rows become tensors, what is masked or cropped, how quality is read: one class a task."""

from .base import Task
from .classification import ImageClassification, SequenceClassification
from .distillation import Embedding
from .language import CausalLM, MaskedLM


TASKS: dict[str, type[Task]] = {  # by name, in the order of the index of published models
    task.name: task for task in (ImageClassification, CausalLM, MaskedLM, SequenceClassification, Embedding)
}
