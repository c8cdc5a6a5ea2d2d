"""What commands need of the notebook in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ipygpumem.core.tables import Table

__all__ = ["Notebook"]


class Notebook(Protocol):
    """A shell with the extension: IPython's shell, the runtime, its cells, the recording across cells, the monitor."""

    shell: Any
    session: Any
    cells: Any
    record: Any
    monitoring: Any

    def expand(self, text: str) -> str:
        """Replace ``{name}`` in a path by the value of a variable."""

    def output_path(self, text: str) -> Path:
        """Expand a path to write to, and check it."""

    def evaluate(self, name: str) -> Any:
        """Return the object with this name in the notebook."""

    def set_reports(self, *, on: bool) -> None:
        """Switch the report after every cell on or off."""

    def print(self, *lines: str) -> None:
        """Print lines."""

    def show_tables(self, tables: list[Table]) -> None:
        """Display tables."""

    def show_object(self, value: Any) -> None:
        """Display an object that has a text form and an HTML form."""

    def show_picture(self, picture: Any, text: str) -> None:
        """Display a picture, with a text for front ends that show no pictures."""

    def show_snapshots(self, files: Sequence[str]) -> None:
        """Display snapshots side by side."""
