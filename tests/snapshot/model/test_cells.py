"""Events are assigned to notebook cells by time and by file name."""

# ruff: noqa: S108 (names of cells in kernels, not of files)
from __future__ import annotations

import pytest

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.redaction import without_private_data
from snapshot.decoding import decode
from snapshot.entries import event, frame, group_totals

MIB = 1 << 20
CELL = "/tmp/ipykernel_7/99.py"
OTHER_CELL = "/tmp/ipykernel_7/55.py"


def test_file_names_identify_cells_without_times():
    trace = [
        {"action": "alloc", "addr": 512, "size": 5, "frames": [frame("<ipython-input-3-0a1b2c3d4e5f>", 1, "<module>")]}
    ]
    snapshot = Snapshot.load({"device_traces": [trace]})
    assert group_totals(snapshot.live().by("cell")) == {"In[3]": (5, 1)}
    trace[0]["frames"] = [frame(CELL, 1, "<module>")]
    assert group_totals(Snapshot.load({"device_traces": [trace]}).live().by("cell")) == {"cell 99": (5, 1)}


def test_outer_cell_continues_after_inner_cells():
    cells = [{"number": 1, "filename": CELL, "start_us": 0, "end_us": 999}]
    cells += [{"number": n, "filename": OTHER_CELL, "start_us": 10 * n, "end_us": 10 * n + 1} for n in range(2, 40)]
    trace = [event("alloc", 512, 1, 500), event("alloc", 1024, 2, 391, [frame(CELL, 1, "f")])]
    trace += [event("alloc", 1536, 4, 390), event("alloc", 2048, 8, 2000)]
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert group_totals(snapshot.live().by("cell")) == {"In[1]": (3, 2), "In[39]": (4, 1), "(no cell)": (8, 1)}


def test_time_selects_the_run_of_a_cell():
    cells = [{"number": n, "filename": CELL, "start_us": 10 * n, "end_us": 10 * n + 9} for n in range(1, 9)]
    stack = [frame(CELL, 7, "f")]
    trace = [event("alloc", 512, 1, 31, stack), event("alloc", 1024, 2, 55, [frame(CELL, 8, "f")])]
    trace += [event("alloc", 2048, 4, 56, stack)]
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert group_totals(snapshot.live().by("line")) == {"In[3] or In[5]:7 f": (5, 2), "In[5]:8 f": (2, 1)}
    assert group_totals(snapshot.live(0).by("stack")) == {"In[3]:7 f": (1, 1)}
    trace[0]["time_us"] = trace[1]["time_us"] = trace[2]["time_us"] = 500
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert group_totals(snapshot.live().by("line")) == {"In[1] … In[8]:7 f": (5, 2), "In[1] … In[8]:8 f": (2, 1)}


def test_stack_decides_between_cells_in_the_same_microsecond():
    cells = [
        {"number": 1, "filename": CELL, "start_us": 0, "end_us": 5},
        {"number": 2, "filename": OTHER_CELL, "start_us": 5, "end_us": 9},
    ]
    trace = [event("alloc", 512, 1, 5, [frame(CELL, 1, "f")]), event("alloc", 1024, 2, 5, [frame(OTHER_CELL, 1, "f")])]
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert group_totals(snapshot.live().by("cell")) == {"In[1]": (1, 1), "In[2]": (2, 1)}


def test_cells_before_the_recording_keep_their_number():
    frames = [{"filename": "/tmp/ipykernel_7/55.py", "line": 3, "name": "step"}]
    metadata = {"schema": 1, "cells": [], "numbers": {"/tmp/ipykernel_7/55.py": 4}}
    raw = {"device_traces": [[event("alloc", 512, 10, 1, frames)]], "ipygpumem": metadata}
    snapshot = Snapshot.load(raw)
    assert [group.label for group in snapshot.by_line()] == ["In[4]:3 step"]
    shared = without_private_data(snapshot, paths=False)
    assert [group.label for group in shared.by_line()] == ["In[4]:3 step"]
    assert decode(snapshot.encode())[0]["numbers"] == {"/tmp/ipykernel_7/55.py": 4}
    metadata["numbers"] = {"x.py": "four"}
    with pytest.raises(SnapshotError, match="ipygpumem: numbers is a str, not an integer"):
        Snapshot.load(raw)
