"""`leaner evaluate MODEL [MODEL ...] --task embedding`: sentence encoders side by side, scored as MTEB does.

- STS12 to STS16, STS-B, SICK-R: Spearman's correlation of the cosine of two sentences with human ratings (MTEB,
  Muennighoff et al., 2023, arXiv 2210.07316).
- QNLI as retrieval, MRR@10: every question of the validation split whose sentence holds the answer looks for that
  sentence among all distinct sentences of the split.
- the same with the first model's embeddings of the sentences: can the model query an index that the first one built?
- SST-2: accuracy of a logistic regression on the embeddings.
- the mean cosine between the model's and the first model's embeddings of given sentences.

Speed is from texts to embeddings, tokenizer included, with the models in turns.

Shapes: N rows, D numbers of an embedding, Q questions, S sentences.
"""

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.table import Column, Table
from safetensors import SafetensorError
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoTokenizer

from modeling_leaner.exporting import load_onnx
from modeling_leaner.files import naming, read_json
from modeling_leaner.hub import local_folder, pooling_of
from modeling_leaner.models import seconds_of, take_turns
from modeling_leaner.terminal import plain_console

from ..data.sources import Rows, evenly, load_split
from ..tasks.distillation import unit_vectors
from .results import environment, processor_flags


class Source(NamedTuple):
    """The rows of a score on the Hub."""

    title: str
    dataset: str
    split: str
    config: str | None = None


STS = {
    "sts12": Source("STS12", "mteb/sts12-sts", "test"),
    "sts13": Source("STS13", "mteb/sts13-sts", "test"),
    "sts14": Source("STS14", "mteb/sts14-sts", "test"),
    "sts15": Source("STS15", "mteb/sts15-sts", "test"),
    "sts16": Source("STS16", "mteb/sts16-sts", "test"),
    "sick_r": Source("SICK-R", "mteb/sickr-sts", "test"),
    "stsb": Source("STS-B validation", "mteb/stsbenchmark-sts", "validation"),
    "stsb_test": Source("STS-B test", "mteb/stsbenchmark-sts", "test"),
}
STS_TESTS = [name for name in STS if name not in ("stsb", "stsb_test")]  # whose mean is shown
SOURCES = STS | {
    "qnli": Source("QNLI retrieval, MRR@10", "nyu-mll/glue", "validation", "qnli"),
    "sst2": Source("SST-2 linear probe", "nyu-mll/glue", "validation", "sst2"),
}
SENTENCES = Source("", "", "train")  # of a local file alone
TITLES = {name: source.title for name, source in SOURCES.items()} | {
    "same_index": "QNLI, index of the first model",
    "cosine": "cosine to the first model",
}
BATCHES = (1, 64)
TIMED_TEXTS = 256
PROBE_ROWS = 5_000
RESAMPLES = 1_000
RANKS = 10
Encode = Callable[[Sequence[str]], np.ndarray]


class Pairs(NamedTuple):
    """Pairs of sentences with human ratings (N); an output is the cosine of a pair."""

    first: Sequence[str]
    second: Sequence[str]
    ratings: np.ndarray


class Questions(NamedTuple):
    """Questions (Q), sentences (S), the place of each question's sentence (Q); an output is 1/rank, 0 beyond 10."""

    questions: Sequence[str]
    sentences: Sequence[str]
    answers: np.ndarray
    same_index: bool = False


class Labelled(NamedTuple):
    """Labelled texts to fit a classifier on and to score it on; an output is 1 if the classifier is right."""

    train: Sequence[str]
    train_labels: Sequence[int]
    texts: Sequence[str]
    labels: Sequence[int]


class Sentences(NamedTuple):
    """Sentences; an output is the cosine to the first model's embedding."""

    texts: Sequence[str]


Scored = Pairs | Questions | Labelled | Sentences


def outputs_of(rows: Scored, encode: Encode, reference: Encode) -> np.ndarray:
    """A number for each of the rows; `reference` is the first model's `encode`."""
    match rows:
        case Pairs(first, second):
            return (unit_vectors(encode(first)) * unit_vectors(encode(second))).sum(axis=1)
        case Questions(questions, sentences, answers, same_index):
            index = unit_vectors((reference if same_index else encode)(sentences))
            similarity = unit_vectors(encode(questions)) @ index.T
            own = similarity[np.arange(len(questions)), answers]
            ranks = 1 + (similarity > own[:, None] + 1e-9).sum(axis=1)
            return np.where(ranks <= RANKS, 1 / ranks, 0.0)
        case Labelled(train, train_labels, texts, labels):
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
            probe.fit(unit_vectors(encode(train)), train_labels)
            return (probe.predict(unit_vectors(encode(texts))) == np.asarray(labels)).astype(float)
        case Sentences(texts):
            return (unit_vectors(encode(texts)) * unit_vectors(reference(texts))).sum(axis=1)


def score(rows: Scored, outputs: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> float:
    """The mean; of pairs Spearman's correlation with the ratings, NaN if either is constant."""
    if isinstance(rows, Pairs):
        return float(stats.spearmanr(outputs[chosen], rows.ratings[chosen]).statistic)
    return float(outputs[chosen].mean())


def local_copies(entries: Sequence[str]) -> dict[str, str | None]:
    """The scores that `--data NAME[=PATH] ...` asks for, each with its local copy; None means the Hub's copy."""
    given: dict[str, str | None] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        if name not in SOURCES and (name != "sentences" or not path):
            expected = f"NAME or NAME=PATH with a NAME of {', '.join(SOURCES)}, or sentences=FILE"
            raise ValueError(f"--data {entry}: expected {expected}")
        given[name] = path or None
    return given


def column(rows: Rows, *names: str) -> tuple:
    """The first of these columns that the rows have."""
    for name in names:
        if name in rows.column_names:
            return tuple(rows[name][:])
    raise ValueError(f"expected a column {' or '.join(names)}, got {', '.join(rows.column_names)}")


def load_rows(given: Mapping[str, str | None]) -> dict[str, Scored]:
    """The rows of each score, read from local copies or from the Hub."""
    found = {}
    for name, path in given.items():
        with naming(f"--data {name}={path}" if path else name):
            found |= rows_of(name, path)
    return {name: found[name] for name in TITLES if name in found}


def rows_of(name: str, path: str | None) -> dict[str, Scored]:
    """The rows of one of `SOURCES`, or of `sentences`; QNLI's serve two scores."""
    source = SOURCES.get(name, SENTENCES)
    on_hub = {"dataset": source.dataset, "dataset_config": source.config}
    place = on_hub if path is None else {"dataset": None, "data_files": [path]}
    rows = load_split(split=source.split, **place)
    if name == "sentences":
        texts = column(rows, "text", "sentence")
        return {"cosine": Sentences(tuple(texts[row] for row in evenly(len(texts), 4_000)))}
    if name == "qnli":
        sentences, questions = column(rows, "sentence"), column(rows, "question")
        names = getattr(rows.features.get("label"), "names", ["entailment"])
        entailed = np.flatnonzero(np.asarray(column(rows, "label")) == names.index("entailment"))
        places = {sentence: place for place, sentence in enumerate(dict.fromkeys(sentences))}
        answers = np.array([places[sentences[row]] for row in entailed])
        asked = Questions(tuple(questions[row] for row in entailed), tuple(places), answers)
        return {"qnli": asked, "same_index": asked._replace(same_index=True)}
    if name == "sst2":
        train = load_split(split="train", **place)
        parts = train.select(evenly(len(train), PROBE_ROWS)), rows
        return {"sst2": Labelled(*(column(part, each) for part in parts for each in ("sentence", "label")))}
    ratings = np.asarray(column(rows, "score", "label"), dtype=float)
    return {name: Pairs(column(rows, "sentence1"), column(rows, "sentence2"), ratings)}


class Encoder(NamedTuple):
    """A model that turns texts into embeddings."""

    name: str
    encode: Callable[..., np.ndarray]  # of texts and batch_size=...: (N, D)
    megabytes: float  # of the weights' file


def load_encoder(source: str) -> Encoder:
    """The encoder of a folder or Hub id of sentence-transformers, transformers or this family, or of an .onnx file."""
    if source.endswith(".onnx"):
        return onnx_encoder(Path(source))
    from sentence_transformers import SentenceTransformer

    with naming(source, (OSError, ValueError, SafetensorError)):
        model = SentenceTransformer(source, trust_remote_code=False, model_kwargs={"use_safetensors": True})
    model.eval()
    files = sum(file.stat().st_size for file in local_folder(source).glob("*.safetensors"))
    weights = files or sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    encode = functools.partial(model.encode, show_progress_bar=False, convert_to_numpy=True)
    return Encoder(Path(source).resolve().name if Path(source).exists() else source, encode, weights / 1e6)


def onnx_encoder(file: Path) -> Encoder:
    """The encoder of FOLDER/onnx/NAME.onnx, with the tokenizer and the pooling of FOLDER."""
    with naming(file, (Exception,)):  # of onnxruntime, or that it is missing
        run = load_onnx(file)
    folder = file.parent.parent if file.parent.name == "onnx" else file.parent
    path = folder / "sentence_bert_config.json"
    settings = read_json(path) if path.is_file() else {}
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    length = settings.get("max_seq_length") or tokenizer.model_max_length
    pool = pooling_of(str(folder))

    def encode(texts: list[str], batch_size: int) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")  # the longest first
        embeddings = []
        for start in range(0, len(texts), batch_size):
            part = [texts[place] for place in order[start : start + batch_size]]
            tokens = tokenizer(part, padding=True, truncation=True, max_length=length, return_tensors="pt")
            states = next(iter(run(dict(tokens)).values()))
            embeddings.append(pool(states, tokens["attention_mask"]))
        return torch.cat(embeddings).numpy()[np.argsort(order)]

    return Encoder(f"{folder.resolve().name}/{file.name}", encode, file.stat().st_size / 1e6)


def interval(rows: Scored, own: np.ndarray, first: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a score less the first model's, by a paired bootstrap over rows."""
    generator = np.random.default_rng(0)
    differences = []
    for _ in range(RESAMPLES):
        chosen = generator.integers(len(own), size=len(own))
        differences.append(score(rows, own, chosen) - score(rows, first, chosen))
    return tuple(np.nanpercentile(differences, (2.5, 97.5)).tolist())


def compare(sources: Sequence[str], given: Mapping[str, str | None], rounds: int = 5) -> dict:
    """Scores, sizes and speeds of encoders, as JSON holds them; the first is what the others are compared with.

    `given` is as of `local_copies`; 0 `rounds` leave out the timing.
    """
    rows = load_rows(given)
    encoders = [load_encoder(source) for source in sources]

    # By each encoder every tuple of texts is encoded once, also if several scores read it.
    encodes = [
        functools.cache(lambda texts, encode=encoder.encode: encode(list(texts), batch_size=BATCHES[-1]))
        for encoder in encoders
    ]
    first: dict[str, np.ndarray] = {}
    models = []
    for encoder, encode in zip(encoders, encodes):
        print(f"scoring {encoder.name}", file=sys.stderr)
        scores, intervals = {}, {}
        for name, each in rows.items():
            outputs = outputs_of(each, encode, encodes[0])
            scores[name] = score(each, outputs)
            if encoder is encoders[0]:
                first[name] = outputs
            elif name != "cosine":
                intervals[name] = interval(each, outputs, first[name])
        known = {"model": encoder.name, "megabytes": encoder.megabytes}
        models.append({**known, "scores": scores, "intervals": intervals})

    # Sentences a second, of each model in each round: (models, rounds).
    texts = next((each.first for each in rows.values() if isinstance(each, Pairs)), None)
    for batch in BATCHES if rounds and texts is not None else ():
        print(f"timing all at batch {batch}", file=sys.stderr)
        timed = list(texts[: TIMED_TEXTS if batch > 1 else TIMED_TEXTS // 8])
        encodings = [functools.partial(encoder.encode, timed, batch_size=batch) for encoder in encoders]
        rates = len(timed) / take_turns([functools.partial(seconds_of, encode) for encode in encodings], rounds)
        for model, rate in zip(models, rates):
            model.setdefault("sentences_per_second", {})[str(batch)] = float(np.median(rate))
            model.setdefault("speed", {})[str(batch)] = float(np.median(rate / rates[0]))

    return {
        "models": models,
        "rows": {name: len(first[name]) for name in rows},
        "processor": environment()["processor"],
        "processor_flags": processor_flags(),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
    }


def mean_sts(scores: Mapping[str, float]) -> float | None:
    """The mean over the STS test sets that were scored; None if there are fewer than two."""
    tests = [scores[name] for name in STS_TESTS if name in scores]
    return float(np.mean(tests)) if len(tests) > 1 else None


def evaluate_encoders(sources: Sequence[str], data: Sequence[str], rounds: int, as_json: bool) -> None:
    """Prints the comparison of encoders: one JSON document, or a table of the scores × 100, as MTEB prints them."""
    document = compare(sources, local_copies(data or list(SOURCES)), rounds)  # without data all, from the Hub
    if as_json:
        print(json.dumps(document))
        return
    models = document["models"]
    table = Table("", *(Column(model["model"], justify="right", overflow="fold") for model in models), box=None)
    for name in document["rows"]:
        cells = []
        for model in models:
            low, high = model["intervals"].get(name, (None, None))
            extent = "" if low is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
            cells.append(f"{100 * model['scores'][name]:.2f}{extent}")
        table.add_row(TITLES[name], *cells)
    means = [mean_sts(model["scores"]) for model in models]
    if means[0] is not None:
        table.add_row("mean of the STS tests", *(f"{100 * mean:.2f}" for mean in means))
        table.add_row("  of the first model's", *(f"{100 * mean / means[0]:.1f} %" for mean in means))
    for batch in models[0].get("speed", {}):
        rates = [f"{model['sentences_per_second'][batch]:,.0f} ({model['speed'][batch]:.2f} ×)" for model in models]
        table.add_row(f"sentences/s, batch {batch}", *rates)
    table.add_row("weights, MB", *(f"{model['megabytes']:.1f}" for model in models))

    console = plain_console(width=110)
    console.print(table)
    if len(sources) > 1:
        console.print(f"In parentheses: 95 % interval of the difference to {models[0]['model']}.")
    if "speed" in models[0]:
        flags = " ".join(document["processor_flags"])
        console.print(f"Speed: texts to embeddings, threads: {document['threads']}, {document['processor']}, {flags}.")
