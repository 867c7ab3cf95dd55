"""Files and folders that are written whole or not at all: over another, or only where there is none. Their hash."""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
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
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_bytes(content)
        path.open("x").close()  # takes the name; then the content arrives at once
        try:
            os.replace(whole, path)
        except OSError:
            path.unlink()
            raise
    except FileExistsError:
        raise ValueError(f"{flag}: {path} exists already; expected a new name") from None
    except OSError as error:
        raise ValueError(f"{flag}: {path} cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):  # its name may be too long to exist
            whole.unlink()


def write_all_new(flag: str, contents: Mapping[Path, bytes]) -> None:
    """Writes all of the files or none, and never over another. Raises ValueError, naming the flag."""
    written: list[Path] = []
    try:
        for path, content in contents.items():
            write_new(flag, path, content)
            written.append(path)
    except ValueError:
        for path in written:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `output` if all goes well; else nothing is left of it.

    Raises OSError where it cannot be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".unfinished-") as scratch:
            folder = Path(scratch) / output.name
            yield folder
            folder.rename(output)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
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
