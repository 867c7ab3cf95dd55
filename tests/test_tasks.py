"""How rows become tensors and scores: masks, packing, crops, metrics, columns, the cache."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from modeling_leaner.training.data import sources
from modeling_leaner.training.data.tokenizer import train_tokenizer
from modeling_leaner.training.publishing.reevaluate import reduced
from modeling_leaner.training.running.loading import with_fields
from modeling_leaner.training.settings import parse
from modeling_leaner.training.tasks import TASKS
from modeling_leaner.training.tasks.classification import ImageClassification
from training_data import documents, labelled, merged, pictures, write_shape
from transformers import AutoConfig, EvalPrediction, ViTImageProcessorPil


def text_task(kind, tmp_path, *words, rows=None, family="bert", tokenizer="wordpiece"):
    """A task over made-up documents, configured, with its prepared evaluation rows."""
    rows = documents(30, 0) if rows is None else rows
    config = AutoConfig.from_pretrained(write_shape(family, tmp_path))
    defaults = ["--task", kind, "--max_length", "24", "--preprocessing_workers", "1"]
    arguments = parse(None, merged(defaults, words))
    texts = [value for row in rows for value in row.values() if isinstance(value, str)]
    task = TASKS[kind](arguments, config, train_tokenizer(texts, tokenizer, 300, 24, family))
    task.config = with_fields(config, arguments, task.configure(rows))
    prepared = task.prepare(rows, "made up")
    task.keep_held_out(rows)
    return task, prepared.with_format("numpy")


def test_numbers_are_classes_that_are_texts_of_numbers(tmp_path):
    """3 is the class of the text 3, not the one at place 3; what is no such text is refused."""
    plain = labelled(6, 0, ("sentence",), 2).remove_columns("label")
    task, _ = text_task("sequence-classification", tmp_path, rows=plain.add_column("label", list("123123")))
    numbers = plain.add_column("label", [3, 1, 2, 3, 1, 2])
    assert list(task.prepare(numbers, "made up")["labels"]) == [2, 0, 1, 2, 0, 1]
    others = plain.add_column("label", [0, 1] * 3)
    with pytest.raises(ValueError, match="^made up: label, row 1: 0 is not one of the 3 classes 1, 2, 3"):
        task.prepare(others, "made up")


def generators(count, first=0):
    return [np.random.default_rng((1, first + index)) for index in range(count)]


def masked(task, rows, seeds=None):
    batch = task.collate([rows[index] for index in range(len(rows))])
    original = batch["input_ids"].clone()
    return original, task.transform(batch, generators(len(rows)) if seeds is None else seeds, training=True)


@pytest.mark.parametrize("fraction", [0.15, 0.4])
def test_masking(tmp_path, fraction):
    """The share, its 80/10/10 parts, never a special token, labels where something was chosen and nowhere else."""
    task, rows = text_task("masked-lm", tmp_path, "--mask_fraction", str(fraction), rows=documents(400, 0))
    original, batch = masked(task, rows)
    chosen = batch["labels"] != -100
    special = torch.isin(original, torch.tensor(task.processing.all_special_ids))
    assert not (chosen & special).any() and chosen.any(1).all()
    assert (batch["labels"][chosen] == original[chosen]).all()
    assert (batch["input_ids"][~chosen] == original[~chosen]).all()
    assert chosen.sum() / (~special).sum() == pytest.approx(fraction, abs=0.02)
    inputs = batch["input_ids"][chosen]
    assert (inputs == task.processing.mask_token_id).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (inputs == original[chosen]).float().mean() == pytest.approx(0.1, abs=0.03)


def test_masks_follow_a_row_not_its_batch(tmp_path):
    task, rows = text_task("masked-lm", tmp_path)
    _, whole = masked(task, rows)
    for index in (0, 5, len(rows) - 1):
        _, alone = masked(task, rows.select([index]), generators(1, index))
        width = alone["labels"].shape[1]
        assert torch.equal(alone["labels"][0], whole["labels"][index, :width])
        assert torch.equal(alone["input_ids"][0], whole["input_ids"][index, :width])


@pytest.mark.parametrize("kind", ["masked-lm", "causal-lm"])
def test_rows_do_not_depend_on_the_workers(tmp_path, kind):
    family, tokenizer = {"masked-lm": ("bert", "wordpiece"), "causal-lm": ("gpt", "byte-bpe")}[kind]
    many = documents(2500, 0, words=5)
    texts = [
        text_task(kind, tmp_path, "--preprocessing_workers", workers, rows=many, family=family, tokenizer=tokenizer)
        for workers in ("1", "2")
    ]
    one, two = ([row.tolist() for row in rows["input_ids"]] for _, rows in texts)
    assert one == two


def test_whole_words_are_masked_together(tmp_path):
    rows = Dataset.from_dict({"text": ["understanding reunderstandable misunderstanding standing"] * 60})
    task, prepared = text_task("masked-lm", tmp_path, "--whole_word_masking", "--mask_fraction", "0.3", rows=rows)
    task.processing = train_tokenizer(["under standing mis re able " * 9], "wordpiece", 60, 24, "bert")
    prepared = task.prepare(rows, "made up").with_format("numpy")
    original, batch = masked(task, prepared)
    parts = 0
    for ids, labels in zip(original, batch["labels"]):
        tokens, words = task.processing.convert_ids_to_tokens(ids), []
        for place, token in enumerate(tokens):
            if token.startswith("##") and words:
                words[-1].append(place)
            elif token not in task.processing.all_special_tokens:
                words.append([place])
        for word in words:
            assert len({bool(labels[place] != -100) for place in word}) == 1
            parts = max(parts, len(word))
    assert parts > 1


def test_every_token_is_predicted_once(tmp_path):
    """Causal rows share one token: their targets, in order, are the documents with their ends.

    The first row of each 1,000 documents begins with the separator, whatever token the last one ends with.
    """
    task, rows = text_task("causal-lm", tmp_path, family="gpt", tokenizer="byte-bpe")
    targets = [token for row in rows["input_ids"] for token in row[1:].tolist()]
    ids = task.processing(documents(30, 0)["text"][:])["input_ids"]
    end = task.processing.eos_token_id
    assert targets == [token for document in ids for token in [*document, end]]
    assert max(len(row) for row in rows["input_ids"]) == 24
    assert task.processing.decode(targets).replace("<|endoftext|>", "") == "".join(documents(30, 0)["text"])
    first, *_ = task._pack({"input_ids": [[5, 6, 7], [8, 9]]}, [0, 1])["input_ids"]
    assert first.tolist() == [end, 5, 6, 7, 8, 9]


def test_language_model_scores(tmp_path):
    """Loss, perplexity and bits per byte against the definition, on random logits."""
    task, rows = text_task("causal-lm", tmp_path, family="gpt", tokenizer="byte-bpe")
    batch = task.collate([rows[index] for index in range(len(rows))])
    logits = torch.randn(*batch["labels"].shape, task.config.vocab_size, generator=torch.manual_seed(0))
    scores = task.score(EvalPrediction(task.reduce(logits, batch["labels"]).numpy(), None))
    nats = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100, reduction="sum"
    ).item()
    text = sum(len(text.encode()) for text in documents(30, 0)["text"])
    assert scores["loss"] == pytest.approx(nats / (batch["labels"][:, 1:] != -100).sum().item(), rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(nats / np.log(2) / text, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    hits = (logits[:, :-1].argmax(-1) == batch["labels"][:, 1:]).sum() / (batch["labels"][:, 1:] != -100).sum()
    assert scores["accuracy"] == pytest.approx(hits.item())


def test_losses_of_repeated_bigrams_and_of_other_tokens(tmp_path):
    """Against a loop over the tokens, on few different ones and on rows of several lengths."""
    task, rows = text_task("causal-lm", tmp_path, family="gpt", tokenizer="byte-bpe")
    task.text_bytes = 1
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, size) for size in (24, 17, 2, 9)]
    labels = task.collate([{"input_ids": row} for row in rows])["labels"]
    logits = torch.randn(*labels.shape, task.config.vocab_size, generator=torch.manual_seed(0))
    losses = {True: [], False: []}
    for row, of_row in zip(rows, logits.log_softmax(-1)):
        seen = set()
        for place in range(1, len(row)):
            bigram = (row[place - 1], row[place])
            losses[bigram in seen].append(-of_row[place - 1, row[place]].item())
            seen.add(bigram)
    kept = [task.reduce(logits, labels), reduced("ForCausalLM", logits, labels)]
    for sums in kept:
        scores = task.score(EvalPrediction(sums.numpy(), None))
        assert scores["loss_repeated_bigram"] == pytest.approx(np.mean(losses[True]), rel=1e-5)
        assert scores["loss_other"] == pytest.approx(np.mean(losses[False]), rel=1e-5)
    short = task.score(EvalPrediction(kept[0][2:3].numpy(), None))
    assert "loss_repeated_bigram" not in short and short["loss_other"] == pytest.approx(short["loss"])


def image_task(tmp_path, *words, rows=None):
    rows = pictures(40, 0) if rows is None else rows
    config = AutoConfig.from_pretrained(write_shape("vit", tmp_path))
    arguments = parse(None, ["--task", "image-classification", "--preprocessing_workers", "1", *words])
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    task = ImageClassification(arguments, config, processor)
    task.config = with_fields(config, arguments, task.configure(rows))
    return task, rows


def prepared_batch(task, rows, training):
    prepared = task.prepare(rows, "made up").with_format("numpy")
    batch = task.collate([prepared[index] for index in range(len(prepared))])
    return batch, task.transform(dict(batch), generators(len(rows)), training)


@pytest.mark.parametrize("settings", [{}, {"resample": 0}, {"resample": 2}, {"do_rescale": False}])
def test_what_the_processor_states_is_done(settings, tmp_path):
    """Resizing by the nearest pixel is number 0, which is a choice; and pixels that are not to be scaled are not."""
    task, rows = image_task(tmp_path)
    task.processing = ViTImageProcessorPil(size={"height": 16, "width": 16}, **settings)
    _, ours = prepared_batch(task, rows, training=False)
    theirs = task.processing(rows["image"][:], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours["pixel_values"], theirs.float(), atol=1e-4, rtol=1e-5)


def test_crops_and_mirrors(tmp_path):
    task, rows = image_task(tmp_path, "--crop_padding", "2", "--horizontal_flip")
    raw, ours = prepared_batch(task, rows, training=True)
    pixels = torch.nn.functional.pad(raw["pixel_values"], [2] * 4).float() * task.processing.rescale_factor
    pixels = (pixels - 0.5) / 0.5
    seen = set()
    for image, crop in zip(pixels, ours["pixel_values"]):
        windows = {
            (top, left, flip): image[:, top : top + 16, left : left + 16].flip(-1)
            if flip
            else image[:, top : top + 16, left : left + 16]
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
        }
        found = [place for place, window in windows.items() if torch.allclose(window, crop, atol=1e-5)]
        assert found
        seen.add(found[0])
    assert len({place[0] for place in seen}) == 5 and len({place[1] for place in seen}) == 5
    assert {place[2] for place in seen} == {False, True}


def test_prepared_rows_come_from_the_cache(tmp_path):
    """A second preparation reads the cached rows; another setting, tokenizer or row does not."""
    documents(30, 7).to_parquet(tmp_path / "rows.parquet")

    def prepare(*words):
        rows = load_dataset("parquet", data_files=str(tmp_path / "rows.parquet"), split="train")
        return text_task("masked-lm", tmp_path, *words, rows=rows)[1].cache_files[0]["filename"]

    first = prepare()
    assert prepare() == first
    assert prepare("--max_length", "16") != first
    assert prepare("--whole_word_masking") != first


def test_local_formats(tmp_path):
    rows = labelled(12, 0, ("sentence",), 2)
    rows.to_csv(tmp_path / "a.csv"), rows.to_json(tmp_path / "a.jsonl"), rows.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("one document\nof two lines\n\nanother")
    for suffix in ("csv", "jsonl", "parquet"):
        read = sources.load_split(None, "train", data_files=[f"train={tmp_path / 'a'}.{suffix}"])
        assert read["sentence"][:] == rows["sentence"][:]
    text = sources.load_split(None, "train", data_files=[f"train={tmp_path / 'a.txt'}"])
    assert text["text"][:] == ["one document\nof two lines", "another"]
    for label in ("cat", "dog"):
        (tmp_path / "images" / "train" / label).mkdir(parents=True)
        for index in range(3):
            pictures(1, index)["image"][0].save(tmp_path / "images" / "train" / label / f"{index}.png")
    images = sources.load_split(None, "train", data_files=[str(tmp_path / "images")])
    assert images.features["label"].names == ["cat", "dog"] and len(images) == 6


def test_label_smoothing_equals_torch():
    """The loss that the trainer computes itself, with and without accumulation, against torch's."""
    from modeling_leaner.training.running.trainer import LeanTrainer

    logits = torch.randn(6, 4, generator=torch.manual_seed(0))
    labels = torch.tensor([0, 3, 1, 2, 2, 0])
    trainer = SimpleNamespace(
        args=SimpleNamespace(label_smoothing_factor=0.1, world_size=1),
        task=SimpleNamespace(has_own_loss=False, regression=False, aligned=lambda *pair: pair),
    )
    model = torch.nn.Module()
    model.forward = lambda **_: SimpleNamespace(logits=logits)
    loss = LeanTrainer.compute_loss(trainer, model, {"labels": labels})
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1))
    parts = LeanTrainer.compute_loss(trainer, model, {"labels": labels}, num_items_in_batch=torch.tensor(12))
    torch.testing.assert_close(parts, loss / 2)


@pytest.mark.parametrize("task", ["causal-lm", "sequence-classification"])
def test_rows_held_out_are_found_in_the_cache_again(task, tmp_path):
    """A fingerprint that changes from call to call would have every run of a sweep tokenise its text anew."""
    documents(20, 0).to_parquet(tmp_path / "train.parquet")
    words = ["--task", task, "--data_files", f"train={tmp_path}/train.parquet", "--eval_split", "none"]
    arguments = parse(None, [*words, "--tuning_holdout", "3", "--output_dir", str(tmp_path)])
    first = sources.load_training(arguments)
    np.random.seed(len(task))  # another process, or another run, has drawn something else before
    second = sources.load_training(arguments)
    assert [len(rows) for rows in first] == [17, 3]
    assert [rows._fingerprint for rows in first] == [rows._fingerprint for rows in second]
