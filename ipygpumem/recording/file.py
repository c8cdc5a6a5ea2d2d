"""Snapshot files: the path proved before any work, the file written whole or not at all."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.errors import OptionError, RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_path", "collector_paused", "write"]

_PROTOCOL = 4
"""pytorch.org/memory_viz refuses protocol 5, the default from Python 3.14 on (pytorch#183842)."""


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path made absolute, with its folder proved writable by writing there.

    Raises:
        OptionError: No name, a folder, a device, a folder that is not there or takes no file.
    """
    text = os.fsdecode(path)
    if not text.strip():
        raise OptionError("the snapshot needs a path")
    try:
        return _checked(text)
    except OptionError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, ~nobody, a null character
        raise OptionError(f"{text!r} is no path: {getattr(error, 'strerror', None) or error}") from error


def _checked(text: str) -> Path:
    target = Path(os.path.realpath(Path(text).expanduser()))
    if target.is_dir() or text.endswith(("/", os.sep)):
        raise OptionError(f"{text} is a folder: name a file in it, as in {Path(text) / 'snapshot.pickle'}")
    # a rename onto /dev/null or a pipe would replace it by a plain file
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        raise OptionError(f"{text} is not a plain file")
    if target.exists() and not os.access(target, os.W_OK):
        raise OptionError(f"{text} may not be overwritten")
    if not target.parent.is_dir():
        raise OptionError(f"the folder {target.parent} does not exist")
    probe = _temporary(target)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OptionError(f"nothing can be written into {target.parent}: {error.strerror or error}") from error
    return target


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: a million dicts without one cycle would be walked over and over."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def write(path: Path, snapshot: dict[str, Any]) -> int:
    """Write a snapshot: a temporary file beside it, then a rename, so that an old file stays whole until the end.

    Returns:
        The file's size in bytes.

    Raises:
        RecordingError: The disk is full or the folder is gone; the old file, if any, is as it was.
    """
    temporary = _temporary(path)
    try:
        with collector_paused(), temporary.open("wb") as file:
            pickle.dump(snapshot, file, protocol=_PROTOCOL)
        size = temporary.stat().st_size
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise RecordingError(f"the snapshot {path} was not written: {error.strerror or error}") from error
        raise
    return size
