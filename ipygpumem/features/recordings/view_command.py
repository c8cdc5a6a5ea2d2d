"""``%gpumem view FILE``: a snapshot to look at, or several side by side."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, split_words
from ipygpumem.jupyter.paths import filled

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["VIEW"]

_FILE = Option(("file",), "FILE", "a snapshot; more, to compare with", many=True, path=True)


def _run(magics: GPUMem, rest: str) -> None:
    from ipygpumem.viewer.page import MAX_SNAPSHOTS

    files = split_words("%gpumem view", rest)
    if not 1 <= len(files) <= MAX_SNAPSHOTS:
        raise UsageError(f"%gpumem view takes one snapshot, or up to {MAX_SNAPSHOTS} side by side")
    for word in files:
        if word.startswith("-"):
            raise UsageError(f"%gpumem view has no option {word}: %gpumem view FILE [OTHER ...]")
    magics.cells.claim()
    # of a user who is not there Path.expanduser raises; here it is a file that is not there
    show.show_snapshots(magics.shell, [os.path.expanduser(filled(magics.shell, file)) for file in files])  # noqa: PTH111


VIEW = Command("view", "show a snapshot in the viewer, or several side by side", _run, options=(_FILE,))
