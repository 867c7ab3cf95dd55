"""Every task by its name, in the order of the index of published models."""

from .base import Task
from .causal_lm import CausalLM
from .embedding import Embedding
from .image_classification import ImageClassification
from .masked_lm import MaskedLM
from .question_answering import QuestionAnswering
from .sequence_classification import SequenceClassification


TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (ImageClassification, CausalLM, MaskedLM, SequenceClassification, QuestionAnswering, Embedding)
}
