"""The task embedding: a student's vectors turn to the teacher's; pairs are scored."""

import json
import shutil

import pytest
import torch
from command import invoked, refused
from datasets import Dataset
from encoders import save_sentence_encoder
from modeling_leaner.training import train
from modeling_leaner.training.tasks import distillation
from training_data import documents, merged, read_lines, save_encoder
from transformers import AutoModel, AutoTokenizer


TRAIN = """--task embedding --max_steps 30 --per_device_train_batch_size 16 --learning_rate 3e-3 --eval_strategy no
--save_strategy no --disable_tqdm true --preprocessing_workers 1 --logging_steps 1 --use_cpu true --dropout 0
--max_length 24 --split_sentences true""".split()


def sentences(count, seed):
    """Documents of several sentences."""
    parts = documents(4 * count, seed, words=7)["text"]
    return Dataset.from_dict({"text": [" ".join(parts[4 * row : 4 * row + 4]) for row in range(count)]})


@pytest.fixture
def folders(tmp_path):
    """A teacher, a student that is to learn from it, and rows."""
    sentences(40, 0).to_parquet(tmp_path / "train.parquet")
    sentences(10, 1).to_parquet(tmp_path / "validation.parquet")
    save_encoder(tmp_path / "teacher", initializer_range=0.2)
    save_encoder(tmp_path / "student", seed=1, num_hidden_layers=1, initializer_range=0.2)
    return tmp_path


def words_of(folders, *words):
    """The words that train the student."""
    given = ["--shape", folders / "student", "--teacher", folders / "teacher", "--output_dir", folders / "run"]
    files = ["--data_files", f"train={folders / 'train.parquet'}", f"validation={folders / 'validation.parquet'}"]
    return merged(list(map(str, [*TRAIN, *given, *files])), list(map(str, words)))


def learn(folders, *words):
    """Trains the student; returns the results."""
    train.main(words_of(folders, *words))
    return json.loads((folders / "run" / "results.json").read_text())


def pooled(folder, texts):
    """The vectors by transformers alone, one text at a time."""

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0) for text in texts]
    return torch.nn.functional.normalize(torch.stack(states), dim=-1)


def test_the_student_turns_to_the_teacher(folders):
    results = learn(folders)
    assert results["main_metric"] == "cosine" and results["architecture"] == "LeanBERTModel"
    losses = [line["loss"] for line in read_lines(folders / "run") if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]
    held_out = documents(40, 1, words=7)["text"]  # the parts of `sentences(10, 1)`
    cosines = (pooled(folders / "run", held_out) * pooled(folders / "teacher", held_out)).sum(dim=1)
    assert results["metrics"]["eval_cosine"] == pytest.approx(cosines.mean().item(), abs=1e-4)
    assert results["metrics"]["eval_loss"] == pytest.approx(1 - cosines.mean().item(), abs=1e-3)
    assert results["rows"] == len(held_out)


def test_the_teacher_computes_what_is_trained_on_in_the_precision_of_the_run(folders, monkeypatch):
    """The vectors of training rows differ from those of float32; held-out ones, which score, do not."""
    seen = {}
    original = distillation.Embedding.loss

    def noted(self, model, inputs):
        seen.setdefault((self.arguments.bf16, model.training), inputs["labels"].clone())  # of the first batch
        return original(self, model, inputs)

    monkeypatch.setattr(distillation.Embedding, "loss", noted)
    for precise in ("false", "true"):
        learn(folders, "--max_steps", 2, "--bf16", precise)
        shutil.rmtree(folders / "run")
    assert torch.equal(seen[False, False], seen[True, False])
    off = (seen[False, True] - seen[True, True]).abs().max()
    assert 1e-5 < off < 0.05 * seen[False, True].abs().max()


def test_of_a_stream(folders):
    results = learn(folders, "--streaming", "true", "--max_steps", 4)
    assert results["train"]["steps"] == 4 and -1 <= results["metrics"]["eval_cosine"] <= 1
    assert invoked("inspect", folders / "run", "--rows", 2).exit_code == 0


def test_a_run_is_continued(folders):
    """Stopped in the middle and resumed, the weights are those of a run without a stop."""
    whole = learn(folders, "--save_strategy", "steps", "--save_steps", 15)
    weights = (folders / "run" / "model.safetensors").read_bytes()
    for name in ("results.json", "model.safetensors", "README.md"):
        (folders / "run" / name).unlink()
    shutil.rmtree(folders / "run" / "checkpoint-30")
    resumed = learn(folders, "--save_strategy", "steps", "--save_steps", 15, "--resume", "true")
    assert resumed["metrics"] == whole["metrics"]
    assert (folders / "run" / "model.safetensors").read_bytes() == weights


class TestRefused:
    """One line each, before a folder is made."""

    def test_teacher_with_another_tokenizer(self, folders):
        save_encoder(folders / "bytes", words="byte-bpe")
        words = ["--teacher", folders / "bytes", "--distill_hidden", 1]  # vectors may be learned, states of tokens not
        refused("teacher: .*another tokenizer than the student", "train", *words_of(folders, *words))
        assert not (folders / "run").exists()

    @pytest.mark.parametrize("model", ["teacher", "shape"])
    def test_models_that_pool_by_the_first_token(self, folders, model):
        """The vectors of a run are means over tokens."""
        encoder = save_sentence_encoder(folders / "cls")
        (encoder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
        refused(f"{model}: .* pools by the first token", "train", *words_of(folders, f"--{model}", encoder))
        assert not (folders / "run").exists()

    def test_texts_without_a_sentence(self, folders):
        Dataset.from_dict({"text": ["too short"] * 40}).to_parquet(folders / "train.parquet")
        refused("text holds no sentence", "train", *words_of(folders))
        assert not (folders / "run").exists()
