"""One cell on every engine, as ``%%px`` runs it, and the files that it left there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.files import check_path, replacing
from ipygpumem.core.from_dict import printable
from ipygpumem.features.ranks.engines.engine import piece

if TYPE_CHECKING:
    from ipygpumem.features.ranks.collect import Ranks
    from ipygpumem.features.ranks.engines.collect import Engines

__all__ = ["collect_files", "folder_of", "px"]

_PIECE = 1 << 23


def px(engines: Engines, shell: Any, line: str, cell: str) -> Any:
    """Run a cell on the engines, with the words that may stand behind ``%%px``; its error is the caller's."""
    from ipyparallel.client.magics import ParallelMagics

    view = engines.view
    view.block = True
    return ParallelMagics(shell, view).cell_px(line, cell)


def collect_files(engines: Engines, ranks: Ranks, folder: str) -> list[str]:
    """Copy the engines' snapshots into a folder of this machine, each written whole or not at all.

    Returns:
        A sentence for each file.

    Raises:
        OptionError: Nothing can be written there.
    """
    target = folder_of(folder)
    told = []
    for member in ranks.members:
        if member.snapshot is None:
            continue
        name = Path(member.snapshot.replace("\\", "/")).name
        path = check_path(target / name)
        try:
            count = _copy(engines, int(member.name), member.snapshot, path)
            told.append(f"engine {member.name}: {printable(str(target / name))}, {count:,} bytes")
        except Exception as error:
            told.append(f"engine {member.name}: {printable(name)} was not copied: {first_line(error)}")
    return told


def folder_of(name: str) -> Path:
    """A folder of this machine, made where it is not there, and proved by writing into it.

    Raises:
        OptionError: Nothing can be written there.
    """
    try:
        target = Path(name).expanduser()
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise OptionError(f"{name!r} cannot be a folder: {getattr(error, 'strerror', None) or error}") from error
    check_path(target / "run_0.pickle")
    return target


def _copy(engines: Engines, number: int, source: str, path: Path) -> int:
    """Piece by piece: a snapshot may be larger than a message should be."""
    view = engines.client[number]
    with replacing(path) as temporary, temporary.open("wb") as file:
        while part := view.apply_sync(piece, source, file.tell(), _PIECE):
            file.write(part)
        return file.tell()
