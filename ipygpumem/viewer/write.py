"""Pages and pictures as files: written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, replacing
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.sharing import on_one_clock, shared
from ipygpumem.viewer.page import Source, check_sources, page
from ipygpumem.viewer.picture import picture

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["write_file", "write_page", "write_picture"]


def write_page(
    path: str | os.PathLike[str],
    snapshots: Sequence[Snapshot],
    *,
    source: bool = True,
    paths: bool = True,
    theme: str = "auto",
) -> Path:
    """Write the page of one snapshot, or of several beside each other.

    Args:
        path: Where to write.
        snapshots: One, or up to eight.
        source: Whether the text of the recorded cells goes into it.
        paths: Whether file names keep their folders.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.

    Returns:
        The path, absolute.

    Raises:
        OptionError: Nothing can be written there, no snapshot, more than eight, or another theme.
    """
    target = check_path(path, "page", "snapshot.html")
    check_sources(len(snapshots))
    given = [shared(snapshot, source=source, paths=paths) for snapshot in on_one_clock(snapshots)]
    text = page([Source(snapshot.name, encode(snapshot)) for snapshot in given], theme=theme)
    return write_file(target, text.encode("utf-8"))


def write_picture(path: str | os.PathLike[str], snapshot: Snapshot, device: int | None = None) -> Path:
    """Write the still picture of a snapshot.

    Raises:
        OptionError: Nothing can be written there, or matplotlib is not installed.
        DeviceError: The file has no such device.
    """
    target = check_path(path, "picture", "snapshot.png")
    return write_file(target, picture(snapshot, device).png)


def write_file(target: Path, data: bytes) -> Path:
    """Write a file atomically.

    Raises:
        OptionError: The file cannot be written.
    """
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise OptionError(f"{target} was not written: {error.strerror or error}") from error
    return target
