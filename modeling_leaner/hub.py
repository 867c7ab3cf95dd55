"""The Hub: the files beside a model's weights, and a model's way there in one commit."""

import functools
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import transformers
from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelInfo,
    metadata_load,
    snapshot_download,
)
from huggingface_hub.errors import HTTPError
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from .files import naming, read_json, sha256
from .layers_leaner import WEIGHTS
from .models import Pool, mean_over_tokens
from .names import reason_of


RECORD = "slim.json"  # of a cut, beside its weights: what was left out
POOLING = "1_Pooling/config.json"
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers
POOLS = {"mean": mean_over_tokens, "cls": lambda states, mask: states[:, 0]}  # as sentence-transformers names them
POOLS |= {"pooling_mode_mean_tokens": POOLS["mean"], "pooling_mode_cls_token": POOLS["cls"]}  # before version 6
SENTENCE_TRANSFORMERS = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"}  # one of them is enough
PREPROCESSORS = {AutoImageProcessor: {"preprocessor_config.json"}, transformers.AutoTokenizer: TOKENIZER_FILES}
# Read of a Hub id.
READ = ("README.md", "*.json", "*.txt", "*.jinja", "recipe.yaml", "model*.safetensors", "*_Dense/*.safetensors")
HUB_OWNER = "OWNER"  # of the repositories in a card; replaced by the account's name in what is sent
# What a model on the Hub is made of. Everything else stays: the state of a training, pickles, locks, checkpoints.
SHIPPED = ("README.md", "LICENSE", "*_leaner.py", "configuration_lean_*.py", "modeling_lean_*.py")
SHIPPED += ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
SHIPPED += ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SHIPPED += ("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "*processor_config.json")
SHIPPED += ("results.json", "recipe.yaml", "metrics.jsonl", "slim.json", "*.png")
SHIPPED += ("modules.json", "*sentence_*.json", "*_Pooling/config.json")
SHIPPED += ("*_Dense/config.json", "*_Dense/model.safetensors")
SHIPPED += ("onnx/*.onnx", "onnx/*.onnx.data")
TEXTS = ("*.md", "*.yaml", "*config.json", "results.json", "slim.json")  # in which paths of this machine may stand
# How a path of this machine begins: at the root, above the folder, at home, on Windows, too.
PATH_START = r"(?:file://|~/|\.\./|/[\w.+-]+/|[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2})"
LOCAL_PATH = re.compile(
    rf"""(?P<before>(?P<quote>["'])(?:[^\s"'/\\=]+=)*){PATH_START}[^\n]*?(?=\\*(?P=quote))"""  # all of a quoted value
    rf"""|(?<=(?:: |- )){PATH_START}[^"'`\n]*$"""  # all of a value in YAML
    rf"""|(?<![\w/.]){PATH_START}(?:[^\s"'`,;)\]<\\]|\\(?!["']))*""",  # a word
    re.MULTILINE,
)


# Around what asks the Hub for a repository: a ValueError says in one line what went wrong.
hub_errors = functools.partial(naming, kinds=(OSError, ValueError, RuntimeError, HTTPError), reason=reason_of)


def local_folder(source: str) -> Path:
    """A folder as it is; the files of a Hub id, downloaded, or what the cache has if the Hub does not answer."""
    if Path(source).is_dir():
        return Path(source)
    with hub_errors(source):
        return Path(snapshot_download(source, allow_patterns=list(READ)))


def license_of(source: str) -> str | None:
    """The licence that a model's card states, or None. Raises ValueError, naming the card, if its YAML is broken."""
    card = local_folder(source) / "README.md"
    with naming(card, (Exception,)):  # of its YAML
        return (metadata_load(card) or {}).get("license") if card.is_file() else None


def sentence_transformers_files(source: str) -> dict[str, Path]:
    """What sentence-transformers needs to use a model as it uses the source, by name; nothing where there is none.

    Its modules, its settings, and the folder of each module after the transformer (pooling, normalisation, …).
    """
    folder = local_folder(source)
    if not (folder / "modules.json").is_file():
        return {}
    modules = read_json(folder / "modules.json")
    folders = tuple(f"{module['path']}/" for module in modules if module.get("path"))
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: files[name] for name in sorted(files) if name in SENTENCE_TRANSFORMERS or name.startswith(folders)}


def pooling_of(source: str) -> Pool:
    """How an encoder's files of sentence-transformers pool its states; without them, the mean over tokens.

    Raises ValueError for another pooling than the mean and the first token, and for a module that changes embeddings.
    """
    files = sentence_transformers_files(source)
    modules = read_json(files["modules.json"]) if "modules.json" in files else []
    modules = [module["type"].rpartition(".")[2] for module in modules]
    pooling = read_json(files[POOLING]) if POOLING in files else {}
    modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
    mode = pooling.get("pooling_mode", [])
    modes += [mode] if isinstance(mode, str) else mode
    others = [each for each in (*modules, *modes) if each not in (*MODULES, *POOLS)]
    pools = {POOLS[mode] for mode in modes if mode in POOLS} or {mean_over_tokens}
    if others or len(pools) > 1:
        named = ", ".join(others or modes)
        raise ValueError(f"{source}: {named} in modules.json or {POOLING}; expected a pooling by mean or cls, no more")
    return pools.pop()


def copy_into(output: Path, files: Mapping[str, Path]) -> None:
    """Copies files into a folder, each to its name there."""
    for name, path in files.items():
        copied = output / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def weights_sha256(source: str) -> str | None:
    """The hash of the weights of a folder or Hub id; None where they are not in one `model.safetensors`."""
    path = local_folder(source) / WEIGHTS
    return sha256(path) if path.is_file() else None


def load_processors(source: str, vocab_size: int | None = None) -> list[object]:
    """The tokenizer or image processor of a folder or Hub id, if it has one; code that lies beside it never runs.

    Raises ValueError if its files are damaged or ask to run code of their own, or if it has ids beyond `vocab_size`.
    """
    names = {path.name for path in local_folder(source).iterdir()}
    processors = []
    for auto_class, files in PREPROCESSORS.items():
        if not files & names:
            continue
        place = f"{source}: {', '.join(sorted(files & names))}"
        with naming(place, (Exception,)):  # the tokenizers library raises bare Exceptions
            processor = auto_class.from_pretrained(source, trust_remote_code=False)
        processors.append(processor)
        for key in ("is_local", "local_files_only"):  # of this machine alone
            getattr(processor, "init_kwargs", {}).pop(key, None)
        if vocab_size is not None and isinstance(processor, transformers.PreTrainedTokenizerBase):
            largest = max(processor.get_vocab().values(), default=0)
            if largest >= vocab_size:
                raise ValueError(f"{source}: the tokenizer has id {largest}, but vocab_size is {vocab_size}")
    return processors


def without_local_paths(text: str) -> str:
    """The text with only the names of files that it names by their place on this machine."""

    def name_alone(found: re.Match) -> str:
        before = found["before"] or ""
        return before + re.split(r"[/\\]", found[0].removeprefix(before).rstrip("/\\"))[-1]

    return LOCAL_PATH.sub(name_alone, text)


def contents(folder: Path, repository: str) -> dict[str, Path | bytes]:
    """What the repository gets, by name: files as they are, and texts that differ from those in the folder.

    Texts get the owner in place of the placeholder, no local path, and code that loads the model from the repository.
    Raises ValueError that names a text that is not in UTF-8.
    """
    here, owner = re.escape(folder.resolve().name), repository.split("/")[0]
    files: dict[str, Path | bytes] = {}
    for path in sorted({path for pattern in SHIPPED for path in folder.glob(pattern) if path.is_file()}):
        name = path.relative_to(folder).as_posix()
        files[name] = path
        if any(path.match(pattern) for pattern in TEXTS):
            with naming(f"{path}: not a text in UTF-8"):
                text = path.read_text(encoding="utf-8")
            sent = re.sub(rf'(?m)^repository = "(?:[^"]*/)?{here}"', f'repository = "{repository}"', text)
            sent = re.sub(rf"\b{HUB_OWNER}/{here}(?![\w-])", repository, sent)
            sent = without_local_paths(re.sub(rf"\b{HUB_OWNER}/", f"{owner}/", sent))
            if sent != text:
                files[name] = sent.encode()
    return files


def deleted(files: Mapping[str, Path | bytes], remote: ModelInfo) -> list[str]:
    """The files of the repository that the folder does not have; .gitattributes is the Hub's own."""
    return sorted({file.rfilename for file in remote.siblings} - {*files, ".gitattributes"})


def commit(
    files: Mapping[str, Path | bytes],
    repository: str,
    message: str,
    remote: ModelInfo | None = None,
    private: bool | None = None,
    revision: str | None = None,
) -> CommitInfo:
    """Sends files in one commit, and returns it: the repository is as before until all has arrived.

    Given `remote`, the repository must still be as it was then, and what it had beside the files is deleted; else they
    are added to whatever is there. A `private` of None leaves it to the account's settings. Raises ValueError that
    says why the Hub has not taken it.
    """
    api = HfApi(token=True)  # else the Hub would not say that there is none
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    if remote is not None:
        operations += [CommitOperationDelete(name) for name in deleted(files, remote)]
    with hub_errors(repository):
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        return api.create_commit(
            repository, operations, commit_message=message, parent_commit=remote and remote.sha, revision=revision
        )
