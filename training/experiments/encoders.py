"""A published encoder beside its parent and its untrained cut: quality, size and time.

All read texts cut at the same length and are pooled by the mean over tokens, computed in float32. Scores are those of
`encoder_scores.py`; time is that of a forward pass over full rows of random tokens, the models in turns.
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_leaner.configuration_leaner import ParameterCount
from modeling_leaner.conversion import load_lean
from modeling_leaner.files import free_path, write_json
from modeling_leaner.hub import TOKENIZER_FILES, files_of, load_processors, read_source_json, require_source
from modeling_leaner.models import quartiles, take_turns
from modeling_leaner.slimming.operations import drop_pooler
from modeling_leaner.slimming.slim import RECORD
from modeling_leaner.terminal import plain_console, quiet_libraries

from ..records import EncoderComparison, EncoderScores, EncoderTime, Environment
from ..records.results import RESULTS
from ..running.environment import environment, processor_flags
from ..tasks.base import tokenizer_text
from ..tasks.distillation import kept_layers
from ..tasks.embedding import mean_vectors
from .encoder_rows import EncoderRows, load_rows, local_data
from .encoder_scores import RESAMPLES, TITLES, EncoderOutput, differences, output_of, scores_of
from .latency import inputs, seconds


BATCHES = (1, 64)
TIMED_LENGTH = 32  # tokens of a sentence, about those of a line of text
ROUNDS = 30
POOLING = "1_Pooling/config.json"
MEAN = "pooling_mode_mean_tokens"
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers, which this family's vectors equal
TABLE_WIDTH = 110


@dataclass(frozen=True)
class Encoder:
    """A model that turns texts into vectors, the mean over their tokens."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    kept_layers: list[int] | None = None

    def encode(self, texts: list[str], length: int) -> np.ndarray:
        """(N, D): the vectors of texts, each cut at `length` tokens."""
        tokens = self.tokenizer(texts, truncation=True, max_length=length, padding=False, return_attention_mask=False)
        return np.stack(mean_vectors(tokens["input_ids"], self.model))


def parameters_of(model: PreTrainedModel) -> ParameterCount:
    """Parameters of a built model, and how many of them are embeddings."""
    return ParameterCount(model.num_parameters(), model.config.count_parameters().embeddings)


def load_encoder(source: str) -> Encoder:
    """The encoder of a folder or Hub id, in float32, without BERT's pooling layer.

    Raises:
        ValueError: it is no sentence encoder: it reads images, has a head, has no tokenizer, or does not pool by the
            mean; names it.
        OSError: a file cannot be read.
    """
    require_source(source)
    files = files_of(source)
    model = load_lean(source, ignore=["pooler.*"]).eval().float()
    if model.main_input_name == "pixel_values":
        raise ValueError(f"{source}: {type(model).__name__} reads images; expected a sentence encoder")
    if model is not model.base_model:
        raise ValueError(f"{source}: {type(model).__name__} has a head; expected a sentence encoder, the model alone")
    if TOKENIZER_FILES.isdisjoint(files):
        raise ValueError(f"{source}: no tokenizer files; expected a sentence encoder with its tokenizer")
    check_pooling(source, files)
    (tokenizer,) = load_processors(source)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(f"{source}: {len(tokenizer)} tokens, but vocab_size is {model.config.vocab_size}")
    name = source
    if Path(source).exists():
        name = Path(source).resolve().name
    return Encoder(name, drop_pooler(model), tokenizer, layers_of_parent(source, files))


def check_pooling(source: str, files: set[str]) -> None:
    """Raises ValueError where sentence-transformers' files, if there are any, ask for other pooling than the mean."""
    if "modules.json" not in files:
        return
    kinds = [module["type"].rpartition(".")[2] for module in read_source_json(source, "modules.json")]
    for kind in kinds:
        if kind not in MODULES:
            raise ValueError(f"{source}: modules.json: {kind}; expected no modules but {', '.join(MODULES)}")
    if POOLING not in files:
        return
    pooling = read_source_json(source, POOLING)
    modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
    mode = pooling.get("pooling_mode", "mean")
    if (modes and modes != [MEAN]) or mode not in ("mean", ["mean"]):
        raise ValueError(f"{source}: {POOLING}: {', '.join(modes) or mode}; expected {MEAN} alone")


def layers_of_parent(source: str, files: set[str]) -> list[int] | None:
    """Which of its parent's layers a model has, by its slim.json; for a run, by the slim.json of its `shape`."""
    if RECORD in files:
        return kept_layers(read_source_json(source, RECORD))
    if RESULTS in files:
        shape = str(read_source_json(source, RESULTS).get("shape"))
        if (Path(shape) / RECORD).is_file():
            return kept_layers(read_source_json(shape, RECORD))
    return None


def length_of(source: str, encoder: Encoder) -> int:
    """At how many tokens an encoder's texts are cut: as sentence-transformers does, where it has its files."""
    positions = encoder.model.config.max_position_embeddings
    length = encoder.tokenizer.model_max_length
    if "sentence_bert_config.json" in files_of(source):
        length = read_source_json(source, "sentence_bert_config.json").get("max_seq_length") or length
    return min(length, positions)


def check_beside(parent: Encoder, other: Encoder, length: int) -> None:
    """Raises ValueError for a model of another family, vector size or vocabulary than the parent's, or too short."""
    kind = parent.model.config.model_type
    if other.model.config.model_type != kind:
        described = f"{type(other.model).__name__} is a {other.model.config.model_type}"
        raise ValueError(f"{other.name}: {described}; expected a {kind}, as {parent.name} is")
    size = parent.model.config.hidden_size
    width = other.model.config.hidden_size
    if width != size:
        raise ValueError(f"{other.name}: vectors of {width} numbers, those of {parent.name} have {size}")
    if tokenizer_text(parent.tokenizer) != tokenizer_text(other.tokenizer):
        raise ValueError(f"{other.name}: its tokenizer is not that of {parent.name}")
    positions = other.model.config.max_position_embeddings
    if positions < length:
        raise ValueError(f"{other.name}: reads {positions} tokens, {parent.name} up to {length}")


def times_of(encoders: Sequence[Encoder], rounds: int) -> list[dict[str, EncoderTime]]:
    """For each model, by batch size, the time of a forward pass; the models take turns."""
    times: list[dict[str, EncoderTime]] = [{} for _ in encoders]
    for batch in BATCHES:
        models = [encoder.model for encoder in encoders]
        calls = [functools.partial(seconds, model, inputs(model, batch, TIMED_LENGTH)) for model in models]
        taken = take_turns(calls, rounds)  # (models, rounds)
        for own, time, speed in zip(times, quartiles(1e3 * taken), quartiles(taken[0] / taken)):
            own[str(batch)] = EncoderTime(
                milliseconds=time.median,
                milliseconds_low=time.low,
                milliseconds_high=time.high,
                speed=speed.median,
                speed_low=speed.low,
                speed_high=speed.high,
                sentences_per_second=batch / time.median * 1e3,
            )
    return times


def compare(encoders: Sequence[Encoder], rows: EncoderRows, length: int, rounds: int = ROUNDS) -> EncoderComparison:
    """Scores and times, the first encoder being the parent of the others; no times with 0 rounds."""
    times: list[dict[str, EncoderTime]] = [{} for _ in encoders]
    if rounds:
        print(f"timing {len(encoders)} models, {rounds} rounds", file=sys.stderr, flush=True)
        times = times_of(encoders, rounds)
    parent: EncoderOutput | None = None
    models = []
    for encoder, taken in zip(encoders, times):
        print(f"scoring {encoder.name}", file=sys.stderr, flush=True)
        output = output_of(functools.partial(encoder.encode, length=length), rows, parent)
        to_parent = {}
        if parent is None:
            parent = output
        else:
            to_parent = differences(output, parent, rows)
        count = parameters_of(encoder.model)
        models.append(
            EncoderScores(
                model=encoder.name,
                parameters=count.total,
                body_parameters=count.without_embeddings,
                kept_layers=encoder.kept_layers,
                heads_per_layer=list(encoder.model.config.heads_per_layer),
                scores=scores_of(output, rows),
                differences=to_parent,
                times=taken,
            )
        )
    return EncoderComparison(
        models=models,
        data=rows.records,
        max_length=length,
        resamples=RESAMPLES,
        timed_length=TIMED_LENGTH,
        rounds=rounds,
        processor_flags=processor_flags(),
        environment=Environment(**environment()),
    )


def layers_in_words(scores: EncoderScores) -> str:
    """How many layers, and which of the parent's."""
    count = str(len(scores.heads_per_layer))
    if scores.kept_layers is None:
        return count
    return f"{count} ({', '.join(map(str, scores.kept_layers))})"


def heads_in_words(scores: EncoderScores) -> str:
    """The heads of a layer, of each layer where they differ."""
    heads = scores.heads_per_layer
    if len(set(heads)) == 1:
        return str(heads[0])
    return ", ".join(map(str, heads))


def score_in_words(scores: EncoderScores, name: str) -> str:
    """A score, and the interval of its difference to the parent's."""
    value = scores.scores.get(name)
    if value is None:
        return "–"
    difference = scores.differences.get(name)
    if difference is None:
        return f"{value:.4f}"
    return f"{value:.4f} ({difference.low:+.4f} to {difference.high:+.4f})"


def table_lines(models: Sequence[EncoderScores]) -> list[list[str]]:
    """What is known of the models: a line for each quantity, its name first."""
    lines = [
        ["layers (of the parent's)", *map(layers_in_words, models)],
        ["heads per layer", *map(heads_in_words, models)],
        ["parameters", *(f"{model.parameters:,}" for model in models)],
        ["of these not embeddings", *(f"{model.body_parameters:,}" for model in models)],
    ]
    for name, title in TITLES.items():
        if name in models[0].scores:
            lines.append([title, *(score_in_words(model, name) for model in models)])
    for batch in models[0].times:
        times = [model.times[batch] for model in models]
        spread = [
            f"{time.milliseconds:.1f} ({time.milliseconds_low:.1f}–{time.milliseconds_high:.1f})" for time in times
        ]
        lines.append([f"ms, batch {batch}", *spread])
        speeds = [f"{time.speed:.2f} × ({time.speed_low:.2f}–{time.speed_high:.2f})" for time in times]
        lines.append([f"speed, batch {batch}", *speeds])
        lines.append([f"sentences/s, batch {batch}", *(f"{time.sentences_per_second:,.0f}" for time in times)])
    return lines


def print_comparison(comparison: EncoderComparison) -> None:
    """The table, what its numbers are, and the machine."""
    table = Table(box=None)
    table.add_column("")
    for model in comparison.models:
        table.add_column(model.model, justify="right", overflow="fold")
    for line in table_lines(comparison.models):
        table.add_row(*line)
    console = plain_console(width=TABLE_WIDTH)
    console.print(table)
    for name, rows in comparison.data.items():
        among = ""
        if rows.documents is not None:
            among = f" among {rows.documents:,} sentences"
        console.print(f"{name}: {rows.rows:,} rows{among}, {rows.dataset} ({rows.split})")
    machine = comparison.environment
    console.print(f"differences to the parent: 95 % intervals, {comparison.resamples:,} resamples")
    if not comparison.rounds:
        return
    console.print(
        f"time: float32, {comparison.timed_length} tokens a sentence, {comparison.rounds} rounds in turns, quartiles; "
        f"{machine.processor}, threads: {machine.threads}, {' '.join(comparison.processor_flags)}"
    )


def load_beside(sources: Sequence[str]) -> tuple[list[Encoder], int]:
    """The encoders, the first being the parent, and at how many tokens their texts are cut.

    Raises:
        ValueError, OSError: as `load_encoder` and `check_beside`.
    """
    encoders = [load_encoder(source) for source in sources]
    length = length_of(sources[0], encoders[0])
    for other in encoders[1:]:
        check_beside(encoders[0], other, length)
    return encoders, length


def compare_encoders(
    sources: Sequence[str],
    data: Sequence[str] = (),
    with_test: bool = False,
    rounds: int = ROUNDS,
    threads: int | None = None,
    output: Path | None = None,
) -> EncoderComparison:
    """Compares encoders with the first of them, and prints a table and, as the last line, the document.

    Args:
        data: local copies of the rows, each as NAME=PATH.
        with_test: STS-B's test pairs, too.
        output: new file for the document.

    Raises:
        ValueError, OSError: a model is no sentence encoder or does not fit, rows are missing, or the file cannot be
            written; nothing is.
    """
    quiet_libraries()
    if output is not None:
        free_path("--output", output)
    given = local_data(data)
    if threads is not None:
        torch.set_num_threads(threads)
    encoders, length = load_beside(sources)
    wanted = [name for name in TITLES if name != "stsb_test" or with_test]
    comparison = compare(encoders, load_rows(given, wanted), length, rounds)
    print_comparison(comparison)
    if output is not None:
        write_json(output, comparison.document())
    print(comparison.model_dump_json())
    return comparison
