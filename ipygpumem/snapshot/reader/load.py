"""Load the object in an untrusted pickle or JSON file, which may be compressed."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NoReturn

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.core.files import open_regular_file
from ipygpumem.core.text import printable
from ipygpumem.core.units import GIB, MIB, size
from ipygpumem.snapshot.reader.pickle_reader import DICT_WEIGHT, PickleReader

_GZ = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_JSON = (b"{", b"[")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OLD_PICKLE = (b"(", b"]", b"}", b"c")
_CHUNK = 1 << 20
_PIECE = 1 << 14
_XZ_MEMORY = 1 << 28
_BYTES_PER_OBJECT = 8  # real snapshots have one object or number for every 15 bytes
_EXTRA_OBJECTS = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits for reading a file. If a file exceeds a limit, `SnapshotLimitError` is raised.

    The time and memory that reading requires are at most proportional to the size of the decompressed data, so they are
    not limited separately.

    Attributes:
        size: Maximum size in bytes of the file and of the decompressed data.
        ratio: Maximum compression ratio of files that decompress to more than 8 MiB. Real snapshots have ratios of 15
            to 100, and decompression bombs have ratios of 1,000 to 7,000.
        depth: Maximum nesting depth of lists and dicts; in a pickle, those with a single item are not counted. The
            depth of real snapshots is eight.
        devices: Maximum number of devices. PyTorch stores device indices in eight bits.
    """

    size: int = 8 * GIB
    ratio: int = 250
    depth: int = 100
    devices: int = 128

    @staticmethod
    def objects(length: int) -> int:
        """Return the maximum number of objects in a file of ``length`` bytes. A dict is equivalent to 1.5 objects."""
        return _EXTRA_OBJECTS + length // _BYTES_PER_OBJECT


def read_objects(
    source: str | os.PathLike[str] | bytes, limits: ReadLimits, *, columnar: bool = True
) -> tuple[Any, PickleReader | None]:
    """Return a tuple ``(object, reader)`` of the object in a file and the pickle reader, which is None for JSON.

    If ``columnar`` is True, the pickle reader reads trace entries in batches. Raises `NotColumnarError` if it cannot,
    and `SnapshotError` if the file cannot be read.
    """
    name = "the snapshot" if isinstance(source, bytes) else printable(os.fsdecode(source))
    try:
        raw = source if isinstance(source, bytes) else _contents(os.fsdecode(source), limits)
        return _parse(_decompress(raw, limits), limits, columnar=columnar)
    except SnapshotError as error:
        raise type(error)(f"{name}: {error}") from None
    except OSError as error:
        raise SnapshotError(f"{name}: {error.strerror or 'cannot be read'}") from None
    except MemoryError:
        raise SnapshotLimitError(f"{name}: not enough memory to read the file") from None


def _contents(path: str, limits: ReadLimits) -> bytes:
    if "\0" in path:
        raise SnapshotError("a file name cannot contain a null character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise SnapshotError("the path is not a valid file name") from None
    with open_regular_file(path) as file:
        length = os.fstat(file.fileno()).st_size
        if length > limits.size:
            _fail_too_large(limits.size)
        return file.read(length)  # read() allocates this number of bytes in advance


def _fail_too_large(limit: int) -> NoReturn:
    way = "Snapshot.load(path, limits=ReadLimits(size=..., ratio=...)) from ipygpumem.snapshot"
    raise SnapshotLimitError(f"the data exceeds {size(limit)}; to read it in Python, use {way}")


def _decompress(raw: bytes, limits: ReadLimits) -> bytes:
    if raw.startswith(_XZ):
        decompress = _decompress_xz
    elif raw.startswith(_GZ):
        decompress = _decompress_gz
    else:
        return raw
    remaining = limit = min(limits.size, max(8 * MIB, limits.ratio * len(raw)))
    parts = []
    try:
        for part in decompress(raw):
            parts.append(part)
            remaining -= len(part)
            if remaining < 0:
                _fail_too_large(limit)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise SnapshotFormatError(f"the compressed file is damaged or truncated: {error}") from None
    return b"".join(parts)


def _decompress_gz(raw: bytes) -> Iterator[bytes]:
    with gzip.open(io.BytesIO(raw)) as file:
        while part := file.read(_CHUNK):
            yield part


def _decompress_xz(raw: bytes) -> Iterator[bytes]:
    # in short pieces, because each stream copies the data after it
    pieces = (raw[at : at + _PIECE] for at in range(0, len(raw), _PIECE))
    data = next(pieces)
    while data:
        # without a memory limit, a header of a few bytes could request a dictionary of 4 GiB
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        yield decompressor.decompress(data, _CHUNK)
        while not decompressor.eof:
            data = next(pieces, b"") if decompressor.needs_input else b""
            if not data and decompressor.needs_input:
                raise EOFError("the xz data ends unexpectedly")
            yield decompressor.decompress(data, _CHUNK)
        padded = (piece.lstrip(b"\0") for piece in chain([decompressor.unused_data], pieces))
        data = next(filter(None, padded), b"")


def _parse(raw: bytes, limits: ReadLimits, *, columnar: bool) -> tuple[Any, PickleReader | None]:
    if not raw:
        raise SnapshotFormatError("the file is empty (0 bytes), possibly because saving the snapshot was interrupted")
    if raw.startswith(_PICKLE):
        reader = PickleReader(raw, limits, columnar=columnar)
        return reader.read(), reader
    if raw.lstrip()[:1] in _JSON or raw.startswith(_BYTE_ORDER_MARKS):
        return _parse_json(raw, limits), None
    if raw.startswith(_ZIP):
        raise SnapshotFormatError("the file is a zip file, as written by torch.save, not a memory snapshot")
    if raw[:1] in _OLD_PICKLE and raw.rstrip().endswith(b"."):
        raise SnapshotFormatError("the file is a pickle with protocol 0 or 1, but PyTorch writes protocols 2 to 5")
    raise SnapshotFormatError("the file is neither a pickle (protocols 2 to 5) nor JSON")


def _parse_json(raw: bytes, limits: ReadLimits) -> Any:
    if raw.count(b"[") + DICT_WEIGHT * raw.count(b"{") > limits.objects(len(raw)):
        raise SnapshotLimitError("the file contains too many lists and dicts for its size")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise SnapshotLimitError("the JSON data is nested too deeply") from None
    except ValueError as error:
        raise SnapshotFormatError(f"invalid JSON: {' '.join(str(error).split())}") from None
    nested = _nested([[value]])
    for _ in range(limits.depth):
        nested = _nested(nested)
    if nested:
        raise SnapshotLimitError(f"the nesting depth exceeds the limit of {limits.depth}")
    return value


def _nested(containers: Iterable[Any]) -> list[Any]:
    """Return the lists and dicts that are items or values of ``containers``."""
    values = chain.from_iterable(item.values() if type(item) is dict else item for item in containers)
    return [value for value in values if type(value) in {dict, list}]
