"""What a word of ``%gpumem`` is: its help, its options, and the function that it calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.jupyter.magics import GPUMem
    from ipygpumem.jupyter.options import Option

__all__ = ["Command", "Verb"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A second word, as ``start`` in ``%gpumem record start``, and what may follow it."""

    word: str
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One word of ``%gpumem``.

    Attributes:
        word: The word.
        help: What it does, for the help text.
        run: Called with the magics and the rest of the line; what it returns is the line's value. It raises UsageError
            for a word that means nothing; an error of ours becomes one.
        options: What may follow, where no verb does: for the help and the completion (`run` parses).
        verbs: The words one of which has to follow.
    """

    word: str
    help: str
    run: Callable[[GPUMem, str], Any]
    options: tuple[Option, ...] = ()
    verbs: tuple[Verb, ...] = ()
