"""Learning from a teacher: its logits and hidden states, for every task of the recipes; bad input."""

import json

import numpy as np
import pytest
import torch
import transformers
from modeling_leaner.training import train
from modeling_leaner.training.running.loading import prepare
from modeling_leaner.training.running.trainer import LeanTrainer
from modeling_leaner.training.settings import parse
from modeling_leaner.training.tasks.base import row_generators
from modeling_leaner.training.tasks.distillation import divergence, mapped_layers
from torch.nn import functional as F
from training_data import documents, labelled, merged, pictures, read_lines, write_shape

from modeling_leaner.conversion import load_lean
from modeling_leaner.hub import load_processors


RUN = """--max_steps 4 --per_device_train_batch_size 8 --learning_rate 3e-3 --eval_strategy no --save_strategy no
--disable_tqdm true --preprocessing_workers 1 --logging_steps 1 --use_cpu true --dropout 0""".split()
FEW = ("--distill_top_k", "7")  # of a token's logits
CAUSAL = ("gpt", "byte-bpe", documents, "--max_length 24")
TASKS = {  # family, tokenizer, rows, settings
    "image-classification": ("vit", None, pictures, "--crop_padding 2 --horizontal_flip true"),
    "sequence-classification": (
        "bert",
        "wordpiece",
        lambda *size: labelled(*size, ("sentence",), 3),
        "--max_length 24",
    ),
    "causal-lm": CAUSAL,
    "masked-lm": ("bert", "wordpiece", documents, "--max_length 24"),
}


def words_of(folder, task):
    """The settings of a run of a task, without shape and teacher."""
    _, _, make, settings = TASKS[task]
    make(40, 0).to_parquet(folder / "train.parquet")
    make(12, 1).to_parquet(folder / "validation.parquet")
    files = [f"{split}={folder / f'{split}.parquet'}" for split in ("train", "validation")]
    return [*RUN, "--task", task, *settings.split(), "--output_dir", str(folder / "run"), "--data_files", *files]


def save_model(folder, task, words, seed, **changes):
    """A model with the task's head and its tokenizer or image processor."""
    family, tokenizer, *_ = TASKS[task]
    words = [*words, "--shape", write_shape(family, folder.parent, initializer_range=0.3, **changes)]
    if tokenizer is not None:
        words += ["--tokenizer", tokenizer]
    prepared = prepare(parse(None, words))
    torch.manual_seed(seed)
    model = getattr(transformers, f"AutoModel{prepared.task.head}").from_config(prepared.task.config)
    model.save_pretrained(folder)
    prepared.task.processing.save_pretrained(folder)
    return folder


class Pair:
    """A teacher of two layers and a student of one."""

    def __init__(self, folder, task):
        self.folder = folder
        self.words = words_of(folder, task)
        self.teacher = save_model(folder / "teacher", task, self.words, 0)
        self.student = save_model(folder / "student", task, self.words, 1, num_hidden_layers=1)

    def prepare(self, *words, shape=None):
        given = ["--shape", str(shape or self.student), "--teacher", str(self.teacher), *FEW]
        return prepare(parse(None, merged([*self.words, *given], list(map(str, words)))))


@pytest.fixture(params=TASKS)
def pair(request, tmp_path):
    return Pair(tmp_path, request.param)


@pytest.fixture
def sentences(tmp_path):
    return Pair(tmp_path, "sequence-classification")


def losses(prepared, model, rows=range(5)):
    """The loss of a training batch as the trainer asks for it, once per weight: of the logits, of the states."""
    task = prepared.task
    batch = task.collate([prepared.train[row] for row in rows])
    batch = task.transform(batch, row_generators(rows, 3), training=True)
    with torch.no_grad():
        return task.loss(model.train(), batch)[0].item()


class TestWhatIsLearned:
    def test_its_own_teacher_has_nothing_to_learn(self, pair):
        """So logits and states of each row are where the student's are: same masks and crops, no padding."""
        teacher = load_lean(pair.teacher)
        student = load_lean(pair.student)
        for weights in (["--distill_hidden", 0], ["--distill_logits", 0, "--distill_hidden", 1]):
            prepared = pair.prepare("--distill_task", 0, *weights, shape=pair.teacher)
            assert losses(prepared, teacher, (4, 0, 7, 11)) == pytest.approx(0, abs=1e-4)
            if weights[-1] == 0:
                assert losses(prepared, student) > 0.01

    def test_the_weights(self, sentences):
        student = load_lean(sentences.student)
        names = ("--distill_task", "--distill_logits", "--distill_hidden")
        logits, states, task_and_logits, mixed = (
            losses(sentences.prepare(*(word for named in zip(names, weights) for word in named)), student)
            for weights in ([0, 1, 0], [0, 0, 1], [1, 1, 0], [0.5, 2, 3])
        )
        task = task_and_logits - logits
        assert mixed == pytest.approx(0.5 * task + 2 * logits + 3 * states, rel=1e-4)

    def test_tokens_that_are_not_kept_count_as_one(self):
        logits = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
        logits[0] = logits[0].sort(descending=True).values
        parts = F.softmax(logits, dim=-1)
        expected, predicted = torch.cat([parts[..., :2], parts[..., 2:].sum(-1, keepdim=True)], dim=-1)
        distance = (expected * (expected / predicted).log()).sum(1).mean()
        assert torch.allclose(divergence(*logits, 1.0, kept=2), distance, atol=1e-6)

    def test_layers(self, tmp_path):
        assert mapped_layers(str(tmp_path), [], 3, 6) == [1, 3, 5]
        assert mapped_layers(str(tmp_path), [], 4, 6) == [0, 2, 3, 5]
        assert mapped_layers(str(tmp_path), [0, 4, 5], 3, 6) == [0, 4, 5]
        for named in ([0, 1], [0, 1, 6]):
            with pytest.raises(ValueError, match="expected a layer of 0..5 for each of 3"):
                mapped_layers(str(tmp_path), named, 3, 6)


class TestRuns:
    def test_a_run(self, pair):
        """Through the Trainer; held-out rows are scored as without a teacher."""
        words = ["--shape", str(pair.student), "--teacher", str(pair.teacher), *FEW, "--distill_hidden", "0.5"]
        train.main([*pair.words, *words])
        results = json.loads((pair.folder / "run" / "results.json").read_text())
        assert np.isfinite(results["metrics"]["eval_loss"])
        assert len([line for line in read_lines(pair.folder / "run") if "loss" in line]) == 4

    def test_batches_of_a_step(self, sentences):
        """Two halves of a batch give the gradient of the whole one."""
        norms = []
        for size, steps in ((8, 1), (4, 2)):
            given = ["--shape", sentences.student, "--teacher", sentences.teacher, "--distill_task", 0]
            given += ["--per_device_train_batch_size", size, "--gradient_accumulation_steps", steps]
            given += ["--max_steps", 1, "--output_dir", sentences.folder / f"run{steps}"]
            train.main(merged(sentences.words, list(map(str, given))))
            norms.append(read_lines(sentences.folder / f"run{steps}")[0]["grad_norm"])
        assert norms[0] == pytest.approx(norms[1], rel=1e-3)

    def test_the_last_step_of_an_epoch_has_fewer_batches(self, sentences, monkeypatch):
        """40 rows are five batches of 8, of which the third step has one: its mean is not halved."""
        means, losses = [], []
        compute_loss, training_step = LeanTrainer.compute_loss, LeanTrainer.training_step

        def mean_of_batch(self, model, *given, **named):
            loss = compute_loss(self, model, *given, **named)
            means.extend([loss.item()] if model.training else [])
            return loss

        def loss_of_step(self, *given, **named):
            losses.append(training_step(self, *given, **named))
            return losses[-1]

        monkeypatch.setattr(LeanTrainer, "compute_loss", mean_of_batch)
        monkeypatch.setattr(LeanTrainer, "training_step", loss_of_step)
        given = ["--shape", sentences.student, "--teacher", sentences.teacher, "--max_steps", -1]
        given += ["--num_train_epochs", 1, "--gradient_accumulation_steps", 2]
        train.main(merged(sentences.words, list(map(str, given))))
        assert [round(mean / loss.item()) for mean, loss in zip(means, losses)] == [2, 2, 2, 2, 1]

    @pytest.mark.parametrize("pair", ["masked-lm", "causal-lm"], indirect=True)
    def test_of_transformers_own_model(self, pair):
        """Which scores hidden and other tokens alike while it trains."""
        shape = write_shape(TASKS[pair.words[pair.words.index("--task") + 1]][0], pair.folder)
        words = ["--shape", shape, "--teacher", str(pair.teacher), "--implementation", "transformers"]
        train.main([*pair.words, *words])
        losses = [line["loss"] for line in read_lines(pair.folder / "run") if "loss" in line]
        assert len(losses) == 4 and np.isfinite(losses).all()

    @pytest.mark.parametrize("pair", ["causal-lm"], indirect=True)
    def test_of_a_stream(self, pair):
        words = ["--shape", str(pair.student), "--teacher", str(pair.teacher), "--streaming", "true"]
        train.main([*pair.words, *words])
        losses = [line["loss"] for line in read_lines(pair.folder / "run") if "loss" in line]
        assert len(losses) == 4 and np.isfinite(losses).all()


def test_a_shape_without_weights_reads_what_its_teacher_reads(sentences):
    shape = write_shape("bert", sentences.folder, vocab_size=300)
    prepared = sentences.prepare(shape=shape)
    assert prepared.task.processing.get_vocab() == load_processors(str(sentences.teacher))[0].get_vocab()


class TestRefused:
    def refuse(self, pair, message, *words):
        with pytest.raises(ValueError, match=message):
            pair.prepare(*words)

    @pytest.mark.parametrize("pair", ["causal-lm"], indirect=True)
    def test_a_student_without_all_logits(self, pair):
        """Of a chunked loss the last chunk's would be taken for all; states alone are learned all the same."""
        path = pair.student / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"loss_chunk_size": 4}))
        self.refuse(pair, "loss_chunk_size: not with distill_logits")
        prepared = pair.prepare("--distill_logits", 0, "--distill_hidden", 1)
        batch = prepared.task.collate([prepared.train[row] for row in range(5)])
        _, outputs = prepared.task.loss(load_lean(pair.student).train(), batch)
        assert outputs.logits is None

    @pytest.mark.parametrize("pair", ["image-classification"], indirect=True)
    def test_images(self, pair):
        processor = json.loads((pair.teacher / "preprocessor_config.json").read_text())
        (pair.teacher / "preprocessor_config.json").write_text(json.dumps(processor | {"image_mean": [0.1] * 3}))
        self.refuse(pair, "another image_mean than the student")
