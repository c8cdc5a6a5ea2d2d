"""What commands need of the notebook in which they run, and the names that IPython itself uses there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ipygpumem.core.tables import Table

__all__ = ["LATEST_OUTPUTS", "Notebook", "is_ipython_name", "output_number"]

LATEST_OUTPUTS = ("_", "__", "___")
_IPYTHON_NAMES = frozenset(
    {"In", "Out", "_oh", "_ih", "_dh", "_i", "_ii", "_iii", "get_ipython", "exit", "quit", "_exit_code"}
)
_OUTPUT = re.compile(r"_([1-9][0-9]{0,8}|0)")
_INPUT = re.compile(r"_i[0-9]+")


class Notebook(Protocol):
    """A shell with the extension.

    Attributes:
        shell: IPython's shell.
        session: The runtime of this process.
        cells: The cells of the shell.
        record: The recording across cells.
        monitoring: The memory monitor.
    """

    shell: Any
    session: Any
    cells: Any
    record: Any
    monitoring: Any

    def expand(self, text: str) -> str:
        """Replace ``{name}`` and ``$name`` in a path by the values of variables."""

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


def output_number(name: str) -> int | None:
    """The execution count of the output that a name like ``_3`` refers to."""
    match = _OUTPUT.fullmatch(name)
    return None if match is None else int(match[1])


def is_ipython_name(name: str) -> bool:
    """Whether IPython itself assigns a variable of this name."""
    is_ipythons = name in LATEST_OUTPUTS or name in _IPYTHON_NAMES or output_number(name) is not None
    return is_ipythons or _INPUT.fullmatch(name) is not None
