"""Every head of every family, loaded by strangers: from a folder, in a process without the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_bert
import test_gpt
import test_vit
import torch
import transformers
from remote import logits
from safetensors.torch import save_file

import modeling_leaner


FAMILIES = {"vit": test_vit.TestLeanViT, "bert": test_bert.TestLeanBERT, "gpt": test_gpt.TestLeanGPT}
ALWAYS = ["attention_leaner.py", "configuration_leaner.py", "dropout_leaner.py", "layers_leaner.py"]
MORE = {"vit": [], "bert": ["heads_leaner.py", "unpadding_leaner.py"], "gpt": ["heads_leaner.py"]}


def save_every_head(family, folder: Path) -> list[list[str]]:
    """Saves each head of a family with varied heads per layer, its inputs and its outputs."""
    tests, jobs = FAMILIES[family](), []
    tests.image = (24, 24)
    for auto_name, target in tests.config_class.auto_classes().items():
        if auto_name == "AutoConfig":
            continue
        model = tests.build("per-layer", getattr(modeling_leaner, target.split(".")[1]))
        head = target.split("For")[-1] if "For" in target else None
        inputs = tests.inputs(head)
        targets = {name: inputs[name] for name in ("labels", "start_positions", "end_positions") if name in inputs}
        given = {name: tensor for name, tensor in inputs.items() if name not in targets}
        path = folder / auto_name
        model.save_pretrained(path)
        with torch.no_grad():
            expected = logits(model(**given))
        tensors = {**inputs, "expected": expected}
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, f"{path}.inputs")
        jobs.append([str(path), "Backbone" if auto_name == "AutoBackbone" else auto_name, f"{path}.inputs"])
    return jobs


@pytest.mark.parametrize("family", ["vit", *(pytest.param(each, marks=pytest.mark.full) for each in ("bert", "gpt"))])
def test_every_head_in_a_process_without_the_package(family, tmp_path):
    jobs = save_every_head(family, tmp_path)
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "remote.py")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    results = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('{"folder"')]
    assert [result["folder"] for result in results] == [folder for folder, _, _ in jobs]
    config_class = FAMILIES[family].config_class
    for result in results:
        assert result["difference"] < 1e-4, result
        saved = [result[key] for key in ("again", "checkpoint") if key in result]
        assert len(saved) == (2 if "For" in result["class"] else 1)
        for config in saved:
            own = [f"configuration_lean_{family}.py", f"modeling_lean_{family}.py"]
            assert config["code"] == sorted([*ALWAYS, *MORE[family], *own])
            assert config["auto_map"] == config_class.auto_classes()


def test_auto_classes_know_the_family():
    for tests in FAMILIES.values():
        config = tests().config("base")
        for auto_name, target in config.auto_classes().items():
            if auto_name != "AutoConfig":
                model = getattr(transformers, auto_name).from_config(config)
                assert type(model).__name__ == target.split(".")[1]
