"""``%%gpumem --engines``: run a cell on all monitored engines, with the other options of the magic."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipygpumem.core.device_names import device_names
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.files import atomic_write, check_path
from ipygpumem.core.text import printable
from ipygpumem.features.limits.model import MemoryLimits
from ipygpumem.features.profile.collect import check_profile_paths
from ipygpumem.features.ranks.collect import Ranks
from ipygpumem.features.ranks.engines.collect import Engines
from ipygpumem.features.ranks.engines.enable import active
from ipygpumem.features.ranks.rank_files import make_directory

_LOCAL_FLAGS = {"--engines", "-q", "--quiet"}
_LOCAL_VALUES = {"--collect", "-v", "--var"}
_CHUNK_BYTES = 1 << 23
_EXAMPLES = {"snapshot": "run_{rank}.pickle", "trace": "trace_{rank}.json.gz", "timeline": "memory_{rank}.html"}


def engines_for_cell(options: argparse.Namespace) -> Engines:
    engines = active()
    if engines is None:
        raise OptionError("no engines are monitored: use %gpumem engines CLIENT to monitor them")
    if not engines.numbers:
        raise OptionError(engines.gone)
    if options.lines or options.function or options.modules is not None:
        raise OptionError(
            "--lines, --function and --modules support only a single process: to list the lines of each engine, use "
            "%%px with %%gpumem --lines below it; to compare the engines, use --snapshot run_{rank}.pickle"
        )
    if options.view:
        raise OptionError(
            "--view displays only one snapshot: to view the snapshots of several engines, use --collect DIRECTORY and "
            "then %gpumem ranks DIRECTORY --view"
        )
    paths = {name: getattr(options, name) for name in _EXAMPLES if getattr(options, name) is not None}
    for name, path in paths.items():
        if not re.search(r"\{rank\b", path):
            raise OptionError(f"each engine needs a separate {name} file: use a file name such as {_EXAMPLES[name]}")
    check_profile_paths(options.trace, options.timeline, options.snapshot, outside=options.outside)
    MemoryLimits.parse(options.limit, options.limit_held, options.limit_outside, options.limit_host)
    device_names(options.device or ())
    if options.collect is not None:
        make_directory(options.collect)
    return engines


def run_on_engines(engines: Engines, shell: Any, options: argparse.Namespace, arguments: list[str], cell: str) -> Any:
    from ipyparallel.client.magics import ParallelMagics

    first, _, rest = cell.lstrip().partition("\n")
    is_px = first.split()[:1] == ["%%px"]
    px_line, body = (first.strip().removeprefix("%%px"), rest) if is_px else ("", cell)
    engines.view.block = True
    line = shlex.join(["-q", *_engine_arguments(arguments)])
    try:
        return ParallelMagics(shell, engines.view).cell_px(px_line, f"%%gpumem {line}\n{body}")
    finally:
        _show_reports(engines, shell, options)


def _engine_arguments(arguments: list[str]) -> Iterator[str]:
    argument_iterator = iter(arguments)
    for argument in argument_iterator:
        if argument in _LOCAL_VALUES:
            next(argument_iterator, None)
        elif argument not in _LOCAL_FLAGS and argument.partition("=")[0] not in _LOCAL_VALUES:
            yield argument


def _show_reports(engines: Engines, shell: Any, options: argparse.Namespace) -> None:
    for ranks in engines.collect():
        if options.var is not None:
            shell.user_ns[options.var] = ranks
        if not options.quiet:
            engines.show(ranks)
        if options.collect is not None:
            for message in _copy_snapshots(engines, ranks, options.collect):
                print(f"ipygpumem: {message}")  # noqa: T201 (the result of --collect)


def _copy_snapshots(engines: Engines, ranks: Ranks, directory: str) -> Iterator[str]:
    snapshots = {int(result.name): result.snapshot for result in ranks.members if result.snapshot is not None}
    if not snapshots:
        yield "there are no snapshots to collect"
    for engine_id, snapshot in snapshots.items():
        path = Path(directory).expanduser() / snapshot.replace("\\", "/").rpartition("/")[2]
        try:
            outcome = f"{path}, {_copy(engines.client[engine_id], snapshot, check_path(path)):,} bytes"
        except Exception as error:
            outcome = f"cannot copy {path.name}: {first_line(error)}"
        yield f"engine {engine_id}: {printable(outcome)}"


def _copy(view: Any, source: str, path: Path) -> int:
    with atomic_write(path) as file:
        while chunk := view.apply_sync(_read_chunk, source, file.tell(), _CHUNK_BYTES):
            file.write(chunk)
        return file.tell()


def _read_chunk(path: str, offset: int, nbytes: int) -> bytes:
    """Read a chunk of a file on an engine, because a whole snapshot can exceed the size limit of a message."""
    with open(path, "rb") as file:  # noqa: PTH123 (the unmodified path from the recorder)
        file.seek(offset)
        return file.read(nbytes)
