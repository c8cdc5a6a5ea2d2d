"""Check output paths in advance, import optional libraries, and write files atomically."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import secrets
import stat
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from ipygpumem.core.errors import IpyGpuMemError, OptionError, first_line
from ipygpumem.core.interrupts import DeferredInterrupts

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)
_ACCESS_CONTROL_LIST = "system.posix_acl_access"
_MAX_LINKS = 40
_PROGRAM = re.compile(r"\.(ipynb|py[iwx]?)$", re.IGNORECASE)
_START_BYTES = 1 << 16
_MAX_XZ_MEMORY = 1 << 28
_PICKLE_START = re.compile(rb"\x80[\x02-\x05]")
_JSON_SNAPSHOT_START = re.compile(
    r'\s*[{\[].*?"(segments|device_traces|total_size|allocator_settings|external_annotations|ipygpumem[^"]*)"\s*:',
    re.DOTALL,
)
"""Start of a JSON snapshot. Its keys can have any order; in PyTorch before 2.0, a snapshot was a list of segments."""
_SNAPSHOT = re.compile(r"\.(pickle|pkl)(\.gz|\.xz)?$", re.IGNORECASE)


def check_path(path: str | os.PathLike[str], kind: str = "snapshot", example: str = "snapshot.pickle") -> Path:
    """Check that a file can be written and return its absolute path.

    The check creates and deletes a temporary file in the same directory. Raises `OptionError` if the file cannot be
    written (for example, because the path refers to a directory or a device), or if an existing file must not be
    replaced: a Python file, a notebook or, unless ``kind`` is ``"snapshot"``, a snapshot. If ``kind`` is ``"log"``, the
    file may be of any of these types, because reports are appended to it. ``kind`` and ``example`` also occur in error
    messages.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise OptionError(f"the path of the {kind} must be a string or a path object, but got {path!r}")
    text = os.fsdecode(path)
    if not text.strip():
        raise OptionError(f"the path of the {kind} is empty")
    target, status, has_directory = _resolve(text)
    if (status is not None and stat.S_ISDIR(status.st_mode)) or text.endswith(("/", os.sep)):
        raise OptionError(f"{text} is a directory: add a file name, such as {Path(text) / example}")
    # renaming a file to /dev/null or to a named pipe would replace that device or pipe
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise OptionError(f"{text} is not a regular file")
    if status is not None and not os.access(target, os.W_OK):
        raise OptionError(f"{text} is write-protected")
    is_protected = _PROGRAM.search(target.name) or (kind != "snapshot" and _SNAPSHOT.search(target.name))
    # reports are appended to a log
    if kind != "log" and status is not None and (is_protected or (kind != "snapshot" and _contains_snapshot(target))):
        raise OptionError(f"{text} already exists and would be replaced by a {kind}: choose a name such as {example}")
    if not has_directory or not target.parent.is_dir():
        raise OptionError(f"the directory {target.parent} does not exist")
    try:
        with temporary_file(target):
            pass
    except OSError as error:
        raise OptionError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    return target


def _contains_snapshot(path: Path) -> bool:
    import gzip
    import json
    import lzma
    import zlib

    try:
        with open_regular_file(path) as file:
            start = file.read(_START_BYTES)
            if start.startswith(b"\x1f\x8b"):
                file.seek(0)
                with gzip.open(file) as unpacked:
                    start = unpacked.read(_START_BYTES)
            elif start.startswith(b"\xfd7zXZ"):
                start = lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY).decompress(start, _START_BYTES)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return False
    if _PICKLE_START.match(start):
        return True
    return bool(_JSON_SNAPSHOT_START.match(start.decode(json.detect_encoding(start), errors="ignore").lstrip("\ufeff")))


def absolute_path(text: str) -> Path:
    """Convert a string to an absolute path without links, and expand ``~``.

    Raises `OptionError` if the path is invalid, or contains a link or file that another user may have created in a
    shared directory.
    """
    return _resolve(text)[0]


def _resolve(text: str) -> tuple[Path, os.stat_result | None, bool]:
    """Convert a string to an absolute path, as `absolute_path` does.

    Returns:
        A tuple of the path, its status or None if it does not exist, and whether its directory exists.
    """
    try:
        return _follow_links(Path(text).expanduser().absolute())
    except OptionError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user after ~, or a null character
        raise OptionError(f"{text!r} is not a valid path: {getattr(error, 'strerror', None) or error}") from error


def _follow_links(path: Path) -> tuple[Path, os.stat_result | None, bool]:
    """Follow the links on an absolute path. Each entry is examined once, because other users may replace it meanwhile.

    Raises `OptionError` for a link or file for which `_is_foreign` is true.
    """
    names, links, status, has_directory = [*reversed(path.parts)], 0, None, True
    while names:
        name = names.pop()
        directory, path = path, path.parent if name == ".." else path / name
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            status, has_directory = None, has_directory and not names
            continue
        if not stat.S_ISDIR(status.st_mode) and _is_foreign(status, directory):
            raise OptionError(f"{path} belongs to another user: choose another path")
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            names += reversed(path.readlink().parts)
            path = directory
    return path, status, has_directory


def _is_foreign(status: os.stat_result, directory: Path) -> bool:
    """Return whether a link or file may have been created by another user in a shared directory.

    The result can be true only if all users can write to the directory and, for a file, if the directory also has the
    sticky bit, as ``/tmp`` has. The owner of the directory is trusted.
    """
    shared = directory.stat()
    required = stat.S_IWOTH if stat.S_ISLNK(status.st_mode) else stat.S_IWOTH | stat.S_ISVTX
    return shared.st_mode & required == required and status.st_uid not in {os.geteuid(), shared.st_uid}


def check_ending(path: str | os.PathLike[str], kind: str, *endings: str) -> None:
    name = Path(os.fsdecode(path)).name
    if not name.lower().endswith(endings):
        raise OptionError(f"{name!r} is not a valid name for the {kind}: it must end in {' or '.join(endings[:2])}")


def import_library(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in {module, module.partition(".")[0]}:
            raise OptionError(f"{module} is required for {purpose}: pip install {module}") from None
        # such as a version that requires a newer NumPy
        raise OptionError(f"{module} is required for {purpose} but cannot be imported: {first_line(error)}") from error


@contextlib.contextmanager
def temporary_file(path: Path, permissions: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a new file with a random name in the directory of ``path``, and delete it on exit unless it was renamed."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        # "x" does not open a file or symbolic link that another user has created under this name. The opener is not a
        # Python function: an interrupt that arrives in it would leave the file open
        with open(temporary, "xb", opener=functools.partial(os.open, mode=permissions)) as file:
            yield file
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def atomic_write(path: Path, name: str = "", error_type: type[IpyGpuMemError] = OptionError) -> Iterator[IO[bytes]]:
    """Yield a new binary file that replaces the file at ``path`` on exit. The permissions of a replaced file are kept.

    They include its group and its access control list. If these cannot be set, the group gets no access.

    If the block raises an exception, an existing file remains unchanged. An `OSError` is raised again as
    ``error_type``, whose message starts with ``name``, such as ``"the snapshot "``.
    """
    try:
        replaced = _status(path)
        with temporary_file(path, 0o666 if replaced is None else replaced.st_mode & stat.S_IRWXU) as file:
            if replaced is not None:
                with contextlib.suppress(OSError, AttributeError):  # Windows, and file systems without permissions
                    _copy_permissions(path, replaced, file.fileno())
            yield file
            file.close()
            Path(file.name).replace(path)
    except OSError as error:
        raise error_type(f"{name}{path} was not written: {error.strerror or error}") from error


def _status(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()  # not `stat`, because another user may have created a link
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _copy_permissions(path: Path, replaced: os.stat_result, file: int) -> None:
    permissions = stat.S_IMODE(replaced.st_mode)
    try:
        if os.fstat(file).st_gid != replaced.st_gid:
            os.fchown(file, -1, replaced.st_gid)
        if _ACCESS_CONTROL_LIST in (os.listxattr(path, follow_symlinks=False) if hasattr(os, "listxattr") else ()):
            os.setxattr(file, _ACCESS_CONTROL_LIST, os.getxattr(path, _ACCESS_CONTROL_LIST, follow_symlinks=False))
    except OSError:
        permissions &= ~stat.S_IRWXG  # they belong to another group, or are the mask of the access control list
    os.fchmod(file, permissions)


def write_file(target: Path, data: bytes) -> Path:
    with atomic_write(target) as file:
        file.write(data)
    return target


def open_for_appending(path: Path) -> IO[bytes]:
    """Open a file, which is created if it does not exist. Reads and writes are not buffered.

    Raises `OSError` if the file cannot be opened, or could have been created by another user in a shared directory.
    """
    file = open_regular_file(path, "a+b", _NO_FOLLOW, buffering=0)
    if _is_foreign(os.fstat(file.fileno()), path.parent):
        file.close()
        raise OSError(errno.EPERM, "the file belongs to another user")
    return file


def open_regular_file(path: str | Path, mode: str = "rb", flags_added: int = 0, buffering: int = -1) -> IO[bytes]:
    """Open a regular file, with ``flags_added`` in addition to the flags that ``mode`` implies.

    Raises `OSError` for pipes, devices and files in ``/proc``, because reading them can block.
    """
    flags_added |= _NON_BLOCKING  # opening a pipe would otherwise block until it has a writer
    with DeferredInterrupts():  # an interrupt in the opener would leave the file open
        file = open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags | flags_added, 0o666))  # noqa: SIM115
    # /proc contains regular files that provide data only later, such as kmsg
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or os.path.realpath(file.name).startswith("/proc/"):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file; pipes, devices and files in /proc cannot be read")
    return file
