"""Table of allocator settings for a recording."""

from __future__ import annotations

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import MIB, many, size
from ipygpumem.snapshot.replay.segment_blockers import SegmentBlockers
from ipygpumem.snapshot.replay.settings_comparison import Alternative, SettingsComparison

_MAX_LINES, _MAX_NAMES = 5, 3


def comparison_table(result: SettingsComparison) -> Table:
    """Return a table of the recorded settings and the alternatives, from best to worst."""
    within = [] if result.limit is None else [f"within {_mib(result.limit)}"]
    header = ["reserved peak", "change", "fits from", *within]
    if result.failed:
        header.remove("change")
    rows = [_row(result, result.recorded, "as recorded")]
    rows += [_row(result, item, item.settings or "default settings") for item in result.alternatives]
    return Table(f"{result.name} GPU {result.device}", tuple(header), tuple(rows), tuple(_notes(result)))


def blockers_table(blockers: SegmentBlockers) -> Table:
    """Return a table of the lines whose blocks keep partly used segments from being freed."""
    rows = [
        TableRow(
            line.label,
            (_mib(line.only), _mib(line.free), _mib(line.bytes), f"{line.count:,}"),
            1,
            note=f"held by {', '.join(line.variables[:_MAX_NAMES])}" if line.variables else "",
        )
        for line in blockers.lines[:_MAX_LINES]
    ]
    title = f"partly used segments when {size(blockers.size)} was requested (event {blockers.event:,})"
    return Table(title, ("kept alone", "free beside", "blocks", "count"), tuple(rows), tuple(_blocker_notes(blockers)))


def _blocker_notes(blockers: SegmentBlockers) -> list[str]:
    blocks = f"in blocks of at most {size(blockers.largest)}"
    notes = []
    if blockers.reserved is not None:
        notes.append(f"The request was served from new memory; the reserved memory rose to {size(blockers.reserved)}.")
    if blockers.segments:
        free = f"{size(blockers.partly_used)} was free in {many(blockers.segments, 'partly used segment')}"
        notes.append(f"{free}, {blocks}.")
    if blockers.empty and blockers.reserved is not None:
        free = f"{size(blockers.empty)} was free in unused segments"
        notes.append(f"{free}, which PyTorch frees only if memory runs out or torch.cuda.empty_cache() is called.")
    smallest = blockers.smallest
    if smallest is not None and (blockers.reserved is None or smallest.bytes <= blockers.size / 2):
        notes.append(
            f"Freeing {many(len(smallest.rows), 'block')} ({size(smallest.bytes)}) in "
            f"{many(smallest.segments, 'segment')} before the request would have been enough."
        )
    notes += [change.sentence() for change in blockers.changes]
    return notes


def _row(result: SettingsComparison, alternative: Alternative, label: str) -> TableRow:
    replay, recorded = alternative.replay, result.recorded.replay
    low, high = alternative.peaks
    peak = _mib(high) if low == high else f"{low / MIB:,.0f} to {_mib(high)}"
    change = "" if alternative is result.recorded else f"{high / recorded.reserved_peak - 1:+.0%}"
    changes = [] if result.failed else ["0%" if change in ("+0%", "-0%") else change]
    cells = [peak, *changes, _mib(replay.smallest_capacity)]
    if result.limit is not None:
        cells.append({True: "yes", False: "out of memory", None: "depends on addresses"}[alternative.fits])
    return TableRow(label, tuple(cells), 1)


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.0f} MiB"


def _notes(result: SettingsComparison) -> list[str]:
    verification = result.verification
    count = many(len(verification.recording.allocations), "allocation")
    text = verification.recording.settings.text()
    replayed = f"The replay with the recorded settings{f' ({text})' if text else ''}"
    if verification.difference:
        error = f"Reserved memory differs by up to {size(verification.largest_error)}"
        notes = [f"{replayed} differs from the recording ({verification.difference}). {error}."]
    else:
        notes = [f"{replayed} agrees with the recording: {count} at the recorded addresses."]
        reasons = dict.fromkeys(row.replay.reason for row in result.alternatives if row.replay.grade == "approximate")
        notes += [f"The other rows are approximate: {reason}." for reason in reasons]
    if result.without_effect:
        notes.append(f"These settings have no effect on the requests: {'; '.join(result.without_effect)}.")
    recommended = result.recommended
    variable = "PYTORCH_ALLOC_CONF"
    if (verification.recording.snapshot.own.torch_version or (2, 9)) < (2, 9):
        variable = "PYTORCH_CUDA_ALLOC_CONF"
    if recommended is not None and not recommended.settings:
        notes.append(f"Recommendation: remove {variable} from the environment before torch is imported.")
    elif recommended is not None:
        notes.append(f"Recommendation: set {variable}={recommended.settings} before torch is imported.")
    elif result.limit is not None and any(item.fits is None for item in result.alternatives):
        notes.append("Whether one of these settings is enough depends on the addresses of new segments.")
    elif result.missing:
        notes.append(f"None of these settings is enough: at least {size(result.missing)} more memory is required.")
    elif verification.difference:
        notes.append("No recommendation: the savings are below 5% of the reserved memory or below this difference.")
    else:
        notes.append("None of these settings saves 5% or more of the reserved memory.")
    return notes
