"""Format query results as text for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipygpumem.core.text import clip
from ipygpumem.core.units import duration, many, signed, size

if TYPE_CHECKING:
    from ipygpumem.snapshot.queries.diff import Diff
    from ipygpumem.snapshot.queries.fragmentation import Fragmentation, OomAnalysis
    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.queries.live_set import LiveSet, RequestedBytesPeak
    from ipygpumem.snapshot.snapshot import Snapshot

_INDENT = "  "


def share(part: int, whole: int) -> str:
    return f"{part / whole:4.0%}" if whole else "    "


def peak_line(snapshot: Snapshot, peak: RequestedBytesPeak) -> str:
    start = f"GPU {peak.device}: peak {size(peak.requested)} requested, "
    if peak.event < 0:
        return start + "before the first event"
    trace = snapshot.timeline(peak.device).trace
    line = f"{start}at event {peak.event:,}"
    if peak.time_us is not None:
        line += f", {duration((peak.time_us - int(trace.time[0])) / 1e6)} after the first event"
    if snapshot.own.cells:
        line += f", in {clip(snapshot.cells.labels(trace.time[[peak.event]], trace.stack[[peak.event]])[0])}"
    return line


def group_lines(groups: Sequence[Group], whole: int, top: int) -> list[str]:
    lines = []
    for group in groups[:top]:
        label = f"{group.label}: {clip(group.source)}" if group.source else group.label
        columns = f"{size(group.bytes):>10} {share(group.bytes, whole)}"
        lines.append(f"{_INDENT}{columns}  {clip(label)}  ({many(group.count, 'block')})")
    if len(groups) > top:
        total = sum(group.bytes for group in groups[top:])
        lines.append(f"{_INDENT}{size(total):>10} {share(total, whole)}  in {many(len(groups) - top, 'other group')}")
    return lines


def leak_lines(live: LiveSet, key: str, top: int) -> list[str]:
    blocks = many(len(live), "block")
    text = f"{size(live.bytes)} in {blocks} allocated in the range of events and alive at its end"
    head = f"GPU {live.timeline.device}: {text}"
    return [head, *group_lines(live.by(key), live.bytes, top)]


def fragmentation_lines(memory: Fragmentation) -> list[str]:
    estimate = " (upper bounds: block sizes are estimated from requested sizes)" if memory.derived else ""
    blocks = f"in {many(memory.pieces, 'block')}, the largest {size(memory.largest)}{estimate}"
    start = f"GPU {memory.device} after event {memory.event:,}"
    lines = [
        f"{start}: {size(memory.free)} free of {size(memory.reserved)} reserved, {blocks}",
        f"{_INDENT}{size(memory.empty):>10}  in unused segments, which torch.cuda.empty_cache() releases",
        f"{_INDENT}{size(memory.partly):>10}  in partly used segments, which only PyTorch can reuse",
    ]
    if memory.private:
        lines.append(f"{_INDENT}{size(memory.private):>10}  in private pools, reserved for CUDA graphs or a MemPool")
    fit = memory.fit
    if fit is not None and fit.block is not None:
        lines.append(f"{_INDENT}{size(fit.requested)} would fit into a free block of {size(fit.block)}")
    elif fit is not None:
        need, segment = size(fit.requested), size(fit.segment)
        lines.append(f"{_INDENT}{need} would not fit into any free block and would need a new segment of {segment}")
    return lines


def oom_lines(oom: OomAnalysis) -> list[str]:
    head = f"GPU {oom.device}: out of memory at event {oom.event:,}, {size(oom.asked)} requested"
    return [head, *(f"{_INDENT}{sentence}" for sentence in oom.reason), *fragmentation_lines(oom.memory)]


def diff_lines(difference: Diff, top: int) -> list[str]:
    bytes_before, bytes_after = difference.before, difference.after
    lines = [f"{signed(bytes_after - bytes_before)}: from {size(bytes_before)} to {size(bytes_after)} requested"]
    for change in difference.changes[:top]:
        count = f"{change.count:+,} blocks" if change.count else "same number of blocks"
        lines.append(f"{_INDENT}{signed(change.bytes):>11}  {clip(change.label)}  ({count})")
    if len(difference.changes) > top:
        total = sum(change.bytes for change in difference.changes[top:])
        lines.append(f"{_INDENT}{signed(total):>11}  in {many(len(difference.changes) - top, 'other group')}")
    return lines
