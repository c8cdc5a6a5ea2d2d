"""From a path or bytes to the untrusted objects in them."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import lzma
import os
import stat
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.core.units import size
from ipygpumem.snapshot.reader.pickle_reader import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipygpumem.snapshot.reader.limits import Limits
    from ipygpumem.snapshot.reader.memo_table import Run

__all__ = ["one_line", "read_objects"]

_GZ = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_JSON = (b"{", b"[")
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OLD_PICKLE = (b"(", b"]", b"}", b"c")
_CHUNK = 1 << 20
_XZ_MEMORY = 1 << 28


def read_objects(source: str | os.PathLike[str] | bytes, limits: Limits) -> tuple[Any, list[Any], list[Run]]:
    """The object in a file, with the memo and the runs of entries that it was read with.

    Raises:
        SnapshotError: Not readable, not a snapshot, dangerous or too large; the message begins with the file's name.
    """
    name = "the snapshot" if isinstance(source, bytes) else one_line(os.fsdecode(source))
    try:
        return _objects(source if isinstance(source, bytes) else _contents(os.fsdecode(source), limits), limits)
    except SnapshotError as problem:
        raise type(problem)(f"{name}: {problem}") from None
    except OSError as problem:
        raise SnapshotError(f"{name}: {problem.strerror or 'cannot be read'}") from None
    except MemoryError:
        raise SnapshotLimitError(f"{name}: there is not enough memory to read it") from None


def one_line(text: str) -> str:
    """A name as it can be printed: without line breaks, control characters and halves of characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _contents(path: str, limits: Limits) -> bytes:
    if "\0" in path:
        raise SnapshotError("a file name has no zero byte")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise SnapshotError("no file can have this name") from None
    with open(path, "rb", opener=_without_waiting) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise SnapshotError("not a regular file: a pipe or device may have no end")
        if facts.st_size > limits.size:
            _too_large(limits.size)
        raw = file.read(limits.size + 1)
    if len(raw) > limits.size:
        _too_large(limits.size)
    return raw


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for somebody who writes into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _too_large(limit: int) -> NoReturn:
    raise SnapshotLimitError(f"more than {size(limit)}; pass limits=Limits(size=...) to read it all the same")


def _unpacked(raw: bytes, limits: Limits) -> bytes:
    if raw.startswith(_XZ):
        unpack = _unxz
    elif raw.startswith(_GZ):
        unpack = _ungz
    else:
        return raw
    most = limits.unpacked(len(raw))
    parts = []
    try:
        for part in unpack(raw):
            parts.append(part)
            most -= len(part)
            if most < 0:
                _too_large(limits.unpacked(len(raw)))
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as problem:
        raise SnapshotFormatError(f"the packed file is broken or cut off: {problem}") from None
    return b"".join(parts)


def _ungz(raw: bytes) -> Iterator[bytes]:
    with gzip.open(io.BytesIO(raw)) as file:
        while part := file.read(_CHUNK):
            yield part


def _unxz(raw: bytes) -> Iterator[bytes]:
    rest = raw
    while rest:
        # without the bound a header of a few bytes may ask for a dictionary of 4 GiB
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        yield unpacker.decompress(rest, _CHUNK)
        while not unpacker.eof:
            if unpacker.needs_input:
                raise EOFError("the end is missing")
            yield unpacker.decompress(b"", _CHUNK)
        rest = unpacker.unused_data.lstrip(b"\0")


def _objects(raw: bytes, limits: Limits) -> tuple[Any, list[Any], list[Run]]:
    raw = _unpacked(raw, limits)
    if not raw:
        raise SnapshotFormatError("empty, 0 bytes: the dump was cut off before anything was written")
    if raw.startswith(_PICKLE):
        machine = Machine(raw, limits)
        return machine.read(), machine.memo, machine.runs
    if raw.lstrip()[:1] in _JSON or raw.startswith(_MARKS):
        return _json(raw, limits), [], []
    if raw.startswith(_ZIP):
        raise SnapshotFormatError("a zip file, such as torch.save writes: no memory snapshot")
    if raw[:1] in _OLD_PICKLE and raw.rstrip().endswith(b"."):
        raise SnapshotFormatError("a pickle of protocol 0 or 1: PyTorch writes 2 to 5")
    raise SnapshotFormatError("neither a pickle (protocol 2 to 5) nor JSON")


def _json(raw: bytes, limits: Limits) -> Any:
    if raw.count(b"[") + raw.count(b"{") > limits.objects(len(raw)):
        raise SnapshotLimitError("more lists and dicts than a snapshot of this size can hold")
    try:
        return json.loads(raw)
    except RecursionError:
        raise SnapshotLimitError("JSON that is nested too deep") from None
    except ValueError as problem:
        raise SnapshotFormatError(f"broken JSON: {' '.join(str(problem).split())}") from None
