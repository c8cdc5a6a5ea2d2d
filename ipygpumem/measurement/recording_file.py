"""Write snapshot files."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.files import replacing
from ipygpumem.core.interpreter import collector_paused

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_snapshot"]

_PROTOCOL = 4
"""pytorch.org/memory_viz cannot read protocol 5, the default since Python 3.14 (pytorch#183842)."""


def write_snapshot(path: Path, snapshot: dict[str, Any]) -> int:
    """Write a snapshot, and return the size of the file in bytes. An existing file is replaced at the end.

    Raises:
        RecordingError: The file cannot be written; an existing file is unchanged.
    """
    try:
        with replacing(path) as temporary:
            with collector_paused(), temporary.open("wb") as file:
                pickle.dump(snapshot, file, protocol=_PROTOCOL)
            return temporary.stat().st_size
    except OSError as error:
        raise RecordingError(f"the snapshot {path} was not written: {error.strerror or error}") from error
