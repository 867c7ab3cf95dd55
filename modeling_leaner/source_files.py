"""The files beside the weights of a folder or Hub id: tokenizer, image processor, those of sentence-transformers."""

import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from .checkpoints_leaner import WEIGHTS
from .hub_lookup import HUB_TIMEOUT
from .support.documents import read_json
from .support.files import sha256


RECORD = "slim.json"  # of a cut, beside its weights: what was left out
SENTENCE_TRANSFORMERS = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"}  # one of them is enough
PREPROCESSORS = (
    (AutoImageProcessor, {"preprocessor_config.json"}),
    (transformers.AutoTokenizer, TOKENIZER_FILES),
)


def cut_of_layers(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a slim.json records of the layers: their numbers `before` and `after`; None where it records nothing."""
    return next((cut for cut in record.get("cuts", []) if cut["part"] == "layers"), None)


def files_of(source: str) -> set[str]:
    """The names of all files of a folder or Hub id, with their path in it; without the Hub, of those in the cache.

    Raises HfHubHTTPError where the Hub answers and does not say them: what the cache holds may not be all.
    """
    folder = Path(source)
    if not folder.is_dir():
        try:
            files = HfApi().model_info(source, timeout=HUB_TIMEOUT).siblings
            return {file.rfilename for file in files}
        except HfHubHTTPError:
            raise
        except (HTTPError, OfflineModeIsEnabled):
            folder = Path(hf_hub_download(source, "config.json")).parent  # what the cache has
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def sentence_transformers_files(source: str) -> dict[str, Path]:
    """What sentence-transformers needs to use a model as it uses the source, by name; nothing where there is none.

    Its modules, its settings, and the folder of each module after the transformer (pooling, normalisation, …).
    """
    names = files_of(source)
    if "modules.json" not in names:
        return {}
    modules = read_source_json(source, "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{source}: modules.json: expected a list of objects")
    folders = tuple(f"{module['path']}/" for module in modules if module.get("path"))
    needed = (name for name in sorted(names) if name in SENTENCE_TRANSFORMERS or name.startswith(folders))
    return {name: local_file(source, name) for name in needed}


def copy_into(output: Path, files: Mapping[str, Path]) -> None:
    """Copies files into a folder, each to its name there."""
    for name, path in files.items():
        copied = output / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def local_file(source: str, name: str) -> Path:
    """A file of a folder, or of a Hub id, downloaded."""
    folder = Path(source)
    if folder.is_dir():
        return folder / name
    return Path(hf_hub_download(source, name))


def weights_sha256(source: str) -> str | None:
    """The hash of the weights of a folder or Hub id; None where they are not in one `model.safetensors`."""
    if WEIGHTS not in files_of(source):
        return None
    return sha256(local_file(source, WEIGHTS))


def read_source_json(source: str, name: str) -> Any:
    """What a JSON file of a folder or Hub id holds. Raises ValueError where it cannot be read; names both."""
    path = local_file(source, name)
    try:
        return read_json(path)
    except ValueError as error:
        message = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{source}: {name}: {message}") from error


def load_part(auto_class: type, source: str | Path) -> object:
    """A tokenizer or image processor of a folder or Hub id, without running code that lies beside it.

    Raises:
        ValueError: its files ask to run code of their own.
    """
    try:
        return auto_class.from_pretrained(source, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        part = auto_class.__name__.removeprefix("Auto")
        raise ValueError(
            f"{source}: auto_map in the files of its {part} asks to run Python code of the folder, which leaner never "
            "runs; remove auto_map if a class of transformers reads the files"
        ) from error


def load_processors(source: str) -> list[object]:
    """The tokenizer or image processor of a folder or Hub id, where it has one."""
    names = files_of(source)
    processors = []
    for auto_class, files in PREPROCESSORS:
        if files & names:
            try:
                processors.append(load_part(auto_class, source))
            except Exception as error:  # the tokenizers library raises bare Exceptions
                if "leaner never runs" in str(error):
                    raise
                kind = auto_class.__name__.removeprefix("Auto")
                raise OSError(f"{source}: damaged {kind} ({', '.join(sorted(files & names))}): {error}") from error
    return processors


def check_vocabulary(source: str, processors: Iterable[object], vocab_size: int | None) -> None:
    """Raises ValueError for a tokenizer with ids beyond the vocabulary of the model."""
    for processor in processors:
        if isinstance(processor, transformers.PreTrainedTokenizerBase):
            largest = max(processor.get_vocab().values(), default=0)
            if vocab_size is not None and largest >= vocab_size:
                raise ValueError(f"{source}: the tokenizer has id {largest}, but vocab_size is {vocab_size}")


def refuse_pickles(source: str) -> None:
    """Raises OSError for a Hub id whose weights are pickles alone. What else is wrong with it loading says."""
    try:
        names = sorted(files_of(source))
    except OSError:
        return
    pickles = [name for name in names if fnmatch(name, "pytorch_model*.bin")]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise OSError(f"{source}: {pickles[0]} is a pickle, which can run code; expected {WEIGHTS}")
