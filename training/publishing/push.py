"""`leaner push`: sends a folder to the Hub in one commit, once everything in it is checked."""

import re
from pathlib import Path

from huggingface_hub import ModelCard, ModelInfo
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from modeling_leaner.files import MOST_BYTES, read_json, read_text
from modeling_leaner.hub import (
    TOKENIZER_FILES,
    check_repository,
    check_token,
    check_vocabulary,
    commit,
    contents,
    deleted,
    remote_of,
)
from modeling_leaner.terminal import quiet_libraries, visible

from ..reading import load_yaml
from ..running.loading import read_tokenizer
from .folders import CARDS, README, check_folder, published_folders


TEXT_FILES = (".md", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".jinja", ".py", ".csv")
PRIVATE = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|hub_token\W+(?!null|None|~)\w|(?P<home>/home/[\w.-]+/|/Users/[\w.-]+/|/root/|\\Users\\)"
)
Contents = dict[str, Path | bytes]


def check_card(folder: Path) -> None:
    """Raises ValueError if the Hub could not read the metadata of a folder's card."""
    path = folder / README
    try:
        content = read_text(path, MOST_BYTES)
        metadata = REGEX_YAML_BLOCK.search(content)
        if metadata is not None:
            load_yaml(metadata[2])  # strictly: ModelCard takes a key given twice, and aliases without end
        ModelCard(content).data.to_yaml()
    except Exception as error:  # of YAML, of types: as many as there are ways to write it wrong
        raise ValueError(f"{path}: metadata that the Hub cannot read ({error})") from error


def check_texts(folder: Path, files: Contents) -> None:
    """Raises ValueError if the tokenizer cannot be read or has too many tokens, or a text holds a secret."""
    if not TOKENIZER_FILES.isdisjoint(files):
        tokenizer = read_tokenizer(str(folder))
        check_vocabulary(str(folder), [tokenizer], read_json(folder / "config.json").get("vocab_size"))
    for name, content in files.items():
        if not name.endswith(TEXT_FILES) or name in TOKENIZER_FILES:
            continue
        text = (content.read_bytes() if isinstance(content, Path) else content).decode(errors="replace")
        for number, line in enumerate(text.split("\n"), 1):
            found = PRIVATE.search(line)
            if found is not None:
                what = "a path of a home folder" if found["home"] else "an access token"
                raise ValueError(f"{folder / name}: line {number} holds {what}; remove it before the file is sent")


def checked_contents(folder: Path, repository: str) -> Contents:
    """What the repository gets of a folder, once all of it holds together.

    Raises:
        ValueError: a part is missing; card, code, configuration, results and weights do not fit; a link leads
            elsewhere; a text holds a secret. One line that names the file.
    """
    for name, what in {"config.json": "no config.json", README: "no card (README.md)"}.items():
        if not (folder / name).is_file():
            raise ValueError(f"{folder}: {what}; expected the folder of a model")
    check_card(folder)
    files = contents(folder, repository)
    check_folder(folder, files)
    check_texts(folder, files)
    return files


def print_plan(title: str, files: Contents, remote: ModelInfo | None) -> None:
    """Prints the title, every file with its size and what happens to it."""
    print(title)
    there = {file.rfilename for file in remote.siblings} if remote is not None else set()
    for name, content in sorted(files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        fate = "replaced" if name in there else "new"
        print(f"  {visible(name):<32} {size / 1e6:>10.3f} MB  {fate}")
    for name in deleted(files, remote) if remote is not None else []:
        print(f"  {visible(name):<32} {'':>13}  deleted")


def push(
    folder: Path, repository: str, dry_run: bool = False, private: bool | None = None, revision: str | None = None
) -> None:
    """Makes a repository on the Hub hold what a folder holds, in one commit, and prints what it does.

    The placeholder owner in the card becomes the repository's; the folder itself stays as it is.

    Args:
        dry_run: only says what would be done.
        private: whether a repository that is made now is private; None leaves it to the account's settings.
        revision: another branch than main, begun from it if it does not exist.

    Raises:
        ValueError: as `checked_contents`, or the Hub does not take it; the repository is as it was.
    """
    quiet_libraries()
    check_repository(repository)
    files = checked_contents(folder, repository)
    if not dry_run:
        check_token()
    remote = remote_of(repository, revision)
    if private and remote is not None and not remote.private:
        raise ValueError(f"--private: {repository} is there already, and public; nothing was sent")
    where = f"now at {remote.sha[:12]}" if remote is not None else "a new repository"
    print_plan(f"{folder} → {repository} ({where})", files, remote)
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
    """`push` of every published folder to the owner's repository of its name.

    Raises:
        ValueError: as `push`; all folders are checked before the first is sent.
    """
    if "/" in owner:
        raise ValueError(f"--all {owner}: expected the owner alone, each folder's repository has the folder's name")
    repositories = {f"{owner}/{folder.name}": folder for folder in published_folders(cards)}
    if not repositories:
        raise ValueError(f"{cards}: no published folder; expected a clone of the project here")
    for repository, folder in repositories.items():
        check_repository(repository)
        checked_contents(folder, repository)
    for repository, folder in repositories.items():
        push(folder, repository, dry_run, private, revision)
