"""What a finished run folder says of itself: its environment and memory, a figure, its numbers, and its model card."""

import io
import json
import math
import os
import platform
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from matplotlib.figure import Figure
from transformers import AutoConfig, PreTrainedConfig

import modeling_leaner

from .arguments import TASKS, SettingsParser, tokens_of


PACKAGES = "torch transformers accelerate datasets tokenizers safetensors huggingface_hub numpy".split()
CPU_INFO, PROCESS_STATUS = Path("/proc/cpuinfo"), Path("/proc/self/status")
HUB_TASK = {"masked-lm": "fill-mask", "causal-lm": "text-generation", "sequence-classification": "text-classification"}
SIZES = "hidden_size num_hidden_layers num_attention_heads head_dim intermediate_size".split()
FIELDS = {  # of results.json; what ends in ? may be missing or null
    dict: "metrics recipe train environment",
    str: "task dataset dataset_config? split shape architecture main_metric license? chance.name? environment.python "
    "environment.platform environment.processor environment.device environment.git_commit? train.peak_memory_kind",
    bool: "higher_is_better",
    int: "rows seed parameters train.steps train.peak_memory_bytes environment.threads",
    float: "learning_rate chance.value? train.seconds train.items_per_second? train.input_pipeline_share? train.loss?",
}


def found(pattern: str, path: Path) -> str | None:
    """What the pattern's group matches in a line of the file; None without match or file."""
    match = re.search(f"^{pattern}$", path.read_text(encoding="utf-8") if path.is_file() else "", re.MULTILINE)
    return match[1].strip() if match else None


def git(folder: Path, *words: str) -> str | None:
    """What a git command prints; None where git is missing or fails."""
    try:
        return check_output(("git", "--no-optional-locks", "-C", folder, *words), stderr=DEVNULL, text=True).strip()
    except (OSError, CalledProcessError):
        return None


def git_commit(package: Path) -> str | None:
    """Commit of the clone that `package` is the package folder of; None for a copy elsewhere, as in site-packages.

    "-dirty" follows where the work tree differs from it, by a change or by a new file that git does not ignore.
    """
    clone = package.resolve().parent
    ours = (clone / ".git").exists() and found("name = (modeling_leaner)", clone / "setup.cfg")
    commit = git(clone, "rev-parse", "HEAD") if ours else None
    return commit and commit + ("" if git(clone, "status", "--porcelain") == "" else "-dirty")


def used_gpus() -> list[int]:
    """Indices of the CUDA devices on which this process has allocated memory."""
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.max_memory_allocated(index) > 0]


def environment() -> dict[str, str | int | None]:
    """Software and hardware of this process; `device` names what was used so far, so ask after the training."""
    metal = torch.backends.mps.is_available() and torch.mps.driver_allocated_memory() > 0
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": found(r"model name\s*:(.+)", CPU_INFO) or platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "device": ", ".join(map(torch.cuda.get_device_name, used_gpus())) or ("mps" if metal else "cpu"),
        "modeling_leaner": modeling_leaner.__version__,
        **{name: version(name) for name in PACKAGES},
        "git_commit": git_commit(Path(modeling_leaner.__file__).parent),
    }


def peak_memory_bytes() -> tuple[int, str]:
    """The most memory that this process has held, in bytes, and what that measures; 0 where nothing can be asked."""
    if used := used_gpus():
        return max(map(torch.cuda.max_memory_allocated, used)), "allocated by tensors, on the fullest GPU"
    kind = "resident memory of the process"
    if peak := found(r"VmHWM:\s*(\d+) kB", PROCESS_STATUS):  # on Linux getrusage counts what the parent held, too
        return int(peak) * 1024, kind
    try:
        import resource
    except ImportError:  # Windows
        return 0, "not measured on this platform"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024), kind


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def require(condition: bool, path: Path, name: str, value: object, expected: str) -> None:
    if not condition:
        raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")


def flat(path: Path, value: object, name: str = "") -> dict[str, Any]:
    """The values in nested dicts and lists by name, `train.loss`; ValueError, with file and name, for NaN and inf."""
    require(not isinstance(value, float) or math.isfinite(value), path, name, value, "a finite number")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    parts = [flat(path, each, f"{name}.{key}" if name else str(key)) for key, each in items]
    return {name: value} | {key: each for part in parts for key, each in part.items()}


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file whole or not at all; ValueError as of `flat`."""
    flat(path, document)
    write_bytes(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def plot(metrics_file: Path, output: Path, metric: str) -> None:
    """PNG of two panels against steps: the training and the held-out loss, and the held-out `metric`."""
    figure, content, metric = Figure((10, 3.8), layout="constrained"), io.BytesIO(), metric.removeprefix("eval_")
    rows = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    unit = "squared error" if metric in ("pearson", "spearman", "squared_error") else "nats"
    labels = (f"loss, {unit}", {"loss": f"loss, {unit}"}.get(metric, metric.replace("_", " ")))
    for axis, label, names in zip(figure.subplots(1, 2), labels, (("loss", "eval_loss"), (f"eval_{metric}",))):
        for name in names:
            points = {row["step"]: row[name] for row in rows if row.get(name) is not None}  # the last, where repeated
            line, colour = ("held-out", "tab:orange") if name.startswith("eval_") else ("training", "tab:blue")
            line += "" if points else ": none"
            axis.plot(sorted(points), [points[step] for step in sorted(points)], ".-", color=colour, label=line)
        axis.set(xlabel="training step (updates of the weights)", ylabel=label)
        axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    figure.savefig(content, format="png", dpi=120)
    write_bytes(output, content.getvalue())


def read_run(folder: Path) -> tuple[PreTrainedConfig, dict[str, Any], dict[str, Any], str]:
    """Config, results, settings and command of a run; ValueError names the file and the missing or wrong field."""
    path, file = folder / "config.json", folder / "results.json"
    try:
        fields = flat(path, json.loads(path.read_text(encoding="utf-8")))
        for name, kind in {"model_type": str, **dict.fromkeys(SIZES, int)}.items():
            require(type(fields.get(name)) is kind, path, name, fields.get(name), kind.__name__)
        config, path = AutoConfig.from_pretrained(folder, trust_remote_code=False), file
        results = flat(path, json.loads(path.read_text(encoding="utf-8")))
        for kind, names in FIELDS.items():
            scores = [name for name in results if name.startswith("metrics.")] if kind is float else []
            for name in names.split() + scores:
                value = results.get(name.rstrip("?"))
                good = type(value) in ((float, int) if kind is float else (kind,)) or (value is None and "?" in name)
                require(good, path, name.rstrip("?"), value, kind.__name__)
        classes = [target.split(".")[1] for target in config.auto_classes().values() if "For" in target]
        require(results["architecture"] in classes, path, "architecture", results["architecture"], f"one of {classes}")
        parameters = config.count_parameters(results["architecture"]).total
        words = tokens_of({"shape": results["shape"], "seed": results["seed"], **results["recipe"]}, SettingsParser())
        settings = vars(SettingsParser().parse_tokens(words))
    except (OSError, ValueError, KeyError) as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from error
    main, metrics = "eval_" + results["main_metric"].removeprefix("eval_"), list(results["metrics"])
    require(results["task"] in TASKS, file, "task", results["task"], f"one of {TASKS}")
    require(main in metrics or not (metrics or results["rows"]), file, "main_metric", main, f"one of {metrics}")
    require(results["parameters"] == parameters, file, "parameters", results["parameters"], f"{parameters}")
    return config, results[""], settings, shlex.join(["leaner", "train", *words])


def metadata(results: dict[str, Any], metrics: dict[str, float]) -> str:
    """The card's YAML: what the Hub shows and finds the model by, with the metrics as its model-index."""
    task, dataset = HUB_TASK.get(results["task"], results["task"]), results["dataset"]
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", dataset):  # local data: a card names no path on somebody's disk
        dataset = re.sub(r"[^\w.]+", "-", Path(dataset).name).strip("-.") or "local"
    about = {"dataset_config": results.get("dataset_config"), "dataset_split": results["split"]}
    index = [EvalResult(task, dataset, dataset, *metric, **about) for metric in metrics.items()] or None
    general = {"library_name": "transformers", "license": results.get("license"), "tags": ["modeling_leaner"]}
    name = "-".join(Path(results["shape"].removesuffix(".json")).parts[-2:])
    return ModelCardData(pipeline_tag=task, model_name=name, eval_results=index, **general).to_yaml()


def write_card(folder: Path) -> None:
    """README.md of a run folder from its config.json and results.json, written whole; ValueError as of `read_run`."""
    config, results, settings, command = read_run(folder)
    train, machine, main = results["train"], results["environment"], results["main_metric"].removeprefix("eval_")
    named = {key.removeprefix("eval_"): value for key, value in results["metrics"].items()}
    metrics = {main: named[main], **named} if named else {}
    way, about = "higher" if results["higher_is_better"] else "lower", f"{results['rows']:,} | {results['split']}"
    scores = {f"**{name}** ({way} is better)" if name == main else name: metrics[name] for name in metrics}
    if chance := results.get("chance"):
        scores[f"{chance['name']}, for comparison"] = chance["value"]
    table = "\n".join(f"| {name} | {value:.4f} | {about} |" for name, value in scores.items())
    software = ", ".join(f"{name} {machine[name]}" for name in ("modeling_leaner", *PACKAGES) if name in machine)
    rate, share = train.get("items_per_second"), train.get("input_pipeline_share")
    ended = "" if train.get("loss") is None else f", last training loss {train['loss']:.4f}"
    speed = "" if None in (rate, share) else f", {rate:,.1f} rows a second, {share:.1%} of the time waiting for data"
    where = folder.name if folder.is_absolute() else folder.as_posix()
    auto = "AutoModelFor" + results["architecture"].split("For")[1]
    processing = "AutoImageProcessor" if config.model_type == "lean_vit" else "AutoTokenizer"
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

Device: {machine["device"]}. Processor: {machine["processor"]}, {machine["threads"]} threads. Python
{machine["python"]} on {machine["platform"]}; {software}; commit {machine.get("git_commit") or "unknown"}.
"""
    write_bytes(folder / "README.md", str(ModelCard(content)).encode())
