"""`leaner publish-encoder NAME PARENT CUT RUN`: a folder of model_cards/ of a sentence encoder, cut and recovered.

PARENT is the encoder that was cut, CUT what `leaner slim` wrote, RUN what `leaner train --shape CUT --teacher PARENT`
made of that. The three are compared (STS-B test included), with the weights as they are stored, in
16 bits. The folder appears whole or not at all, once a process without this package has found a score again.
"""

import copy
import dataclasses
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from modeling_leaner.checkpoints_leaner import WEIGHTS
from modeling_leaner.files import read_object, sha256, write_bytes, write_json
from modeling_leaner.hub import copy_into, files_of, read_source_json, sentence_transformers_files, without_local_paths
from modeling_leaner.slimming.slim import RECORD
from modeling_leaner.terminal import quiet_libraries

from ..data.sources import describe, load_training
from ..experiments.encoder_rows import EncoderRows, load_rows, local_data
from ..experiments.encoder_scores import TITLES
from ..experiments.encoders import ROUNDS, Encoder, compare, load_beside
from ..experiments.grid import is_folder_name
from ..records import EncoderComparison, Lengths, PublishedEncoder, RunResults, StoredWeights, Train, checked
from ..records.results import RESULTS
from ..running.card import TRAINING_FIGURE
from ..running.loading import load_processing
from ..running.run_folder import RECIPE
from ..running.trainer import METRICS_FILE
from ..settings.arguments import RecipeArguments
from ..settings.combinations import without_idle_steps
from ..settings.command_line import words_of
from ..settings.recipes import parse
from ..tasks.embedding import Embedding, unit_vectors
from .cards import write_card
from .code_copies import MODULES, renew_code
from .cut_parents import check_parent_weights
from .folders import CARDS, results_in, without_local_settings
from .index import encoder_line, write_index
from .publish import replacing, write_published_recipe
from .verify_encoder import verify_encoder
from .verify_weights import tolerance


DTYPES = (torch.bfloat16, torch.float16)
MOST_BYTES = 42 * 2**20  # of the stored weights
LENGTH_FILE = "sentence_bert_config.json"
TRAINING_RECORDS = (METRICS_FILE, TRAINING_FIGURE)  # of the run


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a published encoder is made of, as it was given."""

    parent: str
    cut: Path
    run: Path
    base_model: str
    license: str | None
    texts: str | None = None


def check_target(cards: Path, name: str, replace: bool) -> PublishedEncoder | None:
    """The results of the folder to be replaced; None of a new one. Raises ValueError where it cannot be written."""
    if not is_folder_name(name):
        raise ValueError(f"NAME: expected a folder's name of a-z, 0-9, dots and hyphens, got {name!r}")
    target = cards / name
    if not (target.exists() or target.is_symlink()):
        return None
    try:
        results = results_in(target / RESULTS)
    except (OSError, ValueError) as error:
        raise ValueError(f"{target}: there already, and no sentence encoder; choose another name") from error
    if not isinstance(results, PublishedEncoder):
        raise ValueError(f"{target}: there already, and no sentence encoder; choose another name")
    if not replace:
        raise ValueError(f"{target}: there already; --replace takes it anew")
    return results


def is_same(named: str, given: str, base_model: str) -> bool:
    """Whether the model that a file names is the one that is given, by its weights where both are on this machine.

    A folder that is no longer there is known by its last name alone.
    """
    if named in (given, base_model):
        return True
    if Path(named).exists() and Path(given).exists():
        weights = [Path(name) / WEIGHTS for name in (named, given)]
        if all(path.is_file() for path in weights):
            return sha256(weights[0]) == sha256(weights[1])
        return Path(named).resolve() == Path(given).resolve()
    return not Path(named).exists() and Path(named).name == Path(given).name


def read_origin(origin: Origin) -> tuple[RunResults, dict]:
    """The run's results and the cut's slim.json.

    Raises:
        ValueError: the run has another teacher or shape, the cut another parent, or a file is missing; names it.
    """
    slim_file = origin.cut / RECORD
    if not slim_file.is_file():
        raise ValueError(f"{slim_file}: missing; expected a folder that leaner slim wrote")
    slim = read_object(slim_file)
    parent = str(slim.get("parent"))
    if not is_same(parent, origin.parent, origin.base_model):
        raise ValueError(f"{slim_file}: parent is {parent}, expected {origin.parent}")
    file = origin.run / RESULTS
    if not file.is_file():
        raise ValueError(f"{file}: missing; expected the folder of a finished run of leaner train")
    results = results_in(file)
    if results.task != Embedding.name:
        raise ValueError(f"{file}: task is {results.task}, expected {Embedding.name}")
    teacher = str(results.recipe.get("teacher"))
    if not is_same(teacher, origin.parent, origin.base_model):
        raise ValueError(f"{file}: recipe.teacher is {teacher}, expected {origin.parent}")
    if not is_same(results.shape, str(origin.cut), str(origin.cut)):
        raise ValueError(f"{file}: shape is {results.shape}, expected {origin.cut}")
    recorded = slim.get("parent_weights_sha256")
    check_parent_weights(f"{slim_file}: parent_weights_sha256", recorded, Path(origin.parent))
    return results, slim


def check_parent(parent: str) -> None:
    """Raises ValueError for a parent without the files of sentence-transformers, which the folder would lack."""
    if MODULES not in files_of(parent):
        raise ValueError(f"{parent}: no modules.json; expected an encoder of sentence-transformers")


def settings_of(origin: Origin) -> RecipeArguments:
    """The settings that the run was trained with; parent and cut where they are now."""
    options = ["--output_dir", str(origin.run), "--teacher", origin.parent, "--shape", str(origin.cut)]
    return parse(str(origin.run / RECIPE), options)


def tokens_seen(arguments: RecipeArguments, encoder: Encoder, run: Train) -> int:
    """How many tokens a run read, without padding: steps × batch × the mean length of its rows.

    Raises:
        ValueError: the rows that it was trained on are not there.
    """
    train, _ = load_training(arguments)
    tokenizer = load_processing(arguments, encoder.model.config, None)
    task = Embedding(arguments, encoder.model.config, tokenizer)
    task.configure(train)
    source = describe(arguments.dataset, arguments.train_split, arguments.data_files)
    rows = task.tokenised(train, source, training=True)
    batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * run.processes
    lengths = np.asarray(rows["length"][:])
    return round(lengths.mean() * run.steps * batch)


def rounded_encoder(encoder: Encoder, dtype: torch.dtype, name: str) -> Encoder:
    """The encoder with its weights rounded to 16 bits, computing in float32 as before."""
    model = copy.deepcopy(encoder.model).to(dtype).float()
    return Encoder(name, model, encoder.tokenizer, encoder.kept_layers)


def choose_dtype(encoder: Encoder, rows: EncoderRows, length: int) -> tuple[torch.dtype, StoredWeights]:
    """The one of `DTYPES` whose rounding moves the vectors of the held-out sentences less."""
    exact = unit_vectors(encoder.encode(rows.sentences, length))
    cosines = {}
    for dtype in DTYPES:
        vectors = rounded_encoder(encoder, dtype, encoder.name).encode(rows.sentences, length)
        cosine = 0.0  # where a weight is beyond the range
        if np.isfinite(vectors).all():
            cosine = float((exact * unit_vectors(vectors)).sum(axis=1).mean())
        cosines[dtype] = cosine
    chosen = max(cosines, key=cosines.get)
    names = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}
    return chosen, StoredWeights(
        dtype=names[chosen], cosine={names[dtype]: cosine for dtype, cosine in cosines.items()}
    )


def lengths_of(parent: str, length: int, arguments: RecipeArguments) -> Lengths:
    """At how many tokens the parent's files, this model's and the recovery cut."""
    files = files_of(parent)
    of_tokenizer = None
    if "tokenizer.json" in files:
        truncation = read_source_json(parent, "tokenizer.json").get("truncation")
        if truncation is not None:
            of_tokenizer = truncation["max_length"]
    of_sentence_transformers = None
    if LENGTH_FILE in files:
        of_sentence_transformers = read_source_json(parent, LENGTH_FILE).get("max_seq_length")
    return Lengths(
        parent_tokenizer=of_tokenizer,
        parent_sentence_transformers=of_sentence_transformers,
        model=length,
        training=arguments.max_length or length,
    )


def write_model(folder: Path, encoder: Encoder, dtype: torch.dtype, parent: str, length: int) -> None:
    """Writes weights in 16 bits that load in float32, the code, the tokenizer, and sentence-transformers' files.

    Raises:
        ValueError: the weights take more than `MOST_BYTES`.
    """
    copy.deepcopy(encoder.model).to(dtype).save_pretrained(folder)
    weights = folder / WEIGHTS
    if weights.stat().st_size > MOST_BYTES:
        raise ValueError(f"{weights}: {weights.stat().st_size:,} bytes, expected at most {MOST_BYTES:,}")
    weights.chmod(0o644)  # which safetensors narrows
    config = read_object(folder / "config.json") | {"dtype": "float32"}
    write_bytes(folder / "config.json", (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
    renew_code(folder)
    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.enable_truncation(length)
    tokenizer.model_max_length = length
    if "max_length" in tokenizer.init_kwargs:
        tokenizer.init_kwargs["max_length"] = length
    tokenizer.save_pretrained(folder)
    copy_into(folder, sentence_transformers_files(parent))
    settings = {}
    if (folder / LENGTH_FILE).is_file():
        settings = read_object(folder / LENGTH_FILE)
    write_json(folder / LENGTH_FILE, settings | {"max_seq_length": length})


def commands_of(
    name: str, origin: Origin, results: RunResults, slim: Mapping[str, object], given: Mapping[str, str]
) -> list[str]:
    """What made the folder, from the parent on, without paths of this machine."""
    recipe = without_idle_steps(without_local_settings(results.recipe))
    recipe |= {"teacher": origin.parent, "data_files": results.recipe.get("data_files")}
    settings = {"shape": str(origin.cut), "seed": results.seed, "output_dir": str(origin.run)}
    train = ["leaner", "train", *words_of(settings | recipe)]
    publish = ["leaner", "publish-encoder", name, origin.parent, str(origin.cut), str(origin.run)]
    if origin.base_model != origin.parent:
        publish += ["--base-model", origin.base_model]
    if origin.license is not None:
        publish += ["--license", origin.license]
    if "sentences" in given:  # the other rows are the Hub's
        publish += ["--data", f"sentences={given['sentences']}"]
    commands = [str(slim["command"]), shlex.join(train), shlex.join(publish)]
    if Path(origin.parent).exists():
        commands.insert(0, f"leaner convert {origin.base_model} {origin.parent}")
    return [without_local_paths(command) for command in commands]


def results_of_encoder(
    origin: Origin, results: RunResults, comparison: EncoderComparison, **fields: object
) -> PublishedEncoder:
    """results.json: the run's own, without paths of this machine, its comparison, and further fields of the record."""
    recipe = without_local_settings(results.recipe)
    _, _, own = comparison.models
    allowed = {score: tolerance(score, value, comparison.data[score].rows) for score, value in own.scores.items()}
    # Of every thread, whether it computed or waited:
    hours = results.train.seconds * results.environment.threads * results.train.processes / 3600
    document = {
        **results.document(),
        "shape": without_local_paths(str(origin.cut)),
        "recipe": recipe | {"teacher": origin.base_model},
        "parameters": own.parameters,
        "base_model": origin.base_model,
        "license": origin.license,
        **({"texts": origin.texts} if origin.texts else {}),
        "core_hours": hours,
        "comparison": comparison,
        "tolerances": allowed,
        **fields,
    }
    return checked(PublishedEncoder, document, origin.run / RESULTS)


def publish_encoder(
    name: str,
    origin: Origin,
    data: Sequence[str] = (),
    replace: bool = False,
    rounds: int = ROUNDS,
    threads: int | None = None,
    cards: Path = CARDS,
) -> Path:
    """Writes a folder, whole or not at all.

    Args:
        data: local copies of the rows, each as NAME=PATH. The run's own rows are read from where its recipe says.

    Raises:
        ValueError, OSError: parent, cut and run do not belong together, one is no sentence encoder, rows are missing,
            or the folder is there already.
    """
    target = cards / name
    replaced = check_target(cards, name, replace)
    if origin.license is None and replaced is not None:
        origin = dataclasses.replace(origin, license=replaced.license)
    results, slim = read_origin(origin)
    given = local_data(data)
    check_parent(origin.parent)
    if threads is not None:
        torch.set_num_threads(threads)
    (parent, cut, recovered), length = load_beside([origin.parent, str(origin.cut), str(origin.run)])
    rows = load_rows(given, list(TITLES))
    arguments = settings_of(origin)
    tokens = tokens_seen(arguments, recovered, results.train)
    dtype, stored = choose_dtype(recovered, rows, length)
    published = dataclasses.replace(rounded_encoder(recovered, dtype, name), kept_layers=cut.kept_layers)
    comparison = compare([parent, cut, published], rows, length, rounds)
    cards.mkdir(parents=True, exist_ok=True)
    with replacing(target) as folder:
        folder.mkdir()
        write_model(folder, published, dtype, origin.parent, length)
        document = results_of_encoder(
            origin,
            results,
            comparison,
            name=name,
            commands=commands_of(name, origin, results, slim, given),
            tokens=tokens,
            stored=stored,
            lengths=lengths_of(origin.parent, length, arguments),
            weights_sha256=sha256(folder / WEIGHTS),
        )
        write_json(folder / RESULTS, document.document())
        cleaned = slim | {"command": without_local_paths(str(slim["command"])), "parent": origin.base_model}
        write_json(folder / RECORD, cleaned)
        write_published_recipe(folder, {**document.recipe, "shape": document.shape})
        for kept in TRAINING_RECORDS:
            if (origin.run / kept).is_file():
                shutil.copyfile(origin.run / kept, folder / kept)
        write_card(folder)
        verify_encoder(folder, document, given, short=True)
    return target


def publish_and_index(
    name: str,
    origin: Origin,
    data: Sequence[str] = (),
    replace: bool = False,
    rounds: int = ROUNDS,
    threads: int | None = None,
) -> None:
    """`publish_encoder`, then the index; prints what was written. Raises as that does."""
    quiet_libraries()
    folder = publish_encoder(name, origin, data, replace, rounds, threads)
    print(folder)
    print(write_index(CARDS))
    _, *cells = encoder_line(results_in(folder / RESULTS))
    print(f"README.md's line: | [{name}]({folder}) | {' | '.join(cells)} |")
