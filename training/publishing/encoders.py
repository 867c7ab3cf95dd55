"""A sentence encoder in model_cards/: what `leaner train --shape CUT --teacher PARENT` made, beside its parent.

Or a published one whose vocabulary `leaner slim --vocab-size` cut. The folder is a plain BertModel if all layers have
the same number of heads, with the files of sentence-transformers and the ONNX graph in int8; the word embeddings of a
cut vocabulary have 4 bits. results.json holds how it was trained and the scores of `leaner evaluate`.
"""

import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from modeling_leaner import exporting
from modeling_leaner.conversion import ConversionError, convert, load_lean
from modeling_leaner.files import read_json, sha256, update_config, whole_folder, write_json
from modeling_leaner.hub import RECORD, copy_into, load_processors, sentence_transformers_files, without_local_paths
from modeling_leaner.layers_leaner import WEIGHTS

from ..records import RESULTS
from ..running import encoder_evaluation
from ..settings import words_of
from .cards import write_published
from .folders import CARDS, ENCODER, is_encoder


LENGTH_FILE = "sentence_bert_config.json"
OF_THE_RUN = ("seed", "learning_rate", "train", "training_data", "environment")
ROUNDS = 15  # of the timing, on one thread
TOLERANCES = {WEIGHTS: 0.002, exporting.ONNX_INT8_FILE: 0.006}  # how far a score may be off on another processor


def publish_encoder(
    run: Path,
    name: str,
    parent: str,
    base_model: str,
    data: Sequence[str] = (),
    license: str | None = None,
    texts: str | None = None,
    replace: bool = False,
) -> Path:
    """Writes the folder, whole or not at all, and returns it; the benchmark reads it as its users do.

    Args:
        run: folder of the finished run of `leaner train`, whose `--shape` is the cut or an earlier run from the cut;
            or a published encoder with fewer tokens.
        parent: folder or Hub id of the encoder that was cut, and `base_model`, its Hub id.
        data: as of `encoder_evaluation.local_copies`.
        texts: sources of the training sentences, for the card.
    """
    target = CARDS / name
    if target.exists() and not (replace and is_encoder(target)):
        raise ValueError(f"{target} exists already; choose another name, or --replace it")
    if target.exists():
        license = license or read_json(target / RESULTS)["license"]
    rows = encoder_evaluation.local_copies(data or list(encoder_evaluation.SOURCES))
    if not {"stsb_test", "qnli"} <= rows.keys() or encoder_evaluation.mean_sts(dict.fromkeys(rows, 0)) is None:
        raise ValueError("--data: expected stsb_test, qnli and at least two of sts12 to sts16 and sick_r")
    history = history_of(run, parent, base_model)
    publish = [str(run), "--name", name, "--parent", parent, "--base-model", base_model]
    publish += ["--data", *(f"{score}={path}" if path else score for score, path in rows.items())]
    publish += ["--license", license] if license else []
    publish += ["--texts", texts] if texts else []
    history["commands"].append(f"leaner publish {shlex.join(publish)}")
    has_fewer_tokens = history["cuts"][-1]["part"] == "vocab_size"
    with whole_folder(target, replace) as folder:
        folder.mkdir()
        results = {
            "kind": ENCODER,
            "name": name,
            "base_model": base_model,
            "license": license,
            "texts": texts,
            **write_model(folder, run, parent),
            "cuts": history["cuts"],
            "commands": [without_local_paths(command) for command in history["commands"]],
            "training": history["training"],
            "benchmark": benchmark(folder, parent, base_model, rows, has_fewer_tokens),
            "sha256": {file: sha256(folder / file) for file in TOLERANCES},
        }
        write_published(folder, results)
    return target


def history_of(run: Path, parent: str, base_model: str) -> dict:
    """How a model came about: its cuts, its training, and the commands, as results.json has them."""
    record = read_json(run / RECORD) if (run / RECORD).is_file() else {}
    if "training" in record:
        if record["base_model"] != base_model:
            raise ValueError(f"{run / RECORD}: base_model is {record['base_model']}, expected {base_model}")
        return record | {"commands": [*record["commands"], record["command"]]}
    runs = runs_of(run)
    for trained in runs:
        if trained["recipe"].get("teacher") not in (parent, base_model):
            where = f"{trained['output_dir']}/{RESULTS}"
            raise ValueError(f"{where}: recipe.teacher is {trained['recipe'].get('teacher')}, expected {parent}")
    cut = read_json(Path(runs[0]["shape"]) / RECORD)
    commands = [f"leaner convert {base_model} {parent}"] if Path(parent).exists() else []
    commands += [cut["command"]]
    for trained in runs:
        own = {key: trained[key] for key in ("shape", "seed", "output_dir")}
        commands += [f"leaner train {shlex.join(words_of(own | trained['recipe'] | {'teacher': parent}))}"]
    training = [{key: trained[key] for key in OF_THE_RUN} for trained in runs]
    return {"cuts": cut["cuts"], "commands": commands, "training": training}


def runs_of(run: Path) -> list[dict]:
    """The results of a run and, before them, of the runs that it started from; `output_dir` is a run's folder."""
    results = read_json(run / RESULTS)
    start = Path(results["shape"])
    is_run = (start / RESULTS).is_file() and "shape" in read_json(start / RESULTS)
    return [*(runs_of(start) if is_run else []), results | {"output_dir": str(run)}]


def benchmark(
    folder: Path, parent: str, base_model: str, rows: Mapping[str, str | None], int4_embeddings: bool
) -> dict:
    """The scores and speeds of a folder and its parent, in float32 and in int8, whose file the folder gets."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch, "parent"), Path(scratch, "own")
        exporting.export(parent, exported[0])
        exporting.export(str(folder), exported[1], int4_embeddings=int4_embeddings)
        int8 = folder / exporting.ONNX_INT8_FILE
        int8.parent.mkdir()
        shutil.move(exported[1] / exporting.ONNX_INT8_FILE, int8)
        sources = [parent, str(folder), str(exported[0] / exporting.ONNX_INT8_FILE), str(int8)]
        found = encoder_evaluation.compare(sources, rows, ROUNDS)
    names = Path(base_model).name, folder.name
    for measured, title in zip(found["models"], [*names, *(f"{name}, int8" for name in names)]):
        measured["model"] = title
    return found


def write_model(folder: Path, run: Path, parent: str) -> dict:
    """Weights in float16 that load as float32, tokenizer, files of sentence-transformers; returns what was written."""
    model = load_lean(str(run)).eval()
    shape = {
        "heads_per_layer": list(model.config.heads_per_layer),
        "parameters": model.num_parameters(),
        "dimension": model.config.hidden_size,
    }
    model.pooler = load_lean(parent).pooler  # which training drops; without it, loading would warn
    try:
        written = convert(model)
    except ConversionError:
        written = model
    written.half().save_pretrained(folder)
    update_config(folder, dtype="float32")
    others = sentence_transformers_files(parent)
    copy_into(folder, others)
    settings = read_json(folder / LENGTH_FILE) if LENGTH_FILE in others else {}
    length = settings.get("max_seq_length") or model.config.max_position_embeddings
    write_json(folder / LENGTH_FILE, settings | {"max_seq_length": length})
    (tokenizer,) = load_processors(str(run))
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.enable_truncation(length)
    tokenizer.model_max_length = length
    tokenizer.init_kwargs.pop("max_length", None)
    tokenizer.save_pretrained(folder)
    return {"architecture": type(written).__name__, **shape, "max_length": length}


def verify_encoder(folder: Path, given: Mapping[str, str], short: bool = False) -> str:
    """Recomputes the scores of both files of a folder; returns one line that says what was compared.

    Raises ValueError, naming file and field, if a score is too far off. `given` are local copies of the rows by name;
    `short` is the correlation on STS-B's validation pairs alone.
    """
    published = read_json(folder / RESULTS)["benchmark"]["models"][1::2]
    scored = [name for name in published[0]["scores"] if name in encoder_evaluation.SOURCES]
    rows = {name: given.get(name) for name in scored if name == "stsb" or not short}
    fresh = encoder_evaluation.compare([str(folder), str(folder / exporting.ONNX_INT8_FILE)], rows, rounds=0)
    for measured, stated, allowed in zip(fresh["models"], published, TOLERANCES.values()):
        for name in rows:
            found, expected = measured["scores"][name], stated["scores"][name]
            if not abs(found - expected) <= allowed:
                where = f"{folder / RESULTS}: {name} of {stated['model']}"
                raise ValueError(f"{where} is {expected:.4f}, the weights give {found:.4f} (± {allowed:g})")
    return ", ".join(f"{name} {fresh['models'][0]['scores'][name]:.4f}" for name in rows)
