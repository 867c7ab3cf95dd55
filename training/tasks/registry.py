"""Every task by its name, in the order of the index of published models."""

from .base import Task
from .classification import ImageClassification, SequenceClassification
from .embedding import Embedding
from .language import CausalLM, MaskedLM
from .question_answering import QuestionAnswering


TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (ImageClassification, CausalLM, MaskedLM, SequenceClassification, QuestionAnswering, Embedding)
}
