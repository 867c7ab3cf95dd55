"""Every task by its name."""

from .embedding import Embedding
from .tasks import CausalLM, ImageClassification, MaskedLM, QuestionAnswering, SequenceClassification, Task


TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (ImageClassification, MaskedLM, CausalLM, SequenceClassification, QuestionAnswering, Embedding)
}
