"""A run killed at any moment and continued ends with the very weights of a run that was never killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from modeling_leaner.training.running.run_folder import damage, declare_whole, whole_checkpoints
from training_data import merged, read_lines, write_rows, write_shape


SCRIPT = Path(__file__).parent / "killed.py"
STEPS, EVERY = 14, 4
# Shuffled, with dropout, masks, an average of the weights and two loader workers; epochs end within the run.
SETTINGS = f"""--task masked-lm --tokenizer wordpiece --max_length 32 --whole_word_masking true --mask_fraction 0.2
--max_steps {STEPS} --per_device_train_batch_size 8 --gradient_accumulation_steps 2 --dropout 0.1 --ema_decay 0.9
--dataloader_num_workers 2 --eval_strategy steps --eval_steps 3 --save_strategy steps --save_steps {EVERY}
--logging_steps 1 --learning_rate 3e-3 --disable_tqdm true --use_cpu true --preprocessing_workers 1""".split()


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """The words of a run but its folder."""
    folder = tmp_path_factory.mktemp("resume")
    files = write_rows(folder, "LTCB/enwik8", "validation", train=20, held_out=6)
    return ["--shape", write_shape("bert", folder), "--data_files", *files, *SETTINGS]


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Runs:
    """One server of `killed.py`."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen([sys.executable, str(SCRIPT)], env=environment, **pipes)

    def start(self, point, words):
        """Process number, file that appears at the point, file of the output."""
        self.count += 1
        ready, output = self.folder / f"ready-{self.count}", self.folder / f"output-{self.count}"
        output.touch()
        self.server.stdin.write(json.dumps([point, str(ready), str(output), words]) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline()), ready, output

    def status(self):
        return int(self.server.stdout.readline())

    def finish(self, words, point="none"):
        _, _, output = self.start(point, words)
        assert self.status() == 0, output.read_text()[-3000:]
        return output.read_text()

    def stop_at(self, point, words, number=signal.SIGKILL, reached=lambda ready: ready.exists()):
        """Starts a run, waits until it has come to the point, sends it the signal; status and output."""
        child, ready, output = self.start(point, words)
        deadline = time.monotonic() + 200
        while not reached(ready):
            assert time.monotonic() < deadline and alive(child), output.read_text()[-3000:]
            time.sleep(0.01)
        os.kill(child, number)
        return self.status(), output.read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    runs = Runs(tmp_path_factory.mktemp("runs"))
    yield runs
    runs.server.kill()


@pytest.fixture(scope="module")
def uninterrupted(runs, arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.finish([*arguments, "--output_dir", str(folder)])
    return folder


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_killed_again_and_again(runs, arguments, uninterrupted, tmp_path):
    """In a step before any checkpoint, with a checkpoint half written, in an evaluation, in a late step."""
    folder = tmp_path / "run"
    words = [*arguments, "--output_dir", str(folder)]
    assert runs.stop_at("step:2", words)[0] == -signal.SIGKILL
    assert not whole_checkpoints(folder)
    words.append("--resume")
    runs.stop_at("save:8", words)
    assert (folder / "checkpoint-8").is_dir() and [path.name for path in whole_checkpoints(folder)] == ["checkpoint-4"]
    runs.stop_at("evaluate:9", words)
    step = random.randrange(9, STEPS)
    runs.stop_at(f"step:{step}", words)
    runs.stop_at("finish", words)
    assert not (folder / "results.json").exists() and (folder / f"checkpoint-{STEPS}").is_dir()
    output = runs.finish(words)
    assert "continuing from" in output and f"checkpoint-{STEPS}" in output, step
    assert weights(folder) == weights(uninterrupted)
    assert [path.name for path in whole_checkpoints(folder)] == ["checkpoint-12", f"checkpoint-{STEPS}"]
    results = [json.loads((each / "results.json").read_text()) for each in (folder, uninterrupted)]
    assert results[0]["metrics"] == results[1]["metrics"]
    losses = [[line["loss"] for line in read_lines(each) if "loss" in line] for each in (folder, uninterrupted)]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS
    assert not any("train_loss" in line for each in (folder, uninterrupted) for line in read_lines(each))


@pytest.mark.full
def test_the_test_sees_a_lost_random_state(runs, arguments, uninterrupted, tmp_path):
    words = [*arguments, "--output_dir", str(tmp_path / "run")]
    runs.stop_at("step:6", words)
    runs.finish([*words, "--resume"], point="lose-rng")
    assert weights(tmp_path / "run") != weights(uninterrupted)


@pytest.mark.parametrize("strategy", ["steps", pytest.param("epoch", marks=pytest.mark.full)])
def test_ctrl_c_saves_and_says_how_to_go_on(runs, arguments, uninterrupted, tmp_path, strategy):
    folder = tmp_path / "run"
    words = [*arguments, "--output_dir", str(folder)]
    if strategy == "epoch":
        words = merged(words, ["--eval_strategy", "epoch", "--save_strategy", "epoch"])
        runs.finish(merged(words, ["--output_dir", str(tmp_path / "whole")]))
        uninterrupted = tmp_path / "whole"

    def second_step(ready):
        file = folder / "metrics.jsonl"
        return file.is_file() and '"step": 2}' in file.read_text()

    status, output = runs.stop_at("none", words, signal.SIGINT, second_step)
    assert status == 130 and "--resume continues" in output
    assert whole_checkpoints(folder) and "Traceback" not in output
    runs.finish([*words, "--resume"])
    assert weights(folder) == weights(uninterrupted)


def test_files_of_a_folder_count(tmp_path):
    """As those of sharded optimizers."""
    checkpoint = tmp_path / "checkpoint-4"
    (checkpoint / "optimizer_0").mkdir(parents=True)
    (checkpoint / "optimizer_0" / "part.distcp").write_bytes(b"12345")
    (checkpoint / "model.bin").write_bytes(b"123")
    declare_whole(checkpoint)
    assert damage(checkpoint) is None
    (checkpoint / "optimizer_0" / "part.distcp").unlink()
    assert damage(checkpoint) == "optimizer_0/part.distcp is missing"
