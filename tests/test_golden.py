"""Trained miniatures, one per family, and their exact outputs: what was learned, not only what is initialised."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import modeling_leaner  # noqa: F401


GOLDEN = Path(__file__).parent / "golden"
AUTO = {"vit": "ImageClassification", "bert": "SequenceClassification", "gpt": "CausalLM"}
TOLERANCE = 1e-4  # of logits of size 1 to 10, on another processor


def load(family):
    return getattr(transformers, f"AutoModelFor{AUTO[family]}").from_pretrained(GOLDEN / family).eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", AUTO)
def test_exact_outputs(family, attention):
    assert (GOLDEN / family / "model.safetensors").stat().st_size <= 300_000
    model, expected = load(family), load_file(GOLDEN / family / "expected.safetensors")
    model.set_attn_implementation(attention)
    inputs = {name: tensor for name, tensor in expected.items() if name not in ("logits", "generated")}
    with torch.no_grad():
        logits = model(**inputs).logits
    assert (logits - expected["logits"]).abs().max() < TOLERANCE
    assert expected["logits"].std(0).mean() > 0.3, "a model that says the same of every row proves nothing"
    if family == "gpt":
        generated = model.generate(inputs["input_ids"][:, :8], max_new_tokens=16, do_sample=False)
        assert generated.equal(expected["generated"]) and len(generated[:, 8:].unique()) > 5


@pytest.mark.parametrize("family", AUTO)
def test_a_moved_weight_is_seen(family):
    model, expected = load(family), load_file(GOLDEN / family / "expected.safetensors")
    inputs = {name: tensor for name, tensor in expected.items() if name not in ("logits", "generated")}
    with torch.no_grad():
        model.base_model.layers[0].self_attn.q_proj.weight[0, 0] += 0.05
        assert (model(**inputs).logits - expected["logits"]).abs().max() > TOLERANCE


def test_the_text_model_still_evaluates_expressions():
    """New ones, of the kind that it was trained on; a tokenizer of words depends on their set alone."""
    from modeling_leaner.training.data.builtin import SHORT_LISTOPS, listops
    from modeling_leaner.training.data.tokenizer import train_tokenizer

    rows, model, right = listops(SHORT_LISTOPS, train=1, test=300, seed=5)["test"], load("bert"), 0
    tokenizer = train_tokenizer(rows["source"][:], "words", 32, 128, "bert")
    with torch.no_grad():
        for row in rows:
            inputs = tokenizer(row["source"], return_tensors="pt", return_token_type_ids=False)
            right += int(model(**inputs).logits.argmax() == row["label"])
    results = json.loads((GOLDEN / "bert" / "results.json").read_text())
    assert results["metrics"]["eval_accuracy"] > 2 * results["chance"]["value"]
    assert right / len(rows) == pytest.approx(results["metrics"]["eval_accuracy"], abs=0.1)  # other rows: s.e. 0.035


def test_the_image_model_still_reads_digits():
    """The very rows that it was evaluated on, from scikit-learn."""
    from modeling_leaner.training.data.builtin import digits
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    rows, model = digits()["test"], load("vit")
    processor = AutoImageProcessor.from_pretrained(GOLDEN / "vit")
    with torch.no_grad():
        pixels = processor([np.asarray(image)[..., None] for image in rows["image"]], return_tensors="pt")
        logits = model(**pixels).logits
    accuracy = (logits.argmax(-1) == torch.tensor(rows["label"][:])).float().mean().item()
    results = json.loads((GOLDEN / "vit" / "results.json").read_text())
    assert accuracy == pytest.approx(results["metrics"]["eval_accuracy"], abs=2 / len(rows))
