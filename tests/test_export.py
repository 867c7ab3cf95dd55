"""`leaner export`: files that run without this package and say what the model says, also at sizes not traced.

The ONNX tests are skipped where its packages are absent: `make test-clients` installs them.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from command import leaner, refused
from test_remote_code import FAMILIES

import modeling_leaner
from modeling_leaner import exporting
from modeling_leaner.exporting import CACHE, ExportableModel, Size, compare, make_inputs


GOLDEN = Path(__file__).parent / "golden"
PACKAGE = str(Path(modeling_leaner.__file__).parent).encode()
HEADS = [
    (family, target.split(".")[1])
    for family, tests in FAMILIES.items()
    for name, target in tests.config_class.auto_classes().items()
    if name not in ("AutoConfig", "AutoModelForMultipleChoice")
]


def needs_onnx() -> None:
    """Skips a test where a package of ONNX is absent."""
    for name in exporting.ONNX_PACKAGES:
        pytest.importorskip(name)


class TestRefusals:
    """One line each, and nothing is left."""

    def test_before_anything_is_loaded(self, tmp_path, monkeypatch):
        (tmp_path / "there").mkdir()
        model = GOLDEN / "vit"
        out = tmp_path / "out"
        refused("there exists already", "export", "onnx", model, tmp_path / "there")
        refused("vit/nano: a named shape, which has no weights", "export", "onnx", "vit/nano", out)
        monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxruntime" else name)
        missing = "^leaner export: onnx: needs packages that are not installed: pip install onnxruntime$"
        refused(missing, "export", "onnx", model, out)
        assert [path.name for path in tmp_path.iterdir()] == ["there"]

    def test_embeddings_that_cannot_have_4_bits(self, tmp_path):
        """None, those that a head shares (it would keep them in 8 bits, too), and those of a file in float32."""
        words = [tmp_path / "out", "--int4-embeddings"]
        refused("leave out --no-int8", "export", "onnx", GOLDEN / "bert", *words, "--no-int8")
        needs_onnx()
        for family in ("vit", "gpt"):
            refused("--int4-embeddings: .*: expected a model of texts", "export", "onnx", GOLDEN / family, *words)
        assert not list(tmp_path.iterdir())

    def test_a_damaged_tokenizer(self, tmp_path):
        """Before the model is traced, and named as what it is."""
        shutil.copytree(GOLDEN / "gpt", tmp_path / "model")
        (tmp_path / "model" / "tokenizer.json").write_text("{")
        (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
        damaged = rf"^leaner export: {tmp_path / 'model'}: tokenizer.json"
        needs_onnx()
        refused(damaged, "export", "onnx", tmp_path / "model", tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    def test_a_file_that_says_something_else(self, tmp_path, monkeypatch):
        """The control of the comparison: a graph of a model whose weights differ is not kept."""
        needs_onnx()
        write_onnx = exporting.write_onnx

        def write_another(exportable, path):
            write_onnx(exportable, path)
            with torch.no_grad():
                for weight in exportable.model.parameters():
                    weight.mul_(1.01)

        monkeypatch.setattr(exporting, "write_onnx", write_another)
        refused("its onnx file differs from it by .*; not kept$", "export", "onnx", GOLDEN / "vit", tmp_path / "out")
        assert not list(tmp_path.iterdir())


def test_the_comparison_sees_a_cache_that_is_ignored():
    """And that a mask is, of rows whose padding is on the left."""
    exportable = ExportableModel(FAMILIES["gpt"]().build("base"))
    assert compare(exportable, lambda inputs: exportable(**inputs))["difference"] == 0

    def without_cache(inputs):
        given = {**inputs, CACHE: [torch.zeros_like(tensor) for tensor in inputs[CACHE]]}
        return exportable(**given)

    def without_mask(inputs):
        return exportable(**{**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])})

    for wrong in (without_cache, without_mask):
        assert compare(exportable, wrong)["difference"] > 0.1


def test_a_cache_comes_out_only_where_one_goes_in():
    """Of every head of the decoder, whose configuration asks for a cache, and of the decoder itself."""
    tests = FAMILIES["gpt"]()
    for head in [head for family, head in HEADS if family == "gpt"]:
        exportable = ExportableModel(tests.build("base", getattr(modeling_leaner, head)))
        assert exportable.model.config.use_cache
        with torch.no_grad():
            names = exportable(**make_inputs(exportable, Size(rows=2, length=5)))
        assert any(name.startswith("present.") for name in names) == exportable.keeps_cache, head


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_every_head(family, head, tmp_path):
    """Heads that differ from layer to layer; new numbers of rows and tokens; a cache that is empty or not."""
    needs_onnx()
    exportable = ExportableModel(FAMILIES[family]().build("per-layer", getattr(modeling_leaner, head)))
    path = tmp_path / "model"
    exporting.write_onnx(exportable, path)
    run = exporting.load_onnx(path)
    assert compare(exportable, run)["difference"] < 1e-3  # a wrong mask or cache changes more than 1e-2
    assert PACKAGE not in path.read_bytes()  # torch notes the file and line of every operation
    if exportable.keeps_cache:
        first = make_inputs(exportable, Size(rows=1, length=1))  # a text of one token, nothing before it
        with torch.no_grad():
            expected = exportable(**first)["logits"]
        assert (run(first)["logits"] - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_large_activation_in_8_bits(tmp_path):
    """One neuron of the first MLP fires a thousand times as strongly as the others, and nothing reads it."""
    needs_onnx()
    model = FAMILIES["bert"]().build("per-layer", modeling_leaner.LeanBERTModel)
    mlp = model.layers[0].mlp
    with torch.no_grad():
        mlp.fc1.bias[0] = 1000
        mlp.fc2.weight[:, 0] = 0
    model.save_pretrained(tmp_path / "model")
    _, small = exporting.export(str(tmp_path / "model"), tmp_path / "out")
    assert small["cosine"] > 0.95


def test_embeddings_in_4_bits():
    """No value is off by more than half a step, of which the largest of its 32 has 7."""
    table = torch.randn(50, 3, 32, generator=torch.Generator().manual_seed(0)) ** 3
    table[0, 0] = 0
    found = exporting.Int4Embedding(table.flatten(1))(torch.arange(50).view(2, 25)).view_as(table)
    steps = table.abs().amax(dim=-1, keepdim=True) / 7
    assert ((found - table).abs() <= 0.51 * steps).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_onnx_command(family, tmp_path):
    """Both files, their names and axes as on the Hub; the one in 8 bits is smaller and chooses nearly the same."""
    needs_onnx()
    import onnxruntime

    leaner("export", "onnx", GOLDEN / family, tmp_path / "out")
    document = json.loads((tmp_path / "out" / "parity.json").read_text())
    whole, small = document["files"]
    assert (whole["file"], small["file"]) == ("onnx/model.onnx", "onnx/model_quantized.onnx")
    assert whole["difference"] < 1e-4 < small["difference"] < 0.1
    assert 1.0 >= whole["cosine"] > 0.99999 > small["cosine"] > 0.99
    assert small["bytes"] < 0.75 * whole["bytes"]
    session = onnxruntime.InferenceSession(tmp_path / "out" / whole["file"])
    inputs = {each.name: each.shape for each in session.get_inputs()}
    if family == "gpt":
        assert inputs["attention_mask"] == ["batch", "past + length"]
        assert inputs["past_key_values.1.value"][2] == "past"
        assert "present.1.value" in [each.name for each in session.get_outputs()]
