"""``%%gpumem --engines``: the cell runs on every engine, with its options there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.errors import IpyGpuMemError
from ipygpumem.notebook.options import split_words

if TYPE_CHECKING:
    import argparse

    from ipygpumem.notebook.magics import GPUMem
    from ipygpumem.parallel import Engines

__all__ = ["on_engines"]

_SWITCHES = {"--engines", "-q", "--quiet"}
_VALUES = {"--collect", "-v", "--var"}


def on_engines(magics: GPUMem, words: argparse.Namespace, line: str, cell: str) -> Any:
    """Run a cell on the engines and show their merged report; its error is the caller's.

    Raises:
        UsageError: No engines are under watch, or an option that means nothing here. Nothing runs.
    """
    from ipygpumem.parallel import active
    from ipygpumem.parallel.px import px

    engines = active()
    if engines is None:
        raise UsageError("%%gpumem --engines: no engines are under watch: %gpumem engines CLIENT begins it")
    if words.snapshot is not None and "{" not in words.snapshot:
        raise UsageError("%%gpumem --engines: a snapshot for each engine needs a name for each: run_{rank}.pickle")
    if words.view:
        raise UsageError(
            "%%gpumem --engines: --view shows one snapshot: --collect FOLDER, then %gpumem ranks FOLDER --view"
        )
    place, body = _parted(cell)
    inner = shlex.join(["-q", *_forwarded(split_words("%%gpumem", line))])
    try:
        return px(engines, magics.shell, place, f"%%gpumem {inner}\n{body}")
    finally:
        _tell(magics, words, engines)


def _parted(cell: str) -> tuple[str, str]:
    """A cell that begins with ``%%px`` as the words behind that and the rest."""
    first, _, rest = cell.lstrip().partition("\n")
    head, _, words = first.strip().partition(" ")
    return (words, rest) if head == "%%px" else ("", cell)


def _forwarded(words: list[str]) -> list[str]:
    """The options that are the engines' own."""
    kept: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word in _VALUES:
            next(waiting, None)
        elif word not in _SWITCHES and word.partition("=")[0] not in _VALUES:
            kept.append(word)
    return kept


def _tell(magics: GPUMem, words: argparse.Namespace, engines: Engines) -> None:
    from ipygpumem.parallel.px import collect_files

    for found in engines.collect():
        if words.var is not None:
            magics.shell.user_ns[words.var] = found
        if not words.quiet:
            engines.show(found)
        if words.collect is None:
            continue
        try:
            told = collect_files(engines, found, words.collect)
        except IpyGpuMemError as error:
            told = [str(error)]
        print("\n".join(f"ipygpumem: {one}" for one in told or ["there are no snapshots to collect"]))  # noqa: T201 (its purpose)
