"""docs/browser.html in a headless Chromium: transformers.js computes the embeddings of a published folder."""

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer


sync_api = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "model_cards" / "minilm-browser"
NODE_MODULES = Path(sys.prefix) / "node_modules"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TEXTS = [
    "A man is eating food.",
    "Émile's naïve café: 3.50€ (or $4) — tokenization!",
    "深度 learning, 日本語",
    "x" * 101,
    "many words " * 200,
    "constructor toString __proto__",
]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to open the page in"),
    pytest.mark.skipif(not (NODE_MODULES / "@huggingface/transformers").is_dir(), reason="transformers.js is absent"),
]


class Server(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page with a published folder beside it; `requests` has the addresses asked for."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "docs" / "browser.html", folder / "index.html")
    (folder / "model").symlink_to(FOLDER)
    (folder / "node_modules").symlink_to(NODE_MODULES)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("!document.getElementById('state').textContent.startsWith('loading')")
        assert page.text_content("#state") == "ready"
        yield page
        browser.close()
    server.shutdown()


def test_embeddings_are_those_of_the_8_bit_file(page):
    expected = SentenceTransformer(str(FOLDER)).encode(TEXTS, normalize_embeddings=True)
    cosines = (np.array([page.evaluate("text => embed([text])", text)[0] for text in TEXTS]) * expected).sum(1)
    assert cosines.min() > 0.97, cosines


def test_a_reader_compares_sentences(page):
    """The sentence that says the same is nearer, and no other machine is asked for anything."""
    page.click("#compare")
    page.wait_for_selector("#scores tr:nth-child(2)")
    near, far = map(float, page.locator("#scores td:first-child").all_text_contents())
    assert near > far + 0.2
    assert all(address.startswith(("http://127.0.0.1:", "blob:", "data:")) for address in page.requests)
    assert sum("model_quantized.onnx" in address for address in page.requests) == 1
