"""Answers as lines of text, for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import duration, signed, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.queries.diff import Diff
    from ipygpumem.snapshot.queries.fragmentation import Fragmentation
    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.queries.live_set import LiveSet, Peak
    from ipygpumem.snapshot.queries.oom_reason import Oom
    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = [
    "clip",
    "diff_lines",
    "fragmentation_lines",
    "group_lines",
    "leak_lines",
    "many",
    "oom_lines",
    "peak_line",
    "share",
]

_LABEL = 100
_PERCENT = 100
_INDENT = "  "


def clip(text: str, width: int = _LABEL) -> str:
    """A text on one line of at most ``width`` characters, without control characters."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def many(count: int, what: str) -> str:
    """A count with its word: ``"1 block"``, ``"2,000 blocks"``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def share(part: int, whole: int) -> str:
    """A part in per cent, five characters wide."""
    return f"{_PERCENT * part / whole:3.0f} %" if whole else "     "


def peak_line(snapshot: Snapshot, peak: Peak) -> str:
    """The peak of a device and when it was."""
    begin = f"GPU {peak.device}: peak {size(peak.requested)} requested, "
    if peak.event < 0:
        return begin + "before the first event"
    trace = snapshot.timeline(peak.device).trace
    line = f"{begin}at event {peak.event:,}"
    if peak.time_us is not None:
        line += f", {duration((peak.time_us - int(trace.time[0])) / 1e6)} after the first"
    if snapshot.own.cells:
        line += f", in {clip(snapshot.cells.labels(trace.time[[peak.event]], trace.stack[[peak.event]])[0])}"
    return line


def group_lines(groups: Sequence[Group], whole: int, top: int) -> list[str]:
    """The first ``top`` groups with their share of the whole, and what the others hold."""
    lines = []
    for group in groups[:top]:
        label = f"{group.label}: {group.source}" if group.source else group.label
        held = f"{size(group.bytes):>10} {share(group.bytes, whole)}"
        lines.append(f"{_INDENT}{held}  {clip(label)}  ({many(group.count, 'block')})")
    rest = groups[top:]
    if rest:
        total = sum(group.bytes for group in rest)
        lines.append(f"{_INDENT}{size(total):>10} {share(total, whole)}  in {len(rest):,} more")
    return lines


def leak_lines(live: LiveSet, key: str, top: int) -> list[str]:
    """What was allocated in a window and is still alive."""
    blocks = many(len(live), "block")
    head = f"GPU {live.timeline.device}: {size(live.bytes)} in {blocks} allocated in the window and alive at its end"
    return [head, *group_lines(live.by(key), live.bytes, top)]


def fragmentation_lines(memory: Fragmentation) -> list[str]:
    """Free memory inside the segments."""
    upper = " (at most: block sizes are reckoned from the requests)" if memory.derived else ""
    where = f"GPU {memory.device} after event {memory.event:,}"
    pieces = f"in {many(memory.pieces, 'piece')}, the largest {size(memory.largest)}{upper}"
    lines = [
        f"{where}: {size(memory.free)} free of {size(memory.reserved)} reserved, {pieces}",
        f"{_INDENT}{size(memory.empty):>10}  in segments without a block in use: empty_cache() gives these back",
        f"{_INDENT}{size(memory.partly):>10}  in segments partly in use: only PyTorch can use these",
    ]
    if memory.private:
        lines.append(
            f"{_INDENT}{size(memory.private):>10}  in private pools: only the CUDA graphs they belong to can use it"
        )
    fit = memory.fit
    if fit is not None and fit.block is not None:
        lines.append(f"{_INDENT}{size(fit.requested)} would fit into a free piece of {size(fit.block)}")
    elif fit is not None:
        lines.append(
            f"{_INDENT}{size(fit.requested)} would fit nowhere: a new segment of {size(fit.segment)} is needed"
        )
    return lines


def oom_lines(oom: Oom) -> list[str]:
    """Why an allocation failed."""
    head = f"GPU {oom.device}: out of memory at event {oom.event:,}, {size(oom.asked)} asked for"
    return [head, *(f"{_INDENT}{sentence}" for sentence in oom.reason), *fragmentation_lines(oom.memory)]


def diff_lines(found: Diff, top: int) -> list[str]:
    """What changed between two moments."""
    lines = [f"{signed(found.after - found.before)}: from {size(found.before)} to {size(found.after)} requested"]
    for change in found.changes[:top]:
        count = f"{change.count:+,} blocks" if change.count else "as many blocks"
        lines.append(f"{_INDENT}{signed(change.bytes):>11}  {clip(change.label)}  ({count})")
    rest = found.changes[top:]
    if rest:
        total = sum(change.bytes for change in rest)
        lines.append(f"{_INDENT}{signed(total):>11}  in {len(rest):,} more")
    return lines
