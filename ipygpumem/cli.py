"""The command line: ``ipygpumem summary FILE``, ``peak``, ``leaks``, ``diff``, ``html``, ``view`` and more.

It needs numpy and nothing else: a laptop without torch and GPU opens a colleague's file. Exit status: 0, 1 for a file
that cannot be read, 2 for words that mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.environment import environment, environment_lines
from ipygpumem.errors import OptionError, SnapshotError, first_line
from ipygpumem.files import check_path
from ipygpumem.progress import progress
from ipygpumem.snapshot import KEYS, Snapshot, diff, sample
from ipygpumem.snapshot import text as lines
from ipygpumem.snapshot.files import one_line
from ipygpumem.snapshot.overview import overview
from ipygpumem.snapshot.table import COLUMNS, event_rows, write_csv, write_parquet
from ipygpumem.units import parse_size, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipygpumem.snapshot.timeline import Timeline

__all__ = ["main"]

_BAD_FILE, _BAD_WORDS, _INTERRUPTED = 1, 2, 130
_TOP = 20
_EVENT = re.compile(r"-?[0-9]{1,18}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The words; without them those of the command line.

    Returns:
        The exit status.
    """
    words = _parser().parse_args(arguments)
    if sys.stdout is None:
        _complain(OptionError("the standard output is closed"))
        return _BAD_FILE
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a name in a file may hold half a character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = words.run(words)
        sys.stdout.flush()
    except OptionError as problem:
        _complain(problem)
        return _BAD_WORDS
    except BrokenPipeError:
        _drop_output()  # the reader, such as head, has seen enough
        return 0
    except OSError as problem:
        _complain(OptionError(f"{problem.filename or 'the output'}: {problem.strerror or first_line(problem)}"))
        _drop_output()
        return _BAD_FILE
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _drop_output() -> None:
    """What Python would still flush goes nowhere."""
    with contextlib.suppress(OSError):  # no file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ipygpumem", description="Understand PyTorch memory snapshots.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=purpose, description=purpose)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print JSON, one object per file and line")
        return made

    def over_files(name: str, run: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        made = command(name, run, purpose)
        made.add_argument("files", nargs="+", metavar="FILE", help="a snapshot: pickle or JSON, also as .gz or .xz")
        made.add_argument("--device", type=int, metavar="N", help="this device only")
        return made

    def grouped(made: argparse.ArgumentParser) -> None:
        made.add_argument("--by", choices=sorted(KEYS), default="line", help="what to add up by (line)")
        made.add_argument("--top", type=_count, metavar="N", help=f"how many groups ({_TOP}; in JSON all)")

    def pictured(made: argparse.ArgumentParser) -> None:
        made.add_argument("file", metavar="FILE", help="a snapshot: pickle or JSON, also as .gz or .xz")
        made.add_argument("other", metavar="OTHER", nargs="?", help="a second one, to compare with")
        made.add_argument("--no-source", action="store_true", help="leave the text of the recorded cells out")
        made.add_argument("--strip-paths", action="store_true", help="leave the folders of files out")
        made.add_argument(
            "--theme",
            choices=("auto", "light", "dark"),
            default="auto",
            help="(auto: as the system)",
        )

    over_files("summary", _summary, "The peak, when it was, and the lines that hold most of it.")
    grouped(over_files("peak", _peak, "What was alive at the peak."))
    made = over_files("leaks", _leaks, "What was allocated and is still alive at the end.")
    grouped(made)
    made.add_argument("--first", type=int, default=-1, metavar="EVENT", help="count what is allocated after this event")
    made.add_argument("--last", type=int, metavar="EVENT", help="and alive after this one (the last)")
    made = over_files("fragmentation", _fragmentation, "Free memory inside PyTorch's segments.")
    made.add_argument(
        "--at", metavar="EVENT|oom", help="after this event, or why each out-of-memory happened (the end)"
    )
    made.add_argument("--need", type=_size, metavar="SIZE", help="where an allocation of this size would fit")
    made = command("diff", _diff, "What changed between the peaks of two snapshots, or between two events.")
    made.add_argument("before", metavar="A")
    made.add_argument("after", metavar="B")
    made.add_argument("--device", type=int, metavar="N", help="this device (the one with the highest peak)")
    made.add_argument("--at", type=int, nargs=2, metavar=("EVENT_A", "EVENT_B"), help="events to compare (the peaks)")
    grouped(made)
    made = over_files("events", _events, "All events as a table.")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="as CSV, to the standard output")
    form.add_argument("--parquet", action="store_true", help="as Parquet, beside each file")
    made = command("html", _html, "The viewer as one HTML file, to keep or to send: it opens without a network.")
    pictured(made)
    made.add_argument("-o", "--output", metavar="OUT", help="where to write (in this folder, named after FILE)")
    pictured(command("view", _view, "Open the viewer in the browser: a page in a temporary folder, no server."))
    command("env", _env, "What this machine allows, and how far each number can be trusted.")
    command("demo", _demo, "The commands at work on a small real snapshot.")
    return parser


def _count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _size(word: str) -> int:
    try:
        count = parse_size(word)
    except OptionError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1 byte")
    return count


def _heading(words: argparse.Namespace, name: str, devices: Sequence[Timeline]) -> None:
    """Of which file the text is, where there are several; and that there is nothing to tell of."""
    if not devices:
        _say(f"{one_line(name)}: no device used memory")
    elif len(words.files) > 1:
        _say(f"{one_line(name)}:")


def _each(words: argparse.Namespace, show: Callable[[Snapshot, str], None]) -> int:
    """Show each file; tell of one that cannot be read and go on."""
    status = 0
    for name in words.files:
        try:
            with progress(f"reading {name}"):
                snapshot = Snapshot.load(name)
        except SnapshotError as problem:
            _complain(problem)
            status = _BAD_FILE
            continue
        show(snapshot, name)
    return status


def _timelines(snapshot: Snapshot, device: int | None) -> Sequence[Timeline]:
    """The devices to tell of: one, or all that were used."""
    if device is not None:
        return [snapshot.timeline(device)]
    used = [one for one in snapshot.timelines if len(one.trace) or one.end_reserved]
    return used or snapshot.timelines


def _say(*said: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in said)


def _complain(problem: Exception) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"ipygpumem: {problem}\n")


def _json(value: Any) -> None:
    _say(json.dumps(value))


def _summary(words: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        if words.json:
            _json({"file": name, "devices": list(_overviews(snapshot, words.device))})
        else:
            _say(snapshot.summary(words.device))

    return _each(words, show)


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
            _json({"file": name, "by": words.by, "devices": devices})
            return
        timelines = _timelines(snapshot, words.device)
        _heading(words, name, timelines)
        for timeline in timelines:
            peak = snapshot.peak(timeline.device)
            groups = peak.live.by(words.by)
            _say(lines.peak_line(snapshot, peak), *lines.group_lines(groups, peak.requested, words.top or _TOP))

    return _each(words, show)


def _leaks(words: argparse.Namespace) -> int:
    def show(snapshot: Snapshot, name: str) -> None:
        devices = _timelines(snapshot, words.device)
        found = [snapshot.leaks(words.first, words.last, one.device) for one in devices]
        if words.json:
            _json({"file": name, "by": words.by, "devices": [live.to_dict(words.by, words.top) for live in found]})
            return
        _heading(words, name, devices)
        for live in found:
            _say(*lines.leak_lines(live, words.by, words.top or _TOP))

    return _each(words, show)


def _fragmentation(words: argparse.Namespace) -> int:
    at_oom = words.at == "oom"
    if words.at is not None and not at_oom and not _EVENT.fullmatch(words.at):
        raise OptionError(f"--at {words.at}: an event's number, or oom")
    event = None if words.at is None or at_oom else int(words.at)

    def show(snapshot: Snapshot, name: str) -> None:
        timelines = _timelines(snapshot, words.device)
        devices = [one.device for one in timelines]
        if at_oom:
            ooms = [oom for device in devices for oom in snapshot.ooms(device)]
            if words.json:
                _json({"file": name, "ooms": [oom.to_dict() for oom in ooms]})
            elif ooms:
                _heading(words, name, timelines)
                for oom in ooms:
                    _say(*lines.oom_lines(oom))
            else:
                _say(f"{one_line(name)}: no allocation failed")
            return
        found = [snapshot.fragmentation(event, device, words.need) for device in devices]
        if words.json:
            _json({"file": name, "devices": [memory.to_dict() for memory in found]})
            return
        _heading(words, name, timelines)
        for memory in found:
            _say(*lines.fragmentation_lines(memory))

    return _each(words, show)


def _diff(words: argparse.Namespace) -> int:
    try:
        with progress("reading"):
            before = Snapshot.load(words.before)
            after = before if words.after == words.before else Snapshot.load(words.after)
    except SnapshotError as problem:
        _complain(problem)
        return _BAD_FILE
    events = words.at or (None, None)
    found = diff(before.live(events[0], words.device), after.live(events[1], words.device), words.by)
    if words.json:
        facts = found.to_dict()
        _json({"a": words.before, "b": words.after, "by": words.by, **facts, "changes": facts["changes"][: words.top]})
    else:
        _say(*lines.diff_lines(found, words.top or _TOP))
    return 0


def _events(words: argparse.Namespace) -> int:
    several = len(words.files) > 1
    begun: list[str] = []

    def show(snapshot: Snapshot, name: str) -> None:
        if words.json:
            of = {"snapshot": name} if several else {}
            for row in event_rows(snapshot, words.device):
                _json(of | dict(zip(COLUMNS, row, strict=True)))
        elif words.parquet:
            target = Path(f"{name}.parquet")
            write_parquet(snapshot, target, words.device)
            _say(one_line(str(target)))
        else:
            write_csv(snapshot, sys.stdout, words.device, label=name if several else None, names=not begun)
            begun.append(name)

    return _each(words, show)


def _loaded(words: argparse.Namespace) -> list[Snapshot] | None:
    """One snapshot, or two to compare; None, and the reason said, where one cannot be read."""
    try:
        with progress("reading"):
            return [Snapshot.load(name) for name in (words.file, words.other) if name is not None]
    except SnapshotError as problem:
        _complain(problem)
        return None


def _shown(words: argparse.Namespace) -> dict[str, Any]:
    return {"source": not words.no_source, "paths": not words.strip_paths, "theme": words.theme}


def _html(words: argparse.Namespace) -> int:
    from ipygpumem.viewer import write_page

    target = words.output
    if target is None:
        target = f"{Path(words.file).name.split('.')[0] or 'snapshot'}.html"
    check_path(target, "page", "snapshot.html")
    snapshots = _loaded(words)
    if snapshots is None:
        return _BAD_FILE
    with progress("writing"):
        path = write_page(target, snapshots, **_shown(words))
    count = path.stat().st_size
    if words.json:
        _json({"page": str(path), "bytes": count})
    else:
        _say(f"{one_line(str(target))}: {size(count)}")
    return 0


def _view(words: argparse.Namespace) -> int:
    from ipygpumem.viewer import open_page

    snapshots = _loaded(words)
    if snapshots is None:
        return _BAD_FILE
    with progress("writing"):
        path, opened = open_page(snapshots, **_shown(words))
    if words.json:
        _json({"page": str(path), "opened": opened})
    else:
        _say(str(path) if opened else f"no browser can be opened from here: open this file in one\n{path}")
    return 0


def _env(words: argparse.Namespace) -> int:
    facts = environment()
    if words.json:
        _json(facts.to_dict())
    else:
        _say(*environment_lines(facts))
    return 0


def _demo(words: argparse.Namespace) -> int:
    file = str(sample())
    form = ["--json"] if words.json else []
    for command in (
        ["summary", file],
        ["peak", file, "--by", "function", "--top", "5"],
        ["fragmentation", file, "--need", "64MiB"],
    ):
        if not words.json:
            _say(f"$ ipygpumem {' '.join(command)}")
        status = main([*command, *form])
        if status:
            return status
    return 0
