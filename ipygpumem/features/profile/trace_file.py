"""torch.profiler's trace as a file: packed where that is asked for, whole, and named by itself as it is called."""

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

_NOT_WHOLE = "it is not whole: is the disk full?"
_PACKING, _CHUNK = 6, 1 << 20
_TAIL = 1 << 14
_NAME = re.compile(rb'"traceName": ".*"(?=\s*\}\s*\Z)', re.DOTALL)


def write_trace(profile: Any, target: Path, path: Path) -> None:
    """Write the trace of a torch.profiler that has ended.

    Args:
        profile: A ``torch.profiler.profile``.
        target: The file to write.
        path: The file that it becomes: where the name ends in ``.gz`` it is packed.

    Raises:
        OSError: As the system says it: Kineto itself does not tell of a write that failed.
        RuntimeError: As Kineto says it.
    """
    if path.suffix != ".gz":
        _export(profile, target, path)
        return
    plain = target.with_name(f"{target.name}.json")
    try:
        _export(profile, plain, path)
        with plain.open("rb") as source, gzip.open(target, "wb", _PACKING) as packed:
            shutil.copyfileobj(source, packed, _CHUNK)
    finally:
        plain.unlink(missing_ok=True)


def _export(profile: Any, target: Path, path: Path) -> None:
    half = target.with_name(f"{target.name}.tmp")  # what Kineto writes, and leaves where the disk is full
    try:
        profile.profiler.export_chrome_trace(str(target))
        if not target.exists():
            _fill(half)
            raise OSError(_NOT_WHOLE)
        _finish(target, path)
    finally:
        half.unlink(missing_ok=True)


def _finish(target: Path, path: Path) -> None:
    """Look whether a trace is whole, and let it name the file that it becomes: Kineto names the one it wrote.

    Raises:
        OSError: It is not whole.
    """
    with target.open("r+b") as file:
        at = max(target.stat().st_size - _TAIL, 0)
        file.seek(at)
        end = file.read()
        if not end.rstrip().endswith(b"}"):
            _fill(target)
            raise OSError(_NOT_WHOLE)
        named = _NAME.sub(lambda _: b'"traceName": ' + json.dumps(str(path)).encode(), end)
        file.seek(at)
        file.write(named)
        file.truncate()


def _fill(target: Path) -> None:
    """Write on into a file that is not whole, so that the system says why.

    Raises:
        OSError: As the system says it.
    """
    with target.open("ab") as file:
        file.write(bytes(_CHUNK))
        file.flush()
        os.fsync(file.fileno())
