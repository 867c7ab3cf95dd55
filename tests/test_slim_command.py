"""`leaner slim`: from a folder of transformers to a leaner one that loads anywhere, with its card; bad input."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from modeling_leaner.training.data.tokenizer import train_tokenizer
from modeling_leaner.training.publishing.slim_card import Try
from PIL import Image as PILImage
from safetensors.torch import load_file
from training_data import documents, pictures, with_a_broken_picture
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTImageProcessorPil,
)
from transformers import ViTForImageClassification as ViT
from typer.testing import CliRunner

from modeling_leaner.cli import recovery
from modeling_leaner.cli import slim as command
from modeling_leaner.cli.app import app
from modeling_leaner.cli.rows import contents, rows_with_content
from modeling_leaner.conversion import load_lean
from modeling_leaner.slimming import calibration
from modeling_leaner.slimming.measures import Reference
from modeling_leaner.slimming.scores import Scores
from modeling_leaner.slimming.slim import Cut, Slimmed
from modeling_leaner.support.files import sha256
from modeling_leaner.transfer import contents as sent_of


SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}


@pytest.fixture
def leaner():
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def source(tmp_path):
    """A sentence encoder of transformers, as sentence-transformers saves it."""
    torch.manual_seed(0)
    texts = documents(40, 0)
    tokenizer = train_tokenizer(texts["text"], "wordpiece", 300, 24, "bert")
    config = BertConfig(vocab_size=300, max_position_embeddings=64, initializer_range=0.3, **SIZES)
    folder = tmp_path / "source"
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
    (folder / "notes.txt").write_text("not of sentence-transformers")
    return folder


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.parquet"
    documents(24, 1).to_parquet(path)
    return path


def test_from_transformers_to_a_leaner_folder_and_back(leaner, source, rows, tmp_path):
    result = leaner("slim", source, tmp_path / "slim", "--layers", 2, "--data", rows, "--base-model", "owner/parent")
    assert result.exit_code == 0, result.output
    tokenizers = [(folder / "tokenizer.json").read_text() for folder in (source, tmp_path / "slim")]
    assert tokenizers[0] == tokenizers[1]  # without the padding and truncation of the rows that chose
    slim, info = AutoModel.from_pretrained(tmp_path / "slim", add_pooling_layer=False, output_loading_info=True)
    assert slim.config.num_hidden_layers == 2
    assert not info["missing_keys"] and not info["unexpected_keys"]
    document = json.loads((tmp_path / "slim" / "slim.json").read_text())
    assert document["parent_weights_sha256"] == sha256(source / "model.safetensors")
    kept = document["cuts"][0]["after"]
    parent = BertModel.from_pretrained(source).eval()
    parent.encoder.layer = torch.nn.ModuleList([parent.encoder.layer[index] for index in kept])
    ids = torch.tensor([[2, 9, 11, 3]])
    with torch.no_grad():
        torch.testing.assert_close(slim(ids).last_hidden_state, parent(ids).last_hidden_state)
    assert leaner("convert", tmp_path / "slim", tmp_path / "back").exit_code == 0
    back = BertModel.from_pretrained(tmp_path / "back", add_pooling_layer=False).eval()
    with torch.no_grad():
        torch.testing.assert_close(back(ids).last_hidden_state, parent(ids).last_hidden_state)
    for folder in ("slim", "back"):
        files = {path.name for path in (tmp_path / folder).iterdir()}
        assert {"modules.json", "1_Pooling", "sentence_bert_config.json", "tokenizer.json"} <= files
        assert "notes.txt" not in files
        assert json.loads((tmp_path / folder / "1_Pooling" / "config.json").read_text()) == POOLING


@pytest.mark.full
def test_the_folder_loads_without_the_package(leaner, source, rows, tmp_path):
    """With heads that differ between layers, which plain transformers cannot hold; by the card's own snippet."""
    words = ("--total-heads", 7, "--intermediate-size", 30, "--data", rows)
    assert leaner("slim", source, tmp_path / "slim", *words).exit_code == 0
    card = ModelCard.load(tmp_path / "slim" / "README.md")
    snippet = card.text.split("```python\n")[1].split("```")[0]
    program = snippet.replace('"slim"', repr(str(tmp_path / "slim")))
    program += "\nassert sum(model.config.heads_per_layer) == 7 and sentences.shape == (3, 32)"
    program += "\nimport sys; assert 'modeling_leaner' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor([")
    refused = leaner("convert", tmp_path / "slim", tmp_path / "back")
    assert refused.exit_code == 1 and "per_layer_config: bert has the same heads in every layer" in refused.output


def test_the_code_of_the_card_loads_the_folder(leaner, source, rows, tmp_path, monkeypatch):
    """From where the command ran, however the folder was named there; on the Hub from the repository."""
    monkeypatch.chdir(tmp_path)
    for output in (Path("made/slim"), tmp_path / "made/slim"):
        assert leaner("slim", source, output, "--layers", 2, "--data", rows).exit_code == 0
        code = ModelCard.load(output / "README.md").text.split("```python\n")[1].split("```")[0]
        names = {}
        exec(code, names)
        assert names["model"].config.num_hidden_layers == 2 and names["repository"] == "made/slim"
        sent = sent_of(output, "someone/small")["README.md"].decode()
        assert 'repository = "someone/small"' in sent and "made/slim" not in sent.split("```python")[1].split("```")[0]
        shutil.rmtree(output)
    monkeypatch.chdir(source)
    assert leaner("slim", source, tmp_path / "slim", "--layers", 2, "--data", rows).exit_code == 0
    assert 'repository = "slim"' in (tmp_path / "slim" / "README.md").read_text()  # no path of somebody's disk


def test_what_layers_and_heads_are_worth(leaner, source, rows, tmp_path):
    """In the folder; nothing if neither was cut."""
    result = leaner("slim", source, tmp_path / "slim", "--layers", 2, "--total-heads", 5, "--data", rows)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "slim" / "scores.json").read_text())
    assert len(document["layers"]["alone"]) == len(document["layers"]["influence"]) == 4
    assert document["layers"]["kept"] == document["heads"]["layers"]
    assert [len(layer) for layer in document["heads"]["added"]] == [4, 4]
    kept = " ".join(map(str, document["layers"]["kept"]))
    assert f"Kept layers {kept} of 4." in result.output and "leaner train --task embedding --shape" in result.output
    result = leaner("slim", source, tmp_path / "narrow", "--intermediate-size", 20, "--data", rows)
    assert result.exit_code == 0
    assert not list((tmp_path / "narrow").glob("scores*"))


RECIPE = """task: embedding
dropout: 0.0
max_length: 24
split_sentences: true
learning_rate: 3e-3
per_device_train_batch_size: 16
preprocessing_workers: 1
hardware: cpu
disable_tqdm: true
eval_split: none
"""


@pytest.fixture
def words(source, rows, tmp_path, monkeypatch):
    """`leaner slim` that tries two choices; folders for a moment lie in `scratch`."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    documents(40, 2, words=12).to_parquet(tmp_path / "sentences.parquet")
    training = f"{tmp_path / 'recipe.yaml'} --max-steps 10 --data_files train={tmp_path / 'sentences.parquet'}"
    return ["slim", source, tmp_path / "slim", "--layers", 2, "--data", rows, "--try", 2, "--recovery", training]


def held_out_change(source, folder, rows):
    """What the folder's model does to the output of the source, on every other row."""
    texts = Dataset.from_parquet(str(rows))["text"][1::2]
    model = load_lean(source).eval()
    batches = calibration.make_batches(model, AutoTokenizer.from_pretrained(source), texts, 64)
    return Reference.of(model, batches).change(load_lean(folder).eval())


class TestTry:
    def test_each_cut_is_trained_and_the_best_is_written(self, leaner, words, source, rows, tmp_path):
        result = leaner(*words)
        assert result.exit_code == 0, result.output
        document = json.loads((tmp_path / "slim" / "slim.json").read_text())
        tries = document["tries"]
        assert len(tries) == 2 and all(attempt["after"] < 0.7 * attempt["before"] for attempt in tries)
        assert [attempt["before"] for attempt in tries] == sorted(attempt["before"] for attempt in tries)
        best = min(tries, key=lambda attempt: attempt["after"])
        assert document["cuts"][0]["after"] == best["layers"] and document["cuts"][0]["change"] == best["before"]
        assert held_out_change(source, tmp_path / "slim", rows) == pytest.approx(best["after"], rel=1e-4)
        card = (tmp_path / "slim" / "README.md").read_text()
        for attempt in tries:
            layers = attempt["layers"]
            numbers = [f"{attempt[when]:.3f}" for when in ("before", "after")]
            line = next(line for line in result.output.splitlines() if f"Layers {','.join(map(str, layers))}:" in line)
            assert f"{attempt['after']:.1%}" in line and ("chosen" in line) == (attempt is best)
            row = f"| {', '.join(map(str, layers))} | {' | '.join(numbers)} | {'kept ' * (attempt is best)}|"
            assert row in card.replace("  |", " |")
        assert f"--teacher {source}" in card
        assert {"modules.json", "tokenizer.json", "scores.json"} <= {
            path.name for path in (tmp_path / "slim").iterdir()
        }
        assert not list((tmp_path / "scratch").iterdir())

    def test_the_order_before_the_training_does_not_count(self, leaner, words, tmp_path, monkeypatch):
        changes = iter([0.2, 0.1])
        monkeypatch.setattr(recovery, "recover", lambda model, *_: model)
        monkeypatch.setattr(recovery.Reference, "change", lambda *_: next(changes))
        slims = [SimpleNamespace(layers=[0, layer]) for layer in (1, 2)]
        slims = [Slimmed(None, [Cut("layers", 4, 2, change)], Scores(layers)) for layers, change in zip(slims, (1, 2))]
        for slimmed in slims:
            slimmed.scores.layers.kept = slimmed.scores.layers.layers
        chosen, tries = recovery.choose_by_recovery(slims, None, "", [], Reference([], [], 1.0))
        assert chosen.scores.layers.kept == [0, 2]
        assert tries == [Try([0, 1], 1, 0.2), Try([0, 2], 2, 0.1)]

    def test_an_interrupted_try_leaves_nothing(self, leaner, words, tmp_path, monkeypatch):
        before = {path.name for path in tmp_path.iterdir()}
        monkeypatch.setattr(recovery, "run", lambda *_: None)
        result = leaner(*words)
        assert result.exit_code == 130 and "interrupted" in result.stderr
        assert {path.name for path in tmp_path.iterdir()} == before
        assert not list((tmp_path / "scratch").iterdir())

    def test_a_recovery_that_fails_leaves_nothing(self, leaner, words, tmp_path):
        words[-1] += " --learning-rate 1e30"
        result = leaner(*words)
        assert result.exit_code == 1
        assert result.stderr.strip().splitlines()[-1].startswith("leaner slim: --recovery: loss or weights are not")
        assert not (tmp_path / "slim").exists() and not list((tmp_path / "scratch").iterdir())

    def test_held_out_rows_that_are_trained_on(self, leaner, words, rows, tmp_path):
        """The same file; another one with one of the same texts, or a text of which it is a sentence."""
        documents(24, 1, words=12).to_parquet(rows)
        held_out = Dataset.from_parquet(str(rows))["text"][3]
        chosen_by = Dataset.from_parquet(str(rows))["text"][2]
        recipe = words[-1].split()[0]
        training = tmp_path / "train.parquet"
        for texts, message in (
            (None, "--data: 12 of 12 held-out rows are among those that --recovery trains on"),
            ([held_out, "another"], "--data: 1 of 12 held-out rows are among those that --recovery trains on, such"),
            ([f"It begins. {held_out}"], "--data: 1 of 12 held-out rows are among those that --recovery trains on"),
        ):
            if texts is not None:
                Dataset.from_dict({"text": texts}).to_parquet(training)
            file = training if texts is not None else rows
            result = leaner(*words[:-1], f"{recipe} --max-steps 2 --data_files train={file}")
            assert result.exit_code == 1 and message in result.stderr, result.stderr
            assert not (tmp_path / "slim").exists()
        Dataset.from_dict({"text": [chosen_by] * 40}).to_parquet(training)
        result = leaner(*words[:-1], f"{recipe} --max-steps 2 --data_files train={training}")
        assert result.exit_code == 0, result.stderr

    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"--try": None}, "--try and --recovery: expected both"),
            ({"--recovery": None}, "--try and --recovery: expected both"),
            ({"--layers": None, "--keep": "0,1"}, "--try: the layers are named, so there is nothing to choose"),
            ({"--layers": None, "--heads": "2"}, "--try: all 4 layers stay, so there is nothing to choose"),
            ({"--layers": "4"}, "--try: all 4 layers stay, so there is nothing to choose"),
            ({"--recovery": "nothing 'open"}, "--recovery: no closing quotation, got"),
            ({"--recovery": "nothing"}, "nothing: no such recipe file"),
            ({"--recovery": "{recipe} --step 3"}, "step: unknown key"),
            ({"--recovery": "{recipe} --teacher other"}, "--recovery: teacher is what --try gives; leave it out"),
            ({"--recovery": "sst2"}, "--recovery: the task sequence-classification does not train a LeanBERTModel"),
        ],
    )
    def test_what_is_refused(self, leaner, words, tmp_path, monkeypatch, changes, message):
        """Before the rows are read."""
        monkeypatch.delattr(command, "calibration_rows")
        options = dict(zip(words[3::2], words[4::2])) | changes
        given = [word for option, value in options.items() if value is not None for word in (option, value)]
        given = [str(word).format(recipe=tmp_path / "recipe.yaml") for word in given]
        result = leaner(*words[:3], *given)
        assert result.exit_code == 1, result.output
        assert message in result.stderr
        assert not (tmp_path / "slim").exists() and not list((tmp_path / "scratch").iterdir())


def test_images(leaner, tmp_path):
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=8, num_labels=3, initializer_range=0.3, **SIZES)
    ViT(config).save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    pictures(20, 0).to_parquet(tmp_path / "rows.parquet")
    result = leaner("slim", tmp_path / "vit", tmp_path / "slim", "--layers", 2, "--data", tmp_path / "rows.parquet")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "slim" / "config.json").read_text())
    assert config["architectures"] == ["LeanViTForImageClassification"] and config["num_hidden_layers"] == 2
    assert ModelCard.load(tmp_path / "slim" / "README.md").data.pipeline_tag == "image-classification"


def test_an_image_that_ends_too_early(tmp_path):
    with_a_broken_picture(20, 7, tmp_path).to_parquet(tmp_path / "rows.parquet")
    model = SimpleNamespace(main_input_name="pixel_values")
    rows, column = rows_with_content([str(tmp_path / "rows.parquet")], None, model)
    assert len(contents(rows, column, 7, "rows")) == 7
    with pytest.raises(ValueError, match=f"^--data: rows: image, row 8, {tmp_path}/07.png: no readable image: "):
        contents(rows, column, 8, "rows")


def test_images_of_other_channels(tmp_path):
    """Greyscale, palette and transparency are read in the colours of the model."""
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    image = PILImage.new("RGB", (16, 16), (200, 100, 50))
    images = [image.convert(mode) for mode in ("RGB", "L", "P", "RGBA", "1", "LA")]
    batch = calibration.read_images(processor, images, channels=3)["pixel_values"]
    assert batch.shape == (6, 3, 16, 16)
    assert torch.equal(batch[0], batch[3]) and not torch.equal(batch[0], batch[1])
    grey = ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.5], image_std=[0.5])
    assert calibration.read_images(grey, images, channels=1)["pixel_values"].shape == (6, 1, 16, 16)


def test_an_interrupted_slim_leaves_nothing(leaner, source, rows, tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(command, "write_slim_card", interrupt)
    result = leaner("slim", source, tmp_path / "slim", "--layers", 2, "--data", rows)
    assert result.exit_code != 0
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "words, message",
    [
        ("--data {rows}", "slim: nothing to cut: give --layers"),
        ("--layers 5 --data {rows}", "slim: --layers: expected 1..4, got 5"),
        ("--keep 0,0 --data {rows}", "slim: --keep: 0 is named twice"),
        ("--keep 0;1 --data {rows}", "--keep: expected layers between commas, as 0,4,5, got '0;1'"),
        ("--keep 0,1 --latency 0.5x --data {rows}", "--latency: a budget chooses the number of layers"),
        ("--latency half --data {rows}", "--latency: expected a share of the source between 0 and 1, as 0.6x"),
        ("--layers 2", "--data: missing"),
        ("--layers 2 --data {rows} --column body", "--column: no column body, expected one of text"),
        ("--layers 2 --data {images} --column image", "images.parquet (train): row 1 is of type PngImageFile, "),
        (
            "--layers 2 --data {few}",
            "slim: --data: {few} (train): 15 rows with content, expected at least 16, half of",
        ),
        ("--layers 2 --data {images}", "--column: name the column that holds texts; the rows have image, label"),
        ("--layers 2 --data {tmp}/fewer.parquet", "fewer.parquet: no such file or folder; did you mean {few}?"),
        (
            "--layers 2 --data listops-shrt",
            "--data listops-shrt: no such file or folder, nor a built-in set; did you mean listops-short?",
        ),
    ],
)
def test_what_is_refused(leaner, source, rows, tmp_path, words, message):
    images = tmp_path / "images.parquet"
    pictures(20, 0).to_parquet(images)
    few = tmp_path / "few.parquet"
    documents(15, 1).to_parquet(few)
    before = {path.name for path in tmp_path.iterdir()}
    result = leaner(
        "slim", source, tmp_path / "slim", *words.format(rows=rows, images=images, few=few, tmp=tmp_path).split()
    )
    assert result.exit_code == 1, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("leaner slim: ") and message.format(few=few) in last, last
    assert {path.name for path in tmp_path.iterdir()} == before


def test_sources_that_are_refused(leaner, rows, tmp_path, source):
    config = RobertaConfig(vocab_size=50, **SIZES)
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    result = leaner("slim", tmp_path / "roberta", tmp_path / "slim", "--layers", 1, "--data", rows)
    assert result.exit_code == 1 and "model_type is one of vit, lean_vit, bert" in result.stderr
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").unlink()
    result = leaner("slim", source, tmp_path / "slim", "--layers", 1, "--data", rows)
    assert result.exit_code == 1 and "no tokenizer or image processor" in result.stderr
    result = leaner("slim", source, rows, "--layers", 1, "--data", rows)
    assert result.exit_code == 1 and "exists already" in result.stderr
    assert not (tmp_path / "slim").exists()


@pytest.mark.parametrize("usual", ["text", "sentence"])
def test_the_usual_column_of_several_is_read(leaner, source, tmp_path, usual):
    texts = documents(20, 1)["text"]
    Dataset.from_dict({"module": ["x"] * 20, usual: texts}).to_parquet(tmp_path / "rows.parquet")
    result = leaner("slim", source, tmp_path / "slim", "--layers", 2, "--data", tmp_path / "rows.parquet")
    assert result.exit_code == 0, result.output


def test_rows_without_content_are_left_out(leaner, source, tmp_path):
    texts = [text if index % 2 else "" for index, text in enumerate(documents(40, 1)["text"])]
    Dataset.from_dict({"text": texts}).to_parquet(tmp_path / "rows.parquet")
    result = leaner("slim", source, tmp_path / "slim", "--layers", 2, "--data", tmp_path / "rows.parquet")
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "slim" / "slim.json").read_text())
    assert document["chosen_by"] == document["held_out"] == 10


def test_a_sentence_encoder_loses_its_pooler(leaner, source, tmp_path, monkeypatch):
    """Which its own pooling does not read; another encoder keeps it."""
    documents(40, 1).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "modules.json").write_text("[]")
    for files, kept in (({"modules.json": tmp_path / "modules.json"}, False), ({}, True)):
        monkeypatch.setattr(command, "sentence_transformers_files", lambda name, files=files: files)
        folder = tmp_path / str(kept)
        result = leaner("slim", source, folder, "--layers", 2, "--data", tmp_path / "rows.parquet")
        assert result.exit_code == 0, result.output
        assert (folder / "modules.json").is_file() != kept
        assert any("pooler" in name for name in load_file(folder / "model.safetensors")) == kept


def test_the_hub_is_asked_before_any_work(leaner, source, tmp_path, monkeypatch):
    """What it refuses loses no search."""

    def refuse(name):
        raise ValueError("the Hub refused")

    documents(40, 1).to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(command, "weights_sha256", refuse)
    monkeypatch.setattr(command, "best_slims", pytest.fail)
    result = leaner("slim", source, tmp_path / "slim", "--layers", 2, "--data", tmp_path / "rows.parquet")
    assert result.exit_code == 1 and "the Hub refused" in result.output
