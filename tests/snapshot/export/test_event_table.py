"""Events as CSV and data frames."""

from __future__ import annotations

import importlib.util
import io

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot import Snapshot, to_frame
from ipygpumem.snapshot.export.event_table import COLUMNS, write_csv
from snapshot.entries import event

MIB = 1 << 20


def test_events_as_csv(two_runs):
    file = io.StringIO()
    write_csv(two_runs, file)
    lines = file.getvalue().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert (
        lines[2]
        == "0,1,alloc,65536,4194304,0,101,6291456,/home/user/model.py,3,forward,Torch-Compiled Region: 0/0,acts"
    )
    assert len(lines) == 12


def test_csv_contains_neither_formulas_nor_control_characters():
    trace = [
        event("alloc", 512, 8, 1, [{"filename": "=cmd|'x'!A1", "line": 1, "name": "\x1b[2Jf"}], user_metadata="-1")
    ]
    file = io.StringIO()
    write_csv(Snapshot.load({"device_traces": [trace]}), file)
    assert file.getvalue().splitlines()[1].split(",")[-5:] == ["'=cmd|'x'!A1", "1", " [2Jf", "", "'-1"]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_data_frames(two_runs):
    frame = two_runs.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["requested_after"].max() == two_runs.peak().requested
    assert to_frame(two_runs.by_line())["bytes"].sum() == two_runs.peak().requested
    assert to_frame(two_runs.allocated())["bytes"].tolist() == two_runs.allocated().bytes.tolist()
    assert to_frame(two_runs.state_at(3).blocks)["requested"].sum() == two_runs.state_at(3).requested
    assert to_frame(two_runs.device_calls())["mallocs"].tolist() == [1]
    with pytest.raises(OptionError, match="pass the result of a Snapshot method"):
        to_frame(5)


@pytest.mark.skipif(importlib.util.find_spec("pandas") is not None, reason="pandas is installed")
def test_without_pandas(two_runs):
    with pytest.raises(OptionError, match="pandas is required for data frames: pip install pandas"):
        two_runs.frame()
    with pytest.raises(OptionError, match="pandas is required for data frames"):
        to_frame(two_runs.by_line())
