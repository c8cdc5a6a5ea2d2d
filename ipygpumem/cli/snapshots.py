"""Shell commands that query snapshots: ``summary``, ``peak``, ``leaks``, ``fragmentation``, ``diff`` and ``events``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ipygpumem.core.errors import OptionError, SnapshotError
from ipygpumem.core.text import printable
from ipygpumem.features.commands.command import Command, Option, byte_count, positive
from ipygpumem.features.commands.output import BAD_ARGUMENTS, BAD_FILE, print_error, print_json, print_lines, progress
from ipygpumem.snapshot import KEYS, Snapshot, diff
from ipygpumem.snapshot.export import text
from ipygpumem.snapshot.export.event_table import COLUMNS, event_rows, write_csv, write_parquet
from ipygpumem.snapshot.model.timeline import Timeline
from ipygpumem.snapshot.queries.live_set import GroupConverter
from ipygpumem.snapshot.queries.overview import overview

_TOP = 20  # default number of groups to show
_KEYS = tuple(sorted(KEYS))
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_Answer = dict[str, Any] | list[str]  # values to print as JSON, or lines of text


def _for_each_snapshot(arguments: argparse.Namespace, show: Callable[[Snapshot, str], None]) -> int:
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
            print_error(OptionError(f"{name}: {error}"))
            status = max(status, BAD_ARGUMENTS)
    return status


def _query(answer: Callable[[Snapshot, argparse.Namespace], _Answer]) -> Callable[..., int]:
    def run(arguments: argparse.Namespace) -> int:
        def show(snapshot: Snapshot, name: str) -> None:
            result = answer(snapshot, arguments)
            if isinstance(result, dict):
                print_json({"file": name, **result})
            elif not result:
                print_lines(f"{printable(name)}: no device used memory")
            else:
                print_lines(*([f"{printable(name)}:"] if len(arguments.files) > 1 else []), *result)

        return _for_each_snapshot(arguments, show)

    return run


def _timelines(snapshot: Snapshot, device: int | None) -> Sequence[Timeline]:
    if device is not None:
        return [snapshot.timeline(device)]
    timelines = [timeline for timeline in snapshot.timelines if len(timeline.trace) or timeline.end_reserved]
    return timelines or snapshot.timelines


def _overviews(snapshot: Snapshot, device: int | None) -> list[dict[str, Any]]:
    timelines = snapshot.timelines if device is None else [snapshot.timeline(device)]
    return [overview(snapshot, timeline.device) for timeline in timelines]


def _summary(snapshot: Snapshot, arguments: argparse.Namespace) -> _Answer:
    if arguments.json:
        return {"devices": _overviews(snapshot, arguments.device)}
    return [snapshot.summary(arguments.device)]


def _peak(snapshot: Snapshot, arguments: argparse.Namespace) -> _Answer:
    if arguments.json:
        devices, converter = _overviews(snapshot, arguments.device), GroupConverter()
        for device in devices:
            groups = snapshot.live(device=device["device"]).by(arguments.by)[: arguments.top]
            device["groups"] = converter.to_dicts(groups)
        return {"by": arguments.by, "devices": devices}
    lines = []
    for timeline in _timelines(snapshot, arguments.device):
        peak = snapshot.peak(timeline.device)
        lines.append(text.peak_line(snapshot, peak))
        lines += text.group_lines(peak.live.by(arguments.by), peak.requested, arguments.top or _TOP)
    return lines


def _leaks(snapshot: Snapshot, arguments: argparse.Namespace) -> _Answer:
    timelines = _timelines(snapshot, arguments.device)
    leaks = [snapshot.leaks(arguments.first, arguments.last, timeline.device) for timeline in timelines]
    if arguments.json:
        converter = GroupConverter()
        devices = [live.to_dict(arguments.by, arguments.top, converter) for live in leaks]
        return {"by": arguments.by, "devices": devices}
    return [line for live in leaks for line in text.leak_lines(live, arguments.by, arguments.top or _TOP)]


def _fragmentation(snapshot: Snapshot, arguments: argparse.Namespace) -> _Answer:
    event, timelines = arguments.at, _timelines(snapshot, arguments.device)
    if event == "oom":
        ooms = [oom for timeline in timelines for oom in snapshot.ooms(timeline.device)]
        if arguments.json:
            return {"ooms": [oom.to_dict() for oom in ooms]}
        return [line for oom in ooms for line in text.oom_lines(oom)] or ["no allocation failed"]
    devices = [timeline.device for timeline in timelines]
    if event is not None and arguments.device is None:
        # each device has its own events; if no device has this event, the first device reports the error
        devices = [timeline.device for timeline in timelines if event < len(timeline.trace)] or devices[:1]
    results = [snapshot.fragmentation(event, device, arguments.need) for device in devices]
    if arguments.json:
        return {"devices": [result.to_dict() for result in results]}
    return [line for result in results for line in text.fragmentation_lines(result)]


def _diff(arguments: argparse.Namespace) -> int:
    with progress("reading"):
        before = Snapshot.load(arguments.before)
        after = before if arguments.after == arguments.before else Snapshot.load(arguments.after)
    events = arguments.at or (None, None)
    device = arguments.device
    difference = diff(before.live(events[0], device), after.live(events[1], device), arguments.by)
    if arguments.json:
        result = difference.to_dict()
        result["changes"] = result["changes"][: arguments.top]
        print_json({"a": arguments.before, "b": arguments.after, "by": arguments.by, **result})
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
            print_lines(printable(str(target)))
        else:
            write_csv(snapshot, sys.stdout, arguments.device, label=name if several else None, names=not csv_names)
            csv_names.append(name)

    return _for_each_snapshot(arguments, show)


def _integer(value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise OptionError(f"the value must be an integer, but got {value!r}")
    return int(value)


_FILES = Option(("files",), "FILE", "snapshot file (pickle or JSON, may be compressed: .gz, .xz)", accepts_many=True)
_DEVICE = Option(("--device",), "N", "include only the device with this index", type=_integer)
_GROUPS = (
    Option(("--by",), "KEY", f"grouping key: {', '.join(_KEYS)} (default: line)", _KEYS, "line"),
    Option(("-n", "--top"), "N", f"maximum number of groups (default: {_TOP}; with --json: all)", type=positive),
)
COMMANDS = (
    Command(
        "summary",
        "show the peak, its time, and the lines of code with the largest allocations at the peak",
        (_FILES, _DEVICE),
        shell=_query(_summary),
    ),
    Command("peak", "show the allocations that are live at the peak", (_FILES, _DEVICE, *_GROUPS), shell=_query(_peak)),
    Command(
        "leaks",
        "show the allocations that are still live at the end",
        (
            _FILES,
            _DEVICE,
            *_GROUPS,
            Option(("--first",), "EVENT", "include only allocations made after this event", default=-1, type=_integer),
            Option(
                ("--last",),
                "EVENT",
                "include only allocations that are live after this event (default: the last event)",
                type=_integer,
            ),
        ),
        shell=_query(_leaks),
    ),
    Command(
        "fragmentation",
        "show the free memory in PyTorch's segments",
        (
            _FILES,
            _DEVICE,
            Option(
                ("--at",),
                "EVENT|oom",
                "show the state after this event (default: the last), or explain each out-of-memory error ('oom')",
                type=lambda value: value if value == "oom" else _integer(value),
            ),
            Option(("--need",), "SIZE", "show where an allocation of this size would fit", type=byte_count),
        ),
        shell=_query(_fragmentation),
    ),
    Command(
        "diff",
        "show the changes between the peaks of two snapshots, or between two events",
        (
            Option(("before",), "A", "snapshot file"),
            Option(("after",), "B", "snapshot file to compare with A; can be the same file"),
            Option(("--device",), "N", "device index (default: the device with the highest peak)", type=_integer),
            Option(
                ("--at",), "EVENT_A EVENT_B", "events to compare (default: the peaks)", type=_integer, value_count=2
            ),
            *_GROUPS,
        ),
        shell=_diff,
    ),
    Command(
        "events",
        "print all events as CSV or write them to Parquet files",
        (
            _FILES,
            _DEVICE,
            Option(("--csv",), None, "write CSV to stdout (default)"),
            Option(("--parquet",), None, "write a Parquet file next to each snapshot"),
        ),
        shell=_events,
    ),
)
