"""The methods by which a snapshot shows itself.

They import the viewer when they are called. Reading and querying a file needs numpy only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer import View


class DisplayMethods:
    """Methods of `Snapshot` that show it."""

    def view(self, *others: Snapshot, device: int | None = None, source: bool = True, paths: bool = True) -> View:
        """The interactive viewer, as the last expression of a notebook cell. Elsewhere it prints a summary.

        Args:
            others: Up to seven snapshots to show beside this one.
            device: The device in the static picture; by default the one with the highest peak.
            source: Whether to include the text of the recorded cells.
            paths: Whether file names keep their folders.

        Raises:
            DeviceError: The snapshot has no such device.
            OptionError: There are more than eight snapshots.
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
        """Write the viewer to one HTML file that needs no network, and return its absolute path.

        Args:
            path: The file; an existing one is replaced when the new one is complete.
            others: Up to seven snapshots to show beside this one.
            source: Whether to include the text of the recorded cells.
            paths: Whether file names keep their folders.
            theme: ``"auto"`` (as the reader's system), ``"light"`` or ``"dark"``.

        Raises:
            OptionError: The file cannot be written, the theme does not exist, or there are more than eight snapshots.
        """
        written: Path = _viewer().write_page(path, [self, *others], source=source, paths=paths, theme=theme)
        return written

    def to_png(self, path: str | os.PathLike[str], *, device: int | None = None) -> Path:
        """Write the static picture, 880 CSS pixels wide and at most 60 kB, and return its absolute path.

        Args:
            path: The file; an existing one is replaced when the new one is complete.
            device: The device; by default the one with the highest peak.

        Raises:
            OptionError: The file cannot be written, or matplotlib is not installed.
            DeviceError: The snapshot has no such device.
        """
        written: Path = _viewer().write_picture(path, self, device)
        return written


def _viewer() -> Any:
    return importlib.import_module("ipygpumem.viewer")
