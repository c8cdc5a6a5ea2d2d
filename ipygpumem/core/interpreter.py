"""The Python interpreter: its garbage collector, and frames of stacks as (file name, line, function)."""

from __future__ import annotations

import contextlib
import gc
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["collector_paused", "frame_label", "is_library_file", "user_frame"]

_LIBRARY_FOLDERS = tuple(
    {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(name))}
)


def frame_label(file: str, line: int, function: str) -> str:
    """A frame as text: ``train.py:12 step``."""
    return f"{Path(file).name}:{line} {function}".rstrip()


def is_library_file(file: str) -> bool:
    """Whether a file belongs to Python or an installed package rather than to the user."""
    return file.startswith(_LIBRARY_FOLDERS) or "site-packages" in file or "dist-packages" in file


def user_frame(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """The innermost frame of the user's own code in a stack; the innermost of all if there is none."""
    return next((frame for frame in frames if not is_library_file(frame[0])), frames[0] if frames else None)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector: while millions of containers are created, it would traverse them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
