"""`leaner publish RUN`: a sentence encoder in model_cards/, as a stranger loads it, and `leaner verify` of it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from command import invoked
from encoders import cut_and_recover, write_rows
from modeling_leaner.training.publishing import encoders
from sentence_transformers import SentenceTransformer
from test_export import needs_onnx
from transformers import AutoTokenizer

from modeling_leaner.conversion import load_lean


STRANGER = """
import sys
sys.modules["modeling_leaner"] = None  # its import fails
from sentence_transformers import SentenceTransformer
import numpy
numpy.save(sys.argv[2], SentenceTransformer(sys.argv[1]).encode(["a cat sat", "the dog ran far"]))
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder, its parent, and the words of --data."""
    needs_onnx()
    folder = tmp_path_factory.mktemp("published")
    parent, run = cut_and_recover(folder)
    data = [word for word in write_rows(folder / "rows") if "sentences" not in word]
    pairs = folder / "rows" / "stsb"
    data += [f"sts12={pairs}/test.parquet", f"sts13={pairs}/validation.parquet", f"stsb_test={pairs}/test.parquet"]
    names = ["--name", "tiny-2-layers", "--parent", parent, "--base-model", "owner/tiny", "--license", "mit"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(encoders, "ROUNDS", 3)
        result = invoked("publish", run, *names, "--data", *data)
        assert result.exit_code == 0, result.output
        again = invoked("publish", run, *names, "--data", *data)
        assert again.exit_code == 1 and "--replace" in again.output
        replaced = invoked("publish", run, *names[:-2], "--replace", "--data", *data)  # its licence stays
        assert replaced.exit_code == 0, replaced.output
        assert json.loads((folder / "model_cards" / "tiny-2-layers" / "results.json").read_text())["license"] == "mit"
        yield folder / "model_cards" / "tiny-2-layers", parent, data


def test_a_run_keeps_the_files_of_sentence_transformers(published):
    _, parent, _ = published
    run = SentenceTransformer(str(parent.parent / "run"))
    assert [type(module).__name__ for module in run] == ["Transformer", "Pooling", "Normalize"]
    assert run.max_seq_length == 24


def test_the_runs_are_recorded_in_order(published):
    results = json.loads((published[0] / "results.json").read_text())
    convert, _, first, second, publish = results["commands"]
    assert convert.startswith("leaner convert owner/tiny") and publish.startswith("leaner publish run-again")
    assert "--shape=cut" in first and "--output_dir=run " in first
    assert "--shape=run " in second and "--output_dir=run-again" in second
    assert [run["train"]["steps"] for run in results["training"]] == [4, 4]


def test_a_stranger_needs_neither_package_nor_flag(published, tmp_path):
    """And nothing is said of weights that are missing; the vectors are those of the family's model."""
    folder, _, _ = published
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]
    assert not list(folder.rglob("*.py"))
    command = [sys.executable, "-c", STRANGER, folder, tmp_path / "vectors.npy"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "newly initialized" not in process.stderr and "MISSING" not in process.stderr
    vectors = np.load(tmp_path / "vectors.npy")
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)
    twin = SentenceTransformer(str(folder))
    twin[0].auto_model = load_lean(str(folder)).eval()
    assert np.abs(vectors - twin.encode(["a cat sat", "the dog ran far"])).max() < 1e-5


def test_a_published_encoder_with_fewer_tokens(published, tmp_path, monkeypatch):
    """Its history goes on, its int8 file has word embeddings in 4 bits, and it is verified like any."""
    folder, parent, data = published
    tokens = len(AutoTokenizer.from_pretrained(folder)) - 5
    texts = parent.parent / "train.parquet"
    words = ["--vocab-size", tokens, "--no-training", "--data", texts]
    assert invoked("slim", folder, tmp_path / "fewer", *words).exit_code == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(encoders, "ROUNDS", 3)
    names = ["--name", "tiny-browser", "--parent", parent, "--base-model", "owner/tiny", "--license", "mit"]
    result = invoked("publish", "fewer", *names, "--data", *data)
    assert result.exit_code == 0, result.output
    own = tmp_path / "model_cards" / "tiny-browser"
    before, results = (json.loads((each / "results.json").read_text()) for each in (folder, own))
    assert results["training"] == before["training"] and results["commands"][:5] == before["commands"]
    assert [cut["part"] for cut in results["cuts"]] == ["layers", "vocab_size"]
    assert b"pairs" in (own / "onnx" / "model_quantized.onnx").read_bytes()
    assert invoked("verify", own, "--data", *data).exit_code == 0
    untrained = invoked("publish", parent.parent / "cut", *names, "--replace", "--data", *data)
    assert untrained.exit_code == 1 and "cut/results.json" in untrained.output


def test_verification_finds_other_weights(published):
    folder, _, data = published
    assert invoked("verify", folder, "--data", *data).exit_code == 0
    results = json.loads((folder / "results.json").read_text())
    results["benchmark"]["models"][1]["scores"]["sts12"] += 0.01
    (folder / "results.json").write_text(json.dumps(results))
    invoked("publish")  # renews the card
    found = invoked("verify", folder, "--data", *data)
    assert found.exit_code == 1 and "sts12 of tiny-2-layers" in found.output
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    found = invoked("verify", folder, "--data", *data)
    assert found.exit_code == 1 and "its hash differs" in found.output
