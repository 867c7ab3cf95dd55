"""Every head of every family, loaded by strangers: from a folder, in a process without the package."""

import os
from pathlib import Path

import pytest
import test_bert
import test_gpt
import test_vit
import torch
import transformers
from safetensors.torch import save_file
from stranger import answers, logits

import modeling_leaner


FAMILIES = {"vit": test_vit.TestLeanViT, "bert": test_bert.TestLeanBERT, "gpt": test_gpt.TestLeanGPT}
ALWAYS = ["attention_leaner.py", "configuration_leaner.py", "dropout_leaner.py", "layers_leaner.py"]
MORE = {"vit": [], "bert": ["heads_leaner.py", "unpadding_leaner.py"], "gpt": ["heads_leaner.py"]}


def questions_about(family, folder: Path) -> list[dict[str, str]]:
    """Saves each head of a family with varied heads per layer, its inputs and its outputs."""
    tests, questions = FAMILIES[family](), []
    tests.image = (24, 24)
    for auto_name, target in tests.config_class.auto_classes().items():
        if auto_name == "AutoConfig":
            continue
        model = tests.build("per-layer", getattr(modeling_leaner, target.split(".")[1]))
        inputs = tests.inputs("MultipleChoice" if "MultipleChoice" in auto_name else None)
        inputs.pop("labels", None)
        path = folder / auto_name
        model.save_pretrained(path)
        with torch.no_grad():
            tensors = {**inputs, "expected": logits(model(**inputs))}
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, f"{path}.inputs")
        question = {"load": auto_name, "repository": str(path), "inputs": f"{path}.inputs", "save": f"{path}-again"}
        questions.append(question)
    return questions


@pytest.mark.parametrize("family", ["vit", *(pytest.param(each, marks=pytest.mark.full) for each in ("bert", "gpt"))])
def test_every_head_in_a_process_without_the_package(family, tmp_path):
    """Loaded with the same outputs, and saved with its code."""
    questions = questions_about(family, tmp_path)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    answered = answers(questions, tmp_path, environment)
    assert len(answered) == len(questions)
    own = [f"configuration_lean_{family}.py", f"modeling_lean_{family}.py"]
    for answer in answered:
        assert "error" not in answer and answer["difference"] < 1e-4, answer
        assert answer["module"].startswith("transformers_modules")
        assert answer["code"] == sorted([*ALWAYS, *MORE[family], *own])
        assert answer["auto_map"] == FAMILIES[family].config_class.auto_classes()


def test_auto_classes_know_the_family():
    for tests in FAMILIES.values():
        config = tests().config("base")
        for auto_name, target in config.auto_classes().items():
            if auto_name != "AutoConfig":
                model = getattr(transformers, auto_name).from_config(config)
                assert type(model).__name__ == target.split(".")[1]
