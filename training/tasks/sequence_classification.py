"""The task on texts, or pairs of texts, that have one label or one number."""

from functools import partial

from ..data.sources import Rows
from ..settings.arguments import RecipeArguments
from .base import Batch, features_of, prepared_rows, require_columns
from .classification import Classification
from .text import TextTask, check_text, fitting


REGRESSION_METRICS = ("pearson", "spearman", "squared_error")


class SequenceClassification(Classification, TextTask):
    """One label, or one number, for a text or a pair of texts."""

    name = "sequence-classification"
    hub_name = "text-classification"
    title = "Text classification"
    head = "ForSequenceClassification"
    does = "sorts texts into the classes of its training set"
    not_for = "decisions about texts"
    lower_is_better = ("loss", "squared_error")

    @classmethod
    def main_metrics_of(cls, arguments: RecipeArguments) -> tuple[str, ...]:
        if arguments.metric is None:
            return ("accuracy", "pearson")  # of classes, of numbers
        return (arguments.metric,)

    @property
    def computed_metrics(self) -> tuple[str, ...]:
        if self.regression:
            return (*REGRESSION_METRICS, "loss")
        return tuple(name for name in self.metrics if name not in REGRESSION_METRICS)

    def columns(self) -> list[str]:
        return [*self.texts, self.label_column]

    def configure(self, train: Rows) -> dict[str, object]:
        self.texts = self.text_columns_of(self.arguments, train)
        fields = super().configure(train)
        roles = [*self.texts, self.label_column]
        if len(set(roles)) < len(roles):
            raise ValueError(f"text_column, text_pair_column, label_column: expected a column each, got {roles}")
        if self.regression and self.arguments.metric is None:
            self.metric = "pearson"
        if self.metric != "loss" and self.regression != (self.metric in REGRESSION_METRICS):
            kind = "numbers" if self.regression else "classes"
            raise ValueError(f"metric: {self.metric} does not fit labels that are {kind} ({self.label_column})")
        if self.config.pad_token_id is None:
            fields["pad_token_id"] = self.pad_id  # LeanGPT reads its last token that is not padding
        return fields

    def prepare(self, rows: Rows, source: str, training: bool) -> Rows:
        require_columns(rows, self.columns(), source)
        reading = (self.length, self.arguments.truncation, self.segments, self.tokenizer_key())
        key = (self.name, self.texts, self.label_key(), reading)
        feature = features_of(rows).get(self.label_column)
        function = partial(self._read, source=source, feature=feature)
        return prepared_rows(rows, function, key, self.arguments.preprocessing_workers, f"tokens of {source}")

    def _read(self, batch: dict[str, list], indices: list[int], source: str, feature: object) -> dict:
        for name in self.texts:
            check_text(batch, name, indices, source)
        options = {"return_attention_mask": False}
        if self.arguments.truncation:
            options |= {"truncation": True, "max_length": self.length}
        else:
            options["verbose"] = False  # too long a text is refused below
        tokens = self.processing(*(batch[name] for name in self.texts), **options)
        for index, ids in zip(indices, tokens["input_ids"]):
            self._check_length(len(ids), f"{source}: {self.texts[0]}, row {index + 1}")
        prepared = {"input_ids": tokens["input_ids"], "length": [len(ids) for ids in tokens["input_ids"]]}
        if len(self.texts) == 2 and "token_type_ids" in tokens and self.segments:
            prepared["token_type_ids"] = tokens["token_type_ids"]
        return {**prepared, "labels": self.labels(batch, indices, source, feature)}

    def _check_length(self, length: int, where: str) -> None:
        """Raises ValueError for a text without tokens, or with more than are read; says what would read all of it."""
        if length == 0:
            raise ValueError(f"{where}: the text is empty")
        if length <= self.length:
            return
        ways = "--truncation true cuts it"
        if length <= self.config.max_position_embeddings:
            ways += f"; --max_length {length} reads all of it"
        else:
            ways += fitting(self.config, "max_position_embeddings", length)
        raise ValueError(f"{where}: {length} tokens, but {self.length} are read: {ways}")

    def collate(self, rows: list[dict]) -> Batch:
        return {**self.collate_text(rows), "labels": self.collate_labels(rows)}
