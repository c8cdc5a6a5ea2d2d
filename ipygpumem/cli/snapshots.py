"""``summary``, ``peak``, ``leaks``, ``fragmentation``, ``diff`` and ``events``: queries on snapshots."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, SnapshotError
from ipygpumem.features.commands.command import Command, Option, byte_count, positive
from ipygpumem.features.commands.output import BAD_ARGUMENTS, BAD_FILE, print_error, print_json, print_lines, progress
from ipygpumem.snapshot import KEYS, Snapshot, diff
from ipygpumem.snapshot.export import text
from ipygpumem.snapshot.export.event_table import COLUMNS, event_rows, write_csv, write_parquet
from ipygpumem.snapshot.queries.overview import overview
from ipygpumem.snapshot.reader.load import one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from ipygpumem.snapshot.model.timeline import Timeline

_TOP = 20
"""Default number of groups to show."""
_KEYS = tuple(sorted(KEYS))
_EVENT = re.compile(r"-?[0-9]{1,18}")


def _for_each_snapshot(arguments: argparse.Namespace, show: Callable[[Snapshot, str], None]) -> int:
    """Show each file, and print errors. Return the exit status. Raise `OptionError` only if there is a single file."""
    status = 0
    for name in arguments.files:
        try:
            with progress(f"reading {name}"):
                snapshot = Snapshot.load(name)
            show(snapshot, name)
        except SnapshotError as error:
            print_error(error)
            status = max(status, BAD_FILE)
        except OptionError as error:
            if len(arguments.files) == 1:
                raise
            print_error(OptionError(f"{one_line(name)}: {error}"))
            status = max(status, BAD_ARGUMENTS)
    return status


def _timelines(snapshot: Snapshot, device: int | None) -> Sequence[Timeline]:
    """Return the timeline of a device, or the timelines of all devices that were used."""
    if device is not None:
        return [snapshot.timeline(device)]
    timelines = [timeline for timeline in snapshot.timelines if len(timeline.trace) or timeline.end_reserved]
    return timelines or snapshot.timelines


def _print_heading(arguments: argparse.Namespace, name: str, devices: Sequence[Timeline]) -> None:
    """Print the file name if there are several files, or a message if no device was used."""
    if not devices:
        print_lines(f"{one_line(name)}: no device used memory")
    elif len(arguments.files) > 1:
        print_lines(f"{one_line(name)}:")


def _overviews(snapshot: Snapshot, device: int | None) -> Iterator[dict[str, Any]]:
    for timeline in snapshot.timelines if device is None else [snapshot.timeline(device)]:
        yield overview(snapshot, timeline.device).to_dict()


def _summary(arguments: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        if arguments.json:
            print_json({"file": name, "devices": list(_overviews(snapshot, arguments.device))})
        else:
            print_lines(snapshot.summary(arguments.device))

    return _for_each_snapshot(arguments, show)


def _peak(arguments: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        if arguments.json:
            devices = list(_overviews(snapshot, arguments.device))
            for facts in devices:
                groups = snapshot.live(device=facts["device"]).by(arguments.by)[: arguments.top]
                facts["groups"] = [group.to_dict() for group in groups]
            print_json({"file": name, "by": arguments.by, "devices": devices})
            return
        timelines = _timelines(snapshot, arguments.device)
        _print_heading(arguments, name, timelines)
        for timeline in timelines:
            peak = snapshot.peak(timeline.device)
            groups = peak.live.by(arguments.by)
            lines = text.group_lines(groups, peak.requested, arguments.top or _TOP)
            print_lines(text.peak_line(snapshot, peak), *lines)

    return _for_each_snapshot(arguments, show)


def _leaks(arguments: argparse.Namespace) -> int:
    first = -1 if arguments.first is None else arguments.first

    def show(snapshot: Snapshot, name: str) -> None:
        devices = _timelines(snapshot, arguments.device)
        leaks = [snapshot.leaks(first, arguments.last, timeline.device) for timeline in devices]
        if arguments.json:
            dicts = [live.to_dict(arguments.by, arguments.top) for live in leaks]
            print_json({"file": name, "by": arguments.by, "devices": dicts})
            return
        _print_heading(arguments, name, devices)
        for live in leaks:
            print_lines(*text.leak_lines(live, arguments.by, arguments.top or _TOP))

    return _for_each_snapshot(arguments, show)


def _fragmentation(arguments: argparse.Namespace) -> int:
    at_oom = arguments.at == "oom"
    if arguments.at is not None and not at_oom and not _EVENT.fullmatch(arguments.at):
        raise OptionError(f"--at must be an event number or oom, got {arguments.at!r}")
    event = None if arguments.at is None or at_oom else int(arguments.at)

    def show(snapshot: Snapshot, name: str) -> None:
        timelines = _timelines(snapshot, arguments.device)
        if at_oom:
            _show_ooms(arguments, snapshot, name, timelines)
            return
        devices = [timeline.device for timeline in timelines]
        if event is not None and arguments.device is None:
            # event numbers are per device; if no device has this event, the first device reports the error
            devices = [timeline.device for timeline in timelines if event < len(timeline.trace)] or devices[:1]
        results = [snapshot.fragmentation(event, device, arguments.need) for device in devices]
        if arguments.json:
            print_json({"file": name, "devices": [result.to_dict() for result in results]})
            return
        _print_heading(arguments, name, timelines)
        for result in results:
            print_lines(*text.fragmentation_lines(result))

    return _for_each_snapshot(arguments, show)


def _show_ooms(arguments: argparse.Namespace, snapshot: Snapshot, name: str, timelines: Sequence[Timeline]) -> None:
    ooms = [oom for timeline in timelines for oom in snapshot.ooms(timeline.device)]
    if arguments.json:
        print_json({"file": name, "ooms": [oom.to_dict() for oom in ooms]})
    elif ooms:
        _print_heading(arguments, name, timelines)
        for oom in ooms:
            print_lines(*text.oom_lines(oom))
    else:
        print_lines(f"{one_line(name)}: no allocation failed")


def _diff(arguments: argparse.Namespace) -> int:
    with progress("reading"):
        before = Snapshot.load(arguments.before)
        after = before if arguments.after == arguments.before else Snapshot.load(arguments.after)
    events = arguments.at or (None, None)
    device = arguments.device
    difference = diff(before.live(events[0], device), after.live(events[1], device), arguments.by)
    if arguments.json:
        facts = difference.to_dict()
        facts["changes"] = facts["changes"][: arguments.top]
        print_json({"a": arguments.before, "b": arguments.after, "by": arguments.by, **facts})
    else:
        print_lines(*text.diff_lines(difference, arguments.top or _TOP))
    return 0


def _events(arguments: argparse.Namespace) -> int:
    if arguments.csv and arguments.parquet:
        raise OptionError("--csv and --parquet cannot be combined: use one of them")
    several = len(arguments.files) > 1
    csv_names: list[str] = []

    def show(snapshot: Snapshot, name: str) -> None:
        if arguments.json:
            prefix = {"snapshot": name} if several else {}
            for row in event_rows(snapshot, arguments.device):
                print_json(prefix | dict(zip(COLUMNS, row, strict=True)))
        elif arguments.parquet:
            target = Path(f"{name}.parquet")
            write_parquet(snapshot, target, arguments.device)
            print_lines(one_line(str(target)))
        else:
            write_csv(snapshot, sys.stdout, arguments.device, label=name if several else None, names=not csv_names)
            csv_names.append(name)

    return _for_each_snapshot(arguments, show)


def _integer(value: str) -> int:
    if not _EVENT.fullmatch(value):
        raise OptionError(f"must be an integer, got {value!r}")
    return int(value)


_FILES = Option(("files",), "FILE", "a snapshot (pickle or JSON, optionally .gz or .xz)", many=True)
_DEVICE = Option(("--device",), "N", "only this device", type=_integer)
_GROUPS = (
    Option(("--by",), "KEY", f"grouping key: {', '.join(_KEYS)} (default: line)", _KEYS, "line"),
    Option(("-n", "--top"), "N", f"maximum number of groups (default: {_TOP}; all in JSON)", type=positive),
)
COMMANDS = (
    Command(
        "summary", "show the peak, its time and the lines that hold most memory", (_FILES, _DEVICE), shell=_summary
    ),
    Command("peak", "show the allocations that are live at the peak", (_FILES, _DEVICE, *_GROUPS), shell=_peak),
    Command(
        "leaks",
        "show the allocations that are still live at the end",
        (
            _FILES,
            _DEVICE,
            *_GROUPS,
            Option(("--first",), "EVENT", "only allocations after this event", type=_integer),
            Option(
                ("--last",), "EVENT", "only allocations live after this event (default: the last event)", type=_integer
            ),
        ),
        shell=_leaks,
    ),
    Command(
        "fragmentation",
        "show free memory in PyTorch's segments",
        (
            _FILES,
            _DEVICE,
            Option(
                ("--at",),
                "EVENT|oom",
                "state after this event (default: the last event), or oom to explain each out-of-memory error",
            ),
            Option(("--need",), "SIZE", "show where an allocation of this size would fit", type=byte_count),
        ),
        shell=_fragmentation,
    ),
    Command(
        "diff",
        "show the changes between the peaks of two snapshots, or between two events",
        (
            Option(("before",), "A", "a snapshot"),
            Option(("after",), "B", "a snapshot to compare with A; can be the same file"),
            Option(("--device",), "N", "device to compare (default: the device with the highest peak)", type=_integer),
            Option(("--at",), "EVENT_A EVENT_B", "events to compare (default: the peaks)", type=_integer, values=2),
            *_GROUPS,
        ),
        shell=_diff,
    ),
    Command(
        "events",
        "print all events as a table",
        (
            _FILES,
            _DEVICE,
            Option(("--csv",), None, "write CSV to the standard output (default)"),
            Option(("--parquet",), None, "write a Parquet file next to each snapshot"),
        ),
        shell=_events,
    ),
)
