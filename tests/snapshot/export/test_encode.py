"""Encoded columns are decoded unchanged."""

from __future__ import annotations

import pytest

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.queries.overview import overview
from snapshot import files
from snapshot.decoding import decode


@pytest.mark.parametrize("name", files.NAMES)
def test_encoded_columns_of_real_files(name):
    snapshot = Snapshot.load(files.path(name))
    header, columns = decode(snapshot.encode())
    trace, allocations = snapshot.timeline(0).trace, snapshot.timeline(0).allocations
    for field in ("action", "address", "size", "stream", "time", "stack", "context", "metadata", "pool"):
        assert columns[f"trace/0/{field}"].tolist() == getattr(trace, field).tolist()
    start = columns["allocations/0/start"]
    assert start.tolist() == sorted(allocations.start.tolist())
    ends = start + columns["allocations/0/free_requested_after"] + columns["allocations/0/freed_after"]
    assert sorted(zip(start, ends, strict=True)) == sorted(zip(allocations.start, allocations.end, strict=True))
    assert header["devices"][0]["notes"] == overview(snapshot, 0)["notes"]
    assert header["frames"][0] == [snapshot.stacks.frames[0].file, *header["frames"][0][1:]]
    assert columns["blocks/size"].tolist() == snapshot.blocks.size.tolist()


def test_short_columns_are_not_compressed():
    traces = [[{"action": "alloc", "addr": 512, "size": 1, "time_us": 5}] for _ in range(100)]
    header, columns = decode(Snapshot.load({"device_traces": traces}).encode())
    assert columns["trace/99/address"].tolist() == [512]
    # starting a decompression in a browser takes a millisecond
    of_devices = [column for column in header["columns"] if "/9" in column["name"]]
    assert len(of_devices) > 100
    assert all(column["bytes"] == column["width"] * column["count"] for column in of_devices)
