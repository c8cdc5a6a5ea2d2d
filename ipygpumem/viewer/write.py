"""Pages and pictures as files, written atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, replacing
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.sharing import on_one_clock, shared
from ipygpumem.viewer.page import PageData, check_snapshot_count, page
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
    """Write the viewer's page of one snapshot, or of up to eight side by side.

    Args:
        path: File to write.
        snapshots: One to eight snapshots.
        source: Whether to include the source code of the recorded cells.
        paths: Whether file names keep their folders.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.

    Raises:
        OptionError: The file cannot be written, or an argument is invalid.
    """
    target = check_path(path, "page", "snapshot.html")
    check_snapshot_count(len(snapshots))
    exported = [shared(snapshot, source=source, paths=paths) for snapshot in on_one_clock(snapshots)]
    text = page([PageData(snapshot.name, encode(snapshot)) for snapshot in exported], theme=theme)
    return write_file(target, text.encode("utf-8"))


def write_picture(path: str | os.PathLike[str], snapshot: Snapshot, device: int | None = None) -> Path:
    """Write the still picture of a snapshot.

    Raises:
        OptionError: The file cannot be written, or matplotlib is not installed.
        DeviceError: The snapshot has no such device.
    """
    target = check_path(path, "picture", "snapshot.png")
    return write_file(target, picture(snapshot, device).png)


def write_file(target: Path, data: bytes) -> Path:
    """Write a file atomically and return its path.

    Raises:
        OptionError: The file cannot be written.
    """
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise OptionError(f"{target} was not written: {error.strerror or error}") from error
    return target
