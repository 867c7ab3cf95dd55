"""Every recipe, run for a few steps on small rows in its dataset's columns, and evaluated again from its folder."""

import json
import math

import pytest
import yaml
from command import leaner
from modeling_leaner.training import settings as arguments
from modeling_leaner.training import train
from modeling_leaner.training.data import builtin as data
from modeling_leaner.training.data import sources
from modeling_leaner.training.reading import RECIPE_NAMES, RECIPES
from modeling_leaner.training.tasks import TASKS
from training_data import merged, read_lines, save_encoder, write_rows, write_shape


FAMILIES = {
    "image-classification": ("vit",),
    "masked-lm": ("bert",),
    "causal-lm": ("gpt",),
    "sequence-classification": ("bert",),
    "embedding": ("bert",),
}
FEW = """--max_steps 4 --per_device_train_batch_size 8 --per_device_eval_batch_size 16 --eval_strategy steps
--eval_steps 2 --save_strategy no --logging_steps 2 --warmup_steps 1 --disable_tqdm true --dataloader_num_workers 0
--use_cpu true"""
SMALLER = {
    "imagenet-1k": "--crop_padding 2 --dataloader_num_workers 2",
    "fashion-mnist": "--image_size 16",
    "fineweb-edu": "--max_length 48 --gradient_accumulation_steps 2 --dataloader_num_workers 1",
    "enwik8-text-embedding": "--max_length 24 --split_sentences false",
}
FILES = {
    "config.json",
    "model.safetensors",
    "recipe.yaml",
    "results.json",
    "metrics.jsonl",
    "training.png",
    "README.md",
}


@pytest.fixture(autouse=True)
def small_sets(monkeypatch):
    rules = data.ListOpsRules(max_depth=3, max_args=4, min_length=4, max_length=40)
    small = {
        "digits": data.digits,
        "python-docs": lambda: data.python_docs(max_bytes=60_000, holdout=4),
        "listops": lambda: data.listops(rules, train=80, test=40),
        "listops-short": lambda: data.listops(rules, train=80, test=40),
    }
    monkeypatch.setattr(sources, "BUILT_IN", small)


def run(recipe, family, folder, *words):
    settings = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())
    image = {"image_size": 8, "patch_size": 4} if settings["dataset"] == "digits" else {}
    line = ["--shape", write_shape(family, folder, **image), "--output_dir", str(folder / "run")]
    if settings["task"] == "embedding":
        encoder = str(save_encoder(folder / "encoder"))
        line = ["--shape", encoder, "--teacher", encoder, "--output_dir", str(folder / "run")]
    if settings["dataset"] not in sources.BUILT_IN:
        name = settings.get("dataset_config", settings["dataset"])
        split = settings.get("eval_split", "validation")
        line += ["--holdout", "0", "--data_files", *write_rows(folder, name, split)]
    train.main([recipe, *merged(line, FEW.split(), SMALLER.get(recipe, "").split(), words)])
    return folder / "run"


OTHER_GLUE = ("cola", "mrpc", "qnli", "qqp", "rte", "wnli")  # classes of a sentence or a pair, as sst2 and mnli have


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=pytest.mark.full if name in OTHER_GLUE else ()) for name in RECIPE_NAMES],
)
def test_recipe(recipe, tmp_path, capsys):
    task = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())["task"]
    folder = run(recipe, FAMILIES[task][0], tmp_path)
    assert {path.name for path in folder.iterdir()} >= FILES
    assert not list(folder.glob("*.bin"))
    results = json.loads((folder / "results.json").read_text())
    assert results["train"]["steps"] == 4 and 0 <= results["train"]["input_pipeline_share"] < 1
    assert all(math.isfinite(value) for value in results["metrics"].values())
    assert f"eval_{results['main_metric']}" in results["metrics"]
    assert sum("eval_loss" in line for line in read_lines(folder)) == 2
    capsys.readouterr()
    leaner("evaluate", folder, "--json")
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["rows"] == results["rows"]
    assert again["metrics"] == pytest.approx(results["metrics"], abs=1e-6)


def test_every_task_has_a_recipe_and_a_class():
    named = {yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())["task"] for recipe in RECIPE_NAMES}
    assert named == set(TASKS) == set(arguments.TASK_NAMES)


@pytest.mark.parametrize("recipe", ["sst2", pytest.param("rte", marks=pytest.mark.full)])
def test_leangpt_has_the_heads_too(recipe, tmp_path):
    run(recipe, "gpt", tmp_path)
