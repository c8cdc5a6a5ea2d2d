"""Read the reports and snapshots of the newest run from a directory in which several processes have saved them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ipygpumem.core.errors import ReportError, check_argument
from ipygpumem.core.serialization import plain
from ipygpumem.core.tables import Table, TableRepr
from ipygpumem.core.text import printable
from ipygpumem.features.history.load import open_file, read_json
from ipygpumem.features.ranks.comparison import RankComparison, compare_ranks
from ipygpumem.features.ranks.model import RankPeak, RankResult, rank_result_from
from ipygpumem.features.ranks.rank_files import REPORT, SNAPSHOT
from ipygpumem.features.ranks.table import names_by_text, ranks_tables

_MAX_REPORT_BYTES = 1 << 22
_MAX_FILES = 100_000
_SNAPSHOTS = (SNAPSHOT, ".pickle.gz", ".pickle.xz")
_RANK_STEM = re.compile(r"rank_0*([0-9]{1,8})$")
_NUMBERED_STEM = re.compile(r"(.*?)([0-9]{1,8})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ranks(TableRepr):
    """The results of several processes. Peaks are not added up because they occur at different times.

    Attributes:
        members: Result of each process, sorted by rank, engine ID or name.
        role: Term for a process: ``rank`` or ``engine``.
        faults: Messages about skipped files.
        snapshots: Paths of the snapshots on this machine, by process name.
        code: Label of the code that the processes ran, if an earlier cell submitted it; otherwise empty.
    """

    members: tuple[RankResult, ...]
    role: str = "rank"
    faults: tuple[str, ...] = ()
    snapshots: dict[str, str] = field(default_factory=dict)
    code: str = ""

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of the processes without a report."""
        return tuple(result.name for result in self.members if result.report is None)

    @property
    def difference(self) -> RankComparison | None:
        """Comparison of a typical process and the process that deviates most; None if fewer than two have snapshots."""
        return compare_ranks(self.members)

    def beside(self, limit: int) -> tuple[str, ...]:
        """Return the paths of up to ``limit`` snapshots to display side by side.

        The first two are those of a typical process and of the process that deviates most. The result is empty if one
        of these two processes has no snapshot.
        """
        difference, paths = self.difference, self.snapshots
        if difference is None or difference.typical not in paths or difference.outlier not in paths:
            return ()
        names = (difference.typical, difference.outlier, *(result.name for result in self.members))
        return tuple(paths[name] for name in dict.fromkeys(names) if name in paths)[:limit]

    def clock(self, files: Collection[str]) -> str:
        """Return a note on the meaning of time 0 if the snapshots in ``files`` are displayed side by side."""
        peaks = [result.highest for result in self.members if self.snapshots.get(result.name) in files]
        if all(peak is not None and peak.start_us for peak in peaks):
            return "times are relative to the start of each measurement, so the hosts' clocks do not have to agree"
        return "times are relative to the first event of each snapshot because the start of a measurement is unknown"

    def to_dict(self) -> dict[str, Any]:
        """Return the results and their comparison as JSON data."""
        members = {result.name: result.to_dict() for result in self.members}
        return {"role": self.role, "members": members, "difference": plain(self.difference), "faults": [*self.faults]}

    def tables(self) -> list[Table]:
        """Return tables of the processes, the spread of each value, the devices, and the process that deviates most."""
        return ranks_tables(self.members, self.role, code=self.code)


def read_ranks(folder: str | os.PathLike[str], *, workers: int = 1) -> Ranks:
    """Read the reports and snapshots that the ranks of a run wrote into a directory.

    If the directory contains no reports, each snapshot represents a rank. Files that are incomplete, malicious or from
    other runs are skipped and listed in `Ranks.faults`.

    Args:
        folder: Directory passed to ``measure(rank_reports=...)``.
        workers: Number of processes that read the snapshots. If it is 1, or there are only a few snapshots,
            this process reads them.

    Raises:
        ReportError: The directory cannot be read, contains no valid reports or snapshots of ranks, or contains over
            100,000 files.
    """
    check_argument("folder", folder, (str, bytes, os.PathLike), "the name of a directory")
    name = printable(os.fsdecode(folder))
    faults: list[str] = []
    reports, files = _files(folder, name)
    results = dict(_read_reports(reports, faults))
    if results:  # other snapshots do not belong to the run
        files = {stem: path for stem, path in files.items() if stem in results or _RANK_STEM.search(stem)}
    if not results and not files:
        reason = faults[0] if len(faults) == 1 else "the directory contains no reports or snapshots of ranks"
        raise ReportError(f"{name}: {reason}")
    _add_recordings(results, files, workers, faults)
    newest_results = newest_run(results, files, faults)
    earlier = {results[stem].name for stem in results.keys() - newest_results}
    members = [*newest_results.values(), *missing_ranks([*newest_results.values()], earlier)]
    paths = {result.name: str(files[stem]) for stem, result in newest_results.items() if stem in files and result.peaks}
    return Ranks(tuple(sorted(members, key=_sort_key)), faults=tuple(faults), snapshots=paths)


def _files(folder: str | os.PathLike[str], printable_name: str) -> tuple[dict[str, Path], dict[str, Path]]:
    try:
        path = Path(os.fsdecode(folder)).expanduser()
        names = sorted(entry.name for entry in os.scandir(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise ReportError(f"{printable_name}: {getattr(error, 'strerror', None) or error}") from None
    if len(names) > _MAX_FILES:
        limit = f"more than the limit of {_MAX_FILES:,}: pass the directory of a single run"
        raise ReportError(f"{printable_name}: the directory contains {len(names):,} files, {limit}")
    reports: dict[str, Path] = {}
    snapshots: dict[str, Path] = {}
    for name in names:
        extension = next((ending for ending in (REPORT, *_SNAPSHOTS) if name.endswith(ending)), "")
        if extension and not name.startswith("."):  # macOS creates hidden files such as ._rank_00000.json
            files = reports if extension == REPORT else snapshots
            files[name.removesuffix(extension)] = path / name
    return reports, snapshots


def _rank_name(stem: str) -> str:
    number = _RANK_STEM.search(stem)
    return number[1] if number else printable(stem.removeprefix("rank_"))


def _rank_names(stems: Iterable[str]) -> dict[str, str]:
    """Return the name of the rank for each file stem.

    If the stems differ only in a number, the name is this number; otherwise, it is the result of `_rank_name`.
    """
    matches = {stem: _NUMBERED_STEM.fullmatch(stem) for stem in stems}
    prefixes = {None if match is None else match[1] for match in matches.values()}
    numbers = {stem: str(int(match[2])) for stem, match in matches.items() if match is not None}
    if len(prefixes) == 1 and len(set(numbers.values())) == len(matches):
        return numbers
    return {stem: _rank_name(stem) for stem in matches}


def _read_reports(files: dict[str, Path], faults: list[str]) -> Iterator[tuple[str, RankResult]]:
    for stem, path in files.items():
        if not stem.startswith("rank_"):
            continue
        try:
            with open_file(path) as file:
                result = rank_result_from(read_json(file, _MAX_REPORT_BYTES), _rank_name(stem))
        except ReportError as error:
            faults.append(f"{printable(path.name)}: {str(error).removeprefix(f'{printable(str(path))}: ')}")
            if _RANK_STEM.search(stem):
                yield stem, RankResult(_rank_name(stem), "missing", note="the report cannot be read")
            continue
        rank = None if result.origin is None else result.origin.rank
        if rank is not None and result.name != str(rank):
            faults.append(f"{printable(path.name)}: contains the report of a different rank ({rank})")
            continue
        yield stem, replace(result, peaks=())


def _add_recordings(results: dict[str, RankResult], files: dict[str, Path], workers: int, faults: list[str]) -> None:
    from ipygpumem.features.ranks.peak_summary import summarize_files

    names = _rank_names(files)
    for stem, summary in summarize_files(files, workers):
        result = results.get(stem) or RankResult(names[stem], "missing", note="snapshot without a report")
        if isinstance(summary, str):
            faults.append(f"{printable(files[stem].name)}: {summary}")
        elif is_older_snapshot(result, summary):
            faults.append(f"{printable(files[stem].name)}: from an earlier run")
        else:
            results[stem] = replace(result, peaks=summary)


def _sort_key(result: RankResult) -> tuple[int, int, str]:
    name = result.name
    return (0, int(name), "") if name.isdecimal() and name.isascii() else (1, 0, name)


_CLOCK_TOLERANCE = 1.0  # tolerance in seconds for the comparison of timestamps, because file timestamps are coarse
_SAME_LAUNCH = {"process", "parent", "job", "elastic"}
"""Kinds of IDs that are equal only within one launch. ``master`` is omitted: launches can share the default port."""
_MAX_MISSING = 100_000


def newest_run(results: dict[str, RankResult], files: Mapping[str, Path], faults: list[str]) -> dict[str, RankResult]:
    """Return one result per rank of the newest run, by file stem. Append messages about other files to ``faults``."""
    newest = max(results.values(), key=_start, default=None)
    earlier = {stem: reason for stem, result in results.items() if newest and (reason := _why_earlier(result, newest))}
    files_by_reason = names_by_text((reason, f"{printable(stem)}{REPORT}") for stem, reason in earlier.items())
    faults += [f"{names}: {reason}" for reason, names in files_by_reason.items()]
    stem_by_rank: dict[str, str] = {}
    candidates = [(result.report is not None, _start(result), stem) for stem, result in results.items()]
    for _, _, stem in sorted(candidate for candidate in candidates if candidate[-1] not in earlier):
        result = results[stem]
        older, stem_by_rank[result.name] = stem_by_rank.get(result.name), stem
        if older is not None:
            is_snapshot = results[older].origin is None and older in files
            file = files[older].name if is_snapshot else f"{older}{REPORT}"
            faults.append(f"{printable(file)}: older than another file of rank {result.name}")
    return {stem: results[stem] for stem in stem_by_rank.values()}


def _start(result: RankResult) -> float:
    return -math.inf if result.origin is None else result.origin.start


def _why_earlier(result: RankResult, newest_result: RankResult) -> str:
    origin, newest = result.origin, newest_result.origin
    if origin is None or newest is None:
        return ""
    if origin.world and newest.world and origin.world != newest.world:
        return f"from another run, with a world size of {origin.world:,} instead of {newest.world:,}"
    same_host = origin.host == newest.host
    ids, newest_ids = dict(origin.launch), dict(newest.launch)
    shared = [kind for kind in ids.keys() & newest_ids.keys() if same_host or kind not in {"process", "parent"}]
    if any(ids[kind] != newest_ids[kind] for kind in shared if kind != "process"):
        return "from an earlier run"
    if any(ids[kind] == newest_ids[kind] for kind in _SAME_LAUNCH.intersection(shared)):
        return ""
    comparable = same_host or (origin.clock is not None and newest.clock is not None)
    if comparable and origin.began and result.report is not None:
        end = origin.start + result.report.seconds
        if newest.start - end > _CLOCK_TOLERANCE:
            return f"from an earlier run, which ended before rank {printable(newest_result.name)} started"
    return ""


def is_older_snapshot(result: RankResult, peaks: Sequence[RankPeak]) -> bool:
    began = 0.0 if result.origin is None else result.origin.began
    start_us = max((peak.start_us for peak in peaks if peak.start_us is not None), default=math.inf)
    return start_us / 1e6 < began - _CLOCK_TOLERANCE


def missing_ranks(results: Sequence[RankResult], earlier: set[str]) -> Iterator[RankResult]:
    """Yield a result for each rank below the world size (at most `_MAX_MISSING`) that is not in ``results``.

    ``earlier`` contains the names of the ranks that have files from earlier runs.
    """
    world = max((result.origin.world or 0 for result in results if result.origin is not None), default=0)
    names = {result.name for result in results}
    for name in map(str, range(min(world, _MAX_MISSING))):
        if name not in names:
            note = "the report is from an earlier run" if name in earlier else "the directory contains no report"
            yield RankResult(name, "missing", note=note)
