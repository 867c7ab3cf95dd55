"""Settings, run folders, bad input: every refusal is one line that names file, column and row, or key."""

import json
import math
import re
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from command import leaner
from datasets import ClassLabel, Dataset
from modeling_leaner.training import settings, train
from modeling_leaner.training.data import sources
from modeling_leaner.training.data.tokenizer import train_tokenizer
from modeling_leaner.training.running import evaluation, loading
from modeling_leaner.training.running.run_folder import whole_checkpoints
from modeling_leaner.training.running.trainer import LeanTrainer
from safetensors.torch import load_file, save_file
from training_data import documents, labelled, merged, pictures, read_lines, write_shape

from modeling_leaner import LeanGPTForCausalLM
from modeling_leaner.conversion import convert, convert_checkpoint


FEW = """--max_steps 4 --per_device_train_batch_size 8 --eval_strategy no --save_strategy no --disable_tqdm true
--preprocessing_workers 1 --logging_steps 1 --use_cpu true""".split()


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Trains on given rows; returns status, stderr and the folder, whose figure is empty: drawing it takes longest."""
    monkeypatch.setattr(train, "plot", lambda metrics, output, *labels: output.touch())

    def run(task, family, rows, *words, held_out=None, shape=None, few=FEW):
        files = []
        for split, part in (("train", rows), ("validation", rows if held_out is None else held_out)):
            part.to_parquet(tmp_path / f"{split}.parquet")
            files.append(f"{split}={tmp_path / split}.parquet")
        own = family == "vit" or "--tokenizer" in words or shape not in (None, str(tmp_path / f"{family}.json"))
        tokenizer = [] if own else ["--tokenizer", "wordpiece"]
        shape = shape or write_shape(family, tmp_path)
        line = ["--task", task, "--shape", shape, "--output_dir", str(tmp_path / "run"), *tokenizer, *few]
        capsys.readouterr()
        try:
            train.main(merged([*line, "--data_files", *files], words))
            status = 0
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().err, tmp_path / "run"

    return run


def refused(result, *parts, left=False):
    """One line that says all `parts`; unless `left`, the folder of the run is not even made."""
    status, said, folder = result
    lines = [line for line in said.splitlines() if line.startswith("leaner train: ")]
    assert status == 1 and len(lines) == 1, said
    assert "Traceback" not in said
    for part in parts:
        assert part in lines[0], lines[0]
    assert left or not folder.exists()
    assert not (folder / "results.json").exists() and not (folder / "model.safetensors").exists()


CLASSIFY = ("sequence-classification", "bert")


def test_a_new_model_has_room_for_the_tokenizer_that_is_given(run, tmp_path):
    rows = labelled(24, 0, ("text",), 2)
    train_tokenizer(rows["text"], "wordpiece", 200, 24, "bert").save_pretrained(tmp_path / "tokenizer")
    shape = write_shape("bert", tmp_path, vocab_size=50)
    status, said, folder = run(*CLASSIFY, rows, "--tokenizer", str(tmp_path / "tokenizer"), shape=shape)
    assert status == 0, said
    size = len(json.loads((tmp_path / "tokenizer/tokenizer.json").read_text())["model"]["vocab"])
    assert 50 < size == json.loads((folder / "config.json").read_text())["vocab_size"]


def test_numbers_that_do_not_begin_at_0_are_names(run):
    stars = [row % 5 + 1 for row in range(24)]
    rows = Dataset.from_dict({"text": [f"text {row}" for row in range(24)], "label": stars})
    status, said, folder = run(*CLASSIFY, rows)
    assert status == 0, said
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {str(index): str(index + 1) for index in range(5)}
    document = evaluation.evaluate(str(folder), [])
    assert document["metrics"] == json.loads((folder / "results.json").read_text())["metrics"]


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_no_number(run, monkeypatch, what):
    """It leaves no checkpoint, also if the loss is finite and the weights after the step are not."""
    few = merged(FEW, ["--save_strategy", "steps", "--save_steps", "1"])
    original = LeanTrainer.training_step

    def poisoned(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        if self.state.global_step == 1 and what == "gradient":
            next(self.model.parameters()).grad.fill_(math.inf)
        return loss

    plain = LeanTrainer.compute_loss

    def poisoned_loss(self, *args, **kwargs):
        loss = plain(self, *args, **kwargs)
        return loss * math.nan if self.state.global_step == 1 and what == "loss" else loss

    monkeypatch.setattr(LeanTrainer, "training_step", poisoned)
    monkeypatch.setattr(LeanTrainer, "compute_loss", poisoned_loss)
    result = run("masked-lm", "bert", documents(16, 0), few=few)
    refused(result, "not finite at step 2", "checkpoint-1", left=True)
    assert [path.name for path in whole_checkpoints(result[2])] == ["checkpoint-1"]


def test_a_checkpoint_that_is_saved_twice_is_whole(run):
    """A step of `checkpoint_steps` that ends an epoch: three steps of 8 rows."""
    rows = Dataset.from_dict({"text": [f"text {row}" for row in range(24)], "label": [row % 2 for row in range(24)]})
    status, said, folder = run(*CLASSIFY, rows, "--checkpoint_steps", "3", "--save_strategy", "epoch")
    assert status == 0, said
    assert [path.name for path in whole_checkpoints(folder)] == ["checkpoint-3", "checkpoint-4"]


def test_a_run_is_not_overwritten(run):
    rows = documents(16, 0)
    assert run("masked-lm", "bert", rows)[0] == 0
    status, said, folder = run("masked-lm", "bert", rows)
    assert status == 1 and "holds a run already" in said and "--resume" in said
    assert (folder / "results.json").is_file()


@pytest.mark.parametrize("task", ["masked-lm", "sequence-classification"])
def test_holdouts_are_never_trained_on(tmp_path, task):
    """Training, reported and tuning rows are disjoint; a language model's are in the order of the text."""
    rows = documents(40, 0)
    rows.to_parquet(tmp_path / "rows.parquet")
    words = ["--task", task, "--data_files", f"train={tmp_path / 'rows.parquet'}", "--holdout", "10"]
    train, reported = (set(part["text"]) for part in sources.load_training(settings.parse(None, words)))
    words += ["--tuning_holdout", "6"]
    rest, tuning = (set(part["text"]) for part in sources.load_training(settings.parse(None, words)))
    assert len(reported) == 10 and len(tuning) == 6 and len(rest) == 24
    assert train | reported == set(rows["text"]) and not (train & reported)
    assert rest | tuning == train and not (rest & tuning)
    assert (reported == set(rows["text"][30:])) == (task == "masked-lm")


@pytest.mark.parametrize(
    "lines, message",
    [
        ('{"text": "a", "label": [1]}', "label is List"),
        ('{"label": "a"}\n{"label": "b"}', "expected a column each, got ['label', 'label']"),
        ('{"text": "a", "label": 0}\n{"text": "b", "label": null}\n{"text": "c", "label": 1}', "label, row 2: an em"),
        ('{"text": "a", "label": 0}\n{"text": "b", "label": 0}', "label_column: the only class is '0'"),
        ('{"text": "a", "label": 0}\n{"text": 5, "label": 1}', "text_column: no column fits; name one of text (Json"),
    ],
)
def test_bad_labels(run, tmp_path, lines, message):
    (tmp_path / "rows.jsonl").write_text(lines)
    words = ["--data_files", f"train={tmp_path / 'rows.jsonl'}", "--eval_split", "none"]
    refused(run(*CLASSIFY, documents(8, 0), *words), message)


def test_a_run_goes_on_with_its_own_rows_classes_and_batch(run):
    """What was asked for is compared before anything in the folder changes."""
    rows = labelled(24, 0, ("sentence",), 2)
    status, _, folder = run(*CLASSIFY, rows)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for others in (labelled(24, 9, ("sentence",), 2), labelled(24, 0, ("sentence",), 3)):
        status, said, _ = run(*CLASSIFY, others, "--resume")
        assert status == 1 and "others than at its start" in said
    status, said, _ = run(*CLASSIFY, rows, "--resume", "--per_device_train_batch_size", "4")
    assert status == 1 and "rows a step: others than at its start" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert run(*CLASSIFY, rows, "--resume")[0] == 0
    shared_out = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2".split()
    assert run(*CLASSIFY, rows, "--resume", *shared_out)[0] == 0


def test_gpt2_is_trained_as_leangpt_is(tmp_path, monkeypatch):
    """From the same weights, by Trainer with the same settings, they log the same losses and gradients."""
    documents(24, seed=1).to_parquet(tmp_path / "train.parquet")
    write_shape("gpt", tmp_path)
    words = ["--shape", tmp_path / "gpt.json", "--task", "causal-lm", "--tokenizer", "byte-bpe", "--max_length", "32"]
    words += ["--data_files", f"train={tmp_path / 'train.parquet'}", "--eval_split", "none", *FEW, "--dropout", "0"]
    words += ["--learning_rate", "1e-2"]
    build = loading.build_model

    def with_the_weights_of_leangpt(arguments, task):
        model = build(arguments, task)
        if arguments.implementation == "transformers":
            arguments.implementation = "lean"
            weights = convert(build(arguments, task)).state_dict()
            arguments.implementation = "transformers"
            model.load_state_dict(weights)
        return model

    monkeypatch.setattr(train, "build_model", with_the_weights_of_leangpt)
    logs = {}
    for name in ("lean", "transformers"):
        train.main([*map(str, words), "--implementation", name, "--output_dir", str(tmp_path / name)])
        logs[name] = [(line["loss"], line["grad_norm"]) for line in read_lines(tmp_path / name) if "loss" in line]
    assert len(logs["lean"]) == 4 and logs["lean"][-1][0] < logs["lean"][0][0]
    for own, theirs in zip(logs["lean"], logs["transformers"], strict=True):
        assert own == pytest.approx(theirs, abs=1e-5)


def test_a_loss_in_chunks(run, tmp_path, monkeypatch):
    """The same losses; the setting is of the run alone, for whoever trains its weights elsewhere expects logits."""
    rows = documents(40, 0)
    losses = []
    chunked = Mock(side_effect=LeanGPTForCausalLM.chunked_loss)
    monkeypatch.setattr(LeanGPTForCausalLM, "chunked_loss", lambda *given, **named: chunked(*given, **named))
    for words in ([], ["--loss_chunk_size", "16", "--save_strategy", "steps", "--save_steps", "2"]):
        folder = tmp_path / f"run{len(words)}"
        status, said, _ = run("causal-lm", "gpt", rows, "--output_dir", str(folder), *words)
        assert status == 0, said
        losses.append([line["loss"] for line in read_lines(folder) if "loss" in line])
    assert chunked.call_count == len(losses[1]) == 4
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert json.loads((folder / "config.json").read_text())["loss_chunk_size"] is None


def test_a_finished_run_stays_as_it_is(run):
    rows = documents(16, 0)
    _, _, folder = run("masked-lm", "bert", rows)

    def files():
        return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}

    before = files()
    status, _, _ = run("masked-lm", "bert", rows, "--resume")
    assert status == 0 and files() == before
    status, said, _ = run("masked-lm", "bert", rows, "--resume", "--max_steps", "6")
    assert status == 1 and "max_steps is 4 there and 6 here" in said and files() == before
    (folder / "README.md").unlink()
    assert run("masked-lm", "bert", rows, "--resume")[0] == 0 and (folder / "README.md").is_file()


def test_damaged_checkpoints_are_not_thrown_away(run):
    """The newest whole one is taken; where none is left, the run is refused."""
    few = merged(FEW, ["--save_strategy", "steps", "--save_steps", "2"])
    _, _, folder = run("masked-lm", "bert", documents(16, 0), few=few)
    (folder / "results.json").unlink()
    (folder / "checkpoint-4" / "optimizer.pt").write_bytes(b"short")
    shutil.copytree(folder, folder.with_name("copy"))
    assert run("masked-lm", "bert", documents(16, 0), "--resume", few=few)[0] == 0
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    (folder / "checkpoint-2" / "model.safetensors").unlink()
    status, said, _ = run("masked-lm", "bert", documents(16, 0), "--resume", few=few)
    assert status == 1 and "every checkpoint is damaged" in said
    assert "checkpoint-2: model.safetensors is missing" in said
    assert "checkpoint-4: optimizer.pt has 5 of" in said
    assert (folder / "checkpoint-2").is_dir() and (folder / "checkpoint-4").is_dir()


def test_unfit_weights_are_refused(run, tmp_path, capsys):
    """By evaluation and as a start of training, with the tensor's name; half precision is none."""
    rows = labelled(24, 0, ("sentence",), 2)
    _, _, folder = run(*CLASSIFY, rows)
    folder = folder.rename(tmp_path / "trained")
    tensors = load_file(folder / "model.safetensors")
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    assert evaluation.evaluate(str(folder), ["--use_cpu", "true"])["rows"] == 24
    name = "model.layers.1.mlp.up.weight" if "model.layers.1.mlp.up.weight" in tensors else sorted(tensors)[3]
    spoilt = tensors[name].round().to(torch.int64)
    save_file({**tensors, name: spoilt}, folder / "model.safetensors", metadata={"format": "pt"})
    refused(run(*CLASSIFY, rows, shape=str(folder)), name, "expected floating point")
    with pytest.raises(SystemExit) as end:
        leaner("evaluate", folder)
    assert end.value.code in capsys.readouterr().err.splitlines()  # status 1
    assert name in end.value.code and "expected floating point" in end.value.code


def test_a_folder_without_recipe_is_evaluated_by_its_head(run, capsys):
    rows = labelled(24, 0, ("text",), 2)
    _, _, folder = run(*CLASSIFY, rows)
    (folder / "recipe.yaml").unlink()
    files = ["--data_files", f"validation={folder.parent / 'validation.parquet'}"]
    document = evaluation.evaluate(str(folder), files)
    assert document["task"] == "sequence-classification"
    assert document["metrics"] == json.loads((folder / "results.json").read_text())["metrics"]
    capsys.readouterr()
    evaluation.print_evaluation(str(folder), files)
    found, stated = re.search(r"eval_loss: ([\d.]+) .*?([\d.]+)\)", capsys.readouterr().out).groups()
    assert found == stated  # that of results.json

    plain = folder.with_name("plain")
    assert type(convert_checkpoint(folder, plain)).__name__ == "BertForSequenceClassification"
    assert evaluation.evaluate(str(plain), files)["metrics"] == pytest.approx(document["metrics"])


def test_one_run_at_a_time(run, tmp_path):
    (tmp_path / "run").mkdir()
    holder = "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]).acquire()"
    holder += "; print('held', flush=True); time.sleep(600)"
    words = [sys.executable, "-c", holder, str(tmp_path / "run" / ".lock")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        status, said, _ = run("masked-lm", "bert", documents(16, 0))
        other.kill()
        assert status == 1 and "is in use by another run" in said
    assert run("masked-lm", "bert", documents(16, 0))[0] == 0


def test_other_data_are_evaluated_whole(run, tmp_path, capsys):
    """A run whose own evaluation rows were a holdout does not take a holdout of other data."""
    rows = labelled(60, 0, ("sentence",), 2)
    _, _, folder = run(*CLASSIFY, rows, "--holdout", "10")
    labelled(37, 3, ("sentence",), 2).to_csv(tmp_path / "other.csv")
    for data in (f"validation={tmp_path / 'other.csv'}", str(tmp_path / "other.csv")):
        capsys.readouterr()
        leaner("evaluate", folder, "--data", data, "--json")
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 37


WSD = '--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs {"num_decay_steps":2}'
OPTIONS = ["--label_smoothing_factor 0.3", "--dropout 0.5", WSD, "--ema_decay 0.5", "--gradient_checkpointing"]
SAME = {"--gradient_checkpointing": 1e-5, "--ema_decay 0.5": 1e-5}


def test_options_train_and_have_an_effect(run):
    """Each setting trains, and changes the losses of the same run, or does not."""
    rows = documents(80, 0)
    curves = {}
    for extra in ("", *OPTIONS):
        status, said, folder = run("causal-lm", "gpt", rows, "--learning_rate", "3e-3", *extra.split())
        assert status == 0, said
        results = json.loads((folder / "results.json").read_text())
        assert results["learning_rate"] == results["train"]["learning_rate"] == 3e-3
        curves[extra] = [line["loss"] for line in read_lines(folder) if "loss" in line]
        assert len(curves[extra]) == 4 and curves[extra][-1] < curves[extra][0]
        folder.rename(folder.with_name(f"run{len(curves)}"))
    for extra, tolerance in SAME.items():
        assert curves.pop(extra) == pytest.approx(curves[""], abs=tolerance)
    assert len(set(map(str, curves.values()))) == len(curves)


def test_a_head_that_was_never_trained_is_not_evaluated(run, capsys):
    _, _, folder = run("masked-lm", "bert", documents(16, 0))
    labelled(12, 0, ("sentence",), 2).to_parquet(folder / "rows.parquet")
    with pytest.raises(SystemExit):
        data = ["--data", f"validation={folder / 'rows.parquet'}", "--text_column", "sentence"]
        leaner("evaluate", folder, "--task", "sequence-classification", *data)
    assert "no trained classifier" in capsys.readouterr().err


def test_labels_go_by_name(run, tmp_path, capsys):
    """Another file that numbers the classes the other way round gives the same accuracy."""
    rows = labelled(40, 0, ("sentence",), 2)
    _, _, folder = run(*CLASSIFY, rows, "--max_steps", "30", "--learning_rate", "3e-3")
    accuracies = []
    for names in (["class 0", "class 1"], ["class 1", "class 0"]):
        texts = [rows.features["label"].names[label] for label in rows["label"]]
        other = Dataset.from_dict({"sentence": rows["sentence"][:], "label": texts})
        other.cast_column("label", ClassLabel(names=names)).to_parquet(tmp_path / "other.parquet")
        capsys.readouterr()
        leaner("evaluate", folder, "--json", "--data", f"validation={tmp_path / 'other.parquet'}")
        accuracies.append(json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]["eval_accuracy"])
    assert accuracies[0] == accuracies[1] != 0.5


def test_a_head_keeps_the_numbers_of_its_classes(run, tmp_path):
    """Other rows may number the same classes in another order; a head for other classes is new, and it is said."""
    rows = labelled(24, 0, ("sentence",), 2)
    status, said, folder = run(*CLASSIFY, rows, "--max_steps", "8", "--learning_rate", "1e-2")
    assert status == 0, said
    trained = folder.rename(tmp_path / "trained")
    before = json.loads((trained / "results.json").read_text())["metrics"]
    names = rows.features["label"].names
    turned = rows.remove_columns("label").add_column("label", [1 - label for label in rows["label"]])
    turned = turned.cast_column("label", ClassLabel(names=names[::-1]))
    still = ["--max_steps", "1", "--learning_rate", "1e-30"]
    status, said, folder = run(*CLASSIFY, turned, *still, shape=str(trained))
    assert status == 0 and "new weights" not in said, said
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == json.loads((trained / "config.json").read_text())["id2label"]
    results = json.loads((folder / "results.json").read_text())
    assert results["metrics"]["eval_loss"] == pytest.approx(before["eval_loss"], abs=1e-5)
    assert results["started_from"] == "./trained"  # no path of this machine
    shutil.rmtree(folder)
    status, said, _ = run(*CLASSIFY, labelled(24, 0, ("sentence",), 3), *still, shape=str(trained))
    notice = "begins with new weights, for they have another size there: classifier.bias"
    assert status == 0 and said.count(notice) == 1, said


def test_the_best_weights_are_kept(run):
    words = "--max_steps 40 --eval_strategy steps --eval_steps 2 --save_strategy steps --save_steps 2".split()
    words += "--load_best_model_at_end true --learning_rate 0.05 --metric loss".split()
    status, said, folder = run(
        *CLASSIFY, labelled(24, 0, ("sentence",), 2), *words, held_out=labelled(24, 5, ("sentence",), 2)
    )
    assert status == 0, said
    losses = [line["eval_loss"] for line in read_lines(folder) if "eval_loss" in line]
    results = json.loads((folder / "results.json").read_text())
    assert results["metrics"]["eval_loss"] == pytest.approx(min(losses))


@pytest.mark.parametrize(
    "text, message",
    [
        ("lerning_rate: 1", "lerning_rate: unknown key; did you mean learning_rate?"),
        ("learning_rate: fast", "learning_rate: invalid float value: 'fast'"),
        ("learning_rate: true", "learning_rate: invalid float value: 'true'"),
        ("num_train_epochs: [1, 2]", "unexpected '2'"),
        ("shape: vit/tiny", "shape: belongs on the command line"),
        ("task: vision", "task: invalid choice: 'vision'"),
        ("mask_fraction: 1.5", "mask_fraction: 1.5 is not in"),
        ("- a", "no YAML file of keys and values: "),
        ("a: [", "no YAML file of keys and values: "),
        ("adam_beta1: .nan", "adam_beta1: nan is not in"),
    ],
)
def test_bad_recipes(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        settings.parse(str(tmp_path / "mine.yaml"))
    assert str(error.value).startswith(f"{tmp_path / 'mine.yaml'}: ") and message in str(error.value)


def test_the_command_line_wins_and_numbers_are_numbers(tmp_path):
    files = "data_files: {train: [a.csv, b.csv], validation: c.csv}"
    (tmp_path / "mine.yaml").write_text(f"learning_rate: 1e-4\ntask: causal-lm\nweight_decay: 0.3\n{files}\n")
    parsed = settings.parse(str(tmp_path / "mine.yaml"), ["--learning_rate", "2e-3"])
    assert parsed.learning_rate == 0.002 and parsed.weight_decay == 0.3
    assert parsed.settings.pop("data_files") == ["train=a.csv", "train=b.csv", "validation=c.csv"]
    assert parsed.settings == {"learning_rate": 0.002, "task": "causal-lm", "weight_decay": 0.3}
    with pytest.raises(ValueError, match="missing --shape, such as --shape vit/nano"):
        settings.parse(str(tmp_path / "mine.yaml"), needed=("task", "shape"))
    with pytest.raises(ValueError, match="learn: unknown key"):
        settings.parse(None, ["--learn", "3"])


@pytest.mark.parametrize("family", ["vit", "bert", "gpt"])
def test_transformers_own_model_by_the_same_recipe(run, family, monkeypatch):
    """It trains as transformers' class and is saved as its exact relative, which evaluates to the same numbers."""
    task, rows, theirs = {
        "vit": ("image-classification", pictures(48, 0), "ViTForImageClassification"),
        "bert": ("sequence-classification", labelled(48, 0, ("sentence",), 2), "BertForSequenceClassification"),
        "gpt": ("causal-lm", documents(24, 0), "GPT2LMHeadModel"),
    }[family]
    trained = []
    plain = train.LeanTrainer.train
    monkeypatch.setattr(
        train.LeanTrainer,
        "train",
        lambda self, *args, **kwargs: (trained.append(type(self.model).__name__), plain(self, *args, **kwargs))[1],
    )
    status, said, folder = run(task, family, rows, "--implementation", "transformers")
    assert status == 0, said
    assert trained == [theirs]
    results = json.loads((folder / "results.json").read_text())
    assert results["architecture"].startswith("Lean") and len(results["condition"]["end"]) == 2
    assert results["recipe"]["implementation"] == "transformers"
    again = evaluation.evaluate(str(folder), ["--use_cpu", "true"])["metrics"]
    assert again == pytest.approx(results["metrics"], rel=1e-4, abs=1e-5)
