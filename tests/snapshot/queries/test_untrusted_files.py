"""The time and memory of queries are proportional to the size of a file, even if it is made to slow them down."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.features.lines.peak import allocation_sites
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.text import group_lines
from ipygpumem.snapshot.model.cells import CellLookup
from ipygpumem.snapshot.model.columns import EventValues
from ipygpumem.snapshot.queries import live_set
from ipygpumem.snapshot.queries.groups import KEYS, group_rows
from ipygpumem.snapshot.queries.live_set import GroupConverter
from snapshot import malicious_files
from snapshot.entries import event, frame

BITS = 15


def seconds(function):
    times = []
    for _ in range(2):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


@pytest.fixture(scope="module")
def chosen():
    """Return rows that make a dict slow: each access to the last row passes most of the other rows."""
    integers, slow = malicious_files.slow_integers(BITS)
    return np.asarray([*integers, slow])


def snapshot_of(trace, **keys):
    return Snapshot.load({"segments": [], "device_traces": [trace], **keys})


def test_chosen_rows_with_metadata(chosen):
    count = int(chosen.max()) + 1

    def loaded(rows):
        trace = [event("alloc", 512 * n, 8, 1) for n in range(count)]
        trace += [{**event("annotate", 512 * row, 0, 1), "user_metadata": "a"} for row in rows]
        return snapshot_of(trace)

    slow, plain = (loaded(rows).live() for rows in (chosen.tolist(), range(len(chosen))))
    rows = np.append(chosen, np.full(20_000, chosen[-1]))
    groups = group_rows(slow.snapshot, slow.timeline, rows, "metadata")
    assert [(group.label, group.count) for group in groups] == [("a", len(rows))]
    times = [
        seconds(lambda live=live: group_rows(live.snapshot, live.timeline, rows, "metadata")) for live in (slow, plain)
    ]
    assert times[0] < 5 * times[1] + 0.1


def test_chosen_rows_by_allocation(chosen):
    live = snapshot_of([event("alloc", 512 * n, 8, 1) for n in range(int(chosen.max()) + 1)]).live()
    times = []
    for rows in (chosen[:-1], np.arange(len(chosen) - 1)):
        _, describe = KEYS["allocation"](live.snapshot, live.timeline, np.append(rows, chosen[-1]))
        times.append(seconds(lambda describe=describe: [describe(int(chosen[-1])) for _ in range(20_000)]))
    assert times[0] < 5 * times[1] + 0.1


def test_chosen_events_with_free_memory(chosen):
    values = EventValues(chosen[:-1].tolist(), range(len(chosen) - 1))
    assert values.get(int(chosen[5])) == 5
    assert values.get(int(chosen[-1])) is None
    assert values.get(int(chosen.max()) + 1) is None
    assert EventValues().get(0) is None
    assert list(values.to_dict()) == sorted(map(str, chosen[:-1].tolist()), key=int)
    consecutive = EventValues(range(len(chosen) - 1), range(len(chosen) - 1))
    missing = int(chosen[-1])
    times = [seconds(lambda v=v: [v.get(missing) for _ in range(20_000)]) for v in (values, consecutive)]
    assert times[0] < 5 * times[1] + 0.02


def test_many_cells_of_one_stack():
    def labels(count):
        cells = [{"number": n, "start_us": n, "end_us": n} for n in range(count)]
        snapshot = snapshot_of([event("alloc", 512 * n, 8, n) for n in range(count)], ipygpumem={"cells": cells})
        live = snapshot.live()
        assert len(live.by("cell")) == count
        return seconds(lambda: live.by("cell"))

    assert labels(48_000) < 32 * labels(3000)  # 256 times with one pass over all events for each cell


def test_cells_of_deep_stacks_are_limited():
    files = [f"/tmp/ipykernel_7/{n}.py" for n in range(1500)]  # noqa: S108
    cells = [{"number": n, "filename": file, "start_us": 0, "end_us": 9} for n, file in enumerate(files)]
    stack = [frame(file, 1, "f") for file in reversed(files)]
    snapshot = snapshot_of([event("alloc", 512, 8, 1, stack)], ipygpumem={"cells": cells})
    calls = []
    lookup = snapshot.cells
    active = CellLookup._active
    CellLookup._active = lambda self, *args: calls.append(args) or active(self, *args)
    try:
        assert [group.label for group in snapshot.live().by("cell")] == ["In[99]"]
    finally:
        CellLookup._active = active
    assert len(calls) == 101
    assert snapshot.cells is lookup


def test_long_names_shared_by_stacks():
    name = "x" * 1_000_000
    library = [frame("/usr/lib/python3.11/site-packages/a.py", n, "g") for n in range(500)]
    own = frame(name, 1, name)
    snapshot = snapshot_of([event("alloc", 512 * n, 8, 1, [own_library, own]) for n, own_library in enumerate(library)])
    groups = snapshot.live().by("stack")
    assert len(groups) == 500
    assert sum(len(group.label) for group in groups) < 2_000_000
    with pytest.raises(OptionError, match=r"the groups contain more than 134,217,728 characters: .* --top"):
        snapshot.live().to_dict("stack")
    converter = GroupConverter()
    assert [len(snapshot.live().to_dict("stack", 30, converter)["groups"]) for _ in range(2)] == [30, 30]
    with pytest.raises(OptionError, match="characters"):
        snapshot.live().to_dict("stack", 30, converter)


@pytest.mark.parametrize("list_lines", [lambda live: group_lines(live.by("line"), 1, 10_000), allocation_sites])
def test_long_line_of_source_code_that_belongs_to_many_groups(list_lines):
    events = [event("alloc", n << 9, 1, n, [frame("a.py", 1, f"f{n}")]) for n in range(1500)]
    source = {"a.py": 1_000_000 * "x" + "\U0001f600"}
    live = Snapshot.load({"segments": [], "device_traces": [events], "source_code": source}).peak(0).live
    start = time.process_time()
    assert len(list_lines(live)) == len(events)
    assert time.process_time() - start < 0.7, "copying the line for each group took 2 s"


@pytest.mark.parametrize("character", ["\U0001f600", "\u2028", '"', "\x07"])
def test_escaped_characters_of_groups_are_counted(character, monkeypatch):
    """JSON contains up to 12 characters for a character."""
    limit = 1 << 22
    monkeypatch.setattr(live_set, "_MAX_TEXT", limit)
    outer = frame("a.py", 1, character * 3000)
    snapshot = snapshot_of([event("alloc", 512 * n, 8, 1, [frame("b.py", n, "g"), outer]) for n in range(700)])
    length = len(json.dumps(character)) - 2
    groups = limit // (length * 3000)
    content = json.dumps(snapshot.live().to_dict("stack", groups // 2))
    assert len(content) < limit
    with pytest.raises(OptionError, match="characters"):
        snapshot.live().to_dict("stack", groups + 1)


def test_stacks_are_created_once():
    snapshot = snapshot_of([event("alloc", 512, 8, 1, [frame("a.py", 1, "f")])])
    assert snapshot.stacks.stack(0) is snapshot.stacks.stack(0)
    assert snapshot.stacks.stack(-1) == ()
