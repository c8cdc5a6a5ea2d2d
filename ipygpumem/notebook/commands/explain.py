"""``%gpumem explain``: why nvidia-smi's number is not PyTorch's, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.notebook import show
from ipygpumem.notebook.commands.command import Command
from ipygpumem.notebook.options import Option, parse
from ipygpumem.session.explain import explain

if TYPE_CHECKING:
    from ipygpumem.notebook.magics import GPUMem

__all__ = ["EXPLAIN"]

_OPTIONS = (
    Option(("-d", "--device"), "DEVICE", "this device only (cuda:0, 0); may be repeated", many=True),
    Option(("-v", "--var"), "NAME", "store the explanation in this variable"),
    Option(("-q", "--quiet"), None, "show nothing"),
    Option(("-o",), None, "return the explanation"),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem explain", _OPTIONS, rest)
    found = explain(device=words.device)
    magics.cells.claim()
    if words.var is not None:
        magics.shell.user_ns[words.var] = found
    if not words.quiet:
        show.show_object(magics.shell, found)
    return found if words.o else None


EXPLAIN = Command(
    "explain",
    "every byte between nvidia-smi's number and memory_allocated(), and what can be done",
    _run,
    options=_OPTIONS,
)
