"""Methods that display a snapshot.

The viewer is imported when a method is called, so that reading and querying a file requires only numpy.
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
    """Display methods of `Snapshot`."""

    def view(self, *others: Snapshot, device: int | None = None, source: bool = True, paths: bool = True) -> View:
        """Return the interactive viewer, which a notebook displays and other front ends print as a summary.

        Args:
            others: Up to seven snapshots to display next to this one.
            device: Device index for the static image; by default the device with the highest peak.
            source: Whether to include the source code of the recorded cells.
            paths: Whether file names include their directories.

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
        """Write the viewer to a self-contained HTML file and return its absolute path.

        Args:
            path: Path of the file. An existing file is replaced after the new file is complete.
            others: Up to seven snapshots to display next to this one.
            source: Whether to include the source code of the recorded cells.
            paths: Whether file names include their directories.
            theme: ``"light"``, ``"dark"``, or ``"auto"`` for the system setting of the reader.

        Raises:
            OptionError: The file cannot be written, the theme does not exist, or there are more than eight snapshots.
        """
        written: Path = _viewer().write_page(path, [self, *others], source=source, paths=paths, theme=theme)
        return written

    def to_png(self, path: str | os.PathLike[str], *, device: int | None = None) -> Path:
        """Write the static image, 880 CSS pixels wide and at most 60 kB, and return its absolute path.

        Args:
            path: Path of the file. An existing file is replaced after the new file is complete.
            device: Device index; by default the device with the highest peak.

        Raises:
            OptionError: The file cannot be written, or matplotlib is not installed.
            DeviceError: The snapshot has no such device.
        """
        written: Path = _viewer().write_image(path, self, device)
        return written


def _viewer() -> Any:
    return importlib.import_module("ipygpumem.viewer")
