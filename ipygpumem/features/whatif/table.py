"""Tables of allocator settings for a recording, and of the lines whose blocks prevent segments from being freed."""

from __future__ import annotations

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import MIB, many, size
from ipygpumem.snapshot.replay.blockers.segment_blockers import BlockedRequestAnalysis
from ipygpumem.snapshot.replay.missing_data import older_memory
from ipygpumem.snapshot.replay.settings import SMALL, settings_variable, version_note
from ipygpumem.snapshot.replay.settings_comparison import SettingsComparison
from ipygpumem.snapshot.replay.settings_result import SettingsResult

_MAX_LINES, _MAX_NAMES = 5, 3
_RELEVANT = 0.05  # fraction of the free memory above which memory that could not serve a request is mentioned
_CAUSES = {
    "depends on size": "the requested size of the failed request, which is not recorded",
    "depends on older memory": "the memory that was reserved before the recording began",
    "depends on addresses": "the addresses of new segments, which are unknown",
    "depends on limit": "the memory that was available, which is not recorded exactly",
}


def comparison_table(result: SettingsComparison) -> Table:
    within = [] if result.limit is None else [f"within {_range(*result.limit)}"]
    header = ["reserved peak", "change", "smallest limit", *within]
    if result.reached_limit:
        header.remove("change")
    rows = [_row(result, result.recorded, "as recorded")]
    rows += [_row(result, item, item.settings or "default settings") for item in result.alternatives]
    return Table(f"{result.name} GPU {result.device}", tuple(header), tuple(rows), tuple(_notes(result)))


def blockers_table(blockers: BlockedRequestAnalysis) -> Table:
    """Return a table of the lines whose blocks prevent partly used segments from being freed."""
    rows = [
        TableRow(
            line.label,
            (_mib(line.exclusive_segments), _mib(line.free), _mib(line.bytes), f"{line.count:,}"),
            1,
            note=f"held by {', '.join(line.variables[:_MAX_NAMES])}" if line.variables else "",
        )
        for line in blockers.lines[:_MAX_LINES]
    ]
    title = f"{'partly used segments' if rows else 'memory'} when "
    if blockers.reserved is not None:
        title += f"{size(blockers.size)} was requested"
    else:
        title += f"a request of {size(blockers.size)} failed"
    if blockers.capacity is not None:
        title += f" within {_mib(blockers.capacity)}"
    header = ("exclusive segments", "free in segments", "in use", "blocks") if rows else ()
    return Table(f"{title} (event {blockers.event:,})", header, tuple(rows), tuple(_blocker_notes(blockers)))


def _blocker_notes(blockers: BlockedRequestAnalysis) -> list[str]:
    blocks = f"in blocks of at most {size(blockers.largest)}"
    notes = []
    if blockers.reserved is not None:
        notes.append(f"PyTorch reserved new memory for the request; reserved memory rose to {_mib(blockers.reserved)}.")
    if blockers.segments:
        free = f"{size(blockers.partly_used)} was free in {many(blockers.segments, 'partly used segment')}"
        notes.append(f"{free}, {blocks}.")
    if blockers.uncertain:
        amount = f"up to {size(blockers.uncertain)} of it may have been in use"
        notes.append(
            f"{amount[0].upper()}{amount[1:]}, because the sizes of blocks from before the recording are uncertain."
        )
    notes += _unsuitable_memory(blockers)
    if blockers.empty and blockers.reserved is not None:
        free = f"{size(blockers.empty)} was free in unused segments"
        notes.append(
            f"{free}, which PyTorch releases only if memory runs out, during garbage collection "
            "(garbage_collection_threshold), or when torch.cuda.empty_cache() is called."
        )
    smallest = blockers.smallest
    if smallest is not None and (blockers.reserved is None or smallest.bytes <= blockers.size / 2):
        blocks = f"{many(len(smallest.rows), 'block')} ({size(smallest.bytes)})"
        effect = "" if blockers.reserved is None else ", so that PyTorch would not have reserved new memory"
        segments = many(smallest.segments, "segment")
        notes.append(f"Freeing {blocks} in {segments} before the request would have made room for it{effect}.")
    notes += [change.sentence() for change in blockers.changes]
    return notes


def _unsuitable_memory(blockers: BlockedRequestAnalysis) -> list[str]:
    """Return a note on free memory that could not serve the request; empty if it is at most 5% of the free memory."""
    sizes = "more than" if blockers.size <= SMALL else "up to"
    unsuitable = (
        (blockers.other_size, f"in segments for requests of {sizes} 1 MiB"),
        (blockers.other_stream, "in segments of other streams"),
        (blockers.private, "in private or other memory pools"),
    )
    total = sum(free for free, _ in unsuitable)
    if total <= _RELEVANT * (total + blockers.partly_used):
        return []
    parts = [f"{size(free)} {where}" for free, where in unsuitable if free]
    return [f"The request could not use other free memory: {', '.join(parts)}."]


def _row(result: SettingsComparison, alternative: SettingsResult, label: str) -> TableRow:
    peak, baseline = alternative.peaks[1], alternative.baseline
    change = f"{peak / baseline - 1:+.0%}" if baseline and alternative is not result.recorded else ""
    changes = [] if result.reached_limit else ["0%" if change in ("+0%", "-0%") else change]
    is_shown = alternative is result.recorded or alternative.replay.failure is None
    cells = [_range(*alternative.peaks) if is_shown else "", *changes, _mib(alternative.replay.smallest_capacity)]
    if result.limit is not None:
        yes = "likely" if alternative.fits_reason else "yes"
        cells.append({True: yes, False: "out of memory", None: alternative.fits_reason}[alternative.fits])
    return TableRow(label, tuple(cells), 1)


def _range(low: int, high: int) -> str:
    return _mib(high) if low == high else f"{low / MIB:,.0f} to {_mib(high)}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.0f} MiB"


def _notes(result: SettingsComparison) -> list[str]:
    verification = result.verification
    recording = verification.recording
    count = many(len(recording.allocations), "allocation")
    text = recording.settings.text()
    replayed = f"The replay with the recorded settings{f' ({text})' if text else ''}"
    if verification.difference:
        peak = f"its peak is {_mib(verification.run.allocator.peak)}"
        error = f"Reserved memory differs by up to {size(verification.largest_error)}; {peak}"
        notes = [f"{replayed} differs from the recording ({verification.difference}). {error}."]
    else:
        notes = [f"{replayed} agrees with the recording: {count} at the recorded addresses."]
        reasons = dict.fromkeys(row.replay.reason for row in result.alternatives if row.replay.grade == "approximate")
        notes += [f"The other rows are approximate: {reason}." for reason in reasons]
    if result.limit is not None and result.limit[0] < result.limit[1]:
        when = " when the request failed" if result.failed else ""
        limit = f"{_range(*result.limit)} was available to PyTorch{when}"
        notes.append(f"{limit}; the recording does not contain a more exact value.")
    if result.capacity is not None:
        amount = _mib(result.capacity)
        notes.append(f"The CUDA context and kernels of a program need about 0.7 GiB in addition to these {amount}.")
    if result.reached_limit and (not result.failed or result.recorded.fits):
        if result.failed:
            cause = "Memory ran short while recording: a request failed"
        elif recording.has_uncertain_retries or (
            recording.settings.collection_threshold and result.recorded.replay.retries is None
        ):
            other = "torch.cuda.empty_cache()" if recording.has_uncertain_retries else "garbage collection"
            cause = (
                "Memory may have run short while recording: cached segments were freed, either in order to serve"
                f" requests or by {other}"
            )
        else:
            cause = "Memory ran short while recording: PyTorch freed cached segments in order to serve requests"
        peaks = "The reserved peaks in the other rows are those without a limit"
        notes.append(f'{cause}. {peaks}; compare the column "smallest limit".')
    if result.limit is not None and any(item.collects for item in result.alternatives) and not _has_fraction(result):
        notes.append(
            "garbage_collection_threshold has no effect unless torch.cuda.set_per_process_memory_fraction limits the"
            f" memory: this table assumes a limit of {size(result.limit[0])}."
        )
    for label in dict.fromkeys(result.equivalent.values()):
        settings = "; ".join(text for text, other in result.equivalent.items() if other == label)
        effect = (
            f"no effect compared with the {label}" if label.endswith(" settings") else f"the same effect as {label}"
        )
        notes.append(f"These settings have {effect}: {settings}.")
    notes += _failing_capacities(result)
    return [*notes, _recommendation(result), *_other_devices(result)]


def _has_fraction(result: SettingsComparison) -> bool:
    recording = result.verification.recording
    return recording.by_fraction and result.limit == recording.limit


def _failing_capacities(result: SettingsComparison) -> list[str]:
    rows = [("as recorded", result.recorded)]
    rows += [(item.settings or "default settings", item) for item in result.alternatives[:2]]
    failing_limits = {label: item.replay.failing_capacity for label, item in rows}
    parts = [f"{label} (up to {_mib(limit)})" for label, limit in failing_limits.items() if limit is not None]
    return [f'Some limits larger than "smallest limit" are not enough: {"; ".join(parts)}.'] if parts else []


def _recommendation(result: SettingsComparison) -> str:
    recording, recommended = result.verification.recording, result.recommended
    version = recording.snapshot.own.torch_version
    if recommended is not None and not recommended.settings:
        note = version_note("", version)
        setting = f"remove {settings_variable(version)} from the environment before torch is imported{note}"
    elif recommended is not None:
        setting = f"set {settings_variable(version)}={recommended.settings} before torch is imported"
        setting += version_note(recommended.settings, version)
        if recommended.collects and result.limit is not None and not _has_fraction(result):
            limit = size(result.limit[0])
            setting += f", and limit the memory to {limit} with torch.cuda.set_per_process_memory_fraction"
    if recommended is not None:
        return f"Recommendation{_estimate(result, recommended)}: {setting}."
    if result.limit is not None and any(item.fits is None for item in result.alternatives):
        reasons = {item.fits_reason for item in result.alternatives}
        cause = next((cause for reason, cause in _CAUSES.items() if reason in reasons), "")
        if not cause:
            return (
                "It is unknown whether one of these settings is enough: replays for all limits from"
                f" {_range(*result.limit)} would take too long. Specify the available memory with --capacity."
            )
        return f"Whether one of these settings is enough depends on {cause}."
    if result.limit is not None and result.missing:
        replays = [item.replay for item in (result.recorded, *result.alternatives)]
        amount = "at least" if result.limit[0] == result.limit[1] else "up to"
        if not all(replay.is_short for replay in replays):
            amount = "up to"
        if any(replay.grade == "approximate" for replay in replays):
            amount = "about"
        return f"None of these settings is enough: {amount} {size(result.missing)} more memory is required."
    return _missing_recommendation(result)


def _estimate(result: SettingsComparison, recommended: SettingsResult) -> str:
    older = older_memory(result.verification.recording)
    reason = f": the recording began after {size(older)} had been reserved" if older else ""
    return f" (estimated{reason})" if recommended.replay.grade == "approximate" else ""


def _missing_recommendation(result: SettingsComparison) -> str:
    reserved = result.verification.recording.timeline.reserved
    if result.verification.difference:
        return (
            "No recommendation: the savings are below 5% of the reserved memory, or below the difference between the"
            " replay and the recording."
        )
    if reserved is not None and reserved.bytes[0] >= reserved.bytes.max():
        return (
            "No recommendation: reserved memory did not grow while recording, so the recording does not contain the"
            " allocations that filled it. Start the recording at the beginning of the program."
        )
    effect = "saves 5% or more of the reserved memory" if result.alternatives else "has an effect on the requests"
    if result.alternatives and result.reached_limit:
        effect = "succeeds with 5% less memory than the recorded settings"
    if result.may_be_worthwhile:
        return f"Whether one of these settings {effect} depends on {_CAUSES['depends on older memory']}."
    return f"None of these settings {effect}."


def _other_devices(result: SettingsComparison) -> list[str]:
    recording = result.verification.recording
    devices = [
        timeline.device
        for timeline in recording.snapshot.timelines
        if timeline.device != recording.device and len(timeline.allocations)
    ]
    if not devices:
        return []
    indices = ", ".join(map(str, devices))
    return [f"The file also contains allocations on GPU {indices}: select a device with --device."]
