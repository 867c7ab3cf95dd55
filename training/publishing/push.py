"""`leaner push`: sends a folder to the Hub in one commit, once everything in it is checked."""

import re
from contextlib import suppress
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError

from modeling_leaner.files import read_object
from modeling_leaner.hub import commit, contents, deleted, hub_errors, load_processors
from modeling_leaner.layers_leaner import find_weights

from .folders import README, check_folder


TEXT_FILES = (".md", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".jinja", ".py", ".csv")
TOKENIZER_TEXTS = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")  # words of any kind
PRIVATE = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|hub_token\W+(?!null|None|~)\w|(?P<home>/home/[\w.-]+/|/Users/[\w.-]+/|/root/|\\Users\\)"
)


def checked_contents(folder: Path, repository: str) -> dict[str, Path | bytes]:
    """What the repository gets of a folder, once all of it holds together.

    Raises ValueError, naming the file, if a part is missing; if code, configuration, results and weights do not fit;
    if a link leads elsewhere; if a text holds a secret.
    """
    files = contents(folder, repository)
    missing = [name for name in ("config.json", README) if name not in files]
    if missing or not find_weights(folder):
        raise ValueError(f"{folder}: no {[*missing, 'weights'][0]}; expected the folder of a model")
    check_folder(folder, files)
    load_processors(str(folder), read_object(folder / "config.json").get("vocab_size"))  # raises if they do not fit
    for name, content in files.items():
        if not name.endswith(TEXT_FILES) or name in TOKENIZER_TEXTS:
            continue
        text = (content.read_bytes() if isinstance(content, Path) else content).decode(errors="replace")
        for number, line in enumerate(text.split("\n"), 1):
            if found := PRIVATE.search(line):
                what = "a path of a home folder" if found["home"] else "an access token"
                raise ValueError(f"{folder / name}: line {number} holds {what}; remove it before the file is sent")
    return files


def push(folder: Path, repository: str, dry_run: bool = False, private: bool | None = None) -> None:
    """Makes a repository on the Hub hold what a folder holds, in one commit, and prints what it does.

    The placeholder owner in the card becomes the repository's; the folder itself stays as it is. Raises ValueError as
    `checked_contents`, or if the Hub does not take it; the repository is as it was. A repository that is made now is
    `private` or not, or as the account's settings say.
    """
    files = checked_contents(folder, repository)
    remote = None
    with hub_errors(repository), suppress(RepositoryNotFoundError):
        remote = HfApi().model_info(repository)
    if private and remote is not None and not remote.private:
        raise ValueError(f"--private: {repository} is there already, and public; nothing was sent")
    print(f"{folder} → {repository} ({f'now at {remote.sha[:12]}' if remote else 'a new repository'})")
    for name, content in sorted(files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        print(f"  {name:<32} {size / 1e6:>10.3f} MB")
    for name in deleted(files, remote) if remote else []:
        print(f"  {name!r} is deleted there")
    if dry_run:
        print("  dry run: nothing was sent")
        return
    message = f"{folder.resolve().name}, by leaner push"
    print(f"  {commit(files, repository, message, remote, private).commit_url}")
