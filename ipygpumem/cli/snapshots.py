"""``summary``, ``peak``, ``leaks``, ``fragmentation``, ``diff``: questions to snapshots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ipygpumem.cli.progress import progress
from ipygpumem.commands.arguments import TOP, add_groups, size_word
from ipygpumem.commands.output import BAD_FILE, complain, each, print_json, say, timelines
from ipygpumem.core.errors import OptionError, SnapshotError
from ipygpumem.snapshot import Snapshot, diff
from ipygpumem.snapshot.export import text as lines
from ipygpumem.snapshot.queries.overview import overview
from ipygpumem.snapshot.reader.load import one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ipygpumem.commands.arguments import Commands
    from ipygpumem.snapshot.model.timeline import Timeline

__all__ = ["add"]

_EVENT = re.compile(r"-?[0-9]{1,18}")


def add(commands: Commands) -> None:
    """Put the commands in."""
    commands.over_files("summary", _summary, "The peak, when it was, and the lines that hold most of it.")
    add_groups(commands.over_files("peak", _peak, "What was alive at the peak."))
    made = commands.over_files("leaks", _leaks, "What was allocated and is still alive at the end.")
    add_groups(made)
    made.add_argument("--first", type=int, default=-1, metavar="EVENT", help="count what is allocated after this event")
    made.add_argument("--last", type=int, metavar="EVENT", help="and alive after this one (the last)")
    made = commands.over_files("fragmentation", _fragmentation, "Free memory inside PyTorch's segments.")
    made.add_argument(
        "--at", metavar="EVENT|oom", help="after this event, or why each out-of-memory happened (the end)"
    )
    made.add_argument("--need", type=size_word, metavar="SIZE", help="where an allocation of this size would fit")
    made = commands.add("diff", _diff, "What changed between the peaks of two snapshots, or between two events.")
    made.add_argument("before", metavar="A")
    made.add_argument("after", metavar="B")
    made.add_argument("--device", type=int, metavar="N", help="this device (the one with the highest peak)")
    made.add_argument("--at", type=int, nargs=2, metavar=("EVENT_A", "EVENT_B"), help="events to compare (the peaks)")
    add_groups(made)


def _heading(words: argparse.Namespace, name: str, devices: Sequence[Timeline]) -> None:
    """Of which file the text is, where there are several; and that there is nothing to tell of."""
    if not devices:
        say(f"{one_line(name)}: no device used memory")
    elif len(words.files) > 1:
        say(f"{one_line(name)}:")


def _summary(words: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        if words.json:
            print_json({"file": name, "devices": list(_overviews(snapshot, words.device))})
        else:
            say(snapshot.summary(words.device))

    return each(words, show)


def _overviews(snapshot: Snapshot, device: int | None) -> Iterator[dict[str, Any]]:
    for timeline in snapshot.timelines if device is None else [snapshot.timeline(device)]:
        yield overview(snapshot, timeline.device).to_dict()


def _peak(words: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        if words.json:
            devices = list(_overviews(snapshot, words.device))
            for facts in devices:
                groups = snapshot.live(device=facts["device"]).by(words.by)[: words.top]
                facts["groups"] = [group.to_dict() for group in groups]
            print_json({"file": name, "by": words.by, "devices": devices})
            return
        used = timelines(snapshot, words.device)
        _heading(words, name, used)
        for timeline in used:
            peak = snapshot.peak(timeline.device)
            groups = peak.live.by(words.by)
            say(lines.peak_line(snapshot, peak), *lines.group_lines(groups, peak.requested, words.top or TOP))

    return each(words, show)


def _leaks(words: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        devices = timelines(snapshot, words.device)
        found = [snapshot.leaks(words.first, words.last, one.device) for one in devices]
        if words.json:
            print_json({"file": name, "by": words.by, "devices": [live.to_dict(words.by, words.top) for live in found]})
            return
        _heading(words, name, devices)
        for live in found:
            say(*lines.leak_lines(live, words.by, words.top or TOP))

    return each(words, show)


def _fragmentation(words: argparse.Namespace) -> int:
    at_oom = words.at == "oom"
    if words.at is not None and not at_oom and not _EVENT.fullmatch(words.at):
        raise OptionError(f"--at {words.at}: an event's number, or oom")
    event = None if words.at is None or at_oom else int(words.at)

    def show(snapshot: Snapshot, name: str) -> None:
        used = timelines(snapshot, words.device)
        devices = [one.device for one in used]
        if at_oom:
            ooms = [oom for device in devices for oom in snapshot.ooms(device)]
            if words.json:
                print_json({"file": name, "ooms": [oom.to_dict() for oom in ooms]})
            elif ooms:
                _heading(words, name, used)
                for oom in ooms:
                    say(*lines.oom_lines(oom))
            else:
                say(f"{one_line(name)}: no allocation failed")
            return
        if event is not None and words.device is None:
            # devices have events of their own; if none has this one, the first says so
            devices = [one.device for one in used if event < len(one.trace)] or devices[:1]
        found = [snapshot.fragmentation(event, device, words.need) for device in devices]
        if words.json:
            print_json({"file": name, "devices": [memory.to_dict() for memory in found]})
            return
        _heading(words, name, used)
        for memory in found:
            say(*lines.fragmentation_lines(memory))

    return each(words, show)


def _diff(words: argparse.Namespace) -> int:
    try:
        with progress("reading"):
            before = Snapshot.load(words.before)
            after = before if words.after == words.before else Snapshot.load(words.after)
    except SnapshotError as problem:
        complain(problem)
        return BAD_FILE
    events = words.at or (None, None)
    found = diff(before.live(events[0], words.device), after.live(events[1], words.device), words.by)
    if words.json:
        facts = found.to_dict()
        print_json(
            {"a": words.before, "b": words.after, "by": words.by, **facts, "changes": facts["changes"][: words.top]}
        )
    else:
        say(*lines.diff_lines(found, words.top or TOP))
    return 0
