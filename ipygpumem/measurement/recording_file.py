"""Snapshot files as our recorder writes them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.files import check_path, replacing
from ipygpumem.core.garbage_collection import collector_paused

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_path", "write"]

_PROTOCOL = 4
"""pytorch.org/memory_viz refuses protocol 5, the default from Python 3.14 on (pytorch#183842)."""


def write(path: Path, snapshot: dict[str, Any]) -> int:
    """Write a snapshot: a temporary file beside it, then a rename, so that an old file stays whole until the end.

    Returns:
        The file's size in bytes.

    Raises:
        RecordingError: The disk is full or the folder is gone; the old file, if any, is as it was.
    """
    try:
        with replacing(path) as temporary:
            with collector_paused(), temporary.open("wb") as file:
                pickle.dump(snapshot, file, protocol=_PROTOCOL)
            return temporary.stat().st_size
    except OSError as error:
        raise RecordingError(f"the snapshot {path} was not written: {error.strerror or error}") from error
