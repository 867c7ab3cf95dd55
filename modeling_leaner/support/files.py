"""Files and folders that are written whole or not at all: over another, or only where there is none. Their hash."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError


def free_path(flag: str, path: Path) -> Path:
    """The path, where a new file can be, which is tried in its folder.

    Raises ValueError, naming the flag, where it is taken, or its folder is not there or cannot be written.
    """
    if path.name.startswith("."):
        raise ValueError(f"{flag}: {path} is hidden or no name; expected a file's name")
    try:
        is_taken = path.exists() or path.is_symlink()
        has_folder = path.parent.is_dir()
    except (OSError, ValueError) as error:  # a name too long, a null byte
        raise ValueError(f"{flag}: cannot be written ({error})") from error
    if is_taken:
        raise ValueError(f"{flag}: {path} exists already; expected a new name")
    if not has_folder:
        raise ValueError(f"{flag}: {path} cannot be written (no folder {path.parent})")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{flag}: {path} cannot be written ({error.strerror})") from error
    return path


def write_new(flag: str, path: Path, content: bytes) -> None:
    """Writes a whole file or none, and never over another. Raises ValueError, naming the flag."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        path.open("x").close()  # takes the name; then the content arrives at once
        try:
            os.replace(temporary, path)
        except BaseException:  # also where it is interrupted
            path.unlink()
            raise
    except FileExistsError:
        raise ValueError(f"{flag}: {path} exists already; expected a new name") from None
    except OSError as error:
        raise ValueError(f"{flag}: {path} cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):  # its name may be too long to exist
            temporary.unlink()


def is_of_another_file(error: Exception, folder: Path) -> bool:
    """Whether an error names a file that does not lie in the folder."""
    file = getattr(error, "filename", None)
    return isinstance(file, str) and not Path(file).absolute().is_relative_to(folder.absolute())


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """The path of a folder that the body makes and fills; it becomes `output` if all goes well, else nothing is left.

    Raises OSError, naming `output`, where it cannot be written.
    """
    scratch = output.parent
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".unfinished-") as name:
            scratch = Path(name)
            folder = scratch / output.name
            yield folder
            folder.rename(output)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        if is_of_another_file(error, scratch):
            raise
        raise OSError(f"{output}: cannot be written, nothing is left of it: {error}") from error


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_files(contents: Mapping[Path, bytes], earlier: Iterable[Path]) -> None:
    """Writes the files, and only then removes those of an earlier time that are not among them."""
    for path, content in contents.items():
        write_bytes(path, content)
    for path in earlier:
        if path not in contents:
            path.unlink(missing_ok=True)
