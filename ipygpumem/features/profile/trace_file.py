"""Writing the trace of torch.profiler: optionally compressed, complete, and with its own file name inside."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_trace"]

_INCOMPLETE = "the file is incomplete; is the disk full?"
_CHUNK = 1 << 20
_TAIL = 1 << 14
_TRACE_NAME = re.compile(rb'"traceName": ".*"(?=\s*\}\s*\Z)', re.DOTALL)


def write_trace(profile: Any, target: Path, path: Path) -> None:
    """Write the trace of a finished ``torch.profiler.profile``.

    Args:
        profile: The profiler.
        target: The file to write, which will be renamed.
        path: Its final name. It is compressed if the name ends in ``.gz``.

    Raises:
        OSError: The file cannot be written. (Kineto itself reports no failed writes.)
        RuntimeError: An error of Kineto.
    """
    if path.suffix != ".gz":
        _export(profile, target, path)
        return
    plain = target.with_name(f"{target.name}.json")
    try:
        _export(profile, plain, path)
        with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=6) as compressed:
            shutil.copyfileobj(source, compressed, _CHUNK)
    finally:
        plain.unlink(missing_ok=True)


def _export(profile: Any, target: Path, path: Path) -> None:
    temporary = target.with_name(f"{target.name}.tmp")  # written by Kineto, and left there if the disk is full
    try:
        profile.profiler.export_chrome_trace(str(target))
        if not target.exists():
            _raise_write_error(temporary)
            raise OSError(_INCOMPLETE)
        with target.open("r+b") as file:
            position = max(target.stat().st_size - _TAIL, 0)
            file.seek(position)
            tail = file.read()
            if not tail.rstrip().endswith(b"}"):
                _raise_write_error(target)
                raise OSError(_INCOMPLETE)
            # Kineto stores the name of the file that it wrote
            file.seek(position)
            file.write(_TRACE_NAME.sub(lambda _: b'"traceName": ' + json.dumps(str(path)).encode(), tail))
            file.truncate()
    finally:
        temporary.unlink(missing_ok=True)


def _raise_write_error(target: Path) -> None:
    """Append to an incomplete file, so that the system raises the error that Kineto did not report."""
    with target.open("ab") as file:
        file.write(bytes(_CHUNK))
        file.flush()
        os.fsync(file.fileno())
