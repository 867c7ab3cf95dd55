"""Extractive question answering: windows, spans back to text, SQuAD's exact match and F1."""

import itertools
import random

import numpy as np
import pytest
from datasets import Dataset
from modeling_leaner.training.data.tokenizer import train_tokenizer
from modeling_leaner.training.tasks.question_answering import best_spans, exact_match_and_f1, windows


WORDS = [f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "re") for second in ("ba", "de", "fo", "gul", "hi")]


def random_rows(count, words, seed=0):
    """Rows with 1..4 words of the context as the answer, of at most 26 bytes, so that some window has all of it."""
    rng, rows = random.Random(seed), []
    for index in range(count):
        context = [rng.choice(WORDS) + rng.choice(["", "", ",", "."]) for _ in range(words)]
        first = rng.randrange(words - 4)
        answer = " ".join(context[first : first + rng.randint(1, 4)]).rstrip(",.")
        start = len(" ".join([*context[:first], ""]))
        rows.append(
            {
                "id": f"row-{index}",
                "question": f"  Where is {rng.choice(WORDS)}?",
                "context": "  " + " ".join(context),
                "answers": {"text": [answer], "answer_start": [start + 2]},
            }
        )
    return Dataset.from_list(rows)


def row(context, answer=None, start=None, row_id="q1", question="Where?"):
    """A batch of one row; without an answer, an unanswerable one."""
    texts = [] if answer is None else [answer]
    starts = [] if answer is None else [context.index(answer) if start is None else start]
    answers = {"text": texts, "answer_start": starts}
    return {"id": [row_id], "question": [question], "context": [context], "answers": [answers]}


@pytest.fixture(scope="module", params=["byte-bpe", "wordpiece", "bytes"])
def tokenizer(request):
    texts = [*random_rows(50, 40)["context"], "Where is it?"]
    return train_tokenizer(texts, request.param, 400, 512, "bert")


@pytest.fixture(scope="module")
def words():
    """A tokenizer whose tokens are words, so that positions can be counted by hand."""
    return train_tokenizer(["Where? a b c d e f g h i j"], "words", 50, 512, "bert")


def prepare(rows, tokenizer, max_length=64, doc_stride=26, training=False):
    arguments = {"tokenizer": tokenizer, "max_length": max_length, "doc_stride": doc_stride, "training": training}
    return rows.map(windows, batched=True, fn_kwargs=arguments, remove_columns=rows.column_names)


def perfect_logits(features, shift=0):
    """Ten at each window's labelled positions moved by `shift` tokens, zero elsewhere, -100 for padding."""
    length = max(map(len, features["input_ids"]))
    starts, ends = np.zeros((2, len(features), length + 3), np.float32)
    for window, feature in enumerate(features):
        if feature["start_positions"]:
            starts[window, feature["start_positions"] + shift] = 10
            ends[window, feature["end_positions"] + shift] = 10
        starts[window, len(feature["input_ids"]) :] = ends[window, len(feature["input_ids"]) :] = -100
    return starts, ends


def test_windows_by_hand(words):
    batch = row("a b c d e f g h i j", "f g")
    made = windows(batch, words, max_length=8, doc_stride=2, training=False)  # 8 - 3 special - 1 question: 4 words
    tokens = [words.convert_ids_to_tokens(ids) for ids in made["input_ids"]]
    parts = ["a b c d", "c d e f", "e f g h", "g h i j"]
    assert tokens == [["[CLS]", "Where?", "[SEP]", *part.split(), "[SEP]"] for part in parts]
    assert made["token_type_ids"] == [[0, 0, 0, 1, 1, 1, 1, 1]] * 4 and made["attention_mask"] == [[1] * 8] * 4
    assert made["start_positions"] == [0, 0, 4, 0] and made["end_positions"] == [0, 0, 5, 0]
    assert made["example_id"] == ["q1"] * 4
    outside = [-1, -1]
    assert made["offset_mapping"][2] == [*[outside] * 3, [8, 9], [10, 11], [12, 13], [14, 15], outside]
    training = windows(batch, words, max_length=8, doc_stride=2, training=True)
    assert set(training) == {"input_ids", "token_type_ids", "attention_mask", "start_positions", "end_positions"}
    assert all(training[column] == made[column] for column in training)


@pytest.mark.parametrize(("answer", "position"), [("a b c d", (3, 6)), ("a", (3, 3)), ("d", (6, 6)), ("d e", (0, 0))])
def test_an_answer_belongs_to_a_window_only_whole(words, answer, position):
    made = windows(row("a b c d e f", answer), words, max_length=8, doc_stride=2, training=True)
    assert (made["start_positions"][0], made["end_positions"][0]) == position


def test_no_answer_is_the_first_position(words):
    for batch in (row("a b c"), row("a b c", "", 0), row("a b c", " ", 1), row("")):
        made = windows(batch, words, 16, 2, training=True)
        assert made["start_positions"] == made["end_positions"] == [0] and made["input_ids"][0][0] == 2
    first = {"text": ["b", "c"], "answer_start": [2, 4]}  # of several answers the first is the label
    made = windows({**row("a b c"), "answers": [first]}, words, 16, 2, training=True)
    assert (made["start_positions"], made["end_positions"]) == ([4], [4])


def test_windows_lead_back_to_the_answer(tokenizer):
    rows = random_rows(50, words=120, seed=1)
    features = prepare(rows, tokenizer)
    contexts, answers = dict(zip(rows["id"], rows["context"])), dict(zip(rows["id"], rows["answers"]))
    found, late, covered = set(), 0, {}
    for feature in features:
        row_id, offsets = feature["example_id"], feature["offset_mapping"]
        assert len(offsets) == len(feature["input_ids"]) <= 64
        start, end = feature["start_positions"], feature["end_positions"]
        assert (start == 0) == (end == 0)
        if start:
            assert contexts[row_id][offsets[start][0] : offsets[end][1]] == answers[row_id]["text"][0]
            assert offsets[start][0] == answers[row_id]["answer_start"][0]
            late += row_id not in found and row_id in covered
            found.add(row_id)
        spans = [range(first, last) for first, last in offsets if first >= 0]
        covered.setdefault(row_id, set()).update(itertools.chain.from_iterable(spans))
    assert len(found) == 50 and late > 20
    for row_id, context in contexts.items():  # all of the context is in some window
        assert {place for place, letter in enumerate(context) if letter != " "} <= covered[row_id]


def test_perfect_logits_are_perfect_answers(tokenizer):
    rows = random_rows(50, words=120, seed=2)
    features, references = prepare(rows, tokenizer), {row["id"]: row["answers"]["text"] for row in rows}
    predictions = best_spans(*perfect_logits(features), features, rows, max_answer_tokens=40)
    assert list(predictions) == rows["id"][:] and predictions == {key: texts[0] for key, texts in references.items()}
    assert exact_match_and_f1(predictions, references) == {"exact_match": 1.0, "f1": 1.0}
    shifted = best_spans(*perfect_logits(features, shift=-1), features, rows, max_answer_tokens=40)
    assert exact_match_and_f1(shifted, references)["exact_match"] < 0.2


@pytest.fixture
def two_windows():
    """Tokens: [CLS] q [SEP] and two words of the context `one two three` each."""
    none = [-1, -1]
    example = {"id": "x", "context": "one two three"}
    features = [
        {"example_id": "x", "offset_mapping": [none, none, none, [0, 3], [4, 7], none]},
        {"example_id": "x", "offset_mapping": [none, none, none, [4, 7], [8, 13], none]},
    ]
    return example, features


def test_an_answer_may_be_empty(two_windows):
    """As in SQuAD 2.0: where [CLS] has a higher score than the best span, in every window."""
    example, features = two_windows
    spans = [[0, 0, 0, 5, 0, 0], [0, 0, 0, 0, 0, 0]]

    def answers(first, second, **options):
        logits = np.array(spans)
        logits[:, 0] = first, second
        return best_spans(logits, logits, features, [example], **options)["x"]

    assert answers(6, 6, may_be_empty=True) == "" and answers(6, 6) == "one"
    assert answers(6, 4, may_be_empty=True) == "one"  # the second window finds it


def test_best_spans_tries_every_span():
    rng = np.random.default_rng(0)
    offsets = [[-1, -1]] * 2 + [[place, place + 1] for place in range(25)] + [[-1, -1]]
    context = "abcdefghijklmnopqrstuvwxy"
    for longest in (1, 3, 30):
        for _ in range(20):
            starts, ends = rng.normal(size=(2, 1, 28))
            spans = [(i, j) for i in range(25) for j in range(i, min(25, i + longest))]
            first, last = max(spans, key=lambda span: starts[0, span[0] + 2] + ends[0, span[1] + 2])
            features, examples = [{"example_id": 7, "offset_mapping": offsets}], [{"id": 7, "context": context}]
            assert best_spans(starts, ends, features, examples, longest) == {7: context[first : last + 1]}


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("The Eiffel Tower.", ["eiffel tower"], 1, 1),
        ("Eiffel Tower in Paris", ["the Eiffel Tower"], 0, 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("Paris", ["London", "in Paris"], 0, 2 * 1 * (1 / 2) / (1 + 1 / 2)),
        ("no no no", ["no"], 0, 2 * (1 / 3) * 1 / (1 / 3 + 1)),  # a word counts as often as both have it
        ("Tower Eiffel", ["Eiffel Tower"], 0, 1),
        ("", ["Paris"], 0, 0),
        ("", [], 1, 1),
        ("Paris", [], 0, 0),
        ("", ["the", "Paris"], 0, 0),  # a reference without words is none, where there are others
    ],
)
def test_exact_match_and_f1(prediction, references, exact, f1):
    measures = exact_match_and_f1({"x": prediction}, {"x": references})
    assert measures == {"exact_match": exact, "f1": pytest.approx(f1)}
