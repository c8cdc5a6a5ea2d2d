"""How a snapshot is shown: the one door from this room up to the viewer.

The viewer stands above the snapshot and is imported only when one of these is called: to read and question a file takes
numpy and nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer import View

__all__ = ["DisplayMethods"]


class DisplayMethods:
    """What every snapshot can do to be seen."""

    def view(self, *others: Snapshot, device: int | None = None, source: bool = True, paths: bool = True) -> View:
        """The viewer, for the end of a notebook cell; anywhere else what it shows in words.

        Args:
            others: Snapshots to see beside it, up to seven.
            device: The device on the still picture; without it the one with the highest peak.
            source: Whether the viewer gets the text of the recorded cells.
            paths: Whether file names keep their folders.

        Raises:
            DeviceError: The file has no such device.
            OptionError: More than eight in all.
        """
        view: View = _viewer().View([self, *others], device, source=source, paths=paths)
        return view

    def to_html(
        self,
        path: str | os.PathLike[str],
        *others: Snapshot,
        source: bool = True,
        paths: bool = True,
        theme: str = "auto",
    ) -> Path:
        """Write the viewer as one HTML file that opens anywhere, without a network.

        Args:
            path: Where to write; what is there is replaced at the end.
            others: Snapshots to see beside it, up to seven.
            source: Whether the text of the recorded cells goes into it.
            paths: Whether file names keep their folders.
            theme: ``"auto"`` (as the reader's system), ``"light"`` or ``"dark"``.

        Returns:
            The path, absolute.

        Raises:
            OptionError: Nothing can be written there, more than eight in all, or another theme.
        """
        written: Path = _viewer().write_page(path, [self, *others], source=source, paths=paths, theme=theme)
        return written

    def to_png(self, path: str | os.PathLike[str], *, device: int | None = None) -> Path:
        """Write the still picture: 880 CSS pixels wide, at most 60 kB.

        Args:
            path: Where to write; what is there is replaced at the end.
            device: The device; without it the one with the highest peak.

        Returns:
            The path, absolute.

        Raises:
            OptionError: Nothing can be written there, or matplotlib is not installed.
            DeviceError: The file has no such device.
        """
        written: Path = _viewer().write_picture(path, self, device)
        return written


def _viewer() -> Any:
    return importlib.import_module("ipygpumem.viewer")
