"""`make demo`: a baseline and its lean twin of each family, trained by the same recipe on data that needs no download.

Writes `runs/demo/<family>-<shape>/` as Hub-ready folders and one figure, loads every folder back in a fresh process,
and prints a table; the last line of stdout is one JSON document with every number of the table.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
import transformers
from datasets import Dataset
from huggingface_hub import ModelCard, ModelCardData
from rich.console import Console
from rich.table import Table
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    ViTImageProcessorPil,
    default_data_collator,
    set_seed,
)

from modeling_leaner import LeanBERTForSequenceClassification, LeanGPTForCausalLM, LeanViTForImageClassification
from modeling_leaner.shapes import load_shape

from .data import builtin as data
from .data.tokenizer import train_tokenizer


matplotlib.use("Agg")

OUTPUT = Path("runs/demo")
CAPTION = (
    "One seed: no conclusion. s.e.: over held-out items, as if independent; an item is an image, an expression or a "
    "row of 128 tokens. KV: bfloat16."
)
SEED = 0


def checked(rows: Dataset, labels: int, vocabulary: int | None = None) -> Dataset:
    """The rows, once their labels and token ids fit the model (on a GPU the model itself cannot say so)."""
    limit = "num_labels"
    if vocabulary == labels:
        limit = "vocab_size"
    data.check_range(rows, "labels", labels, limit)
    if vocabulary is not None:
        data.check_range(rows, "input_ids", vocabulary, "vocab_size")
    return rows


@dataclass(frozen=True)
class Task:
    """One family's half of the demo: its data, ready for the Trainer, and how quality is read from each held-out item.

    `items` turns predictions and labels into one number per item; `chance` is the same number per item for a guess
    that looks at no input. `higher_is_better` says which way is up.
    """

    family: str
    name: str
    metric: str
    higher_is_better: bool
    model_class: type[PreTrainedModel]
    overrides: dict[str, object]
    recipe: dict[str, object]
    train: Dataset
    test: Dataset
    processing: object
    items: Callable[[torch.Tensor, torch.Tensor], np.ndarray]
    chance: np.ndarray
    sample: dict[str, object]
    padded: bool = False


def correct_items(logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """100 where the largest logit is the label, else 0: logits (B, classes), labels (B,)."""
    return 100.0 * (logits.argmax(-1) == labels).numpy()


def loss_items(logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Mean next-token loss of each row in nats per token: logits (B, T, V), labels (B, T)."""
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return losses.mean(1).numpy()


def majority_items(train_labels: list[int], test_labels: list[int]) -> np.ndarray:
    """100 where the label is the most frequent one of the training split."""
    majority = Counter(train_labels).most_common(1)[0][0]
    return 100.0 * (np.array(test_labels) == majority)


def digits_task() -> Task:
    """LeanViT on scikit-learn's digits."""
    splits = data.digits(SEED)
    processor = ViTImageProcessorPil(
        do_resize=False, size={"height": 8, "width": 8}, image_mean=[0.5], image_std=[0.5], resample=None
    )

    def prepare(batch: dict) -> dict:
        return {"pixel_values": processor(batch["image"])["pixel_values"], "labels": batch["label"]}

    train, test = (
        splits[name].map(prepare, batched=True, remove_columns=splits[name].column_names).with_format("torch")
        for name in ("train", "test")
    )
    labels = splits["train"].features["label"].names
    return Task(
        family="vit",
        name="digits (scikit-learn, 8×8)",
        metric="accuracy, %",
        higher_is_better=True,
        model_class=LeanViTForImageClassification,
        overrides={"num_labels": len(labels)},
        recipe={"learning_rate": 1e-3, "per_device_train_batch_size": 64, "num_train_epochs": 12},
        train=checked(train, len(labels)),
        test=checked(test, len(labels)),
        processing=processor,
        items=correct_items,
        chance=majority_items(splits["train"]["label"], splits["test"]["label"]),
        sample={"pixels": np.asarray(splits["test"][0]["image"]).tolist(), "answer": splits["test"][0]["label"]},
    )


def python_docs_task(length: int = 128) -> Task:
    """LeanGPT on the documentation of the standard library, packed into rows of `length` tokens."""
    splits = data.python_docs()
    config = load_shape("gpt/nano")
    texts = splits["train"]["text"]
    processing = train_tokenizer(texts, "byte-bpe", config.vocab_size, config.max_position_embeddings, "gpt")

    def pack(split: Dataset) -> Dataset:
        documents = processing(split["text"][:], verbose=False)["input_ids"]
        stream = [token for document in documents for token in [*document, processing.eos_token_id]]
        rows = np.array(stream[: len(stream) // length * length]).reshape(-1, length)
        return Dataset.from_dict({"input_ids": rows, "labels": rows}).with_format("torch")

    train = pack(splits["train"])
    test = pack(splits["test"])
    counts = np.bincount(np.array(train["input_ids"]).ravel(), minlength=config.vocab_size) + 1.0
    unigram = -np.log(counts / counts.sum())
    return Task(
        family="gpt",
        name="documentation of the Python standard library",
        metric="loss, nats/token",
        higher_is_better=False,
        model_class=LeanGPTForCausalLM,
        overrides={},
        recipe={"learning_rate": 2e-3, "per_device_train_batch_size": 8, "num_train_epochs": 1},
        train=checked(train, config.vocab_size, config.vocab_size),
        test=checked(test, config.vocab_size, config.vocab_size),
        processing=processing,
        items=loss_items,
        chance=unigram[np.array(test["input_ids"])[:, 1:]].mean(1),
        sample={"text": "Return the"},
    )


def listops_task() -> Task:
    """LeanBERT on short ListOps expressions."""
    splits = data.listops(data.SMALL_LISTOPS, train=16_000, test=1_000, seed=SEED)
    config = load_shape("bert/nano")
    texts = splits["train"]["source"]
    processing = train_tokenizer(texts, "words", config.vocab_size, config.max_position_embeddings, "bert")

    def prepare(batch: dict) -> dict:
        return {**processing(batch["source"], return_token_type_ids=False), "labels": batch["label"]}

    train, test = (
        splits[name].map(prepare, batched=True, remove_columns=["source", "label"]) for name in ("train", "test")
    )
    return Task(
        family="bert",
        name="ListOps, short trees",
        metric="accuracy, %",
        higher_is_better=True,
        model_class=LeanBERTForSequenceClassification,
        overrides={"num_labels": 10, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        recipe={"learning_rate": 1e-3, "per_device_train_batch_size": 64, "num_train_epochs": 2},
        train=checked(train, 10, config.vocab_size),
        test=checked(test, 10, config.vocab_size),
        processing=processing,
        items=correct_items,
        chance=majority_items(splits["train"]["label"], splits["test"]["label"]),
        sample={"text": splits["test"][0]["source"], "answer": splits["test"][0]["label"]},
        padded=True,
    )


def train_one(task: Task, shape: str, folder: Path) -> tuple[PreTrainedModel, Trainer, float]:
    """Trains one shape by the task's recipe, saves it Hub-ready, and returns it with the seconds of training."""
    set_seed(SEED)
    model = task.model_class(load_shape(f"{task.family}/{shape}", **task.overrides))
    collator = default_data_collator
    if task.padded:
        collator = DataCollatorWithPadding(task.processing)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            seed=SEED,
            weight_decay=0.05,
            warmup_steps=50,
            lr_scheduler_type="cosine",
            max_grad_norm=1.0,
            per_device_eval_batch_size=128,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=False,
            dataloader_pin_memory=torch.cuda.is_available(),
            **task.recipe,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=task.train,
            processing_class=task.processing,
            data_collator=collator,
        )
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        trainer.save_model(str(folder))
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle; the card states the recipe
    return model.eval(), trainer, seconds


@torch.inference_mode()
def predict(task: Task, model: PreTrainedModel, trainer: Trainer) -> np.ndarray:
    """Quality of each held-out item, in the order of the split."""
    items = []
    for batch in trainer.get_eval_dataloader(task.test):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = batch.pop("labels")
        items.append(task.items(model(**batch).logits.float().cpu(), labels.cpu()))
    return np.concatenate(items)


@torch.inference_mode()
def items_per_second(models: list[PreTrainedModel], batch: dict[str, torch.Tensor], rounds: int = 7) -> list[float]:
    """Median inference rate of each model on one batch, the models taking turns."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds + 1):
        for model, seconds in zip(models, times):
            start = time.perf_counter()
            model(**batch)
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    size = len(next(iter(batch.values())))
    return [size / float(np.median(seconds[1:])) for seconds in times]  # the first round warms up


def run_pair(task: Task) -> list[dict[str, object]]:
    """Trains, measures and saves both shapes of one family: a row each, the twin's with the difference."""
    rows = []
    models = []
    trainers = []
    qualities = []
    for shape in ("nano", "lean-nano"):
        Console(stderr=True).print(f"[bold]{task.family}/{shape}[/bold] on {task.name}")
        folder = OUTPUT / f"{task.family}-{shape}"
        model, trainer, seconds = train_one(task, shape, folder)
        config = model.config
        qualities.append(predict(task, model, trainer))
        models.append(model)
        trainers.append(trainer)
        rows.append(
            {
                "family": task.family,
                "shape": shape,
                "folder": str(folder),
                "data": task.name,
                "metric": task.metric,
                "parameters": model.num_parameters(),
                "layers": config.num_hidden_layers,
                "heads": config.heads_per_layer[0],
                "head_dim": config.head_dim,
                "kv_bytes_per_token": config.kv_bytes_per_token(),
                "quality": float(qualities[-1].mean()),
                "chance": float(task.chance.mean()),
                "held_out_items": len(qualities[-1]),
                "training_seconds": seconds,
            }
        )
    batch = next(iter(trainers[0].get_eval_dataloader(task.test)))
    batch = {name: tensor.to(models[0].device) for name, tensor in batch.items() if name != "labels"}
    for row, rate in zip(rows, items_per_second(models, batch)):
        row["inference_items_per_second"] = rate
    learned = beats_chance(qualities[0], task.chance, task.higher_is_better)
    difference = qualities[1] - qualities[0]
    for row in rows:
        row["learned"] = learned
    rows[1]["difference"] = float(difference.mean())
    rows[1]["difference_standard_error"] = float(difference.std(ddof=1) / math.sqrt(len(difference)))
    for row in rows:
        write_card(task, row)
    return rows


def beats_chance(quality: np.ndarray, chance: np.ndarray, higher_is_better: bool) -> bool:
    """Whether the mean advantage over chance, item by item, exceeds three standard errors."""
    advantage = quality - chance
    if not higher_is_better:
        advantage = chance - quality
    return bool(advantage.mean() > 3 * advantage.std(ddof=1) / math.sqrt(len(advantage)))


PIPELINES = {"vit": "image-classification", "bert": "text-classification", "gpt": "text-generation"}
AUTO_CLASSES = {
    "vit": "AutoModelForImageClassification",
    "bert": "AutoModelForSequenceClassification",
    "gpt": "AutoModelForCausalLM",
}


def write_card(task: Task, row: dict[str, object]) -> None:
    """The model card of one folder, from its numbers."""
    pipeline = PIPELINES[task.family]
    metadata = ModelCardData(
        library_name="transformers", pipeline_tag=pipeline, license="apache-2.0", tags=["modeling_leaner"]
    )
    chance = "unigram"
    if task.higher_is_better:
        chance = "majority class"
    recipe = ", ".join(f"{key} {value}" for key, value in task.recipe.items())
    content = f"""---
{metadata.to_yaml()}
---

# {task.family}/{row["shape"]}, a demonstration

A miniature of {row["parameters"]:,} parameters ({row["layers"]} layers, {row["heads"]} heads of {row["head_dim"]}),
trained by `make demo` for less than a minute or so, on one seed. It shows that the pieces work and supports no
conclusion about shapes. Data: {task.name}.

| held-out {task.metric} | {chance} | items | training seconds |
|---|---|---|---|
| {row["quality"]:.3f} | {row["chance"]:.3f} | {row["held_out_items"]} | {row["training_seconds"]:.1f} |

Recipe, the same for the pair: {recipe}; AdamW, weight decay 0.05, 50 warm-up steps, cosine decay.

```python
from transformers import {AUTO_CLASSES[task.family]}

model = {AUTO_CLASSES[task.family]}.from_pretrained("{row["folder"]}", trust_remote_code=True)
```
"""
    ModelCard(content).save(Path(str(row["folder"])) / "README.md")


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Quality against parameters, a panel per family."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, family in zip(axes, ("vit", "bert", "gpt")):
        pair = [row for row in rows if row["family"] == family]
        for row, colour in zip(pair, ("tab:blue", "tab:orange")):
            shape = f"{row['shape']}: {row['layers']} layers × {row['heads']} heads"
            axis.plot(row["parameters"] / 1e6, row["quality"], "o", color=colour, markersize=9, label=shape)
        chance = "majority"
        if family == "gpt":
            chance = "unigram"
        axis.axhline(pair[0]["chance"], color="grey", linestyle=":", label=chance)
        axis.set(title=f"{family}: {pair[0]['data']}", xlabel="parameters, millions", ylabel=pair[0]["metric"])
        axis.title.set_size(9)
        axis.set_xlim(0, 1.1 * pair[0]["parameters"] / 1e6)
        axis.legend(fontsize=8, loc="center")
    figure.suptitle("One seed: no conclusion", fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def table(rows: list[dict[str, object]]) -> Table:
    """The rows for people."""
    out = Table(title="A baseline and its lean twin, trained by the same recipe", caption=CAPTION)
    out.add_column("shape", justify="left")
    for name in ("parameters", "layers × heads × size", "KV bytes/token", "held-out quality", "chance"):
        out.add_column(name, justify="right")
    for name in ("difference ± s.e.", "training s", "items/s"):
        out.add_column(name, justify="right")
    for row in rows:
        cache = "–"
        if row["kv_bytes_per_token"] is not None:
            cache = f"{row['kv_bytes_per_token']:,}"
        difference = ""
        if "difference" in row:
            difference = f"{row['difference']:+.3f} ± {row['difference_standard_error']:.3f}"
        if not row["learned"]:
            difference = "not learned"
        out.add_row(
            f"{row['family']}/{row['shape']}",
            f"{row['parameters']:,}",
            f"{row['layers']} × {row['heads']} × {row['head_dim']}",
            cache,
            f"{row['quality']:.3f} {row['metric']}",
            f"{row['chance']:.3f}",
            difference,
            f"{row['training_seconds']:.1f}",
            f"{row['inference_items_per_second']:,.0f}",
        )
    return out


FRESH_PROCESS = """
import json, sys
import numpy as np, torch, transformers
from PIL import Image
from transformers.models.auto.image_processing_auto import AutoImageProcessor
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
for folder, auto_name, sample in json.load(sys.stdin):
    model = getattr(transformers, auto_name).from_pretrained(folder, trust_remote_code=True).eval()
    if "pixels" in sample:
        processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=True)
        inputs = processor([Image.fromarray(np.uint8(sample["pixels"]))], return_tensors="pt")
        shown = f"an image of {sample['answer']} → {model(**inputs).logits.argmax().item()}"
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        inputs = tokenizer([sample["text"]], return_tensors="pt")
        if "answer" in sample:
            shown = f"{sample['text']} = {sample['answer']} → {model(**inputs).logits.argmax().item()}"
        else:
            tokens = model.generate(**inputs, max_new_tokens=24, do_sample=False, repetition_penalty=1.3)
            shown = repr(tokenizer.decode(tokens[0], skip_special_tokens=True))
    print(f"{folder}: {shown}", flush=True)
"""


def load_back(rows: list[dict[str, object]], samples: dict[str, dict[str, object]]) -> list[str]:
    """Loads every folder by its Auto class in a fresh process that starts elsewhere; returns what each model said."""
    jobs = [
        (str(Path(str(row["folder"])).resolve()), AUTO_CLASSES[str(row["family"])], samples[str(row["family"])])
        for row in rows
    ]
    with tempfile.TemporaryDirectory() as elsewhere:
        process = subprocess.run(
            [sys.executable, "-c", FRESH_PROCESS],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            cwd=elsewhere,
            check=False,
        )
    if process.returncode != 0:
        raise RuntimeError(f"loading the saved folders back failed:\n{process.stderr}")
    return process.stdout.strip().splitlines()


def main() -> None:
    """Runs the demo; see the module's docstring."""
    start = time.perf_counter()
    transformers.logging.set_verbosity_error()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    rows = []
    samples = {}
    for make_task in (digits_task, listops_task, python_docs_task):
        task = make_task()
        samples[task.family] = task.sample
        rows += run_pair(task)
    draw(rows, OUTPUT / "pairs.png")
    width = 150
    if sys.stdout.isatty():
        width = None  # as wide as the terminal
    console = Console(width=width)
    console.print(table(rows))
    console.print("Loaded back in a fresh process:")
    for row, line in zip(rows, load_back(rows, samples)):
        row["said"] = line.split(": ", 1)[1]
        console.print("  " + line, markup=False, highlight=False, soft_wrap=True)
    document = {
        "seed": SEED,
        "verdict": "one seed: no conclusion",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "seconds": time.perf_counter() - start,
        "figure": str(OUTPUT / "pairs.png"),
        "rows": rows,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
