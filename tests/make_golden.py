"""`python tests/make_golden.py` trains the miniatures of tests/golden/, one per family, and writes what they say.

To be run only where the architecture changes on purpose: the test exists to notice that it did.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from modeling_leaner.training import train
from safetensors.torch import save_file
from transformers import AutoTokenizer

from modeling_leaner.configuration_leaner import LeanConfig
from modeling_leaner.shapes import load_shape


GOLDEN = Path(__file__).parent / "golden"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8, "intermediate_size": 96}
EXPRESSIONS = ["[MIN 9 8 7 [MAX 6 5 ] 9 ]", "[MAX 1 2 [MIN 3 9 ] 2 ]", "[SM 9 9 9 ]", "[MED 4 [MAX 1 5 5 ] 6 0 8 ]"]
RUNS = {  # family → recipe, what else its shape states, settings
    "vit": (
        "digits",
        {"image_size": 8, "patch_size": 2, "initializer_range": 0.1},
        "--max_steps 600 --learning_rate 2e-3",
    ),
    "bert": (
        "listops-short",
        {"max_position_embeddings": 128, "vocab_size": 32, "initializer_range": 0.1},
        "--max_steps 900 --learning_rate 2e-3 --max_eval_rows 500",
    ),
    "gpt": (
        "python-docs",
        {"max_position_embeddings": 128, "vocab_size": 512, "num_key_value_heads": 2},
        "--max_steps 400 --learning_rate 5e-3 --max_length 64 --max_train_rows 120",
    ),
}


def inputs_of(family: str, run: Path, config: LeanConfig) -> dict[str, torch.Tensor]:
    """Four rows, the same for ever: noise for images and tokens, expressions for ListOps."""
    if family == "bert":
        tokenizer = AutoTokenizer.from_pretrained(run)
        return dict(tokenizer(EXPRESSIONS, padding=True, return_tensors="pt", return_token_type_ids=False))
    generator = torch.Generator().manual_seed(7)
    if family == "vit":
        return {"pixel_values": torch.rand(4, config.num_channels, *config.image_shape, generator=generator) * 2 - 1}
    return {"input_ids": torch.randint(5, config.vocab_size, (4, 24), generator=generator)}


def make(family: str) -> None:
    recipe, fields, words = RUNS[family]
    sizes = {**SIZES, **fields}
    with tempfile.TemporaryDirectory() as scratch:
        shape, run = Path(scratch) / "shape.json", Path(scratch) / "run"
        load_shape(f"{family}/nano", **sizes).to_json_file(shape, use_diff=False)
        train.main([recipe, "--shape", str(shape), "--output_dir", str(run), "--disable_tqdm", "true", *words.split()])
        results = json.loads((run / "results.json").read_text())
        folder = GOLDEN / family
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        auto = getattr(transformers, f"AutoModel{'For' + results['architecture'].split('For')[1]}")
        model = auto.from_pretrained(run).eval()
        for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
            if (run / name).is_file():
                shutil.copyfile(run / name, folder / name)
        config = json.loads((folder / "config.json").read_text())
        config.pop("auto_map")  # the code is the package's own
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        inputs = inputs_of(family, run, model.config)
        with torch.no_grad():
            expected = {**inputs, "logits": model(**inputs).logits}
            if family == "gpt":
                expected["generated"] = model.generate(inputs["input_ids"][:, :8], max_new_tokens=16, do_sample=False)
        save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")
        if family != "gpt":  # gpt is known by what it generates
            said = {key: results[key] for key in ("main_metric", "metrics", "chance", "rows")}
            (folder / "results.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    for family in sys.argv[1:] or RUNS:
        make(family)
