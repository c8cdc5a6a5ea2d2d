"""Several processes side by side: the folder of a run, or the engines of a cluster."""

from __future__ import annotations

import os
import re
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, ReportError, SnapshotError, first_line
from ipygpumem.core.from_dict import printable
from ipygpumem.display.html import html_tables
from ipygpumem.display.table import text_tables
from ipygpumem.features.history.load import open_regular_file, parse_json
from ipygpumem.features.ranks.launch import earlier_launches
from ipygpumem.features.ranks.model import RankPeak, RankResult, rank_result_from
from ipygpumem.features.ranks.notes_table import named
from ipygpumem.features.ranks.rank_files import REPORT, SNAPSHOT
from ipygpumem.features.ranks.skew import Difference, compare_ranks
from ipygpumem.features.ranks.table import ranks_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["Ranks", "read_ranks"]

_LARGEST = 1 << 22
_MOST = 100_000
_SNAPSHOTS = (SNAPSHOT, ".pickle.gz", ".pickle.xz")
_NUMBER = re.compile(r"rank_0*(\d{1,8})$")
_COUNTED = re.compile(r"(.*?)(\d{1,8})", re.DOTALL)
_ALONE = 4
"""So many recordings are read here, rather than in processes that take a second to start."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Several processes, with what each measured. Peaks are never added: they were not at one time.

    Attributes:
        members: In the order of their names.
        what: What they are: ``rank``, or ``engine``.
        faults: A sentence for each file that was passed over.
        snapshots: Where each member's recording lies on this machine, by its name.
        code: What they ran, where another cell than the newest sent it.
    """

    members: tuple[RankResult, ...]
    what: str = "rank"
    faults: tuple[str, ...] = ()
    snapshots: dict[str, str] | None = None
    code: str = ""

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of the members that have no report."""
        return tuple(member.name for member in self.members if member.report is None)

    @property
    def difference(self) -> Difference | None:
        """The member that differs most, by line of code; None where fewer than two were recorded."""
        return compare_ranks(self.members)

    def pair(self) -> tuple[str, str] | None:
        """The recordings of the typical member and of the odd one, as files; None where there are no two."""
        found = self.difference
        known = self.snapshots or {}
        if found is None or found.typical not in known or found.odd not in known:
            return None
        return known[found.typical], known[found.odd]

    def beside(self, most: int) -> tuple[str, ...]:
        """The recordings to see side by side, as files: those of `pair` first; none where there are no two."""
        pair = self.pair()
        if pair is None:
            return ()
        known = self.snapshots or {}
        others = [known[member.name] for member in self.members if member.name in known]
        return tuple(dict.fromkeys((*pair, *others)))[:most]

    def clock(self, files: Collection[str]) -> str:
        """From where the times of some recordings count when they are shown together, in a sentence."""
        known = self.snapshots or {}
        chosen = [one for one in self.members if known.get(one.name) in files]
        if all(one.highest is not None and one.highest.start_us for one in chosen):
            return "times count from the begin of each one's measurement, whatever the clocks say"
        return "times count from each one's first event: when their measurements began is not known"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        from dataclasses import asdict

        found = self.difference
        return {
            "what": self.what,
            "members": {member.name: member.to_dict() for member in self.members},
            "difference": None if found is None else asdict(found),
            "faults": list(self.faults),
        }

    def __str__(self) -> str:
        return text_tables(ranks_tables(self.members, self.what, code=self.code))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 (IPython's signature)
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return html_tables(ranks_tables(self.members, self.what, code=self.code))


def read_ranks(folder: str | os.PathLike[str], *, workers: int = 1) -> Ranks:
    """The reports and snapshots that the ranks of a run left in a folder.

    A folder of snapshots alone will do, too: each stands for a rank. Files are read as what they may be: half-written,
    foreign, hostile. One that cannot be read is named, and costs no other.

    Args:
        folder: As ``measure(rank_reports=...)`` filled it.
        workers: Processes that read recordings; 1 reads here.

    Raises:
        ReportError: There is no such folder, or nothing of a run in it.
    """
    name = printable(os.fsdecode(folder))
    faults: list[str] = []
    members = dict(_reports(_files(folder, REPORT), faults))
    files = {_stem(path): path for path in _files(folder, *_SNAPSHOTS)}
    if members:  # other snapshots are somebody else's
        files = {stem: path for stem, path in files.items() if stem in members or _NUMBER.search(stem)}
    if not members and not files:
        raise ReportError(f"{name}: {faults[0] if len(faults) == 1 else 'no reports or snapshots of ranks here'}")
    names = _names(files)
    for stem, found in _briefs(files, workers):
        member = members.get(stem) or RankResult(names[stem], "missing", note="a snapshot, but no report")
        if isinstance(found, str):
            faults.append(f"{printable(files[stem].name)}: {found}")
        elif _fits(member, found):
            members[stem] = replace(member, peaks=found)
        else:
            faults.append(f"{printable(files[stem].name)}: of an earlier run")
    chosen = _one_run(members, files, faults)
    stems = {member.name: stem for stem, member in chosen.items()}
    known = {name: str(files[stem]) for name, stem in stems.items() if stem in files and chosen[stem].peaks}
    whole = [*chosen.values(), *_absent(chosen.values(), (members[stem].name for stem in members.keys() - chosen))]
    return Ranks(tuple(sorted(whole, key=_order)), faults=tuple(faults), snapshots=known)


def _files(folder: str | os.PathLike[str], *endings: str) -> list[Path]:
    """Files of a folder by their endings; what begins with a dot is being written.

    Raises:
        ReportError: It is no folder, or cannot be read.
    """
    try:
        path = Path(os.fsdecode(folder)).expanduser()
        names = [one.name for one in os.scandir(path)]
    except (OSError, RuntimeError, ValueError) as error:
        raise ReportError(f"{printable(os.fsdecode(folder))}: {getattr(error, 'strerror', None) or error}") from None
    if len(names) > _MOST:
        raise ReportError(f"{printable(os.fsdecode(folder))}: more than {_MOST:,} files")
    return [path / one for one in sorted(names) if one.endswith(endings) and not one.startswith(".")]


def _stem(path: Path) -> str:
    name = path.name
    return next((name.removesuffix(ending) for ending in (REPORT, *_SNAPSHOTS) if name.endswith(ending)), name)


def _label(stem: str) -> str:
    number = _NUMBER.search(stem)
    return number[1] if number else printable(stem.removeprefix("rank_"))


def _names(stems: Iterable[str]) -> dict[str, str]:
    """What snapshots are called: ``run_0``, ``run_1`` by their numbers, others by their names."""
    parts = {stem: _COUNTED.fullmatch(stem) for stem in stems}
    begins = {None if part is None else part[1] for part in parts.values()}
    numbers = {stem: str(int(part[2])) for stem, part in parts.items() if part is not None}
    if len(begins) == 1 and len(set(numbers.values())) == len(parts):
        return numbers
    return {stem: _label(stem) for stem in parts}


def _reports(files: Sequence[Path], faults: list[str]) -> Iterator[tuple[str, RankResult]]:
    for path in files:
        stem = _stem(path)
        if not stem.startswith("rank_"):
            continue
        try:
            with open_regular_file(path) as file:
                text = file.read(_LARGEST + 1)
            if len(text) > _LARGEST:
                raise ReportError("larger than any report of a rank")  # noqa: TRY301 (told as the others are)
            member = rank_result_from(parse_json(text), _label(stem))
        except ReportError as error:
            told = str(error).removeprefix(f"{printable(str(path))}: ")
            faults.append(f"{printable(path.name)}: {told}")
            if _NUMBER.search(stem):
                yield stem, RankResult(_label(stem), "missing", note="its report cannot be read")
            continue
        rank = None if member.origin is None else member.origin.rank
        if rank is not None and member.name != str(rank):
            faults.append(f"{printable(path.name)}: the report of rank {rank}, which is not this file's")
            continue
        yield stem, replace(member, peaks=())


def _fits(member: RankResult, peaks: Sequence[RankPeak]) -> bool:
    """Whether a recording was written by the run that the report is of: an older one may lie there still."""
    began = None if member.origin is None else member.origin.began
    starts = [peak.start_us for peak in peaks if peak.start_us is not None]
    return not began or not starts or max(starts) / 1e6 >= began - 1


def _one_run(members: dict[str, RankResult], files: dict[str, Path], faults: list[str]) -> dict[str, RankResult]:
    """The ranks of the newest run, each once."""
    old = earlier_launches(members)
    for why in dict.fromkeys(old.values()):
        names = [f"{printable(stem)}{REPORT}" for stem in old if old[stem] == why]
        faults.append(f"{named(names)}: {why}")
    chosen: dict[str, str] = {}
    for stem in sorted(members.keys() - old.keys(), key=lambda stem: (_age(members[stem]), stem)):
        earlier = chosen.get(members[stem].name)
        chosen[members[stem].name] = stem
        if earlier is not None:
            place = (
                f"{earlier}{REPORT}" if members[earlier].origin is not None else files.get(earlier, Path(earlier)).name
            )
            faults.append(f"{printable(place)}: rank {members[stem].name} once more, and older")
    return {stem: members[stem] for stem in chosen.values()}


def _age(member: RankResult) -> tuple[bool, float]:
    """By this the best that is known of a rank comes last."""
    one = member.origin
    return member.report is not None, 0.0 if one is None else one.began + (one.clock or 0.0)


def _absent(members: Any, old: Iterable[str]) -> Iterator[RankResult]:
    """The ranks that left nothing of this run."""
    members, earlier = list(members), set(old)
    worlds = [one.origin.world for one in members if one.origin is not None and one.origin.world]
    known = {member.name for member in members}
    missing = [str(number) for number in range(min(max(worlds, default=0), _MOST)) if str(number) not in known]
    for name in missing:
        what = "its report is of an earlier run" if name in earlier else "nothing in the folder"
        yield RankResult(name, "missing", note=what)


def _order(member: RankResult) -> tuple[int, int, str]:
    number = member.name
    return (0, int(number), "") if number.isdecimal() and number.isascii() else (1, 0, number)


def _briefs(files: dict[str, Path], workers: int) -> Iterator[tuple[str, tuple[RankPeak, ...] | str]]:
    """Each recording in brief, or why there is nothing to tell. Few lie in memory at a time."""
    if workers <= 1 or len(files) < _ALONE:
        yield from ((stem, _brief(str(path))) for stem, path in files.items())
        return
    waiting = deque(files.items())
    while waiting:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield from _pooled(pool, waiting, workers)


def _pooled(
    pool: ProcessPoolExecutor, waiting: deque[tuple[str, Path]], workers: int
) -> Iterator[tuple[str, tuple[RankPeak, ...] | str]]:
    """Read until all are, or until a file has brought a worker down: the others are then read by new ones."""
    running: deque[tuple[str, Path, Future[Any]]] = deque()
    while waiting or running:
        while waiting and len(running) < 2 * workers:
            stem, path = waiting.popleft()
            running.append((stem, path, pool.submit(_brief, str(path))))
        stem, path, future = running.popleft()
        try:
            found = future.result()
        except BrokenProcessPool:
            # which of those that ran it was is not known: each is read by a process of its own
            for one, place, _ in [(stem, path, future), *running]:
                yield one, _apart(place)
            return
        yield stem, found


def _apart(path: Path) -> tuple[RankPeak, ...] | str:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_brief, str(path)).result()
        except BrokenProcessPool:
            return "its reader was killed: there is not enough memory for it"


def _brief(path: str) -> tuple[RankPeak, ...] | str:
    from ipygpumem.features.ranks.peak_summary import brief

    try:
        return brief(path)
    except (SnapshotError, OptionError) as error:
        told = str(error)
        for name in (path, printable(path), Path(path).name):
            told = told.removeprefix(f"{name}: ")
        return told
    except MemoryError:
        return "there is not enough memory for it"
    except Exception as error:  # a file may be anything
        return f"it cannot be understood ({first_line(error)})"
