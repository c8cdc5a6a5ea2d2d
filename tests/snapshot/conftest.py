"""A small snapshot for which all results are known."""

# ruff: noqa: S108 (names of cells in kernels, not of files)
from __future__ import annotations

import pytest

from ipygpumem.snapshot import Snapshot
from snapshot.entries import block, event, frame, free_events, segment

MIB = 1 << 20
CELL = "/tmp/ipykernel_7/99.py"
OTHER_CELL = "/tmp/ipykernel_7/55.py"
TORCH = {"filename": "/usr/lib/python3.12/site-packages/torch/nn/functional.py", "line": 7, "name": "linear"}


@pytest.fixture
def two_runs():
    """A snapshot with two runs of one cell, a step that leaks memory, and a block older than the recording."""
    model = [TORCH, frame("/home/user/model.py", 3, "forward"), frame(CELL, 2, "<module>")]
    trace = [
        event("segment_alloc", 0x10000, 20 * MIB, 100, model),
        event(
            "alloc", 0x10000, 4 * MIB, 101, model, compile_context="Torch-Compiled Region: 0/0", user_metadata="acts"
        ),
        event("alloc", 0x10000 + 4 * MIB, 1000, 102, [frame(CELL, 5, "<module>")], stream=7),
        *free_events(0x10000, 4 * MIB, 103),
        event("snapshot", 0, 0, 150),
        event("alloc", 0x10000, 3 * MIB, 201, model, pool_id=(0, 1)),
        event("alloc", 0x10000 + 8 * MIB, 500, 202, [frame(OTHER_CELL, 1, "<module>")]),
        *free_events(0x10000 + 8 * MIB, 500, 203),
        event("alloc", 0x10000 + 9 * MIB, 100, 204),
    ]
    blocks = [
        block(0x10000, 3 * MIB, 3 * MIB, frames=model),
        block(0x10000 + 3 * MIB, MIB, 5, "inactive"),
        block(0x10000 + 4 * MIB, 1024, 1000),
        block(0x10000 + 4 * MIB + 1024, 5 * MIB - 1024, 5, "inactive"),
        block(0x10000 + 9 * MIB, 512, 100),
        block(0x10000 + 9 * MIB + 512, 11 * MIB - 512, 5, "inactive"),
    ]
    old = segment(0x9000000, 2 * MIB, [block(0x9000000, 2 * MIB, 2 * MIB)], segment_type="small")
    cells = [
        {"number": 1, "filename": CELL, "start_us": 90, "end_us": 160, "success": True},
        {"number": 2, "filename": CELL, "start_us": 200, "end_us": 210, "success": None},
    ]
    regions = [("step", 100, 150), ("inner", 101, 102), ("step", 200, 210)]
    return Snapshot.load(
        {
            "segments": [segment(0x10000, 20 * MIB, blocks), old],
            "device_traces": [trace],
            "external_annotations": [
                {"name": name, "stage": stage, "device": 0, "time_us": time}
                for name, start, end in regions
                for stage, time in (("START", start), ("END", end))
            ],
            "source_code": {CELL: "import torch\nmodel(x)\n\n\ny = torch.ones(250)\n"},
            "ipygpumem": {"schema": 1, "torch": "2.11.0", "recording": {"dropped": [3]}, "cells": cells},
        }
    )
