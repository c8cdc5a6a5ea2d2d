"""Files to write: the path proved before any work, the file written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_ending", "check_path", "replacing"]


def check_path(path: str | os.PathLike[str], what: str = "snapshot", example: str = "snapshot.pickle") -> Path:
    """The path made absolute, with its folder proved writable by writing there.

    Args:
        path: Where to write.
        what: What will be written, for the messages.
        example: A name that such a file could have, for the messages.

    Raises:
        OptionError: No name, a folder, a device, a folder that is not there or takes no file.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise OptionError(f"the {what} is a path, not {path!r}")
    text = os.fsdecode(path)
    if not text.strip():
        raise OptionError(f"the {what} needs a path")
    try:
        return _checked(text, example)
    except OptionError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, ~nobody, a null character
        raise OptionError(f"{text!r} is no path: {getattr(error, 'strerror', None) or error}") from error


def check_ending(path: str | os.PathLike[str], what: str, *endings: str) -> None:
    """Whether a name ends as the file's readers expect it.

    Raises:
        OptionError: It does not.
    """
    name = Path(os.fsdecode(path)).name
    if not name.lower().endswith(endings):
        raise OptionError(f"the {what} is written to a file that ends in {' or '.join(endings[:2])}, not {name!r}")


def _checked(text: str, example: str) -> Path:
    target = Path(os.path.realpath(Path(text).expanduser()))
    if target.is_dir() or text.endswith(("/", os.sep)):
        raise OptionError(f"{text} is a folder: name a file in it, as in {Path(text) / example}")
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
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside a path, which takes the path's place at the end; after a failure the old file is whole.

    Raises:
        OSError: As the writing or the renaming does.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
