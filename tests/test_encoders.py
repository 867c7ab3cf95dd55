"""`leaner encoders`: sentence encoders beside their parent; what is scored, what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from datasets import Dataset
from encoders import compare_by_words, cut_and_recover, run_leaner, save_sentence_encoder, write_rows
from modeling_leaner.training.experiments import encoder_rows, encoder_scores, encoders
from modeling_leaner.training.records import EncoderComparison
from modeling_leaner.training.running import evaluation
from scipy import stats
from training_data import LOCAL_DATA, SIZES, labelled, save_encoder
from transformers import AutoModel, AutoTokenizer

from modeling_leaner import LeanBERTForSequenceClassification, LeanGPTConfig, LeanViTConfig, LeanViTModel


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Parent, cut and run, and the words of --data."""
    folder = tmp_path_factory.mktemp("encoders")
    return cut_and_recover(folder), write_rows(folder / "rows")


@pytest.fixture(scope="module")
def compared(made, tmp_path_factory):
    """What `leaner encoders` printed and wrote."""
    folders, rows = made
    output = tmp_path_factory.mktemp("output") / "comparison.json"
    words = [*folders, "--data", *rows, "--test", "--rounds", 3, "--output", output]
    result = compare_by_words(*words)
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(output.read_text())


def vectors_of(folder, texts, length=24):
    """By transformers alone, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for text in texts:
            tokens = tokenizer(text, truncation=True, max_length=length, padding=False, return_tensors="pt")
            found.append(model(**tokens).last_hidden_state[0].mean(dim=0).numpy())
    found = np.stack(found).astype(float)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_the_last_line_is_the_document(compared):
    printed, written = compared
    document = json.loads(printed.splitlines()[-1])
    assert document == written
    read = EncoderComparison.model_validate(document)
    assert [model.model for model in read.models] == ["parent", "cut", "run"]
    assert read.max_length == 24 and read.rounds == 3 and read.timed_length == 32


def test_sizes(compared, made):
    parent, cut, run = compared[1]["models"]
    assert [len(model["heads_per_layer"]) for model in (parent, cut, run)] == [3, 2, 2]
    kept = next(each["after"] for each in json.loads((made[0][1] / "slim.json").read_text())["cuts"])
    assert parent["kept_layers"] is None and cut["kept_layers"] == run["kept_layers"] == kept
    layer = sum(value.numel() for value in AutoModel.from_pretrained(made[0][0]).layers[0].parameters())
    for size in ("parameters", "body_parameters"):
        assert parent[size] - cut[size] == layer and cut[size] == run[size]
    embeddings = {model["parameters"] - model["body_parameters"] for model in (parent, cut, run)}
    assert len(embeddings) == 1


def test_scores_by_another_way(compared, made):
    """Each score from vectors that transformers alone makes."""
    (parent, _, run), rows = made
    folders = dict(word.split("=") for word in rows)
    own = compared[1]["models"][2]
    for name, split in (("stsb", "validation"), ("stsb_test", "test")):
        pairs = Dataset.from_parquet(f"{folders['stsb']}/{split}.parquet")
        cosines = (vectors_of(run, pairs["sentence1"]) * vectors_of(run, pairs["sentence2"])).sum(axis=1)
        assert own["scores"][name] == pytest.approx(stats.spearmanr(cosines, pairs["label"]).statistic, abs=5e-3)
    all_rows = Dataset.from_parquet(f"{folders['qnli']}/validation.parquet")
    questions = all_rows.filter(lambda row: row["label"] == 0)
    pool = list(dict.fromkeys(all_rows["sentence"]))
    assert len(pool) > len(set(questions["sentence"]))
    likeness = vectors_of(run, questions["question"]) @ vectors_of(run, pool).T
    ranks = []
    for row, sentence in zip(likeness, questions["sentence"]):
        ranks.append(1 + (row > row[pool.index(sentence)] + 1e-9).sum())
    expected = np.mean([1 / rank if rank <= 10 else 0.0 for rank in ranks])
    assert own["scores"]["qnli"] == pytest.approx(expected, abs=1e-2)
    about = compared[1]["data"]["qnli"]
    assert (about["rows"], about["documents"]) == (len(questions), len(pool))
    held_out = Dataset.from_parquet(folders["sentences"])["text"]
    cosine = (vectors_of(run, held_out) * vectors_of(parent, held_out)).sum(axis=1).mean()
    assert own["scores"]["cosine"] == pytest.approx(cosine, abs=1e-5)
    assert compared[1]["models"][0]["scores"]["cosine"] == pytest.approx(1)


def test_the_correlation_is_that_of_leaner_evaluate(compared, made):
    (_, cut, _), rows = made
    path = f"validation={rows[0].partition('=')[2]}/validation.parquet"
    columns = ["--text_column", "sentence1", "--text_pair_column", "sentence2", "--data_files", path]
    settings = ["--task", "embedding", "--max_length", "24", "--hardware", "cpu"]
    result = evaluation.evaluate(str(cut), [*settings, *columns])
    assert compared[1]["models"][1]["scores"]["stsb"] == pytest.approx(result["metrics"]["eval_spearman"], abs=1e-6)


def test_a_model_beside_itself_does_not_differ(made):
    (parent, _, _), rows = made
    result = compare_by_words(parent, parent, "--data", *rows, "--rounds", 3)
    assert result.exit_code == 0, result.output
    own = json.loads(result.stdout.splitlines()[-1])["models"][1]
    assert own["scores"]["cosine"] == pytest.approx(1)
    assert all(each == {"value": 0, "low": 0, "high": 0} for each in own["differences"].values())
    assert own["differences"].keys() == {"stsb", "qnli", "sst2"}  # STS-B's test was not asked for


def test_intervals_are_paired():
    """Two encoders that differ by the same amount on every row: no spread is left, however the rows differ."""
    rng = np.random.default_rng(1)
    shares = rng.uniform(size=50)
    rows = encoder_rows.EncoderRows({}, None, None, None, {})
    own = encoder_scores.EncoderOutput(row_scores={"qnli": shares + 0.1, "cosine": shares})
    found = encoder_scores.differences(own, encoder_scores.EncoderOutput(row_scores={"qnli": shares}), rows)
    assert found.keys() == {"qnli"}
    assert found["qnli"].low == pytest.approx(0.1) and found["qnli"].high == pytest.approx(0.1)


def test_intervals_of_correlations():
    """A better encoder's interval lies above 0; it holds the difference."""
    rng = np.random.default_rng(2)
    numbers = rng.normal(size=200)
    pairs = encoder_rows.Pairs([], [], numbers)
    rows = encoder_rows.EncoderRows({"stsb": pairs}, None, None, None, {})
    own = encoder_scores.EncoderOutput(pair_cosines={"stsb": numbers + 0.1 * rng.normal(size=200)})
    parent = encoder_scores.EncoderOutput(pair_cosines={"stsb": numbers + rng.normal(size=200)})
    found = encoder_scores.differences(own, parent, rows)["stsb"]
    assert 0 < found.low < found.value < found.high < 1


def test_the_probe_reads_the_vectors():
    """Vectors that hold the label are told apart on rows that it was not fitted on; others are not."""
    rows = encoder_rows.Labelled(["a", "b"] * 20, np.array([0, 1] * 20), ["b", "a"] * 10, np.array([1, 0] * 10))
    noise = np.random.default_rng(0)

    def encode(texts):
        return np.array([[text == "a", 0.5, noise.normal()] for text in texts], dtype=float)

    assert encoder_scores.probe_hits(encode, rows).mean() == 1
    assert encoder_scores.probe_hits(lambda texts: np.ones((len(texts), 3)), rows).mean() == 0.5


def test_speed_is_the_parents_time_over_the_models(monkeypatch):
    """Round by round: a slow round of both does not count."""
    taken = np.array([[1.0, 10.0, 1.0], [0.5, 5.0, 0.5]])
    monkeypatch.setattr(encoders, "take_turns", lambda calls, rounds: taken)
    monkeypatch.setattr(encoders, "inputs", lambda *words: None)
    pair = [encoders.Encoder(name, None, None) for name in "ab"]
    parent, own = encoders.times_of(pair, 3)
    assert own["64"].speed == own["64"].speed_low == own["64"].speed_high == 2 and parent["64"].speed == 1
    assert own["64"].milliseconds == 500 and own["64"].sentences_per_second == 128
    assert own["1"].sentences_per_second == 2


def test_heads_that_differ_between_layers(made, tmp_path):
    (parent, _, _), rows = made
    words = ["--total-heads", 7, "--lean", "--no-training", "--data", tmp_path / "rows.parquet"]
    labelled(60, 0, ("text",), 2).remove_columns("label").to_parquet(tmp_path / "rows.parquet")
    assert run_leaner("slim", parent, tmp_path / "narrow", *words).exit_code == 0
    result = compare_by_words(parent, tmp_path / "narrow", "--data", *rows, "--rounds", 3)
    assert result.exit_code == 0, result.output
    own = json.loads(result.stdout.splitlines()[-1])["models"][1]
    assert sum(own["heads_per_layer"]) == 7 and own["kept_layers"] is None
    assert ", ".join(map(str, own["heads_per_layer"])) in result.stdout


class TestRefused:
    """One line each; nothing is written."""

    @pytest.fixture
    def refuse(self, made, tmp_path):
        def refuse(message, *words, data=None):
            rows = data or made[1]
            output = tmp_path / "comparison.json"
            result = compare_by_words(*words, "--data", *rows, "--rounds", 3, "--output", output)
            assert result.exit_code == 1 and message in result.stderr.splitlines()[-1], result.stderr
            assert not output.exists()

        return refuse

    def test_a_model_with_a_head(self, refuse, made, tmp_path):
        parent = made[0][0]
        LeanBERTForSequenceClassification.from_pretrained(parent).save_pretrained(tmp_path / "head")
        AutoTokenizer.from_pretrained(parent).save_pretrained(tmp_path / "head")
        refuse("head: LeanBERTForSequenceClassification has a head; expected a", parent, tmp_path / "head")

    def test_a_model_of_images(self, refuse, made, tmp_path):
        config = LeanViTConfig(**SIZES, image_size=16, patch_size=8)
        LeanViTModel(config).save_pretrained(tmp_path / "images")
        refuse("images: LeanViTModel reads images", made[0][0], tmp_path / "images")

    def test_no_tokenizer(self, refuse, made, tmp_path):
        shutil.copytree(made[0][0], tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*", "vocab*"))
        refuse("mute: no tokenizer files; expected a sentence encoder with its", made[0][0], tmp_path / "mute")

    def test_another_vector_size(self, refuse, made, tmp_path):
        save_encoder(tmp_path / "wide", hidden_size=48, num_attention_heads=4)
        refuse("wide: vectors of 48 numbers, those of parent have 32", made[0][0], tmp_path / "wide")

    def test_another_tokenizer(self, refuse, made, tmp_path):
        save_encoder(tmp_path / "bytes", words="byte-bpe")
        refuse("bytes: its tokenizer is not that of parent", made[0][0], tmp_path / "bytes")

    def test_another_pooling(self, refuse, made, tmp_path):
        save_sentence_encoder(tmp_path / "first")
        pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
        (tmp_path / "first" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        refuse("1_Pooling/config.json: pooling_mode_cls_token", made[0][0], tmp_path / "first")

    def test_another_module(self, refuse, made, tmp_path):
        save_sentence_encoder(tmp_path / "dense")
        (tmp_path / "dense" / "modules.json").write_text('[{"path": "2_Dense", "type": "models.Dense"}]')
        refuse("modules.json: Dense; expected no modules but", made[0][0], tmp_path / "dense")

    def test_fewer_positions(self, refuse, made, tmp_path):
        save_encoder(tmp_path / "short", max_position_embeddings=16)
        refuse("short: reads 16 tokens, parent up to 24", made[0][0], tmp_path / "short")

    def test_a_causal_model(self, refuse, made, tmp_path):
        from modeling_leaner import LeanGPTModel

        config = LeanGPTConfig(**(SIZES | {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}))
        LeanGPTModel(config).save_pretrained(tmp_path / "gpt")
        AutoTokenizer.from_pretrained(made[0][0]).save_pretrained(tmp_path / "gpt")
        refuse("gpt: LeanGPTModel is a lean_gpt; expected a lean_bert, as", made[0][0], tmp_path / "gpt")

    def test_pairs_without_labels(self, refuse, made, tmp_path):
        rows = labelled(9, 0, ("sentence1", "sentence2"), 0)
        rows.remove_columns("label").to_parquet(tmp_path / "validation.parquet")
        data = [f"stsb={tmp_path}", *made[1][1:]]
        refuse("no labels, expected a column label or score, found sentence1, sentence2", *made[0][:2], data=data)

    def test_hidden_labels(self, refuse, made, tmp_path):
        rows = labelled(9, 0, ("sentence1", "sentence2"), 0).map(lambda row: {"label": -1.0})
        rows.to_parquet(tmp_path / "validation.parquet")
        refuse("label: all are -1, which hides the labels", *made[0][:2], data=[f"stsb={tmp_path}", *made[1][1:]])

    def test_a_label_that_is_no_number(self, refuse, made, tmp_path):
        rows = Dataset.from_dict({"sentence1": ["a"] * 3, "sentence2": ["b"] * 3, "label": [1.0, None, 2.0]})
        rows.to_parquet(tmp_path / "validation.parquet")
        refuse("label, row 2: an empty cell (in a csv", *made[0][:2], data=[f"stsb={tmp_path}", *made[1][1:]])

    @pytest.mark.parametrize(
        "word, message",
        [
            ("mnli=x", "--data mnli=x: expected NAME=PATH with a NAME of stsb, qnli, sst2, sentences"),
            ("stsb", "--data stsb: expected NAME=PATH"),
            ("sst2=nowhere", "--data sst2=nowhere: no such file or folder"),
        ],
    )
    def test_words_of_data(self, refuse, made, word, message):
        refuse(message, *made[0][:2], data=[word])

    def test_rows_that_are_missing(self, refuse, made, tmp_path):
        """The name that --data calls them by is said, whether a copy was given or not."""
        (stsb, qnli, *others) = made[1]
        missing = "qnli: dataset nyu-mll/glue: not found"
        refuse(missing, *made[0][:2], data=[stsb, *others])
        refuse("; --data qnli=PATH names a local copy", *made[0][:2], data=[stsb, *others])
        refuse(f"--data stsb={tmp_path}: {tmp_path}: no data files", *made[0][:2], data=[f"stsb={tmp_path}", qnli])

    def test_a_file_for_several_splits(self, refuse, made, tmp_path):
        """The probe would be scored on the rows that it is fitted on."""
        (tmp_path / "sst2.parquet").touch()
        data = [f"sst2={tmp_path}/sst2.parquet"]
        refuse("a file, expected a folder with the splits of sst2", *made[0][:2], data=data)

    def test_data_given_twice(self, refuse, made):
        refuse("--data: stsb is given twice", *made[0][:2], data=[made[1][0], made[1][0]])

    def test_a_file_that_is_there(self, made, tmp_path):
        (tmp_path / "there.json").write_text("{}")
        words = [*made[0][:2], "--data", *made[1], "--output", tmp_path / "there.json"]
        result = compare_by_words(*words)
        assert result.exit_code == 1 and "there.json exists already" in result.stderr
        assert (tmp_path / "there.json").read_text() == "{}"


GLUE = LOCAL_DATA / "glue"


@pytest.mark.skipif(not (GLUE / "qnli").is_dir(), reason="no local copy of GLUE beside this clone")
def test_the_rows_of_glue():
    """2,702 questions among 3,911 sentences; 1,500 and 1,379 pairs."""
    given = {name: str(GLUE / name) for name in ("stsb", "qnli", "sst2")}
    about = encoder_rows.load_rows(given, ["stsb", "stsb_test", "qnli", "sst2"]).records
    assert (about["qnli"].rows, about["qnli"].documents) == (2702, 3911)
    assert (about["stsb"].rows, about["stsb_test"].rows) == (1500, 1379)
    assert (about["sst2"].rows, about["sst2_train"].rows) == (872, encoder_rows.PROBE_ROWS)
