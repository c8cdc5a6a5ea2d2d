"""What the words that look at something share: options for what becomes of the answer, and the doing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.jupyter.options import Option

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["answer", "answer_options"]


def answer_options(noun: str) -> tuple[Option, ...]:
    """The options, with the answer's name: ``the holders``."""
    return (
        Option(("-d", "--device"), "DEVICE", "this device only (cuda:0, 0); may be repeated", many=True),
        Option(("-v", "--var"), "NAME", f"store {noun} in this variable"),
        Option(("-q", "--quiet"), None, "show nothing"),
        Option(("-o",), None, f"return {noun}"),
        Option(("-h", "--help"), None, "show this help"),
    )


def answer(magics: GPUMem, words: argparse.Namespace, found: Any, display: Callable[[], None]) -> Any:
    """Keep, show and give what was found, as the words say. The cell has no report besides."""
    magics.cells.claim()
    if words.var is not None:
        magics.shell.user_ns[words.var] = found
    if not words.quiet:
        display()
    return found if words.o else None
