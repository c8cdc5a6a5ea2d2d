"""``%%gpumem --engines``: the cell runs on every engine, with its options there."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.core.device_names import device_names
from ipygpumem.core.errors import IpyGpuMemError, OptionError
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.profile.collect import check_profile_paths
from ipygpumem.jupyter.options import split_words

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.ranks.engines import Engines
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["on_engines"]

_SWITCHES = {"--engines", "-q", "--quiet"}
_VALUES = {"--collect", "-v", "--var"}
_RANK = re.compile(r"\{rank\b")


def on_engines(magics: GPUMem, words: argparse.Namespace, line: str, cell: str) -> Any:
    """Run a cell on the engines and show their merged report; its error is the caller's.

    Raises:
        UsageError: No engines are under watch, or an option that means nothing here. Nothing runs.
    """
    from ipygpumem.features.ranks.engines import active
    from ipygpumem.features.ranks.engines.px import px

    engines = active()
    if engines is None:
        raise UsageError("%%gpumem --engines: no engines are under watch: %gpumem engines CLIENT begins it")
    if not engines.numbers:
        raise UsageError(f"%%gpumem --engines: {engines.gone}")
    try:
        _check(words)
    except IpyGpuMemError as error:
        raise UsageError(f"%%gpumem --engines: {error}") from error
    place, body = _parted(cell)
    inner = shlex.join(["-q", *_forwarded(split_words("%%gpumem", line))])
    try:
        return px(engines, magics.shell, place, f"%%gpumem {inner}\n{body}")
    finally:
        _tell(magics, words, engines)


def _check(words: argparse.Namespace) -> None:
    """All that can be said against the options without an engine.

    Raises:
        OptionError: An option that means nothing there, or whose answer would not come back.
    """
    if words.lines or words.function or words.modules is not None:
        raise OptionError(
            "--lines, --function and --modules list one process: %%px with %%gpumem --lines below it shows each "
            "engine's, and --snapshot run_{rank}.pickle tells here which engine differs, and by which line"
        )
    if words.view:
        raise OptionError("--view shows one snapshot: --collect FOLDER, then %gpumem ranks FOLDER --view")
    paths = {"snapshot": words.snapshot, "trace": words.trace, "timeline": words.timeline}
    examples = {"snapshot": "run_{rank}.pickle", "trace": "trace_{rank}.json.gz", "timeline": "memory_{rank}.html"}
    for what, path in paths.items():
        if path is not None and not _RANK.search(path):
            raise OptionError(f"a {what} for each engine needs a name for each: {examples[what]}")
    given = [path for path in paths.values() if path is not None]
    if len(set(given)) < len(given):
        raise OptionError("the trace, the timeline and the snapshot are files of their own: give each another name")
    check_profile_paths(words.trace, words.timeline, outside=words.outside)
    Limits.read(words.limit, words.limit_held, words.limit_outside, words.limit_host)
    device_names(words.device or ())
    if words.collect is not None:
        from ipygpumem.features.ranks.engines.px import folder_of

        folder_of(words.collect)


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
    from ipygpumem.features.ranks.engines.px import collect_files

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
