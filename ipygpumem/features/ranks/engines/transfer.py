"""Copy the snapshots of engines to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import first_line
from ipygpumem.core.files import check_path, replacing
from ipygpumem.core.from_dict import printable
from ipygpumem.features.ranks.rank_files import make_folder

if TYPE_CHECKING:
    from ipygpumem.features.ranks.collect import Ranks
    from ipygpumem.features.ranks.engines.collect import Engines

__all__ = ["check_folder", "collect_files"]

_CHUNK_BYTES = 1 << 23


def collect_files(engines: Engines, ranks: Ranks, folder: str) -> list[str]:
    """Copy the engines' snapshots into a folder, each completely or not at all.

    Returns:
        A message for each file.

    Raises:
        OptionError: The folder cannot be written.
    """
    target = check_folder(folder)
    messages = []
    for result in ranks.members:
        if result.snapshot is None:
            continue
        name = Path(result.snapshot.replace("\\", "/")).name
        path = check_path(target / name)
        try:
            nbytes = _copy(engines, int(result.name), result.snapshot, path)
            messages.append(f"engine {result.name}: {printable(str(target / name))}, {nbytes:,} bytes")
        except Exception as error:
            messages.append(f"engine {result.name}: cannot copy {printable(name)}: {first_line(error)}")
    return messages


def check_folder(name: str) -> Path:
    """Create a folder on this machine unless it exists, and check that it can be written.

    Raises:
        OptionError: It cannot.
    """
    target = make_folder(name)
    check_path(target / "run_0.pickle")
    return target


def _copy(engines: Engines, number: int, source: str, path: Path) -> int:
    view = engines.client[number]
    with replacing(path) as temporary, temporary.open("wb") as file:
        while chunk := view.apply_sync(_read_chunk, source, file.tell(), _CHUNK_BYTES):
            file.write(chunk)
        return file.tell()


def _read_chunk(path: str, offset: int, nbytes: int) -> bytes:
    """Read a part of a file, on an engine: a snapshot can be larger than a message should be."""
    with open(path, "rb") as file:  # noqa: PTH123 (the name as the recorder reported it)
        file.seek(offset)
        return file.read(nbytes)
