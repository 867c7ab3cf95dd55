"""`leaner push`: what of a folder goes to the Hub, checked before anything leaves, and sent in one commit."""

import re
import tempfile
from pathlib import Path

import yaml
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from transformers import AutoConfig, GenerationConfig

from modeling_leaner.checkpoints_leaner import WEIGHTS, find_weights
from modeling_leaner.files import naming, read_json, read_text, sha256
from modeling_leaner.hub import (
    TOKENIZER_FILES,
    Remote,
    check_branch,
    check_repository,
    check_token,
    check_vocabulary,
    commit,
    contents,
    deleted,
    hub_errors,
    remote_of,
    same,
    size_of,
    staying,
)
from modeling_leaner.planning.units import human_bytes
from modeling_leaner.terminal import quiet_libraries, visible

from ..records.results import RESULTS
from ..running.loading import read_tokenizer
from ..settings.yaml_files import MOST_BYTES, load_yaml
from .code_copies import check_code, check_links
from .folders import (
    CARDS,
    UNREADABLE,
    check_tensor_shapes,
    check_there,
    published_folders,
    results_in,
)


LIBRARIES = ("transformers", "sentence-transformers")  # that load what is sent
COLLECTION = "modeling_leaner"
TEXT_FILES = (".md", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".jinja", ".py", ".csv")
PRIVATE = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|hub_token\W+(?!null|None|~)\w|(?P<home>/home/[\w.-]+/|/Users/[\w.-]+/|/root/|\\Users\\)"
)
Contents = dict[str, Path | bytes]


def check_complete(folder: Path) -> None:
    """Raises ValueError where a folder is not a model with its card: configuration, weights, README.md."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: no config.json; expected the folder of a model")
    with naming(folder, (OSError,)):
        weights = find_weights(folder)
    if not weights:
        raise ValueError(f"{folder}: no weights (model.safetensors)")
    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder}: no card (README.md)")


def read_card(folder: Path) -> ModelCard:
    """The card of a folder. Raises ValueError where the Hub could not read its metadata, or it says nothing."""
    path = folder / "README.md"
    try:
        content = read_text(path, MOST_BYTES)
        metadata = REGEX_YAML_BLOCK.search(content)
        if metadata is not None:
            load_yaml(metadata[2])  # strictly: ModelCard takes a key given twice, and aliases without end
        card = ModelCard(content)
        card.data.to_yaml()
    except Exception as error:  # of YAML, of types: as many as there are ways to write it wrong
        raise ValueError(f"{path}: metadata that the Hub cannot read ({error})") from error
    if card.data.library_name not in LIBRARIES:
        expected = " or ".join(map(repr, LIBRARIES))
        raise ValueError(f"{path}: library_name is {card.data.library_name!r}, expected {expected}")
    if not card.text.strip():
        raise ValueError(f"{path}: no text below the metadata")
    return card


def check_sent_code(folder: Path, files: Contents) -> None:
    """Raises ValueError unless what is sent of a folder runs this package's code alone, and all of it."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in files.items():
            if "/" not in name and name.endswith((".py", ".json")):
                if isinstance(content, Path):
                    content = content.read_bytes()
                (Path(scratch) / name).write_bytes(content)
        try:
            check_code(Path(scratch))
        except ValueError as error:
            raise ValueError(str(error).replace(scratch, str(folder))) from error


def check_files_beside(folder: Path, files: Contents) -> None:
    """Raises ValueError where what is sent beside model and card cannot be read: YAML, tokenizer, generation."""
    for name in files:
        if name.endswith(".yaml"):
            with naming(folder / name, (*UNREADABLE, yaml.YAMLError)):
                load_yaml(read_text(folder / name, MOST_BYTES))
    if not TOKENIZER_FILES.isdisjoint(files):
        tokenizer = read_tokenizer(str(folder))
        check_vocabulary(str(folder), [tokenizer], read_json(folder / "config.json").get("vocab_size"))
    if "generation_config.json" in files:
        with naming(folder / "generation_config.json", (*UNREADABLE, TypeError)):
            GenerationConfig.from_pretrained(folder).validate(strict=True)


def check_private(folder: Path, files: Contents) -> None:
    """Raises ValueError for a text file that holds an access token or a path of somebody's home folder."""
    for name, content in files.items():
        if not name.endswith(TEXT_FILES) or name in TOKENIZER_FILES:
            continue
        text = (content.read_bytes() if isinstance(content, Path) else content).decode(errors="replace")
        for number, line in enumerate(text.split("\n"), 1):
            found = PRIVATE.search(line)
            if found is not None:
                what = "a path of a home folder" if found["home"] else "an access token"
                raise ValueError(f"{folder / name}: line {number} holds {what}; remove it before the file is sent")


def check_configured_weights(folder: Path) -> None:
    """Raises ValueError unless the configuration names one class of the family, and the weights are that class's."""
    with naming(folder / "config.json", UNREADABLE):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        classes = sorted(target.split(".")[1] for target in config.auto_classes().values())
        names = config.architectures
        if not isinstance(names, list) or len(names) != 1 or names[0] not in classes:
            raise ValueError(f"architectures is {names!r}, expected one of {', '.join(classes)}")
    check_tensor_shapes(folder, names[0], config)


def checked_contents(folder: Path, repository: str) -> Contents:
    """What the repository gets of a folder, once all of it holds together.

    Raises:
        ValueError: a part is missing; card, code, configuration, results and weights do not fit; a link leads
            elsewhere. One line that names the file.
    """
    check_complete(folder)
    check_links(folder)
    read_card(folder)
    files = contents(folder, repository)
    check_sent_code(folder, files)
    check_files_beside(folder, files)
    check_private(folder, files)
    check_configured_weights(folder)
    if (folder / RESULTS).is_file():
        check_there(folder)
        with naming(folder / RESULTS, UNREADABLE):
            results = results_in(folder / RESULTS)
            expected = getattr(results, "weights_sha256", None)
        if expected is not None and sha256(folder / WEIGHTS) != expected:
            raise ValueError(f"{folder / WEIGHTS}: weights_sha256 of its results.json differs")
    return files


def fate(name: str, files: Contents, remote: Remote) -> str:
    """What happens to a file of the repository."""
    if name not in files:
        return "deleted"
    if name not in remote.hashes:
        return "new"
    if same(files[name], remote.hashes[name]):
        return "unchanged"
    return "replaced"


def print_files(files: Contents) -> None:
    """Prints every file with its size, where the repository could not be asked what it has."""
    for name in sorted(files):
        print(f"  {name:<32} {human_bytes(size_of(files[name])):>10}")


def print_plan(folder: Path, repository: str, files: Contents, remote: Remote) -> None:
    """Prints every file with its size and what happens to it, what stays here, and what the card says."""
    where = "a new repository"
    if remote.sha is not None and remote.lacks_branch:
        where = f"a new branch of main, at {remote.sha[:12]}"
    elif remote.sha is not None:
        where = f"now at {remote.sha[:12]}"
    print(f"{folder} → {repository} ({where})")
    for name in sorted({*files, *deleted(files, remote)}):
        size = ""
        if name in files:
            size = human_bytes(size_of(files[name]))
        print(f"  {visible(name):<32} {size:>10}  {fate(name, files, remote)}")
    kept = staying(folder)
    if kept:
        print(f"  stays here: {', '.join(map(visible, kept))}")
    card = read_card(folder).data
    said = "no licence stated"
    if card.license is not None:
        said = card.license
    if card.pipeline_tag is not None:
        said = f"{said}; {card.pipeline_tag}"
    print(f"  card: in order ({said}); code, configuration and weights fit")


def push(
    folder: Path, repository: str, dry_run: bool = False, private: bool | None = None, revision: str | None = None
) -> None:
    """Makes a repository on the Hub hold what a folder holds, in one commit, and prints what it does.

    The placeholder owner in the card becomes the repository's; the folder itself stays as it is.

    Args:
        dry_run: only says what would be done.
        private: whether a repository that is made now is private; None leaves it to the account's settings.
        revision: another branch than main, begun from it where there is none of the name.

    Raises:
        ValueError: as `checked_contents`, or the Hub does not take it; the repository is as it was.
    """
    quiet_libraries()
    check_repository(repository)
    check_branch(revision)
    files = checked_contents(folder, repository)
    if not dry_run:
        check_token()
    try:
        remote = remote_of(repository, revision)
    except ValueError:
        if dry_run:
            print(f"{folder} → {repository} (not known what it has)")
            print_files(files)
        raise
    if private and remote.is_public:
        raise ValueError(f"--private: {repository} is there already, and public; nothing was sent")
    print_plan(folder, repository, files, remote)
    if dry_run:
        print("  dry run: nothing was sent")
        return
    message = f"{folder.resolve().name}, by leaner push"
    print(f"  {commit(files, repository, message, remote, private, revision).commit_url}")


def push_all(
    owner: str,
    dry_run: bool = False,
    private: bool | None = None,
    revision: str | None = None,
    cards: Path = CARDS,
) -> None:
    """`push` of every published folder to the owner's repository of its name, and a collection of them all.

    Raises:
        ValueError: as `push`; all folders are checked before the first is sent.
    """
    if "/" in owner:
        raise ValueError(f"--all {owner}: expected the owner alone, each folder's repository has the folder's name")
    folders = published_folders(cards)
    if not folders:
        raise ValueError(f"{cards}: no published folder; expected a clone of the project here")
    repositories = {f"{owner}/{folder.name}": folder for folder in folders}
    for repository, folder in repositories.items():
        check_repository(repository)
        checked_contents(folder, repository)
    for repository, folder in repositories.items():
        push(folder, repository, dry_run, private, revision)
    if not dry_run:
        print(collect(owner, list(repositories)))


def collect(owner: str, repositories: list[str]) -> str:
    """Puts repositories into the owner's collection, and says in one line where it is, or why there is none."""
    api = HfApi()
    try:
        with hub_errors(f"{owner}'s collection"):
            collection = api.create_collection(COLLECTION, namespace=owner, exists_ok=True)
            for repository in repositories:
                api.add_collection_item(collection.slug, repository, "model", exists_ok=True)
    except (ValueError, KeyError) as error:  # KeyError: a Hub without collections that answers all the same
        return f"no collection: {' '.join(str(error).split())}"
    return f"collection: {collection.slug}, {len(repositories)} models"
