"""A model's way to the Hub and back: what may leave this machine, one commit for all of it, whole folders only."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from .support.documents import read_text


HUB_OWNER = "OWNER"  # of the repositories in a card; replaced by the account's name in what is sent
# What a model on the Hub is made of. Everything else stays: the state of a training, pickles, locks, checkpoints.
SHIPPED = ("README.md", "LICENSE", "*_leaner.py", "configuration_lean_*.py", "modeling_lean_*.py")
SHIPPED += ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
SHIPPED += ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SHIPPED += ("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "*processor_config.json")
SHIPPED += ("results.json", "recipe.yaml", "metrics.jsonl", "slim.json", "*.png", ".eval_results/*.yaml")
SHIPPED += ("modules.json", "*sentence_*.json", "*_Pooling/config.json")
SHIPPED += ("*_Dense/config.json", "*_Dense/model.safetensors")
SHIPPED += ("onnx/*.onnx", "onnx/*.onnx.data")
REMAINS = (".gitattributes",)  # the Hub's own
TEXTS = ("*.md", "*.yaml", "*config.json", "results.json", "slim.json")  # in which paths of this machine may stand
OFFLINE = "HF_HUB_OFFLINE says not to ask the Hub"
MOST_TEXT = 10_000_000  # bytes of one of them
# How a path of this machine begins: at the root, above the folder, at home, on Windows, too.
PATH_START = r"(?:file://|~/|\.\./|/[\w.+-]+/|[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2})"
SPACED_START = rf"(?:{PATH_START}|/[^\"'`\n<>]*/)"
OPENING_QUOTE = r"(?:(?<=[\s(\[{,:=][\"'`])|(?<=^[\"'`]))"
LOCAL_PATH = re.compile(
    rf"""{OPENING_QUOTE}{SPACED_START}[^"'`\n<>]*(?=["'`])"""  # all of a quoted value
    rf"""|(?<=["'=]){PATH_START}[^"'\n]*(?=["'])"""  # also of f"..." and of "train=..."
    rf"""|(?<=(?:: |- )){PATH_START}[^"'`\n]*$"""  # all of a value in YAML
    rf"""|(?<![\w/.]){PATH_START}[^\s"'`,;)\]<]*""",  # a word
    re.MULTILINE,
)


@dataclass(frozen=True)
class Remote:
    """A repository, or a branch of it, as it is now.

    Args:
        sha: its newest commit; None where there is no repository.
        files: the paths of its files.
        lacks_branch: the branch that was asked for is not there; it begins at main.
        is_public: whoever asks sees it.
    """

    sha: str | None = None
    files: frozenset[str] = frozenset()
    lacks_branch: bool = False
    is_public: bool = False


def check_name(name: str) -> None:
    """Raises ValueError for a name that the Hub does not accept."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"{name!r} is not a name that the Hub accepts; expected OWNER/NAME ({error})") from error


def check_repository(name: str) -> None:
    """Raises ValueError unless the name is OWNER/NAME, as the Hub accepts it."""
    check_name(name)
    if "/" not in name:
        raise ValueError(f"{name!r} is no repository; expected OWNER/NAME")


def is_repository(name: str) -> bool:
    """Whether a name is OWNER/NAME, as the Hub accepts it."""
    try:
        check_repository(name)
    except ValueError:
        return False
    return True


def check_token() -> None:
    """Raises ValueError where this machine has no token to write to the Hub with."""
    if get_token() is None:
        raise ValueError("no token: hf auth login saves one, or HF_TOKEN holds it")


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """What goes wrong with the Hub becomes a ValueError that says, in one line, what it was."""
    try:
        yield
    except RepositoryNotFoundError as error:
        who = "this token may not see it"
        if get_token() is None:
            who = "private, for which a token is needed (hf auth login, or HF_TOKEN)"
        raise ValueError(f"{repository}: no such repository on the Hub, or {who}") from error
    except RevisionNotFoundError as error:
        raise ValueError(f"{repository}: no such revision on the Hub") from error
    except OfflineModeIsEnabled as error:
        raise ValueError(f"{repository}: {OFFLINE}") from error
    except LocalEntryNotFoundError as error:
        raise ValueError(f"{repository}: not whole in the cache, and the Hub does not answer") from error
    except HfHubHTTPError as error:
        raise ValueError(f"{repository}: {refusal(error)}") from error
    except HTTPError as error:
        raise ValueError(f"{repository}: the Hub does not answer ({type(error).__name__})") from error
    except RuntimeError as error:  # of an upload, which hides its reason
        print(file=sys.stderr)  # ends the line of a progress bar that was left as it was
        raise ValueError(f"{repository}: {str(error).rstrip('.')}: {upload_error(error.__cause__)}") from error


def refusal(error: HfHubHTTPError) -> str:
    """Why the Hub refused something."""
    status = error.response.status_code
    if status == 412:
        return "it has changed meanwhile; nothing was sent, push again"
    reason = error.server_message
    if not reason:
        reason = error.response.reason_phrase  # the error's own text has the address, with an upload's signature
    return f"the Hub refused ({status}: {reason})"


def upload_error(cause: BaseException | None) -> str:
    """Why a file could not be uploaded."""
    if cause is None:
        return "no reason given"
    if isinstance(cause, HfHubHTTPError):
        return refusal(cause)
    if isinstance(cause, HTTPError):
        return f"the Hub does not answer ({type(cause).__name__})"
    return str(cause)


def shipped(folder: Path) -> list[str]:
    """The files of a folder that go to the Hub."""
    paths = {path for pattern in SHIPPED for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def staying(folder: Path) -> list[str]:
    """What of a folder stays here: folders of which nothing goes, and other files."""
    leaving = set(shipped(folder))
    leaving_folders = {name.split("/")[0] for name in leaving}
    stay = [path.name for path in folder.iterdir() if path.name not in leaving_folders]
    for name in leaving_folders - leaving:
        inside = (path.relative_to(folder).as_posix() for path in (folder / name).rglob("*") if path.is_file())
        stay += [path for path in inside if path not in leaving]
    return sorted(stay)


def without_local_paths(text: str) -> str:
    """The text with the names alone of files that it names by their place on this machine."""
    return LOCAL_PATH.sub(lambda path: re.split(r"[/\\]", path[0].rstrip("/\\"))[-1], text)


def as_sent(text: str, name: str, repository: str) -> str:
    """A text of the folder `name` as the repository has it: the owner in place of the placeholder, no local path.

    The lines of code that load the model load it from the repository.
    """
    own = rf'^repository = "(?:[^"]*/)?{re.escape(name)}"'
    text = re.sub(own, f'repository = "{repository}"', text, flags=re.MULTILINE)
    text = re.sub(rf"\b{HUB_OWNER}/{re.escape(name)}(?![\w-])", repository, text)
    owner = repository.split("/")[0]
    return without_local_paths(re.sub(rf"\b{HUB_OWNER}/", f"{owner}/", text))


def contents(folder: Path, repository: str) -> dict[str, Path | bytes]:
    """What the repository gets, by name: files as they are, and texts that differ from those in the folder.

    Raises ValueError that names a file whose name cannot be printed, and a text that is too large or not in UTF-8.
    """
    files: dict[str, Path | bytes] = {}
    for name in shipped(folder):
        path = folder / name
        if not name.isprintable():
            raise ValueError(f"{path}: a name that cannot be printed; expected another")
        files[name] = path
        if any(path.match(pattern) for pattern in TEXTS):
            text = read_text(path, MOST_TEXT)
            sent = as_sent(text, folder.resolve().name, repository)
            if sent != text:
                files[name] = sent.encode()
    return files


def check_branch(name: str | None) -> None:
    """Raises ValueError for what cannot be the name of a branch; None is main."""
    if name is not None and re.fullmatch(r"(?![0-9a-f]{40}$)\w[\w./-]*", name) is None:
        raise ValueError(f"--revision: expected the name of a branch, got {name!r}")


def remote_of(repository: str, revision: str | None = None) -> Remote:
    """A branch of the repository as it is now; an empty one where there is none that this machine may see.

    Raises:
        ValueError: the Hub does not answer, or refuses.
    """
    with hub_errors(repository):
        try:
            info = HfApi().model_info(repository, revision=revision)
        except RepositoryNotFoundError:
            return Remote(lacks_branch=revision is not None)
        except RevisionNotFoundError:
            return replace(remote_of(repository), lacks_branch=True)
    files = frozenset(file.rfilename for file in info.siblings)
    return Remote(info.sha, files, is_public=not info.private)


def deleted(files: Mapping[str, Path | bytes], remote: Remote) -> list[str]:
    """The files of the repository that the folder does not have."""
    return sorted(remote.files - files.keys() - set(REMAINS))


def commit(
    files: Mapping[str, Path | bytes],
    repository: str,
    message: str,
    remote: Remote | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> CommitInfo:
    """Sends files in one commit, and returns it: the repository is as before until all has arrived.

    Args:
        files: by their name in the repository.
        remote: the repository must still be as it was then, and what it had beside the files is deleted; None adds
            the files to whatever is there.
        private: whether a repository that is made now is private; None leaves it to the account's settings.
        revision: another branch than main.
        token: None for that of this machine.

    Raises:
        ValueError: one line that says why the Hub has not taken it.
    """
    api = HfApi(token=token)
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    parent = None
    with hub_errors(repository):
        if remote is not None:
            operations += [CommitOperationDelete(name) for name in deleted(files, remote)]
            parent = remote.sha
        if parent is None:
            api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None and (remote is None or remote.lacks_branch):
            api.create_branch(repository, branch=revision, revision=parent, exist_ok=True)
        try:
            return api.create_commit(
                repository, operations, commit_message=message, parent_commit=parent, revision=revision
            )
        except HfHubHTTPError:  # of which the one for 400 is a ValueError, too
            raise
        except ValueError as error:  # metadata of the card that the Hub does not accept, in several lines
            raise ValueError(f"{repository}: {' '.join(str(error).split())}") from error
