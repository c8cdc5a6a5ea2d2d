"""Select the files of the newest run from a directory that several runs have used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ipygpumem.core.text import printable
from ipygpumem.features.ranks.model import RankPeak, RankResult
from ipygpumem.features.ranks.rank_files import REPORT
from ipygpumem.features.ranks.table import names_by_text

_CLOCK_TOLERANCE = 1.0
"""Tolerance in seconds for the comparison of timestamps, because file timestamps are coarse."""
_SAME_LAUNCH = {"process", "parent", "job", "elastic"}
"""Kinds of IDs that are equal only within one launch. ``master`` is omitted: launches can share the default port."""
_MAX_MISSING = 100_000


def newest_run(results: dict[str, RankResult], files: Mapping[str, Path], faults: list[str]) -> dict[str, RankResult]:
    """Return one result per rank from the newest run, by file stem.

    A message about each file from another run and about each duplicate is appended to ``faults``.
    """
    newest = max(results.values(), key=_start, default=None)
    earlier = {
        stem: reason for stem, result in results.items() if newest and (reason := _earlier_reason(result, newest))
    }
    files_by_reason = names_by_text((reason, f"{printable(stem)}{REPORT}") for stem, reason in earlier.items())
    faults += [f"{names}: {reason}" for reason, names in files_by_reason.items()]
    chosen: dict[str, str] = {}
    candidates = [(result.report is not None, _start(result), stem) for stem, result in results.items()]
    for _, _, stem in sorted(candidate for candidate in candidates if candidate[-1] not in earlier):
        result = results[stem]
        older, chosen[result.name] = chosen.get(result.name), stem
        if older is not None:
            is_snapshot = results[older].origin is None and older in files
            file = files[older].name if is_snapshot else f"{older}{REPORT}"
            faults.append(f"{printable(file)}: older than another file of rank {result.name}")
    return {stem: results[stem] for stem in chosen.values()}


def _start(result: RankResult) -> float:
    return -math.inf if result.origin is None else result.origin.start


def _earlier_reason(result: RankResult, newest_result: RankResult) -> str:
    """Return the reason why a result is not from the newest run, or "" if it may be from that run."""
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
    """Return whether a snapshot is from an earlier run than the report."""
    began = 0.0 if result.origin is None else result.origin.began
    start_us = max((peak.start_us for peak in peaks if peak.start_us is not None), default=math.inf)
    return start_us / 1e6 < began - _CLOCK_TOLERANCE


def missing_ranks(chosen: Sequence[RankResult], earlier: set[str]) -> Iterator[RankResult]:
    """Yield a result for each rank that is not in ``chosen``. Ranks in ``earlier`` have files from earlier runs."""
    world = max((result.origin.world or 0 for result in chosen if result.origin is not None), default=0)
    names = {result.name for result in chosen}
    for name in map(str, range(min(world, _MAX_MISSING))):
        if name not in names:
            note = "the report is from an earlier run" if name in earlier else "the directory contains no report"
            yield RankResult(name, "missing", note=note)
