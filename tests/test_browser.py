"""docs/browser.html in a headless Chromium: tokens and vectors are those that transformers gives."""

import functools
import http.server
import json
import shutil
import sys
import threading
from pathlib import Path

import browser
import numpy as np
import pytest
import torch
import transformers
from command import leaner


ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "model_cards" / "minilm-3-layers"
NODE_MODULES = Path(sys.prefix) / "node_modules"
PACKAGES = [NODE_MODULES / "onnxruntime-web", NODE_MODULES / "@huggingface" / "tokenizers"]
CHROMIUM = browser.find()
TEXTS = [
    "A man is eating food.",
    "Émile's naïve café: 3.50€ (or $4) — tokenization!",
    "深度 learning, 日本語",
    "x" * 101,
    "an emoji \U0001f642 and\ta tab",
    "many words " * 200,
    "constructor toString __proto__",
]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to open the page in"),
    pytest.mark.skipif(not all(map(Path.is_dir, PACKAGES)), reason="the page's npm packages are not installed"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files of a folder without a word."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page with the model in float32, as docs/export.md puts them together."""
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    folder = tmp_path_factory.mktemp("site")
    leaner("export", "onnx", FOLDER, folder / "model", "--no-int8")
    shutil.copy(ROOT / "docs" / "browser.html", folder / "index.html")
    (folder / "node_modules").symlink_to(NODE_MODULES)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with browser.Page(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for("document.getElementById('state').textContent === 'ready'")
        yield page
    server.shutdown()


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_tokens(page, tokenizer, text):
    expected = tokenizer(text, truncation=True)["input_ids"]
    assert page.ask(f"tokens({json.dumps(text)})") == expected


def test_vectors(page, tokenizer):
    """Rows of different lengths, each as the model gives it."""
    model = transformers.AutoModel.from_pretrained(FOLDER).eval()
    texts = TEXTS[:5]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((states * mask).sum(1)).numpy()
    got = np.array(page.ask(f"vectors({json.dumps(texts)})"))
    assert np.abs(got - expected).max() < 1e-4


def test_a_reader_compares_sentences(page):
    """The sentence that says the same is nearer; no word of complaint, and nothing asked of any other machine."""
    page.ask("document.getElementById('compare').click()")
    page.wait_for("document.querySelectorAll('#scores tr').length === 2")
    near, far = page.ask("[...document.querySelectorAll('#scores tr')].map((row) => Number(row.cells[0].textContent))")
    assert near > far + 0.2
    assert page.complaints() == []
    assert all(address.startswith("http://127.0.0.1:") for address in page.requests())
