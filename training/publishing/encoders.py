"""A sentence encoder in model_cards/: what `leaner train --shape CUT --teacher PARENT` made, beside its parent.

The folder is a plain BertModel if all layers have the same number of heads, with the files of sentence-transformers
and the ONNX graph in 8 bits. results.json holds how it was trained and the scores of `leaner evaluate`.
"""

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path

import torch

from modeling_leaner import exporting
from modeling_leaner.conversion import ConversionError, convert, load_lean
from modeling_leaner.files import read_json, sha256, whole_folder, write_bytes, write_json
from modeling_leaner.hub import RECORD, copy_into, load_processors, sentence_transformers_files, without_local_paths
from modeling_leaner.layers_leaner import WEIGHTS
from modeling_leaner.terminal import quiet_libraries

from ..experiments import embedding_benchmark
from ..records import RESULTS
from ..settings import without_idle_steps, words_of
from .cards import STS_TESTS, finish
from .folders import CARDS, ENCODER, MODULES, is_encoder


LENGTH_FILE = "sentence_bert_config.json"
VERSIONS_FILE = "config_sentence_transformers.json"
TOLERANCES = {WEIGHTS: 0.002, exporting.ONNX_INT8_FILE: 0.006}  # how far a score may be off on another processor


@dataclass(frozen=True)
class Origin:
    """What an encoder is made of.

    Attributes:
        run: folder of the finished run of `leaner train`.
        parent: folder or Hub id of the encoder that was cut, and `base_model`, its Hub id.
        texts: sources of the training sentences, for the card.
    """

    run: Path
    parent: str
    base_model: str
    license: str | None = None
    texts: str | None = None


def publish_encoder(
    name: str, origin: Origin, data: Sequence[str], rounds: int, threads: int, replace: bool = False
) -> Path:
    """Writes the folder, whole or not at all; the benchmark reads it as its users do.

    Args:
        data: as of `embedding_benchmark.local_copies`.
        rounds, threads: of the timing.

    Returns:
        the folder.

    Raises:
        ValueError, OSError: the folder is there already; run, cut and parent do not belong together; a file or rows
            are missing.
    """
    quiet_libraries()
    target = CARDS / name
    if target.exists() and not (replace and is_encoder(target)):
        raise ValueError(f"{target} exists already; choose another name, or --replace it")
    rows = embedding_benchmark.local_copies(data or list(embedding_benchmark.SOURCES))
    if len(STS_TESTS & rows.keys()) < 2 or not {"stsb_test", "qnli"} <= rows.keys():
        raise ValueError(f"--data: expected stsb_test, qnli and at least two of {', '.join(sorted(STS_TESTS))}")
    run, cut = read_origin(origin)
    others = sentence_transformers_files(origin.parent)
    if MODULES not in others:
        raise ValueError(f"{origin.parent}: no {MODULES}; expected an encoder of sentence-transformers")
    torch.set_num_threads(threads)
    with whole_folder(target, replace) as folder, tempfile.TemporaryDirectory() as scratch:
        folder.mkdir()
        shape = write_model(folder, origin, others)
        exported = Path(scratch, "parent"), Path(scratch, "own")
        for source, output in zip((origin.parent, str(folder)), exported):
            exporting.export(source, output)
        int8 = folder / exporting.ONNX_INT8_FILE
        int8.parent.mkdir()
        shutil.move(exported[1] / exporting.ONNX_INT8_FILE, int8)
        sources = [origin.parent, str(folder), str(exported[0] / exporting.ONNX_INT8_FILE), str(int8)]
        benchmark = embedding_benchmark.compare(sources, rows, rounds)
        short = Path(origin.base_model).name
        for measured, title in zip(benchmark["models"], (short, name, f"{short}, int8", f"{name}, int8")):
            measured["model"] = title
        results = {
            "kind": ENCODER,
            "name": name,
            "base_model": origin.base_model,
            "license": origin.license,
            "texts": origin.texts,
            **shape,
            "cuts": cut["cuts"],
            "commands": commands_of(name, origin, run, cut, rows),
            "training": {key: run[key] for key in ("seed", "learning_rate", "train", "training_data", "environment")},
            "benchmark": benchmark,
            "sha256": {file: sha256(folder / file) for file in TOLERANCES},
        }
        finish(folder, results)
    return target


def read_origin(origin: Origin) -> tuple[dict, dict]:
    """The results of the run, and the slim.json of the folder that it began from.

    Raises OSError if a file is missing, ValueError if the run's teacher is not the parent.
    """
    run = read_json(origin.run / RESULTS)
    teacher = run["recipe"].get("teacher")
    if teacher not in (origin.parent, origin.base_model):
        raise ValueError(f"{origin.run / RESULTS}: recipe.teacher is {teacher}, expected {origin.parent}")
    return run, read_json(Path(run["shape"]) / RECORD)


def write_model(folder: Path, origin: Origin, others: Mapping[str, Path]) -> dict:
    """Weights in float16 that load as float32, tokenizer, files of sentence-transformers; returns what was written."""
    model = load_lean(str(origin.run)).eval()
    shape = {
        "heads_per_layer": list(model.config.heads_per_layer),
        "parameters": model.num_parameters(),
        "embedding_parameters": model.config.count_parameters().embeddings,
        "dimension": model.config.hidden_size,
    }
    model.pooler = load_lean(origin.parent).pooler  # which training drops; without it, loading would warn
    try:
        written = convert(model)
    except ConversionError:
        written = model
    written.half().save_pretrained(folder)
    (folder / WEIGHTS).chmod(0o644)  # which safetensors narrows
    config = read_json(folder / "config.json") | {"dtype": "float32"}
    config.pop("_name_or_path", None)
    write_bytes(folder / "config.json", (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
    copy_into(folder, others)
    settings = read_json(folder / LENGTH_FILE) if LENGTH_FILE in others else {}
    length = settings.get("max_seq_length") or model.config.max_position_embeddings
    write_json(folder / LENGTH_FILE, settings | {"max_seq_length": length})
    floor = next(each for each in requires("modeling_leaner") if each.startswith("transformers"))
    versions = {"sentence_transformers": version("sentence-transformers"), "transformers": version("transformers")}
    file = folder / VERSIONS_FILE
    known = read_json(file) if file.is_file() else {}
    known |= {"__version__": versions, "requirements": {"transformers": floor.removeprefix("transformers")}}
    write_json(file, known)
    (tokenizer,) = load_processors(str(origin.run))
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.enable_truncation(length)
    tokenizer.model_max_length = length
    tokenizer.init_kwargs.pop("max_length", None)
    tokenizer.save_pretrained(folder)
    return {"architecture": type(written).__name__, **shape, "max_length": length}


def commands_of(name: str, origin: Origin, run: Mapping, cut: Mapping, rows: Mapping[str, str | None]) -> list[str]:
    """What made the folder, from the parent on, without paths of this machine."""
    recipe = without_idle_steps(run["recipe"]) | {"teacher": origin.parent}
    settings = {"shape": run["shape"], "seed": run["seed"], "output_dir": str(origin.run)}
    publish = ["leaner", "publish", str(origin.run), "--name", name, "--parent", origin.parent]
    publish += ["--base-model", origin.base_model, *(["--license", origin.license] if origin.license else [])]
    publish += ["--data", *(f"{score}={path}" if path else score for score, path in rows.items())]
    train = ["leaner", "train", *words_of(settings | recipe)]
    commands = [cut["command"], shlex.join(train), shlex.join(publish)]
    if Path(origin.parent).exists():
        commands.insert(0, f"leaner convert {origin.base_model} {origin.parent}")
    return [without_local_paths(command) for command in commands]


def verify_encoder(folder: Path, given: Mapping[str, str], short: bool = False) -> str:
    """Recomputes the scores of both files of a folder; returns one line that says what was compared.

    Args:
        given: local copies of the rows by name.
        short: the correlation on STS-B's validation pairs alone.

    Raises:
        ValueError: a score is too far off; names file and field.
    """
    place = folder / RESULTS
    results = read_json(place)
    scored = results["benchmark"]["models"][1]["scores"]
    names = [name for name in scored if name in embedding_benchmark.SOURCES and (not short or name == "stsb")]
    rows = {name: given.get(name) for name in names}
    fresh = embedding_benchmark.compare([str(folder), str(folder / exporting.ONNX_INT8_FILE)], rows, rounds=0)
    for measured, stated, allowed in zip(fresh["models"], results["benchmark"]["models"][1::2], TOLERANCES.values()):
        for name in names:
            found, expected = measured["scores"][name], stated["scores"][name]
            if not abs(found - expected) <= allowed:
                where = f"{place}: {name} of {stated['model']}"
                raise ValueError(f"{where} is {expected:.4f}, the weights give {found:.4f} (± {allowed:g})")
    return ", ".join(f"{name} {fresh['models'][0]['scores'][name]:.4f}" for name in names)
