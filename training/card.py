"""README.md of a run folder, from config.json and results.json; ValueError where they do not fit each other."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig

from modeling_leaner.shapes import CONFIG_CLASSES

from . import report
from .arguments import TASKS, SettingsParser, tokens_of


HUB_TASK = {"masked-lm": "fill-mask", "causal-lm": "text-generation", "sequence-classification": "text-classification"}
FAMILIES = tuple(kind.model_type for kind in CONFIG_CLASSES.values())
SIZES = "hidden_size num_hidden_layers num_attention_heads head_dim intermediate_size".split()
FIELDS = {  # of results.json; what ends in ? may be missing or null
    dict: "metrics recipe train environment",
    str: "task dataset dataset_config? split shape architecture main_metric license? chance.name? environment.python "
    "environment.platform environment.processor environment.device environment.git_commit? train.peak_memory_kind",
    bool: "higher_is_better",
    int: "rows seed parameters train.steps train.peak_memory_bytes environment.threads",
    float: "learning_rate chance.value? train.seconds train.items_per_second? train.input_pipeline_share? train.loss?",
}


def check_fields(file: Path, values: dict[str, Any], fields: dict[type, str], prefix: str = "") -> None:
    """Raises ValueError for the first of `fields` that is missing or of another type; `values` are `report.flat`."""
    for kind, names in fields.items():
        for name in names.split():
            value, place = values.get(prefix + name.rstrip("?")), prefix + name.rstrip("?")
            good = type(value) in ((float, int) if kind is float else (kind,)) or (value is None and "?" in name)
            report.require(good, file, place, value, kind.__name__)
            if kind is int or name.rpartition(".")[2].startswith(("seconds", "epochs", "hours")):
                report.require(value is None or value >= 0, file, place, value, "a number from 0")


def read_run(folder: Path) -> tuple[PreTrainedConfig, dict[str, Any], dict[str, Any], str]:
    """Config, results, settings and command of a run; ValueError names the file and the missing or wrong field."""
    path, file = folder / "config.json", folder / "results.json"
    try:
        fields = report.flat(path, json.loads(path.read_text(encoding="utf-8")))
        for name, kind in {"model_type": str, **dict.fromkeys(SIZES, int)}.items():
            report.require(type(fields.get(name)) is kind, path, name, fields.get(name), kind.__name__)
        family = fields["model_type"]
        report.require(family in FAMILIES, path, "model_type", family, f"one of {FAMILIES}")
        config, path = AutoConfig.from_pretrained(folder, trust_remote_code=False), file
        results = report.flat(path, json.loads(path.read_text(encoding="utf-8")))
        check_fields(path, results, FIELDS)
        check_fields(path, results, {float: " ".join(name for name in results if name.startswith("metrics."))})
        classes = [target.split(".")[1] for target in config.auto_classes().values() if "For" in target]
        kind = results["architecture"]
        report.require(kind in classes, path, "architecture", kind, f"one of {classes}")
        parameters = config.count_parameters(results["architecture"]).total
        words = tokens_of({"shape": results["shape"], "seed": results["seed"], **results["recipe"]}, SettingsParser())
        settings = vars(SettingsParser().parse_tokens(words))
    except (OSError, ValueError, KeyError) as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from error
    main, metrics = "eval_" + results["main_metric"].removeprefix("eval_"), list(results["metrics"])
    report.require(results["task"] in TASKS, file, "task", results["task"], f"one of {TASKS}")
    report.require(main in metrics or not (metrics or results["rows"]), file, "main_metric", main, f"one of {metrics}")
    report.require(results["parameters"] == parameters, file, "parameters", results["parameters"], f"{parameters}")
    return config, results[""], settings, shlex.join(["leaner", "train", *words])


def metadata(results: dict[str, Any], metrics: dict[str, float], hub: bool = True) -> str:
    """The card's YAML: what the Hub shows and finds the model by, with the metrics as its model-index.

    Without `hub`, rows that are not known to be the Hub dataset's are not said to be.
    """
    task, dataset = HUB_TASK.get(results["task"], results["task"]), results["dataset"]
    if not hub:
        dataset = dataset.split("/")[-1] + "-local"
    elif not re.fullmatch(r"([\w.-]+/)?[\w.-]+", dataset):  # local data: a card names no path on somebody's disk
        dataset = re.sub(r"[^\w.]+", "-", Path(dataset).name).strip("-.") or "local"
    about = {"dataset_config": results.get("dataset_config"), "dataset_split": results["split"]}
    index = [EvalResult(task, dataset, dataset, *metric, **about) for metric in metrics.items()] or None
    general = {"library_name": "transformers", "license": results.get("license"), "tags": ["modeling_leaner"]}
    name = results.get("name") or "-".join(Path(results["shape"].removesuffix(".json")).parts[-2:])
    return ModelCardData(pipeline_tag=task, model_name=name, eval_results=index, **general).to_yaml()


def run_card(folder: Path) -> str:
    """The card of a run that is not published: its own numbers, nothing to compare them with."""
    config, results, settings, command = read_run(folder)
    train, machine, main = results["train"], results["environment"], results["main_metric"].removeprefix("eval_")
    named = {key.removeprefix("eval_"): value for key, value in results["metrics"].items()}
    metrics = {main: named[main], **named} if named else {}
    way, about = "higher" if results["higher_is_better"] else "lower", f"{results['rows']:,} | {results['split']}"
    scores = {f"**{name}** ({way} is better)" if name == main else name: metrics[name] for name in metrics}
    if chance := results.get("chance"):
        scores[f"{chance['name']}, for comparison"] = chance["value"]
    table = "\n".join(f"| {name} | {value:.4f} | {about} |" for name, value in scores.items())
    packages = [name for name in ("modeling_leaner", *report.PACKAGES) if name in machine]
    software = ", ".join(f"{name} {machine[name]}" for name in packages)
    rate, share = train.get("items_per_second"), train.get("input_pipeline_share")
    ended = "" if train.get("loss") is None else f", last training loss {train['loss']:.4f}"
    speed = "" if None in (rate, share) else f", {rate:,.1f} rows a second, {share:.1%} of the time waiting for data"
    where = folder.name if folder.is_absolute() else folder.as_posix()
    auto, processing = auto_names(config, results["architecture"])
    figure = "![Loss and metric against steps](training.png)\n" if (folder / "training.png").is_file() else ""
    flatters = settings["load_best_model_at_end"] or settings["early_stopping_patience"] is not None
    content = f"""---
{metadata(results, metrics)}
---

# {results["shape"]} on {results["dataset"]}

`{results["architecture"]}`, {results["parameters"]:,} parameters: {config.num_hidden_layers} layers of width
{config.hidden_size}, {"/".join(map(str, dict.fromkeys(config.heads_per_layer)))} heads of size {config.head_dim},
MLPs of width {config.intermediate_size}.

| held-out metric | value | rows | split |
|---|---|---|---|
{table or "| not evaluated | | | |"}

{figure}
One seed, evaluated on one split: a difference from another model may be chance, and other data may give other numbers.
{"The split also chose the checkpoint, so its numbers flatter the model." if flatters else ""}

```python
from transformers import {", ".join(sorted((auto, processing)))}
model = {auto}.from_pretrained("{where}", trust_remote_code=True)
processing = {processing}.from_pretrained("{where}", trust_remote_code=True)
```

## Training

{train["steps"]:,} steps in {train["seconds"]:,.0f} s{speed}{ended}; peak memory
{train["peak_memory_bytes"] / 2**30:.2f} GiB ({train["peak_memory_kind"]}). Seed {results["seed"]}, optimiser
{"Muon and AdamW" if settings["muon"] else settings["optim"]}, highest learning rate {results["learning_rate"]:.4g},
schedule {settings["lr_scheduler_type"]}, warm-up {settings["warmup_steps"]}, weight decay {settings["weight_decay"]},
{settings["per_device_train_batch_size"]} rows × {settings["gradient_accumulation_steps"]} a step. Once more, the same:

```bash
{command}
leaner evaluate {shlex.quote(where)}
```

Device: {machine["device"]}. Processor: {report.machine(machine)}. Python
{machine["python"]} on {machine["platform"]}; {software}; commit {machine.get("git_commit") or "unknown"}.
"""
    return str(ModelCard(content))


def check_weights(folder: Path, architecture: str, config: PreTrainedConfig) -> None:
    """Raises ValueError where model.safetensors, if there is one, does not hold the tensors of the configuration."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return
    with torch.device("meta"):
        model_class = getattr(transformers, f"AutoModel{'For' + architecture.split('For')[1]}")
        model = model_class.from_config(config, trust_remote_code=False)
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    try:
        with safe_open(path, framework="pt") as file:
            held = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or not safetensors ({error})") from error
    for name in sorted(expected.keys() | held.keys()):
        if name in tied and name not in held:
            continue
        if held.get(name) != expected.get(name):
            raise ValueError(f"{path}: {name} is {held.get(name)}, expected {expected.get(name)} of config.json")


def auto_names(config: PreTrainedConfig, architecture: str) -> tuple[str, str]:
    """The Auto classes of the model and of what prepares its inputs."""
    processing = "AutoImageProcessor" if config.model_type == "lean_vit" else "AutoTokenizer"
    return "AutoModelFor" + architecture.split("For")[1], processing


def write_run_card(folder: Path) -> None:
    """README.md of a run folder, written whole; ValueError as of `read_run`."""
    report.write_bytes(folder / "README.md", run_card(folder).encode())
