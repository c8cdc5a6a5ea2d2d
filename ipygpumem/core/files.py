"""Check output paths in advance, import optional libraries, and write files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_path(path: str | os.PathLike[str], kind: str = "snapshot", example: str = "snapshot.pickle") -> Path:
    """Check that a file can be written and return its absolute path.

    The check creates a temporary file in the same directory. Raises `OptionError` if the path is empty, refers to a
    directory or device, or is not writable. The kind of file and an example of a file name are used in the message.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise OptionError(f"the path of the {kind} must be a string or a path object, not {path!r}")
    text = os.fsdecode(path)
    if not text.strip():
        raise OptionError(f"the path of the {kind} is empty")
    try:
        target = Path(os.path.realpath(Path(text).expanduser()))
        is_directory = target.is_dir() or text.endswith(("/", os.sep))
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user after ~, or a null character
        raise OptionError(f"{text!r} is not a valid path: {getattr(error, 'strerror', None) or error}") from error
    if is_directory:
        raise OptionError(f"{text} is a directory: add a file name, such as {Path(text) / example}")
    # renaming a file to /dev/null or to a named pipe would replace that device or pipe
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        raise OptionError(f"{text} is not a regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise OptionError(f"{text} is write-protected")
    if not target.parent.is_dir():
        raise OptionError(f"the directory {target.parent} does not exist")
    temporary = _temporary(target)
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise OptionError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    return target


def check_ending(path: str | os.PathLike[str], kind: str, *endings: str) -> None:
    """Raise `OptionError` if a file name does not end in one of ``endings``."""
    name = Path(os.fsdecode(path)).name
    if not name.lower().endswith(endings):
        raise OptionError(f"{name!r} is not a valid name for the {kind}: it must end in {' or '.join(endings[:2])}")


def import_library(module: str, purpose: str) -> Any:
    """Import an optional library. If it is missing, raise `OptionError` with ``purpose`` and the install command."""
    try:
        return import_module(module)
    except ImportError:
        raise OptionError(f"{module} is required for {purpose}: pip install {module}") from None


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces the file at ``path`` on exit.

    If an exception is raised, the existing file is unchanged and the temporary file is deleted.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_file(target: Path, data: bytes) -> Path:
    """Write a file atomically and return its path. Raises `OptionError` if the file cannot be written."""
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise OptionError(f"{target} was not written: {error.strerror or error}") from error
    return target


def open_regular_file(path: str) -> IO[bytes]:
    """Open a regular file in binary mode. Raises `OSError` for a pipe or device, because reading it might never end."""
    file = open(path, "rb", opener=_open_without_blocking)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file; pipes and devices cannot be read")
    return file


def _open_without_blocking(path: str, flags: int) -> int:  # opening a pipe would otherwise block until it has a writer
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
