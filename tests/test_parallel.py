"""Tensor parallelism on two gloo processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_bert
import test_gpt
import test_vit
import torch
from safetensors.torch import save_file


CASES = {
    "vit": (test_vit.TestLeanViT, "AutoModelForImageClassification"),
    "bert": (test_bert.TestLeanBERT, "AutoModelForMaskedLM"),
    "gpt": (test_gpt.TestLeanGPT, "AutoModelForCausalLM"),
}


@pytest.mark.full
@pytest.mark.parametrize("family", CASES)
def test_split_by_the_plan(family, tmp_path):
    family_tests, auto_name = CASES[family]
    tests = family_tests()
    tests.image = (24, 24)
    model = tests.build("base", tie_word_embeddings=False) if family != "vit" else tests.build("base")
    model.save_pretrained(tmp_path / "model")
    inputs = tests.inputs()
    with torch.no_grad():
        expected = model(**inputs).logits
    tensors = {**inputs, "expected": expected}
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, tmp_path / "inputs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parent / "parallel.py"
    process = subprocess.run(
        [*command, str(script), str(tmp_path / "model"), str(tmp_path / "inputs"), auto_name],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    assert process.stdout.count("difference") == 2
