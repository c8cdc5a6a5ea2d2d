"""Select the files of the newest run from a folder that several runs have used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.serialization import printable
from ipygpumem.features.ranks.model import RankResult
from ipygpumem.features.ranks.notes import names_by_text
from ipygpumem.features.ranks.rank_files import REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ipygpumem.features.ranks.model import RankInfo, RankPeak

_CLOCK_TOLERANCE = 1.0
"""Tolerance in seconds when timestamps are compared, because file timestamps are coarse."""
_SAME_LAUNCH = {"process", "parent", "job", "elastic"}
"""Ids that are unique to a launch. The master's address is not, because its port has a default."""
_MAX_MISSING = 100_000


def newest_run(results: dict[str, RankResult], files: Mapping[str, Path], faults: list[str]) -> dict[str, RankResult]:
    """Return the results of the newest run by file stem, one per rank; add messages on other files to ``faults``."""
    earlier = _earlier_launches(results)
    files_by_reason = names_by_text((reason, f"{printable(stem)}{REPORT}") for stem, reason in earlier.items())
    faults += [f"{names}: {reason}" for reason, names in files_by_reason.items()]
    chosen: dict[str, str] = {}
    for stem in sorted(results.keys() - earlier.keys(), key=lambda stem: (_age(results[stem]), stem)):
        name = results[stem].name
        older, chosen[name] = chosen.get(name), stem
        if older is not None:
            has_report = results[older].origin is not None or older not in files
            file = f"{older}{REPORT}" if has_report else files[older].name
            faults.append(f"{printable(file)}: an older duplicate of rank {name}")
    return {stem: results[stem] for stem in chosen.values()}


def _age(result: RankResult) -> tuple[bool, float]:
    """Return the sort key of a result. The most informative result of a rank has the highest key."""
    origin = result.origin
    return result.report is not None, 0.0 if origin is None else origin.start


def _earlier_launches(results: Mapping[str, RankResult]) -> dict[str, str]:
    """Return the reasons why results do not belong to the most recent launch, by file stem."""
    origins = {stem: result.origin for stem, result in results.items() if result.origin is not None}
    if not origins:
        return {}
    newest = max(origins, key=lambda stem: origins[stem].start)
    reasons = {
        stem: _earlier_reason(results[stem], origin, results[newest].name, origins[newest])
        for stem, origin in origins.items()
        if stem != newest
    }
    return {stem: reason for stem, reason in reasons.items() if reason}


def _earlier_reason(result: RankResult, origin: RankInfo, newest_name: str, newest: RankInfo) -> str:
    """Return the reason why a result belongs to an earlier launch than the newest; empty if there is none."""
    if origin.world and newest.world and origin.world != newest.world:
        return f"from another run, with {origin.world:,} ranks instead of {newest.world:,}"
    same_host = origin.host == newest.host
    ids, newest_ids = dict(origin.launch), dict(newest.launch)
    shared = [kind for kind in ids.keys() & newest_ids.keys() if same_host or kind not in {"process", "parent"}]
    if any(ids[kind] != newest_ids[kind] for kind in shared if kind != "process"):
        return "from an earlier run"
    if any(ids[kind] == newest_ids[kind] for kind in _SAME_LAUNCH.intersection(shared)):
        return ""
    comparable = same_host or (origin.clock is not None and newest.clock is not None)
    if not comparable or result.report is None or not origin.began or not newest.began:
        return ""
    if newest.start - (origin.start + result.report.seconds) <= _CLOCK_TOLERANCE:
        return ""
    return f"from an earlier run, which ended before rank {printable(newest_name)} started"


def is_older_snapshot(result: RankResult, peaks: Sequence[RankPeak]) -> bool:
    """Return whether a snapshot was written before the run that wrote the report."""
    began = None if result.origin is None else result.origin.began
    starts = [peak.start_us for peak in peaks if peak.start_us is not None]
    return bool(began and starts) and max(starts) / 1e6 < (began or 0) - _CLOCK_TOLERANCE


def missing_ranks(chosen: Sequence[RankResult], earlier: set[str]) -> Iterator[RankResult]:
    """Yield the ranks without files from this run; ``earlier`` contains the names of ranks with only older files."""
    world = max((result.origin.world or 0 for result in chosen if result.origin is not None), default=0)
    names = {result.name for result in chosen}
    for name in map(str, range(min(world, _MAX_MISSING))):
        if name not in names:
            note = "its report is from an earlier run" if name in earlier else "no file in the folder"
            yield RankResult(name, "missing", note=note)
