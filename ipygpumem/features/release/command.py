"""``%gpumem free``: let go of what nobody wants, and say what that gave back."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from ipygpumem.commands.command import Command
from ipygpumem.core.units import MIB, size
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.release.collect import check_names, let_go_of_names, let_go_of_outputs, let_go_of_tracebacks
from ipygpumem.features.release.model import Release
from ipygpumem.features.release.table import release_tables
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, parse
from ipygpumem.sources import allocator

if TYPE_CHECKING:
    from ipygpumem.core.reading import Reading
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["FREE"]

_MOST = 5

_OPTIONS = (
    Option(("names",), "NAME", "delete these variables, and let go of the same in Out and in the traceback", many=True),
    Option(("--out",), None, "let go of the output history, too: Out, _, __, ___ and every _3"),
    Option(("--cache",), None, "give PyTorch's cache back to the card, too: torch.cuda.empty_cache()"),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem free", _OPTIONS, rest)
    shell = magics.shell
    check_names(shell, words.names)
    known = holders() if words.names else None
    before = magics.session.reading()
    gone = let_go_of_names(shell, dict.fromkeys(words.names))
    if words.out or words.cache or not words.names:
        gone += let_go_of_tracebacks(shell)
    magics.debugger.tell()
    if words.out:
        gone += let_go_of_outputs(shell)
    cycles = gc.collect()
    if cycles:
        gone.append(f"{cycles:,} object{'' if cycles == 1 else 's'} in unreachable cycles")
    if words.cache and allocator.empty_cache():
        gone.append("PyTorch's cache")
    after = magics.session.reading()
    notes = [] if known is None else _still(words.names, known, before, after)
    notes += [] if words.cache else _in_cache(before, after)
    magics.cells.claim()
    show.show_tables(shell, release_tables(Release(before, after, tuple(gone), tuple(notes))))


def _still(names: list[str], known: Holders, before: Reading, after: Reading) -> list[str]:
    """Who else holds what these names held: those who hold more now than before."""
    expected = sum(known.amount(name) for name in names)
    given = sum(Release(before, after, ()).given_back(name) or 0 for name in after.devices)
    if expected - given < MIB:
        return []
    earlier = {(one.name, one.device): one.amount for one in known.holders}
    others = []
    for one in holders().holders:
        more = one.amount - earlier.get((one.name, one.device), 0)
        if more >= MIB:
            others.append(f"{one.name} ({size(more)})")
    return [f"still held by {', '.join(others[:_MOST])}"] if others else []


def _in_cache(before: Reading, after: Reading) -> list[str]:
    """Where freed memory went, where it is still PyTorch's."""
    sentences = []
    for name, device in after.devices.items():
        earlier = before.devices.get(name)
        if earlier is None or earlier.cached is None or device.cached is None:
            continue
        if device.cached - earlier.cached >= MIB:
            grown = size(device.cached - earlier.cached)
            sentences.append(
                f"{name}: {grown} went into PyTorch's cache, for its next tensors; --cache gives it back to the card"
            )
    return sentences


FREE = Command(
    "free",
    "let go of the last traceback and of unreachable cycles, and say what that gave back",
    _run,
    options=_OPTIONS,
)
