"""A tiny sentence encoder, its cut, two recoveries of that, and rows to score them on."""

import json
import shutil
from pathlib import Path

import yaml
from command import invoked
from datasets import ClassLabel, Dataset
from modeling_leaner.training import train
from training_data import documents, labelled, save_encoder


POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
TRAIN = """--task embedding --max_steps 4 --per_device_train_batch_size 8 --learning_rate 1e-3 --eval_strategy no
--save_strategy no --disable_tqdm true --preprocessing_workers 1 --use_cpu true --dropout 0 --max_length 16
--dataset LTCB/enwik8 --holdout 0""".split()


def save_sentence_encoder(folder: Path, **changes: object) -> Path:
    """An encoder with the files of sentence-transformers, which cut at 24 tokens, its tokenizer at 20."""
    save_encoder(folder, **{"num_hidden_layers": 3, "initializer_range": 0.3, **changes})
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 24, "do_lower_case": false}')
    document = json.loads((folder / "tokenizer.json").read_text())
    document["truncation"] = {"direction": "Right", "max_length": 20, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def write_rows(folder: Path) -> list[str]:
    """Small copies of the rows, as words after --data."""
    for name in ("stsb", "qnli", "sst2"):
        (folder / name).mkdir(parents=True)
    for split, seed in (("validation", 1), ("test", 2)):
        labelled(24, seed, ("sentence1", "sentence2"), 0).to_parquet(folder / "stsb" / f"{split}.parquet")
    questions = labelled(30, 3, ("question", "sentence"), 2)
    questions = questions.cast_column("label", ClassLabel(names=["entailment", "not_entailment"]))
    questions.to_parquet(folder / "qnli" / "validation.parquet")
    for split, count, seed in (("train", 40, 4), ("validation", 30, 5)):
        labelled(count, seed, ("sentence",), 2).to_parquet(folder / "sst2" / f"{split}.parquet")
    held_out = labelled(20, 6, ("text",), 2)["text"]
    Dataset.from_dict({"text": held_out}).to_parquet(folder / "held-out.parquet")
    names = ("stsb", "qnli", "sst2")
    return [*(f"{name}={folder / name}" for name in names), f"sentences={folder / 'held-out.parquet'}"]


def cut_and_recover(folder: Path) -> tuple[Path, Path]:
    """The parent, and a run from the weights of an earlier one, which lies beside it in `run`."""
    parent = save_sentence_encoder(folder / "parent")
    texts = [documents(1, row, words=4 + row % 7)["text"][0] for row in range(40)]  # of different lengths
    files = []
    for split in ("train", "validation"):
        path = folder / f"{split}.parquet"
        Dataset.from_dict({"text": texts}).to_parquet(path)
        files.append(f"{split}={path}")
    cut = folder / "cut"
    result = invoked("slim", parent, cut, "--layers", 2, "--lean", "--no-training", "--data", folder / "train.parquet")
    assert result.exit_code == 0, result.output
    for shape, output in (("cut", "run"), ("run", "run-again")):
        words = ["--shape", folder / shape, "--teacher", parent, "--output_dir", folder / output]
        train.main([*TRAIN, *map(str, words), "--data_files", *files])
    return parent, folder / "run-again"


def write_stand_ins(folder: Path) -> None:
    """In place of what docs/tutorial-encoder.md has from the Hub: a tiny encoder, rows of GLUE and STS-B, articles."""
    owner = folder / "sentence-transformers"
    save_sentence_encoder(owner / "all-MiniLM-L6-v2", num_hidden_layers=6, max_position_embeddings=64)
    glue = folder / "nyu-mll" / "glue"
    write_rows(glue)
    configs = []
    for name in ("stsb", "qnli", "sst2"):
        files = [{"split": path.stem, "path": f"{name}/{path.name}"} for path in (glue / name).glob("*.parquet")]
        configs.append({"config_name": name, "data_files": files})
    header = yaml.safe_dump({"configs": configs})
    (glue / "README.md").write_text(f"---\n{header}---\n")
    shutil.copytree(glue / "stsb", folder / "mteb" / "stsbenchmark-sts")
    shutil.copytree(glue / "sst2", folder / "stanfordnlp" / "sst2")
    (folder / "articles").mkdir()
    for split, seed in (("train", 8), ("validation", 9)):
        documents(120, seed, words=9).to_parquet(folder / "articles" / f"{split}.parquet")
