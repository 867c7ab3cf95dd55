"""`leaner export`: files that run without this package and say what the model says, also at sizes not traced.

The ONNX tests are skipped where its packages are absent: `make test-clients` installs them.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from modeling_leaner.training.publishing.folders import results_in
from modeling_leaner.training.publishing.verify import check_files
from modeling_leaner.training.publishing.verify_onnx import check_onnx
from modeling_leaner.training.records import ExportFile, checked
from safetensors.torch import save_file
from test_remote_code import FAMILIES
from typer.testing import CliRunner

import modeling_leaner
from modeling_leaner.cli import export
from modeling_leaner.cli.app import app
from modeling_leaner.conversion import load_lean
from modeling_leaner.exporting import files, parity
from modeling_leaner.exporting.files import FORMATS
from modeling_leaner.exporting.graph import CACHE, Graph, Size, flattened, make_inputs
from modeling_leaner.exporting.parity import compare


GOLDEN = Path(__file__).parent / "golden"
CARDS = Path(__file__).parent.parent / "model_cards"
PACKAGE = str(Path(modeling_leaner.__file__).parent).encode()
QUICK = ("--rounds", "3", "--batch", "2", "--length", "8")
HEADS = [
    (family, target.split(".")[1])
    for family, tests in FAMILIES.items()
    for name, target in tests.config_class.auto_classes().items()
    if name != "AutoConfig"
]


def leaner(*words: object):
    """`leaner WORDS` with what it printed."""
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: object) -> str:
    """The one line in which `leaner export` refuses something."""
    result = leaner("export", *words)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1, result.output + result.stderr
    return result.stderr


def needs_onnx() -> None:
    """Skips a test where a package of ONNX is absent."""
    for name in files.ONNX_PACKAGES:
        pytest.importorskip(name)


# In a process that has torch alone: continues a text greedily, each token after the cache of those before.
CONTINUE = """
import sys, torch
from safetensors.torch import load_file
assert "transformers" not in sys.modules and "modeling_leaner" not in sys.modules
program = torch.export.load(sys.argv[1]).module()
given = load_file(sys.argv[2])
ids, expected, layers = given["ids"], given["expected"], int(given["layers"])
cache = [torch.zeros(1, int(given["heads"]), 0, int(given["head_dim"])) for _ in range(2 * layers)]
said, past = [], 0
while len(said) < expected.shape[1]:
    total = past + ids.shape[1]
    outputs = program(
        input_ids=ids,
        attention_mask=torch.ones(1, total, dtype=torch.long),
        position_ids=torch.arange(past, total)[None],
        past_key_values=cache,
    )
    cache = [tensor for name, tensor in outputs.items() if name != "logits"]
    ids = outputs["logits"][:, -1:].argmax(-1)
    said.append(ids)
    past = total
assert torch.cat(said, dim=1).equal(expected), (said, expected)
"""


def test_a_program_continues_texts_in_a_process_without_the_package(tmp_path):
    tests = FAMILIES["gpt"]()
    model = tests.generating("base")
    model.save_pretrained(tmp_path / "model")
    result = leaner("export", "torch", tmp_path / "model", tmp_path / "out", *QUICK)
    assert result.exit_code == 0, result.output + result.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.pt2", "config.json", "export.json"}
    # torch notes the file and line of every operation; what is given away does not say where it was made.
    assert PACKAGE not in (tmp_path / "out" / "model.pt2").read_bytes()
    assert "auto_map" not in json.loads((tmp_path / "out" / "config.json").read_text())
    document = checked(ExportFile, json.loads((tmp_path / "out" / "export.json").read_text()), tmp_path)
    (eager, program) = document.files
    assert (eager.file, program.file, program.same_choice) == (None, "model.pt2", 1.0)
    assert program.difference < 1e-5 and len(program.times) == 4 and all(time.seconds > 0 for time in program.times)
    assert "1×8" in result.output and "2×1 after 8" in result.output and "with a cache" in result.output

    ids = tests.ids(1, 5)
    said = tests.continue_by_hand(model, ids, 12)
    assert len(said[0, 5:].unique()) > 4
    config = model.config
    numbers = {"layers": config.num_hidden_layers, "heads": config.num_key_value_heads, "head_dim": config.head_dim}
    tensors = {"ids": ids, "expected": said[:, 5:].contiguous()}
    save_file(tensors | {name: torch.tensor(number) for name, number in numbers.items()}, tmp_path / "given")
    command = [sys.executable, "-I", "-c", CONTINUE, tmp_path / "out" / "model.pt2", tmp_path / "given"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert process.returncode == 0, process.stderr[-3000:]


class TestRefusals:
    """One line each, and nothing is left."""

    def test_before_anything_is_loaded(self, tmp_path, monkeypatch):
        (tmp_path / "there").mkdir()
        model = GOLDEN / "vit"
        assert refused("torch", model, tmp_path / "there").endswith("there exists already\n")
        assert "vit/nano: a named shape, which has no weights" in refused("torch", "vit/nano", tmp_path / "out")
        monkeypatch.setattr(files, "find_spec", lambda name: None if name == "onnxruntime" else name)
        expected = "leaner export: onnx: needs packages that are not installed: pip install onnxruntime\n"
        assert refused("onnx", model, tmp_path / "out") == expected
        assert [path.name for path in tmp_path.iterdir()] == ["there"]

    def test_lengths(self, tmp_path):
        assert "--length 8: LeanViTForImageClassification reads images" in refused(
            "torch", GOLDEN / "vit", tmp_path / "out", "--length", 8
        )
        longest = "--length 128: expected at most 127, by max_position_embeddings of the model"
        assert longest in refused("torch", GOLDEN / "gpt", tmp_path / "out", "--length", 128)

    def test_more_rows_than_memory_holds(self, tmp_path, monkeypatch):
        """By what a pass holds of a row, seen here in one of a known size."""
        message = refused("torch", GOLDEN / "gpt", tmp_path / "out", "--batch", 2**24)
        assert "--batch 16777216: a forward pass takes at least" in message and list(tmp_path.iterdir()) == []
        result = leaner("export", "torch", GOLDEN / "gpt", tmp_path / "out", "--batch", 10**9)
        assert result.exit_code == 2 and "less than or equal to 16777216" in result.stderr
        graph = Graph(load_lean(GOLDEN / "gpt"))
        config = graph.model.config
        held = export.pass_bytes(graph, Size(3, 7))
        assert held >= 3 * 4 * 7 * (config.vocab_size + config.hidden_size + config.intermediate_size)
        monkeypatch.setattr(export, "free_memory", lambda device: held)
        export.check_memory(graph, [Size(3, 7)])
        with pytest.raises(ValueError, match="--batch 4: "):
            export.check_memory(graph, [Size(3, 7), Size(4, 7)])

    def test_a_folder_without_a_model(self, tmp_path):
        (tmp_path / "empty").mkdir()
        assert "config.json" in refused("torch", tmp_path / "empty", tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["empty"]

    def test_a_damaged_tokenizer(self, tmp_path):
        """Before the model is traced, and named as what it is."""
        shutil.copytree(GOLDEN / "gpt", tmp_path / "model")
        (tmp_path / "model" / "tokenizer.json").write_text("{")
        (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
        message = refused("torch", tmp_path / "model", tmp_path / "out")
        assert message.startswith(f"leaner export: {tmp_path / 'model'}: damaged Tokenizer (tokenizer.json")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_a_file_that_says_something_else(self, tmp_path, monkeypatch):
        """The control of the comparison: a program of a model whose weights differ is not kept."""

        def write_another(graph, path):
            with torch.no_grad():
                for weight in graph.model.parameters():
                    weight.mul_(1.01)
            files.write_torch(graph, path)
            with torch.no_grad():
                for weight in graph.model.parameters():
                    weight.div_(1.01)

        another = files.Format("model.pt2", write_another, files.write_torch_int8, files.load_torch, (), ())
        monkeypatch.setitem(FORMATS, "torch", another)
        message = refused("torch", GOLDEN / "vit", tmp_path / "out", "--rounds", 3, "--batch", 2)
        assert "its torch file differs from it by" in message and message.endswith("; not kept\n")
        assert not list(tmp_path.iterdir())


def test_the_comparison_sees_a_cache_that_is_ignored():
    """And that a mask is, of rows whose padding is on the left."""
    graph = Graph(FAMILIES["gpt"]().build("base"))
    assert compare(graph, lambda inputs: graph(**inputs)).difference == 0

    def without_cache(inputs):
        given = {**inputs, CACHE: [torch.zeros_like(tensor) for tensor in inputs[CACHE]]}
        return graph(**given)

    def without_mask(inputs):
        return graph(**{**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])})

    for wrong in (without_cache, without_mask):
        assert compare(graph, wrong).difference > 0.1
    assert all(size.past + size.length <= 64 for size in parity.sizes(graph))


@pytest.mark.parametrize("kind", ["onnx", pytest.param("torch", marks=pytest.mark.full)])
@pytest.mark.parametrize(("family", "head"), HEADS)
def test_every_head(family, head, kind, tmp_path):
    """Heads that differ from layer to layer; new numbers of rows and tokens; a cache that is empty or not."""
    if kind == "onnx":
        needs_onnx()
    tests = FAMILIES[family]()
    graph = Graph(tests.build("per-layer", getattr(modeling_leaner, head)))
    path = tmp_path / "model"
    FORMATS[kind].write(graph, path)
    run = FORMATS[kind].load(graph, path)
    assert compare(graph, run).difference < 1e-3  # a wrong mask or cache changes more than 1e-2
    if kind == "torch":
        return
    assert PACKAGE not in path.read_bytes()
    if graph.keeps_cache:
        first = make_inputs(graph, Size(rows=1, length=1))  # a text of one token, nothing before it
        with torch.no_grad():
            expected = graph(**first)["logits"]
        assert (run(first)["logits"] - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_onnx_command(family, tmp_path):
    """Both files, their names and axes as on the Hub; the one in 8 bits is smaller and chooses nearly the same."""
    needs_onnx()
    import onnxruntime

    words = QUICK if family != "vit" else QUICK[:4]
    result = leaner("export", "onnx", GOLDEN / family, tmp_path / "out", "--int8", *words)
    assert result.exit_code == 0, result.output + result.stderr
    document = checked(ExportFile, json.loads((tmp_path / "out" / "export.json").read_text()), tmp_path)
    _, whole, small = document.files
    assert (whole.file, small.file) == ("onnx/model.onnx", "onnx/model_int8.onnx")
    assert whole.difference < 1e-4 and 1e-4 < small.difference < 0.1 and small.same_choice > 0.9
    assert small.bytes < 0.75 * whole.bytes
    for file in (whole, small):
        session = onnxruntime.InferenceSession(tmp_path / "out" / file.file)
        inputs = {each.name: each.shape for each in session.get_inputs()}
        assert inputs == document.inputs
        assert [each.name for each in session.get_outputs()] == document.outputs
    if family == "gpt":
        assert inputs["attention_mask"] == ["batch", "past + length"]
        assert inputs["past_key_values.1.value"][2] == "past" and "present.1.value" in document.outputs


class TestPublished:
    """`onnx/` in a folder of model_cards/, as `leaner verify-cards` sees it."""

    @pytest.fixture
    def folder(self, tmp_path):
        return shutil.copytree(CARDS / "leanbert-mini-listops", tmp_path / "leanbert-mini-listops")

    def test_graphs_are_the_weights(self, folder):
        needs_onnx()
        assert check_onnx(folder) == ""
        graph = Graph(load_lean(str(folder)))
        onnx = FORMATS["onnx"]
        whole, small = onnx.path(folder), onnx.path(folder, int8=True)
        whole.parent.mkdir()
        onnx.write(graph, whole)
        onnx.write_int8(graph, small, whole)
        assert check_onnx(folder) == ", 2 ONNX files"
        with torch.no_grad():
            graph.model.classifier.bias += 1
        onnx.write(graph, whole)
        with pytest.raises(ValueError, match=r"onnx/model.onnx: differs from model.safetensors by .*, at most 0.001"):
            check_onnx(folder)
        whole.write_bytes(b"no graph")
        with pytest.raises(ValueError, match=r"onnx/model.onnx: "):
            check_onnx(folder)

    def test_what_may_lie_there(self, folder, monkeypatch):
        (folder / "onnx").mkdir()
        check_files(folder, results_in(folder / "results.json"))
        monkeypatch.setattr("modeling_leaner.training.publishing.verify_onnx.find_spec", lambda name: None)
        assert check_onnx(folder) == ", onnx/ not run: onnxruntime is not installed"
        (folder / "onnx" / "model_q4.onnx").write_bytes(b"")
        with pytest.raises(ValueError, match="model_q4.onnx: not a file of a published folder"):
            check_onnx(folder)
        shutil.rmtree(folder / "onnx")
        (folder / "onnx").write_bytes(b"")
        with pytest.raises(NotADirectoryError):
            check_onnx(folder)


def test_torch_in_8_bits(tmp_path):
    pytest.importorskip("torchao")
    graph = Graph(load_lean(GOLDEN / "bert"))
    FORMATS["torch"].write_int8(graph, tmp_path / "small.pt2", tmp_path / "whole.pt2")
    small = compare(graph, FORMATS["torch"].load(graph, tmp_path / "small.pt2"))
    assert 1e-4 < small.difference < 0.1
    assert graph.model.model.layers[0].mlp.fc1.weight.dtype == torch.float32  # the model itself stays as it was


def test_names_of_a_cache():
    graph = Graph(FAMILIES["gpt"]().build("grouped"))
    inputs = flattened(make_inputs(graph, Size(rows=2, length=3, past=4)))
    assert list(inputs)[:5] == ["input_ids", "attention_mask", "position_ids", f"{CACHE}.0.key", f"{CACHE}.0.value"]
    assert inputs[f"{CACHE}.2.value"].shape == (2, 2, 4, 12) and inputs["position_ids"].tolist()[1] == [2, 3, 4]
