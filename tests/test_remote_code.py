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


def python(folder: Path, *words, stdin=None) -> subprocess.CompletedProcess:
    """A program in a process of its own, with a cache of its own for remote code."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return process


@pytest.mark.parametrize("family", ["vit", *(pytest.param(each, marks=pytest.mark.full) for each in ("bert", "gpt"))])
def test_every_head_in_a_process_without_the_package(family, tmp_path):
    jobs = save_every_head(family, tmp_path)
    process = python(tmp_path, Path(__file__).parent / "remote.py", stdin=json.dumps(jobs))
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


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_another_depth_is_warned_of_under_remote_code(family, tmp_path):
    tests = FAMILIES[family]()
    folder = tests.saved(tmp_path / "model")
    tests.edit_config(folder, num_hidden_layers=5)
    code = f"import transformers; transformers.AutoModel.from_pretrained({str(folder)!r}, trust_remote_code=True)"
    process = python(tmp_path, "-I", "-c", code)
    (warning,) = (line for line in process.stderr.splitlines() if "does not fit the backbone" in line)
    assert warning.endswith("newly initialised, that is untrained: layers.3.*, layers.4.*")


def test_auto_classes_know_the_family():
    for tests in FAMILIES.values():
        config = tests().config("base")
        for auto_name, target in config.auto_classes().items():
            if auto_name != "AutoConfig":
                model = getattr(transformers, auto_name).from_config(config)
                assert type(model).__name__ == target.split(".")[1]
